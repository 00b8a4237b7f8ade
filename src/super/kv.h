/* super/kv.h: keys and values of all layers, in pages.
 *
 * Layers that look back equally far form a group; a group has one page list a sequence, shared by
 * its layers, and each layer its own pools. A windowed group gives pages back as they fall out of the
 * window.
 *
 *   sequence 7, group 0 -> pages [3 | 9 | 4]: 3 * 64 slots, 150 used
 *   layer 5, page 3     -> K [g, 64, k], V [g, 64, v]; shared while refs > 1: append copies it first
 *
 * A sequence that waits may lie on the host. Its copies go through a queue of their own, beside the steps
 * that run; who needs a page that is still being read, or a sequence that is still coming, waits for them.
 */
#ifndef SUPER_KV_H
#define SUPER_KV_H

#include <stdbool.h>

#include "sop/device.h"

#define SOP_MAX_KV_GROUPS 4

/* Tokens of a page. 64 keeps a head's run of K at 8 kB (k=64, f16), long enough to stream; a sequence
 * wastes half a page on average. */
enum { SOP_KV_PAGE = 64 };

typedef struct sop_kv_layer {
    int64_t heads, k, v;
    int64_t window; /* 0: looks back to the start */
} sop_kv_layer;

typedef struct sop_kv_spec {
    const sop_kv_layer *layers;
    int32_t n_layers, dtype;
    int32_t max_seqs, max_step; /* sequences; tokens of a step */
    int64_t ctx, tokens;        /* of one sequence; of all together */
    size_t host_bytes;          /* for pages of sequences that wait; 0: none */
} sop_kv_spec;

typedef struct sop_kv sop_kv;

/* Bytes that create would reserve on the device, and on the host. SOP_E_ARG when there are more than
 * SOP_MAX_KV_GROUPS windows. */
sop_status sop_kv_bytes(const sop_kv_spec *spec, size_t *out, size_t *host);
/* dry: the lists only, no pools, to see what would be. */
sop_status sop_kv_create(sop_device *d, const sop_kv_spec *spec, bool dry, sop_kv **out);
void sop_kv_destroy(sop_kv *kv);

/* Where a layer's pools lie; its group; pages of the group. */
int32_t sop_kv_n_groups(const sop_kv *kv);
int32_t sop_kv_group(const sop_kv *kv, int32_t layer);
sop_operand sop_kv_pool(const sop_kv *kv, int32_t layer, int32_t which); /* 0 K, 1 V */
/* Where the scales [heads] f32 of a layer's codes lie; no data where the pools hold none. */
sop_operand sop_kv_scales(const sop_kv *kv, int32_t layer, int32_t which);
int64_t sop_kv_pages(const sop_kv *kv, int32_t group);
int64_t sop_kv_table_stride(const sop_kv *kv); /* pages that a sequence can list */

sop_status sop_kv_open(sop_kv *kv, int32_t *seq);
void sop_kv_close(sop_kv *kv, int32_t seq);
sop_status sop_kv_fork(sop_kv *kv, int32_t seq, int32_t *out);
bool sop_kv_is_open(const sop_kv *kv, int32_t seq);
int64_t sop_kv_length(const sop_kv *kv, int32_t seq);
sop_status sop_kv_truncate(sop_kv *kv, int32_t seq, int64_t length);

/* Make room for n more tokens: pages are listed, shared ones copied (through the queue), the length
 * stays. SOP_E_LIMIT with the numbers; then nothing has changed. */
sop_status sop_kv_reserve(sop_kv *kv, sop_queue *q, int32_t seq, int64_t n);
/* The n tokens are in: the length grows, pages out of every window go back. */
void sop_kv_commit(sop_kv *kv, int32_t seq, int64_t n);
/* The step failed: pages beyond the length go back. */
void sop_kv_rollback(sop_kv *kv, int32_t seq);

/* Start to copy a sequence's pages to the host, but those it shares; they are free once the copies are
 * done. Start to bring them back: reserve, fork and truncate do so too. Nothing to do: SOP_OK.
 * SOP_E_LIMIT when the pages do not suffice; then nothing has changed. */
sop_status sop_kv_offload(sop_kv *kv, int32_t seq);
sop_status sop_kv_restore(sop_kv *kv, int32_t seq);
bool sop_kv_is_away(const sop_kv *kv, int32_t seq);
/* Whether the pages suffice for n more tokens, those that become free when the copies are done included. */
bool sop_kv_fits(const sop_kv *kv, int32_t seq, int64_t n);

/* The slot of a position; the page list (-1 for pages given back) into table [table_stride]. */
int32_t sop_kv_slot(const sop_kv *kv, int32_t group, int32_t seq, int64_t position);
void sop_kv_table(const sop_kv *kv, int32_t group, int32_t seq, int32_t *table);

/* Pages of all groups: free and all. A test sums them after every step. */
void sop_kv_page_counts(const sop_kv *kv, int32_t group, int64_t *free_pages, int64_t *pages);
/* Pages of all groups that were sent to the host and brought back so far. */
void sop_kv_moved(const sop_kv *kv, uint64_t *out, uint64_t *in);

#endif
