/* model/tokenizer.h: the inside of sop/tokenizer.h.
 *
 *     text -> repaired UTF-8 -> cut at added tokens -> normalised -> cut at the added tokens that
 *     stand in normalised text -> pre-tokenizer, a chain of steps -> words -> merged into ids
 *
 * Two families share it. "bpe" works on raw bytes: the file's alphabet of 256 letters that stand
 * for bytes is undone when a token is added. "spm" works on characters, with U+2581 for a space.
 * A file's reader calls sop_tok_create, sets fields, adds tokens, then sop_tok_index, merges, and
 * sop_tok_finish. */
#ifndef MODEL_TOKENIZER_H
#define MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/file.h"
#include "model/unicode.h"
#include "sop/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SOP_TOK_SPACE "\xE2\x96\x81" /* U+2581, a space in the spm family */

enum {
    SOP_TOK_MAX_VOCAB = 1 << 22,    /* tokens; today's largest has 262,144 */
    SOP_TOK_MAX_STEPS = 16,         /* of a chain; the longest known has 6 */
    SOP_TOK_MAX_ADDED_BYTES = 4096, /* of an added token: bounds what one position can cost */
    SOP_TOK_MAX_ENDS = 16,
    SOP_TOK_POOL = 4 /* encoders kept for the next calls */
};

enum {
    SOP_TOKEN_NORMAL,  /* comes from merging */
    SOP_TOKEN_CONTROL, /* special: from text only when asked for */
    SOP_TOKEN_ADDED,   /* found in any text before all else */
    SOP_TOKEN_BYTE,    /* one byte of what has no token */
    SOP_TOKEN_UNUSED   /* never from text; written only when asked for */
};

enum { SOP_TOK_LSTRIP = 1, SOP_TOK_RSTRIP = 2, SOP_TOK_WORD = 4, SOP_TOK_NORMALIZED = 8 };

typedef struct sop_token {
    uint32_t text, n_text;   /* in blob: what encoding matches */
    uint32_t piece, n_piece; /* in blob: what decoding writes */
    uint32_t rank;           /* spm: of its score, best 0 */
    uint8_t kind;
    uint8_t flags; /* SOP_TOK_* of an added token */
    bool plain;    /* merging may make it */
} sop_token;

/* A tree over the texts of added tokens; 0 is no node and no token (ids are kept plus one). */
typedef struct sop_trie_node {
    int32_t child, sibling;
    int32_t token;
    uint8_t byte;
} sop_trie_node;

typedef struct sop_trie {
    sop_trie_node *nodes;
    int32_t n, cap;
    int32_t root[256];
} sop_trie;

typedef struct sop_tok_norm {
    enum { SOP_NORM_NFC, SOP_NORM_PREPEND, SOP_NORM_REPLACE } kind;
    sop_buf from, to;
} sop_tok_norm;

enum {
    SOP_SPLIT_ISOLATED,
    SOP_SPLIT_REMOVED,
    SOP_SPLIT_PREVIOUS,
    SOP_SPLIT_NEXT,
    SOP_SPLIT_JOINED
};

typedef struct sop_tok_split {
    enum {
        SOP_SPLIT_GPT2,    /* GPT-2's regex, by hand */
        SOP_SPLIT_WORDS,   /* Llama 3's and Qwen's, by hand; digits: how many stay together */
        SOP_SPLIT_REGEX,   /* any other, by PCRE2 */
        SOP_SPLIT_LITERAL, /* at a fixed text */
        SOP_SPLIT_DIGITS,  /* at numeric characters */
        SOP_SPLIT_PUNCT,   /* at punctuation */
        SOP_SPLIT_PREFIX,  /* a space before a piece that has none */
        SOP_SPLIT_MAP,     /* bytes become the letters that stand for them: for steps behind it */
        SOP_SPLIT_SPACES   /* " " becomes U+2581, with one more in front as prepend says */
    } kind;
    int behaviour; /* SOP_SPLIT_ISOLATED ..., of regex, literal, digits, punct */
    bool invert;
    int digits;
    enum { SOP_PREPEND_NEVER, SOP_PREPEND_FIRST, SOP_PREPEND_ALWAYS } prepend;
    sop_buf literal;
    void *regex; /* pcre2_code */
} sop_tok_split;

/* Two ids that merge. key = left << 32 | right; UINT64_MAX: free. */
typedef struct sop_tok_pair {
    uint64_t key;
    uint32_t rank;
    int32_t id;
} sop_tok_pair;

/* Text to id by a hash that can be put together: hash(ab) = hash(a) * power[len b] + hash(b). */
typedef struct sop_tok_slot {
    uint32_t hash;
    int32_t id; /* -1: free */
} sop_tok_slot;

/* How a conversation becomes text: what chat.c read out of the file's template. */
typedef struct sop_chat_format {
    enum {
        SOP_CHAT_NONE,
        SOP_CHAT_CHATML,
        SOP_CHAT_QWEN3, /* ChatML that takes earlier thoughts out */
        SOP_CHAT_LLAMA3,
        SOP_CHAT_GEMMA,
        SOP_CHAT_MISTRAL
    } kind;
    bool bos;
    enum {
        SOP_SYSTEM_TURN,   /* a turn of its own */
        SOP_SYSTEM_FIRST,  /* in front of the first user's text */
        SOP_SYSTEM_LAST,   /* in front of the last user's text */
        SOP_SYSTEM_PROMPT, /* Mistral: between [SYSTEM_PROMPT] and [/SYSTEM_PROMPT] */
        SOP_SYSTEM_REFUSED
    } system;
    char *system_text;        /* when the conversation has none; or NULL */
    bool system_needed;       /* the template's own is one that superop cannot make */
    bool dates;               /* Llama 3.1: the system turn names two dates */
    char open[16], close[16]; /* Mistral: around a user's text */
    bool reply_space, reply_trim;
} sop_chat_format;

struct sop_tok_pool;

struct sop_tokenizer {
    bool byte_level;     /* family "bpe" */
    bool byte_fallback;  /* what has no token becomes BYTE tokens */
    bool fuse_unknown;   /* neighbours without a token become one unk */
    bool whole_first;    /* a word that is a token is not merged from parts */
    bool by_score;       /* merge by text and score, else by pairs and rank */
    bool mapped;         /* a step of the chain puts letters in the place of bytes */
    bool strip_first;    /* decoding drops the text's first space */
    bool spaces_decoded; /* U+2581 is written as a space */
    bool add_bos;
    int32_t bos, eos, eot, unk, pad;
    int32_t unknown; /* what encoding gives for a character without a token; -1: nothing */
    int32_t ends[SOP_TOK_MAX_ENDS];
    int32_t n_ends;

    sop_token *tokens;
    int32_t n_vocab, cap_vocab;
    sop_buf blob;
    uint32_t longest_text, longest_piece;

    sop_tok_slot *slots;
    size_t slot_mask;
    uint64_t *power; /* [longest_text + 1] */

    sop_tok_pair *pairs;
    size_t pair_mask;
    uint32_t n_merges;

    int32_t byte_id[256]; /* byte-level: of each byte; otherwise the BYTE tokens. -1: none */
    uint64_t *joints;     /* a set of hashed neighbours inside tokens; NULL: not used */

    sop_trie raw, normalized; /* added tokens in the text as it is, and in normalised text */
    sop_tok_norm norms[SOP_TOK_MAX_STEPS];
    int n_norms;
    sop_tok_split splits[SOP_TOK_MAX_STEPS];
    int n_splits;
    void *regex_limits; /* pcre2_match_context of all regexes */

    char *pre, *chat_template;
    sop_chat_format chat;

    struct sop_tok_pool *pool;
};

/* ---- making one: tokenizer_build.c ---- */

/* An empty one; sop_tokenizer_close() frees it, finished or not. */
sop_status sop_tok_create(sop_tokenizer **out);
/* Token id; n_text bytes of text, in the file's own spelling. An id that is there is replaced. */
sop_status sop_tok_add(sop_tokenizer *t, int64_t id, const char *text, size_t n_text, int kind,
                       float score, int flags);
/* After the last token. */
sop_status sop_tok_index(sop_tokenizer *t);
/* Then the merges, best first; texts in the file's own spelling. What names no token is passed
 * over. */
sop_status sop_tok_merge(sop_tokenizer *t, const char *left, size_t n_left, const char *right,
                         size_t n_right);
/* Chains. Texts and the regex are copied; a regex that is one of the known ones is done by hand. */
sop_status sop_tok_norm_add(sop_tokenizer *t, int kind, const char *from, size_t n_from,
                            const char *to, size_t n_to);
sop_status sop_tok_split_add(sop_tokenizer *t, const sop_tok_split *split);
sop_status sop_tok_split_literal(sop_tokenizer *t, const char *s, size_t n, int behaviour,
                                 bool invert);
sop_status sop_tok_split_regex(sop_tokenizer *t, const char *regex, size_t n, int behaviour,
                               bool invert);
/* The chain of a name that GGUF files use ("qwen2"); SOP_E_UNSUPPORTED names it. */
sop_status sop_tok_split_named(sop_tokenizer *t, const char *pre);
sop_status sop_tok_copy(char **to, const char *s, size_t n);
void sop_tok_add_end(sop_tokenizer *t, int64_t id);
/* Last: checks, added tokens, end tokens, the chat format. */
sop_status sop_tok_finish(sop_tokenizer *t);

/* The id of a text as it stands in blob, or -1. */
int32_t sop_tok_find(const sop_tokenizer *t, const char *s, size_t n);
uint64_t sop_tok_hash(const char *s, size_t n);
/* hash(ab) from its parts. power: of b's length. */
uint64_t sop_tok_hash_join(uint64_t a, uint64_t b, uint64_t power);
int32_t sop_tok_find_hash(const sop_tokenizer *t, uint64_t hash, const char *s, size_t n);
/* Byte-level spelling to bytes; false when a letter stands for no byte. to has room for n. */
bool sop_tok_unmap(const char *s, size_t n, char *to, size_t *n_to);
/* The byte of "<0xNN>", or -1. */
int sop_tok_byte(const char *s, size_t n);
extern const uint16_t sop_tok_letter[256]; /* the letter that stands for a byte */

static inline uint64_t sop_tok_mix(uint64_t h)
{
    h *= 0x9E3779B97F4A7C15u; /* 2^64 / golden ratio */
    return h ^ h >> 32;
}

/* The entry of two ids that merge, or a free one: rank UINT32_MAX. */
static inline sop_tok_pair *sop_tok_pair_of(const sop_tokenizer *t, int32_t left, int32_t right)
{
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = sop_tok_mix(key) & t->pair_mask;
    while (t->pairs[i].key != key && t->pairs[i].key != UINT64_MAX) i = (i + 1) & t->pair_mask;
    return t->pairs + i;
}

/* The control token with this text, or -1. */
int32_t sop_tok_control(const sop_tokenizer *t, const char *text);

/* Where the set of neighbours keeps a pair of characters. */
static inline uint32_t sop_tok_joint(uint32_t left, uint32_t right)
{
    /* two odd constants and a third to mix them; the top 20 bits */
    return ((left * 0x9E3779B1u) ^ (right * 0x85EBCA77u)) * 0xC2B2AE3Du >> 12;
}

/* The longest added token that begins at s: its id and bytes, or -1. */
int32_t sop_trie_match(const sop_trie *trie, const char *s, size_t n, size_t *bytes);
sop_status sop_trie_add(sop_trie *trie, const char *s, size_t n, int32_t id);

/* ---- the readers ---- */

/* What a GGUF file holds; f stays the caller's. */
sop_status sop_tokenizer_of_file(const sop_file *f, const char *name, sop_tokenizer **out);
/* The documents of a Hugging Face folder; each may be NULL but the first. */
typedef struct sop_tok_documents {
    const char *tokenizer, *tokenizer_config, *generation_config, *config, *chat_template;
    size_t n_tokenizer, n_tokenizer_config, n_generation_config, n_config, n_chat_template;
} sop_tok_documents;
sop_status sop_tokenizer_of_json(const sop_tok_documents *docs, const char *name,
                                 sop_tokenizer **out);
/* One tokenizer.json in memory. */
sop_status sop_tokenizer_parse_json(const char *bytes, size_t n, sop_tokenizer **out);

/* ---- encoding ---- */

typedef struct sop_tok_cached sop_tok_cached;

enum {
    SOP_BUFFER_REPAIRED,
    SOP_BUFFER_NORMAL, /* two */
    SOP_BUFFER_SCRATCH = SOP_BUFFER_NORMAL + 2,
    SOP_BUFFER_WORD, /* a word's bytes, of letters that stand for them */
    SOP_BUFFER_WORK, /* symbols and heap of a long word */
    SOP_BUFFER_STEP, /* what each step of the chain writes */
    SOP_ENCODER_BUFFERS = SOP_BUFFER_STEP + SOP_TOK_MAX_STEPS
};

/* What one call needs. Kept in the pool for the next, so an encoder that was used before
 * allocates only for texts longer than any it has seen. */
typedef struct sop_encoder {
    const sop_tokenizer *t;
    int32_t *ids;
    size_t n_ids, cap_ids;
    sop_buf buffer[SOP_ENCODER_BUFFERS];
    sop_tok_cached *cache;
    void *match; /* pcre2_match_data */
} sop_encoder;

sop_status sop_encoder_take(const sop_tokenizer *t, sop_encoder **out);
void sop_encoder_give(sop_encoder *e);
void sop_encoder_destroy(sop_encoder *e);
/* Append the ids of a text. first: it stands at the beginning of the whole text. */
sop_status sop_encoder_text(sop_encoder *e, const char *text, size_t n, bool special, bool first);
sop_status sop_encoder_id(sop_encoder *e, int32_t id);
/* Run the normaliser over *s; it then points into *s's own memory or into one of the two. */
sop_status sop_tok_normalize(const sop_tokenizer *t, sop_buf two[2], sop_buf *scratch,
                             const char **s, size_t *n);
/* tokenizer_split.c: the chain from step on. */
sop_status sop_encoder_split(sop_encoder *e, int step, const char *s, size_t n, bool first);
/* tokenizer_merge.c: one word. */
sop_status sop_encoder_word(sop_encoder *e, const char *s, size_t n);

/* ---- chat.c ---- */

/* Which format the template's text or, without one, the vocabulary asks for. */
sop_status sop_chat_choose(sop_tokenizer *t);

#ifdef __cplusplus
}
#endif

#endif
