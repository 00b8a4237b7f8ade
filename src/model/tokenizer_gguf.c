/* model/tokenizer_gguf.c: the tokenizer that a GGUF file carries. */
#include "model/tokenizer.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"

#define KEY(name) "tokenizer.ggml." name

/* GGUF's numbers for the kinds of tokens, at 1 to 6. */
static const int kinds[] = {SOP_TOKEN_NORMAL,  SOP_TOKEN_NORMAL, SOP_TOKEN_CONTROL,
                            SOP_TOKEN_CONTROL, SOP_TOKEN_ADDED,  SOP_TOKEN_UNUSED,
                            SOP_TOKEN_BYTE};

/* The length of an array that must be there. */
static sop_status array(const sop_file *f, const char *name, const char *key, int64_t want,
                        int64_t *n)
{
    *n = sop_file_array(f, key);
    if (*n < 0) return sop_fail(SOP_E_FORMAT, "%s: it has no array %s", name, key);
    if (want >= 0 && *n != want)
        return sop_fail(SOP_E_FORMAT, "%s: %s has %lld elements, the tokens are %lld", name, key,
                        (long long)*n, (long long)want);
    return SOP_OK;
}

static sop_status read_tokens(const sop_file *f, const char *name, sop_tokenizer *t)
{
    int64_t n, n_scores, n_types = sop_file_array(f, KEY("token_type"));
    SOP_TRY(array(f, name, KEY("tokens"), -1, &n));
    if (n > SOP_TOK_MAX_VOCAB)
        return sop_fail(SOP_E_FORMAT, "%s: %lld tokens, at most %d", name, (long long)n,
                        SOP_TOK_MAX_VOCAB);
    if (t->by_score) SOP_TRY(array(f, name, KEY("scores"), n, &n_scores));
    if (n_types >= 0) SOP_TRY(array(f, name, KEY("token_type"), n, &n_types));
    for (int64_t i = 0; i < n; i++) {
        size_t bytes;
        int64_t type = 1;
        double score = 0;
        const char *text = sop_file_array_str(f, KEY("tokens"), i, &bytes);
        if (!text) return sop_fail(SOP_E_FORMAT, "%s: %s holds no texts", name, KEY("tokens"));
        if (t->by_score && !sop_file_array_f64(f, KEY("scores"), i, &score))
            return sop_fail(SOP_E_FORMAT, "%s: %s holds no numbers", name, KEY("scores"));
        if (n_types >= 0 && !sop_file_array_i64(f, KEY("token_type"), i, &type))
            return sop_fail(SOP_E_FORMAT, "%s: %s holds no integers", name, KEY("token_type"));
        if (type < 0 || type > 6)
            return sop_fail(SOP_E_FORMAT, "%s: token %lld has type %lld, must be 1 to 6", name,
                            (long long)i, (long long)type);
        SOP_TRY(sop_tok_add(t, i, text, bytes, kinds[type], (float)score, 0));
    }
    return sop_tok_index(t);
}

static sop_status read_merges(const sop_file *f, const char *name, sop_tokenizer *t)
{
    int64_t n;
    SOP_TRY(array(f, name, KEY("merges"), -1, &n));
    for (int64_t i = 0; i < n; i++) {
        size_t bytes;
        const char *text = sop_file_array_str(f, KEY("merges"), i, &bytes);
        const char *space = text && bytes > 1 ? memchr(text + 1, ' ', bytes - 1) : NULL;
        if (!space)
            return sop_fail(SOP_E_FORMAT, "%s: %s, element %lld is not two texts and a space", name,
                            KEY("merges"), (long long)i);
        const size_t left = (size_t)(space - text);
        SOP_TRY(sop_tok_merge(t, text, left, space + 1, bytes - left - 1));
    }
    return SOP_OK;
}

static sop_status read_id(const sop_file *f, const char *name, const sop_tokenizer *t,
                          const char *key, int32_t *out)
{
    int64_t id;
    if (!sop_file_i64(f, key, &id)) return SOP_OK;
    if (id == -1 || id == UINT32_MAX) return SOP_OK; /* writers' word for none */
    if (id < 0 || id >= t->n_vocab)
        return sop_fail(SOP_E_FORMAT, "%s: %s is %lld, the tokens are %d", name, key, (long long)id,
                        t->n_vocab);
    *out = (int32_t)id;
    return SOP_OK;
}

static sop_status read_all(const sop_file *f, const char *name, sop_tokenizer *t)
{
    const char *model = sop_file_str(f, KEY("model"), NULL);
    const char *pre = sop_file_str(f, KEY("pre"), NULL);
    if (!model) return sop_fail(SOP_E_FORMAT, "%s: it has no %s", name, KEY("model"));
    t->byte_level = strcmp(model, "gpt2") == 0;
    t->by_score = strcmp(model, "llama") == 0;
    if (!t->byte_level && !t->by_score)
        return sop_fail(SOP_E_UNSUPPORTED, "%s: %s is '%s', known are gpt2 and llama", name,
                        KEY("model"), model);
    if (!pre) pre = t->byte_level ? "(none)" : "default";
    SOP_TRY(sop_tok_copy(&t->pre, pre, strlen(pre)));
    if (t->byte_level) {
        SOP_TRY(sop_tok_split_named(t, pre));
    } else {
        bool prefix = true;
        (void)sop_file_bool(f, KEY("add_space_prefix"), &prefix);
        if (prefix) SOP_TRY(sop_tok_norm_add(t, SOP_NORM_PREPEND, "", 0, SOP_TOK_SPACE, 3));
        SOP_TRY(sop_tok_norm_add(t, SOP_NORM_REPLACE, " ", 1, SOP_TOK_SPACE, 3));
        t->byte_fallback = t->fuse_unknown = t->spaces_decoded = true;
        t->strip_first = prefix;
        t->add_bos = true;
    }
    SOP_TRY(read_tokens(f, name, t));
    if (t->byte_level) SOP_TRY(read_merges(f, name, t));
    SOP_TRY(read_id(f, name, t, KEY("bos_token_id"), &t->bos));
    SOP_TRY(read_id(f, name, t, KEY("eos_token_id"), &t->eos));
    SOP_TRY(read_id(f, name, t, KEY("eot_token_id"), &t->eot));
    SOP_TRY(read_id(f, name, t, KEY("unknown_token_id"), &t->unk));
    SOP_TRY(read_id(f, name, t, KEY("padding_token_id"), &t->pad));
    if (t->by_score) t->unknown = t->unk;
    (void)sop_file_bool(f, KEY("add_bos_token"), &t->add_bos);
    const char *chat = sop_file_str(f, "tokenizer.chat_template", NULL);
    if (chat) SOP_TRY(sop_tok_copy(&t->chat_template, chat, strlen(chat)));
    SOP_TRY(sop_tok_finish(t));
    int32_t eom = -1;
    SOP_TRY(read_id(f, name, t, KEY("eom_token_id"), &eom));
    sop_tok_add_end(t, eom);
    return SOP_OK;
}

sop_status sop_tokenizer_of_file(const sop_file *f, const char *name, sop_tokenizer **out)
{
    *out = NULL;
    if (sop_file_kind(f) != SOP_FILE_GGUF)
        return sop_fail(SOP_E_FORMAT,
                        "%s: it carries no tokenizer; open the folder with its "
                        "tokenizer.json",
                        name);
    sop_tokenizer *t;
    SOP_TRY(sop_tok_create(&t));
    const sop_status status = read_all(f, name, t);
    if (status == SOP_OK) {
        *out = t;
    } else {
        sop_tokenizer_close(t);
    }
    return status;
}
