/* plan/machine.h: which machine and which code a store's rows are about, and where it keeps them. */
#ifndef PLAN_MACHINE_H
#define PLAN_MACHINE_H

#include "sop/variant.h"

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* $XDG_CACHE_HOME/superop, else $HOME/.cache/superop. SOP_E_NOT_FOUND when neither is set,
 * SOP_E_LIMIT when it does not fit. Makes nothing. */
SOP_MUST_USE sop_status sop_cache_dir(char *out, size_t cap);
/* Makes a folder and those above it, for this user alone. SOP_E_IO. */
SOP_MUST_USE sop_status sop_make_dirs(const char *path);

/* The device and what its times depend on: "Intel(R) Xeon(R) ..., avx2 avx512 vnni, 2 cores". The
 * cores are the machine's, not those this process may use: a quarantine is for the machine. */
enum { SOP_FINGERPRINT_TEXT = 192 };
void sop_fingerprint(const char *device_name, const sop_facts *facts,
                     char out[SOP_FINGERPRINT_TEXT]);

/* The build id of the program or library that holds a function, in hexadecimal digits, or its path
 * where it has none. */
enum { SOP_CODE_ID_TEXT = 48 };
void sop_code_id(sop_status (*run)(const sop_call *call), char out[SOP_CODE_ID_TEXT]);

#ifdef __cplusplus
}
#endif

#endif
