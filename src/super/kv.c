#include "super/kv.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "core/host.h"
#include "core/op.h"
#include "ops/kv_append/kv_append.h"

struct layer {
    int32_t group;
    sop_operand pool[2];
    sop_operand scales[2]; /* within kv->scales */
    size_t page_bytes[2];
    char *host[2]; /* pages of sequences that wait, within kv->host */
};

struct group {
    int64_t window, pages, n_free;
    int32_t *free_list; /* [pages] stack */
    int32_t *refs;      /* [pages] */
    int64_t host_pages, n_host_free, n_leaving;
    int32_t *host_free; /* [host_pages] stack */
    int32_t *leaving;   /* [pages]: copies of them are on their way to the host */
};

/* An entry of a page list: a page, -1 when it was given back, or where it lies on the host. */
static int32_t on_host(int32_t place)
{
    return -2 - place;
}

struct seq {
    bool open, away, coming; /* away: on the host; coming: copies to it may be on their way */
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
    void *host;
    sop_queue *copies; /* to the host and back; NULL where no page may lie there */
    bool under_way;    /* copies that nobody waited for yet */
    uint64_t n_out, n_in;
};

static int64_t pages_of(int64_t tokens)
{
    return (tokens + SOP_KV_PAGE - 1) / SOP_KV_PAGE;
}

static size_t page_bytes(const sop_kv_spec *s, int32_t l, int32_t which)
{
    const sop_kv_layer *y = &s->layers[l];
    return (size_t)(y->heads * SOP_KV_PAGE * (which ? y->v : y->k)) * sop_dtype_bytes(s->dtype);
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
    size_t bytes = 0; /* of a page of every layer */
    for (int32_t l = 0; l < s->n_layers; l++) bytes += page_bytes(s, l, 0) + page_bytes(s, l, 1);
    const int64_t host = bytes ? (int64_t)(s->host_bytes / bytes) : 0;
    for (int32_t k = 0; k < *n; k++) {
        int64_t all = pages_of(s->tokens) + s->max_seqs; /* each may waste the end of a page */
        int64_t most = pages_of(s->ctx);                 /* of one sequence */
        if (g[k].window) {
            const int64_t one = pages_of(g[k].window + s->max_step) + 2;
            if (one < most) most = one;
            if (one * s->max_seqs < all) all = one * s->max_seqs;
        }
        g[k].pages = g[k].n_free = all;
        g[k].host_pages = host < most * s->max_seqs ? host : most * s->max_seqs;
        g[k].n_host_free = g[k].host_pages;
        if (all > INT32_MAX / SOP_KV_PAGE)
            return sop_fail(SOP_E_LIMIT, "kv: %lld tokens, at most %d fit in 32-bit slots",
                            (long long)s->tokens, INT32_MAX / SOP_KV_PAGE * SOP_KV_PAGE);
    }
    return SOP_OK;
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

sop_status sop_kv_bytes(const sop_kv_spec *spec, size_t *out, size_t *host)
{
    struct group g[SOP_MAX_KV_GROUPS];
    int32_t n;
    int32_t *group_of = calloc((size_t)spec->n_layers + 1, sizeof *group_of);
    *out = *host = 0;
    if (!group_of) return sop_fail(SOP_E_NOMEM, "kv: %d layers", spec->n_layers);
    const sop_status status = plan_groups(spec, group_of, g, &n);
    for (int32_t l = 0; status == SOP_OK && l < spec->n_layers; l++)
        for (int32_t w = 0; w < 2; w++) {
            *out += ((size_t)g[group_of[l]].pages * page_bytes(spec, l, w) + 63) & ~(size_t)63;
            *host += (size_t)g[group_of[l]].host_pages * page_bytes(spec, l, w);
        }
    *out += all_scale_bytes(spec);
    free(group_of);
    return status;
}

void sop_kv_destroy(sop_kv *kv)
{
    if (!kv) return;
    if (kv->copies) {
        (void)kv->device->ops->wait(kv->copies);
        kv->device->ops->queue_destroy(kv->copies);
    }
    if (kv->host) sop_host_release(kv->device, kv->host);
    for (int32_t l = 0; kv->layer && l < kv->n_layers; l++)
        for (int32_t w = 0; w < 2; w++)
            if (kv->layer[l].pool[w].data)
                kv->device->ops->release(kv->device, kv->layer[l].pool[w].data,
                                         kv->layer[l].pool[w].bytes);
    if (kv->scales.data) kv->device->ops->release(kv->device, kv->scales.data, kv->scales.bytes);
    for (int32_t g = 0; g < SOP_MAX_KV_GROUPS; g++) {
        free(kv->group[g].free_list);
        free(kv->group[g].refs);
        free(kv->group[g].host_free);
        free(kv->group[g].leaving);
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
    size_t device_bytes, host_bytes, host_at = 0;
    status = sop_kv_bytes(spec, &device_bytes, &host_bytes);
    if (status == SOP_OK && !dry && host_bytes) status = sop_host_reserve(d, host_bytes, &kv->host);
    if (status == SOP_OK && kv->host) status = d->ops->queue_create(d, &kv->copies);
    if (status != SOP_OK) goto out;
    for (int32_t i = 0; i < 2 * spec->n_layers && kv->host; i++) {
        struct layer *y = &kv->layer[i / 2];
        y->host[i % 2] = (char *)kv->host + host_at;
        host_at += (size_t)kv->group[y->group].host_pages * y->page_bytes[i % 2];
    }
    for (int32_t k = 0; k < kv->n_groups; k++) {
        struct group *g = &kv->group[k];
        g->free_list = malloc((size_t)(g->pages + 1) * sizeof *g->free_list);
        g->refs = calloc((size_t)g->pages + 1, sizeof *g->refs);
        g->host_free = malloc((size_t)(g->host_pages + 1) * sizeof *g->host_free);
        g->leaving = malloc((size_t)(g->pages + 1) * sizeof *g->leaving);
        if (!g->free_list || !g->refs || !g->host_free || !g->leaving) goto nomem;
        for (int64_t i = 0; i < g->host_pages; i++)
            g->host_free[i] = (int32_t)(g->host_pages - 1 - i);
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

/* Give back the listed pages [from, to), the first last, so that it is taken first again: pages in a row
 * are copied in one piece. A place on the host may be taken anew while a copy reads it: what writes it
 * comes later in the same queue. */
static void drop_pages(sop_kv *kv, int32_t k, struct seq *s, int64_t from, int64_t to)
{
    struct group *g = &kv->group[k];
    for (int64_t i = to - 1; i >= from; i--) {
        const int32_t page = s->page[k][i];
        if (page >= 0) drop_page(g, page);
        if (page < -1) g->host_free[g->n_host_free++] = on_host(page);
        s->page[k][i] = -1;
    }
}

/* Wait for all copies: pages that left are free, sequences that came may be read. */
static sop_status settle(sop_kv *kv)
{
    if (!kv->under_way) return SOP_OK;
    SOP_TRY(kv->device->ops->wait(kv->copies));
    kv->under_way = false;
    for (int32_t k = 0; k < kv->n_groups; k++) {
        struct group *g = &kv->group[k];
        while (g->n_leaving > 0) drop_page(g, g->leaving[--g->n_leaving]);
    }
    for (int32_t i = 0; i < kv->max_seqs; i++) kv->seq[i].coming = false;
    return SOP_OK;
}

/* n pages of a group from `page` on, and as many places on the host from `place` on: one into the other. */
static sop_status move(sop_kv *kv, int32_t k, int32_t page, int32_t place, int64_t n, int32_t way)
{
    for (int32_t l = 0; l < kv->n_layers; l++) {
        const struct layer *y = &kv->layer[l];
        for (int32_t w = 0; y->group == k && w < 2; w++) {
            char *there = (char *)y->pool[w].data + (size_t)page * y->page_bytes[w];
            char *here = y->host[w] + (size_t)place * y->page_bytes[w];
            SOP_TRY(kv->device->ops->copy(kv->copies, way == SOP_COPY_OUT ? here : there,
                                          way == SOP_COPY_OUT ? there : here,
                                          (size_t)n * y->page_bytes[w], way));
        }
    }
    kv->under_way = true;
    return SOP_OK;
}

/* Whether an entry goes to the host: a page that others read stays for them. */
static bool leaves(const struct group *g, int32_t page)
{
    return page >= 0 && g->refs[page] == 1;
}

/* What a sequence would move to the host, or from there, in a group. */
static int64_t count(const sop_kv *kv, int32_t k, const struct seq *s, bool out)
{
    int64_t n = 0;
    for (int64_t i = s->dropped[k]; i < s->listed[k]; i++)
        n += out ? leaves(&kv->group[k], s->page[k][i]) : s->page[k][i] < -1;
    return n;
}

/* Copies of a sequence's pages in a group, as they were counted. Pages and places that follow each other go
 * in one piece. The lists change when all copies are under way. */
static sop_status move_all(sop_kv *kv, int32_t k, struct seq *s, bool out)
{
    struct group *g = &kv->group[k];
    const int32_t *stack = out ? g->host_free + g->n_host_free : g->free_list + g->n_free;
    int32_t page = 0, place = 0;
    int64_t run = 0, taken = 0;
    for (int64_t i = s->dropped[k]; i < s->listed[k]; i++) {
        const int32_t from = s->page[k][i];
        if (out ? !leaves(g, from) : from >= -1) continue;
        const int32_t to = stack[-++taken];
        const int32_t next_page = out ? from : to, next_place = out ? to : on_host(from);
        if (run && next_page == page + run && next_place == place + run) {
            run++;
            continue;
        }
        if (run) SOP_TRY(move(kv, k, page, place, run, out ? SOP_COPY_OUT : SOP_COPY_IN));
        page = next_page;
        place = next_place;
        run = 1;
    }
    if (run) SOP_TRY(move(kv, k, page, place, run, out ? SOP_COPY_OUT : SOP_COPY_IN));
    for (int64_t i = s->listed[k]; !out && i-- > s->dropped[k];)
        if (s->page[k][i] < -1) g->host_free[g->n_host_free++] = on_host(s->page[k][i]);
    for (int64_t i = s->dropped[k]; i < s->listed[k]; i++) {
        int32_t *entry = &s->page[k][i];
        if (out && leaves(g, *entry)) {
            g->leaving[g->n_leaving++] = *entry;
            *entry = on_host(g->host_free[--g->n_host_free]);
            kv->n_out++;
        } else if (!out && *entry < -1) {
            *entry = take_page(g);
            kv->n_in++;
        }
    }
    return SOP_OK;
}

sop_status sop_kv_open(sop_kv *kv, int32_t *seq)
{
    for (int32_t i = 0; i < kv->max_seqs; i++) {
        struct seq *s = &kv->seq[i];
        if (s->open) continue;
        s->open = true;
        s->away = s->coming = false;
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
    if (s->coming) (void)settle(kv); /* else a copy would write pages that others have by then */
    for (int32_t k = 0; k < kv->n_groups; k++) drop_pages(kv, k, s, s->dropped[k], s->listed[k]);
    s->open = false;
}

sop_status sop_kv_fork(sop_kv *kv, int32_t seq, int32_t *out)
{
    if (!sop_kv_is_open(kv, seq)) return sop_fail(SOP_E_ARG, "kv: sequence %d is not open", seq);
    SOP_TRY(sop_kv_restore(kv, seq));
    SOP_TRY(settle(kv));
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
    if (length) SOP_TRY(sop_kv_restore(kv, seq));
    if (s->coming) SOP_TRY(settle(kv)); /* no page is given back while a copy writes it */
    s->length = length;
    sop_kv_rollback(kv, seq);
    if (length == 0) s->away = false;
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

sop_status sop_kv_offload(sop_kv *kv, int32_t seq)
{
    if (!sop_kv_is_open(kv, seq)) return sop_fail(SOP_E_ARG, "kv: sequence %d is not open", seq);
    struct seq *s = &kv->seq[seq];
    if (s->away) return SOP_OK;
    for (int32_t k = 0; k < kv->n_groups; k++) {
        const int64_t n = count(kv, k, s, true), there = kv->group[k].n_host_free;
        if (n > there || !kv->copies)
            return sop_fail(SOP_E_LIMIT, "kv: %lld pages to the host, %lld of %lld are free there",
                            (long long)n, (long long)there, (long long)kv->group[k].host_pages);
    }
    for (int32_t k = 0; k < kv->n_groups; k++) {
        s->away = true; /* also when only some of its groups are */
        SOP_TRY(move_all(kv, k, s, true));
    }
    return SOP_OK;
}

sop_status sop_kv_restore(sop_kv *kv, int32_t seq)
{
    if (!sop_kv_is_open(kv, seq)) return sop_fail(SOP_E_ARG, "kv: sequence %d is not open", seq);
    struct seq *s = &kv->seq[seq];
    if (!s->away) return SOP_OK;
    for (int32_t k = 0; k < kv->n_groups; k++) {
        const struct group *g = &kv->group[k];
        const int64_t n = count(kv, k, s, false);
        if (n > g->n_free) SOP_TRY(settle(kv));
        if (n > g->n_free)
            return sop_fail(SOP_E_LIMIT, "kv: %lld pages from the host, %lld of %lld are free",
                            (long long)n, (long long)g->n_free, (long long)g->pages);
    }
    for (int32_t k = 0; k < kv->n_groups; k++) SOP_TRY(move_all(kv, k, s, false));
    s->away = false;
    s->coming = true;
    return SOP_OK;
}

bool sop_kv_is_away(const sop_kv *kv, int32_t seq)
{
    return sop_kv_is_open(kv, seq) && kv->seq[seq].away;
}

/* Pages of a group that n more tokens take, the copy of a shared one included. */
static int64_t wanted(const sop_kv *kv, int32_t k, const struct seq *s, int64_t n, bool *shared)
{
    const int64_t want = pages_of(s->length + n), last = s->length / SOP_KV_PAGE;
    const int32_t page = n > 0 && last < s->listed[k] ? s->page[k][last] : -1;
    *shared = page >= 0 && kv->group[k].refs[page] > 1;
    return (want > s->listed[k] ? want - s->listed[k] : 0) + *shared;
}

bool sop_kv_fits(const sop_kv *kv, int32_t seq, int64_t n)
{
    if (!sop_kv_is_open(kv, seq)) return true;
    const struct seq *s = &kv->seq[seq];
    for (int32_t k = 0; k < kv->n_groups; k++) {
        const struct group *g = &kv->group[k];
        bool shared;
        const int64_t need = wanted(kv, k, s, n, &shared) + (s->away ? count(kv, k, s, false) : 0);
        if (need > g->n_free + g->n_leaving) return false;
    }
    return true;
}

sop_status sop_kv_reserve(sop_kv *kv, sop_queue *q, int32_t seq, int64_t n)
{
    if (!sop_kv_is_open(kv, seq)) return sop_fail(SOP_E_ARG, "kv: sequence %d is not open", seq);
    struct seq *s = &kv->seq[seq];
    if (n > kv->ctx - s->length)
        return sop_fail(SOP_E_LIMIT, "context: %lld tokens and %lld new ones, at most %lld fit",
                        (long long)s->length, (long long)n, (long long)kv->ctx);
    SOP_TRY(sop_kv_restore(kv, seq));
    if (s->coming) SOP_TRY(settle(kv));
    for (int32_t k = 0; k < kv->n_groups; k++)
        if (wanted(kv, k, s, n, &(bool){false}) > kv->group[k].n_free) SOP_TRY(settle(kv));
    const int64_t want = pages_of(s->length + n);
    for (int32_t k = 0; k < kv->n_groups; k++) {
        const int64_t last = s->length / SOP_KV_PAGE; /* the page that is written first */
        bool shared;
        const int64_t need = wanted(kv, k, s, n, &shared);
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

void sop_kv_moved(const sop_kv *kv, uint64_t *out, uint64_t *in)
{
    *out = kv->n_out;
    *in = kv->n_in;
}
