/* Rows as the planner sees them: the library's, and those of the shared object that --plugin names. */
#include <limits.h>
#include <stdlib.h>

#include "cli.h"
#include "plan/planner.h"

const char *cli_plugin;

static sop_device *own;
static sop_planner *planner;

/* The loader looks for a name without a slash everywhere but here. */
sop_status cli_plugin_load(sop_planner *p)
{
    char path[PATH_MAX];
    if (!cli_plugin) return SOP_OK;
    return sop_planner_load(p, realpath(cli_plugin, path) ? path : cli_plugin);
}

int cli_rows_open(sop_device *d)
{
    sop_status s = d ? SOP_OK : sop_device_cpu(1, &own);
    if (s == SOP_OK) s = sop_planner_create(d ? d : own, "", &planner);
    if (s == SOP_OK) s = cli_plugin_load(planner);
    return s == SOP_OK ? CLI_OK : cli_status(s);
}

void cli_rows_close(void)
{
    sop_planner_destroy(planner);
    sop_device_destroy(own);
}

const sop_row *cli_row(const sop_op *op, int i)
{
    return op ? sop_planner_row(planner, op, i) : sop_planner_span_row(planner, i);
}

bool cli_row_is_added(const sop_op *op, const sop_row *row)
{
    for (int i = 0; i < op->n_rows; i++)
        if (row == &op->rows[i]) return false;
    return true;
}
