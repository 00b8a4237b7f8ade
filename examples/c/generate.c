/* A model: tokenizer, super operator, KV pages, one greedy reply.
 *
 *     cc generate.c -o generate $(pkg-config --cflags --libs superop)
 *     ./generate MODEL.gguf "Once upon a time" */
#include <sop/model.h>
#include <sop/tokenizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PROMPT = 1024, MOST_REPLY = 32 };

/* Prints what follows the prompt, a token a step. */
static sop_status reply(sop_super *super, const sop_tokenizer *tokenizer, const int32_t *ids,
                        size_t n)
{
    char text[4096];
    int32_t seq = -1, next = -1;
    size_t bytes = 0;
    sop_detok detok;
    sop_detok_init(&detok, tokenizer, false);
    sop_status s = sop_super_open(super, &seq);
    for (int i = 0; i < MOST_REPLY && s == SOP_OK; i++) {
        const sop_step_item item = {
            .seq = seq, .n_ids = (int32_t)n, .ids = ids, .want = SOP_WANT_LAST};
        s = sop_super_step(super, &item, 1, &next, NULL);
        if (s != SOP_OK || sop_tokenizer_is_end(tokenizer, next)) break;
        s = sop_detok_push(&detok, next, text, sizeof text, &bytes);
        if (s == SOP_OK) fputs(text, stdout);
        ids = &next; /* from now on one token a step */
        n = 1;
    }
    if (s == SOP_OK) s = sop_detok_push(&detok, -1, text, sizeof text, &bytes);
    if (s == SOP_OK) puts(text);
    if (seq >= 0) sop_super_close(super, seq);
    return s;
}

int main(int argc, char **argv)
{
    int32_t ids[MOST_PROMPT];
    size_t n = 0, bos = 0;
    sop_tokenizer_facts facts;
    sop_runtime *runtime = NULL;
    sop_model *model = NULL;
    sop_super *super = NULL;
    sop_tokenizer *tokenizer = NULL;
    const sop_limits limits = {.ctx = 0}; /* all of it standard */
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
        return 2;
    }
    sop_status s = sop_tokenizer_open(argv[1], &tokenizer);
    if (s == SOP_OK) {
        sop_tokenizer_facts_of(tokenizer, &facts);
        if (facts.add_bos) ids[bos++] = facts.bos;
        s = sop_tokenizer_encode(tokenizer, argv[2], strlen(argv[2]), false, ids + bos,
                                 MOST_PROMPT - bos, &n);
        n += bos;
    }
    if (s == SOP_OK) s = sop_runtime_create(NULL, NULL, "", &runtime);
    if (s == SOP_OK) s = sop_model_open(runtime, argv[1], &model);
    if (s == SOP_OK) s = sop_model_super(model, &limits, &super);
    if (s == SOP_OK) s = reply(super, tokenizer, ids, n < MOST_PROMPT ? n : MOST_PROMPT);
    if (s != SOP_OK) fprintf(stderr, "%s\n", sop_last_error());
    sop_super_destroy(super);
    sop_model_close(model);
    sop_runtime_destroy(runtime);
    sop_tokenizer_close(tokenizer);
    return s != SOP_OK;
}
