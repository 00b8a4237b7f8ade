/* What this machine can do at most, with the threads of one device, measured once a process. */
#include "harness/ceilings.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/status.h"
#include "core/cpu.h"
#include "core/op.h"
#include "harness/harness.h"

/* Threads take pieces of about 50 us; what is timed is 8 pieces a thread, short enough to fall between
 * two interruptions by other processes, again and again: the least time counts. */
enum { READ_PIECE = 1 << 20, STEPS = 20000, PIECES = 8 };
static const double loop_s = 0.05, read_s = 0.15;

struct work {
    const sop_ceiling_loops *loops;
    const char *buffer, *at; /* at: where the reading stands */
    size_t bytes;
};

/* ---- portable loops, for processors without AVX2 ---- */

static void read_plain(const void *p, size_t bytes)
{
    const uint64_t *v = p;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (size_t i = 0; i < bytes / 8; i += 4)
        a += v[i], b += v[i + 1], c += v[i + 2], d += v[i + 3];
    a += b + c + d;
    __asm__ volatile("" : : "r"(a));
}

static void f32_plain(int64_t steps)
{
    float r[16];
    for (int k = 0; k < 16; k++) r[k] = (float)k;
    for (int64_t i = 0; i < steps; i++)
        for (int k = 0; k < 16; k++) r[k] = r[k] * 0.999f + 1e-3f;
    for (int k = 1; k < 16; k++) r[0] += r[k];
    __asm__ volatile("" : : "g"(r[0]));
}

static void i8_plain(int64_t steps)
{
    int32_t sum[16];
    for (int k = 0; k < 16; k++) sum[k] = k;
    for (int64_t i = 0; i < steps; i++)
        for (int k = 0; k < 16; k++) sum[k] += (int8_t)(sum[k] & 0x7f) * (int8_t)i;
    for (int k = 1; k < 16; k++) sum[0] ^= sum[k];
    __asm__ volatile("" : : "g"(sum[0]));
}

static const sop_ceiling_loops plain = {read_plain, f32_plain, i8_plain, 32, 32};

/* ---- the measurement ---- */

static void read_pieces(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    const struct work *w = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) w->loops->read(w->at + i * READ_PIECE, READ_PIECE);
}

static void f32_pieces(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    for (int64_t i = begin; i < end; i++) ((const struct work *)arg)->loops->f32(STEPS);
}

static void i8_pieces(const void *arg, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    for (int64_t i = begin; i < end; i++) ((const struct work *)arg)->loops->i8(STEPS);
}

/* Pieces a second, at best. Reading goes on through the buffer, which ends and starts again. */
static double best_rate(sop_queue *q, int64_t n, sop_range_fn *fn, struct work *w, double budget_s)
{
    const double start = sop_now_s();
    double least = 1e9;
    w->at = w->buffer;
    for (double now = start; now - start < budget_s;) {
        const double from = now;
        sop_parallel(q, n, 1, fn, w);
        now = sop_now_s();
        if (now - from < least) least = now - from;
        w->at += n * READ_PIECE;
        if (w->at + n * READ_PIECE > w->buffer + w->bytes) w->at = w->buffer;
    }
    return (double)n / least;
}

size_t sop_rotation_bytes(const sop_device *d)
{
    sop_facts facts;
    const size_t least = (size_t)64 << 20, most = (size_t)256 << 20;
    d->ops->facts(d, &facts);
    const size_t bytes = 4 * (size_t)facts.l3_bytes;
    return bytes < least ? least : bytes > most ? most : bytes;
}

static sop_status measure(sop_device *d, int32_t workers, sop_ceilings *out)
{
    const uint32_t features = sop_cpu_features();
    const size_t bytes = sop_rotation_bytes(d);
    const int64_t n = PIECES * (int64_t)workers;
    struct work w = {.loops = features & SOP_CPU_VNNI   ? &sop_ceiling_loops_avx512
                              : features & SOP_CPU_AVX2 ? &sop_ceiling_loops_avx2
                                                        : &plain};
    void *buffer;
    sop_queue *q;
    SOP_TRY(d->ops->reserve(d, bytes, &buffer));
    sop_status status = d->ops->queue_create(d, &q);
    if (status == SOP_OK) {
        uint64_t state = 1;
        for (size_t i = 0; i < bytes / 8; i++) ((uint64_t *)buffer)[i] = sop_random(&state);
        w.buffer = buffer;
        w.bytes = bytes;
        out->read_bytes_s = READ_PIECE * best_rate(q, n, read_pieces, &w, read_s);
        out->f32_flops_s = STEPS * w.loops->f32_flops * best_rate(q, n, f32_pieces, &w, loop_s);
        out->i8_ops_s = STEPS * w.loops->i8_ops * best_rate(q, n, i8_pieces, &w, loop_s);
        out->rotated_bytes = bytes;
        d->ops->queue_destroy(q);
    }
    d->ops->release(d, buffer, bytes);
    return status;
}

sop_status sop_ceilings_of(sop_device *d, sop_ceilings *out)
{
    enum { MOST = 16 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        int32_t workers;
        sop_ceilings ceilings;
    } known[MOST];
    static int32_t n;
    sop_facts facts;
    sop_status status = SOP_OK;
    if (d->ops->kind != SOP_DEVICE_CPU)
        return sop_fail(SOP_E_UNSUPPORTED, "ceilings: device %s is not a CPU", d->ops->name);
    d->ops->facts(d, &facts);
    (void)pthread_mutex_lock(&lock);
    int32_t i = 0;
    while (i < n && known[i].workers != facts.workers) i++;
    if (i == n) {
        if (i == MOST) i = 0;
        known[i].workers = facts.workers;
        status = measure(d, facts.workers, &known[i].ceilings);
        if (status == SOP_OK && i == n) n++;
    }
    *out = known[i].ceilings;
    (void)pthread_mutex_unlock(&lock);
    return status;
}
