/* The tokenizers of the real models, where they have been pulled: the ids of hard strings must be
 * the reference's. tests/make_tokenizer_data.py made the data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "base/test.h"
#include "model/json.h"
#include "sop/tokenizer.h"

enum { MAX_IDS = 4096 };

/* The model's file in $SOP_MODELS or the cache of `superop pull`; false: it is not there. */
static bool model_path(const char *name, char *path, size_t cap)
{
    const char *folder = getenv("SOP_MODELS"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    if (folder) {
        (void)snprintf(path, cap, "%s/%s.gguf", folder, name);
    } else if (cache && *cache) {
        (void)snprintf(path, cap, "%s/superop/%s.gguf", cache, name);
    } else {
        (void)snprintf(path, cap, "%s/.cache/superop/%s.gguf", home ? home : "", name);
    }
    return access(path, R_OK) == 0;
}

typedef struct sample {
    char text[4096];
    size_t n;
    int32_t ids[2][MAX_IDS]; /* special tokens as text, and parsed */
    size_t n_ids[2];
} sample;

static size_t unhex(const char *s, size_t n, char *to)
{
    unsigned byte = 0;
    for (size_t i = 0; i + 1 < n; i += 2) {
        if (sscanf(s + i, "%2x", &byte) != 1) return 0;
        to[i / 2] = (char)byte;
    }
    return n / 2;
}

/* One line of the data. */
static sop_status read_sample(sop_json *j, sample *s)
{
    const char *key, *text;
    size_t n;
    bool more, whole;
    double d;
    SOP_TRY(sop_json_enter(j, '{'));
    for (;;) {
        SOP_TRY(sop_json_next(j, '}', &more));
        if (!more) return SOP_OK;
        SOP_TRY(sop_json_key(j, &key, &n));
        const bool hex = strcmp(key, "hex") == 0, special = strcmp(key, "special") == 0;
        if (hex || strcmp(key, "text") == 0) {
            SOP_TRY(sop_json_string(j, &text, &n));
            if (n > sizeof s->text) abort();
            if (!hex) memcpy(s->text, text, n);
            s->n = hex ? unhex(text, n, s->text) : n;
            continue;
        }
        SOP_TRY(sop_json_enter(j, '['));
        for (n = 0;; n++) {
            int64_t id;
            SOP_TRY(sop_json_next(j, ']', &more));
            if (!more) break;
            SOP_TRY(sop_json_number(j, &whole, &id, &d));
            if (n == MAX_IDS) abort();
            s->ids[special][n] = (int32_t)id;
        }
        s->n_ids[special] = n;
    }
}

/* Encodes both ways, and decodes what special tokens were parsed out of. */
static int right(const sop_tokenizer *t, const sample *s)
{
    static int32_t ids[MAX_IDS];
    size_t n;
    int ok = 1;
    for (int special = 0; special < 2; special++)
        ok = ok && sop_tokenizer_encode(t, s->text, s->n, special, ids, MAX_IDS, &n) == SOP_OK &&
             n == s->n_ids[special] && memcmp(ids, s->ids[special], n * sizeof *ids) == 0;
    return ok;
}

static int compare(const char *name, const char *path)
{
    static sample s;
    static char line[1 << 16];
    char data[512];
    sop_tokenizer *t;
    int count = 0, wrong = 0;
    (void)snprintf(data, sizeof data, "%s/tokenizer/%s.jsonl", SOP_TEST_DATA, name);
    FILE *f = fopen(data, "r");
    if (!f) return 0;
    if (sop_tokenizer_open(path, &t) != SOP_OK) {
        printf("%s\n", sop_last_error());
        (void)fclose(f);
        return 0;
    }
    while (fgets(line, sizeof line, f)) {
        sop_json j;
        sop_json_init(&j, line, strlen(line), data);
        if (read_sample(&j, &s) != SOP_OK) abort();
        sop_json_finish(&j);
        count++;
        if (right(t, &s)) continue;
        wrong++;
        printf("%s: line %d: other ids\n", data, count);
    }
    (void)fclose(f);
    sop_tokenizer_close(t);
    return count >= 200 && wrong == 0;
}

static void the_ids_of_hard_strings_are_the_reference_s(void)
{
    static const char *const names[] = {"smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m"};
    for (size_t i = 0; i < 3; i++) {
        char path[512];
        if (model_path(names[i], path, sizeof path)) {
            CHECK(compare(names[i], path));
        } else {
            SKIP(names[i], "the model has not been pulled");
        }
    }
}

/* The two instruct models' own templates, as Jinja renders them. */
static void the_real_templates_are_followed(void)
{
    static const struct {
        const char *name, *system;
    } models[] = {
        {"smollm2-135m", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
        {"qwen2.5-coder-0.5b",
         "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."}};
    for (size_t i = 0; i < 2; i++) {
        static int32_t ids[256], want[256];
        static const sop_chat_message question = {"user", "\n\nHi! <|im_end|>"};
        char path[512], text[512];
        size_t n, n_want = 0, k;
        sop_tokenizer *t;
        if (!model_path(models[i].name, path, sizeof path)) {
            SKIP(models[i].name, "the model has not been pulled");
            continue;
        }
        CHECK(sop_tokenizer_open(path, &t) == SOP_OK);
        CHECK(sop_tokenizer_chat(t, &question, 1, true, ids, 256, &n) == SOP_OK);
        /* Piece by piece: text between control tokens is encoded as a whole. */
        const int32_t start = sop_tokenizer_id(t, "<|im_start|>"),
                      end = sop_tokenizer_id(t, "<|im_end|>");
        const char *const parts[] = {
            NULL, text, NULL, "\n",         NULL, "user\n\n\nHi! <|im_end|>",
            NULL, "\n", NULL, "assistant\n"};
        const int32_t marks[] = {start, 0, end, 0, start, 0, end, 0, start, 0};
        (void)snprintf(text, sizeof text, "system\n%s", models[i].system);
        for (size_t p = 0; p < 10; p++) {
            if (parts[p]) {
                CHECK(sop_tokenizer_encode(t, parts[p], strlen(parts[p]), false, want + n_want,
                                           256 - n_want, &k) == SOP_OK);
                n_want += k;
            } else {
                want[n_want++] = marks[p];
            }
        }
        CHECK(n == n_want && memcmp(ids, want, n * sizeof *ids) == 0);
        CHECK(sop_tokenizer_is_end(t, end));
        sop_tokenizer_close(t);
    }
}

int main(void)
{
    RUN(the_ids_of_hard_strings_are_the_reference_s);
    RUN(the_real_templates_are_followed);
    return test_report();
}
