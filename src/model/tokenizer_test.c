/* Tokenizers of a few hundred tokens, made here: what each part does, and what broken files do. */
#include "model/tokenizer_test.h"

#include <time.h>

/* The status of opening it, and its sentence. */
static sop_status try_made(const made *m)
{
    size_t n;
    sop_tokenizer *t;
    char *json = make_json(m, &n);
    const sop_status status = sop_tokenizer_parse_json(json, n, &t);
    sop_tokenizer_close(t);
    free(json);
    return status;
}

static int32_t n_ids(const sop_tokenizer *t, const char *text, size_t bytes)
{
    size_t n = 0;
    if (sop_tokenizer_encode(t, text, bytes, false, NULL, 0, &n) != SOP_OK) return -1;
    return (int32_t)n;
}

/* ---- the chain ---- */

static void the_chain_is_read_from_the_file(void)
{
    static const char *const tokens[] = {"12", "123", "1234", "12345", "45", NULL};
    static const char *const merges[] = {"1 2", "12 3", "123 4", "1234 5", "4 5", NULL};
    static const struct {
        const char *pre, *name, *cut;
    } chains[] = {{PRE_GPT2, "gpt-2", "12345"},
                  {PRE_SMOLLM, "smollm", "1|2|3|4|5"},
                  {PRE_QWEN2, "qwen2", "1|2|3|4|5"},
                  {PRE_LLAMA3, "llama-bpe", "123|45"},
                  {PRE_FALCON, "custom", "123|45"}};
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
        sop_tokenizer_facts facts;
        sop_tokenizer *t = open_made(
            &(made){.letters = true, .pre = chains[i].pre, .tokens = tokens, .merges = merges});
        sop_tokenizer_facts_of(t, &facts);
        CHECK(strcmp(facts.pre, chains[i].name) == 0);
        CHECK(strcmp(facts.family, "bpe") == 0);
        CHECK(cuts(t, false, "12345", chains[i].cut));
        sop_tokenizer_close(t);
    }
}

/* A tokenizer whose tokens are the pieces: a piece that is a token comes out whole. */
static sop_tokenizer *pieces(const char *pre, const char *const *tokens)
{
    return open_made(
        &(made){.letters = true, .pre = pre, .tokens = tokens, .model = "\"ignore_merges\":true,"});
}

static void the_known_regexes_cut_as_they_say(void)
{
    static const char *const tokens[] = {
        "it",         "'s",   "'S",
        "'ll",        G "we", G G,
        "a",          G "b",  "12",
        G "12",       "!!",   "\xC4\x8A\xC4\x8A", /* two newlines */
        "!!\xC4\x8A", G "!!", "'\xC3\x85\xC2\xBF" /* ' and U+017F */,
        NULL};
    sop_tokenizer *gpt2 = pieces(PRE_GPT2, tokens), *qwen2 = pieces(PRE_QWEN2, tokens);
    CHECK(cuts(gpt2, false, "it's", "it|'s"));
    CHECK(cuts(gpt2, false, "it'S", "it|'|S")); /* only lower case */
    CHECK(cuts(qwen2, false, "it'S", "it|'S"));
    CHECK(cuts(qwen2, false, "'ll", "'ll"));
    CHECK(cuts(qwen2, false,
               "'\xC5\xBF"
               "a",
               "'\xC5\xBF|a"));
    CHECK(cuts(gpt2, false, "a   b", "a|  | b")); /* all spaces but the last */
    CHECK(cuts(qwen2, false, "a   b", "a|  | b"));
    CHECK(cuts(gpt2, false, "a  ", "a|  "));
    CHECK(cuts(gpt2, false, " 12", " 12"));
    CHECK(cuts(qwen2, false, " 12", " |1|2"));
    CHECK(cuts(gpt2, false, "!!\n", "!!|\n"));
    CHECK(cuts(qwen2, false, "!!\n", "!!\n"));
    CHECK(cuts(qwen2, false, "a\n\nb", "a|\n\n|b"));
    CHECK(cuts(gpt2, false, " !!", " !!"));
    sop_tokenizer_close(gpt2);
    sop_tokenizer_close(qwen2);
}

static void other_regexes_cut_with_every_behaviour(void)
{
    static const char *const tokens[] = {"a1", "b22", "22", "1b", "22c", "2c", "b2", NULL};
    static const struct {
        const char *split, *cut;
    } cases[] = {
        {"\"Isolated\",\"invert\":false", "a|1|b|22|c"},
        {"\"Removed\",\"invert\":false", "a|b|c"},
        {"\"Removed\",\"invert\":true", "1|22"},
        {"\"MergedWithPrevious\",\"invert\":false", "a1|b22|c"},
        {"\"MergedWithNext\",\"invert\":false", "a|1b|22c"},
        {"\"Contiguous\",\"invert\":false", "a|1|b|22|c"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char pre[256];
        snprintf(
            pre, sizeof pre,
            CHAIN("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[0-9]+\"},\"behavior\":%s},%s"),
            cases[i].split, BYTE_LEVEL("false"));
        sop_tokenizer *t = pieces(pre, tokens);
        CHECK(cuts(t, false, "a1b22c", cases[i].cut));
        sop_tokenizer_close(t);
    }
    /* A fixed text, and a regex that matches nothing but a place. */
    sop_tokenizer *t = pieces(CHAIN("{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},"
                                    "\"behavior\":\"Contiguous\"}," BYTE_LEVEL("false")),
                              tokens);
    CHECK(cuts(t, false, "a1b22c", "a1|b|22c"));
    sop_tokenizer_close(t);
    t = pieces(CHAIN(SPLIT("(?=22)") "," BYTE_LEVEL("false")), tokens);
    CHECK(cuts(t, false, "a122", "a1|22"));
    sop_tokenizer_close(t);
    t = pieces(CHAIN(SPLIT("\\\\s") "," BYTE_LEVEL("false")), tokens);
    CHECK(cuts(t, false,
               "22\xC2\x85"
               "22",
               "22|\xC2|\x85|22")); /* U+0085 is a space */
    CHECK(cuts(t, false,
               "22\xE1\xA0\x8E"
               "22",
               "2|2|\xE1|\xA0|\x8E|2|2")); /* U+180E is none */
    sop_tokenizer_close(t);
}

static void a_regex_that_gives_up_is_an_error(void)
{
    char text[41];
    size_t n;
    memset(text, 'x', 40);
    text[40] = 0;
    sop_tokenizer *t = pieces(CHAIN(SPLIT("(x+x+)+[yz]") "," BYTE_LEVEL("false")), NULL);
    CHECK(sop_tokenizer_encode(t, text, 40, false, NULL, 0, &n) == SOP_E_LIMIT);
    CHECK(says("gives up at byte 0 of 40"));
    sop_tokenizer_close(t);
    CHECK(try_made(&(made){.letters = true, .pre = CHAIN(SPLIT("(") "," BYTE_LEVEL("false"))}) ==
          SOP_E_UNSUPPORTED);
    CHECK(says("regex"));
}

static void a_normaliser_may_not_blow_a_text_up(void)
{
    char norm[8192], text[1000];
    size_t n;
    memset(text, 'a', sizeof text);
    const int head = snprintf(
        norm, sizeof norm, "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"");
    memset(norm + head, 'b', 5000);
    strcpy(norm + head + 5000, "\"}");
    sop_tokenizer *t = open_made(&(made){.letters = true, .pre = PRE_GPT2, .normalizer = norm});
    CHECK(n_ids(t, text, 1) == 5000);
    CHECK(sop_tokenizer_encode(t, text, 1000, false, NULL, 0, &n) == SOP_E_LIMIT);
    CHECK(says("of 1000"));
    sop_tokenizer_close(t);
}

static void a_prefix_space_goes_before_each_piece(void)
{
    static const char *const tokens[] = {G "a", NULL};
    sop_tokenizer *t = pieces("{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", tokens);
    CHECK(cuts(t, false, "a", " a"));
    CHECK(cuts(t, false, " a", " a"));
    sop_tokenizer_close(t);
}

/* ---- merging ---- */

static void the_best_rank_merges_first_and_the_leftmost_of_equals(void)
{
    static const char *const tokens[] = {"bc", "ab", "aa", "aab", NULL};
    static const char *const merges[] = {"b c", "a b", "a a", "aa b", NULL};
    for (int pairs = 0; pairs < 2; pairs++) {
        sop_tokenizer *t = open_made(&(made){
            .letters = true, .pre = PRE_GPT2, .tokens = tokens, .merges = merges, .pairs = pairs});
        CHECK(cuts(t, false, "abc", "a|bc"));
        CHECK(cuts(t, false, "aaa", "aa|a"));
        CHECK(cuts(t, false, "aab", "a|ab"));
        CHECK(cuts(t, false, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabc",
                   "aa|aa|aa|aa|aa|aa|aa|aa|aa|aa|aa|aa|aa|aa|aa|aa|aa|aa|aa|a|bc"));
        sop_tokenizer_close(t);
    }
}

static void a_long_word_is_merged_like_a_short_one(void)
{
    /* Random words over three letters, against merging done in the plainest way. */
    static const char *const tokens[] = {"ab", "ba", "aba", "bab", "cc", "abab", "cab", NULL};
    static const char *const merges[] = {"a b",  "c c",   "b a",  "ab a",
                                         "b ab", "ab ab", "c ab", NULL};
    sop_tokenizer *t =
        open_made(&(made){.letters = true, .pre = PRE_GPT2, .tokens = tokens, .merges = merges});
    uint32_t seed = 1;
    for (int round = 0; round < 300; round++) {
        char word[200], left[8], right[8];
        int32_t ids[200];
        const char *part[200];
        size_t len[200], n = 0, m;
        const size_t size = 1 + (size_t)round % 199;
        for (size_t i = 0; i < size; i++) {
            seed = seed * 1664525u + 1013904223u;
            word[i] = "abc"[(seed >> 24) % 3];
            part[i] = word + i;
            len[i] = 1;
        }
        m = size;
        for (bool merged = true; merged;) {
            merged = false;
            for (int r = 0; merges[r] && !merged; r++) {
                (void)sscanf(merges[r], "%7s %7s", left, right);
                for (size_t i = 0; i + 1 < m && !merged; i++) {
                    if (len[i] != strlen(left) || len[i + 1] != strlen(right) ||
                        memcmp(part[i], left, len[i]) != 0 ||
                        memcmp(part[i + 1], right, len[i + 1]) != 0)
                        continue;
                    len[i] += len[i + 1];
                    for (size_t k = i + 1; k + 1 < m; k++)
                        part[k] = part[k + 1], len[k] = len[k + 1];
                    m--;
                    merged = true;
                }
            }
        }
        CHECK(sop_tokenizer_encode(t, word, size, false, ids, 200, &n) == SOP_OK);
        int wrong = n != m;
        for (size_t i = 0; !wrong && i < n; i++) {
            size_t bytes;
            const char *piece = sop_tokenizer_piece(t, ids[i], false, &bytes);
            wrong = bytes != len[i] || memcmp(piece, part[i], bytes) != 0;
        }
        CHECK(!wrong);
    }
    sop_tokenizer_close(t);
}

static void long_words_cost_no_square(void)
{
    static const char *const tokens[] = {"aa", "aaaa", "aaaaaaaa", NULL};
    static const char *const merges[] = {"a a", "aa aa", "aaaa aaaa", NULL};
    enum { SMALL = 100000 };
    sop_tokenizer *t =
        open_made(&(made){.letters = true, .pre = PRE_GPT2, .tokens = tokens, .merges = merges});
    char *text = malloc(10 * SMALL);
    double small = 1e9, large = 1e9;
    memset(text, 'a', 10 * SMALL);
    for (int i = 0; i < 9; i++) { /* processor time, the best of some: others use the machine */
        clock_t begin = clock();
        CHECK(n_ids(t, text, SMALL) == SMALL / 8);
        double took = (double)(clock() - begin) / CLOCKS_PER_SEC;
        small = took < small ? took : small;
        begin = clock();
        CHECK(n_ids(t, text, 2 * SMALL) == 2 * SMALL / 8);
        took = (double)(clock() - begin) / CLOCKS_PER_SEC;
        large = took < large ? took : large;
    }
    CHECK(small < 0.5);
    CHECK(large < 2.6 * small + 0.005);
    CHECK(n_ids(t, text, 10 * SMALL) == 10 * SMALL / 8);
    memset(text, ' ', SMALL);
    CHECK(n_ids(t, text, SMALL) == SMALL);
    free(text);
    sop_tokenizer_close(t);
}

static void a_whole_word_wins_where_the_file_says_so(void)
{
    static const char *const tokens[] = {"ab", "abc", NULL};
    static const char *const merges[] = {"a b", NULL};
    made m = {.letters = true, .pre = PRE_LLAMA3, .tokens = tokens, .merges = merges};
    sop_tokenizer *t = open_made(&m);
    CHECK(cuts(t, false, "abc", "ab|c"));
    sop_tokenizer_close(t);
    m.model = "\"ignore_merges\":true,";
    t = open_made(&m);
    CHECK(cuts(t, false, "abc", "abc"));
    sop_tokenizer_close(t);
}

static void qwen_composes_before_it_cuts(void)
{
    made m = {.letters = true, .pre = PRE_QWEN2, .normalizer = "{\"type\":\"NFC\"}"};
    sop_tokenizer *t = open_made(&m);
    CHECK(cuts(t, false, "e\xCC\x81", "\xC3|\xA9"));
    sop_tokenizer_close(t);
    m.normalizer = NULL;
    t = open_made(&m);
    CHECK(cuts(t, false, "e\xCC\x81", "e|\xCC|\x81"));
    sop_tokenizer_close(t);
}

/* ---- added tokens ---- */

static void special_tokens_are_text_unless_asked_for(void)
{
    sop_tokenizer *t = open_made(&(made){
        .letters = true,
        .pre = PRE_GPT2,
        .added = "[" ADDED(256, "<|e|>", SPECIAL) "," ADDED(257, "<|e|>x", SPECIAL) "," ADDED(
            258, "[t]", PLAIN) "," ADDED(259, "|e", PLAIN) "," ADDED(260, "[t", PLAIN) "]"});
    CHECK(cuts(t, true, "a<|e|>b", "a|<|e|>|b"));
    CHECK(cuts(t, true, "<|e|>xy", "<|e|>x|y"));       /* the longest */
    CHECK(cuts(t, false, "a<|e|>b", "a|<|||e|||>|b")); /* and it hides the |e inside */
    CHECK(cuts(t, false, "a[t]b |e", "a|[t]|b| ||e"));
    CHECK(cuts(t, false, "[t[t]", "[t|[t]"));
    CHECK(sop_tokenizer_id(t, "<|e|>") == 256);
    CHECK(sop_tokenizer_id(t, "no such") == -1);
    size_t bytes;
    (void)sop_tokenizer_piece(t, 256, false, &bytes);
    CHECK(bytes == 0);
    (void)sop_tokenizer_piece(t, 258, false, &bytes);
    CHECK(bytes == 3);
    sop_tokenizer_close(t);
}

static void added_tokens_take_spaces_and_whole_words_as_they_say(void)
{
    sop_tokenizer *t = open_made(&(made){
        .letters = true,
        .pre = PRE_GPT2,
        .normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"-\"},\"content\":\"+\"}",
        .added = "[" ADDED(256, "<l>", SPECIAL ",\"lstrip\":true") "," ADDED(257, "<r>", SPECIAL ",\"rstrip\":true") "," ADDED(
            258, "cat",
            PLAIN
            ",\"single_word\":true") "," ADDED(259, "a-b",
                                               ",\"special\":false,\"normalized\":true") "," ADDED(260,
                                                                                                   "c-d",
                                                                                                   PLAIN) "]"});
    CHECK(cuts(t, true, "x \xC2\xA0 <l> y", "x|<l>| |y"));
    CHECK(cuts(t, true, "x <r> \n y", "x| |<r>|y"));
    CHECK(cuts(t, true, "<r> <l>", "<r>|<l>"));
    CHECK(cuts(t, false, "a cat.", "a| |cat|."));
    CHECK(cuts(t, false, "cats", "c|a|t|s"));
    CHECK(cuts(t, false,
               "\xC3\xA9"
               "cat",
               "\xC3|\xA9|c|a|t"));
    CHECK(cuts(t, false, "xa-b", "x|a-b")); /* found as a+b */
    CHECK(cuts(t, false, "xa+b", "x|a-b"));
    CHECK(cuts(t, false, "c-dc+d", "c-d|c|+|d")); /* found before that */
    sop_tokenizer_close(t);
}

/* ---- SentencePiece ---- */

#define SPM_DECODER \
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" U \
    "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}"
#define STRIP ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"
#define REPLACE_SPACES "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" U "\"}"

static void gemma_s_json_cuts_characters_and_falls_back_to_bytes(void)
{
    static const char *const tokens[] = {"<unk>", "<0xC3>", "<0xA9>", "a", "b",
                                         U,       U "a",    "ab",     NULL};
    static const char *const merges[] = {U " a", "a b", NULL};
    sop_tokenizer_facts facts;
    made m = {.normalizer = REPLACE_SPACES,
              .pre = "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":"
                     "\"MergedWithPrevious\",\"invert\":false}",
              .decoder = SPM_DECODER "]}",
              .tokens = tokens,
              .merges = merges,
              .added = "[" ADDED(0, "<unk>", SPECIAL) "]",
              .model = "\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,"};
    sop_tokenizer *t = open_made(&m);
    sop_tokenizer_facts_of(t, &facts);
    CHECK(strcmp(facts.family, "spm") == 0 && facts.unk == 0);
    CHECK(cuts(t, false, "ab ab", "ab| a|b"));
    CHECK(cuts(t, false, "a\xC3\xA9", "a|\xC3|\xA9"));
    CHECK(cuts(t, false,
               "a\xE4\xBD\xA0\xE5\xA5\xBD"
               "b",
               "a|<unk>|b")); /* two become one */
    sop_tokenizer_close(t);
    m.model = "\"unk_token\":\"<unk>\",\"fuse_unk\":false,\"byte_fallback\":true,";
    t = open_made(&m);
    CHECK(cuts(t, false,
               "a\xE4\xBD\xA0\xE5\xA5\xBD"
               "b",
               "a|<unk>|<unk>|b"));
    sop_tokenizer_close(t);
    m.model = NULL;
    t = open_made(&m);
    CHECK(cuts(t, false,
               "a\xE4\xBD\xA0"
               "b",
               "ab")); /* no unk: left out */
    sop_tokenizer_close(t);
}

static void llama_2_s_json_puts_a_space_in_front(void)
{
    static const char *const tokens[] = {"<s>", "a", U, U "a", NULL};
    static const char *const merges[] = {U " a", NULL};
    sop_tokenizer_facts facts;
    made m = {
        .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
                      "\"" U "\"}," REPLACE_SPACES "]}",
        .decoder = SPM_DECODER STRIP "]}",
        .post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\","
                "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]}",
        .tokens = tokens,
        .merges = merges,
        .added = "[" ADDED(0, "<s>", SPECIAL) "]"};
    sop_tokenizer *t = open_made(&m);
    sop_tokenizer_facts_of(t, &facts);
    CHECK(facts.bos == 0 && facts.add_bos);
    CHECK(cuts(t, true, "a<s>a a", " a|<s>| a| a"));
    CHECK(cuts(t, false, "", ""));
    sop_tokenizer_close(t);
    /* The same by Metaspace; "first" is the text's beginning alone. */
    m.normalizer = NULL;
    m.decoder = "{\"type\":\"Metaspace\",\"replacement\":\"" U "\",\"prepend_scheme\":\"first\"}";
    m.pre = "{\"type\":\"Metaspace\",\"replacement\":\"" U "\",\"prepend_scheme\":\"first\","
            "\"split\":true}";
    t = open_made(&m);
    CHECK(cuts(t, true, "a<s>a a", " a|<s>|a| a"));
    CHECK(cuts(t, true, " a", " a"));
    CHECK(t->strip_first && t->spaces_decoded);
    sop_tokenizer_close(t);
    m.pre = "{\"type\":\"Metaspace\",\"replacement\":\"" U "\",\"prepend_scheme\":\"always\"}";
    t = open_made(&m);
    CHECK(cuts(t, true, "a<s>a a", " a|<s>| a| a"));
    sop_tokenizer_close(t);
}

/* ---- GGUF ---- */

static struct {
    uint8_t b[1 << 16];
    size_t n;
    uint64_t n_keys;
} gguf;

static void put(const void *p, size_t n)
{
    if (gguf.n + n > sizeof gguf.b) abort();
    memcpy(gguf.b + gguf.n, p, n);
    gguf.n += n;
}

static void u32(uint32_t v)
{
    put(&v, sizeof v);
}

static void u64(uint64_t v)
{
    put(&v, sizeof v);
}

static void text_of(const char *s)
{
    u64(strlen(s));
    put(s, strlen(s));
}

static void gguf_begin(void)
{
    gguf.n = 0;
    gguf.n_keys = 0;
    put("GGUF", 4);
    u32(3);
    u64(0);
    u64(0); /* the keys, set at the end */
}

static void gguf_key(const char *key, uint32_t type)
{
    char name[64];
    snprintf(name, sizeof name, strncmp(key, "tokenizer.", 10) ? "tokenizer.ggml.%s" : "%s", key);
    text_of(name);
    u32(type);
    gguf.n_keys++;
}

static void gguf_str(const char *key, const char *value)
{
    gguf_key(key, 8);
    text_of(value);
}

static void gguf_u32(const char *key, uint32_t value)
{
    gguf_key(key, 4);
    u32(value);
}

static void gguf_bool(const char *key, uint8_t value)
{
    gguf_key(key, 7);
    put(&value, 1);
}

static void gguf_strs(const char *key, const char *const *values)
{
    uint64_t n = 0;
    while (values[n]) n++;
    gguf_key(key, 9);
    u32(8);
    u64(n);
    for (uint64_t i = 0; i < n; i++) text_of(values[i]);
}

static void gguf_i32s(const char *key, const int32_t *values, uint64_t n)
{
    gguf_key(key, 9);
    u32(5);
    u64(n);
    put(values, n * sizeof *values);
}

static void gguf_f32s(const char *key, const float *values, uint64_t n)
{
    gguf_key(key, 9);
    u32(6);
    u64(n);
    put(values, n * sizeof *values);
}

static sop_status gguf_open(sop_tokenizer **t)
{
    const char *path = in_folder("t.gguf");
    memcpy(gguf.b + 16, &gguf.n_keys, 8);
    while (gguf.n % 32) put("", 1);
    write_file(path, gguf.b, gguf.n);
    return sop_tokenizer_open(path, t);
}

static const char *const spm_tokens[] = {
    "<unk>", "<s>", "</s>",  "<0xE4>", "<0xBD>", "<0xA0>", U,    "D",  "e",
    "a",     "r",   "B",     "o",      "b",      ",",      "ar", "De", "Dear",
    U "B",   "ob",  U "Bob", U "Dear", "aa",     "<t>",    "eo", NULL};
static const float spm_scores[] = {0,   0,   0,  0,  0,  0,  -90, -91, -92, -93, -94, -95, -96,
                                   -97, -98, -1, -2, -3, -4, -5,  -6,  -7,  -8,  0,   -1};
static const int32_t spm_types[] = {2, 3, 3, 6, 6, 6, 1, 1, 1, 1, 1, 1, 1,
                                    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 5};
enum { N_SPM = 25 };

/* Llama 2's kind of file, without what without names. */
static void gguf_spm(const char *without)
{
    gguf_begin();
    if (strcmp(without, "model")) gguf_str("model", "llama");
    if (strcmp(without, "tokens")) gguf_strs("tokens", spm_tokens);
    if (strcmp(without, "scores")) gguf_f32s("scores", spm_scores, N_SPM);
    if (strcmp(without, "token_type")) gguf_i32s("token_type", spm_types, N_SPM);
    gguf_u32("bos_token_id", 1);
    gguf_u32("eos_token_id", 2);
    gguf_u32("unknown_token_id", 0);
}

static void a_gguf_with_scores_merges_by_score(void)
{
    sop_tokenizer *t;
    sop_tokenizer_facts facts;
    gguf_spm("");
    CHECK(gguf_open(&t) == SOP_OK);
    sop_tokenizer_facts_of(t, &facts);
    CHECK(strcmp(facts.family, "spm") == 0 && facts.bos == 1 && facts.eos == 2 && facts.unk == 0);
    CHECK(facts.add_bos && facts.n_vocab == N_SPM && !facts.chat_template);
    CHECK(cuts(t, false, "Dear Bob,", " Dear| Bob|,"));
    CHECK(cuts(t, false, "aaa", " |aa|a")); /* the leftmost of equals */
    CHECK(cuts(t, false, "eo", " |e|o"));   /* eo is unused */
    CHECK(cuts(t, false, "D\xE4\xBD\xA0", " |D|\xE4|\xBD|\xA0"));
    CHECK(cuts(t, false,
               "D\xC3\xA9\xC3\xA9"
               "e",
               " |D|<unk>|e")); /* no bytes: one unk */
    CHECK(cuts(t, false, "a<t>a", " |a|<t>| |a"));
    CHECK(cuts(t, false, "a<s>", " |a|<unk>"));
    CHECK(cuts(t, true, "a<s>", " |a|<s>"));
    CHECK(sop_tokenizer_id(t, " Bob") == 20 && sop_tokenizer_id(t, U "Bob") == 20);
    CHECK(sop_tokenizer_is_end(t, 2) && !sop_tokenizer_is_end(t, 1) &&
          !sop_tokenizer_is_end(t, -1));
    sop_tokenizer_close(t);
    gguf_spm("");
    gguf_bool("add_space_prefix", 0);
    gguf_bool("add_bos_token", 0);
    CHECK(gguf_open(&t) == SOP_OK);
    sop_tokenizer_facts_of(t, &facts);
    CHECK(!facts.add_bos);
    CHECK(cuts(t, false, "Dear Bob,", "Dear| Bob|,"));
    sop_tokenizer_close(t);
}

static void a_long_text_without_a_splitter_is_cut_where_no_merge_crosses(void)
{
    /* All bytes have tokens, so the text may be cut; the ids must be as if it were not. */
    static char names[256][8];
    static const char *tokens[256 + 8];
    static float scores[256 + 8];
    static int32_t types[256 + 8];
    static const char *const normal[] = {"a", "b", U, "ab", U "a", "b" U "a", "ba"};
    sop_tokenizer *t;
    for (int i = 0; i < 256; i++) {
        snprintf(names[i], sizeof names[i], "<0x%02X>", i);
        tokens[i] = names[i];
        types[i] = 6;
    }
    for (int i = 0; i < 7; i++) {
        tokens[256 + i] = normal[i];
        scores[256 + i] = (float)-i;
        types[256 + i] = 1;
    }
    scores[256 + 3] = -0.0f; /* of ab; ba has 0, which is no better */
    scores[256 + 6] = 0.0f;
    gguf_begin();
    gguf_str("model", "llama");
    gguf_strs("tokens", tokens);
    gguf_f32s("scores", scores, 263);
    gguf_i32s("token_type", types, 263);
    gguf_bool("add_space_prefix", 0);
    CHECK(gguf_open(&t) == SOP_OK);
    CHECK(t->joints != NULL);
    uint64_t *joints = t->joints;
    uint32_t seed = 7;
    for (int round = 0; round < 400; round++) {
        static const char *const parts[] = {"a", "b", " ", "c", "\xC3\xA9"};
        char text[512];
        int32_t with[512], without[512];
        size_t n = 0, n_with, n_without;
        for (int i = 0; i < 1 + round / 4; i++) {
            seed = seed * 1664525u + 1013904223u;
            const char *p = parts[(seed >> 24) % 5];
            memcpy(text + n, p, strlen(p));
            n += strlen(p);
        }
        t->joints = joints;
        CHECK(sop_tokenizer_encode(t, text, n, false, with, 512, &n_with) == SOP_OK);
        t->joints = NULL;
        CHECK(sop_tokenizer_encode(t, text, n, false, without, 512, &n_without) == SOP_OK);
        CHECK(n_with == n_without && memcmp(with, without, n_with * sizeof *with) == 0);
    }
    t->joints = joints;
    CHECK(cuts(t, false, "ab ab", "ab| |ab"));
    CHECK(cuts(t, false, "aba", "ab|a"));
    sop_tokenizer_close(t);
}

static const char *const bpe_tokens[] = {
    "a", "b", "c", "ab", G, G "a", "<|im_start|>", "<|im_end|>", "<|endoftext|>", NULL};
static const int32_t bpe_types[] = {1, 1, 1, 1, 1, 1, 3, 3, 3};
static const char *const bpe_merges[] = {"a b", G " a", "x y", NULL};

static void gguf_bpe(const char *pre)
{
    gguf_begin();
    gguf_str("model", "gpt2");
    if (pre) gguf_str("pre", pre);
    gguf_strs("tokens", bpe_tokens);
    gguf_i32s("token_type", bpe_types, 9);
    gguf_strs("merges", bpe_merges);
    gguf_u32("eos_token_id", 8);
}

static void a_gguf_with_merges_names_its_chain(void)
{
    static const char *const known[] = {"gpt-2",     "smollm",      "qwen2",     "qwen35",
                                        "llama-bpe", "tekken",      "gpt-4o",    "falcon",
                                        "llama4",    "deepseek-v3", "starcoder", "refact"};
    sop_tokenizer *t;
    sop_tokenizer_facts facts;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        gguf_bpe(known[i]);
        CHECK(gguf_open(&t) == SOP_OK);
        sop_tokenizer_facts_of(t, &facts);
        CHECK(strcmp(facts.pre, known[i]) == 0);
        CHECK(cuts(t, false, "ab a", "ab| a"));
        CHECK(cuts(t, false, "axb", "ab")); /* a byte without a token is left out, and first */
        sop_tokenizer_close(t);
    }
    gguf_bpe("klingon");
    CHECK(gguf_open(&t) == SOP_E_UNSUPPORTED);
    CHECK(says("'klingon'"));
    gguf_bpe(NULL);
    CHECK(gguf_open(&t) == SOP_E_UNSUPPORTED);
    CHECK(says("'(none)'"));
}

static void every_end_token_ends_a_reply(void)
{
    sop_tokenizer *t;
    gguf_bpe("qwen2"); /* eos 8, and <|im_end|> by its name */
    gguf_u32("eot_token_id", 2);
    gguf_u32("eom_token_id", 1);
    CHECK(gguf_open(&t) == SOP_OK);
    CHECK(sop_tokenizer_is_end(t, 8) && sop_tokenizer_is_end(t, 7));
    CHECK(sop_tokenizer_is_end(t, 2) && sop_tokenizer_is_end(t, 1));
    CHECK(!sop_tokenizer_is_end(t, 6) && !sop_tokenizer_is_end(t, 100));
    sop_tokenizer_close(t);

    /* Two documents that name different ones: both count. */
    static const char config[] = "{\"eos_token\":\"b\",\"bos_token\":{\"content\":\"c\"},"
                                 "\"add_bos_token\":true}",
                      generation[] = "{\"eos_token_id\":[97,100]}",
                      model[] = "{\"text_config\":{\"eos_token_id\":101}}";
    sop_tokenizer_facts facts;
    size_t n;
    char *json = make_json(&(made){.letters = true, .pre = PRE_GPT2}, &n);
    const sop_tok_documents docs = {.tokenizer = json,
                                    .n_tokenizer = n,
                                    .tokenizer_config = config,
                                    .n_tokenizer_config = sizeof config - 1,
                                    .generation_config = generation,
                                    .n_generation_config = sizeof generation - 1,
                                    .config = model,
                                    .n_config = sizeof model - 1};
    CHECK(sop_tokenizer_of_json(&docs, "test", &t) == SOP_OK);
    sop_tokenizer_facts_of(t, &facts);
    CHECK(facts.eos == 'b' && facts.bos == 'c' && facts.add_bos);
    CHECK(sop_tokenizer_is_end(t, 'b') && sop_tokenizer_is_end(t, 'a'));
    CHECK(sop_tokenizer_is_end(t, 'd') && sop_tokenizer_is_end(t, 'e'));
    sop_tokenizer_close(t);
    free(json);
}

static void a_wrong_gguf_is_refused_with_the_key(void)
{
    static const char *const needed[] = {"model", "tokens", "scores"};
    sop_tokenizer *t;
    for (size_t i = 0; i < 3; i++) {
        gguf_spm(needed[i]);
        CHECK(gguf_open(&t) == SOP_E_FORMAT && !t);
        CHECK(says(needed[i]));
    }
    gguf_spm("scores");
    gguf_f32s("scores", spm_scores, N_SPM - 1);
    CHECK(gguf_open(&t) == SOP_E_FORMAT);
    CHECK(says("has 24 elements, the tokens are 25"));
    gguf_spm("token_type");
    gguf_i32s("token_type", (const int32_t[N_SPM]){[3] = 9}, N_SPM);
    CHECK(gguf_open(&t) == SOP_E_FORMAT);
    CHECK(says("token 3 has type 9"));
    gguf_spm("");
    gguf_u32("padding_token_id", N_SPM);
    CHECK(gguf_open(&t) == SOP_E_FORMAT);
    CHECK(says("is 25, the tokens are 25"));
    gguf_begin();
    gguf_str("model", "bert");
    CHECK(gguf_open(&t) == SOP_E_UNSUPPORTED);
    CHECK(says("'bert'"));
    gguf_begin();
    gguf_str("model", "llama");
    gguf_strs("tokens", (const char *const[]){NULL});
    gguf_f32s("scores", spm_scores, 0);
    CHECK(gguf_open(&t) == SOP_E_FORMAT);
    gguf_bpe("qwen2");
    gguf_strs("merges", (const char *const[]){"nospace", NULL});
    CHECK(gguf_open(&t) == SOP_E_FORMAT); /* the key stands twice */
    CHECK(sop_tokenizer_open("/no/such/file", &t) == SOP_E_IO && !t);
    CHECK(sop_tokenizer_open(NULL, &t) == SOP_E_ARG);
}

/* ---- decoding ---- */

/* What pushing ids one by one gives, with | between the deltas; the flush is the last. */
static const char *deltas(const sop_tokenizer *t, bool special, const int32_t *ids, size_t n)
{
    static char all[1024];
    size_t used = 0, written;
    char out[256];
    sop_detok d;
    sop_detok_init(&d, t, special);
    for (size_t i = 0; i <= n; i++) {
        if (sop_detok_push(&d, i < n ? ids[i] : -1, out, sizeof out, &written) != SOP_OK ||
            strlen(out) != written)
            return "failed";
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i ? "|" : "", out);
    }
    return all;
}
#define DELTAS(t, special, want, ...) \
    do { \
        const int32_t list[] = {__VA_ARGS__}; \
        const char *got = deltas(t, special, list, sizeof list / sizeof *list); \
        if (strcmp(got, want) != 0) printf("deltas '%s', not '%s'\n", got, want); \
        CHECK(strcmp(got, want) == 0); \
    } while (0)
#define BAD "\xEF\xBF\xBD"

static void text_comes_in_whole_characters(void)
{
    sop_tokenizer *t = open_made(
        &(made){.letters = true,
                .pre = PRE_GPT2,
                .tokens = (const char *const[]){"\xC3\xB0\xC5\x81", "\xC4\xBA\xC4\xA2", NULL},
                .added = "[" ADDED(258, "<|e|>", SPECIAL) "]"});
    DELTAS(t, false, "|\xF0\x9F\x98\x80|", 256, 257); /* F0 9F | 98 80 */
    DELTAS(t, false, "|\xC4\x8F|", 0xC4, 0x8F);
    DELTAS(t, false, "||\xE4\xBD\xA0|a|", 0xE4, 0xBD, 0xA0, 'a');
    DELTAS(t, false, "|" BAD "a|", 0xE4, 'a'); /* what cannot go on */
    DELTAS(t, false, "||" BAD, 0xE4, 0xBD);    /* nor does at the end */
    DELTAS(t, false, BAD "|" BAD "|", 0xFF, 0x80);
    DELTAS(t, false, "|" BAD "|\xC4\x8F|", 0xF0, 0xC4, 0x8F);
    DELTAS(t, false, "||\xC4\x8F|", 0xC4, 258, 0x8F); /* a control token writes nothing */
    DELTAS(t, true, "|" BAD "<|e|>|" BAD "|", 0xC4, 258, 0x8F);
    DELTAS(t, false, "|||a|", -7, 1000000, INT32_MIN, 'a'); /* ids that are none */
    char small[4];
    size_t n;
    sop_detok d;
    sop_detok_init(&d, t, false);
    CHECK(sop_detok_push(&d, 'a', small, sizeof small, &n) == SOP_E_LIMIT);
    CHECK(sop_detok_room(t) >= 4 * 5 + 8);
    sop_tokenizer_close(t);
}

static void only_the_first_space_of_a_text_is_dropped(void)
{
    sop_tokenizer *t;
    gguf_spm("");
    CHECK(gguf_open(&t) == SOP_OK);
    DELTAS(t, false, "Dear| Bob|,|", 21, 20, 14);
    DELTAS(t, false, "|Dear|", 1, 21);
    DELTAS(t, true, "<s>| Dear|", 1, 21);
    DELTAS(t, false, "|Dear| Bob|", 6, 17, 20);
    DELTAS(t, false, "||\xE4\xBD\xA0|", 3, 4, 5);
    sop_tokenizer_close(t);
}

static void decoding_gives_the_text_back(void)
{
    static const char *const tokens[] = {"ab", G "a", "\xC3\xA4\xC2\xBD", NULL};
    static const char *const merges[] = {"a b", G " a", "\xC3\xA4 \xC2\xBD", NULL};
    sop_tokenizer *t =
        open_made(&(made){.letters = true, .pre = PRE_GPT2, .tokens = tokens, .merges = merges});
    uint32_t seed = 3;
    for (int round = 0; round < 200; round++) {
        static const char *const parts[] = {"a", "b", " ", "\xE4\xBD\xA0", "\xF0\x9F\x98\x80",
                                            "\n"};
        char text[512], back[2048], out[64];
        int32_t ids[512];
        size_t n = 0, count, m = 0, written;
        for (int i = 0; i < 40; i++) {
            seed = seed * 1664525u + 1013904223u;
            const char *p = parts[(seed >> 24) % 6];
            memcpy(text + n, p, strlen(p));
            n += strlen(p);
        }
        CHECK(sop_tokenizer_encode(t, text, n, false, ids, 512, &count) == SOP_OK);
        sop_detok d;
        sop_detok_init(&d, t, false);
        for (size_t i = 0; i <= count; i++) {
            CHECK(sop_detok_push(&d, i < count ? ids[i] : -1, out, sizeof out, &written) == SOP_OK);
            memcpy(back + m, out, written);
            m += written;
        }
        CHECK(m == n && memcmp(text, back, n) == 0);
    }
    sop_tokenizer_close(t);
}

static void encode_counts_what_does_not_fit(void)
{
    sop_tokenizer *t = open_made(&(made){.letters = true, .pre = PRE_GPT2});
    int32_t ids[4] = {-1, -1, -1, -1};
    size_t n;
    CHECK(sop_tokenizer_encode(t, "abcd", 4, false, ids, 2, &n) == SOP_OK);
    CHECK(n == 4 && ids[0] == 'a' && ids[1] == 'b' && ids[2] == -1);
    CHECK(sop_tokenizer_encode(t, "a\0b", 3, false, ids, 4, &n) == SOP_OK);
    CHECK(n == 3 && ids[1] == 0);
    CHECK(sop_tokenizer_encode(t, "\xFF", 1, false, ids, 4, &n) == SOP_OK);
    CHECK(n == 3 && ids[0] == 0xEF && ids[1] == 0xBF && ids[2] == 0xBD);
    CHECK(sop_tokenizer_encode(NULL, "a", 1, false, ids, 4, &n) == SOP_E_ARG);
    CHECK(sop_tokenizer_encode(t, NULL, 1, false, ids, 4, &n) == SOP_E_ARG);
    CHECK(sop_tokenizer_encode(t, "a", 1, false, NULL, 4, &n) == SOP_E_ARG);
    CHECK(sop_tokenizer_encode(t, "a", (size_t)1 << 40, false, ids, 4, &n) == SOP_E_LIMIT);
    sop_tokenizer_close(t);
}

/* ---- hostile files ---- */

static const made everything = {
    .letters = true,
    .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}",
    .pre = PRE_FALCON,
    .decoder = "{\"type\":\"ByteLevel\"}",
    .post = "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":"
            "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"a\"}}]}]}",
    .added = "[" ADDED(258, "<|im_start|>", SPECIAL) "," ADDED(259, "<|im_end|>",
                                                               ",\"lstrip\":true") "]",
    .tokens = (const char *const[]){"ab", "abc", NULL},
    .merges = (const char *const[]){"a b", "ab c", NULL},
    .pairs = true};

/* Encodes, decodes and talks, whatever comes of it. */
static void use(const sop_tokenizer *t)
{
    static const char text[] = "abc <|im_end|> 123\n e\xCC\x81 \xFF<|im_start|>";
    static const sop_chat_message talk[] = {{"user", "abc"}};
    int32_t ids[128];
    size_t n = 0, written;
    sop_detok d;
    const size_t room = sop_detok_room(t);
    char *out = __real_malloc(room);
    sop_detok_init(&d, t, true);
    if (sop_tokenizer_encode(t, text, sizeof text - 1, true, ids, 128, &n) != SOP_OK) n = 0;
    for (size_t i = 0; i < n && i < 128; i++)
        CHECK(sop_detok_push(&d, ids[i], out, room, &written) == SOP_OK);
    (void)!sop_tokenizer_chat(t, talk, 1, true, ids, 128, &n);
    free(out);
}

static void a_json_cut_short_anywhere_is_refused(void)
{
    size_t n;
    char *json = make_json(&everything, &n);
    sop_tokenizer *t;
    for (size_t i = 0; i < n; i++) {
        char *part = __real_malloc(i + 1); /* its own memory, so that a sanitizer sees the end */
        memcpy(part, json, i);
        CHECK(sop_tokenizer_parse_json(part, i, &t) != SOP_OK && !t);
        free(part);
    }
    CHECK(sop_tokenizer_parse_json(json, n, &t) == SOP_OK);
    use(t);
    sop_tokenizer_close(t);
    free(json);
}

static void a_json_with_any_byte_changed_is_refused_or_works(void)
{
    static const char with[] = {'"', '{', ']', '\\', '9', '-', ' ', 'z', (char)0xFF, 0};
    size_t n;
    char *json = make_json(&everything, &n);
    sop_tokenizer *t;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof with; k += 1 + (i > 800) * 4) {
            const char was = json[i];
            json[i] = with[k];
            if (sop_tokenizer_parse_json(json, n, &t) == SOP_OK) {
                use(t);
                sop_tokenizer_close(t);
            }
            json[i] = was;
        }
    free(json);
}

static void absurd_vocabularies_are_refused_or_harmless(void)
{
    static const struct {
        const char *json, *says;
    } cases[] = {
        {"{\"model\":{\"vocab\":{\"a\":4194304},\"merges\":[]}}", "token id 4194304"},
        {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "token id -1"},
        {"{\"model\":{\"vocab\":{\"a\":1.5},\"merges\":[]}}", "no integer"},
        {"{\"model\":{\"vocab\":{},\"merges\":[]}}", "no tokens"},
        {"{\"model\":{\"vocab\":{\"a\":0}}}", "no merges"},
        {"{\"model\":{\"vocab\":[],\"merges\":[]}}", "an object"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":{\"a\":0},\"merges\":[]}}", "Unigram"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"ab\"]}}", "two texts"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "one text"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"b\",\"c\"]]}}", "more than two"},
        {"{\"model\":{\"end_of_word_suffix\":\"@@\",\"vocab\":{\"a\":0},\"merges\":[]}}", "@@"},
        {"{\"normalizer\":{\"type\":\"Lowercase\"},\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
         "Lowercase"},
        {"{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"model\":{\"vocab\":{\"a\":0},"
         "\"merges\":[]}}",
         "BertPreTokenizer"},
        {"{\"decoder\":{\"type\":\"WordPiece\"},\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
         "WordPiece"},
        {"{\"added_tokens\":[{\"content\":\"x\"}],\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
         "no id"},
        {"[]", "an object"},
        {"{}", "no model"},
    };
    sop_tokenizer *t;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(sop_tokenizer_parse_json(cases[i].json, strlen(cases[i].json), &t) != SOP_OK && !t);
        CHECK(says(cases[i].says));
    }
    /* One id twice, an empty text, one text twice, a hole between ids, a merge of strangers. */
    static const char odd[] = "{\"model\":{\"vocab\":{\"a\":0,\"b\":0,\"\":2,\"c\":3,\"ab\":9},"
                              "\"merges\":[\"a b\",\"x y\",\"c c\"]},\"added_tokens\":[{\"id\":5,"
                              "\"content\":\"\"},{\"id\":6,\"content\":\"c\",\"special\":true}]}";
    CHECK(sop_tokenizer_parse_json(odd, sizeof odd - 1, &t) == SOP_OK);
    size_t bytes;
    for (int32_t id = -2; id < 12; id++) (void)sop_tokenizer_piece(t, id, true, &bytes);
    CHECK(cuts(t, false, "abc", "b|c"));
    use(t);
    sop_tokenizer_close(t);
    /* An added token that is too long to look for. */
    enum { LONG = SOP_TOK_MAX_ADDED_BYTES + 1 };
    char *json = __real_malloc(LONG + 256);
    const int head =
        sprintf(json, "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{"
                      "\"id\":1,\"content\":\"");
    memset(json + head, 'x', LONG);
    strcpy(json + head + LONG, "\"}]}");
    CHECK(sop_tokenizer_parse_json(json, strlen(json), &t) == SOP_E_FORMAT);
    CHECK(says("4097 bytes"));
    free(json);
}

static void when_memory_runs_out_it_says_so(void)
{
    size_t n;
    char *json = make_json(&everything, &n);
    sop_tokenizer *t;
    int32_t ids[128];
    static const sop_chat_message talk[] = {{"system", "abc"}, {"user", "\xC3\xA9  "}};
    static const char text[] =
        "abc 123\n e\xCC\x81 \xFF aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    int64_t opens = 0, uses = 0;
    for (int done = 0; !done; opens++) {
        n_allocations = 0;
        fails_at = opens;
        const sop_status status = sop_tokenizer_parse_json(json, n, &t);
        done = status == SOP_OK && n_allocations <= opens;
        fails_at = -1;
        CHECK(status == SOP_OK || status == SOP_E_NOMEM);
        if (!done) sop_tokenizer_close(t);
    }
    for (int done = 0; !done; uses++) {
        size_t a = 0, b = 0;
        sop_encoder *e;
        while (sop_encoder_take(t, &e) == SOP_OK && e->cap_ids) sop_encoder_destroy(e);
        sop_encoder_destroy(e); /* none is left to be used again */
        n_allocations = 0;
        fails_at = uses;
        const sop_status s = sop_tokenizer_encode(t, text, sizeof text - 1, false, ids, 128, &a);
        const sop_status s2 = sop_tokenizer_chat(t, talk, 2, true, ids, 128, &b);
        done = n_allocations <= uses;
        fails_at = -1;
        CHECK(s == SOP_E_NOMEM || (s == SOP_OK && a > 40));
        CHECK(s2 == SOP_E_NOMEM || (s2 == SOP_OK && b > 10));
        CHECK(!done || (s == SOP_OK && s2 == SOP_OK));
    }
    CHECK(opens > 10 && uses > 5);
    sop_tokenizer_close(t);
    free(json);
    /* And an encoder that has worked before needs no more memory. */
    t = open_made(&everything);
    size_t count;
    CHECK(sop_tokenizer_encode(t, text, sizeof text - 1, false, ids, 128, &count) == SOP_OK);
    n_allocations = 0;
    CHECK(sop_tokenizer_encode(t, text, sizeof text - 1, false, ids, 128, &count) == SOP_OK);
    CHECK(n_allocations == 0);
    sop_tokenizer_close(t);
}

int main(void)
{
    RUN(the_chain_is_read_from_the_file);
    RUN(the_known_regexes_cut_as_they_say);
    RUN(other_regexes_cut_with_every_behaviour);
    RUN(a_regex_that_gives_up_is_an_error);
    RUN(a_normaliser_may_not_blow_a_text_up);
    RUN(a_prefix_space_goes_before_each_piece);
    RUN(the_best_rank_merges_first_and_the_leftmost_of_equals);
    RUN(a_long_word_is_merged_like_a_short_one);
    RUN(long_words_cost_no_square);
    RUN(a_whole_word_wins_where_the_file_says_so);
    RUN(qwen_composes_before_it_cuts);
    RUN(special_tokens_are_text_unless_asked_for);
    RUN(added_tokens_take_spaces_and_whole_words_as_they_say);
    RUN(gemma_s_json_cuts_characters_and_falls_back_to_bytes);
    RUN(llama_2_s_json_puts_a_space_in_front);
    RUN(a_gguf_with_scores_merges_by_score);
    RUN(a_long_text_without_a_splitter_is_cut_where_no_merge_crosses);
    RUN(a_gguf_with_merges_names_its_chain);
    RUN(every_end_token_ends_a_reply);
    RUN(a_wrong_gguf_is_refused_with_the_key);
    RUN(text_comes_in_whole_characters);
    RUN(only_the_first_space_of_a_text_is_dropped);
    RUN(decoding_gives_the_text_back);
    RUN(encode_counts_what_does_not_fit);
    RUN(a_json_cut_short_anywhere_is_refused);
    RUN(a_json_with_any_byte_changed_is_refused_or_works);
    RUN(absurd_vocabularies_are_refused_or_harmless);
    RUN(when_memory_runs_out_it_says_so);
    return test_report();
}
