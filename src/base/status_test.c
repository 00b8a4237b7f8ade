#include "base/status.h"

#include <string.h>

#include "base/test.h"

static sop_status fails(int n)
{
    return sop_fail(SOP_E_ARG, "thing: n=%d, must be > 0", n);
}

static sop_status hands_on(int n)
{
    SOP_TRY(fails(n));
    return SOP_OK;
}

static void a_failure_keeps_its_sentence_and_status(void)
{
    CHECK(hands_on(-3) == SOP_E_ARG);
    CHECK(strcmp(sop_last_error(), "thing: n=-3, must be > 0") == 0);
}

static void every_status_has_a_text(void)
{
    for (int s = SOP_OK; s <= SOP_E_INTERNAL; s++)
        CHECK(strcmp(sop_status_text((sop_status)s), "unknown status") != 0);
    CHECK(strcmp(sop_status_text((sop_status)99), "unknown status") == 0);
}

int main(void)
{
    RUN(a_failure_keeps_its_sentence_and_status);
    RUN(every_status_has_a_text);
    return test_report();
}
