/* tools/sweep.h: superop bench --sweep: is there a length or a batch that costs more than its neighbours. */
#ifndef TOOLS_SWEEP_H
#define TOOLS_SWEEP_H

#include "cli.h"

/* Steps of the model that the options name: prompts of n tokens, and one token more at a length of n, for
 * each n up to 4,200 at 1, 8 and 64 sequences, and for 1 to 64 sequences around 1, 512 and 4,097 tokens.
 * every: only each so manieth n, and those at powers of two. Returns an exit code: CLI_FAILED when some
 * step takes over 1.25 times the median of those within 64 tokens of it. */
int sweep_run(int64_t every);

#endif
