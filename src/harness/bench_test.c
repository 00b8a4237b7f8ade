#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/clock.h"
#include "base/test.h"
#include "core/cpu.h"
#include "core/op.h"
#include "harness/ceilings.h"
#include "harness/harness.h"
#include "ops/ops.h"

/* The bounds are wide: other processes share the machine. */

static sop_device *device;

static sop_status do_nothing(const sop_call *call)
{
    (void)call;
    return SOP_OK;
}

static const double planted_s = 300e-6;

static sop_status take_a_known_time(const sop_call *call)
{
    const double until = sop_now_s() + planted_s;
    (void)call;
    while (sop_now_s() < until) {
    }
    return SOP_OK;
}

/* What a row saw of its operands. */
static struct {
    const void *x[8];
    int64_t calls, zeros;
} seen;

static sop_status look_at(const sop_call *call, int64_t n)
{
    const float *a = call->args[SOP_ADD_A].data;
    int32_t known = 0;
    for (int i = 0; i < 8; i++) known |= seen.x[i] == a;
    if (!known) seen.x[seen.calls % 8] = a;
    for (int64_t i = 0; i < n; i++) seen.zeros += a[i] == 0;
    seen.calls++;
    return SOP_OK;
}

static sop_status look(const sop_call *call)
{
    return look_at(call, ((const sop_add_desc *)call->desc)->dim);
}

static sop_status glance(const sop_call *call)
{
    return look_at(call, 1);
}

static sop_bench_result bench_one(const sop_op *op, const char *text,
                                  sop_status (*run)(const sop_call *call))
{
    _Alignas(16) char desc[SOP_MOST_DESC_BYTES];
    const sop_row row = {sizeof row, SOP_DEVICE_CPU, "planted", "c", 0, 0, .run = run};
    const sop_row *rows[] = {&row};
    sop_bench_result r = {.n = -1};
    CHECK(sop_desc_parse(op, text, desc) == SOP_OK);
    CHECK(sop_bench(device, op, rows, 1, desc, 0.1, &r) == SOP_OK);
    return r;
}

static void ceilings_are_measured_once(void)
{
    sop_ceilings a, b;
    CHECK(sop_ceilings_of(device, &a) == SOP_OK);
    const double from = sop_now_s();
    CHECK(sop_ceilings_of(device, &b) == SOP_OK);
    CHECK(sop_now_s() - from < 0.01);
    CHECK(a.read_bytes_s == b.read_bytes_s && a.f32_flops_s == b.f32_flops_s);
    printf("read %.1f GB/s of %zu MiB, f32 %.0f GFLOP/s, i8 %.0f GOP/s\n", a.read_bytes_s * 1e-9,
           a.rotated_bytes >> 20, a.f32_flops_s * 1e-9, a.i8_ops_s * 1e-9);
    CHECK(a.read_bytes_s > 2e8 && a.read_bytes_s < 1e13);
    CHECK(a.f32_flops_s > 1e8 && a.f32_flops_s < 1e14);
    CHECK(a.i8_ops_s > 1e8 && a.i8_ops_s < 1e15);
    if (sop_cpu_features() & SOP_CPU_AVX2) CHECK(a.i8_ops_s > a.f32_flops_s);
}

/* P-TUN-02, P-TUN-03: all of the row's time is inside, and nothing else. */
static void a_known_time_is_what_is_reported(void)
{
    const sop_bench_result r = bench_one(&sop_op_add, "tokens=1 dim=64", take_a_known_time);
    CHECK(r.n >= 3 && r.calls == 1);
    CHECK(r.min_s >= planted_s && r.min_s < 1.3 * planted_s);
    CHECK(r.median_s >= r.min_s && r.p95_s >= r.median_s);
}

/* P-TUN-05 */
static void what_is_faster_than_the_machine_is_invalid(void)
{
    const sop_bench_result r = bench_one(&sop_op_add, "tokens=1000 dim=4096", do_nothing);
    CHECK(r.invalid && r.share > 1.05 && strstr(r.why, "of what the machine can do"));
}

static void calls_go_through_many_sets_of_random_operands(void)
{
    memset(&seen, 0, sizeof seen);
    const sop_bench_result r = bench_one(&sop_op_add, "tokens=1 dim=100000", look);
    CHECK((double)r.sets * 3 * 4e5 >= 64e6);
    CHECK(seen.calls > 8 && seen.zeros == 0);
    for (int i = 0; i < 8; i++) CHECK(seen.x[i] != NULL);
}

/* P-TUN-02: twice the work takes about twice the time. In turns, until each had a quiet moment: a machine is
 * not always as fast. */
static void time_follows_the_work(void)
{
    const sop_row *ref = &sop_op_softmax.rows[sop_op_softmax.n_rows - 1];
    double once = INFINITY, twice = INFINITY;
    bool follows = false;
    for (int i = 0; i < 8 || (i < 64 && !follows); i++) {
        once = fmin(once, bench_one(&sop_op_softmax, "tokens=4 dim=1000", ref->run).min_s);
        twice = fmin(twice, bench_one(&sop_op_softmax, "tokens=8 dim=1000", ref->run).min_s);
        follows = twice > 1.6 * once && twice < 2.6 * once;
    }
    CHECK(follows);
}

static void rows_that_refuse_say_why_and_the_rest_is_timed(void)
{
    sop_rmsnorm_desc desc;
    const sop_row *rows[8];
    sop_bench_result r[8];
    const int32_t n = sop_op_rmsnorm.n_rows;
    for (int32_t i = 0; i < n; i++) rows[i] = &sop_op_rmsnorm.rows[i];
    CHECK(sop_desc_parse(&sop_op_rmsnorm, "tokens=4 dim=256 x=f16", &desc) == SOP_OK);
    CHECK(sop_bench(device, &sop_op_rmsnorm, rows, n, &desc, 0.1, r) == SOP_OK);
    for (int32_t i = 0; i < n - 1; i++) CHECK(r[i].n == 0 && r[i].why[0]);
    CHECK(r[n - 1].n >= 3 && r[n - 1].share > 0 && !r[n - 1].invalid);
}

/* A CPU that passes for a device with memory of its own. */
static const sop_device_ops *cpu_ops;
static int replayed;

static void other_facts(const sop_device *d, sop_facts *out)
{
    cpu_ops->facts(d, out);
    out->kind = SOP_DEVICE_TEST;
}

static int32_t other_sees_host(const sop_device *d)
{
    (void)d;
    return 0;
}

static sop_status other_replay(sop_queue *q, sop_graph *g)
{
    replayed++;
    return cpu_ops->replay(q, g);
}

static sop_bench_result time_on_another(const char *text, sop_status (*run)(const sop_call *call))
{
    sop_add_desc desc;
    sop_device *d;
    sop_device_ops ops;
    const sop_row row = {sizeof row, SOP_DEVICE_TEST, "planted", "c", 0, 0, .run = run};
    const sop_row *rows[] = {&row};
    sop_bench_result r = {.n = -1};
    CHECK(sop_device_cpu(1, &d) == SOP_OK);
    cpu_ops = d->ops;
    ops = *cpu_ops;
    ops.facts = other_facts;
    ops.sees_host = other_sees_host;
    ops.replay = other_replay;
    d->ops = &ops;
    replayed = 0;
    CHECK(sop_desc_parse(&sop_op_add, text, &desc) == SOP_OK);
    CHECK(sop_time_rows(d, &sop_op_add, rows, 1, &desc, -1, 0.4, &r) == SOP_OK);
    d->ops = cpu_ops;
    sop_device_destroy(d);
    return r;
}

static void another_device_is_timed_by_graphs_of_milliseconds(void)
{
    const sop_bench_result r = time_on_another("tokens=1 dim=64", take_a_known_time);
    CHECK(r.n >= 3 && r.calls > 1 && r.calls <= 16 && replayed >= r.n); /* 16 take 4.8 ms */
    CHECK(r.min_s >= planted_s && r.min_s < 1.3 * planted_s);
}

static void its_graphs_pass_through_all_sets(void)
{
    memset(&seen, 0, sizeof seen);
    const sop_bench_result r = time_on_another("tokens=1 dim=100000", glance);
    CHECK(r.sets > 8 && r.calls >= r.sets && seen.zeros == 0);
    for (int i = 0; i < 8; i++) CHECK(seen.x[i] != NULL);
}

int main(void)
{
    if (sop_device_cpu(1, &device) != SOP_OK) return 1;
    RUN(ceilings_are_measured_once);
    RUN(a_known_time_is_what_is_reported);
    RUN(what_is_faster_than_the_machine_is_invalid);
    RUN(calls_go_through_many_sets_of_random_operands);
    RUN(time_follows_the_work);
    RUN(another_device_is_timed_by_graphs_of_milliseconds);
    RUN(its_graphs_pass_through_all_sets);
    RUN(rows_that_refuse_say_why_and_the_rest_is_timed);
    sop_device_destroy(device);
    return test_report();
}
