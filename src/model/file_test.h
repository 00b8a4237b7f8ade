/* What the tests of weight files share: memory that can run out, and folders of their own. Linked with --wrap for malloc, calloc and realloc. */
#ifndef MODEL_FILE_TEST_H
#define MODEL_FILE_TEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/test.h"
#include "model/file_walk.h"

/* NOLINTBEGIN: the linker chooses these names */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_realloc(void *p, size_t n);
/* NOLINTEND */

static int64_t fails_at = -1; /* the allocation that fails, counted from 0; -1: none */
static int64_t n_allocations;
static uint64_t allocated_bytes; /* in all, never less when memory is freed */

static inline int allocation_fails(size_t n)
{
    allocated_bytes += n;
    return n_allocations++ == fails_at;
}

void *__wrap_malloc(size_t n)
{
    return allocation_fails(n) ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t each)
{
    return allocation_fails(n * each) ? NULL : __real_calloc(n, each);
}

void *__wrap_realloc(void *p, size_t n)
{
    return allocation_fails(n) ? NULL : __real_realloc(p, n);
}

/* The path of a file in this test's own folder, which is made at the first call. The last four
 * results stay. */
static inline const char *in_folder(const char *name)
{
    static char folder[64], path[4][256];
    static int turn;
    if (!folder[0]) {
        (void)snprintf(folder, sizeof folder, "/tmp/sop-file-test-XXXXXX");
        if (!mkdtemp(folder)) abort();
    }
    turn = (turn + 1) % 4;
    (void)snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static inline void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) abort();
}

static inline uint8_t *read_file(const char *path, size_t *n)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st) != 0) {
        printf("%s cannot be read\n", path);
        abort();
    }
    *n = (size_t)st.st_size;
    uint8_t *bytes = (uint8_t *)__real_malloc(*n + 1);
    if (!bytes || fread(bytes, 1, *n, f) != *n) abort();
    (void)fclose(f);
    return bytes;
}

static inline int says(const char *text)
{
    if (strstr(sop_last_error(), text)) return 1;
    printf("it says: %s\n", sop_last_error());
    return 0;
}

#endif
