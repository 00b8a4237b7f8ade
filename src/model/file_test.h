/* What the tests of weight files share: memory that can run out, folders of their own, and a walk
 * over all that a file gives. Linked with --wrap for malloc, calloc and realloc. */
#ifndef MODEL_FILE_TEST_H
#define MODEL_FILE_TEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/test.h"
#include "model/file_index.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_realloc(void *p, size_t n);

static int64_t fails_at = -1; /* the allocation that fails, counted from 0; -1: none */
static int64_t n_allocations;
static uint64_t allocated_bytes; /* in all, never less when memory is freed */

static int allocation_fails(size_t n)
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
static const char *in_folder(const char *name)
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

static void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) abort();
}

static uint8_t *read_file(const char *path, size_t *n)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st) != 0) {
        printf("%s cannot be read\n", path);
        abort();
    }
    *n = (size_t)st.st_size;
    uint8_t *bytes = __real_malloc(*n + 1);
    if (!bytes || fread(bytes, 1, *n, f) != *n) abort();
    (void)fclose(f);
    return bytes;
}

static int says(const char *text)
{
    if (strstr(sop_last_error(), text)) return 1;
    printf("it says: %s\n", sop_last_error());
    return 0;
}

/* Reads every byte that the file gives, so that a sanitizer sees a wrong one; the sum keeps the
 * compiler from leaving it out. */
static uint64_t walk(const sop_file *f)
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
