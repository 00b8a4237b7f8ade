#include "super/kv.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "core/op.h"
#include "ops/kv_append/kv_append.h"

struct layer {
    int32_t group;
    sop_operand pool[2];
    sop_operand scales[2]; /* within kv->scales */
    size_t page_bytes[2];
};

struct group {
    int64_t window, pages, n_free;
    int32_t *free_list; /* [pages] stack */
    int32_t *refs;      /* [pages] */
};

struct seq {
    bool open;
    int64_t length;
    int64_t listed[SOP_MAX_KV_GROUPS];  /* pages listed so far, those given back included */
    int64_t dropped[SOP_MAX_KV_GROUPS]; /* first of them that are given back */
    int32_t *page[SOP_MAX_KV_GROUPS];   /* [table_stride] */
};

struct sop_kv {
    sop_device *device;
    int32_t n_layers, n_groups, max_seqs, max_step;
    int64_t ctx, stride;
    struct layer *layer;
    struct group group[SOP_MAX_KV_GROUPS];
    struct seq *seq;
    sop_operand scales; /* of all layers, when the pools hold codes */
};

static int64_t pages_of(int64_t tokens)
{
    return (tokens + SOP_KV_PAGE - 1) / SOP_KV_PAGE;
}

/* The groups of a spec and how many pages each wants. */
static sop_status plan_groups(const sop_kv_spec *s, int32_t *group_of, struct group *g, int32_t *n)
{
    *n = 0;
    for (int32_t l = 0; l < s->n_layers; l++) {
        /* A window that the context never leaves is no window. */
        const int64_t w = s->layers[l].window < s->ctx ? s->layers[l].window : 0;
        int32_t k = 0;
        while (k < *n && g[k].window != w) k++;
        if (k == SOP_MAX_KV_GROUPS)
            return sop_fail(SOP_E_UNSUPPORTED, "kv: layers with more than %d different windows",
                            SOP_MAX_KV_GROUPS);
        if (k == *n) g[(*n)++] = (struct group){.window = w};
        if (group_of) group_of[l] = k;
    }
    for (int32_t k = 0; k < *n; k++) {
        int64_t all = pages_of(s->tokens) + s->max_seqs; /* each may waste the end of a page */
        if (g[k].window) {
            const int64_t one = pages_of(g[k].window + s->max_step) + 2;
            if (one * s->max_seqs < all) all = one * s->max_seqs;
        }
        g[k].pages = g[k].n_free = all;
        if (all > INT32_MAX / SOP_KV_PAGE)
            return sop_fail(SOP_E_LIMIT, "kv: %lld tokens, at most %d fit in 32-bit slots",
                            (long long)s->tokens, INT32_MAX / SOP_KV_PAGE * SOP_KV_PAGE);
    }
    return SOP_OK;
}

static size_t page_bytes(const sop_kv_spec *s, int32_t l, int32_t which)
{
    const sop_kv_layer *y = &s->layers[l];
    return (size_t)(y->heads * SOP_KV_PAGE * (which ? y->v : y->k)) * sop_dtype_bytes(s->dtype);
}

static size_t scale_bytes(const sop_kv_spec *s, int32_t l)
{
    return sop_is_code(s->dtype) ? (size_t)s->layers[l].heads * sizeof(float) : 0;
}

static size_t all_scale_bytes(const sop_kv_spec *s)
{
    size_t sum = 0;
    for (int32_t l = 0; l < s->n_layers; l++) sum += 2 * scale_bytes(s, l);
    return sum;
}

sop_status sop_kv_bytes(const sop_kv_spec *spec, size_t *out)
{
    struct group g[SOP_MAX_KV_GROUPS];
    int32_t n;
    int32_t *group_of = calloc((size_t)spec->n_layers + 1, sizeof *group_of);
    *out = 0;
    if (!group_of) return sop_fail(SOP_E_NOMEM, "kv: %d layers", spec->n_layers);
    const sop_status status = plan_groups(spec, group_of, g, &n);
    for (int32_t l = 0; status == SOP_OK && l < spec->n_layers; l++)
        for (int32_t w = 0; w < 2; w++)
            *out += ((size_t)g[group_of[l]].pages * page_bytes(spec, l, w) + 63) & ~(size_t)63;
    *out += all_scale_bytes(spec);
    free(group_of);
    return status;
}

void sop_kv_destroy(sop_kv *kv)
{
    if (!kv) return;
    for (int32_t l = 0; kv->layer && l < kv->n_layers; l++)
        for (int32_t w = 0; w < 2; w++)
            if (kv->layer[l].pool[w].data)
                kv->device->ops->release(kv->device, kv->layer[l].pool[w].data,
                                         kv->layer[l].pool[w].bytes);
    if (kv->scales.data) kv->device->ops->release(kv->device, kv->scales.data, kv->scales.bytes);
    for (int32_t g = 0; g < SOP_MAX_KV_GROUPS; g++) {
        free(kv->group[g].free_list);
        free(kv->group[g].refs);
    }
    for (int32_t s = 0; kv->seq && s < kv->max_seqs; s++)
        for (int32_t g = 0; g < SOP_MAX_KV_GROUPS; g++) free(kv->seq[s].page[g]);
    free(kv->seq);
    free(kv->layer);
    free(kv);
}

sop_status sop_kv_create(sop_device *d, const sop_kv_spec *spec, bool dry, sop_kv **out)
{
    *out = NULL;
    sop_kv *kv = calloc(1, sizeof *kv);
    if (!kv) return sop_fail(SOP_E_NOMEM, "kv: %zu bytes", sizeof *kv);
    sop_status status = SOP_E_NOMEM;
    kv->device = d;
    kv->n_layers = spec->n_layers;
    kv->max_seqs = spec->max_seqs;
    kv->max_step = spec->max_step;
    kv->ctx = spec->ctx;
    kv->stride = pages_of(spec->ctx);
    kv->layer = calloc((size_t)spec->n_layers + 1, sizeof *kv->layer);
    kv->seq = calloc((size_t)spec->max_seqs, sizeof *kv->seq);
    int32_t *group_of = calloc((size_t)spec->n_layers + 1, sizeof *group_of);
    if (!kv->layer || !kv->seq || !group_of) goto nomem;
    status = plan_groups(spec, group_of, kv->group, &kv->n_groups);
    if (status != SOP_OK) goto out;
    for (int32_t l = 0; l < spec->n_layers; l++) {
        struct layer *y = &kv->layer[l];
        y->group = group_of[l];
        for (int32_t w = 0; w < 2; w++) {
            y->page_bytes[w] = page_bytes(spec, l, w);
            const size_t bytes = (size_t)kv->group[y->group].pages * y->page_bytes[w];
            y->pool[w].bytes = bytes;
            status = dry ? SOP_OK : d->ops->reserve(d, bytes, &y->pool[w].data);
            if (status != SOP_OK) goto out;
        }
    }
    size_t at = 0;
    kv->scales.bytes = all_scale_bytes(spec);
    if (!dry && kv->scales.bytes) status = d->ops->reserve(d, kv->scales.bytes, &kv->scales.data);
    if (status != SOP_OK) goto out;
    for (int32_t i = 0; i < 2 * spec->n_layers && kv->scales.data; i++) {
        const size_t bytes = scale_bytes(spec, i / 2);
        kv->layer[i / 2].scales[i % 2] = (sop_operand){(char *)kv->scales.data + at, bytes};
        at += bytes;
    }
    for (int32_t k = 0; k < kv->n_groups; k++) {
        struct group *g = &kv->group[k];
        g->free_list = malloc((size_t)(g->pages + 1) * sizeof *g->free_list);
        g->refs = calloc((size_t)g->pages + 1, sizeof *g->refs);
        if (!g->free_list || !g->refs) goto nomem;
        /* The lowest page is taken first. */
        for (int64_t i = 0; i < g->pages; i++) g->free_list[i] = (int32_t)(g->pages - 1 - i);
        for (int32_t s = 0; s < kv->max_seqs; s++) {
            kv->seq[s].page[k] = malloc((size_t)(kv->stride + 1) * sizeof *kv->seq[s].page[k]);
            if (!kv->seq[s].page[k]) goto nomem;
        }
    }
    free(group_of);
    *out = kv;
    return SOP_OK;
nomem:
    status = sop_fail(SOP_E_NOMEM, "kv: lists of %d layers and %d sequences", spec->n_layers,
                      spec->max_seqs);
out:
    free(group_of);
    sop_kv_destroy(kv);
    return status;
}

int32_t sop_kv_n_groups(const sop_kv *kv)
{
    return kv->n_groups;
}

int32_t sop_kv_group(const sop_kv *kv, int32_t layer)
{
    return kv->layer[layer].group;
}

sop_operand sop_kv_pool(const sop_kv *kv, int32_t layer, int32_t which)
{
    return kv->layer[layer].pool[which];
}

sop_operand sop_kv_scales(const sop_kv *kv, int32_t layer, int32_t which)
{
    return kv->layer[layer].scales[which];
}

int64_t sop_kv_pages(const sop_kv *kv, int32_t group)
{
    return kv->group[group].pages;
}

int64_t sop_kv_table_stride(const sop_kv *kv)
{
    return kv->stride;
}

static int32_t take_page(struct group *g)
{
    const int32_t page = g->free_list[--g->n_free];
    g->refs[page] = 1;
    return page;
}

static void drop_page(struct group *g, int32_t page)
{
    if (--g->refs[page] == 0) g->free_list[g->n_free++] = page;
}

/* Give back the listed pages [from, to). */
static void drop_pages(sop_kv *kv, int32_t k, struct seq *s, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++)
        if (s->page[k][i] >= 0) {
            drop_page(&kv->group[k], s->page[k][i]);
            s->page[k][i] = -1;
        }
}

sop_status sop_kv_open(sop_kv *kv, int32_t *seq)
{
    for (int32_t i = 0; i < kv->max_seqs; i++) {
        struct seq *s = &kv->seq[i];
        if (s->open) continue;
        s->open = true;
        s->length = 0;
        for (int32_t k = 0; k < kv->n_groups; k++) s->listed[k] = s->dropped[k] = 0;
        *seq = i;
        return SOP_OK;
    }
    return sop_fail(SOP_E_LIMIT, "kv: all %d sequences are open", kv->max_seqs);
}

void sop_kv_close(sop_kv *kv, int32_t seq)
{
    if (!sop_kv_is_open(kv, seq)) return;
    struct seq *s = &kv->seq[seq];
    for (int32_t k = 0; k < kv->n_groups; k++) drop_pages(kv, k, s, s->dropped[k], s->listed[k]);
    s->open = false;
}

sop_status sop_kv_fork(sop_kv *kv, int32_t seq, int32_t *out)
{
    if (!sop_kv_is_open(kv, seq)) return sop_fail(SOP_E_ARG, "kv: sequence %d is not open", seq);
    SOP_TRY(sop_kv_open(kv, out));
    const struct seq *from = &kv->seq[seq];
    struct seq *to = &kv->seq[*out];
    to->length = from->length;
    for (int32_t k = 0; k < kv->n_groups; k++) {
        to->listed[k] = from->listed[k];
        to->dropped[k] = from->dropped[k];
        memcpy(to->page[k], from->page[k], (size_t)from->listed[k] * sizeof *to->page[k]);
        for (int64_t i = from->dropped[k]; i < from->listed[k]; i++)
            kv->group[k].refs[from->page[k][i]]++;
    }
    return SOP_OK;
}

bool sop_kv_is_open(const sop_kv *kv, int32_t seq)
{
    return seq >= 0 && seq < kv->max_seqs && kv->seq[seq].open;
}

int64_t sop_kv_length(const sop_kv *kv, int32_t seq)
{
    return sop_kv_is_open(kv, seq) ? kv->seq[seq].length : 0;
}

sop_status sop_kv_truncate(sop_kv *kv, int32_t seq, int64_t length)
{
    if (!sop_kv_is_open(kv, seq)) return sop_fail(SOP_E_ARG, "kv: sequence %d is not open", seq);
    struct seq *s = &kv->seq[seq];
    if (length < 0 || length > s->length)
        return sop_fail(SOP_E_ARG, "kv: cut to %lld, the sequence has %lld tokens",
                        (long long)length, (long long)s->length);
    for (int32_t k = 0; k < kv->n_groups && length; k++) {
        /* The next token must still find its whole window. */
        const int64_t w = kv->group[k].window, first = length - w + 1;
        if (w && s->dropped[k] * SOP_KV_PAGE > (first > 0 ? first : 0) && length < s->length)
            return sop_fail(SOP_E_ARG,
                            "kv: cut to %lld, a layer with window %lld has dropped the tokens "
                            "before %lld",
                            (long long)length, (long long)w,
                            (long long)s->dropped[k] * SOP_KV_PAGE);
    }
    s->length = length;
    sop_kv_rollback(kv, seq);
    if (length == 0)
        for (int32_t k = 0; k < kv->n_groups; k++) s->dropped[k] = 0;
    return SOP_OK;
}

/* Copy a shared page of all layers of the group before it is written. */
static sop_status own_page(sop_kv *kv, sop_queue *q, int32_t k, struct seq *s, int64_t at)
{
    struct group *g = &kv->group[k];
    const int32_t old = s->page[k][at];
    if (g->refs[old] == 1) return SOP_OK;
    const int32_t page = take_page(g);
    sop_status status = SOP_OK;
    for (int32_t l = 0; l < kv->n_layers && status == SOP_OK; l++) {
        const struct layer *y = &kv->layer[l];
        for (int32_t w = 0; y->group == k && w < 2 && status == SOP_OK; w++)
            status =
                kv->device->ops->copy(q, (char *)y->pool[w].data + (size_t)page * y->page_bytes[w],
                                      (char *)y->pool[w].data + (size_t)old * y->page_bytes[w],
                                      y->page_bytes[w], SOP_COPY_WITHIN);
    }
    if (status != SOP_OK) {
        drop_page(g, page);
        return status;
    }
    drop_page(g, old);
    s->page[k][at] = page;
    return SOP_OK;
}

sop_status sop_kv_reserve(sop_kv *kv, sop_queue *q, int32_t seq, int64_t n)
{
    if (!sop_kv_is_open(kv, seq)) return sop_fail(SOP_E_ARG, "kv: sequence %d is not open", seq);
    struct seq *s = &kv->seq[seq];
    if (n > kv->ctx - s->length)
        return sop_fail(SOP_E_LIMIT, "context: %lld tokens and %lld new ones, at most %lld fit",
                        (long long)s->length, (long long)n, (long long)kv->ctx);
    const int64_t want = pages_of(s->length + n);
    for (int32_t k = 0; k < kv->n_groups; k++) {
        const int64_t last = s->length / SOP_KV_PAGE; /* the page that is written first */
        const bool shared = n > 0 && last < s->listed[k] && kv->group[k].refs[s->page[k][last]] > 1;
        const int64_t need = (want > s->listed[k] ? want - s->listed[k] : 0) + shared;
        if (need > kv->group[k].n_free) {
            sop_kv_rollback(kv, seq);
            return sop_fail(SOP_E_LIMIT, "kv: %lld more pages of %d tokens, %lld of %lld are free",
                            (long long)need, SOP_KV_PAGE, (long long)kv->group[k].n_free,
                            (long long)kv->group[k].pages);
        }
        sop_status status = shared ? own_page(kv, q, k, s, last) : SOP_OK;
        if (status != SOP_OK) {
            sop_kv_rollback(kv, seq);
            return status;
        }
        while (s->listed[k] < want) s->page[k][s->listed[k]++] = take_page(&kv->group[k]);
    }
    return SOP_OK;
}

void sop_kv_commit(sop_kv *kv, int32_t seq, int64_t n)
{
    struct seq *s = &kv->seq[seq];
    s->length += n;
    for (int32_t k = 0; k < kv->n_groups; k++) {
        const int64_t w = kv->group[k].window;
        /* The next token, at position length, sees from length - w + 1 on. */
        const int64_t first = w ? s->length - w + 1 : 0;
        const int64_t keep = first > 0 ? first / SOP_KV_PAGE : 0;
        if (keep > s->dropped[k]) {
            drop_pages(kv, k, s, s->dropped[k], keep);
            s->dropped[k] = keep;
        }
    }
}

void sop_kv_rollback(sop_kv *kv, int32_t seq)
{
    struct seq *s = &kv->seq[seq];
    const int64_t keep = pages_of(s->length);
    for (int32_t k = 0; k < kv->n_groups; k++)
        if (s->listed[k] > keep) {
            drop_pages(kv, k, s, keep > s->dropped[k] ? keep : s->dropped[k], s->listed[k]);
            s->listed[k] = keep;
        }
}

int32_t sop_kv_slot(const sop_kv *kv, int32_t group, int32_t seq, int64_t position)
{
    return kv->seq[seq].page[group][position / SOP_KV_PAGE] * SOP_KV_PAGE +
           (int32_t)(position % SOP_KV_PAGE);
}

void sop_kv_table(const sop_kv *kv, int32_t group, int32_t seq, int32_t *table)
{
    const struct seq *s = &kv->seq[seq];
    memcpy(table, s->page[group], (size_t)s->listed[group] * sizeof *table);
}

void sop_kv_page_counts(const sop_kv *kv, int32_t group, int64_t *free_pages, int64_t *pages)
{
    *free_pages = kv->group[group].n_free;
    *pages = kv->group[group].pages;
}
