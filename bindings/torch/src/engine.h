/* engine.h: from a desc to a run: devices, and plans that are kept. */
#ifndef SOP_TORCH_ENGINE_H
#define SOP_TORCH_ENGINE_H

#include <stdbool.h>

#include "sop/plan.h"

/* A plan for a desc on a device, kept for the next call with the same one. */
struct kept;

/* Where a call runs. */
struct place {
    sop_queue *queue;
    struct engine *engine;
    int32_t recording;
};

/* index: a CUDA device, with its stream, or the CPU: on PyTorch's threads, or on the caller's alone. */
enum { SOP_TORCH_CPU = -1, SOP_TORCH_SERIAL = -2 };
sop_status sop_torch_place(int32_t index, void *stream, struct place *out);

/* The plan of op for desc [op->desc_bytes], as it was before sop completed it; return it with put. */
sop_status sop_torch_get(const struct place *p, const sop_op *op, const void *desc,
                         struct kept **out);
void sop_torch_hold(struct kept *k); /* return it once more */
void sop_torch_put(struct kept *k);
/* Give the rows of a shared object to a device's planner; index -1 is both of the CPU. */
sop_status sop_torch_plugin(int32_t index, const char *path);
/* How often that happened: what was chosen before may be another now. */
uint64_t sop_torch_plugins(void);
size_t sop_torch_scratch(const struct kept *k);
sop_status sop_torch_run(const struct kept *k, const struct place *p, const sop_operand *args,
                         void *scratch);
/* Whether it may be kept: it was not chosen for a recording alone. */
bool sop_torch_planned(const struct kept *k);
/* The row that would run, and how many plans are kept. */
const char *sop_torch_row(const struct kept *k);
int64_t sop_torch_kept(void);

#endif
