#include "plan/journal.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/test.h"

static char folder[64];
static char warning[2048];
static int n_warnings;

static void keep_warning(void *ctx, int level, const char *line)
{
    (void)ctx;
    (void)level;
    n_warnings++;
    (void)snprintf(warning, sizeof warning, "%s", line);
}

static void start(void)
{
    (void)snprintf(folder, sizeof folder, "/tmp/superop_journal_XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    (void)fflush(stdout);
}

static int n_files(void)
{
    int n = 0;
    DIR *d = opendir(folder);
    const struct dirent *e;
    while (d && (e = readdir(d)) != NULL) n += e->d_name[0] != '.';
    if (d) (void)closedir(d);
    return n;
}

static void finish(void)
{
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK(system(command) == 0); // NOLINT(cert-env33-c)
}

/* What recover told. */
static struct {
    int n;
    char variant[64], source[64];
    sop_crash last;
} told;

static sop_status keep(void *ctx, const sop_crash *crash)
{
    told.n++;
    told.last = *crash;
    (void)snprintf(told.variant, sizeof told.variant, "%s", crash->variant);
    (void)snprintf(told.source, sizeof told.source, "%s", crash->source);
    return ctx ? SOP_E_IO : SOP_OK;
}

static int recover(void)
{
    memset(&told, 0, sizeof told);
    const int n = sop_journal_recover(folder, "machine", keep, NULL);
    CHECK(n == told.n);
    return n;
}

/* A journal in a child, and a mark for "row_b" in it. */
static sop_mark *open_in_child(int notes, uint32_t *row, sop_journal **j)
{
    const struct rlimit none = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &none);
    if (sop_journal_open(folder, "machine", notes, j) != SOP_OK) _exit(99);
    (void)sop_journal_row(*j, "row_a", "code 1");
    *row = sop_journal_row(*j, "row_b", "code 1");
    return sop_journal_mark(*j);
}

enum where { BEFORE, WITHIN, AFTER };

/* A child that dies of a signal before, within or after row_b; returns its wait status. */
static int die(int notes, enum where where, int signal)
{
    (void)fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        uint32_t row;
        sop_journal *j;
        sop_mark *mark = open_in_child(notes, &row, &j);
        if (where != BEFORE) sop_mark_set(mark, row);
        if (where == AFTER) sop_mark_clear(mark);
        if (signal == SIGSEGV) *(volatile int *)(uintptr_t)(row * 8) = 1; // NOLINT
        if (signal == SIGABRT) abort();
        (void)raise(signal);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

static void a_crash_within_a_row_is_told_once_with_its_signal(void)
{
    static const int signals[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL};
    start();
    for (int i = 0; i < 5; i++)
        for (int notes = 0; notes < 2; notes++) {
            CHECK(die(notes, WITHIN, signals[i]) != 0);
            CHECK(n_files() == 1);
            CHECK(recover() == 1);
            CHECK(strcmp(told.variant, "row_b") == 0 && strcmp(told.source, "code 1") == 0);
            CHECK(told.last.signal == (notes ? signals[i] : 0) && told.last.pid > 1);
            CHECK(told.last.time > 1700000000);
            CHECK(n_files() == 0 && recover() == 0);
        }
    finish();
}

static void a_death_outside_of_a_row_leaves_nothing(void)
{
    static const int signals[] = {SIGKILL, SIGSEGV, SIGTERM, 0};
    start();
    for (int i = 0; i < 4; i++)
        for (int notes = 0; notes < 2; notes++) {
            (void)die(notes, BEFORE, signals[i]);
            (void)die(notes, AFTER, signals[i]);
            CHECK(recover() == 0 && n_files() == 0);
        }
    finish();
}

static void a_row_is_not_blamed_for_a_death_from_outside_when_signals_are_noted(void)
{
    static const int signals[] = {SIGKILL, SIGINT, SIGTERM, 0};
    start();
    for (int i = 0; i < 4; i++) {
        (void)die(1, WITHIN, signals[i]);
        CHECK(recover() == 0 && n_files() == 0);
        (void)die(0, WITHIN, signals[i]); /* nobody knows: better not to run it again */
        CHECK(recover() == 1 && told.last.signal == 0);
    }
    finish();
}

static void a_live_process_is_left_alone_until_it_dies(void)
{
    int up[2];
    start();
    CHECK(pipe(up) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        uint32_t row;
        sop_journal *j;
        sop_mark *mark = open_in_child(1, &row, &j);
        sop_mark_set(mark, row);
        if (write(up[1], "x", 1) == 1) (void)pause();
        _exit(0);
    }
    char x;
    CHECK(read(up[0], &x, 1) == 1);
    CHECK(recover() == 0 && n_files() == 1);
    CHECK(kill(pid, SIGSEGV) == 0 && waitpid(pid, NULL, 0) == pid);
    CHECK(recover() == 1 && told.last.signal == SIGSEGV && told.last.pid == pid);
    (void)close(up[0]);
    (void)close(up[1]);
    finish();
}

static void exit_42(int signal)
{
    (void)signal;
    _exit(42);
}

static void exit_43(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)info;
    (void)context;
    _exit(43);
}

static void who_handled_the_signal_before_still_does(void)
{
    static const int signals[] = {SIGSEGV, SIGABRT, SIGFPE};
    start();
    for (int i = 0; i < 3; i++) {
        (void)fflush(stdout);
        const pid_t pid = fork();
        if (pid == 0) {
            uint32_t row;
            sop_journal *j;
            (void)signal(signals[i], exit_42);
            sop_mark *mark = open_in_child(1, &row, &j);
            sop_mark_set(mark, row);
            if (signals[i] == SIGSEGV) *(volatile int *)(uintptr_t)(row * 8) = 1; // NOLINT
            if (signals[i] == SIGABRT) abort();
            (void)raise(signals[i]);
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
        CHECK(recover() == 1 && told.last.signal == signals[i]);
    }
    finish();
}

static void the_last_close_gives_the_handlers_back_and_removes_the_file(void)
{
    struct sigaction was, now;
    sop_journal *a, *b;
    start();
    CHECK(sigaction(SIGSEGV, NULL, &was) == 0);
    CHECK(sop_journal_open(folder, "machine", 1, &a) == SOP_OK);
    CHECK(sop_journal_open(folder, "machine", 1, &b) == SOP_OK);
    CHECK(n_files() == 2 && recover() == 0);
    sop_journal_close(a);
    CHECK(sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_sigaction != was.sa_sigaction);
    sop_journal_close(b);
    CHECK(sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_sigaction == was.sa_sigaction);
    CHECK(n_files() == 0);
    sop_journal_close(NULL);
    CHECK(sop_journal_open(folder, "machine", 1, &a) == SOP_OK);
    const struct sigaction later = {.sa_sigaction = exit_43, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSEGV, &later, NULL) == 0); /* came after us: not to be taken away */
    sop_journal_close(a);
    CHECK(sigaction(SIGSEGV, &was, &now) == 0 && now.sa_sigaction == exit_43);
    finish();
}

static void a_crash_of_a_forked_child_blames_no_row_of_its_parent(void)
{
    start();
    const pid_t pid = fork();
    if (pid == 0) {
        uint32_t row;
        sop_journal *j;
        sop_mark *mark = open_in_child(1, &row, &j);
        sop_mark_set(mark, row);
        if (fork() == 0) {
            (void)raise(SIGSEGV);
            _exit(0);
        }
        (void)wait(NULL);
        (void)raise(SIGKILL);
    }
    CHECK(waitpid(pid, NULL, 0) == pid);
    CHECK(recover() == 0 && n_files() == 0);
    finish();
}

static void processes_that_start_at_once_tell_each_crash_once(void)
{
    enum { PROCESSES = 8, ROUNDS = 6 };
    start();
    int *count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int p = 0; p < PROCESSES; p++)
        if (fork() == 0) { /* recovers, runs and crashes a child, again and again */
            for (int i = 0; i < ROUNDS; i++) {
                memset(&told, 0, sizeof told);
                __atomic_fetch_add(count, sop_journal_recover(folder, "machine", keep, NULL),
                                   __ATOMIC_SEQ_CST);
                (void)die(i & 1, WITHIN, SIGABRT);
            }
            _exit(0);
        }
    for (int p = 0; p < PROCESSES; p++) {
        int status = 1;
        CHECK(wait(&status) > 0 && status == 0);
    }
    CHECK(recover() + *count == PROCESSES * ROUNDS);
    CHECK(n_files() == 0);
    (void)munmap(count, 4096);
    finish();
}

static void a_crashed_row_is_in_quarantine_after_the_next_start(void)
{
    char path[128];
    start();
    (void)snprintf(path, sizeof path, "%s/store.sqlite", folder);
    (void)die(1, WITHIN, SIGSEGV);
    sop_store *s = NULL;
    CHECK(sop_store_open(path, "machine", &s) == SOP_OK);
    CHECK(sop_journal_recover(folder, "machine", sop_journal_quarantine, s) == 1);
    for (int restart = 0; restart < 2; restart++) {
        const char *why = sop_store_quarantined(s, "row_b", "code 1");
        CHECK(why && strstr(why, "crashed on 20") && strstr(why, "UTC with SIGSEGV, process "));
        CHECK(!sop_store_quarantined(s, "row_b", "code 2"));
        CHECK(!sop_store_quarantined(s, "row_a", "code 1"));
        sop_store_close(s);
        CHECK(sop_store_open(path, "machine", &s) == SOP_OK);
        CHECK(sop_journal_recover(folder, "machine", sop_journal_quarantine, s) == 0);
    }
    sop_store_close(s);
    /* A store that forgets: told at each start. */
    (void)die(1, WITHIN, SIGSEGV);
    for (int restart = 0; restart < 2; restart++) {
        CHECK(sop_store_open("", "machine", &s) == SOP_OK);
        CHECK(sop_journal_recover(folder, "machine", sop_journal_quarantine, s) == 1);
        CHECK(sop_store_quarantined(s, "row_b", "code 1"));
        sop_store_close(s);
    }
    finish();
}

static void a_crash_on_another_machine_waits_for_its_own_start(void)
{
    start();
    (void)die(1, WITHIN, SIGSEGV);
    CHECK(sop_journal_recover(folder, "another", keep, NULL) == 0 && n_files() == 1);
    CHECK(sop_journal_recover(folder, "machine", keep, folder) == 1 && n_files() == 1); /* failed */
    CHECK(recover() == 1 && n_files() == 0);
    (void)die(1, BEFORE, SIGKILL);
    CHECK(sop_journal_recover(folder, "another", keep, NULL) == 0 && n_files() == 0);
    finish();
}

static void put_file(const char *name, const void *bytes, size_t n)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && (n == 0 || fwrite(bytes, 1, n, f) == n));
    if (f) (void)fclose(f);
}

static void files_that_are_no_journals_do_no_harm(void)
{
    char path[512], target[160];
    start();
    (void)die(1, WITHIN, SIGSEGV);
    DIR *d = opendir(folder);
    const struct dirent *e = NULL;
    while (d && (e = readdir(d)) != NULL && strncmp(e->d_name, "running-", 8) != 0) continue;
    CHECK(e != NULL);
    (void)snprintf(path, sizeof path, "%s/%s", folder, e ? e->d_name : "");
    if (d) (void)closedir(d);
    static unsigned char bytes[1 << 18];
    FILE *f = fopen(path, "rb");
    const size_t n = f ? fread(bytes, 1, sizeof bytes, f) : 0;
    if (f) (void)fclose(f);
    CHECK(n > 100000 && unlink(path) == 0);
    for (size_t at = 0; at < 4096; at += 3) { /* flipped bits: told or not, but no crash */
        bytes[at] ^= 0xff;
        put_file("running-1-0", bytes, n);
        bytes[at] ^= 0xff;
        (void)recover();
        (void)snprintf(path, sizeof path, "%s/running-1-0", folder);
        (void)unlink(path); /* a flipped fingerprint stays */
    }
    unsigned char *text = memmem(bytes, n, "row_b", 6);
    CHECK(text != NULL);
    if (text) memset(text, 'x', 64); /* its name has no end */
    put_file("running-1-0", bytes, n);
    CHECK(recover() == 0);
    memset(bytes + 2000, 0xff, n - 2000); /* nothing has */
    put_file("running-1-0", bytes, n);
    CHECK(recover() == 0);
    put_file("running-2-0", "", 0);
    put_file("running-3-0", bytes, n / 2);
    put_file("other", bytes, n);
    (void)snprintf(path, sizeof path, "%s/running-4-0", folder);
    CHECK(mkdir(path, 0700) == 0);
    (void)snprintf(path, sizeof path, "%s/running-5-0", folder);
    CHECK(mkfifo(path, 0600) == 0);
    (void)snprintf(path, sizeof path, "%s/running-6-0", folder);
    (void)snprintf(target, sizeof target, "%s/other", folder);
    CHECK(symlink(target, path) == 0);
    CHECK(recover() == 0);
    CHECK(n_files() == 4); /* other, the folder, the pipe and the link */
    CHECK(sop_journal_recover("/nonexistent/x", "machine", keep, NULL) == 0);
    finish();
}

static void where_no_file_can_be_made_it_works_in_memory_after_one_warning(void)
{
    sop_journal *j = NULL;
    sop_store *s = NULL;
    n_warnings = 0;
    CHECK(sop_journal_open("/dev/null/x", "machine", 1, &j) == SOP_OK);
    CHECK(n_warnings == 1 && strstr(warning, "/dev/null/x") && strstr(warning, "XDG_CACHE_HOME"));
    sop_mark *mark = sop_journal_mark(j);
    sop_mark_set(mark, sop_journal_row(j, "row", "code"));
    sop_mark_clear(mark);
    sop_journal_unmark(j, mark);
    sop_journal_close(j);
    CHECK(sop_store_open("/dev/null/x/store.sqlite", "machine", &s) == SOP_OK);
    CHECK(n_warnings == 1); /* the same folder */
    sop_store_close(s);
}

static void a_full_disk_is_found_before_a_mark_is_made(void)
{
    start();
    if (fork() == 0) {
        const struct rlimit little = {4096, 4096};
        sop_journal *j = NULL;
        (void)signal(SIGXFSZ, SIG_IGN);
        n_warnings = 0;
        test_bad = setrlimit(RLIMIT_FSIZE, &little) != 0;
        CHECK(sop_journal_open(folder, "machine", 0, &j) == SOP_OK);
        CHECK(n_warnings == 1 && n_files() == 0);
        sop_mark_set(sop_journal_mark(j), sop_journal_row(j, "row", "code"));
        sop_journal_close(j);
        (void)fflush(stdout);
        _exit(test_bad);
    }
    int status = 1;
    CHECK(wait(&status) > 0 && status == 0);
    finish();
}

static void rows_and_marks_are_bounded(void)
{
    sop_journal *j;
    sop_mark *mark[40];
    char name[100];
    start();
    CHECK(sop_journal_open(folder, "machine", 0, &j) == SOP_OK);
    for (uint32_t i = 1; i <= 1000; i++) {
        (void)snprintf(name, sizeof name, "row %u", i);
        CHECK(sop_journal_row(j, name, "code") == i);
    }
    CHECK(sop_journal_row(j, "row 1001", "code") == 0);
    CHECK(sop_journal_row(j, "row 7", "code") == 7);
    CHECK(sop_journal_row(j, "row 7", "other code") == 0);
    memset(name, 'x', sizeof name);
    name[64] = 0;
    CHECK(sop_journal_row(j, name, "code") == 0);
    name[48] = 0;
    CHECK(sop_journal_row(j, "row 7", name) == 0);
    for (int i = 0; i < 40; i++) {
        mark[i] = sop_journal_mark(j);
        CHECK(mark[i] != NULL);
        for (int k = 0; k < i && i < 32; k++) CHECK(mark[k] != mark[i]);
        sop_mark_set(mark[i], 7);
    }
    CHECK(mark[32] == mark[39]);
    sop_journal_unmark(j, mark[5]);
    CHECK(*mark[5] == 0 && sop_journal_mark(j) == mark[5]);
    sop_journal_close(j);
    finish();
}

int main(void)
{
    sop_log_sink(keep_warning, NULL);
    RUN(a_crash_within_a_row_is_told_once_with_its_signal);
    RUN(a_death_outside_of_a_row_leaves_nothing);
    RUN(a_row_is_not_blamed_for_a_death_from_outside_when_signals_are_noted);
    RUN(a_live_process_is_left_alone_until_it_dies);
    RUN(who_handled_the_signal_before_still_does);
    RUN(the_last_close_gives_the_handlers_back_and_removes_the_file);
    RUN(a_crash_of_a_forked_child_blames_no_row_of_its_parent);
    RUN(processes_that_start_at_once_tell_each_crash_once);
    RUN(a_crashed_row_is_in_quarantine_after_the_next_start);
    RUN(a_crash_on_another_machine_waits_for_its_own_start);
    RUN(files_that_are_no_journals_do_no_harm);
    RUN(where_no_file_can_be_made_it_works_in_memory_after_one_warning);
    RUN(a_full_disk_is_found_before_a_mark_is_made);
    RUN(rows_and_marks_are_bounded);
    return test_report();
}
