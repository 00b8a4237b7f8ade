#include "plan/store.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/test.h"

static char folder[64], path[128];
static char warnings[8192];
static int n_warnings;

static void keep_warning(void *ctx, int level, const char *line)
{
    (void)ctx;
    (void)level;
    n_warnings++;
    (void)snprintf(warnings, sizeof warnings, "%s", line);
}

static void remove_folder(void)
{
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK(system(command) == 0); // NOLINT(cert-env33-c)
}

/* An empty folder, and no warnings yet. */
static void start(void)
{
    (void)snprintf(folder, sizeof folder, "/tmp/superop_store_XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    (void)snprintf(path, sizeof path, "%s/a/b/store.sqlite", folder);
    n_warnings = 0;
    warnings[0] = 0;
}

static sop_store *open_store(const char *at)
{
    sop_store *s = NULL;
    CHECK(sop_store_open(at, "machine 1", &s) == SOP_OK);
    return s;
}

static int same(const char *a, const char *b)
{
    return a && b && strcmp(a, b) == 0;
}

static void what_is_put_is_found_now_and_after_a_restart(void)
{
    start();
    sop_store *s = open_store(path);
    CHECK(sop_store_on_disk(s));
    CHECK(!sop_store_has_times(s) && sop_store_time(s, "row_a", "1", "m=1") == 0);
    CHECK(sop_store_proof(s, "row_a", "1", "m=1").verdict == SOP_VERDICT_NONE);
    CHECK(sop_store_quarantined(s, "row_a", "1") == NULL);
    CHECK(sop_store_put_time(s, "row_a", "1", "m=1", 12.5, 100) == SOP_OK);
    CHECK(sop_store_put_proof(s, "row_a", "1", "m=1", SOP_VERDICT_PASSED, 0.25, 1) == SOP_OK);
    CHECK(sop_store_put_proof(s, "row_a", "1", "m=2", SOP_VERDICT_FAILED, (double)NAN, 1) ==
          SOP_OK);
    CHECK(sop_store_quarantine(s, "row_b", "1", "gave \"NaN\" at n=3; it's bad") == SOP_OK);
    for (int restart = 0; restart < 2; restart++) {
        CHECK(sop_store_has_times(s));
        CHECK(sop_store_time(s, "row_a", "1", "m=1") == 12.5);
        sop_proof p = sop_store_proof(s, "row_a", "1", "m=1");
        CHECK(p.verdict == SOP_VERDICT_PASSED && p.error == 0.25 && p.bound == 1);
        p = sop_store_proof(s, "row_a", "1", "m=2");
        CHECK(p.verdict == SOP_VERDICT_FAILED && isinf(p.error));
        CHECK(same(sop_store_quarantined(s, "row_b", "1"), "gave \"NaN\" at n=3; it's bad"));
        /* Each part of the key counts. */
        CHECK(sop_store_time(s, "row_a", "2", "m=1") == 0);
        CHECK(sop_store_time(s, "row_b", "1", "m=1") == 0);
        CHECK(sop_store_time(s, "row_a", "1", "m=3") == 0);
        CHECK(sop_store_quarantined(s, "row_b", "2") == NULL);
        CHECK(sop_store_quarantined(s, "row_a", "1") == NULL);
        sop_store_close(s);
        s = open_store(path);
    }
    sop_store *other;
    CHECK(sop_store_open(path, "machine 2", &other) == SOP_OK);
    CHECK(sop_store_quarantined(other, "row_b", "1") == NULL);
    CHECK(!sop_store_has_times(other));
    sop_store_close(other);
    sop_store_close(s);
    CHECK(n_warnings == 0);
    remove_folder();
}

static void a_second_put_replaces_its_own_fields_only(void)
{
    start();
    sop_store *s = open_store(path);
    CHECK(sop_store_put_time(s, "r", "1", "m=1", 10, 5) == SOP_OK);
    CHECK(sop_store_put_proof(s, "r", "1", "m=1", SOP_VERDICT_PASSED, 0.5, 1) == SOP_OK);
    CHECK(sop_store_put_time(s, "r", "1", "m=1", 20, 7) == SOP_OK);
    for (int restart = 0; restart < 2; restart++) {
        CHECK(sop_store_time(s, "r", "1", "m=1") == 20);
        CHECK(sop_store_proof(s, "r", "1", "m=1").error == 0.5);
        sop_store_close(s);
        s = open_store(path);
    }
    CHECK(sop_store_put_time(s, "r", "1", "m=1", 0, 5) == SOP_E_ARG);
    CHECK(sop_store_put_time(s, "r", "1", "m=1", (double)NAN, 5) == SOP_E_ARG);
    CHECK(sop_store_put_time(s, "r", "1", "m=1", (double)INFINITY, 5) == SOP_E_ARG);
    CHECK(sop_store_put_time(s, "r", "1", "m=1", 1, 0) == SOP_E_ARG);
    CHECK(sop_store_time(s, "r", "1", "m=1") == 20);
    sop_store_close(s);
    remove_folder();
}

static void a_quarantine_and_a_release_bump_the_epoch(void)
{
    start();
    sop_store *s = open_store(path);
    const uint64_t e0 = sop_store_epoch(s);
    CHECK(sop_store_put_time(s, "r", "1", "m=1", 10, 5) == SOP_OK);
    CHECK(sop_store_epoch(s) == e0);
    CHECK(sop_store_quarantine(s, "r", "1", "first") == SOP_OK);
    const uint64_t e1 = sop_store_epoch(s);
    CHECK(e1 > e0);
    CHECK(sop_store_quarantine(s, "r", "1", "second") == SOP_OK);
    const char *why = sop_store_quarantined(s, "r", "1");
    CHECK(same(why, "first") && sop_store_epoch(s) == e1);
    sop_store *b = open_store(path);
    CHECK(same(sop_store_quarantined(b, "r", "1"), "first"));
    sop_store_close(b);
    CHECK(sop_store_release(s, "r", "1") == SOP_OK);
    CHECK(sop_store_epoch(s) > e1 && !sop_store_quarantined(s, "r", "1"));
    CHECK(same(why, "first")); /* valid until the store is closed */
    CHECK(sop_store_release(s, "r", "1") == SOP_E_NOT_FOUND);
    CHECK(strstr(sop_last_error(), "r is not in quarantine"));
    sop_store_close(s);
    s = open_store(path);
    CHECK(!sop_store_quarantined(s, "r", "1") && sop_store_time(s, "r", "1", "m=1") == 10);
    sop_store_close(s);
    remove_folder();
}

static void another_store_of_the_file_sees_what_was_put_when_it_refreshes(void)
{
    start();
    sop_store *a = open_store(path), *b = open_store(path);
    const uint64_t epoch = sop_store_epoch(b);
    CHECK(sop_store_put_time(a, "r", "1", "m=1", 10, 5) == SOP_OK);
    CHECK(sop_store_refresh(b) == SOP_OK);
    CHECK(sop_store_time(b, "r", "1", "m=1") == 10 && sop_store_epoch(b) == epoch);
    CHECK(sop_store_quarantine(a, "r", "1", "bad") == SOP_OK);
    CHECK(!sop_store_quarantined(b, "r", "1"));
    CHECK(sop_store_refresh(b) == SOP_OK);
    CHECK(same(sop_store_quarantined(b, "r", "1"), "bad") && sop_store_epoch(b) == epoch + 1);
    CHECK(sop_store_refresh(b) == SOP_OK && sop_store_epoch(b) == epoch + 1);
    /* One leaves and another comes: as many as before, but not the same. */
    CHECK(sop_store_release(a, "r", "1") == SOP_OK);
    CHECK(sop_store_quarantine(a, "q", "1", "worse") == SOP_OK);
    CHECK(sop_store_refresh(b) == SOP_OK && sop_store_epoch(b) == epoch + 2);
    CHECK(!sop_store_quarantined(b, "r", "1") && sop_store_quarantined(b, "q", "1"));
    sop_store_close(a);
    sop_store_close(b);
    remove_folder();
}

static void eight_processes_may_write_at_once(void)
{
    enum { PROCESSES = 8, ROWS = 12 };
    char row[32];
    start();
    (void)fflush(stdout);
    for (int p = 0; p < PROCESSES; p++)
        if (fork() == 0) {
            sop_store *s = NULL;
            int bad = sop_store_open(path, "machine 1", &s) != SOP_OK || !sop_store_on_disk(s);
            for (int i = 0; i < ROWS && !bad; i++) {
                (void)snprintf(row, sizeof row, "row_%d_%d", p, i);
                bad |= sop_store_put_time(s, row, "1", "m=1", 1 + i, 5) != SOP_OK;
                bad |= sop_store_quarantine(s, "shared", "1", "bad") != SOP_OK;
            }
            if (bad) printf("process %d: %s\n", p, sop_last_error());
            sop_store_close(s);
            (void)fflush(stdout);
            _exit(bad);
        }
    for (int p = 0; p < PROCESSES; p++) {
        int status = 1;
        CHECK(wait(&status) > 0 && status == 0);
    }
    sop_store *s = open_store(path);
    int missing = 0;
    for (int p = 0; p < PROCESSES; p++)
        for (int i = 0; i < ROWS; i++) {
            (void)snprintf(row, sizeof row, "row_%d_%d", p, i);
            missing += sop_store_time(s, row, "1", "m=1") != 1 + i;
        }
    CHECK(missing == 0);
    CHECK(same(sop_store_quarantined(s, "shared", "1"), "bad"));
    sop_store_close(s);
    CHECK(n_warnings == 0);
    remove_folder();
}

struct reading {
    sop_store *store;
    _Atomic int stop;
    _Atomic int wrong, looked;
};

static void *read_until_stopped(void *arg)
{
    struct reading *r = arg;
    while (!r->stop) {
        const char *why = sop_store_quarantined(r->store, "often", "1");
        const double ns = sop_store_time(r->store, "r", "1", "m=1");
        if ((why && strcmp(why, "bad") != 0) || ns < 1) r->wrong++;
        if (sop_store_proof(r->store, "r", "1", "m=1").verdict != SOP_VERDICT_PASSED) r->wrong++;
        r->looked++;
    }
    return NULL;
}

static void readers_see_whole_snapshots_while_others_put(void)
{
    pthread_t t[3];
    struct reading r = {.store = open_store("")};
    char row[32];
    CHECK(sop_store_put_time(r.store, "r", "1", "m=1", 1, 1) == SOP_OK);
    CHECK(sop_store_put_proof(r.store, "r", "1", "m=1", SOP_VERDICT_PASSED, 0, 1) == SOP_OK);
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&t[i], NULL, read_until_stopped, &r) == 0);
    for (int i = 0; i < 1500; i++) {
        (void)snprintf(row, sizeof row, "row %d", i % 300);
        CHECK(sop_store_put_time(r.store, row, "1", "m=1", 1 + i, 1) == SOP_OK);
        CHECK(sop_store_put_time(r.store, "r", "1", "m=1", 1 + i, 1) == SOP_OK);
        CHECK((i % 2 ? sop_store_release(r.store, "often", "1")
                     : sop_store_quarantine(r.store, "often", "1", "bad")) == SOP_OK);
    }
    while (r.looked < 1000) (void)usleep(100);
    r.stop = 1;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(t[i], NULL) == 0);
    CHECK(r.wrong == 0);
    CHECK(sop_store_epoch(r.store) == 1500);
    sop_store_close(r.store);
}

static void memory_alone_is_asked_for_by_an_empty_path(void)
{
    n_warnings = 0;
    sop_store *s = open_store("");
    CHECK(!sop_store_on_disk(s));
    CHECK(sop_store_quarantine(s, "r", "1", "bad") == SOP_OK);
    CHECK(sop_store_refresh(s) == SOP_OK);
    CHECK(same(sop_store_quarantined(s, "r", "1"), "bad"));
    CHECK(n_warnings == 0);
    sop_store_close(s);
}

static void a_folder_that_cannot_be_made_costs_one_warning_and_works_in_memory(void)
{
    n_warnings = 0;
    CHECK(setenv("XDG_CACHE_HOME", "/dev/null/x", 1) == 0);
    sop_store *s = open_store(NULL);
    CHECK(n_warnings == 1);
    CHECK(strstr(warnings, "/dev/null/x/superop/store.sqlite"));
    CHECK(strstr(warnings, "XDG_CACHE_HOME") && strstr(warnings, "Not a directory"));
    CHECK(!sop_store_on_disk(s));
    CHECK(sop_store_put_time(s, "r", "1", "m=1", 10, 5) == SOP_OK);
    CHECK(sop_store_time(s, "r", "1", "m=1") == 10);
    sop_store_close(s);
    s = open_store(NULL);
    CHECK(n_warnings == 1);
    sop_store_close(s);
    s = open_store("/proc/superop/store.sqlite");
    CHECK(n_warnings == 2 && strstr(warnings, "/proc/superop"));
    CHECK(!sop_store_on_disk(s));
    sop_store_close(s);
    start();
    s = open_store(folder); /* a folder where the file should be */
    CHECK(n_warnings == 1 && !sop_store_on_disk(s));
    sop_store_close(s);
    remove_folder();
    char longest[5000];
    memset(longest, 'x', sizeof longest - 1);
    longest[0] = '/';
    longest[sizeof longest - 1] = 0;
    s = open_store(longest);
    CHECK(!sop_store_on_disk(s) && strstr(warnings, "4999 bytes"));
    sop_store_close(s);
}

static void a_store_without_a_name_lies_in_the_cache_folder(void)
{
    char expected[128], dir[128];
    start();
    CHECK(setenv("XDG_CACHE_HOME", folder, 1) == 0);
    sop_store *s = open_store(NULL);
    CHECK(sop_store_on_disk(s));
    sop_store_close(s);
    (void)snprintf(expected, sizeof expected, "%s/superop/store.sqlite", folder);
    struct stat st;
    CHECK(stat(expected, &st) == 0);
    (void)snprintf(expected, sizeof expected, "%s/superop", folder);
    CHECK(stat(expected, &st) == 0 && (st.st_mode & 0777) == 0700);
    CHECK(sop_cache_dir(dir, sizeof dir) == SOP_OK && strcmp(dir, expected) == 0);
    CHECK(sop_cache_dir(dir, 10) == SOP_E_LIMIT);
    CHECK(setenv("HOME", "/home/x", 1) == 0);
    CHECK(setenv("XDG_CACHE_HOME", "relative", 1) == 0);
    CHECK(sop_cache_dir(dir, sizeof dir) == SOP_OK);
    CHECK(strcmp(dir, "/home/x/.cache/superop") == 0);
    CHECK(unsetenv("XDG_CACHE_HOME") == 0 && unsetenv("HOME") == 0);
    CHECK(sop_cache_dir(dir, sizeof dir) == SOP_E_NOT_FOUND);
    n_warnings = 0;
    s = open_store(NULL);
    CHECK(n_warnings == 1 && !sop_store_on_disk(s));
    sop_store_close(s);
    remove_folder();
}

static size_t read_file(const char *name, unsigned char **out)
{
    FILE *f = fopen(name, "rb");
    CHECK(f != NULL);
    *out = calloc(1, 1 << 20);
    const size_t n = f ? fread(*out, 1, 1 << 20, f) : 0;
    if (f) (void)fclose(f);
    return n;
}

static void write_file(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(name, "wb");
    CHECK(f != NULL && fwrite(bytes, 1, n, f) == n);
    if (f) (void)fclose(f);
}

static int exists(const char *name, const char *tail)
{
    char whole[256];
    (void)snprintf(whole, sizeof whole, "%s%s", name, tail);
    return access(whole, F_OK) == 0;
}

static void a_foreign_file_is_moved_aside_with_one_warning(void)
{
    static const char *const texts[] = {"this is no database, but somebody's notes of the day\n",
                                        "SQLite format 3"};
    start();
    sop_store_close(open_store(path));
    for (int i = 0; i < 2; i++) {
        n_warnings = 0;
        write_file(path, texts[i], strlen(texts[i]));
        sop_store *s = open_store(path);
        CHECK(n_warnings == 1 && strstr(warnings, path) && strstr(warnings, "moved aside"));
        CHECK(sop_store_on_disk(s));
        CHECK(sop_store_put_time(s, "r", "1", "m=1", 10, 5) == SOP_OK);
        sop_store_close(s);
        s = open_store(path);
        CHECK(n_warnings == 1 && sop_store_time(s, "r", "1", "m=1") == 10);
        sop_store_close(s);
    }
    unsigned char *bytes;
    (void)snprintf(warnings, sizeof warnings, "%s.aside-1", path);
    CHECK(read_file(warnings, &bytes) == strlen(texts[0]));
    CHECK(memcmp(bytes, texts[0], strlen(texts[0])) == 0);
    free(bytes);
    CHECK(exists(path, ".aside-2"));
    remove_folder();
}

static void another_programs_database_is_moved_aside_whole(void)
{
    static const char *const sql[] = {
        "CREATE TABLE known(variant TEXT)", "PRAGMA application_id=1",
        "PRAGMA application_id=1936683057",
        "PRAGMA application_id=1936683057;CREATE VIEW known AS SELECT 1 AS sum"};
    start();
    sop_store_close(open_store(path));
    for (int i = 0; i < 4; i++) {
        n_warnings = 0;
        (void)unlink(path);
        sqlite3 *db = NULL;
        CHECK(sqlite3_open(path, &db) == SQLITE_OK);
        CHECK(sqlite3_exec(db, sql[i], NULL, NULL, NULL) == SQLITE_OK);
        CHECK(sqlite3_close(db) == SQLITE_OK);
        sop_store *s = open_store(path);
        CHECK(sop_store_on_disk(s));
        CHECK(n_warnings == 1 && strstr(warnings, "moved aside"));
        CHECK(sop_store_put_time(s, "r", "1", "m=1", 10, 5) == SOP_OK);
        sop_store_close(s);
    }
    sop_store_close(open_store(path));
    n_warnings = 0;
    sqlite3 *db = NULL; /* ours, but for one thing more */
    CHECK(sqlite3_open(path, &db) == SQLITE_OK);
    CHECK(sqlite3_exec(db, "CREATE TABLE other(x)", NULL, NULL, NULL) == SQLITE_OK);
    CHECK(sqlite3_close(db) == SQLITE_OK);
    sop_store_close(open_store(path));
    CHECK(n_warnings == 1 && strstr(warnings, "moved aside"));
    remove_folder();
}

enum { STORED = 120 };

/* A stored file, closed: all of it is in one file. */
static size_t stored(unsigned char **bytes)
{
    char row[32];
    sop_store *s = open_store(path);
    for (int i = 0; i < STORED; i++) {
        (void)snprintf(row, sizeof row, "row_%d", i);
        CHECK(sop_store_put_time(s, row, "source", "m=1 n=4608 k=3584", 100 + i, 50) == SOP_OK);
    }
    CHECK(sop_store_quarantine(s, "row_7", "source", "crashed") == SOP_OK);
    sop_store_close(s);
    CHECK(!exists(path, "-wal"));
    return read_file(path, bytes);
}

/* Opens the file and counts the rows that are right; a wrong one is a failure. */
static int right_rows(void)
{
    char row[32];
    int right = 0, wrong = 0;
    sop_store *s = open_store(path);
    CHECK(sop_store_on_disk(s));
    for (int i = 0; i < STORED; i++) {
        (void)snprintf(row, sizeof row, "row_%d", i);
        const double ns = sop_store_time(s, row, "source", "m=1 n=4608 k=3584");
        right += ns == 100 + i;
        wrong += ns != 0 && ns != 100 + i;
    }
    const char *why = sop_store_quarantined(s, "row_7", "source");
    CHECK(!why || strcmp(why, "crashed") == 0);
    CHECK(wrong == 0);
    CHECK(sop_store_put_time(s, "after", "source", "m=1", 5, 5) == SOP_OK); /* it works on */
    sop_store_close(s);
    s = open_store(path);
    CHECK(sop_store_time(s, "after", "source", "m=1") == 5);
    sop_store_close(s);
    return right;
}

static void an_empty_and_a_cut_file_are_found_and_replaced(void)
{
    unsigned char *bytes;
    start();
    const size_t n = stored(&bytes);
    CHECK(n > 8192);
    write_file(path, bytes, 0);
    CHECK(right_rows() == 0);
    for (size_t part = 1; part < 8; part++) {
        write_file(path, bytes, n * part / 8);
        n_warnings = 0;
        CHECK(right_rows() < STORED);
        CHECK(n_warnings == 1);
    }
    write_file(path, bytes, n);
    n_warnings = 0;
    CHECK(right_rows() == STORED && n_warnings == 0);
    free(bytes);
    remove_folder();
}

static void a_flipped_bit_never_makes_a_wrong_row(void)
{
    unsigned char *bytes;
    int lost = 0, tried = 0;
    start();
    const size_t n = stored(&bytes);
    for (size_t at = 0; at < n; at += at < 100 ? 9 : 293) {
        bytes[at] ^= (unsigned char)(1 << tried % 8);
        write_file(path, bytes, n);
        bytes[at] ^= (unsigned char)(1 << tried % 8);
        lost += right_rows() < STORED;
        tried++;
    }
    CHECK(lost > 10 && lost < tried); /* some hit a row, some hit nothing that counts */
    free(bytes);
    remove_folder();
}

static void a_lack_of_memory_is_no_damage(void)
{
    unsigned char *bytes;
    int on_disk = 0, tries = 0;
    start();
    (void)stored(&bytes);
    free(bytes);
    for (int64_t limit = 20000; limit < 420000; limit += 9000) {
        sop_store *s = NULL;
        (void)sqlite3_hard_heap_limit64(limit);
        const sop_status status = sop_store_open(path, "machine 1", &s);
        CHECK(status == SOP_OK);
        if (status == SOP_OK && sop_store_on_disk(s)) {
            const sop_status put = sop_store_put_time(s, "r", "1", "m=1", 5, 5);
            CHECK(put == SOP_OK || put == SOP_E_IO);
            CHECK(sop_store_time(s, "r", "1", "m=1") == 5);
            on_disk++;
        }
        tries++;
        (void)sqlite3_hard_heap_limit64(0);
        (void)sqlite3_soft_heap_limit64(0);
        sop_store_close(s);
    }
    CHECK(on_disk > 0 && on_disk < tries);
    CHECK(!exists(path, ".aside-1"));
    CHECK(right_rows() == STORED);
    remove_folder();
}

static void a_disk_that_is_full_leaves_what_is_put_in_memory(void)
{
    start();
    (void)fflush(stdout);
    if (fork() == 0) {
        const struct rlimit little = {4096, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
        (void)signal(SIGXFSZ, SIG_IGN);
        sop_store *s = open_store(path);
        test_bad = setrlimit(RLIMIT_FSIZE, &little) != 0;
        char row[32];
        sop_status status = SOP_OK;
        for (int i = 0; i < 100 && status == SOP_OK; i++) {
            (void)snprintf(row, sizeof row, "row_%d", i);
            status = sop_store_quarantine(s, row, "1", "bad");
        }
        CHECK(status == SOP_E_IO && strstr(sop_last_error(), path));
        CHECK(same(sop_store_quarantined(s, row, "1"), "bad"));
        CHECK(sop_store_put_time(s, row, "1", "m=1", 5, 5) == SOP_E_IO);
        CHECK(n_warnings == 1 && strstr(warnings, "this process only"));
        CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
        sop_store *other = open_store(path); /* what it writes makes the first one read the file */
        CHECK(sop_store_put_time(other, "r", "1", "m=1", 7, 5) == SOP_OK);
        sop_store_close(other);
        CHECK(sop_store_refresh(s) == SOP_OK && sop_store_time(s, "r", "1", "m=1") == 7);
        CHECK(same(sop_store_quarantined(s, row, "1"), "bad"));
        CHECK(sop_store_time(s, row, "1", "m=1") == 5);
        sop_store_close(s);
        (void)fflush(stdout);
        _exit(test_bad);
    }
    int status = 1;
    CHECK(wait(&status) > 0 && status == 0);
    remove_folder();
}

static void a_fingerprint_names_the_processor_and_not_the_threads(void)
{
    char a[SOP_FINGERPRINT_TEXT], b[SOP_FINGERPRINT_TEXT];
    sop_facts facts = {.size = sizeof facts, .features = SOP_CPU_AVX2, .workers = 1};
    sop_fingerprint("cpu", &facts, a);
    CHECK(strstr(a, ", avx2, ") && strstr(a, " cores") && a[0] != ' ' && !strchr(a, '\n'));
    facts.workers = 2;
    sop_fingerprint("cpu", &facts, b);
    CHECK(strcmp(a, b) == 0);
    facts.features = 0;
    sop_fingerprint("cpu", &facts, b);
    CHECK(strcmp(a, b) != 0);
    facts.kind = SOP_DEVICE_TEST;
    sop_fingerprint("tagged", &facts, b);
    CHECK(strstr(b, "tagged, ") == b);
}

static sop_status nothing(const sop_call *call)
{
    (void)call;
    return SOP_OK;
}

static void the_code_id_is_the_build_id_of_who_holds_the_function(void)
{
    char a[SOP_CODE_ID_TEXT], b[SOP_CODE_ID_TEXT];
    sop_code_id(nothing, a);
    sop_code_id(nothing, b);
    CHECK(strcmp(a, b) == 0 && strlen(a) >= 16);
    /* The C library is another object; its function only lends its address. */
    union {
        int (*f)(const char *);
        sop_status (*run)(const sop_call *);
    } other = {puts};
    sop_code_id(other.run, b);
    CHECK(strcmp(a, b) != 0 && strlen(b) >= 16);
    sop_code_id(NULL, b);
    CHECK(strcmp(b, "unknown") == 0);
}

int main(void)
{
    sop_log_sink(keep_warning, NULL);
    RUN(what_is_put_is_found_now_and_after_a_restart);
    RUN(a_second_put_replaces_its_own_fields_only);
    RUN(a_quarantine_and_a_release_bump_the_epoch);
    RUN(another_store_of_the_file_sees_what_was_put_when_it_refreshes);
    RUN(eight_processes_may_write_at_once);
    RUN(readers_see_whole_snapshots_while_others_put);
    RUN(memory_alone_is_asked_for_by_an_empty_path);
    RUN(a_folder_that_cannot_be_made_costs_one_warning_and_works_in_memory);
    RUN(a_store_without_a_name_lies_in_the_cache_folder);
    RUN(a_foreign_file_is_moved_aside_with_one_warning);
    RUN(another_programs_database_is_moved_aside_whole);
    RUN(an_empty_and_a_cut_file_are_found_and_replaced);
    RUN(a_flipped_bit_never_makes_a_wrong_row);
    RUN(a_lack_of_memory_is_no_damage);
    RUN(a_disk_that_is_full_leaves_what_is_put_in_memory);
    RUN(a_fingerprint_names_the_processor_and_not_the_threads);
    RUN(the_code_id_is_the_build_id_of_who_holds_the_function);
    return test_report();
}
