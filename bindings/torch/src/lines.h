/* lines.h: the table of operators; lines.c draws a line. */
#ifndef SOP_TORCH_LINES_H
#define SOP_TORCH_LINES_H

extern const char *const sop_torch_lines[]; /* ended by NULL */

#endif
