/* A library from outside, with one row: found by dlopen, and gone when it is. */
#include <stddef.h>
#include <string.h>

#include "sop/plan.h"

static const char *refuse(const void *desc)
{
    const sop_add_desc *d = desc;
    return d->a_dtype || d->b_dtype || d->y_dtype ? "the vendor adds f32 only" : NULL;
}

static sop_status run(const sop_call *call)
{
    const sop_add_desc *d = call->desc;
    const int32_t *live = call->args[SOP_ADD_LIVE].data;
    for (int64_t t = 0; t < (live && *live < d->tokens ? *live : d->tokens); t++) {
        const float *a = (const float *)call->args[SOP_ADD_A].data + t * d->a_stride;
        const float *b = (const float *)call->args[SOP_ADD_B].data + t * d->b_stride;
        float *y = (float *)call->args[SOP_ADD_Y].data + t * d->y_stride;
        for (int64_t i = 0; i < d->dim; i++) y[i] = a[i] + b[i];
    }
    return SOP_OK;
}

static const char *const ops[] = {"add"};
static const sop_row rows[] = {{.size = sizeof(sop_row),
                                .device = SOP_DEVICE_CPU,
                                .name = "vendor:add_f32",
                                .route = "vendor",
                                .traits = SOP_ROW_INVARIANT,
                                .refuse = refuse,
                                .run = run}};

SOP_API const sop_plugin sop_plugin_rows = {sizeof(sop_plugin), ops, rows, 1};
