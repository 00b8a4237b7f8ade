#include "core/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/test.h"

/* SOP_TEST_LIBRARY is the path of a library, of which this test lays links. */
static char root[PATH_MAX];

/* root/folder/file as a link to the library, or with other content; folder is made part by part. */
static void lay(const char *folder, const char *file, const char *content)
{
    char path[2 * PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/%s/%s", root, folder, file);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')) != NULL; *p++ = '/') {
        *p = 0;
        (void)mkdir(path, 0700);
    }
    if (!content) {
        CHECK(symlink(SOP_TEST_LIBRARY, path) == 0);
        return;
    }
    FILE *f = fopen(path, "we");
    CHECK(f != NULL);
    if (f) CHECK(fputs(content, f) >= 0 && fclose(f) == 0);
}

static void set(const char *name, const char *under)
{
    char value[2 * PATH_MAX];
    (void)snprintf(value, sizeof value, "%s/%s", root, under);
    CHECK(setenv(name, value, 1) == 0);
}

/* Which file of the test was opened: its path below root, or "". */
static const char *opened(const char *newest, const char *older)
{
    static char path[PATH_MAX];
    const char *const names[] = {newest, older, NULL};
    void *library = NULL, *rows;
    Dl_info info;
    path[0] = 0;
    if (sop_library_open(names, &library) != SOP_OK) return path;
    rows = dlsym(library, "sop_plugin_rows");
    CHECK(rows && dladdr(rows, &info) != 0);
    if (rows) (void)snprintf(path, sizeof path, "%s", info.dli_fname + strlen(root) + 1);
    CHECK(dlclose(library) == 0); /* the next one is opened anew, under its own name */
    return path;
}

static void nothing_set(void)
{
    set("PATH", "none");
    CHECK(unsetenv("VIRTUAL_ENV") == 0 && unsetenv("SOP_LIBRARY_PATH") == 0);
}

static void a_folder_that_is_named_goes_first(void)
{
    nothing_set();
    lay("named", "libsop_a.so.2", NULL);
    lay("env/lib/python3.9/site-packages/nvidia/cu13/lib", "libsop_a.so.2", NULL);
    set("VIRTUAL_ENV", "env");
    CHECK(strstr(opened("libsop_a.so.2", NULL), "env/lib/python3.9/"));
    char value[3 * PATH_MAX];
    (void)snprintf(value, sizeof value, "/nowhere::%s/named", root);
    CHECK(setenv("SOP_LIBRARY_PATH", value, 1) == 0);
    CHECK(strcmp(opened("libsop_a.so.2", NULL), "named/libsop_a.so.2") == 0);
}

static void the_newest_goes_first_wherever_it_lies(void)
{
    nothing_set();
    lay("older", "libsop_b.so.1", NULL);
    lay("env2/lib/python3.11/site-packages/nvidia/cublas/lib", "libsop_b.so.2", NULL);
    set("SOP_LIBRARY_PATH", "older");
    CHECK(strcmp(opened("libsop_b.so.2", "libsop_b.so.1"), "older/libsop_b.so.1") == 0);
    set("VIRTUAL_ENV", "env2");
    CHECK(strstr(opened("libsop_b.so.2", "libsop_b.so.1"), "nvidia/cublas/lib/libsop_b.so.2"));
}

static void the_python_on_the_path_has_it(void)
{
    nothing_set();
    lay("usr/bin", "python3", "");
    lay("usr/local/lib/python3.12/dist-packages/nvidia/cu13/lib", "libsop_c.so.2", NULL);
    char value[3 * PATH_MAX], python[2 * PATH_MAX];
    (void)snprintf(value, sizeof value, "%s/none:%s/usr/bin", root, root);
    (void)snprintf(python, sizeof python, "%s/usr/bin/python3", root);
    CHECK(setenv("PATH", value, 1) == 0);
    CHECK(opened("libsop_c.so.2", NULL)[0] == 0); /* it is no program yet */
    CHECK(chmod(python, 0700) == 0);
    CHECK(strstr(opened("libsop_c.so.2", NULL), "dist-packages/nvidia/cu13/lib/libsop_c.so.2"));
}

static void what_is_nowhere_is_said(void)
{
    const char *const names[] = {"libsop_none.so.2", "libsop_none.so.1", NULL};
    void *library = &library;
    nothing_set();
    CHECK(sop_library_open(names, &library) == SOP_E_NOT_FOUND && !library);
    CHECK(strcmp(sop_last_error(),
                 "libsop_none.so.2 is not in $SOP_LIBRARY_PATH, the loader's path, a Python "
                 "environment or /usr/local/cuda/lib64") == 0);
}

static void a_file_that_does_not_open_is_named(void)
{
    const char *const names[] = {"libsop_d.so.2", NULL};
    void *library;
    nothing_set();
    lay("bad", "libsop_d.so.2", "no library");
    set("SOP_LIBRARY_PATH", "bad");
    CHECK(sop_library_open(names, &library) == SOP_E_NOT_FOUND && !library);
    CHECK(strstr(sop_last_error(), "/bad/libsop_d.so.2: "));
}

int main(void)
{
    char command[PATH_MAX + 16];
    (void)snprintf(root, sizeof root, "/tmp/library_test.XXXXXX");
    if (!mkdtemp(root)) return 1;
    (void)snprintf(command, sizeof command, "/bin/rm -rf '%s'", root);
    RUN(a_folder_that_is_named_goes_first);
    RUN(the_newest_goes_first_wherever_it_lies);
    RUN(the_python_on_the_path_has_it);
    RUN(what_is_nowhere_is_said);
    RUN(a_file_that_does_not_open_is_named);
    if (system(command) != 0) return 1;
    return test_report();
}
