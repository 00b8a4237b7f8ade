/* Names and sizes of the element types; the list itself is in sop/types.h. */
#include "sop/types.h"

#include <string.h>

const char *sop_dtype_text(int32_t dtype)
{
    switch (dtype) {
#define X(name, value, text, elems, bytes) \
    case value: return text;
        SOP_DTYPE_MAP(X)
#undef X
    }
    return NULL;
}

int32_t sop_dtype_of(const char *text)
{
#define X(name, value, name_text, elems, bytes) \
    if (strcmp(text, name_text) == 0) return value;
    SOP_DTYPE_MAP(X)
#undef X
    return -1;
}

/* NOLINTBEGIN(bugprone-branch-clone): lists */
int64_t sop_dtype_block(int32_t dtype)
{
    switch (dtype) {
#define X(name, value, text, elems, bytes) \
    case value: return elems;
        SOP_DTYPE_MAP(X)
#undef X
    }
    return 0;
}

size_t sop_dtype_bytes(int32_t dtype)
{
    switch (dtype) {
#define X(name, value, text, elems, bytes) \
    case value: return bytes;
        SOP_DTYPE_MAP(X)
#undef X
    }
    return 0;
}
/* NOLINTEND(bugprone-branch-clone) */

size_t sop_dtype_row_bytes(int32_t dtype, int64_t n)
{
    const int64_t block = sop_dtype_block(dtype);
    size_t total;
    if (block == 0 || n < 0 || n % block != 0) return SIZE_MAX;
    if (__builtin_mul_overflow((size_t)(n / block), sop_dtype_bytes(dtype), &total))
        return SIZE_MAX;
    return total;
}
