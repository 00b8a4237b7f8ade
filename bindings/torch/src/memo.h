/* memo.h: what the last calls of a thread came to, so that a call with the same types, extents, strides
 * and numbers goes from its tensors to its plan at once. */
#ifndef SOP_TORCH_MEMO_H
#define SOP_TORCH_MEMO_H

#include <stddef.h>

#include "engine.h"
#include "table.h"

enum {
    SOP_TORCH_WORDS = 96, /* attention over pages has 70 */
    SOP_TORCH_MEMO_DIMS = 8
};

struct sop_torch_memo {
    uint64_t plugins; /* how often rows had come from outside by then */
    int32_t n_words;  /* 0: nothing is kept here */
    int64_t word[SOP_TORCH_WORDS];
    struct kept *kept; /* held */
    struct place
        place;     /* on a CPU or the default stream, which never records; queue NULL: on others */
    int32_t index; /* for sop_torch_place() */
    size_t bytes[SOP_TORCH_ARGS + SOP_TORCH_OUTS];
    struct {
        int64_t ndim, size[SOP_TORCH_MEMO_DIMS], stride[SOP_TORCH_MEMO_DIMS];
        int32_t dtype; /* PyTorch's */
    } out[SOP_TORCH_OUTS];
};

/* Where this thread keeps what belongs to these words, whatever lies there now; NULL without memory. */
struct sop_torch_memo *sop_torch_memo_of(const int64_t *word, int32_t n);

/* Whether it is there. */
bool sop_torch_memo_has(const struct sop_torch_memo *m, const int64_t *word, int32_t n);

/* Put it there; the caller fills in the rest. */
void sop_torch_memo_put(struct sop_torch_memo *m, const int64_t *word, int32_t n,
                        struct kept *kept);

#endif
