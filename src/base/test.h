/* base/test.h: CHECK, RUN, and a closing line that CI counts. */
#ifndef BASE_TEST_H
#define BASE_TEST_H

#include <stdio.h>

static int test_bad, test_passed, test_failed, test_skipped;

#define CHECK(cond) \
    do { \
        if (!(cond)) { \
            test_bad = 1; \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #cond); \
        } \
    } while (0)

#define RUN(fn) \
    do { \
        test_bad = 0; \
        fn(); \
        test_bad ? (test_failed++, printf("FAILED %s\n", #fn)) : test_passed++; \
    } while (0)

/* A test that cannot run here, with the reason; counted and shown. */
#define SKIP(what, why) (test_skipped++, printf("skipped %s: %s\n", what, why))

static inline int test_report(void)
{
    printf("%d passed, %d failed, %d skipped\n", test_passed, test_failed, test_skipped);
    return test_failed != 0;
}

#endif
