/* tools/workload.h: superop bench --workload: the steps of a workload, each a batch of whole prompts. */
#ifndef TOOLS_WORKLOAD_H
#define TOOLS_WORKLOAD_H

#include "cli.h"

/* Run one of bench/workloads, or a file of that form, on the model that the options name, else on its
 * own. chunk: tokens of one step of the super operator. Returns an exit code. */
int workload_run(const char *name, int64_t chunk, bool json);

#endif
