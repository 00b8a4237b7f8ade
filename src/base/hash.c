#include "base/hash.h"

#include <string.h>

/* Odd, half of their bits set, no run longer than six: multiplying by them is a bijection that
 * carries every bit upwards; the shifts and rotations bring the high bits down again. So two inputs
 * of one length that differ in one word never end in the same number. */
#define M1 0x9e6d62d06f6a9a9bULL
#define M2 0xbf58ac2b94d3c6e5ULL

static uint64_t avalanche(uint64_t h)
{
    h = (h ^ h >> 32) * M1;
    h = (h ^ h >> 29) * M2;
    return h ^ h >> 32;
}

static uint64_t take(uint64_t h, uint64_t word)
{
    word *= M1;
    word ^= word >> 31;
    h = (h ^ word) * M2;
    return h << 27 | h >> 37;
}

uint64_t sop_hash(const void *bytes, size_t n, uint64_t seed)
{
    const unsigned char *p = bytes;
    uint64_t h = seed + (n + 1) * M2; /* the length: "a" and "a\0" differ, and "" is not 0 */
    for (; n >= 8; n -= 8, p += 8) {
        const uint64_t word = (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 |
                              (uint64_t)p[3] << 24 | (uint64_t)p[4] << 32 | (uint64_t)p[5] << 40 |
                              (uint64_t)p[6] << 48 | (uint64_t)p[7] << 56;
        h = take(h, word);
    }
    if (n) {
        uint64_t word = 0;
        for (size_t i = 0; i < n; i++) word |= (uint64_t)p[i] << 8 * i;
        h = take(h, word);
    }
    return avalanche(h);
}

uint64_t sop_hash_pair(uint64_t a, uint64_t b)
{
    return avalanche(take(avalanche(a + M1), b));
}
