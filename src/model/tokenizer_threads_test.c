/* One tokenizer, several threads; apart from the other tests, whose allocations are counted. */
#include <pthread.h>
#include <string.h>

#include "base/test.h"
#include "model/tokenizer.h"

static sop_tokenizer *shared;
static _Atomic int wrong_answers;

static void *encode_much(void *seed)
{
    uint32_t s = (uint32_t)(uintptr_t)seed;
    for (int round = 0; round < 300; round++) {
        char text[64];
        int32_t ids[64];
        size_t n = 0, want = 0;
        for (int i = 0; i < 60; i++) {
            s = s * 1664525u + 1013904223u;
            text[i] = "ab"[(s >> 24) % 2];
        }
        for (int i = 0; i < 60; i++, want++)
            if (text[i] == 'a' && i < 59 && text[i + 1] == 'b') i++;
        if (sop_tokenizer_encode(shared, text, 60, false, ids, 64, &n) != SOP_OK || n != want)
            wrong_answers++;
    }
    return NULL;
}

static void several_threads_may_encode_at_once(void)
{
    enum { THREADS = 6 }; /* more than encoders are kept */
    static const char json[] =
        "{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}";
    pthread_t threads[THREADS];
    CHECK(sop_tokenizer_parse_json(json, sizeof json - 1, &shared) == SOP_OK);
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(threads + i, NULL, encode_much, (void *)(i + 1)) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(wrong_answers == 0);
    sop_tokenizer_close(shared);
}

int main(void)
{
    RUN(several_threads_may_encode_at_once);
    return test_report();
}
