/* model/tokenizer_build.c: puts a tokenizer together from what a file's reader found. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tokenizer.h"

#include <float.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

enum {
    MAX_TOKEN = 65535, /* bytes of a token; the longest known has 1,024 */
    MAX_PLAIN = 4096,  /* bytes of one that merging may make */
    MAX_MERGES = 1 << 24,
    MAX_REGEX_KB = 1 << 18, /* of memory for one match, should a file's regex go wild */
    JOINT_BITS = 20         /* 128 KB: Gemma 3's 60,000 neighbours set 6 % of them */
};

#define HASH_BASE 0x100000001B3u /* FNV's prime: odd, and spread enough before mixing */

/* ---- memory ---- */

static sop_status no_memory(size_t bytes)
{
    return sop_fail(SOP_E_NOMEM, "tokenizer: no memory for %zu bytes", bytes);
}

sop_status sop_tok_copy(char **to, const char *s, size_t n)
{
    char *copy = malloc(n + 1);
    if (!copy) return no_memory(n + 1);
    memcpy(copy, s, n);
    copy[n] = 0;
    free(*to);
    *to = copy;
    return SOP_OK;
}

/* ---- the byte-level alphabet ---- */

/* GPT-2's: printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 and
 * on, in order. */
/* clang-format off */
const uint16_t sop_tok_letter[256] = {
#define R4(a) (a), (a) + 1, (a) + 2, (a) + 3
#define R16(a) R4(a), R4((a) + 4), R4((a) + 8), R4((a) + 12)
    R16(0x100), R16(0x110),                                     /* 00-1F */
    0x120, 0x21, 0x22, 0x23, R4(0x24), R4(0x28), R4(0x2C),      /* 20-2F */
    R16(0x30), R16(0x40), R16(0x50), R16(0x60),                 /* 30-6F */
    R4(0x70), R4(0x74), R4(0x78), 0x7C, 0x7D, 0x7E, 0x121,      /* 70-7F */
    R16(0x122), R16(0x132),                                     /* 80-9F */
    0x142, 0xA1, 0xA2, 0xA3, R4(0xA4), R4(0xA8), 0xAC, 0x143, 0xAE, 0xAF, /* A0-AF */
    R16(0xB0), R16(0xC0), R16(0xD0), R16(0xE0), R16(0xF0)       /* B0-FF */
#undef R16
#undef R4
};
/* clang-format on */

/* The byte that a letter stands for, or -1. */
static int byte_of(uint32_t letter)
{
    if (letter < 0x100) return sop_tok_letter[letter] == letter ? (int)letter : -1;
    if (letter <= 0x120) return (int)(letter - 0x100);
    if (letter <= 0x142) return (int)(letter - 0x121 + 0x7F);
    return letter == 0x143 ? 0xAD : -1;
}

bool sop_tok_unmap(const char *s, size_t n, char *to, size_t *n_to)
{
    size_t m = 0;
    for (size_t i = 0, k; i < n; i += k) {
        const int step = sop_utf8_step(s + i, n - i);
        if (step <= 0) return false;
        const int b = byte_of(sop_utf8_read(s + i, &k));
        if (b < 0) return false;
        to[m++] = (char)b;
    }
    *n_to = m;
    return true;
}

/* ---- tokens ---- */

int sop_tok_byte(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    int b = 0;
    for (int i = 3; i < 5; i++) {
        const char c = s[i];
        if (c >= '0' && c <= '9') {
            b = b * 16 + (c - '0');
        } else if ((c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f')) {
            b = b * 16 + ((c | 0x20) - 'a' + 10);
        } else {
            return -1;
        }
    }
    return b;
}

/* Scores in an order that is a number's: the better, the lower. */
static uint32_t rank_of(float score)
{
    uint32_t bits;
    if (!(score >= -FLT_MAX)) score = -FLT_MAX; /* not a number, or no bottom */
    score += 0.0f;                              /* -0 and 0 are one */
    memcpy(&bits, &score, sizeof bits);
    return ~(bits >> 31 ? ~bits : bits | 0x80000000u);
}

static sop_status reach(sop_tokenizer *t, int64_t id)
{
    if (id < t->cap_vocab) return SOP_OK;
    int64_t cap = t->cap_vocab ? t->cap_vocab : 1024;
    while (cap <= id) cap *= 2;
    sop_token *tokens = realloc(t->tokens, (size_t)cap * sizeof *tokens);
    if (!tokens) return no_memory((size_t)cap * sizeof *tokens);
    for (int64_t i = t->cap_vocab; i < cap; i++) tokens[i] = (sop_token){.kind = SOP_TOKEN_UNUSED};
    t->tokens = tokens;
    t->cap_vocab = (int32_t)cap;
    return SOP_OK;
}

sop_status sop_tok_add(sop_tokenizer *t, int64_t id, const char *text, size_t n_text, int kind,
                       float score, int flags)
{
    if (id < 0 || id >= SOP_TOK_MAX_VOCAB)
        return sop_fail(SOP_E_FORMAT, "tokenizer: token id %lld, must be 0 to %d", (long long)id,
                        SOP_TOK_MAX_VOCAB - 1);
    if (n_text > MAX_TOKEN)
        return sop_fail(SOP_E_FORMAT, "tokenizer: token %lld has %zu bytes, at most %d",
                        (long long)id, n_text, MAX_TOKEN);
    if (t->blob.n > UINT32_MAX / 2)
        return sop_fail(SOP_E_FORMAT,
                        "tokenizer: the texts of the tokens have %zu bytes, at most "
                        "%u",
                        t->blob.n, UINT32_MAX / 2);
    SOP_TRY(reach(t, id));
    SOP_TRY(sop_buf_room(&t->blob, n_text));
    sop_token *token = t->tokens + id;
    *token = (sop_token){.text = (uint32_t)t->blob.n,
                         .n_text = (uint32_t)n_text,
                         .rank = rank_of(score),
                         .kind = (uint8_t)kind,
                         .flags = (uint8_t)flags,
                         .plain = kind == SOP_TOKEN_NORMAL};
    size_t n = n_text;
    if (kind == SOP_TOKEN_NORMAL && t->byte_level)
        token->plain = sop_tok_unmap(text, n_text, t->blob.at + t->blob.n, &n);
    if (!token->plain || !t->byte_level) {
        n = n_text;
        if (n) memcpy(t->blob.at + t->blob.n, text, n);
    }
    token->n_text = (uint32_t)n;
    t->blob.n += n;
    token->plain = token->plain && n > 0 && n <= MAX_PLAIN;
    if (kind == SOP_TOKEN_BYTE) {
        const int b = sop_tok_byte(text, n_text);
        if (b < 0) {
            token->kind = SOP_TOKEN_UNUSED;
        } else {
            t->byte_id[b] = (int32_t)id;
        }
    }
    if (id >= t->n_vocab) t->n_vocab = (int32_t)id + 1;
    return SOP_OK;
}

/* ---- text to id ---- */

uint64_t sop_tok_hash(const char *s, size_t n)
{
    uint64_t h = 0;
    for (size_t i = 0; i < n; i++) h = h * HASH_BASE + (uint8_t)s[i] + 1;
    return h;
}

uint64_t sop_tok_hash_join(uint64_t a, uint64_t b, uint64_t power)
{
    return a * power + b;
}

/* The slot of a text: the one that holds it, or the free one where it would go. */
static sop_tok_slot *slot_of(const sop_tokenizer *t, uint64_t hash, const char *s, size_t n)
{
    const uint64_t m = sop_tok_mix(hash);
    for (size_t i = m & t->slot_mask;; i = (i + 1) & t->slot_mask) {
        sop_tok_slot *slot = t->slots + i;
        if (slot->id < 0) return slot;
        if (slot->hash != m >> 32) continue;
        const sop_token *token = t->tokens + slot->id;
        if (token->n_text == n && memcmp(t->blob.at + token->text, s, n) == 0) return slot;
    }
}

int32_t sop_tok_find_hash(const sop_tokenizer *t, uint64_t hash, const char *s, size_t n)
{
    return slot_of(t, hash, s, n)->id;
}

int32_t sop_tok_find(const sop_tokenizer *t, const char *s, size_t n)
{
    return sop_tok_find_hash(t, sop_tok_hash(s, n), s, n);
}

int32_t sop_tok_control(const sop_tokenizer *t, const char *text)
{
    const int32_t id = sop_tok_find(t, text, strlen(text));
    return id >= 0 && t->tokens[id].kind == SOP_TOKEN_CONTROL ? id : -1;
}

sop_status sop_tok_index(sop_tokenizer *t)
{
    size_t n_slots = 16;
    while (n_slots < 2 * (size_t)t->n_vocab) n_slots *= 2;
    t->slots = malloc(n_slots * sizeof *t->slots);
    if (!t->slots) return no_memory(n_slots * sizeof *t->slots);
    for (size_t i = 0; i < n_slots; i++) t->slots[i] = (sop_tok_slot){.id = -1};
    t->slot_mask = n_slots - 1;
    t->longest_text = 0;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        const sop_token *token = t->tokens + id;
        if (token->n_text == 0) continue;
        const char *s = t->blob.at + token->text;
        const uint64_t hash = sop_tok_hash(s, token->n_text);
        sop_tok_slot *slot = slot_of(t, hash, s, token->n_text);
        /* Of two with one text the first counts, unless only the second comes from merging. */
        if (slot->id < 0 || (token->plain && !t->tokens[slot->id].plain))
            *slot = (sop_tok_slot){.hash = (uint32_t)(sop_tok_mix(hash) >> 32), .id = id};
        if (token->plain && token->n_text > t->longest_text) t->longest_text = token->n_text;
    }
    t->power = malloc((t->longest_text + 1) * sizeof *t->power);
    if (!t->power) return no_memory((t->longest_text + 1) * sizeof *t->power);
    t->power[0] = 1;
    for (uint32_t i = 0; i < t->longest_text; i++) t->power[i + 1] = t->power[i] * HASH_BASE;
    return SOP_OK;
}

/* ---- merges ---- */

/* Make the table of pairs twice as large, with what is in it. */
static sop_status more_pairs(sop_tokenizer *t)
{
    const size_t old_size = t->pairs ? t->pair_mask + 1 : 0;
    const size_t size = old_size ? 2 * old_size : 1024;
    sop_tok_pair *old = t->pairs, *pairs = malloc(size * sizeof *pairs);
    if (!pairs) return no_memory(size * sizeof *pairs);
    for (size_t i = 0; i < size; i++) pairs[i] = (sop_tok_pair){UINT64_MAX, UINT32_MAX, -1};
    t->pairs = pairs;
    t->pair_mask = size - 1;
    for (size_t i = 0; i < old_size; i++)
        if (old[i].key != UINT64_MAX)
            *sop_tok_pair_of(t, (int32_t)(old[i].key >> 32), (int32_t)old[i].key) = old[i];
    free(old);
    return SOP_OK;
}

sop_status sop_tok_merge(sop_tokenizer *t, const char *left, size_t n_left, const char *right,
                         size_t n_right)
{
    char bytes[2][2 * MAX_PLAIN]; /* a letter has up to two bytes of UTF-8 */
    if (t->n_merges == MAX_MERGES)
        return sop_fail(SOP_E_FORMAT, "tokenizer: more than %d merges", MAX_MERGES);
    if (!t->pairs || 2 * (size_t)t->n_merges > t->pair_mask) SOP_TRY(more_pairs(t));
    const uint32_t rank = t->n_merges++;
    if (n_left > sizeof bytes[0] || n_right > sizeof bytes[1]) return SOP_OK;
    if (t->byte_level) {
        if (!sop_tok_unmap(left, n_left, bytes[0], &n_left) ||
            !sop_tok_unmap(right, n_right, bytes[1], &n_right))
            return SOP_OK;
    } else {
        memcpy(bytes[0], left, n_left);
        memcpy(bytes[1], right, n_right);
    }
    if (n_left + n_right > MAX_PLAIN) return SOP_OK;
    const int32_t a = sop_tok_find(t, bytes[0], n_left), b = sop_tok_find(t, bytes[1], n_right);
    memcpy(bytes[0] + n_left, bytes[1], n_right);
    const int32_t id = sop_tok_find(t, bytes[0], n_left + n_right);
    if (a < 0 || b < 0 || id < 0 || !t->tokens[a].plain || !t->tokens[b].plain ||
        !t->tokens[id].plain)
        return SOP_OK;
    const uint64_t key = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    /* A pair that comes twice counts by its later place, as in Hugging Face's. */
    *sop_tok_pair_of(t, a, b) = (sop_tok_pair){key, rank, id};
    return SOP_OK;
}

/* ---- chains ---- */

static sop_status too_long(const char *what)
{
    return sop_fail(SOP_E_UNSUPPORTED, "tokenizer: the %s has more than %d steps", what,
                    SOP_TOK_MAX_STEPS);
}

sop_status sop_tok_norm_add(sop_tokenizer *t, int kind, const char *from, size_t n_from,
                            const char *to, size_t n_to)
{
    if (t->n_norms == SOP_TOK_MAX_STEPS) return too_long("normalizer");
    sop_tok_norm *norm = t->norms + t->n_norms++;
    norm->kind = kind;
    SOP_TRY(sop_buf_add(&norm->from, from, n_from));
    return sop_buf_add(&norm->to, to, n_to);
}

sop_status sop_tok_split_add(sop_tokenizer *t, const sop_tok_split *split)
{
    if (t->n_splits == SOP_TOK_MAX_STEPS) return too_long("pre_tokenizer");
    t->splits[t->n_splits++] = *split;
    if (split->kind == SOP_SPLIT_MAP) t->mapped = true;
    return SOP_OK;
}

sop_status sop_tok_split_literal(sop_tokenizer *t, const char *s, size_t n, int behaviour,
                                 bool invert)
{
    SOP_TRY(sop_tok_split_add(
        t, &(sop_tok_split){.kind = SOP_SPLIT_LITERAL, .behaviour = behaviour, .invert = invert}));
    return sop_buf_add(&t->splits[t->n_splits - 1].literal, s, n);
}

#define RE_TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define RE_SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define RE_QWEN2 RE_SHORT "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" RE_TAIL
#define RE_LLAMA3 RE_SHORT "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" RE_TAIL
#define RE_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define RE_QWEN35 \
    RE_SHORT "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" \
             "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define RE_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define RE_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define RE_SLASH_TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define RE_TEKKEN \
    "[^\\r\\n\\p{L}\\p{N}]?" RE_UPPER "*" RE_LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" RE_UPPER \
    "+" RE_LOWER "*|\\p{N}" RE_SLASH_TAIL
#define RE_GPT4O \
    "[^\\r\\n\\p{L}\\p{N}]?" RE_UPPER "*" RE_LOWER "+" RE_SHORT \
    "?|[^\\r\\n\\p{L}\\p{N}]?" RE_UPPER "+" RE_LOWER "*" RE_SHORT "?|\\p{N}{1,3}" RE_SLASH_TAIL
#define RE_DEEPSEEK3 \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}" \
    "\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* In the engines that these regexes were written for, \s is White_Space; PCRE2's has U+180E too. */
static sop_status white_space(const char *regex, size_t n, sop_buf *out)
{
    for (size_t i = 0; i < n; i++) {
        if (regex[i] != '\\' || i + 1 == n) {
            SOP_TRY(sop_buf_add(out, regex + i, 1));
            continue;
        }
        i++;
        if (regex[i] == 's') {
            SOP_TRY(sop_buf_add(out, "\\p{White_Space}", 15));
        } else if (regex[i] == 'S') {
            SOP_TRY(sop_buf_add(out, "\\P{White_Space}", 15));
        } else {
            SOP_TRY(sop_buf_add(out, regex + i - 1, 2));
        }
    }
    return SOP_OK;
}

sop_status sop_tok_split_regex(sop_tokenizer *t, const char *regex, size_t n, int behaviour,
                               bool invert)
{
    /* The regexes that are done by hand match every character, so what lies between matches, the
     * only thing that behaviour is about, is empty. */
    static const struct {
        const char *regex;
        sop_tok_split split;
    } known[] = {{RE_GPT2, {.kind = SOP_SPLIT_GPT2}},
                 {RE_QWEN2, {.kind = SOP_SPLIT_WORDS, .digits = 1}},
                 {RE_LLAMA3, {.kind = SOP_SPLIT_WORDS, .digits = 3}}};
    const bool cut = behaviour == SOP_SPLIT_ISOLATED || (behaviour == SOP_SPLIT_REMOVED && invert);
    for (size_t i = 0; cut && i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].regex) == n && memcmp(known[i].regex, regex, n) == 0)
            return sop_tok_split_add(t, &known[i].split);
    sop_buf text = {0};
    sop_status status = white_space(regex, n, &text);
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_code *compiled = NULL;
    if (status != SOP_OK) goto out;
    compiled = pcre2_compile((PCRE2_SPTR)text.at, text.n,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C,
                             &code, &at, NULL);
    if (!compiled && code == PCRE2_ERROR_HEAP_FAILED) {
        status = no_memory(text.n);
        goto out;
    }
    if (!compiled) {
        char why[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        status = sop_fail(SOP_E_UNSUPPORTED,
                          "tokenizer: the regex of the pre_tokenizer, byte %zu: "
                          "%s",
                          (size_t)at, why);
        goto out;
    }
    if (!t->regex_limits) {
        t->regex_limits = pcre2_match_context_create(NULL);
        if (!t->regex_limits) {
            status = no_memory(sizeof(void *));
            goto out;
        }
        pcre2_set_heap_limit(t->regex_limits, MAX_REGEX_KB);
    }
    (void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE); /* without it matching is slower only */
    status = sop_tok_split_add(t, &(sop_tok_split){.kind = SOP_SPLIT_REGEX,
                                                   .behaviour = behaviour,
                                                   .invert = invert,
                                                   .regex = compiled});
    if (status == SOP_OK) compiled = NULL; /* the chain owns it now */
out:
    pcre2_code_free(compiled);
    sop_buf_finish(&text);
    return status;
}

static sop_status isolated(sop_tokenizer *t, const char *regex)
{
    return sop_tok_split_regex(t, regex, strlen(regex), SOP_SPLIT_ISOLATED, false);
}

sop_status sop_tok_split_named(sop_tokenizer *t, const char *pre)
{
    /* The chains that these models' own tokenizer.json hold. */
    static const struct {
        const char *pre;
        enum { PLAIN, EACH_DIGIT, FALCON, DEEPSEEK3 } before;
        const char *regex;
        bool nfc, whole_first, bos;
    } chains[] = {
        {"gpt-2", PLAIN, RE_GPT2, false, false, false},
        {"smollm", EACH_DIGIT, RE_GPT2, false, false, false},
        {"starcoder", EACH_DIGIT, RE_GPT2, false, false, false},
        {"refact", EACH_DIGIT, RE_GPT2, false, false, false},
        {"falcon", FALCON, RE_GPT2, false, false, false},
        {"qwen2", PLAIN, RE_QWEN2, true, false, false},
        {"deepseek-r1-qwen", PLAIN, RE_QWEN2, true, false, false},
        {"qwen35", PLAIN, RE_QWEN35, true, false, false},
        {"llama-bpe", PLAIN, RE_LLAMA3, false, true, true},
        {"llama3", PLAIN, RE_LLAMA3, false, true, true},
        {"llama-v3", PLAIN, RE_LLAMA3, false, true, true},
        {"tekken", PLAIN, RE_TEKKEN, false, true, true},
        {"gpt-4o", PLAIN, RE_GPT4O, false, false, false},
        {"llama4", PLAIN, RE_GPT4O, false, false, false},
        {"deepseek-v3", DEEPSEEK3, RE_DEEPSEEK3, false, false, false},
    };
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
        if (strcmp(chains[i].pre, pre) != 0) continue;
        if (chains[i].nfc) SOP_TRY(sop_tok_norm_add(t, SOP_NORM_NFC, "", 0, "", 0));
        t->whole_first = chains[i].whole_first;
        t->add_bos = chains[i].bos;
        if (chains[i].before == EACH_DIGIT)
            SOP_TRY(sop_tok_split_add(t, &(sop_tok_split){.kind = SOP_SPLIT_DIGITS}));
        if (chains[i].before == FALCON)
            SOP_TRY(sop_tok_split_add(
                t, &(sop_tok_split){.kind = SOP_SPLIT_PUNCT, .behaviour = SOP_SPLIT_JOINED}));
        if (chains[i].before == DEEPSEEK3) {
            SOP_TRY(isolated(t, "\\p{N}{1,3}"));
            SOP_TRY(isolated(t, "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"));
        }
        SOP_TRY(isolated(t, chains[i].regex));
        if (chains[i].before == FALCON) {
            SOP_TRY(sop_tok_split_add(t, &(sop_tok_split){.kind = SOP_SPLIT_MAP}));
            SOP_TRY(sop_tok_split_add(
                t, &(sop_tok_split){.kind = SOP_SPLIT_DIGITS, .behaviour = SOP_SPLIT_JOINED}));
            SOP_TRY(isolated(t, "[0-9][0-9][0-9]"));
        }
        return SOP_OK;
    }
    return sop_fail(SOP_E_UNSUPPORTED, "tokenizer: the pre-tokenizer '%s' is not known", pre);
}

/* ---- added tokens ---- */

static int32_t child_of(const sop_trie *trie, int32_t node, uint8_t byte)
{
    if (node == 0) return trie->root[byte];
    int32_t c = trie->nodes[node].child;
    while (c && trie->nodes[c].byte != byte) c = trie->nodes[c].sibling;
    return c;
}

sop_status sop_trie_add(sop_trie *trie, const char *s, size_t n, int32_t id)
{
    int32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        const uint8_t byte = (uint8_t)s[i];
        int32_t next = child_of(trie, node, byte);
        if (!next) {
            if (trie->n + 1 >= trie->cap) {
                const int64_t cap = trie->cap ? (int64_t)trie->cap * 2 : 256;
                if (cap > INT32_MAX / 2) return no_memory((size_t)cap * sizeof *trie->nodes);
                sop_trie_node *nodes = realloc(trie->nodes, (size_t)cap * sizeof *nodes);
                if (!nodes) return no_memory((size_t)cap * sizeof *nodes);
                trie->nodes = nodes;
                trie->cap = (int32_t)cap;
            }
            next = ++trie->n; /* node 0 is not used */
            trie->nodes[next] = (sop_trie_node){.byte = byte};
            if (node == 0) {
                trie->root[byte] = next;
            } else {
                trie->nodes[next].sibling = trie->nodes[node].child;
                trie->nodes[node].child = next;
            }
        }
        node = next;
    }
    if (node && !trie->nodes[node].token) trie->nodes[node].token = id + 1;
    return SOP_OK;
}

int32_t sop_trie_match(const sop_trie *trie, const char *s, size_t n, size_t *bytes)
{
    int32_t node = 0, best = 0;
    for (size_t i = 0; i < n && (node = child_of(trie, node, (uint8_t)s[i])) != 0; i++)
        if (trie->nodes[node].token) best = trie->nodes[node].token, *bytes = i + 1;
    return best - 1;
}

static sop_status find_added(sop_tokenizer *t)
{
    sop_buf two[2] = {{0}, {0}}, scratch = {0};
    sop_status status = SOP_OK;
    for (int32_t id = 0; id < t->n_vocab && status == SOP_OK; id++) {
        const sop_token *token = t->tokens + id;
        if ((token->kind != SOP_TOKEN_ADDED && token->kind != SOP_TOKEN_CONTROL) || !token->n_text)
            continue;
        const char *s = t->blob.at + token->text;
        size_t n = token->n_text;
        if (n > SOP_TOK_MAX_ADDED_BYTES) {
            status = sop_fail(SOP_E_FORMAT,
                              "tokenizer: the added token %d has %zu bytes, at most "
                              "%d",
                              id, n, SOP_TOK_MAX_ADDED_BYTES);
        } else if (!(token->flags & SOP_TOK_NORMALIZED)) {
            status = sop_trie_add(&t->raw, s, n, id);
        } else {
            status = sop_tok_normalize(t, two, &scratch, &s, &n);
            if (status == SOP_OK) status = sop_trie_add(&t->normalized, s, n, id);
        }
    }
    sop_buf_finish(&two[0]);
    sop_buf_finish(&two[1]);
    sop_buf_finish(&scratch);
    return status;
}

/* ---- the end ---- */

void sop_tok_add_end(sop_tokenizer *t, int64_t id)
{
    if (id < 0 || id >= t->n_vocab) return;
    for (int32_t i = 0; i < t->n_ends; i++)
        if (t->ends[i] == id) return;
    if (t->n_ends < SOP_TOK_MAX_ENDS) t->ends[t->n_ends++] = (int32_t)id;
}

/* How decoding writes each token: the text, or what it stands for. */
static sop_status make_pieces(sop_tokenizer *t)
{
    for (int32_t id = 0; id < t->n_vocab; id++) {
        sop_token *token = t->tokens + id;
        token->piece = token->text;
        token->n_piece = token->n_text;
        SOP_TRY(sop_buf_room(&t->blob, token->n_text + 1));
        const char *s = t->blob.at + token->text, *end = s + token->n_text;
        if (token->kind == SOP_TOKEN_BYTE) {
            token->piece = (uint32_t)t->blob.n;
            token->n_piece = 1;
            t->blob.at[t->blob.n++] = (char)sop_tok_byte(s, token->n_text);
        } else if (t->spaces_decoded && memmem(s, token->n_text, SOP_TOK_SPACE, 3)) {
            token->piece = (uint32_t)t->blob.n;
            while (s < end) {
                const bool space = end - s >= 3 && memcmp(s, SOP_TOK_SPACE, 3) == 0;
                t->blob.at[t->blob.n++] = space ? ' ' : *s;
                s += space ? 3 : 1;
            }
            token->n_piece = (uint32_t)t->blob.n - token->piece;
        }
        if (token->n_piece > t->longest_piece) t->longest_piece = token->n_piece;
    }
    return SOP_OK;
}

/* Which characters stand side by side inside a token. Where two of a text never do, no merge
 * crosses, so the text may be cut there: words stay short in a family that has no splitter. */
static sop_status find_joints(sop_tokenizer *t)
{
    for (int b = 0; b < 256; b++)
        if (t->byte_id[b] < 0) return SOP_OK; /* unknown neighbours might have to be fused */
    t->joints = calloc((size_t)1 << (JOINT_BITS - 6), sizeof *t->joints);
    if (!t->joints) return no_memory((size_t)1 << (JOINT_BITS - 3));
    for (int32_t id = 0; id < t->n_vocab; id++) {
        const sop_token *token = t->tokens + id;
        const char *s = t->blob.at + token->text;
        if (!token->plain || sop_utf8_valid(s, token->n_text) != token->n_text) continue;
        size_t k;
        uint32_t last = sop_utf8_read(s, &k);
        for (size_t i = k; i < token->n_text; i += k) {
            const uint32_t c = sop_utf8_read(s + i, &k), bit = sop_tok_joint(last, c);
            t->joints[bit >> 6] |= UINT64_C(1) << (bit & 63);
            last = c;
        }
    }
    return SOP_OK;
}

sop_status sop_tok_finish(sop_tokenizer *t)
{
    static const char *const turn_ends[] = {"<|im_end|>", "<|eot_id|>", "<end_of_turn>"};
    static const char *const other_ends[] = {"<|endoftext|>", "<|end_of_text|>", "<|eom_id|>",
                                             "<|end|>", "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"};
    if (t->n_vocab == 0) return sop_fail(SOP_E_FORMAT, "tokenizer: it has no tokens");
    if (t->byte_level)
        for (int b = 0; b < 256; b++) {
            const int32_t id = sop_tok_find(t, &(char){(char)b}, 1);
            t->byte_id[b] = id >= 0 && t->tokens[id].plain ? id : -1;
        }
    if (!t->by_score && !t->pairs) SOP_TRY(more_pairs(t));
    SOP_TRY(find_added(t));
    if (!t->byte_level && t->byte_fallback) SOP_TRY(find_joints(t));
    SOP_TRY(make_pieces(t));
    sop_tok_add_end(t, t->eos);
    sop_tok_add_end(t, t->eot);
    for (size_t i = 0; i < sizeof turn_ends / sizeof *turn_ends; i++) {
        const int32_t id = sop_tok_control(t, turn_ends[i]);
        if (t->eot < 0) t->eot = id;
        sop_tok_add_end(t, id);
    }
    for (size_t i = 0; i < sizeof other_ends / sizeof *other_ends; i++)
        sop_tok_add_end(t, sop_tok_control(t, other_ends[i]));
    return sop_chat_choose(t);
}
