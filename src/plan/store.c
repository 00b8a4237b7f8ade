/* What this machine knows of its rows, on disk and in memory.
 *
 * The memory is the process's truth: a snapshot, an open hash table that is never changed once it is
 * published. A put copies it, changes the copy and publishes that; readers hold a count on the one they
 * look at. A snapshot's struct is never freed while the store lives, only used again once its count is
 * 0, so a reader that comes too late finds a 0 there and looks again. */
#include "plan/store.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"

enum { PATH_TEXT = 4096, WAIT_MS = 5000 };

struct entry {
    uint64_t key; /* of variant, source and desc class; 0: an empty place */
    double median_ns, error, bound;
    int64_t n;
    const char *reason; /* of the quarantine, or NULL; a text of the store */
    int32_t verdict;
    int32_t unsaved; /* only this process knows it */
};

struct snapshot {
    _Atomic int64_t refs; /* 1 for being current, 1 for each reader; 0: free to be used again */
    struct snapshot *next;
    struct entry *table; /* [cap], a power of two, at most half full */
    size_t cap, used, n_times, n_quarantined;
};

struct text {
    struct text *next;
    char text[];
};

struct sop_store {
    struct snapshot *_Atomic current;
    _Atomic uint64_t epoch;
    pthread_mutex_t lock; /* of all below, and of changing current */
    struct snapshot *snapshots;
    struct text *reasons;
    sqlite3 *db; /* NULL: memory alone */
    int64_t data_version;
    char *path, *fingerprint;
};

/* ---- memory ---- */

static struct snapshot *acquire(sop_store *s)
{
    for (;;) {
        struct snapshot *snap = atomic_load_explicit(&s->current, memory_order_acquire);
        int64_t refs = atomic_load_explicit(&snap->refs, memory_order_relaxed);
        while (refs > 0)
            if (atomic_compare_exchange_weak_explicit(&snap->refs, &refs, refs + 1,
                                                      memory_order_acquire, memory_order_relaxed))
                return snap;
    }
}

static void release(struct snapshot *snap)
{
    atomic_fetch_sub_explicit(&snap->refs, 1, memory_order_release);
}

static uint64_t text_hash(const char *text)
{
    return sop_hash(text, strlen(text), 0);
}

static uint64_t key_of(const char *variant, const char *source, const char *desc_class)
{
    const uint64_t row = sop_hash_pair(text_hash(variant), text_hash(source));
    const uint64_t key = sop_hash_pair(row, text_hash(desc_class));
    return key ? key : 1;
}

/* Where a key is, or the empty place where it would be. */
static struct entry *place(const struct snapshot *snap, uint64_t key)
{
    size_t i = key & (snap->cap - 1);
    while (snap->table[i].key && snap->table[i].key != key) i = (i + 1) & (snap->cap - 1);
    return &snap->table[i];
}

/* Under the lock: an empty snapshot with room for n entries, not yet published. */
static struct snapshot *snapshot_new(sop_store *s, size_t n)
{
    size_t cap = 64;
    while (cap < 2 * n) cap *= 2;
    struct entry *table = calloc(cap, sizeof *table);
    struct snapshot *snap = s->snapshots;
    while (snap && atomic_load_explicit(&snap->refs, memory_order_acquire) != 0) snap = snap->next;
    if (!snap && table && (snap = calloc(1, sizeof *snap)) != NULL) {
        snap->next = s->snapshots;
        s->snapshots = snap;
    }
    if (!snap || !table) {
        free(table);
        return NULL;
    }
    free(snap->table);
    snap->table = table;
    snap->cap = cap;
    snap->used = snap->n_times = snap->n_quarantined = 0;
    return snap;
}

/* What stands under the key, made if it is not there; before it is changed. */
static struct entry *take_out(struct snapshot *snap, uint64_t key)
{
    struct entry *e = place(snap, key);
    snap->used += !e->key;
    snap->n_times -= e->median_ns > 0;
    snap->n_quarantined -= e->reason != NULL;
    e->key = key;
    return e;
}

static void put_back(struct snapshot *snap, const struct entry *e)
{
    snap->n_times += e->median_ns > 0;
    snap->n_quarantined += e->reason != NULL;
}

static void add_entry(struct snapshot *snap, const struct entry *e)
{
    struct entry *to = take_out(snap, e->key);
    *to = *e;
    put_back(snap, to);
}

/* Under the lock: readers see snap from now on. */
static void publish(sop_store *s, struct snapshot *snap)
{
    struct snapshot *old = atomic_load_explicit(&s->current, memory_order_relaxed);
    int changed = old && old->n_quarantined != snap->n_quarantined;
    for (size_t i = 0; old && old->n_quarantined && !changed && i < old->cap; i++)
        changed = old->table[i].reason && !place(snap, old->table[i].key)->reason;
    atomic_store_explicit(&snap->refs, 1, memory_order_release);
    atomic_store_explicit(&s->current, snap, memory_order_release);
    if (changed) atomic_fetch_add(&s->epoch, 1);
    if (old) release(old);
}

/* Under the lock: the same text for as long as the store lives; NULL without memory. */
static const char *keep_reason(sop_store *s, const char *reason)
{
    for (struct text *t = s->reasons; t; t = t->next)
        if (strcmp(t->text, reason) == 0) return t->text;
    const size_t n = strlen(reason) + 1;
    struct text *t = malloc(sizeof *t + n);
    if (!t) return NULL;
    memcpy(t->text, reason, n);
    t->next = s->reasons;
    s->reasons = t;
    return t->text;
}

/* ---- disk ---- */

#define COLUMNS "variant,source,fingerprint,desc_class,verdict,error,bound,median_ns,n,reason,time"
#define KEY "variant=?1 AND source=?2 AND fingerprint=?3 AND desc_class=?4"
#define DAMAGED "sum IS NOT sop_sum(" COLUMNS ")"

enum { APPLICATION_ID = 0x736f7031 };

/* desc_class '' is the row as a whole: what a quarantine is about. The file's schema is this text or it
 * is not our file. */
static const char create[] =
    "CREATE TABLE known(variant TEXT NOT NULL,source TEXT NOT NULL,fingerprint TEXT NOT NULL,"
    "desc_class TEXT NOT NULL,verdict INTEGER NOT NULL DEFAULT 0,error REAL NOT NULL DEFAULT 0,"
    "bound REAL NOT NULL DEFAULT 0,median_ns REAL NOT NULL DEFAULT 0,n INTEGER NOT NULL DEFAULT 0,"
    "reason TEXT,time INTEGER NOT NULL,sum INTEGER NOT NULL DEFAULT 0,"
    "PRIMARY KEY(variant,source,fingerprint,desc_class))WITHOUT ROWID,STRICT";

/* sop_sum(...) in SQL: the checksum of all other columns of a row. */
static void sum_columns(sqlite3_context *context, int n, sqlite3_value **value)
{
    uint64_t h = (uint64_t)n;
    for (int i = 0; i < n; i++) {
        const int type = sqlite3_value_type(value[i]);
        if (type == SQLITE_INTEGER) {
            h = sop_hash_pair(h, (uint64_t)sqlite3_value_int64(value[i]));
        } else if (type == SQLITE_FLOAT) {
            const double x = sqlite3_value_double(value[i]);
            h = sop_hash(&x, sizeof x, h);
        } else if (type != SQLITE_NULL) {
            const void *bytes = sqlite3_value_blob(value[i]);
            h = sop_hash(bytes ? bytes : "", (size_t)sqlite3_value_bytes(value[i]), h);
        }
        h = sop_hash_pair(h, (uint64_t)type);
    }
    sqlite3_result_int64(context, (int64_t)h);
}

/* One statement without rows; returns SQLite's code. */
static int execute(sqlite3 *db, const char *sql)
{
    return sqlite3_exec(db, sql, NULL, NULL, NULL);
}

/* The integer that a query gives; returns SQLite's code. */
static int query_int(sqlite3 *db, const char *sql, int64_t *out)
{
    sqlite3_stmt *q = NULL;
    int code = sqlite3_prepare_v2(db, sql, -1, &q, NULL);
    if (code == SQLITE_OK && (code = sqlite3_step(q)) == SQLITE_ROW) {
        *out = sqlite3_column_int64(q, 0);
        code = SQLITE_OK;
    }
    (void)sqlite3_finalize(q);
    return code;
}

/* Whether the schema is ours, made when the file is empty. Inside a transaction; returns SQLite's code,
 * SQLITE_NOTADB when it is another's. */
static int make_schema(sqlite3 *db)
{
    char sql[1024];
    int64_t things = 0, id = 0, same = 0;
    int code = query_int(db, "SELECT count(*) FROM sqlite_schema", &things);
    if (code == SQLITE_OK) code = query_int(db, "PRAGMA application_id", &id);
    if (code == SQLITE_OK && things == 0 && id == 0) {
        (void)snprintf(sql, sizeof sql, "PRAGMA application_id=%d", APPLICATION_ID);
        code = execute(db, create);
        return code == SQLITE_OK ? execute(db, sql) : code;
    }
    (void)snprintf(sql, sizeof sql, "SELECT count(*) FROM sqlite_schema WHERE sql='%s'", create);
    if (code == SQLITE_OK) code = query_int(db, sql, &same);
    if (code == SQLITE_OK && (things != 1 || id != APPLICATION_ID || same != 1))
        return SQLITE_NOTADB;
    return code;
}

/* SQLite's code as ours: SOP_E_FORMAT when the file itself is to blame. Our statements are right, so a
 * general error is one of the file's; and so is being read-only for a reason that stands in it. */
static sop_status fail_with(int code, const char *path, const char *why)
{
    const int first = code & 0xff;
    const int damaged = first == SQLITE_CORRUPT || first == SQLITE_NOTADB ||
                        first == SQLITE_ERROR ||
                        (code == SQLITE_READONLY && access(path, W_OK) == 0);
    return sop_fail(damaged ? SOP_E_FORMAT : SOP_E_IO, "store %s: %s", path, why);
}

/* Inside a transaction: our schema, and no damaged rows. */
static sop_status make_ready(sqlite3 *db, const char *path)
{
    int code = make_schema(db);
    if (code == SQLITE_NOTADB)
        return fail_with(code, path, "it is none, or one of another version");
    if (code == SQLITE_OK) code = execute(db, "DELETE FROM known WHERE " DAMAGED);
    if (code != SQLITE_OK) return fail_with(code, path, sqlite3_errmsg(db));
    const int lost = sqlite3_changes(db);
    if (lost)
        sop_log(SOP_LOG_WARN, "store", "path=\"%s\" why=\"%d rows are damaged\" now=forgotten",
                path, lost);
    return SOP_OK;
}

static sop_status quick_check(sqlite3 *db, const char *path)
{
    sqlite3_stmt *q = NULL;
    sop_status status = SOP_OK;
    int code = sqlite3_prepare_v2(db, "PRAGMA quick_check(1)", -1, &q, NULL);
    if (code == SQLITE_OK) code = sqlite3_step(q);
    const char *said = code == SQLITE_ROW ? (const char *)sqlite3_column_text(q, 0) : NULL;
    if (!said) {
        status = fail_with(code, path, sqlite3_errmsg(db));
    } else if (strcmp(said, "ok") != 0) {
        const char *error = strstr(said, "error code="); /* a page that could not be read */
        code = error ? (int)strtol(strchr(error, '=') + 1, NULL, 10) : SQLITE_CORRUPT;
        status = fail_with(code, path, said);
    }
    (void)sqlite3_finalize(q);
    return status;
}

/* SOP_E_FORMAT when the file is damaged or not ours. */
static sop_status open_file(const char *path, sqlite3 **out)
{
    static const char *const settings[] = {"PRAGMA cell_size_check=ON", "PRAGMA journal_mode=WAL",
                                           "PRAGMA synchronous=NORMAL"};
    sqlite3 *db = NULL;
    sop_status status = SOP_OK;
    int code = sqlite3_open_v2(
        path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    if (code == SQLITE_OK) {
        (void)sqlite3_extended_result_codes(db, 1);
        (void)sqlite3_busy_timeout(db, WAIT_MS);
        (void)sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
        (void)sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
        code = sqlite3_create_function(db, "sop_sum", -1,
                                       SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS, NULL,
                                       sum_columns, NULL, NULL);
    }
    for (int i = 0; code == SQLITE_OK && i < 3; i++) code = execute(db, settings[i]);
    if (code == SQLITE_OK) {
        status = quick_check(db, path);
        if (status == SOP_OK) code = execute(db, "BEGIN IMMEDIATE");
        if (status == SOP_OK && code == SQLITE_OK) status = make_ready(db, path);
        if (status == SOP_OK && code == SQLITE_OK) code = execute(db, "COMMIT");
    }
    if (status == SOP_OK && code != SQLITE_OK)
        status = fail_with(code, path, db ? sqlite3_errmsg(db) : sqlite3_errstr(code));
    if (status != SOP_OK) {
        (void)sqlite3_close(db);
        db = NULL;
    }
    *out = db;
    return status;
}

/* The file and what SQLite keeps beside it: an old write-ahead log must not be replayed into a new
 * file. Under the folder's lock. The ninth file aside is replaced by a tenth. */
static int move_aside(const char *path)
{
    static const char *const tail[] = {"-wal", "-shm", ""};
    char from[PATH_TEXT], to[PATH_TEXT + 32];
    int number = 1, moved = 1;
    do (void)snprintf(to, sizeof to, "%s.aside-%d", path, number);
    while (access(to, F_OK) == 0 && ++number < 10);
    for (int i = 0; i < 3; i++) {
        (void)snprintf(from, sizeof from, "%s%s", path, tail[i]);
        (void)snprintf(to, sizeof to, "%s.aside-%d%s", path, number, tail[i]);
        moved = rename(from, to) == 0 || (i < 2 && errno == ENOENT);
    }
    return moved;
}

/* One process at a time looks whether the file is good and makes it: the folder's lock. */
static sop_status lock_folder(const char *folder, int *out)
{
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = fd < 0 ? errno : 0;
    for (int ms = 0; fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0; ms += 10) {
        error = errno;
        if ((error != EWOULDBLOCK && error != EINTR) || ms >= WAIT_MS) break;
        error = 0;
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    *out = fd;
    return error ? sop_fail(SOP_E_IO, "%s: %s", folder, strerror(error)) : SOP_OK;
}

static sop_status place_of_file(const char *path, char file[PATH_TEXT], char folder[PATH_TEXT])
{
    size_t n;
    file[0] = folder[0] = 0;
    if (path) {
        const char *slash = strrchr(path, '/');
        n = (size_t)snprintf(file, PATH_TEXT, "%s", path);
        (void)snprintf(folder, PATH_TEXT, "%.*s", slash > path ? (int)(slash - path) : 1,
                       slash ? path : ".");
    } else {
        SOP_TRY(sop_cache_dir(folder, PATH_TEXT));
        n = (size_t)snprintf(file, PATH_TEXT, "%s/store.sqlite", folder);
    }
    if (n >= PATH_TEXT - 64) /* room for what is put after it */
        return sop_fail(SOP_E_LIMIT, "the path has %zu bytes, at most %d", n, PATH_TEXT - 65);
    return sop_make_dirs(folder);
}

/* Leaves db NULL, after one warning, when nothing can be kept on disk. */
static void open_disk(sop_store *s, const char *path)
{
    char folder[PATH_TEXT], file[PATH_TEXT];
    int lock = -1;
    sop_status status = place_of_file(path, file, folder);
    if (status == SOP_OK) status = lock_folder(folder, &lock);
    if (status == SOP_OK) {
        status = open_file(file, &s->db);
        if (status == SOP_E_FORMAT && move_aside(file)) {
            sop_log(SOP_LOG_WARN, "store", "why=\"%s\" now=\"moved aside\"", sop_last_error());
            status = open_file(file, &s->db);
        }
    }
    if (lock >= 0) (void)close(lock);
    s->path = strdup(file);
    if (status != SOP_OK) /* keyed by the folder, so that store and journal warn together once */
        sop_log_once(SOP_LOG_WARN, "cache", folder,
                     "why=\"%s\" path=\"%s\" now=\"kept in memory only\" "
                     "setting=\"XDG_CACHE_HOME, a folder that can be written\"",
                     sop_last_error(), file);
}

static const char *column_text(sqlite3_stmt *q, int i)
{
    const char *text = (const char *)sqlite3_column_text(q, i);
    return text ? text : "";
}

/* Inside a transaction: the good rows of this device. */
static int read_rows(sop_store *s, struct snapshot *snap)
{
    sqlite3_stmt *q = NULL;
    int code =
        sqlite3_prepare_v2(s->db,
                           "SELECT variant,source,desc_class,verdict,error,bound,median_ns,n,"
                           "reason FROM known WHERE fingerprint=?1 AND NOT (" DAMAGED ")",
                           -1, &q, NULL);
    if (code == SQLITE_OK) code = sqlite3_bind_text(q, 1, s->fingerprint, -1, SQLITE_STATIC);
    while (code == SQLITE_OK && (code = sqlite3_step(q)) == SQLITE_ROW) {
        const char *reason = (const char *)sqlite3_column_text(q, 8);
        const struct entry e = {.key =
                                    key_of(column_text(q, 0), column_text(q, 1), column_text(q, 2)),
                                .verdict = sqlite3_column_int(q, 3),
                                .error = sqlite3_column_double(q, 4),
                                .bound = sqlite3_column_double(q, 5),
                                .median_ns = sqlite3_column_double(q, 6),
                                .n = sqlite3_column_int64(q, 7),
                                .reason = reason ? keep_reason(s, reason) : NULL};
        code = reason && !e.reason ? SQLITE_NOMEM : SQLITE_OK;
        add_entry(snap, &e);
    }
    (void)sqlite3_finalize(q);
    return code == SQLITE_DONE ? SQLITE_OK : code;
}

/* Under the lock: publish the file's rows, and what only memory knows. SOP_E_IO: what could be read,
 * and all that was known before. */
static sop_status load(sop_store *s)
{
    const struct snapshot *old = atomic_load_explicit(&s->current, memory_order_relaxed);
    int code = s->db ? execute(s->db, "BEGIN") : SQLITE_OK; /* count and rows of one moment */
    int64_t rows = 0;
    if (s->db && code == SQLITE_OK) code = query_int(s->db, "SELECT count(*) FROM known", &rows);
    struct snapshot *snap = snapshot_new(s, (size_t)rows + (old ? old->used : 0));
    if (snap && s->db && code == SQLITE_OK) code = read_rows(s, snap);
    if (code != SQLITE_OK) (void)fail_with(code, s->path ? s->path : "", sqlite3_errmsg(s->db));
    if (s->db) (void)execute(s->db, "ROLLBACK");
    if (!snap) return sop_fail(SOP_E_NOMEM, "store: a snapshot of %lld rows", (long long)rows);
    for (size_t i = 0; old && i < old->cap; i++)
        if (old->table[i].key && (old->table[i].unsaved || code != SQLITE_OK))
            add_entry(snap, &old->table[i]);
    publish(s, snap);
    return code == SQLITE_OK ? SOP_OK : SOP_E_IO;
}

sop_status sop_store_refresh(sop_store *s)
{
    int64_t version = 0; /* SQLite's, before it is read: other processes' writes change it */
    (void)pthread_mutex_lock(&s->lock);
    const int code = s->db ? query_int(s->db, "PRAGMA data_version", &version) : SQLITE_OK;
    sop_status status = SOP_OK;
    if (code != SQLITE_OK || version != s->data_version) status = load(s);
    if (status == SOP_OK) s->data_version = version;
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

sop_status sop_store_open(const char *path, const char *fingerprint, sop_store **out)
{
    *out = NULL;
    sop_store *s = calloc(1, sizeof *s);
    if (!s) return sop_fail(SOP_E_NOMEM, "store: %zu bytes", sizeof *s);
    (void)pthread_mutex_init(&s->lock, NULL);
    s->fingerprint = strdup(fingerprint);
    sop_status status = s->fingerprint ? SOP_OK : sop_fail(SOP_E_NOMEM, "store: its fingerprint");
    if (status == SOP_OK) {
        if (!path || *path) open_disk(s, path);
        s->data_version = -1; /* not loaded */
        status = sop_store_refresh(s);
        if (status == SOP_E_IO) { /* what could be read is there */
            sop_log(SOP_LOG_WARN, "store", "why=\"%s\"", sop_last_error());
            status = SOP_OK;
        }
    }
    if (status == SOP_OK)
        *out = s;
    else
        sop_store_close(s);
    return status;
}

void sop_store_close(sop_store *s)
{
    if (!s) return;
    (void)sqlite3_close(s->db);
    while (s->snapshots) {
        struct snapshot *next = s->snapshots->next;
        free(s->snapshots->table);
        free(s->snapshots);
        s->snapshots = next;
    }
    while (s->reasons) {
        struct text *next = s->reasons->next;
        free(s->reasons);
        s->reasons = next;
    }
    (void)pthread_mutex_destroy(&s->lock);
    free(s->path);
    free(s->fingerprint);
    free(s);
}

int sop_store_on_disk(const sop_store *s)
{
    return s->db != NULL;
}

/* ---- puts ---- */

enum what { TIME, PROOF, QUARANTINE, RELEASE };

struct change {
    enum what what;
    const char *variant, *source, *desc_class, *reason;
    double x, y; /* median_ns; error and bound */
    int64_t n;   /* n; verdict */
};

static int write_change(sop_store *s, const struct change *c)
{
    static const char *const sql[] = {
        [TIME] = "INSERT INTO known(variant,source,fingerprint,desc_class,median_ns,n,time)"
                 "VALUES(?1,?2,?3,?4,?5,?7,unixepoch())ON CONFLICT DO UPDATE SET "
                 "median_ns=excluded.median_ns,n=excluded.n,time=excluded.time",
        [PROOF] =
            "INSERT INTO known(variant,source,fingerprint,desc_class,error,bound,verdict,time)"
            "VALUES(?1,?2,?3,?4,?5,?6,?7,unixepoch())ON CONFLICT DO UPDATE SET "
            "error=excluded.error,bound=excluded.bound,verdict=excluded.verdict,"
            "time=excluded.time",
        [QUARANTINE] = "INSERT INTO known(variant,source,fingerprint,desc_class,reason,time)"
                       "VALUES(?1,?2,?3,?4,?8,unixepoch())ON CONFLICT DO UPDATE SET "
                       "reason=coalesce(reason,excluded.reason),time=excluded.time",
        [RELEASE] = ("UPDATE known SET reason=NULL,time=unixepoch() WHERE " KEY),
    };
    const char *const steps[] = {"DELETE FROM known WHERE " KEY " AND " DAMAGED, sql[c->what],
                                 "UPDATE known SET sum=sop_sum(" COLUMNS ")WHERE " KEY};
    int code = execute(s->db, "BEGIN IMMEDIATE");
    if (code != SQLITE_OK) return code;
    for (int i = 0; code == SQLITE_OK && i < 3; i++) {
        sqlite3_stmt *q = NULL;
        code = sqlite3_prepare_v2(s->db, steps[i], -1, &q, NULL);
        const int n = code == SQLITE_OK ? sqlite3_bind_parameter_count(q) : 0;
        const char *const text[] = {c->variant, c->source, s->fingerprint, c->desc_class};
        for (int k = 1; k <= 4 && k <= n; k++)
            (void)sqlite3_bind_text(q, k, text[k - 1], -1, SQLITE_STATIC);
        if (n >= 5) (void)sqlite3_bind_double(q, 5, c->x);
        if (n >= 6) (void)sqlite3_bind_double(q, 6, c->y);
        if (n >= 7) (void)sqlite3_bind_int64(q, 7, c->n);
        if (n >= 8) (void)sqlite3_bind_text(q, 8, c->reason, -1, SQLITE_STATIC);
        if (code == SQLITE_OK && (code = sqlite3_step(q)) == SQLITE_DONE) code = SQLITE_OK;
        (void)sqlite3_finalize(q);
    }
    if (code == SQLITE_OK) code = execute(s->db, "COMMIT");
    if (code != SQLITE_OK) (void)execute(s->db, "ROLLBACK");
    return code;
}

/* Under the lock. */
static sop_status put_locked(sop_store *s, const struct change *c)
{
    const struct snapshot *old = atomic_load_explicit(&s->current, memory_order_relaxed);
    const uint64_t key = key_of(c->variant, c->source, c->desc_class);
    if (c->what == RELEASE && !place(old, key)->reason)
        return sop_fail(SOP_E_NOT_FOUND, "store: %s is not in quarantine", c->variant);
    struct snapshot *snap = snapshot_new(s, old->used + 1);
    const char *reason = c->reason ? keep_reason(s, c->reason) : NULL;
    if (!snap || (c->reason && !reason))
        return sop_fail(SOP_E_NOMEM, "store: a snapshot of %zu rows", old->used + 1);
    for (size_t i = 0; i < old->cap; i++)
        if (old->table[i].key) add_entry(snap, &old->table[i]);
    const int code = s->db ? write_change(s, c) : SQLITE_OK;
    struct entry *e = take_out(snap, key);
    if (code != SQLITE_OK || !s->db) e->unsaved = 1;
    switch (c->what) {
    case TIME:
        e->median_ns = c->x;
        e->n = c->n;
        break;
    case PROOF:
        e->error = c->x;
        e->bound = c->y;
        e->verdict = (int32_t)c->n;
        break;
    case QUARANTINE:
        if (!e->reason) e->reason = reason;
        break;
    case RELEASE: e->reason = NULL; break;
    }
    put_back(snap, e);
    publish(s, snap);
    if (code == SQLITE_OK) return SOP_OK;
    (void)sop_fail(SOP_E_IO, "store %s: %s; it holds for this process only", s->path ? s->path : "",
                   sqlite3_errstr(code));
    sop_log_once(SOP_LOG_WARN, "store", s->path ? s->path : "", "why=\"%s\"", sop_last_error());
    return SOP_E_IO;
}

static sop_status put(sop_store *s, const struct change *c)
{
    (void)pthread_mutex_lock(&s->lock);
    const sop_status status = put_locked(s, c);
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

sop_status sop_store_put_time(sop_store *s, const char *variant, const char *source,
                              const char *desc_class, double median_ns, int64_t n)
{
    if (!(median_ns > 0) || isinf(median_ns) || n < 1)
        return sop_fail(SOP_E_ARG, "store: %s took %g ns, median of %lld: must be over 0", variant,
                        median_ns, (long long)n);
    const struct change c = {TIME, variant, source, desc_class, NULL, median_ns, 0, n};
    return put(s, &c);
}

sop_status sop_store_put_proof(sop_store *s, const char *variant, const char *source,
                               const char *desc_class, int32_t verdict, double error, double bound)
{
    const struct change c = {PROOF,
                             variant,
                             source,
                             desc_class,
                             NULL,
                             isnan(error) ? (double)INFINITY : error, /* SQLite has no NaN */
                             isnan(bound) ? (double)INFINITY : bound,
                             verdict};
    return put(s, &c);
}

sop_status sop_store_quarantine(sop_store *s, const char *variant, const char *source,
                                const char *reason)
{
    const struct change c = {QUARANTINE, variant, source, "", reason, 0, 0, 0};
    return put(s, &c);
}

sop_status sop_store_release(sop_store *s, const char *variant, const char *source)
{
    const struct change c = {RELEASE, variant, source, "", NULL, 0, 0, 0};
    return put(s, &c);
}

/* ---- lookups ---- */

uint64_t sop_store_epoch(const sop_store *s)
{
    return atomic_load_explicit(&s->epoch, memory_order_acquire);
}

const char *sop_store_quarantined(sop_store *s, const char *variant, const char *source)
{
    struct snapshot *snap = acquire(s);
    const char *reason =
        snap->n_quarantined ? place(snap, key_of(variant, source, ""))->reason : NULL;
    release(snap);
    return reason;
}

double sop_store_time(sop_store *s, const char *variant, const char *source, const char *desc_class)
{
    struct snapshot *snap = acquire(s);
    const double ns =
        snap->n_times ? place(snap, key_of(variant, source, desc_class))->median_ns : 0;
    release(snap);
    return ns;
}

int sop_store_has_times(sop_store *s)
{
    struct snapshot *snap = acquire(s);
    const int has = snap->n_times > 0;
    release(snap);
    return has;
}

sop_proof sop_store_proof(sop_store *s, const char *variant, const char *source,
                          const char *desc_class)
{
    struct snapshot *snap = acquire(s);
    const struct entry *e = place(snap, key_of(variant, source, desc_class));
    const sop_proof proof = {e->verdict, e->error, e->bound};
    release(snap);
    return proof;
}
