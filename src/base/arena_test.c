#include "base/arena.h"

#include <stdint.h>
#include <string.h>

#include "base/test.h"

static void pieces_are_aligned_and_apart(void)
{
    sop_arena a;
    CHECK(sop_arena_init(&a, 4096) == SOP_OK);
    unsigned char *end = a.block;
    for (size_t i = 0; i < 40; i++) {
        const size_t align = (size_t)1 << i % 7;
        void *p;
        CHECK(sop_arena_take(&a, i, align, &p) == SOP_OK);
        CHECK((uintptr_t)p % align == 0);
        CHECK((unsigned char *)p >= end);
        memset(p, 0xa5, i); /* a sanitizer sees what is outside */
        end = (unsigned char *)p + i;
    }
    CHECK(end <= a.block + a.bytes);
    sop_arena_finish(&a);
    sop_arena_finish(&a);
}

static void a_full_arena_says_how_full_and_takes_nothing(void)
{
    _Alignas(64) unsigned char room[100];
    sop_arena a;
    sop_arena_init_on(&a, room, sizeof room);
    void *p;
    CHECK(sop_arena_take(&a, 60, 1, &p) == SOP_OK && p == room);
    CHECK(sop_arena_take(&a, 41, 1, &p) == SOP_E_LIMIT && !p);
    CHECK(strcmp(sop_last_error(), "arena: 41 bytes aligned to 1, 40 of 100 are free") == 0);
    CHECK(sop_arena_take(&a, SIZE_MAX, 64, &p) == SOP_E_LIMIT);
    CHECK(sop_arena_take(&a, 5, 1, &p) == SOP_OK && p == room + 60);
    CHECK(sop_arena_take(&a, 1, 64, &p) == SOP_E_LIMIT); /* the next such place is room + 128 */
    sop_arena_reset(&a);
    CHECK(sop_arena_take(&a, 100, 1, &p) == SOP_OK && p == room);
    CHECK(sop_arena_take(&a, 0, 1, &p) == SOP_OK && p == room + 100);
    CHECK(sop_arena_take(&a, 1, 1, &p) == SOP_E_LIMIT);
    sop_arena_finish(&a); /* leaves the caller's block alone */
}

static void the_high_mark_outlives_a_reset(void)
{
    sop_arena a;
    CHECK(sop_arena_init(&a, 1000) == SOP_OK);
    void *p;
    CHECK(sop_arena_take(&a, 700, 1, &p) == SOP_OK);
    sop_arena_reset(&a);
    CHECK(sop_arena_take(&a, 300, 1, &p) == SOP_OK);
    CHECK(a.high == 700 && a.used == 300);
    CHECK(sop_arena_take(&a, 500, 1, &p) == SOP_OK);
    CHECK(a.high == 800);
    sop_arena_finish(&a);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static void a_block_that_no_machine_has_is_an_error(void)
{
    sop_arena a;
    void *p;
    CHECK(sop_arena_init(&a, SIZE_MAX / 2) == SOP_E_NOMEM);
    CHECK(strstr(sop_last_error(), "9223372036854775807"));
    CHECK(sop_arena_take(&a, 1, 1, &p) == SOP_E_LIMIT);
    sop_arena_finish(&a);
}

int main(void)
{
    RUN(pieces_are_aligned_and_apart);
    RUN(a_full_arena_says_how_full_and_takes_nothing);
    RUN(the_high_mark_outlives_a_reset);
    if (SANITIZED)
        SKIP("a_block_that_no_machine_has_is_an_error", "the sanitizer stops at such a size");
    else
        RUN(a_block_that_no_machine_has_is_an_error);
    return test_report();
}
