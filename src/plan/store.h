/* plan/store.h: what this machine knows of its rows: proofs, times, quarantines.
 *
 * A SQLite file that processes share; each row of it carries a checksum. A process reads it once into
 * an immutable snapshot: looking something up takes no lock and no system call, from any thread. What
 * cannot be kept on disk costs one warning and is kept in memory.
 *
 * A key is (variant's name, source, device fingerprint, desc class), all texts. The source says which
 * code was proven or measured, so that other code of the same name starts anew; sop_code_id() makes
 * one. A store is opened for one fingerprint and sees only its rows. */
#ifndef PLAN_STORE_H
#define PLAN_STORE_H

#include "plan/machine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sop_store sop_store;

typedef enum sop_verdict {
    SOP_VERDICT_NONE = 0, /* never checked */
    SOP_VERDICT_PASSED = 1,
    SOP_VERDICT_FAILED = 2,
} sop_verdict;

/* path          NULL for store.sqlite in sop_cache_dir(), "" for memory alone
 * fingerprint   of the device, see sop_fingerprint()
 * out           free it with sop_store_close()
 *
 * A folder that is not there is made. A file that is damaged or not ours is renamed aside. A child
 * made by fork() opens its own. SOP_E_NOMEM; nothing that a disk may do fails the call. */
SOP_MUST_USE sop_status sop_store_open(const char *path, const char *fingerprint, sop_store **out);
void sop_store_close(sop_store *s);
/* Whether what is put outlives the process. */
int sop_store_on_disk(const sop_store *s);

/* What is put is seen by lookups when the call returns, and by other processes when they refresh.
 * SOP_E_IO: it holds in this process but could not be written. SOP_E_NOMEM. */
SOP_MUST_USE sop_status sop_store_put_time(sop_store *s, const char *variant, const char *source,
                                           const char *desc_class, double median_ns, int64_t n);
/* error and bound in the unit of the check; verdict is a sop_verdict. */
SOP_MUST_USE sop_status sop_store_put_proof(sop_store *s, const char *variant, const char *source,
                                            const char *desc_class, int32_t verdict, double error,
                                            double bound);
/* For all desc classes. A second reason does not replace the first. Both bump the epoch. release:
 * SOP_E_NOT_FOUND when it is not in quarantine. */
SOP_MUST_USE sop_status sop_store_quarantine(sop_store *s, const char *variant, const char *source,
                                             const char *reason);
SOP_MUST_USE sop_status sop_store_release(sop_store *s, const char *variant, const char *source);

/* Take over what other processes put since; cheap when that is nothing. Not on the request path. */
SOP_MUST_USE sop_status sop_store_refresh(sop_store *s);

/* Grows whenever the set of quarantined rows changed: plans made before are to be made again. */
uint64_t sop_store_epoch(const sop_store *s);
/* Why a row is in quarantine, or NULL. Valid until the store is closed. */
const char *sop_store_quarantined(sop_store *s, const char *variant, const char *source);
/* The median in ns, 0 when it was not measured. */
double sop_store_time(sop_store *s, const char *variant, const char *source,
                      const char *desc_class);
/* Whether anything was measured on this device: if not, no desc needs to be made a text. */
int sop_store_has_times(sop_store *s);

typedef struct sop_proof {
    int32_t verdict; /* sop_verdict */
    double error, bound;
} sop_proof;
sop_proof sop_store_proof(sop_store *s, const char *variant, const char *source,
                          const char *desc_class);

#ifdef __cplusplus
}
#endif

#endif
