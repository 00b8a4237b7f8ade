/* base/sha256.h: the hash that says that a file is the one that was meant. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sop_sha256 {
    uint32_t state[8];
    uint64_t bytes; /* so far */
    uint8_t block[64];
} sop_sha256;

void sop_sha256_init(sop_sha256 *h);
void sop_sha256_add(sop_sha256 *h, const void *data, size_t bytes);
/* hex [65] receives the digest in small letters, zero-terminated. */
void sop_sha256_finish(sop_sha256 *h, char *hex);

#ifdef __cplusplus
}
#endif

#endif
