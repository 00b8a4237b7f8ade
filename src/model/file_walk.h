/* Touches all that a weight file gives, for tests and fuzzing. */
#ifndef MODEL_FILE_WALK_H
#define MODEL_FILE_WALK_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/file_index.h"

/* Reads every byte that the file gives, so that a sanitizer sees a wrong one; the sum keeps the
 * compiler from leaving it out. */
static inline uint64_t walk(const sop_file *f)
{
    uint64_t sum = 0;
    sop_tensor t;
    for (int64_t i = 0; i < sop_file_n_tensors(f); i++) {
        const char *name = sop_file_tensor_name(f, i);
        if (!sop_file_tensor(f, name, &t)) abort();
        sum += strlen(sop_file_tensor_type(f, name));
        for (size_t k = 0; k < t.bytes; k++) sum += ((const uint8_t *)t.data)[k];
    }
    for (int64_t i = 0; i < sop_file_n_keys(f); i++) {
        const char *key = sop_file_key(f, i), *s;
        int64_t whole = 0, n = sop_file_array(f, key);
        double real = 0;
        bool yes = false;
        size_t len = 0;
        (void)sop_file_i64(f, key, &whole);
        (void)sop_file_f64(f, key, &real);
        (void)sop_file_bool(f, key, &yes);
        s = sop_file_str(f, key, &len);
        if (s && s[len] != 0) abort();
        for (int64_t k = 0; k < n; k++) {
            (void)sop_file_array_i64(f, key, k, &whole);
            (void)sop_file_array_f64(f, key, k, &real);
            s = sop_file_array_str(f, key, k, &len);
            if (s && s[len] != 0) abort();
            sum += s ? len : 0;
        }
        sum += (uint64_t)whole + (real > 0) + yes;
    }
    return sum;
}

#endif
