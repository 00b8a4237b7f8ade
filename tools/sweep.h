/* tools/sweep.h: superop bench --sweep: is there a length or a batch that costs more than its neighbours. */
#ifndef TOOLS_SWEEP_H
#define TOOLS_SWEEP_H

#include "cli.h"

typedef struct sweep_range {
    int64_t every; /* only each so manieth length, and those at powers of two */
    int32_t from,
        to;        /* lengths; 0: 1 to 4,200, and every batch around 1, 512 and 4,097. The same one
                         twice: every batch around it */
    int32_t batch; /* sequences, 0: 1, 8 and 64; where every batch is asked for, those up to it */
} sweep_range;

/* Steps of the model that the options name: prompts of n tokens, and one token more at a length of n, for
 * each n and each batch of the range. Returns an exit code: CLI_FAILED when some step takes over 1.25 times
 * the median of those within 64 tokens of it. */
int sweep_run(const sweep_range *r);

#endif
