/* What this machine can do at most, with the threads of one device, measured once a process. */
#include "harness/ceilings.h"

#include <math.h>
#include <pthread.h>

#include "base/clock.h"
#include "base/status.h"
#include "core/cpu.h"
#include "core/op.h"
#include "harness/harness.h"
#include "ops/cuda/roof.h"
#include "ops/ops.h"

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
    const int64_t last = facts.kind == SOP_DEVICE_CUDA ? facts.l2_bytes : facts.l3_bytes;
    const size_t bytes = 4 * (size_t)last;
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

/* ---- a card ---- */

#ifdef SOP_CUDA

static void roof_view(const void *desc, int32_t role, sop_tensor *out)
{
    (void)role;
    *out = (sop_tensor){.dtype = -1};
    sop_view1(out, SOP_F32, ((const sop_roof_desc *)desc)->bytes / 4);
}

static void roof_cost(const void *desc, sop_cost *out)
{
    *out = (sop_cost){.read_bytes = (double)((const sop_roof_desc *)desc)->bytes};
}

/* Reading as an operator, for the machinery that times rows. */
static sop_status measure_reading(sop_device *d, double *rate)
{
    static const sop_role roles[] = {{"x", SOP_ROLE_IN, -1}};
    static const sop_op reading = {.size = sizeof reading,
                                   .desc_bytes = sizeof(sop_roof_desc),
                                   .name = "reading",
                                   .roles = roles,
                                   .n_roles = 1,
                                   .view = roof_view,
                                   .cost = roof_cost};
    static const sop_row row = {sizeof row, SOP_DEVICE_CUDA, "reading", "cuda",
                                .run = sop_roof_run};
    const sop_row *rows[] = {&row};
    const sop_roof_desc desc = {(int64_t)1 << 28}; /* many times any cache; a launch is 1 % of it */
    sop_bench_result r;
    SOP_TRY(sop_time_rows(d, &reading, rows, 1, &desc, -1, 0.2, &r));
    *rate = (double)desc.bytes / r.min_s;
    return SOP_OK;
}

/* The fastest of linear's rows: those that are there for some cards, else the floor, which would take
 * seconds for so many tokens. */
static sop_status measure_products(sop_device *d, double *rate)
{
    static const char *const shapes[] = {"m=4096 n=8192 k=8192 w=bf16 x=bf16 y=bf16",
                                         "m=64 n=8192 k=8192 w=bf16 x=bf16 y=bf16"};
    enum { MOST = 16 };
    const sop_op *op = &sop_op_linear;
    *rate = 0;
    for (int floor = 0; floor < 2 && *rate == 0; floor++) {
        const sop_row *rows[MOST];
        sop_bench_result results[MOST];
        sop_linear_desc desc;
        int32_t n = 0;
        for (int32_t i = 0; i < op->n_rows && n < MOST; i++)
            if (op->rows[i].device == SOP_DEVICE_CUDA && (op->rows[i].needs == 0) == floor)
                rows[n++] = &op->rows[i];
        SOP_TRY(sop_desc_parse(op, shapes[floor], &desc));
        SOP_TRY(sop_time_rows(d, op, rows, n, &desc, -1, 0.3, results));
        for (int32_t i = 0; i < n; i++)
            if (results[i].n) *rate = fmax(*rate, results[i].flops_s);
    }
    return SOP_OK;
}

static sop_status measure_card(sop_device *d, sop_ceilings *out)
{
    SOP_TRY(measure_reading(d, &out->read_bytes_s));
    SOP_TRY(measure_products(d, &out->f32_flops_s));
    out->i8_ops_s = out->f32_flops_s;
    out->rotated_bytes = sop_rotation_bytes(d);
    return SOP_OK;
}

#else

static sop_status measure_card(sop_device *d, sop_ceilings *out)
{
    (void)out;
    return sop_fail(SOP_E_UNSUPPORTED, "ceilings: superop was built without CUDA, %s needs it",
                    d->ops->name);
}

#endif

sop_status sop_ceilings_of(sop_device *d, sop_ceilings *out)
{
    enum { MOST = 16 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        int32_t kind, workers;
        sop_ceilings ceilings;
    } known[MOST];
    static int32_t n;
    sop_facts facts;
    sop_status status = SOP_OK;
    if (d->ops->kind != SOP_DEVICE_CPU && d->ops->kind != SOP_DEVICE_CUDA)
        return sop_fail(SOP_E_UNSUPPORTED, "ceilings: device %s is neither a CPU nor a card",
                        d->ops->name);
    d->ops->facts(d, &facts);
    (void)pthread_mutex_lock(&lock);
    int32_t i = 0;
    while (i < n && (known[i].kind != facts.kind || known[i].workers != facts.workers)) i++;
    if (i == n) {
        if (i == MOST) i = 0;
        known[i].kind = facts.kind;
        known[i].workers = facts.workers;
        status = facts.kind == SOP_DEVICE_CPU ? measure(d, facts.workers, &known[i].ceilings)
                                              : measure_card(d, &known[i].ceilings);
        if (status == SOP_OK && i == n) n++;
    }
    *out = known[i].ceilings;
    (void)pthread_mutex_unlock(&lock);
    return status;
}
