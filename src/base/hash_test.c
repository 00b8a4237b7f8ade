#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

#include "base/test.h"

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* How many of n values occur more than once; sorts them. */
static int collisions(uint64_t *h, size_t n)
{
    int same = 0;
    qsort(h, n, sizeof *h, by_value);
    for (size_t i = 1; i < n; i++) same += h[i] == h[i - 1];
    return same;
}

static void the_value_of_some_bytes_never_changes(void)
{
    CHECK(sop_hash("", 0, 0) == 0x53f0c7660fb96d9aULL);
    CHECK(sop_hash("attention", 9, 0) == 0x3fff5229f82349f0ULL);
    CHECK(sop_hash("attention", 9, 1) == 0x23733c1242b4347aULL);
    CHECK(sop_hash("0123456789abcdef", 16, 7) == 0xaab9f050ae2622eULL);
    CHECK(sop_hash_pair(1, 2) == 0xb9aa53964821f09dULL);
}

static void a_flipped_bit_flips_half_of_the_result(void)
{
    enum { BYTES = 40, ROUNDS = 64 };
    static int flips[BYTES * 8][64];
    unsigned char key[BYTES];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BYTES; i++) key[i] = (unsigned char)(round * 37 + i * (round + 1));
        const uint64_t h = sop_hash(key, BYTES, 0);
        for (int bit = 0; bit < BYTES * 8; bit++) {
            key[bit / 8] ^= (unsigned char)(1 << bit % 8);
            const uint64_t d = h ^ sop_hash(key, BYTES, 0);
            key[bit / 8] ^= (unsigned char)(1 << bit % 8);
            for (int o = 0; o < 64; o++) flips[bit][o] += (int)(d >> o & 1);
        }
    }
    /* Each output bit flips with each input bit in half of the rounds: 32 +- 4 is one deviation,
     * 20,480 of them stay within six; and all together within 0.5 percent. */
    int least = ROUNDS, most = 0;
    long sum = 0;
    for (int bit = 0; bit < BYTES * 8; bit++)
        for (int o = 0; o < 64; o++) {
            const int f = flips[bit][o];
            least = f < least ? f : least;
            most = f > most ? f : most;
            sum += f;
        }
    CHECK(least >= ROUNDS / 2 - 24 && most <= ROUNDS / 2 + 24);
    const double mean = (double)sum / (BYTES * 8.0 * 64 * ROUNDS);
    CHECK(mean > 0.495 && mean < 0.505);
}

static void small_numbers_zeros_and_pairs_of_bits_do_not_collide(void)
{
    enum { N = 1 << 17 };
    uint64_t *h = calloc(N, sizeof *h);
    const int64_t fill[2] = {0};
    for (int64_t i = 0; i < N; i++) {
        const int64_t desc[4] = {i & 63, i >> 6 & 63, i >> 12, fill[0]};
        h[i] = sop_hash(desc, sizeof desc, 0);
    }
    CHECK(collisions(h, N) == 0);
    for (int64_t i = 0; i < N; i++) h[i] = (uint32_t)sop_hash(&i, sizeof i, 0); /* the low half */
    CHECK(collisions(h, N) < 20); /* 2 are expected of 2^17 in 2^32 */
    const unsigned char zeros[256] = {0};
    for (size_t n = 0; n <= sizeof zeros; n++) h[n] = sop_hash(zeros, n, 0);
    CHECK(collisions(h, sizeof zeros + 1) == 0);
    unsigned char key[32] = {0};
    size_t n = 0;
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < a; b++) {
            key[a / 8] ^= (unsigned char)(1 << a % 8);
            key[b / 8] ^= (unsigned char)(1 << b % 8);
            h[n++] = sop_hash(key, sizeof key, 0);
            memset(key, 0, sizeof key);
        }
    CHECK(collisions(h, n) == 0);
    free(h);
}

static void a_pair_has_an_order(void)
{
    CHECK(sop_hash_pair(1, 2) != sop_hash_pair(2, 1));
    CHECK(sop_hash_pair(0, 0) != sop_hash_pair(0, 1));
    CHECK(sop_hash_pair(0, 0) != 0);
}

static void where_the_bytes_lie_does_not_matter(void)
{
    unsigned char room[64 + 8];
    for (int at = 0; at < 8; at++) {
        for (int i = 0; i < 61; i++) room[at + i] = (unsigned char)i;
        unsigned char here[61];
        memcpy(here, room + at, sizeof here);
        CHECK(sop_hash(room + at, 61, 0) == sop_hash(here, 61, 0));
    }
}

int main(void)
{
    RUN(the_value_of_some_bytes_never_changes);
    RUN(a_flipped_bit_flips_half_of_the_result);
    RUN(small_numbers_zeros_and_pairs_of_bits_do_not_collide);
    RUN(a_pair_has_an_order);
    RUN(where_the_bytes_lie_does_not_matter);
    return test_report();
}
