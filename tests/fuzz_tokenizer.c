/* libFuzzer: any bytes as a tokenizer.json, and then as a text, a template and ids. */
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* A short text of every kind, both ways, and back. */
static void use(const sop_tokenizer *t)
{
    static const char text[] =
        "Hello, W\xC3\xB6rld's  123\n\n\xE4\xBD\xA0 <s>\xF0\x9F\x98\x80 e\xCC\x81\xFF<|im_end|> ab";
    static const sop_chat_message talk[] = {{"user", "a <|im_end|>"}, {"assistant", "b"}};
    static int32_t ids[512];
    sop_tokenizer_facts facts;
    sop_detok d;
    size_t count = 0, written;
    sop_tokenizer_facts_of(t, &facts);
    const size_t room = sop_detok_room(t);
    char *out = malloc(room);
    if (!out) abort();
    for (int special = 0; special < 2; special++) {
        if (sop_tokenizer_encode(t, text, sizeof text - 1, special, ids, 512, &count) != SOP_OK)
            continue;
        sop_detok_init(&d, t, special);
        for (size_t i = 0; i < count && i < 512; i++) {
            if (ids[i] < 0 || ids[i] >= facts.n_vocab) abort();
            if (sop_detok_push(&d, ids[i], out, room, &written) != SOP_OK) abort();
        }
        if (sop_detok_push(&d, -1, out, room, &written) != SOP_OK) abort();
    }
    (void)!sop_tokenizer_chat(t, talk, 2, true, ids, 512, &count);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    sop_tokenizer *t;
    if (sop_tokenizer_parse_json((const char *)bytes, n, &t) != SOP_OK) return 0;
    use(t);
    sop_tokenizer_close(t);
    return 0;
}
