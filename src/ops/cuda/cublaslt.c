/* cuBLASLt through dlopen. Its header is not needed, nor is it there beside every nvcc: the functions
 * and numbers below have been the same since its release 11. */
#include "ops/cuda/cublaslt.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "base/status.h"
#include "core/library.h"

/* Its enums. */
enum { R_32F = 0, R_16F = 2, R_16BF = 14 }; /* cudaDataType_t */
enum { COMPUTE_32F = 68 };                  /* cublasComputeType_t */
enum { OP_N = 0, OP_T = 1 };                /* cublasOperation_t */
enum { DESC_TRANSA = 3, DESC_TRANSB = 4 };  /* cublasLtMatmulDescAttributes_t */
enum { PREF_WORKSPACE = 1, PREF_REDUCTION = 3, PREF_ALIGN_A = 5 }; /* ...PreferenceAttributes_t */
enum { REDUCTION_COMPUTE_TYPE = 2 };                               /* cublasLtReductionScheme_t */

/* cublasLtMatmulHeuristicResult_t */
struct proposal {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
};

/* Each returns a cublasStatus_t, 0 for success; descriptors are pointers. */
struct functions {
    const char *(*text)(int status);
    int (*create)(void **handle);
    int (*product_create)(void **product, int compute, int scale);
    int (*product_set)(void *product, int attribute, const void *value, size_t bytes);
    int (*product_destroy)(void *product);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t columns, int64_t stride);
    int (*layout_destroy)(void *layout);
    int (*wish_create)(void **wish);
    int (*wish_set)(void *wish, int attribute, const void *value, size_t bytes);
    int (*wish_destroy)(void *wish);
    int (*propose)(void *handle, void *product, void *a, void *b, void *c, void *d, void *wish,
                   int most, struct proposal *out, int *n);
    int (*run)(void *handle, void *product, const void *alpha, const void *a, void *a_layout,
               const void *b, void *b_layout, const void *beta, const void *c, void *c_layout,
               void *d, void *d_layout, const void *algorithm, void *workspace,
               size_t workspace_bytes, void *stream);
};

struct sop_cublaslt {
    struct functions f;
    void *handle;
};

static sop_status fail(const struct functions *f, sop_status status, int error)
{
    return sop_fail(status, "cublaslt: %s", f->text(error));
}

static sop_status load(struct functions *f)
{
    static const char *const files[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    static const struct {
        const char *name;
        size_t at;
    } names[] = {
        {"cublasLtGetStatusString", offsetof(struct functions, text)},
        {"cublasLtCreate", offsetof(struct functions, create)},
        {"cublasLtMatmulDescCreate", offsetof(struct functions, product_create)},
        {"cublasLtMatmulDescSetAttribute", offsetof(struct functions, product_set)},
        {"cublasLtMatmulDescDestroy", offsetof(struct functions, product_destroy)},
        {"cublasLtMatrixLayoutCreate", offsetof(struct functions, layout_create)},
        {"cublasLtMatrixLayoutDestroy", offsetof(struct functions, layout_destroy)},
        {"cublasLtMatmulPreferenceCreate", offsetof(struct functions, wish_create)},
        {"cublasLtMatmulPreferenceSetAttribute", offsetof(struct functions, wish_set)},
        {"cublasLtMatmulPreferenceDestroy", offsetof(struct functions, wish_destroy)},
        {"cublasLtMatmulAlgoGetHeuristic", offsetof(struct functions, propose)},
        {"cublasLtMatmul", offsetof(struct functions, run)},
    };
    void *library;
    SOP_TRY(sop_library_open(files, &library));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = dlsym(library, names[i].name);
        if (!found)
            return sop_fail(SOP_E_UNSUPPORTED, "the cuBLASLt of this system has no %s",
                            names[i].name);
        memcpy((char *)f + names[i].at, &found, sizeof found);
    }
    return SOP_OK;
}

sop_status sop_cublaslt_open(int32_t device, const sop_cublaslt **out)
{
    enum { MOST_DEVICES = 64 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static sop_cublaslt opened[MOST_DEVICES];
    *out = NULL;
    if (device < 0 || device >= MOST_DEVICES)
        return sop_fail(SOP_E_UNSUPPORTED, "cublaslt: device %d, must be below %d", device,
                        MOST_DEVICES);
    sop_cublaslt *lt = &opened[device];
    (void)pthread_mutex_lock(&lock);
    sop_status status = SOP_OK;
    if (!lt->handle) status = load(&lt->f);
    if (status == SOP_OK && !lt->handle) {
        const int error = lt->f.create(&lt->handle);
        if (error) {
            lt->handle = NULL;
            status = fail(&lt->f, SOP_E_UNSUPPORTED, error);
        }
    }
    (void)pthread_mutex_unlock(&lock);
    if (status == SOP_OK) *out = lt;
    return status;
}

static int type_of(int32_t dtype)
{
    return dtype == SOP_F32 ? R_32F : dtype == SOP_F16 ? R_16F : R_16BF;
}

/* The library counts by columns: row-major y [tokens, n] is its [n, tokens], of w transposed and x;
 * a matrix that lies the other way is transposed by the other of them. */
static int describe(const struct functions *f, const sop_cublaslt_product *p,
                    sop_cublaslt_plan *out)
{
    const int32_t w_op = p->w_down ? OP_N : OP_T, x_op = p->x_down ? OP_T : OP_N;
    const uint64_t tokens = (uint64_t)p->tokens, n = (uint64_t)p->n, k = (uint64_t)p->k;
    int e = f->product_create(&out->product, COMPUTE_32F, R_32F);
    const int type = type_of(p->dtype);
    if (!e) e = f->product_set(out->product, DESC_TRANSA, &w_op, sizeof w_op);
    if (!e) e = f->product_set(out->product, DESC_TRANSB, &x_op, sizeof x_op);
    if (!e)
        e = p->w_down ? f->layout_create(&out->w, type, n, k, p->w_stride)
                      : f->layout_create(&out->w, type, k, n, p->w_stride);
    if (!e)
        e = p->x_down ? f->layout_create(&out->x, type, tokens, k, p->x_stride)
                      : f->layout_create(&out->x, type, k, tokens, p->x_stride);
    if (!e) e = f->layout_create(&out->y, type_of(p->y_dtype), n, tokens, p->y_stride);
    return e;
}

static int propose(const sop_cublaslt *lt, sop_cublaslt_plan *out, int *n)
{
    const struct functions *f = &lt->f;
    const uint64_t workspace = SOP_CUBLASLT_WORKSPACE;
    /* parts of a sum are added in f32, never in the type of y */
    const uint32_t reduction = REDUCTION_COMPUTE_TYPE, alignment = 16;
    struct proposal first = {.status = 0};
    void *wish;
    *n = 0;
    int e = f->wish_create(&wish);
    if (e) return e;
    e = f->wish_set(wish, PREF_WORKSPACE, &workspace, sizeof workspace);
    if (!e) e = f->wish_set(wish, PREF_REDUCTION, &reduction, sizeof reduction);
    for (int i = 0; i < 4 && !e; i++) /* of w, x, and y as it is read and written */
        e = f->wish_set(wish, PREF_ALIGN_A + i, &alignment, sizeof alignment);
    if (!e)
        e = f->propose(lt->handle, out->product, out->w, out->x, out->y, out->y, wish, 1, &first,
                       n);
    (void)f->wish_destroy(wish);
    if (e || first.status) return e ? e : first.status;
    memcpy(out->algorithm, first.algorithm, sizeof out->algorithm);
    out->workspace_bytes = first.workspace_bytes;
    return 0;
}

sop_status sop_cublaslt_plan_product(const sop_cublaslt *lt, const sop_cublaslt_product *p,
                                     sop_cublaslt_plan *out)
{
    int n = 0;
    *out = (sop_cublaslt_plan){.product = NULL};
    int e = describe(&lt->f, p, out);
    if (!e) e = propose(lt, out, &n);
    if (!e && n > 0) return SOP_OK;
    return sop_fail(SOP_E_UNSUPPORTED, "cublaslt has no way for m=%lld n=%lld k=%lld: %s",
                    (long long)p->tokens, (long long)p->n, (long long)p->k,
                    e ? lt->f.text(e) : "it proposes none");
}

void sop_cublaslt_unplan(const sop_cublaslt *lt, sop_cublaslt_plan *plan)
{
    void *const layouts[] = {plan->w, plan->x, plan->y};
    if (plan->product) (void)lt->f.product_destroy(plan->product);
    for (int i = 0; i < 3; i++)
        if (layouts[i]) (void)lt->f.layout_destroy(layouts[i]);
}

sop_status sop_cublaslt_run(const sop_cublaslt *lt, const sop_cublaslt_plan *plan, const void *x,
                            const void *w, void *y, void *workspace, void *stream)
{
    const float one = 1, zero = 0;
    const int e =
        lt->f.run(lt->handle, plan->product, &one, w, plan->w, x, plan->x, &zero, y, plan->y, y,
                  plan->y, plan->algorithm, workspace, plan->workspace_bytes, stream);
    return e ? fail(&lt->f, SOP_E_DEVICE, e) : SOP_OK;
}
