/* core/library.h: where the libraries of a vendor are found, none of which superop links. */
#ifndef CORE_LIBRARY_H
#define CORE_LIBRARY_H

#include "sop/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Open the first of these files (the newest first, ended by NULL) that there is:
 *
 *     1. in the folders of $SOP_LIBRARY_PATH, separated by colons
 *     2. where the loader looks, which also finds one that this process has open
 *     3. in nvidia/.../lib of the Python packages of $VIRTUAL_ENV, of the python that runs this process,
 *        and of the python3 on PATH
 *     4. in /usr/local/cuda/lib64
 *
 * out: a handle for dlsym(), which nobody closes. SOP_E_NOT_FOUND, with the loader's words where a file
 * is there and does not open. */
sop_status sop_library_open(const char *const *names, void **out);

#ifdef __cplusplus
}
#endif

#endif
