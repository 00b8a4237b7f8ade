/* The decoder of a model as one operator: the library's super operator over parameters that stay PyTorch's,
 * on PyTorch's stream. Python (superop/stack.py) calls these functions directly. */
#include <pthread.h>
#include <stdlib.h>

#include "engine.h"
#include "sop/model.h"

struct stack_tensor {
    const char *name, *dtype; /* dtype: "bf16" */
    void *data;
    int64_t rows, cols; /* rows 0: a vector */
};

struct stack {
    pthread_mutex_t lock;
    sop_runtime *runtime;
    sop_model *model;
    sop_super *super;
    sop_super_facts facts;
    sop_step_item *items; /* [max_seqs] */
};

struct stack_limits {
    int64_t ctx, seqs, tokens, kv_tokens;
};

typedef void stack_line_fn(const char *module, int32_t layer, int32_t repeats, const char *row);

SOP_API const char *sop_torch_stack_open(int32_t index, void *stream, const char *config,
                                         const struct stack_tensor *tensors, int64_t n,
                                         const struct stack_limits *limits, struct stack **out);
SOP_API void sop_torch_stack_close(struct stack *k);
SOP_API const char *sop_torch_stack_put(struct stack *k, int32_t n, const int32_t *seqs,
                                        const int32_t *counts, const int32_t *wants,
                                        const void *ids, const void *pos, void *logits);
SOP_API int32_t sop_torch_stack_begin(struct stack *k);
SOP_API void sop_torch_stack_end(struct stack *k, int32_t seq);
SOP_API const char *sop_torch_stack_extend(struct stack *k, int32_t seq, int64_t n);
SOP_API const char *sop_torch_stack_cut(struct stack *k, int32_t seq, int64_t length);
SOP_API int64_t sop_torch_stack_pages(struct stack *k, int32_t seq, int32_t *pages, int64_t cap);
SOP_API void *sop_torch_stack_pool(const struct stack *k, int32_t layer, int32_t which,
                                   int64_t *shape);
SOP_API int64_t sop_torch_stack_bytes(const struct stack *k);
SOP_API const char *sop_torch_stack_explain(struct stack *k, int32_t seqs, int64_t tokens,
                                            int64_t length, stack_line_fn *fn);

/** Give a stack back; its sequences are gone with it. */
void sop_torch_stack_close(struct stack *k)
{
    if (!k) return;
    sop_super_destroy(k->super);
    sop_model_close(k->model);
    sop_runtime_destroy(k->runtime);
    (void)pthread_mutex_destroy(&k->lock);
    free(k->items);
    free(k);
}

static sop_status lend(struct stack *k, const char *config, const struct stack_tensor *tensors,
                       int64_t n)
{
    sop_model_tensor *list = calloc((size_t)n + 1, sizeof *list);
    if (!list) return SOP_E_NOMEM;
    for (int64_t i = 0; i < n; i++) {
        const struct stack_tensor *t = &tensors[i];
        const int32_t dtype = sop_dtype_of(t->dtype), vector = t->rows == 0;
        const int64_t all = (vector ? 1 : t->rows) * t->cols;
        list[i].name = t->name;
        list[i].view = (sop_tensor){.data = t->data,
                                    .bytes = (size_t)all * sop_dtype_bytes(dtype),
                                    .dtype = dtype,
                                    .ndim = vector ? 1 : 2,
                                    .shape = {vector ? t->cols : t->rows, vector ? 0 : t->cols},
                                    .stride = {vector ? 1 : t->cols, vector ? 0 : 1}};
    }
    const sop_status status = sop_model_of(k->runtime, config, list, n, &k->model);
    free(list);
    return status;
}

static sop_status start(struct stack *k, int32_t index, void *stream, const char *config,
                        const struct stack_tensor *tensors, int64_t n,
                        const struct stack_limits *limits)
{
    struct place place = {0};
    sop_config c;
    sop_config_defaults(&c);
    c.guard = SOP_GUARD_OFF; /* what is not finite is the caller's, as everywhere in PyTorch */
    c.max_step_tokens = (int32_t)limits->tokens;
    for (int64_t i = 0; i < n; i++) /* float32 stays what it is */
        if (tensors[i].rows && sop_dtype_of(tensors[i].dtype) == SOP_F32)
            c.numerics = SOP_NUMERICS_EXACT;
    sop_status status = sop_torch_place(index, stream, &place);
    if (status == SOP_OK) status = sop_runtime_create(&c, place.queue->device, NULL, &k->runtime);
    if (status == SOP_OK) status = lend(k, config, tensors, n);
    const sop_limits most = {.ctx = limits->ctx,
                             .max_seqs = (int32_t)limits->seqs,
                             .max_tokens = (int32_t)limits->tokens,
                             .logits_only = 1,
                             .kv_tokens = limits->kv_tokens,
                             .queue = index < 0 ? NULL : place.queue};
    if (status == SOP_OK) status = sop_model_super(k->model, &most, &k->super);
    if (status != SOP_OK) return status;
    sop_super_facts_of(k->super, &k->facts);
    k->items = calloc((size_t)k->facts.max_seqs, sizeof *k->items);
    return k->items ? SOP_OK : SOP_E_NOMEM;
}

/** A stack of these parameters on a device (-1: the CPU), its steps on a stream of CUDA's. NULL, or what is
 * wrong. */
const char *sop_torch_stack_open(int32_t index, void *stream, const char *config,
                                 const struct stack_tensor *tensors, int64_t n,
                                 const struct stack_limits *limits, struct stack **out)
{
    *out = NULL;
    struct stack *k = calloc(1, sizeof *k);
    if (!k) return "no memory";
    (void)pthread_mutex_init(&k->lock, NULL);
    if (start(k, index, stream, config, tensors, n, limits) == SOP_OK) {
        *out = k;
        return NULL;
    }
    const char *why = sop_last_error();
    sop_torch_stack_close(k);
    return why;
}

/** A step of n sequences: counts tokens of each, whose ids, positions (or NULL) and rows of output lie on the
 * device. NULL, or what is wrong: then nothing has changed. */
const char *sop_torch_stack_put(struct stack *k, int32_t n, const int32_t *seqs,
                                const int32_t *counts, const int32_t *wants, const void *ids,
                                const void *pos, void *logits)
{
    if (n > k->facts.max_seqs) return "more sequences than the stack has room for";
    (void)pthread_mutex_lock(&k->lock);
    for (int32_t i = 0; i < n; i++)
        k->items[i] = (sop_step_item){.seq = seqs[i], .n_ids = counts[i], .want = wants[i]};
    const sop_status status = sop_super_put(k->super, k->items, n, ids, pos, logits);
    (void)pthread_mutex_unlock(&k->lock);
    return status == SOP_OK ? NULL : sop_last_error();
}

/** A new sequence, or -1 when all are open. */
int32_t sop_torch_stack_begin(struct stack *k)
{
    int32_t seq = -1;
    (void)pthread_mutex_lock(&k->lock);
    if (sop_super_open(k->super, &seq) != SOP_OK) seq = -1;
    (void)pthread_mutex_unlock(&k->lock);
    return seq;
}

void sop_torch_stack_end(struct stack *k, int32_t seq)
{
    (void)pthread_mutex_lock(&k->lock);
    sop_super_close(k->super, seq);
    (void)pthread_mutex_unlock(&k->lock);
}

/** Room for n tokens whose keys and values the caller writes. */
const char *sop_torch_stack_extend(struct stack *k, int32_t seq, int64_t n)
{
    (void)pthread_mutex_lock(&k->lock);
    const sop_status status = sop_super_extend(k->super, seq, n);
    (void)pthread_mutex_unlock(&k->lock);
    return status == SOP_OK ? NULL : sop_last_error();
}

/** Forget what stands behind the first tokens. */
const char *sop_torch_stack_cut(struct stack *k, int32_t seq, int64_t length)
{
    (void)pthread_mutex_lock(&k->lock);
    const sop_status status = sop_super_truncate(k->super, seq, length);
    (void)pthread_mutex_unlock(&k->lock);
    return status == SOP_OK ? NULL : sop_last_error();
}

/** The pages of a sequence, the same in all layers of a stack without windows. */
int64_t sop_torch_stack_pages(struct stack *k, int32_t seq, int32_t *pages, int64_t cap)
{
    (void)pthread_mutex_lock(&k->lock);
    const int64_t n = sop_super_pages(k->super, seq, 0, pages, cap);
    (void)pthread_mutex_unlock(&k->lock);
    return n;
}

/** Keys (0) or values (1) of a layer, and their shape [pages, heads, page, channels]. */
void *sop_torch_stack_pool(const struct stack *k, int32_t layer, int32_t which, int64_t *shape)
{
    sop_tensor t;
    sop_super_pool(k->super, layer, which, &t);
    for (int i = 0; i < 4; i++) shape[i] = t.shape[i];
    return t.data;
}

/** Bytes that it holds on the device, without the parameters. */
int64_t sop_torch_stack_bytes(const struct stack *k)
{
    sop_memory m;
    sop_super_memory(k->super, &m);
    return (int64_t)m.pools;
}

struct telling {
    stack_line_fn *fn;
};

static void tell(void *ctx, const sop_explain_line *line)
{
    const struct telling *t = ctx;
    if (!line->skipped) t->fn(line->module, line->layer, line->repeats, line->variant);
}

/** Tell fn what a step of seqs sequences with so many tokens each would run. */
const char *sop_torch_stack_explain(struct stack *k, int32_t seqs, int64_t tokens, int64_t length,
                                    stack_line_fn *fn)
{
    struct telling t = {fn};
    (void)pthread_mutex_lock(&k->lock);
    const sop_status status = sop_super_explain(k->super, seqs, tokens, length, tell, &t);
    (void)pthread_mutex_unlock(&k->lock);
    return status == SOP_OK ? NULL : sop_last_error();
}
