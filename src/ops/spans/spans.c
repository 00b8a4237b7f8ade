#include "ops/spans/spans.h"

#ifdef SOP_CUDA
static const char *const layer[] = {"rmsnorm",   "linear", "rope",    "kv_append",
                                    "attention", "linear", "rmsnorm", "linear",
                                    "gated",     "linear", NULL};
#endif

const sop_row sop_spans[] = {
#ifdef SOP_CUDA
    {sizeof(sop_row), SOP_DEVICE_CUDA, "layers_stream_sm90", "cuda", SOP_CUDA_SM90A,
     SOP_ROW_FLASH | SOP_ROW_TILED | SOP_ROW_ROUNDS | SOP_ROW_REPEATS, .span = layer,
     .refuse = sop_layers_stream_refuse, .plan = sop_layers_stream_plan,
     .run = sop_layers_stream_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "layers_decode_sm90", "cuda", SOP_CUDA_SM90A,
     SOP_ROW_FLASH | SOP_ROW_TILED | SOP_ROW_ROUNDS | SOP_ROW_REPEATS, .span = layer,
     .refuse = sop_layers_decode_refuse, .plan = sop_layers_decode_plan,
     .run = sop_layers_decode_sm90},
    {sizeof(sop_row), SOP_DEVICE_CUDA, "layer_decode_sm90", "cuda", SOP_CUDA_SM90A,
     SOP_ROW_FLASH | SOP_ROW_TILED | SOP_ROW_ROUNDS, .span = layer,
     .refuse = sop_layer_decode_refuse, .plan = sop_layer_decode_plan,
     .run = sop_layer_decode_sm90},
#endif
    {.name = NULL},
};
