/* ops/spans: rows that cover several modules at once. */
#ifndef OPS_SPANS_H
#define OPS_SPANS_H

#include "sop/desc.h"

/* The library's own, best first; the last one has no name. */
extern const sop_row sop_spans[];

/* A trait beside those of sop/variant.h: the list of a span may come several times, all of one split. Its
 * desc and args then hold one list after another; args tell how many. */
enum { SOP_ROW_REPEATS = 1u << 16 };

/* Decoder layers of few tokens, several in one launch: layers_decode_sm90.cu */
const char *sop_layers_decode_refuse(const void *desc);
sop_status sop_layers_decode_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                  size_t budget, sop_split *split);
sop_status sop_layers_decode_sm90(const sop_call *call);

/* Large decoder layers of few tokens: layers_stream_sm90.cu */
const char *sop_layers_stream_refuse(const void *desc);
sop_status sop_layers_stream_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                  size_t budget, sop_split *split);
sop_status sop_layers_stream_sm90(const sop_call *call);

/* A decoder layer of few tokens: layer_decode_sm90.cu */
const char *sop_layer_decode_refuse(const void *desc);
sop_status sop_layer_decode_plan(const void *desc, const int32_t *params, const sop_facts *facts,
                                 size_t budget, sop_split *split);
sop_status sop_layer_decode_sm90(const sop_call *call);

#endif
