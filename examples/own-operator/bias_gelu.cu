/* A row of bias_act for NVIDIA GPUs: bias + GELU (tanh, erf) and bias + residual + quick GELU, of f32, f16
 * or bf16. A thread has 16 bytes of a row, a block neighbouring ones; sums are in float32. Where a
 * pointer or a stride is not whole in 16 bytes, and at the end of a row, elements go one by one. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <sop/cuda.h>
#include <sop/plan.h>
#include <string.h>

enum { THREADS = 256 };

/* act(g) = g times a share; e <= 1, so that nothing overflows. */
template <int ACT> static __device__ float act_of(float g)
{
    if (ACT == SOP_ACT_GELU) return g * 0.5f * erfcf(g * -0.707106781f);
    const float x =
        ACT == SOP_ACT_QUICK_GELU ? 1.702f * g : g * fmaf(0.071354816f * g, g, 1.5957691f);
    const float e = expf(-fabsf(x));
    return g * __fdividef(x < 0 ? e : 1, 1 + e);
}

/* N elements of T, as they lie: in accesses of 16 bytes where `wide`. They are made floats where they are
 * used, behind all loads: so all are under way at once. */
template <typename T, int N> struct alignas(16) vec {
    T at[N];
};
template <typename T, int N> static __device__ vec<T, N> load(const T *p, bool wide, int n)
{
    vec<T, N> v;
    if (wide) {
#pragma unroll
        for (int k = 0; k < (int)sizeof v / 16; k++)
            reinterpret_cast<uint4 *>(&v)[k] = reinterpret_cast<const uint4 *>(p)[k];
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) v.at[i] = i < n ? p[i] : T(0.0f);
    }
    return v;
}
template <typename T, int N>
static __device__ void store(T *p, bool wide, int n, const float (&in)[N])
{
    vec<T, N> v;
#pragma unroll
    for (int i = 0; i < N; i++) v.at[i] = (T)in[i];
    if (wide) {
        uint4 whole;
        memcpy(&whole, v.at, sizeof whole);
        __stcg(reinterpret_cast<uint4 *>(p), whole); /* a plain one is split in four */
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < n) p[i] = v.at[i];
    }
}

template <typename T, int ACT>
static __global__ void bias_gelu(const sop_bias_act_desc d, int blocks, bool aligned, const T *x,
                                 const T *r, const float *bias, const int32_t *live, T *y)
{
    enum { N = 16 / sizeof(T) };
    const int64_t t = blockIdx.x / blocks;
    const int64_t i = ((int64_t)(blockIdx.x % blocks) * THREADS + threadIdx.x) * N;
    if (i >= d.dim || t >= (live ? *live : d.tokens)) return;
    const int n = d.dim - i < N ? (int)(d.dim - i) : N;
    const bool wide = aligned && n == N;
    const vec<T, N> xs = load<T, N>(x + t * d.x_stride + i, wide, n);
    vec<T, N> rs = {};
    vec<float, N> bs = {};
    if (r) rs = load<T, N>(r + t * d.r_stride + i, wide, n);
    if (bias) bs = load<float, N>(bias + i, wide, n);
    float v[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
        const float g = (float)xs.at[k] + bs.at[k], more = (float)rs.at[k];
        v[k] = d.residual == SOP_RESIDUAL_AFTER ? act_of<ACT>(g) + more : act_of<ACT>(g + more);
    }
    store(y + t * d.y_stride + i, wide, n, v);
}

static int64_t blocks_of(const sop_bias_act_desc *d)
{
    const int64_t each = THREADS * 16 / (int64_t)sop_dtype_bytes(d->x_dtype);
    return (d->dim + each - 1) / each;
}

template <typename T, int ACT> static sop_status launch(const sop_call *call)
{
    const sop_bias_act_desc *d = (const sop_bias_act_desc *)call->desc;
    const sop_operand *a = call->args;
    const int64_t blocks = blocks_of(d);
    uint64_t odd = 0; /* bits of any address or step that is no multiple of 16 bytes */
    for (int i = 0; i < SOP_BIAS_ACT_ROLES; i++)
        if (i != SOP_BIAS_ACT_LIVE) odd |= (uintptr_t)a[i].data;
    odd |= (uint64_t)(d->x_stride | d->r_stride | d->y_stride) * sizeof(T);
    bias_gelu<T, ACT><<<(unsigned)(d->tokens * blocks), THREADS, 0,
                        (cudaStream_t)sop_queue_stream(call->queue)>>>(
        *d, (int)blocks, (odd & 15) == 0, (const T *)a[SOP_BIAS_ACT_X].data,
        (const T *)a[SOP_BIAS_ACT_R].data, (const float *)a[SOP_BIAS_ACT_BIAS].data,
        (const int32_t *)a[SOP_BIAS_ACT_LIVE].data, (T *)a[SOP_BIAS_ACT_Y].data);
    return cudaGetLastError() == cudaSuccess ? SOP_OK : SOP_E_DEVICE;
}

template <typename T> static sop_status run_type(const sop_call *call)
{
    switch (((const sop_bias_act_desc *)call->desc)->act) {
    case SOP_ACT_GELU: return launch<T, SOP_ACT_GELU>(call);
    case SOP_ACT_GELU_TANH: return launch<T, SOP_ACT_GELU_TANH>(call);
    default: return launch<T, SOP_ACT_QUICK_GELU>(call);
    }
}

static sop_status run(const sop_call *call)
{
    const sop_bias_act_desc *d = (const sop_bias_act_desc *)call->desc;
    if (d->tokens == 0 || d->dim == 0) return SOP_OK;
    switch (d->x_dtype) {
    case SOP_F16: return run_type<__half>(call);
    case SOP_BF16: return run_type<__nv_bfloat16>(call);
    default: return run_type<float>(call);
    }
}

static const char *refuse(const void *desc)
{
    const sop_bias_act_desc *d = (const sop_bias_act_desc *)desc;
    if (d->x_dtype != d->y_dtype || d->r_dtype != d->y_dtype) return "types differ";
    if (d->x_dtype != SOP_F32 && d->x_dtype != SOP_F16 && d->x_dtype != SOP_BF16)
        return "a type is not f32, f16 or bf16";
    if (d->act != SOP_ACT_GELU && d->act != SOP_ACT_GELU_TANH && d->act != SOP_ACT_QUICK_GELU)
        return "the activation is no GELU";
    return d->dim > 0 && d->tokens > INT32_MAX / blocks_of(d) ? "too many blocks" : NULL;
}

static const char *const ops[] = {"bias_act"};
static const sop_row rows[] = {{.size = sizeof(sop_row),
                                .device = SOP_DEVICE_CUDA,
                                .name = "own:bias_gelu_cuda",
                                .route = "cuda",
                                .traits = SOP_ROW_INVARIANT,
                                .refuse = refuse,
                                .run = run}};

extern "C" {
SOP_API extern const sop_plugin sop_plugin_rows; /* a const of C++ would stay inside */
const sop_plugin sop_plugin_rows = {sizeof(sop_plugin), ops, rows, 1};
}
