#include "ops/attention/attention_cuda.cuh"
#include "ops/attention/prefill_plan.cuh"

/* What the plan says: CTAs, heads of a section; where in the scratch the tiles, the rounded queries and
 * the classes of a mask begin. */
enum { GRID, SECTION, TILES_AT, Q_AT, CLASSES_AT };

/* run is NULL when there is none for this head. */
static prefill_kernel kernel_for(const sop_attention_desc *d)
{
    const bool f16 = d->kv_dtype == SOP_F16,
               extra = d->cap > 0 || d->alibi || d->mask_heads || d->o_dtype == SOP_F32;
    if (d->k == 192 && d->v == 128) return sop_prefill_192_128(f16, extra);
    if (d->k != d->v) return {};
    switch (d->k) {
    case 64: return prefill_kernel_of<64, 64>(f16, extra);
    case 80: return sop_prefill_80(f16, extra);
    case 96: return sop_prefill_96(f16, extra);
    case 112: return sop_prefill_112(f16, extra);
    case 128: return prefill_kernel_of<128, 128>(f16, extra);
    case 160: return sop_prefill_160(f16, extra);
    case 192: return sop_prefill_192(f16, extra);
    case 256: return sop_prefill_256(f16, extra);
    default: return {};
    }
}

extern "C" const char *sop_attention_prefill_refuse(const void *desc)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    const char *why = sop_attention_refuse_16(d);
    if (why) return why;
    if (!kernel_for(d).run)
        return "heads are neither of 64 to 128 by 16, 160, 192 or 256, nor of 192 with values of 128";
    if (!(d->paths & (SOP_ROW_FLASH | SOP_ROW_RING))) return "no path of it is a candidate";
    if (d->page % 8) return "pages are no multiple of 8 tokens";
    if (d->window > INT32_MAX || d->max_kv > INT32_MAX - 256) return "sequences are too long";
    return NULL;
}

/* The heads of a section share KV heads whose keys and values stay in the L2 while all queries pass: 20 MB
 * of them, of 50. 4 x 4,096 tokens of 8 KV heads of 128 are 67 MB. */
static int64_t section_of(const sop_attention_desc *d)
{
    const int64_t keys = d->seqs * d->max_kv, slots = d->pages * d->page;
    const int64_t bytes = 2 * (d->k + d->v) * (keys < slots ? keys : slots);
    int64_t kv_heads = d->kv_heads;
    while (kv_heads > 1 && (d->kv_heads % kv_heads || kv_heads * bytes > 20000000)) kv_heads--;
    return kv_heads * (d->heads / d->kv_heads);
}

/* Tiles of queries, at most. */
static int64_t tiles_of(const sop_attention_desc *d)
{
    return d->tokens / PREFILL_ROWS + d->seqs + 1;
}

extern "C" sop_status sop_attention_prefill_plan(const void *desc, const int32_t *params,
                                                 const sop_facts *facts, size_t budget,
                                                 sop_split *split)
{
    const sop_attention_desc *d = (const sop_attention_desc *)desc;
    const prefill_kernel kernel = kernel_for(d);
    const int64_t tiles = tiles_of(d);
    (void)params;
    *split = {{facts->workers, section_of(d), 64}, 0};
    split->word[Q_AT] = 64 + (tiles * (int64_t)sizeof(prefill_tile) + 127) / 128 * 128;
    split->word[CLASSES_AT] = split->word[Q_AT];
    if (d->q_dtype == SOP_F32)
        split->word[CLASSES_AT] += (d->tokens * d->heads * d->k * 2 + 127) / 128 * 128;
    split->scratch_bytes = (size_t)split->word[CLASSES_AT];
    if (d->mask_heads)
        split->scratch_bytes +=
            (size_t)(d->mask_heads * tiles * sop_blocks(d->max_kv + 1, kernel.tile));
    return split->scratch_bytes <= budget ? SOP_OK : SOP_E_LIMIT;
}

/* Where tiles of keys are cut: where pages end, or at each unit when that would be boxes of too many sizes;
 * not at all when a tile ends with a page or before, the last of a sequence excepted. */
static void cut_tiles(const sop_attention_desc *d, int tile, prefill_args *p)
{
    p->unit = tile;
    if (d->table_stride != 1)
        for (int64_t rest = d->page % tile; rest;) {
            const int next = (int)(p->unit % rest);
            p->unit = (int)rest;
            rest = next;
        }
    p->cut = p->unit == tile ? tile : (int)d->page;
    if (p->cut < tile ? p->cut > PREFILL_SIZES * p->unit : tile > PREFILL_SIZES * p->unit)
        p->cut = p->unit;
    p->parts = (p->cut - p->unit + tile + p->cut - 1) / p->cut;
}

static sop_status maps_of(const sop_call *call, const void *q, int64_t q_head, int64_t q_stride,
                          int tile, const prefill_args *p, prefill_maps *maps)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    const int64_t q_dims[3] = {d->k, d->heads, d->tokens};
    const int64_t q_strides[2] = {2 * q_head, 2 * q_stride};
    const uint32_t q_box[3] = {64, 1, PREFILL_ROWS};
    const int64_t k_dims[4] = {d->k, d->page, d->kv_heads, d->pages};
    const int64_t v_dims[4] = {d->v, d->page, d->kv_heads, d->pages};
    const int64_t k_strides[3] = {2 * d->kp_token, 2 * d->kp_head, 2 * d->kp_page};
    const int64_t v_strides[3] = {2 * d->vp_token, 2 * d->vp_head, 2 * d->vp_page};
    sop_status s = sop_tensor_map(&maps->q, d->kv_dtype, q, 3, q_dims, q_strides, q_box);
    for (int i = 0; s == SOP_OK && i * p->unit < (p->cut < tile ? p->cut : tile); i++) {
        const uint32_t box[4] = {64, (uint32_t)((i + 1) * p->unit), 1, 1};
        s = sop_tensor_map(&maps->k[i], d->kv_dtype, call->args[SOP_ATTENTION_K_POOL].data, 4,
                           k_dims, k_strides, box);
        if (s == SOP_OK)
            s = sop_tensor_map(&maps->v[i], d->kv_dtype, call->args[SOP_ATTENTION_V_POOL].data, 4,
                               v_dims, v_strides, box);
    }
    return s;
}

template <typename T> static sop_status round_q(const sop_call *call, void *rounded)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    return sop_launch(sop_round_q<T>, (unsigned)d->tokens, 256, call,
                      (const float *)call->args[SOP_ATTENTION_Q].data, d->q_stride, d->q_head,
                      (int)d->heads, (int)d->k, (T *)rounded);
}

extern "C" sop_status sop_attention_prefill_sm90(const sop_call *call)
{
    const sop_attention_desc *d = (const sop_attention_desc *)call->desc;
    if (d->tokens == 0 || d->seqs == 0) return SOP_OK;
    if (d->pages == 0 || !sop_attention_aligned(call)) return sop_attention_cuda(call);
    const prefill_kernel kernel = kernel_for(d);
    char *scratch = (char *)call->scratch;
    prefill_maps maps;
    prefill_args p = {sop_attention_args_of(call)};
    const void *q = call->args[SOP_ATTENTION_Q].data;
    int64_t q_head = d->q_head, q_stride = d->q_stride;
    sop_status s = SOP_OK;
    p.state = (int *)scratch;
    p.tiles = (const prefill_tile *)(scratch + call->split->word[TILES_AT]);
    p.o_stride = d->o_stride, p.o_head = d->o_head, p.o_dtype = d->o_dtype;
    p.mask_stride = d->mask_stride, p.mask_head = d->mask_head, p.mask_dtype = d->mask_dtype;
    p.mask_group = (int)(d->mask_heads ? d->heads / d->mask_heads : 1);
    p.heads = (int)d->heads, p.group = (int)(d->heads / d->kv_heads);
    p.section = (int)call->split->word[SECTION];
    p.page = (int)d->page, p.table_stride = (int)d->table_stride;
    cut_tiles(d, kernel.tile, &p);
    p.window = (int)d->window, p.causal = d->causal;
    p.scale = d->scale, p.cap = d->cap;
    if (d->q_dtype == SOP_F32) {
        void *rounded = scratch + call->split->word[Q_AT];
        s = d->kv_dtype == SOP_F16 ? round_q<__half>(call, rounded)
                                   : round_q<__nv_bfloat16>(call, rounded);
        q = rounded, q_head = d->k, q_stride = d->heads * d->k;
    }
    if (s == SOP_OK) s = maps_of(call, q, q_head, q_stride, kernel.tile, &p, &maps);
    if (s == SOP_OK && d->mask_heads) {
        uint8_t *classes = (uint8_t *)scratch + call->split->word[CLASSES_AT];
        p.q_tiles = tiles_of(d), p.kv_tiles = sop_blocks(d->max_kv + 1, kernel.tile);
        p.classes = classes;
        s = sop_launch(sop_prefill_classes,
                       dim3((unsigned)p.kv_tiles, (unsigned)p.q_tiles, (unsigned)d->mask_heads),
                       256, call, p, (int)d->seqs, kernel.tile, classes);
    }
    if (s == SOP_OK)
        s = sop_launch(sop_prefill_plan, 1, 1024, call, p.a, (int)d->seqs, p.window, p.causal,
                       kernel.tile, (prefill_tile *)p.tiles, p.state);
    if (s != SOP_OK) return s;
    return sop_launch_cluster(kernel.run, (unsigned)call->split->word[GRID], PREFILL_THREADS,
                              (size_t)kernel.smem, 1, call, maps, p);
}
