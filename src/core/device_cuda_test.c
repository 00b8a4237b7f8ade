#include "core/device_cuda.h"

#include <string.h>

#include "base/test.h"

static void without_a_card_the_sentence_says_so(void)
{
    sop_device *d = (sop_device *)1;
    const sop_status status = sop_device_cuda(4096, &d);
    CHECK(status == SOP_E_UNSUPPORTED || status == SOP_E_NOT_FOUND);
    CHECK(!d);
    CHECK(strstr(sop_last_error(), "cuda device 4096"));
}

int main(void)
{
    RUN(without_a_card_the_sentence_says_so);
    return test_report();
}
