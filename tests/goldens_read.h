/* tests/goldens_read.h: reads a file of goldens, and judges logits against one of its positions.
 *
 * goldens/golden_file.py draws the file. It is read whole and viewed in place: every field is of 4
 * bytes, little endian. A short or damaged file is an error, never a read past its end. */
#ifndef TESTS_GOLDENS_READ_H
#define TESTS_GOLDENS_READ_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GOLDEN_TOP = 64, GOLDEN_NAME = 32 };

/** What the oracle says before one output token. */
typedef struct golden_position {
    int32_t id[GOLDEN_TOP];    /* the best first */
    float logprob[GOLDEN_TOP]; /* natural, never rising */
    float lse;                 /* log of the sum of exp of all its logits */
    float rest;                /* log of the probability of all other tokens together */
} golden_position;

typedef struct golden_prompt {
    const char *name;
    int32_t n_prompt, n_out;
    const int32_t *prompt;            /* [n_prompt], BOS included */
    const int32_t *out;               /* [n_out], the oracle's greedy output; no token stops it */
    const golden_position *positions; /* [n_out]; out[i] is chosen at positions[i] */
} golden_prompt;

typedef struct goldens {
    int32_t vocab, n_prompts;
    golden_prompt *prompts;
    char *data; /* the file, which the prompts point into */
} goldens;

/** How an engine's logits stand beside a position, in nat. A choice outside the oracle's top 64
 * counts as its 64th. */
typedef struct golden_verdict {
    int32_t choice; /* the engine's argmax, the first of equals */
    int missed;     /* it is not the oracle's */
    double under;   /* how far the oracle puts it under its best */
    double kl;      /* KL(oracle, engine) over the top 64 and all others as one */
} golden_verdict;

static inline void goldens_close(goldens *g)
{
    free(g->prompts);
    free(g->data);
    memset(g, 0, sizeof *g);
}

/* The next n elements of 4 bytes, or NULL where the file is shorter. */
static inline const void *goldens_take(const char **at, const char *end, int64_t n)
{
    if (n < 0 || n > (end - *at) / 4) return NULL;
    const void *p = *at;
    *at += n * 4;
    return p;
}

static inline int goldens_are_ids(const int32_t *ids, int64_t n, int32_t vocab)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab) return 0;
    return 1;
}

static inline const char *goldens_prompt(golden_prompt *p, const char **at, const char *end,
                                         int32_t vocab)
{
    const int words = sizeof(golden_position) / 4;
    p->name = goldens_take(at, end, GOLDEN_NAME / 4);
    const int32_t *sizes = goldens_take(at, end, 2);
    if (!p->name || !sizes) return "the file ends within a prompt";
    if (p->name[GOLDEN_NAME - 1]) return "a name does not end";
    p->n_prompt = sizes[0];
    p->n_out = sizes[1];
    if (p->n_prompt < 1 || p->n_out < 1) return "a prompt or its output is empty";
    p->prompt = goldens_take(at, end, p->n_prompt);
    p->out = goldens_take(at, end, p->n_out);
    p->positions = goldens_take(at, end, (int64_t)p->n_out * words);
    if (!p->prompt || !p->out || !p->positions) return "the file ends within a prompt";
    int sound =
        goldens_are_ids(p->prompt, p->n_prompt, vocab) && goldens_are_ids(p->out, p->n_out, vocab);
    for (int32_t i = 0; sound && i < p->n_out; i++)
        sound = goldens_are_ids(p->positions[i].id, GOLDEN_TOP, vocab);
    return sound ? NULL : "an id is outside the vocabulary";
}

/** The goldens in bytes, which becomes theirs. NULL, or why not; then there is nothing to close. */
static inline const char *goldens_parse(goldens *g, char *data, int64_t bytes)
{
    const char *at = data, *end = data + bytes, *why = NULL;
    memset(g, 0, sizeof *g);
    g->data = data;
    const int32_t *head = goldens_take(&at, end, 5); /* the first two are the magic */
    if (!head || memcmp(data, "SOPGOLD1", 8) != 0) {
        why = "not a file of goldens";
    } else if (head[3] != GOLDEN_TOP) {
        why = "not the top 64 of each position";
    } else if (head[2] <= GOLDEN_TOP || head[4] < 1 || head[4] > bytes / GOLDEN_NAME) {
        why = "a size in the header cannot be";
    } else {
        g->vocab = head[2];
        g->n_prompts = head[4];
        g->prompts = calloc((size_t)head[4], sizeof *g->prompts);
        if (!g->prompts) why = "out of memory";
        for (int32_t i = 0; !why && i < head[4]; i++)
            why = goldens_prompt(&g->prompts[i], &at, end, g->vocab);
        if (!why && at != end) why = "bytes are left over";
    }
    if (why) goldens_close(g);
    return why;
}

/** The goldens of a file; close them with goldens_close(). NULL, or why not. */
static inline const char *goldens_open(goldens *g, const char *path)
{
    memset(g, 0, sizeof *g);
    FILE *f = fopen(path, "rb");
    if (!f) return "cannot be opened";
    long bytes = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    char *data = bytes > 0 ? malloc((size_t)bytes) : NULL;
    rewind(f);
    int read = data && fread(data, 1, (size_t)bytes, f) == (size_t)bytes;
    fclose(f);
    if (!read) {
        free(data);
        return "cannot be read";
    }
    return goldens_parse(g, data, bytes);
}

/** Judge logits [vocab]. */
static inline golden_verdict golden_judge(const golden_position *p, const float *logits,
                                          int32_t vocab)
{
    golden_verdict v = {0};
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[v.choice]) v.choice = i;
    double top = (double)logits[v.choice], all = 0, inside = 0;
    for (int32_t i = 0; i < vocab; i++) all += exp((double)logits[i] - top);
    int place = 0;
    while (place < GOLDEN_TOP - 1 && p->id[place] != v.choice) place++;
    v.missed = place != 0;
    v.under = (double)p->logprob[0] - (double)p->logprob[place];
    for (int k = 0; k < GOLDEN_TOP; k++) {
        double logp = (double)p->logprob[k], logq = (double)logits[p->id[k]] - top - log(all);
        v.kl += exp(logp) * (logp - logq);
        inside += exp(logq);
    }
    /* At least an epsilon: the engine's rest is a difference of sums near one. */
    double rest = fmax(1 - inside, 1e-16);
    v.kl += exp((double)p->rest) * ((double)p->rest - log(rest));
    return v;
}

#endif
