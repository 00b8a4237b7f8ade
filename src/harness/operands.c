#include "harness/operands.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/cpu.h"
#include "core/op.h"
#include "harness/harness.h"

void sop_poison(void *data, size_t bytes, int32_t poison)
{
    unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++) p[i] = (unsigned char)(poison >> 8 * (i & 1));
}

uint64_t sop_unwritten(int32_t dtype)
{
    switch (dtype) {
    case SOP_F16: return 0x7d96;
    case SOP_BF16: return 0x7f96;
    case SOP_F32: return 0x7f967d96;
    case SOP_F64: return 0x7ff67f967d967d96;
    case SOP_I32: return 0x96967d96;
    case SOP_F8: return 0x7f;
    case SOP_I64: return 0x969696967d967d96;
    default: return 0x80;
    }
}

/* Blocks of dimension d. */
static int64_t extent(const sop_tensor *v, int32_t d)
{
    return d == v->ndim - 1 ? v->shape[d] / sop_dtype_block(v->dtype) : v->shape[d];
}

int64_t sop_view_blocks(const sop_tensor *v)
{
    int64_t n = v->ndim > 0;
    for (int32_t d = 0; d < v->ndim; d++) n *= extent(v, d);
    return n;
}

int64_t sop_view_at(const sop_tensor *v, int64_t i)
{
    int64_t at = 0;
    for (int32_t d = v->ndim - 1; d >= 0; d--) {
        const int64_t n = extent(v, d);
        at += i % n * v->stride[d];
        i /= n;
    }
    return at;
}

static double uniform(uint64_t *state)
{
    return (double)(sop_random(state) >> 11) * 0x1p-53;
}

static double normal(uint64_t *state)
{
    const double r = sqrt(-2 * log(1 - uniform(state)));
    return r * cos(6.283185307179586 * uniform(state));
}

static double value(sop_family family, uint64_t *state, double before, int64_t i)
{
    switch (family) {
    case SOP_FAMILY_UNIFORM: return uniform(state);
    case SOP_FAMILY_NORMAL: return normal(state);
    case SOP_FAMILY_FAR: return 1000 + uniform(state);
    case SOP_FAMILY_OUTLIERS: {
        const double v = normal(state) * (sop_random(state) % 64 ? 1 : 300);
        return v > 1000 ? 1000 : v < -1000 ? -1000 : v;
    }
    default: return i % 2 ? -before * (1 + 1e-3 * normal(state)) : normal(state);
    }
}

/* Where the f16 scales of a block stand; -1: no second one, or none. */
static void scales_at(int32_t dtype, int32_t at[2])
{
    at[0] = 0;
    at[1] = -1;
    switch (dtype) {
    case SOP_Q4_1:
    case SOP_Q5_1:
    case SOP_Q4_K:
    case SOP_Q5_K: at[1] = 2; break;
    case SOP_Q6_K: at[0] = 208; break;
    case SOP_I8_128:
    case SOP_F8_128: at[0] = -1; break;
    default: break;
    }
}

static float scale(uint64_t *state)
{
    const double sign = sop_random(state) >> 63 ? -1 : 1;
    return (float)(sign * (0.5 + uniform(state)) * 0x1p-6);
}

static void fill_block(unsigned char *block, int32_t dtype, uint64_t *state)
{
    const size_t bytes = sop_dtype_bytes(dtype);
    int32_t at[2];
    for (size_t i = 0; i < bytes; i++) block[i] = (unsigned char)(sop_random(state) >> 56);
    scales_at(dtype, at);
    for (int32_t k = 0; k < 2 && at[k] >= 0; k++) {
        const uint16_t h = sop_f32_to_f16(scale(state));
        memcpy(block + at[k], &h, sizeof h);
    }
    if (dtype == SOP_I8_128 || dtype == SOP_F8_128) {
        const float f = scale(state);
        memcpy(block, &f, sizeof f);
    }
    if (dtype == SOP_I4_128) block[2] %= 17, block[3] = 0; /* the zero point */
    for (size_t i = 4; i < bytes && dtype == SOP_F8_128; i++)
        if ((block[i] & 0x7f) == 0x7f) block[i] ^= 1; /* no NaN */
}

void sop_fill(const sop_tensor *v, sop_family family, uint64_t seed)
{
    const int64_t n = sop_view_blocks(v);
    uint64_t state = seed;
    double before = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = sop_view_at(v, i);
        if (sop_dtype_block(v->dtype) > 1) {
            fill_block((unsigned char *)v->data + (size_t)at * sop_dtype_bytes(v->dtype), v->dtype,
                       &state);
        } else if (v->dtype >= SOP_I8 && v->dtype != SOP_F8) {
            sop_store(v->data, v->dtype, at, 0);
        } else {
            sop_store(v->data, v->dtype, at, before = value(family, &state, before, i));
        }
    }
}

int32_t sop_droppable(const sop_op *op, int32_t role)
{
    _Alignas(16) unsigned char empty[SOP_MOST_DESC_BYTES] = {0};
    sop_tensor v;
    if (!(op->roles[role].flags & SOP_ROLE_OPTIONAL)) return 0;
    op->complete(empty);
    op->view(empty, role, &v);
    return v.ndim > 0;
}

/* A library that is not there, or does not know the shape, is a reason; all else comes again when the
 * row runs, and is a fault there. */
static const char *unprepared(sop_device *d, const sop_row *row, const void *desc)
{
    void *state = NULL;
    if (!row->prepare) return NULL;
    const sop_status status = row->prepare(desc, d, &state);
    if (status == SOP_OK && row->release) row->release(state);
    return status == SOP_E_NOT_FOUND || status == SOP_E_UNSUPPORTED ? sop_last_error() : NULL;
}

const char *sop_row_refusal(sop_device *d, const sop_row *row, const void *desc, char *text)
{
    sop_facts facts;
    d->ops->facts(d, &facts);
    if (row->device != facts.kind) return "runs on another device";
    if (row->span) return "covers several modules";
    if (row->needs & ~facts.features) {
        if (facts.kind != SOP_DEVICE_CPU) return "needs another card";
        (void)snprintf(text, 64, "needs %s", sop_cpu_text(row->needs));
        return text;
    }
    const char *why = row->refuse ? row->refuse(desc) : NULL;
    return why ? why : unprepared(d, row, desc);
}

int32_t sop_row_packs(const sop_row *row)
{
    return row->layout != 0 && row->layout != SOP_LAYOUT_PLAIN;
}
