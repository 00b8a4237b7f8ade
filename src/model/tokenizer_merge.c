/* model/tokenizer_merge.c: a word into ids. The pair of neighbours with the best rank merges first,
 * the leftmost of equals. Short words do it in a small array; long ones in a list with a heap, so
 * that a word of n characters costs n log n. */
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

enum {
    SHORT = 32,         /* symbols: up to here a scan for the best is faster than a heap */
    CACHE_SLOTS = 8192, /* 512 KB: stays in a core's second cache */
    CACHED_BYTES = 31,  /* of a word that is remembered */
    CACHED_IDS = 7
};

#define NONE UINT32_MAX

/* One cache line. key: the word's length, then its bytes, then zeros; n -1: free. */
struct sop_tok_cached {
    uint64_t key[4];
    int32_t n;
    int32_t ids[CACHED_IDS];
};

typedef struct symbol {
    int32_t id; /* -1: no token of its own (spm) */
    uint32_t at, n;
    uint64_t hash; /* spm */
} symbol;

static sop_status ids_room(sop_encoder *e, size_t more)
{
    if (more <= e->cap_ids - e->n_ids) return SOP_OK;
    size_t cap = e->cap_ids ? e->cap_ids * 2 : 256;
    if (cap < e->n_ids + more) cap = e->n_ids + more;
    int32_t *ids = realloc(e->ids, cap * sizeof *ids);
    if (!ids) return sop_fail(SOP_E_NOMEM, "tokenizer: no memory for %zu ids", cap);
    e->ids = ids;
    e->cap_ids = cap;
    return SOP_OK;
}

sop_status sop_encoder_id(sop_encoder *e, int32_t id)
{
    SOP_TRY(ids_room(e, 1));
    e->ids[e->n_ids++] = id;
    return SOP_OK;
}

/* The rank of a merging with b behind it, and what they become; NONE when they do not merge.
 * s: the word. */
static inline uint32_t pair_of(const sop_tokenizer *t, const symbol *a, const symbol *b,
                               const char *s, int32_t *to)
{
    if (t->by_score) {
        if (a->n + b->n > t->longest_text) return NONE;
        const uint64_t hash = sop_tok_hash_join(a->hash, b->hash, t->power[b->n]);
        *to = sop_tok_find_hash(t, hash, s + a->at, a->n + b->n);
        return *to >= 0 && t->tokens[*to].plain ? t->tokens[*to].rank : NONE;
    }
    const sop_tok_pair *pair = sop_tok_pair_of(t, a->id, b->id);
    *to = pair->id;
    return pair->rank;
}

static void merge_two(const sop_tokenizer *t, symbol *a, const symbol *b, int32_t to)
{
    a->id = to;
    if (t->by_score) a->hash = sop_tok_hash_join(a->hash, b->hash, t->power[b->n]);
    a->n += b->n;
}

/* Merges in place; gives how many symbols are left. */
static size_t merge_short(const sop_tokenizer *t, const char *s, symbol *x, size_t n)
{
    uint32_t rank[SHORT];
    int32_t to[SHORT];
    for (size_t i = 0; i + 1 < n; i++) rank[i] = pair_of(t, x + i, x + i + 1, s, to + i);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NONE) break;
        merge_two(t, x + best, x + best + 1, to[best]);
        n--;
        const size_t behind = n - best - 1;
        memmove(x + best + 1, x + best + 2, behind * sizeof *x);
        memmove(rank + best, rank + best + 1, behind * sizeof *rank);
        memmove(to + best, to + best + 1, behind * sizeof *to);
        if (best > 0) rank[best - 1] = pair_of(t, x + best - 1, x + best, s, to + best - 1);
        if (best + 1 < n) rank[best] = pair_of(t, x + best, x + best + 1, s, to + best);
    }
    return n;
}

/* A heap of rank << 32 | position, least first. */
static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    const uint64_t moved = heap[i];
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && heap[c + 1] < heap[c]) c++;
        if (moved <= heap[c]) break;
        heap[i] = heap[c];
    }
    heap[i] = moved;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t value)
{
    size_t i = (*n)++;
    for (; i > 0 && value < heap[(i - 1) / 2]; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = value;
}

/* The bytes of work that n symbols take; the symbols stand first. */
static size_t work_bytes(size_t n)
{
    return n * (sizeof(symbol) + 2 * sizeof(uint64_t) + 4 * sizeof(uint32_t));
}

static size_t merge_long(const sop_tokenizer *t, const char *s, void *work, size_t n)
{
    symbol *x = work;
    uint64_t *heap = (uint64_t *)(x + n); /* a merge takes one out and puts at most two in */
    uint32_t *next = (uint32_t *)(heap + 2 * n), *last = next + n, *rank = last + n;
    int32_t *to = (int32_t *)(rank + n);
    size_t n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        next[i] = (uint32_t)i + 1;
        last[i] = (uint32_t)i - 1;
        rank[i] = i + 1 < n ? pair_of(t, x + i, x + i + 1, s, to + i) : NONE;
        if (rank[i] != NONE) heap[n_heap++] = (uint64_t)rank[i] << 32 | i;
    }
    for (size_t i = n_heap / 2; i-- > 0;) sift_down(heap, n_heap, i);
    while (n_heap > 0) {
        const uint32_t i = (uint32_t)heap[0], best = (uint32_t)(heap[0] >> 32);
        heap[0] = heap[--n_heap];
        if (n_heap > 0) sift_down(heap, n_heap, 0);
        if (rank[i] != best) continue; /* it has merged with others meanwhile */
        const uint32_t j = next[i];
        merge_two(t, x + i, x + j, to[i]);
        rank[j] = NONE;
        next[i] = next[j];
        if (next[i] < n) last[next[i]] = i;
        rank[i] = next[i] < n ? pair_of(t, x + i, x + next[i], s, to + i) : NONE;
        if (rank[i] != NONE) heap_push(heap, &n_heap, (uint64_t)rank[i] << 32 | i);
        if (i > 0) {
            const uint32_t p = last[i];
            rank[p] = pair_of(t, x + p, x + i, s, to + p);
            if (rank[p] != NONE) heap_push(heap, &n_heap, (uint64_t)rank[p] << 32 | p);
        }
    }
    size_t m = 0;
    for (uint32_t i = 0; i < n; i = next[i]) x[m++] = x[i];
    return m;
}

/* The symbols a word starts from; room for one a byte. What has no token is treated as Hugging
 * Face's BPE does: BYTE tokens, or one "unknown" that waits for the next known character. */
static size_t first_symbols(const sop_tokenizer *t, const char *s, size_t n, symbol *x)
{
    size_t m = 0, k;
    bool waiting = false;
    for (size_t i = 0; i < n; i += k) {
        symbol c = {.id = -1, .at = (uint32_t)i, .n = 1};
        k = 1;
        if (t->byte_level) {
            c.id = t->byte_id[(uint8_t)s[i]];
        } else {
            (void)sop_utf8_read(s + i, &k);
            c.n = (uint32_t)k;
            c.hash = sop_tok_hash(s + i, k);
            c.id = sop_tok_find_hash(t, c.hash, s + i, k);
            if (c.id >= 0 && !t->tokens[c.id].plain) c.id = -1;
        }
        if (c.id >= 0 || t->by_score) {
            if (waiting) x[m++] = (symbol){.id = t->unknown};
            waiting = false;
            x[m++] = c;
            continue;
        }
        bool bytes = t->byte_fallback;
        for (size_t b = 0; b < k; b++) bytes = bytes && t->byte_id[(uint8_t)s[i + b]] >= 0;
        if (bytes) {
            for (size_t b = 0; b < k; b++) x[m++] = (symbol){.id = t->byte_id[(uint8_t)s[i + b]]};
        } else if (t->unknown >= 0) {
            if (waiting && !t->fuse_unknown) x[m++] = (symbol){.id = t->unknown};
            waiting = true;
        }
    }
    if (waiting) x[m++] = (symbol){.id = t->unknown};
    return m;
}

static sop_status merge_word(sop_encoder *e, const char *s, size_t n)
{
    const sop_tokenizer *t = e->t;
    symbol few[SHORT], *x = few;
    size_t m;
    if (n <= SHORT) {
        m = merge_short(t, s, x, first_symbols(t, s, n, x));
    } else {
        sop_buf *work = e->buffer + SOP_BUFFER_WORK;
        SOP_TRY(sop_buf_room(work, work_bytes(n)));
        x = (symbol *)(void *)work->at;
        m = first_symbols(t, s, n, x);
        m = m <= SHORT ? merge_short(t, s, x, m) : merge_long(t, s, x, m);
    }
    SOP_TRY(ids_room(e, n)); /* a byte gives at most one id */
    bool unknown = false;
    for (size_t i = 0; i < m; i++) {
        if (x[i].id >= 0) {
            e->ids[e->n_ids++] = x[i].id;
            unknown = false;
            continue;
        }
        for (uint32_t b = 0; b < x[i].n; b++) { /* spm: a character that is no token */
            const int32_t id = t->byte_id[(uint8_t)s[x[i].at + b]];
            if (id < 0 && (unknown || t->unknown < 0)) continue;
            e->ids[e->n_ids++] = id < 0 ? t->unknown : id;
            unknown = id < 0;
        }
    }
    return SOP_OK;
}

/* The slot of a word in the cache, and its key. */
static sop_tok_cached *cached(const sop_encoder *e, const char *s, size_t n, uint64_t key[4])
{
    memset(key, 0, 4 * sizeof *key);
    memcpy((char *)key + 1, s, n);
    *(uint8_t *)key = (uint8_t)n;
    uint64_t h = key[0] * 0x9E3779B97F4A7C15u; /* odd numbers with many bits */
    h = (h ^ h >> 32 ^ key[1]) * 0xBF58476D1CE4E5B9u;
    h = (h ^ h >> 32 ^ key[2]) * 0x94D049BB133111EBu;
    h = (h ^ h >> 32 ^ key[3]) * 0x9E3779B97F4A7C15u;
    return e->cache + (h >> 32) % CACHE_SLOTS;
}

static sop_status one_word(sop_encoder *e, const char *s, size_t n)
{
    const sop_tokenizer *t = e->t;
    uint64_t key[4];
    sop_tok_cached *slot = NULL;
    if (n <= CACHED_BYTES) {
        slot = cached(e, s, n, key);
        if (slot->n >= 0 && memcmp(slot->key, key, sizeof key) == 0) {
            SOP_TRY(ids_room(e, CACHED_IDS));
            memcpy(e->ids + e->n_ids, slot->ids, sizeof slot->ids);
            e->n_ids += (size_t)slot->n;
            return SOP_OK;
        }
    }
    const size_t before = e->n_ids;
    int32_t whole = -1;
    if (t->whole_first && n <= t->longest_text) whole = sop_tok_find(t, s, n);
    if (whole >= 0 && t->tokens[whole].plain) {
        SOP_TRY(sop_encoder_id(e, whole));
    } else {
        SOP_TRY(merge_word(e, s, n));
    }
    const size_t got = e->n_ids - before;
    if (slot && got <= CACHED_IDS) {
        memcpy(slot->key, key, sizeof key);
        slot->n = (int32_t)got;
        memcpy(slot->ids, e->ids + before, got * sizeof *slot->ids);
    }
    return SOP_OK;
}

sop_status sop_encoder_word(sop_encoder *e, const char *s, size_t n)
{
    const uint64_t *joints = e->t->joints;
    if (!e->cache) {
        e->cache = malloc(CACHE_SLOTS * sizeof *e->cache);
        if (!e->cache)
            return sop_fail(SOP_E_NOMEM, "tokenizer: no memory for %zu bytes",
                            CACHE_SLOTS * sizeof *e->cache);
        for (int i = 0; i < CACHE_SLOTS; i++) e->cache[i].n = -1;
    }
    if (!joints) return one_word(e, s, n);
    size_t k, from = 0;
    uint32_t last = sop_utf8_read(s, &k);
    for (size_t i = k; i < n; i += k) {
        const uint32_t c = sop_utf8_read(s + i, &k), bit = sop_tok_joint(last, c);
        last = c;
        if (joints[bit >> 6] >> (bit & 63) & 1) continue;
        SOP_TRY(one_word(e, s + from, i - from));
        from = i;
    }
    return one_word(e, s + from, n - from);
}
