/* core/record.h: a list of submitted calls and copies that can be run again. Devices without a
 * record of their own use it. Calls are copied, what they point to is not: a plan owns it. */
#ifndef CORE_RECORD_H
#define CORE_RECORD_H

#include "sop/device.h"

typedef struct sop_record sop_record;

sop_status sop_record_create(sop_record **out);
void sop_record_destroy(sop_record *r);
sop_status sop_record_call(sop_record *r, const sop_row *row, const sop_call *call);
sop_status sop_record_copy(sop_record *r, void *dst, const void *src, size_t bytes,
                           int32_t direction);
/* Submit and copy all of it to the queue, in order; stops at the first failure. */
sop_status sop_record_run(const sop_record *r, sop_queue *queue);

#endif
