/* cuDNN through dlopen, by its graph API: tensors and operations are described one by one, and the library
 * finds a kernel for the whole. Its header is not needed: the functions and numbers below are those of its
 * release 9. The operations, in the order in which its attention kernels know them:
 *
 *     K, V <- pages         S = Q K^T         S = scale S
 *     S = row < q_length and column < kv_length ? S : -inf
 *     S = row + kv_length - q_length >= column ? S : -inf      causal
 *     M = max S   E = exp(S - M)   L = sum E   lse = M + log L   P = E / L   O = P V */
#include "ops/cuda/cudnn.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "core/library.h"

/* Its enums, by their own names without CUDNN_. */
enum { DATA_FLOAT = 0, DATA_HALF = 2, DATA_INT32 = 4, DATA_BFLOAT16 = 9, DATA_BOOLEAN = 11 };
enum {
    TYPE_HANDLE = 0,
    TYPE_DATA_TYPE = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INT64 = 3,
    TYPE_VOID_PTR = 6,
    TYPE_HEUR_MODE = 8,
    TYPE_POINTWISE_MODE = 14,
    TYPE_DESCRIPTOR = 15,
    TYPE_REDUCTION_OPERATOR = 18
};
enum {
    POINTWISE = 0,
    ENGINECFG = 3,
    ENGINEHEUR = 4,
    EXECUTION_PLAN = 5,
    OPERATION_POINTWISE = 13,
    OPERATIONGRAPH = 15,
    VARIANT_PACK = 16,
    TENSOR = 17,
    MATMUL = 18,
    OPERATION_MATMUL = 19,
    REDUCTION = 21,
    OPERATION_REDUCTION = 22,
    OPERATION_PAGED_CACHE_LOAD = 35
};
enum {
    POINTWISE_MODE = 0,
    POINTWISE_MATH_PREC = 1,
    POINTWISE_AXIS = 9,
    ENGINEHEUR_MODE = 200,
    ENGINEHEUR_GRAPH = 201,
    ENGINEHEUR_RESULTS = 202,
    PLAN_HANDLE = 400,
    PLAN_ENGINE_CONFIG = 401,
    PLAN_WORKSPACE_SIZE = 402,
    POINTWISE_DESC = 750,
    POINTWISE_X = 751,
    POINTWISE_B = 752,
    POINTWISE_Y = 753,
    POINTWISE_T = 758,
    GRAPH_HANDLE = 800,
    GRAPH_OPS = 801,
    TENSOR_ALIGNMENT = 900,
    TENSOR_TYPE = 901,
    TENSOR_DIMENSIONS = 902,
    TENSOR_STRIDES = 903,
    TENSOR_ID = 906,
    TENSOR_IS_VIRTUAL = 907,
    TENSOR_IS_BY_VALUE = 908,
    TENSOR_RAGGED_OFFSET = 913,
    PACK_IDS = 1000,
    PACK_POINTERS = 1001,
    PACK_WORKSPACE = 1003,
    MATMUL_COMP_TYPE = 1500,
    MATMUL_A = 1520,
    MATMUL_B = 1521,
    MATMUL_C = 1522,
    MATMUL_DESC = 1523,
    MATMUL_M_OVERRIDE = 1525,
    MATMUL_N_OVERRIDE = 1526,
    MATMUL_K_OVERRIDE = 1527,
    REDUCTION_OPERATOR = 1600,
    REDUCTION_COMP_TYPE = 1601,
    REDUCTION_X = 1610,
    REDUCTION_Y = 1611,
    REDUCTION_DESC = 1612,
    PAGED_CONTAINER = 1950,
    PAGED_Y = 1951,
    PAGED_SEQUENCE = 1952,
    PAGED_TABLE = 1953
};
enum {
    MODE_ADD = 0,
    MODE_MUL = 1,
    MODE_DIV = 6,
    MODE_SUB = 9,
    MODE_EXP = 13,
    MODE_LOG = 15,
    MODE_CMP_GE = 303,
    MODE_CMP_LT = 304,
    MODE_AND = 400,
    MODE_GEN_INDEX = 501,
    MODE_SELECT = 601
};
enum { REDUCE_ADD = 0, REDUCE_MAX = 3 };
enum { HEUR_MODE_A = 3 };

/* Each returns a cudnnStatus_t, 0 for success; descriptors are pointers. */
struct functions {
    void (*last)(char *text, size_t bytes);
    int (*create)(void **handle);
    int (*set_stream)(void *handle, void *stream);
    int (*make)(int type, void **descriptor);
    int (*destroy)(void *descriptor);
    int (*finalize)(void *descriptor);
    int (*set)(void *descriptor, int attribute, int type, int64_t n, const void *elements);
    int (*get)(const void *descriptor, int attribute, int type, int64_t n, int64_t *found,
               void *elements);
    int (*execute)(void *handle, void *plan, void *pack);
};

struct sop_cudnn {
    struct functions f;
    void *handle;
};

/* The tensors that are given; those between operations count on from the last. */
enum {
    T_Q = 1,
    T_K,
    T_V,
    T_O,
    T_LSE,
    T_SCALE,
    T_HIDDEN,
    T_Q_LENGTH,
    T_KV_LENGTH,
    T_TABLE_K,
    T_TABLE_V,
    T_Q_AT,
    T_O_AT,
    T_LSE_AT,
    T_GIVEN
};

enum { MOST_DESCRIPTORS = 128, MOST_WAYS = 8 };

struct sop_cudnn_plan {
    const sop_cudnn *dnn;
    void *plan; /* one of those below */
    void *descriptors[MOST_DESCRIPTORS];
    int n;
    int64_t workspace_bytes;
    float scale, hidden; /* given by address */
};

/* A graph in the making; once something failed, nothing more is done. */
struct graph {
    const struct functions *f;
    sop_cudnn_plan *plan;
    void *ops[32];
    int n_ops, error;
    int64_t next;               /* name of the next tensor between operations */
    int64_t rows[4], scores[4]; /* extents of [b, h, q, 1] and [b, h, q, kv] */
};

static sop_status load(struct functions *f)
{
    static const char *const files[] = {"libcudnn.so.9", NULL};
    static const struct {
        const char *name;
        size_t at;
    } names[] = {
        {"cudnnGetLastErrorString", offsetof(struct functions, last)},
        {"cudnnCreate", offsetof(struct functions, create)},
        {"cudnnSetStream", offsetof(struct functions, set_stream)},
        {"cudnnBackendCreateDescriptor", offsetof(struct functions, make)},
        {"cudnnBackendDestroyDescriptor", offsetof(struct functions, destroy)},
        {"cudnnBackendFinalize", offsetof(struct functions, finalize)},
        {"cudnnBackendSetAttribute", offsetof(struct functions, set)},
        {"cudnnBackendGetAttribute", offsetof(struct functions, get)},
        {"cudnnBackendExecute", offsetof(struct functions, execute)},
    };
    void *library;
    SOP_TRY(sop_library_open(files, &library));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = dlsym(library, names[i].name);
        if (!found)
            return sop_fail(SOP_E_UNSUPPORTED, "the cuDNN of this system has no %s", names[i].name);
        memcpy((char *)f + names[i].at, &found, sizeof found);
    }
    return SOP_OK;
}

static sop_status fail(const struct functions *f, sop_status status, int error)
{
    char text[256] = "";
    f->last(text, sizeof text);
    text[strcspn(text, "\n")] = 0;
    return sop_fail(status, "cudnn: status %d: %s", error, text);
}

sop_status sop_cudnn_open(int32_t device, const sop_cudnn **out)
{
    enum { MOST_DEVICES = 64 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static sop_cudnn opened[MOST_DEVICES];
    *out = NULL;
    if (device < 0 || device >= MOST_DEVICES)
        return sop_fail(SOP_E_UNSUPPORTED, "cudnn: device %d, must be below %d", device,
                        MOST_DEVICES);
    sop_cudnn *dnn = &opened[device];
    (void)pthread_mutex_lock(&lock);
    sop_status status = SOP_OK;
    if (!dnn->handle) status = load(&dnn->f);
    if (status == SOP_OK && !dnn->handle) {
        const int error = dnn->f.create(&dnn->handle);
        if (error) {
            dnn->handle = NULL;
            status = fail(&dnn->f, SOP_E_UNSUPPORTED, error);
        }
    }
    (void)pthread_mutex_unlock(&lock);
    if (status == SOP_OK) *out = dnn;
    return status;
}

static void *make(struct graph *g, int type)
{
    void *d = NULL;
    if (!g->error && g->plan->n == MOST_DESCRIPTORS) g->error = -1;
    if (!g->error) g->error = g->f->make(type, &d);
    if (d) g->plan->descriptors[g->plan->n++] = d;
    return d;
}

static void set(struct graph *g, void *d, int attribute, int type, int64_t n, const void *elements)
{
    if (!g->error) g->error = g->f->set(d, attribute, type, n, elements);
}

/* A descriptor as an attribute; NULL is none. */
static void refer(struct graph *g, void *d, int attribute, void *to)
{
    if (to) set(g, d, attribute, TYPE_DESCRIPTOR, 1, &to);
}

static void *done(struct graph *g, void *d)
{
    if (!g->error) g->error = g->f->finalize(d);
    return d;
}

enum { GIVEN, VIRTUAL, BY_VALUE };

static void *tensor(struct graph *g, int64_t id, int type, const int64_t *dims,
                    const int64_t *strides, int kind, void *ragged)
{
    const int64_t alignment = 16;
    const char yes = 1;
    void *t = make(g, TENSOR);
    set(g, t, TENSOR_TYPE, TYPE_DATA_TYPE, 1, &type);
    set(g, t, TENSOR_DIMENSIONS, TYPE_INT64, 4, dims);
    set(g, t, TENSOR_STRIDES, TYPE_INT64, 4, strides);
    set(g, t, TENSOR_ID, TYPE_INT64, 1, &id);
    set(g, t, TENSOR_ALIGNMENT, TYPE_INT64, 1, &alignment);
    if (kind == VIRTUAL) set(g, t, TENSOR_IS_VIRTUAL, TYPE_BOOLEAN, 1, &yes);
    if (kind == BY_VALUE) set(g, t, TENSOR_IS_BY_VALUE, TYPE_BOOLEAN, 1, &yes);
    refer(g, t, TENSOR_RAGGED_OFFSET, ragged);
    return done(g, t);
}

/* What goes from one operation to the next, dense. */
static void *between(struct graph *g, int type, const int64_t *dims)
{
    const int64_t strides[4] = {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
    return tensor(g, g->next++, type, dims, strides, VIRTUAL, NULL);
}

static void *list(struct graph *g, int64_t id, int64_t n)
{
    const int64_t dims[4] = {n, 1, 1, 1}, strides[4] = {1, 1, 1, 1};
    return tensor(g, id, DATA_INT32, dims, strides, GIVEN, NULL);
}

static void *number(struct graph *g, int64_t id)
{
    const int64_t one[4] = {1, 1, 1, 1};
    return tensor(g, id, DATA_FLOAT, one, one, BY_VALUE, NULL);
}

static void add(struct graph *g, void *op)
{
    g->ops[g->n_ops++] = done(g, op);
}

/* y = mode(x, b), or t ? x : b. axis: of GEN_INDEX. Returns y. */
static void *pointwise_to(struct graph *g, int mode, int compute, int64_t axis, void *x, void *b,
                          void *t, void *y)
{
    void *how = make(g, POINTWISE), *op = make(g, OPERATION_POINTWISE);
    set(g, how, POINTWISE_MODE, TYPE_POINTWISE_MODE, 1, &mode);
    set(g, how, POINTWISE_MATH_PREC, TYPE_DATA_TYPE, 1, &compute);
    if (mode == MODE_GEN_INDEX) set(g, how, POINTWISE_AXIS, TYPE_INT64, 1, &axis);
    (void)done(g, how);
    refer(g, op, POINTWISE_DESC, how);
    refer(g, op, POINTWISE_X, x);
    refer(g, op, POINTWISE_B, b);
    refer(g, op, POINTWISE_T, t);
    refer(g, op, POINTWISE_Y, y);
    add(g, op);
    return y;
}

static void *scores(struct graph *g, int mode, void *x, void *b, void *t)
{
    return pointwise_to(g, mode, DATA_FLOAT, 0, x, b, t, between(g, DATA_FLOAT, g->scores));
}

static void *indices(struct graph *g, int mode, int64_t axis, void *x, void *b)
{
    return pointwise_to(g, mode, DATA_INT32, axis, x, b, NULL, between(g, DATA_INT32, g->scores));
}

static void *truth(struct graph *g, int mode, void *x, void *b)
{
    return pointwise_to(g, mode, DATA_BOOLEAN, 0, x, b, NULL, between(g, DATA_BOOLEAN, g->scores));
}

static void *reduce(struct graph *g, int how, void *x)
{
    const int type = DATA_FLOAT;
    void *d = make(g, REDUCTION), *op = make(g, OPERATION_REDUCTION);
    void *y = between(g, DATA_FLOAT, g->rows);
    set(g, d, REDUCTION_OPERATOR, TYPE_REDUCTION_OPERATOR, 1, &how);
    set(g, d, REDUCTION_COMP_TYPE, TYPE_DATA_TYPE, 1, &type);
    (void)done(g, d);
    refer(g, op, REDUCTION_DESC, d);
    refer(g, op, REDUCTION_X, x);
    refer(g, op, REDUCTION_Y, y);
    add(g, op);
    return y;
}

static void product(struct graph *g, void *a, void *b, void *c, void *m, void *n, void *k)
{
    const int type = DATA_FLOAT;
    void *d = make(g, MATMUL), *op = make(g, OPERATION_MATMUL);
    set(g, d, MATMUL_COMP_TYPE, TYPE_DATA_TYPE, 1, &type);
    (void)done(g, d);
    refer(g, op, MATMUL_DESC, d);
    refer(g, op, MATMUL_A, a);
    refer(g, op, MATMUL_B, b);
    refer(g, op, MATMUL_C, c);
    refer(g, op, MATMUL_M_OVERRIDE, m);
    refer(g, op, MATMUL_N_OVERRIDE, n);
    refer(g, op, MATMUL_K_OVERRIDE, k);
    add(g, op);
}

static void pages(struct graph *g, void *container, void *table, void *length, void *y)
{
    void *op = make(g, OPERATION_PAGED_CACHE_LOAD);
    refer(g, op, PAGED_CONTAINER, container);
    refer(g, op, PAGED_TABLE, table);
    refer(g, op, PAGED_SEQUENCE, length);
    refer(g, op, PAGED_Y, y);
    add(g, op);
}

static void describe(struct graph *g, const sop_cudnn_attention *a)
{
    const int type = a->dtype == SOP_F16 ? DATA_HALF : DATA_BFLOAT16;
    const int64_t b = a->seqs, h = a->heads, s = a->tokens, kv = a->max_kv, kh = a->kv_heads;
    const int64_t listed = (kv + a->page - 1) / a->page;
    const int64_t q_dims[4] = {b, h, s, a->k};
    const int64_t q_strides[4] = {s * a->q_stride, a->q_head, a->q_stride, 1};
    const int64_t o_strides[4] = {s * a->o_stride, a->o_head, a->o_stride, 1};
    const int64_t lse_strides[4] = {s * h, 1, h, 1};
    const int64_t pool_dims[4] = {a->pages, kh, a->page, a->k};
    const int64_t kp_strides[4] = {a->kp_page, a->kp_head, a->kp_token, 1};
    const int64_t vp_strides[4] = {a->vp_page, a->vp_head, a->vp_token, 1};
    const int64_t table_dims[4] = {b, 1, listed, 1};
    const int64_t table_strides[4] = {a->table_stride, a->table_stride, 1, 1};
    const int64_t kt_dims[4] = {b, kh, a->k, kv},
                  kt_strides[4] = {a->k * kv * kh, a->k * kv, 1, a->k};
    const int64_t v_dims[4] = {b, kh, kv, a->k};
    memcpy(g->rows, (const int64_t[]){b, h, s, 1}, sizeof g->rows);
    memcpy(g->scores, (const int64_t[]){b, h, s, kv}, sizeof g->scores);

    void *q_length = list(g, T_Q_LENGTH, b), *kv_length = list(g, T_KV_LENGTH, b);
    void *q = tensor(g, T_Q, type, q_dims, q_strides, GIVEN, list(g, T_Q_AT, b + 1));
    void *o = tensor(g, T_O, type, q_dims, o_strides, GIVEN, list(g, T_O_AT, b + 1));
    void *lse = tensor(g, T_LSE, DATA_FLOAT, g->rows, lse_strides, GIVEN, list(g, T_LSE_AT, b + 1));
    void *k_pool = tensor(g, T_K, type, pool_dims, kp_strides, GIVEN, NULL);
    void *v_pool = tensor(g, T_V, type, pool_dims, vp_strides, GIVEN, NULL);
    void *table_k = tensor(g, T_TABLE_K, DATA_INT32, table_dims, table_strides, GIVEN, NULL);
    void *table_v = tensor(g, T_TABLE_V, DATA_INT32, table_dims, table_strides, GIVEN, NULL);
    void *scale = number(g, T_SCALE), *hidden = number(g, T_HIDDEN);

    void *kt = tensor(g, g->next++, type, kt_dims, kt_strides, VIRTUAL, NULL);
    void *v = between(g, type, v_dims), *raw = between(g, DATA_FLOAT, g->scores);
    pages(g, k_pool, table_k, kv_length, kt);
    product(g, q, kt, raw, q_length, kv_length, NULL);
    void *z = scores(g, MODE_MUL, raw, scale, NULL);

    void *row = indices(g, MODE_GEN_INDEX, 2, z, NULL);
    void *column = indices(g, MODE_GEN_INDEX, 3, z, NULL);
    void *there = truth(g, MODE_AND, truth(g, MODE_CMP_LT, row, q_length),
                        truth(g, MODE_CMP_LT, column, kv_length));
    z = scores(g, MODE_SELECT, z, hidden, there);
    if (a->causal) {
        row = pointwise_to(g, MODE_GEN_INDEX, DATA_FLOAT, 2, z, NULL, NULL,
                           between(g, DATA_INT32, g->scores));
        column = pointwise_to(g, MODE_GEN_INDEX, DATA_FLOAT, 3, z, NULL, NULL,
                              between(g, DATA_INT32, g->scores));
        row = indices(g, MODE_ADD, 0, row, kv_length);
        row = indices(g, MODE_SUB, 0, row, q_length);
        z = scores(g, MODE_SELECT, z, hidden, truth(g, MODE_CMP_GE, row, column));
    }
    void *most = reduce(g, REDUCE_MAX, z);
    void *e = scores(g, MODE_EXP, scores(g, MODE_SUB, z, most, NULL), NULL, NULL);
    void *sum = reduce(g, REDUCE_ADD, e);
    void *log_sum =
        pointwise_to(g, MODE_LOG, DATA_FLOAT, 0, sum, NULL, NULL, between(g, DATA_FLOAT, g->rows));
    (void)pointwise_to(g, MODE_ADD, DATA_FLOAT, 0, most, log_sum, NULL, lse);
    void *p = pointwise_to(g, MODE_DIV, DATA_FLOAT, 0, e, sum, NULL, between(g, type, g->scores));
    pages(g, v_pool, table_v, kv_length, v);
    product(g, p, v, o, q_length, NULL, kv_length);
}

/* The first of the library's proposals that it can also make. */
static void choose(struct graph *g, void *handle)
{
    const int mode = HEUR_MODE_A;
    void *ways[MOST_WAYS] = {NULL}, *graph = make(g, OPERATIONGRAPH), *ask = make(g, ENGINEHEUR);
    int64_t n = 0;
    set(g, graph, GRAPH_HANDLE, TYPE_HANDLE, 1, &handle);
    set(g, graph, GRAPH_OPS, TYPE_DESCRIPTOR, g->n_ops, g->ops);
    (void)done(g, graph);
    refer(g, ask, ENGINEHEUR_GRAPH, graph);
    set(g, ask, ENGINEHEUR_MODE, TYPE_HEUR_MODE, 1, &mode);
    (void)done(g, ask);
    for (int i = 0; i < MOST_WAYS; i++) ways[i] = make(g, ENGINECFG);
    if (!g->error)
        g->error = g->f->get(ask, ENGINEHEUR_RESULTS, TYPE_DESCRIPTOR, MOST_WAYS, &n, ways);
    if (!g->error && n < 1) g->error = -1;
    for (int64_t i = 0; i < n && i < MOST_WAYS && !g->plan->plan; i++) {
        g->error = 0;
        void *plan = make(g, EXECUTION_PLAN);
        set(g, plan, PLAN_HANDLE, TYPE_HANDLE, 1, &handle);
        refer(g, plan, PLAN_ENGINE_CONFIG, ways[i]);
        (void)done(g, plan);
        if (!g->error)
            g->error = g->f->get(plan, PLAN_WORKSPACE_SIZE, TYPE_INT64, 1, &(int64_t){0},
                                 &g->plan->workspace_bytes);
        if (!g->error) g->plan->plan = plan;
    }
}

sop_status sop_cudnn_plan_attention(const sop_cudnn *dnn, const sop_cudnn_attention *a,
                                    sop_cudnn_plan **out)
{
    *out = NULL;
    sop_cudnn_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return sop_fail(SOP_E_NOMEM, "cudnn: a plan");
    struct graph g = {.f = &dnn->f, .plan = plan, .next = T_GIVEN};
    plan->dnn = dnn;
    plan->scale = a->scale;
    plan->hidden = -INFINITY;
    describe(&g, a);
    choose(&g, dnn->handle);
    if (g.error) {
        sop_cudnn_unplan(plan);
        return fail(&dnn->f, SOP_E_UNSUPPORTED, g.error);
    }
    *out = plan;
    return SOP_OK;
}

void sop_cudnn_unplan(sop_cudnn_plan *plan)
{
    if (!plan) return;
    while (plan->n > 0) (void)plan->dnn->f.destroy(plan->descriptors[--plan->n]);
    free(plan);
}

size_t sop_cudnn_workspace(const sop_cudnn_plan *plan)
{
    return (size_t)plan->workspace_bytes;
}

sop_status sop_cudnn_run(const sop_cudnn_plan *plan, const sop_cudnn_operands *x, void *stream)
{
    const struct functions *f = &plan->dnn->f;
    static const int64_t ids[] = {T_Q,       T_K,      T_V,        T_O,         T_LSE,
                                  T_SCALE,   T_HIDDEN, T_Q_LENGTH, T_KV_LENGTH, T_TABLE_K,
                                  T_TABLE_V, T_Q_AT,   T_O_AT,     T_LSE_AT};
    const void *pointers[] = {x->q,         x->k_pool,     x->v_pool,   x->o,         x->lse,
                              &plan->scale, &plan->hidden, x->q_length, x->kv_length, x->table,
                              x->table,     x->q_at,       x->o_at,     x->lse_at};
    const int64_t n = (int64_t)(sizeof ids / sizeof *ids);
    void *pack = NULL;
    int e = f->set_stream(plan->dnn->handle, stream);
    if (!e) e = f->make(VARIANT_PACK, &pack);
    if (!e) e = f->set(pack, PACK_IDS, TYPE_INT64, n, ids);
    if (!e) e = f->set(pack, PACK_POINTERS, TYPE_VOID_PTR, n, pointers);
    if (!e) e = f->set(pack, PACK_WORKSPACE, TYPE_VOID_PTR, 1, &x->workspace);
    if (!e) e = f->finalize(pack);
    if (!e) e = f->execute(plan->dnn->handle, plan->plan, pack);
    if (pack) (void)f->destroy(pack);
    return e ? fail(f, SOP_E_DEVICE, e) : SOP_OK;
}
