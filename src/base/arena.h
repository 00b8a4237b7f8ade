/* base/arena.h: memory that is handed out from one block and given back at once. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sop_arena {
    unsigned char *block;
    size_t bytes, used;
    size_t high; /* the most that was ever used, gaps of alignment included */
    int owned;
} sop_arena;

/* A block of its own. SOP_E_NOMEM. */
SOP_MUST_USE sop_status sop_arena_init(sop_arena *a, size_t bytes);
/* The caller's block, which outlives the arena. */
void sop_arena_init_on(sop_arena *a, void *block, size_t bytes);
void sop_arena_finish(sop_arena *a);

/* Bytes, not cleared; align is a power of two. SOP_E_LIMIT with the numbers when the block is full,
 * and then nothing is taken. No bytes are a valid pointer too. */
SOP_MUST_USE sop_status sop_arena_take(sop_arena *a, size_t bytes, size_t align, void **out);
/* All of it is free again; high stays. */
void sop_arena_reset(sop_arena *a);

#ifdef __cplusplus
}
#endif

#endif
