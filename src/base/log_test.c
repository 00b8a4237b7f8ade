#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/test.h"

static char last[2048];
static int lines, evaluated;

static void keep(void *ctx, int level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)snprintf(last, sizeof last, "%s", line);
    lines++;
    errno = EPERM;
    sop_log(SOP_LOG_ERROR, "test", "from=the_sink");
}

static int count_evaluation(void)
{
    return ++evaluated;
}

/* The lines that the call makes. */
#define LINES(call) (lines = 0, last[0] = 0, (call), lines)

static void say(int level, const char *area)
{
    sop_log(level, area, "n=%d why=\"%s\"", count_evaluation(), "dim < 16");
}

static void the_environment_says_what_is_shown(void)
{
    CHECK(LINES(say(SOP_LOG_WARN, "test")) == 1); /* SOP_LOG=info,plan=debug,quiet=off: main() */
    CHECK(LINES(say(SOP_LOG_INFO, "test")) == 1);
    CHECK(LINES(say(SOP_LOG_DEBUG, "test")) == 0);
    CHECK(LINES(say(SOP_LOG_DEBUG, "plan")) == 1);
    CHECK(LINES(say(SOP_LOG_DEBUG, "planner")) == 0);
    CHECK(LINES(say(SOP_LOG_ERROR, "quiet")) == 0);
}

static void a_line_is_level_area_and_what_was_said(void)
{
    evaluated = 0;
    say(SOP_LOG_WARN, "plan");
    CHECK(strcmp(last, "warn plan n=1 why=\"dim < 16\"") == 0);
}

static void what_is_not_shown_is_not_evaluated(void)
{
    evaluated = 0;
    say(SOP_LOG_DEBUG, "test");
    CHECK(evaluated == 0);
    CHECK(sop_log_filter("off") == SOP_OK);
    CHECK(sop_log_most == SOP_LOG_OFF);
    say(SOP_LOG_ERROR, "test");
    CHECK(evaluated == 0);
}

static void a_filter_that_is_wrong_changes_nothing(void)
{
    CHECK(sop_log_filter("error,plan=debug") == SOP_OK);
    CHECK(sop_log_filter("warn,plan=loud") == SOP_E_ARG);
    CHECK(strstr(sop_last_error(), "\"plan=loud\""));
    CHECK(sop_log_filter("=debug") == SOP_E_ARG);
    CHECK(sop_log_filter("an_area_whose_name_is_much_too_long=debug") == SOP_E_ARG);
    CHECK(sop_log_filter("loud") == SOP_E_ARG);
    char many[400] = "warn";
    for (int i = 0; i < 17; i++) (void)snprintf(many + strlen(many), 20, ",a%d=info", i);
    CHECK(sop_log_filter(many) == SOP_E_ARG);
    CHECK(LINES(say(SOP_LOG_WARN, "test")) == 0);
    CHECK(LINES(say(SOP_LOG_DEBUG, "plan")) == 1);
    CHECK(sop_log_filter("") == SOP_OK); /* the standard */
    CHECK(LINES(say(SOP_LOG_WARN, "test")) == 1);
    CHECK(LINES(say(SOP_LOG_INFO, "test")) == 0);
    CHECK(sop_log_filter("info,,plan=error,plan=debug,") == SOP_OK); /* the last word counts */
    CHECK(LINES(say(SOP_LOG_DEBUG, "plan")) == 1);
}

static void a_text_cannot_make_a_second_line(void)
{
    CHECK(LINES(sop_log_line(SOP_LOG_WARN, "t", "x=%s", "a\nwarn t y=1\x1b[2J\x7f")) == 1);
    CHECK(strcmp(last, "warn t x=a?warn t y=1?[2J?") == 0);
}

static void a_long_line_is_cut_and_says_so(void)
{
    char big[3000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    sop_log_line(SOP_LOG_WARN, "t", "x=%s", big);
    CHECK(strlen(last) == 1023);
    CHECK(strcmp(last + 1020, "...") == 0);
}

static void logging_leaves_errno_alone(void)
{
    errno = ENOSPC;
    sop_log_line(SOP_LOG_WARN, "t", "x=1");
    CHECK(errno == ENOSPC);
}

static void say_once_in(const char *area, const char *key)
{
    sop_log_once(SOP_LOG_WARN, area, key, "key=%s", key);
}

static void say_once(const char *key)
{
    say_once_in("once", key);
}

static void a_repeated_event_is_shown_once_for_its_key(void)
{
    CHECK(sop_log_filter("warn,once=error") == SOP_OK);
    CHECK(LINES(say_once("a")) == 0); /* not shown, so not used up */
    CHECK(sop_log_filter("warn") == SOP_OK);
    CHECK(LINES(say_once("a")) == 1);
    CHECK(LINES(say_once("a")) == 0);
    CHECK(LINES(say_once("b")) == 1);
    CHECK(LINES(say_once_in("other", "a")) == 1);
    char key[16];
    lines = 0;
    for (int i = 0; i < 2000; i++) {
        (void)snprintf(key, sizeof key, "key %d", i);
        say_once(key);
    }
    CHECK(lines >= 1000 && lines < 1024); /* bounded, and it ends */
}

static void *say_many(void *arg)
{
    for (int i = 0; i < 500; i++) {
        sop_log(SOP_LOG_WARN, "test", "i=%d", i);
        if (i % 100 == 0 && sop_log_filter(arg) != SOP_OK) abort();
    }
    return NULL;
}

static void threads_may_log_and_filter_at_once(void)
{
    static char warn[] = "warn", info[] = "info,plan=debug";
    pthread_t t[3];
    lines = 0;
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&t[i], NULL, say_many, i ? warn : info) == 0);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(t[i], NULL) == 0);
    CHECK(lines == 1500);
}

/* A child with this SOP_LOG that says "x=1" at level warn; what it writes to standard error. */
static size_t child(const char *env, char *out, size_t cap)
{
    int p[2];
    if (pipe(p)) return 0;
    const pid_t pid = fork();
    if (pid == 0) {
        if (dup2(p[1], STDERR_FILENO) < 0) _exit(1);
        (void)setenv("SOP_LOG", env, 1);
        (void)execl("/proc/self/exe", "log_test", "child", (char *)NULL);
        _exit(1);
    }
    (void)close(p[1]);
    size_t n = 0;
    ssize_t got;
    while (n + 1 < cap && (got = read(p[0], out + n, cap - 1 - n)) > 0) n += (size_t)got;
    out[n] = 0;
    (void)close(p[0]);
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    return n;
}

static void lines_go_to_standard_error_and_a_wrong_setting_is_told(void)
{
    char out[1024];
    (void)child("error", out, sizeof out);
    CHECK(strcmp(out, "") == 0);
    (void)child("", out, sizeof out);
    CHECK(strcmp(out, "warn test x=1\n") == 0);
    (void)child("warn,plan=loud", out, sizeof out);
    CHECK(strstr(out, "wrong=\"plan=loud\""));
    CHECK(strstr(out, "\nwarn test x=1\n"));
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) {
        sop_log(SOP_LOG_WARN, "test", "x=%d", 1);
        sop_log(SOP_LOG_INFO, "test", "x=%d", 2);
        return 0;
    }
    (void)setenv("SOP_LOG", "info,plan=debug,quiet=off", 1);
    sop_log_sink(keep, NULL);
    RUN(the_environment_says_what_is_shown);
    RUN(a_line_is_level_area_and_what_was_said);
    RUN(what_is_not_shown_is_not_evaluated);
    RUN(a_filter_that_is_wrong_changes_nothing);
    RUN(a_text_cannot_make_a_second_line);
    RUN(a_long_line_is_cut_and_says_so);
    RUN(logging_leaves_errno_alone);
    RUN(a_repeated_event_is_shown_once_for_its_key);
    RUN(threads_may_log_and_filter_at_once);
    RUN(lines_go_to_standard_error_and_a_wrong_setting_is_told);
    return test_report();
}
