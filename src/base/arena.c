#include "base/arena.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

sop_status sop_arena_init(sop_arena *a, size_t bytes)
{
    void *block = malloc(bytes ? bytes : 1);
    sop_arena_init_on(a, block, block ? bytes : 0);
    a->owned = 1;
    return block ? SOP_OK : sop_fail(SOP_E_NOMEM, "arena: a block of %zu bytes", bytes);
}

void sop_arena_init_on(sop_arena *a, void *block, size_t bytes)
{
    *a = (sop_arena){.block = block, .bytes = bytes};
}

void sop_arena_finish(sop_arena *a)
{
    if (a->owned) free(a->block);
    memset(a, 0, sizeof *a);
}

sop_status sop_arena_take(sop_arena *a, size_t bytes, size_t align, void **out)
{
    assert(align && (align & (align - 1)) == 0);
    const size_t gap = (size_t) - ((uintptr_t)a->block + a->used) & (align - 1);
    const size_t left = a->bytes - a->used;
    if (gap > left || bytes > left - gap) {
        *out = NULL;
        return sop_fail(SOP_E_LIMIT, "arena: %zu bytes aligned to %zu, %zu of %zu are free", bytes,
                        align, left, a->bytes);
    }
    *out = a->block + a->used + gap;
    a->used += gap + bytes;
    if (a->used > a->high) a->high = a->used;
    return SOP_OK;
}

void sop_arena_reset(sop_arena *a)
{
    a->used = 0;
}
