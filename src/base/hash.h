/* base/hash.h: 64 bits for some bytes. For tables and keys inside superop: not against an adversary
 * (base/sha256.h is). The value of the same bytes and seed is the same on every machine and is kept in
 * files: changing it loses them. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t sop_hash(const void *bytes, size_t n, uint64_t seed);

/* One number for two, in this order. */
uint64_t sop_hash_pair(uint64_t a, uint64_t b);

#endif
