#include "core/device_cuda.h"

#include <string.h>

#include "base/test.h"
#include "sop/cuda.h"

static void without_a_card_the_sentence_says_so(void)
{
    sop_device *d = (sop_device *)1;
    const sop_status status = sop_device_cuda(4096, &d);
    CHECK(status == SOP_E_UNSUPPORTED || status == SOP_E_NOT_FOUND);
    CHECK(!d);
    CHECK(strstr(sop_last_error(), "cuda device 4096"));
}

static void a_device_without_streams_lends_none(void)
{
    sop_device *cpu;
    sop_queue *q = (sop_queue *)1;
    CHECK(sop_device_cpu(1, &cpu) == SOP_OK);
    CHECK(sop_queue_on(cpu, NULL, &q, NULL) == SOP_E_UNSUPPORTED);
    CHECK(!q);
    CHECK(strstr(sop_last_error(), "stream"));
    sop_device_destroy(cpu);
}

static void a_stream_of_the_caller_has_one_queue(void)
{
    sop_device *d;
    sop_queue *a, *b;
    int32_t recording = 7;
    if (sop_device_cuda(0, &d) != SOP_OK) {
        SKIP("a queue on a stream", sop_last_error());
        return;
    }
    CHECK(sop_queue_on(d, NULL, &a, &recording) == SOP_OK);
    CHECK(recording == 0);
    CHECK(sop_queue_on(d, NULL, &b, NULL) == SOP_OK);
    CHECK(a == b && a->device == d);
    CHECK(sop_queue_stream(a) == NULL);
    sop_device_destroy(d);
}

int main(void)
{
    RUN(without_a_card_the_sentence_says_so);
    RUN(a_device_without_streams_lends_none);
    RUN(a_stream_of_the_caller_has_one_queue);
    return test_report();
}
