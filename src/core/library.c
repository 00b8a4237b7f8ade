#include "core/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

/* On the way through the places. */
struct search {
    const char *name;
    void *library;
    char why[256]; /* of the first file that does not open */
};

static void try_file(struct search *s, const char *path)
{
    if (s->library || access(path, R_OK) != 0) return;
    s->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!s->library && !s->why[0]) (void)snprintf(s->why, sizeof s->why, "%s", dlerror());
}

/* In a folder of n bytes; one that is too long for a path is none. */
static void try_folder(struct search *s, const char *folder, size_t n)
{
    char path[PATH_MAX];
    if (n == 0 || n + strlen(s->name) + 2 > sizeof path) return;
    (void)snprintf(path, sizeof path, "%.*s/%s", (int)n, folder, s->name);
    try_file(s, path);
}

/* Of the Python whose files lie in prefix/lib; the second of the places is Debian's. */
static void try_python(struct search *s, const char *prefix)
{
    static const char *const places[] = {"lib", "local/lib"};
    for (int i = 0; i < 2 && prefix && *prefix; i++) {
        char pattern[PATH_MAX];
        glob_t found;
        if (snprintf(pattern, sizeof pattern, "%s/%s/python3*/*-packages/nvidia/*/lib/%s", prefix,
                     places[i], s->name) >= (int)sizeof pattern)
            return;
        if (glob(pattern, 0, NULL, &found) == 0)
            for (size_t k = 0; k < found.gl_pathc; k++) try_file(s, found.gl_pathv[k]);
        globfree(&found);
    }
}

/* Of the program that runs, when it is a Python. */
static void try_own_python(struct search *s)
{
    char exe[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 4);
    if (n <= 0) return;
    exe[n] = 0;
    char *slash = strrchr(exe, '/');
    if (!slash || strncmp(slash, "/python", 7) != 0) return;
    memcpy(slash, "/..", 4);
    try_python(s, exe);
}

/* Of the first python3 on PATH. */
static void try_path_python(struct search *s)
{
    const char *path = getenv("PATH");
    while (path && *path) {
        char file[PATH_MAX];
        const size_t n = strcspn(path, ":");
        const int bytes = snprintf(file, sizeof file, "%.*s/python3", (int)n, path);
        if (n && bytes < (int)sizeof file && access(file, X_OK) == 0) {
            memcpy(file + n, "/..", 4);
            try_python(s, file);
            return;
        }
        path += n + (path[n] == ':');
    }
}

static void *find(struct search *s)
{
    for (const char *at = getenv("SOP_LIBRARY_PATH"); at && *at;) {
        const size_t n = strcspn(at, ":");
        try_folder(s, at, n);
        at += n + (at[n] == ':');
    }
    if (!s->library) s->library = dlopen(s->name, RTLD_NOW | RTLD_LOCAL);
    try_python(s, getenv("VIRTUAL_ENV"));
    if (!s->library) try_own_python(s);
    if (!s->library) try_path_python(s);
    try_folder(s, "/usr/local/cuda/lib64", strlen("/usr/local/cuda/lib64"));
    return s->library;
}

sop_status sop_library_open(const char *const *names, void **out)
{
    struct search s = {.library = NULL};
    *out = NULL;
    for (const char *const *name = names; *name && !*out; name++) {
        s.name = *name;
        *out = find(&s);
    }
    if (*out) return SOP_OK;
    if (s.why[0]) return sop_fail(SOP_E_NOT_FOUND, "%s", s.why);
    return sop_fail(SOP_E_NOT_FOUND,
                    "%s is not in $SOP_LIBRARY_PATH, the loader's path, a Python environment or "
                    "/usr/local/cuda/lib64",
                    names[0]);
}
