#include "ops/attention_grad/attention_grad.h"

#include <string.h>

#include "ops/grad_test.h"
#include "ops/ops.h"

enum { TOKENS = 5, KEYS = 8, SEQS = 2, HEADS = 4, KV = 2, K = 3, V = 2 };
enum {
    N_Q = TOKENS * HEADS * K,
    N_O = TOKENS * HEADS * V,
    N_K = KEYS * KV * K,
    N_V = KEYS * KV * V
};

/* The keys of a sequence are one page of the forward operator's pools: sequence 0 has 2 queries and 3 keys,
 * sequence 1 has 3 and 5. */
static int32_t q_start[SEQS + 1] = {0, 2, TOKENS}, k_start[SEQS + 1] = {0, 3, KEYS};
static int32_t kv_len[SEQS] = {3, 5}, table[SEQS] = {0, 1};

/* Pages are 3 keys apart, as sequence 1 begins at key 3. */
static void slopes(int32_t causal, int64_t window, float cap)
{
    double q[N_Q], k[N_K], v[N_V], o[N_O], lse[TOKENS * HEADS], g[N_O], dq[N_Q], dk[N_K], dv[N_V];
    sop_attention_desc forward = {.tokens = TOKENS,
                                  .seqs = SEQS,
                                  .max_kv = 5,
                                  .heads = HEADS,
                                  .kv_heads = KV,
                                  .k = K,
                                  .v = V,
                                  .pages = SEQS,
                                  .page = 5,
                                  .kp_page = 3 * KV * K,
                                  .kp_token = KV * K,
                                  .kp_head = K,
                                  .vp_page = 3 * KV * V,
                                  .vp_token = KV * V,
                                  .vp_head = V,
                                  .window = window,
                                  .cap = cap,
                                  .causal = causal};
    sop_attention_grad_desc d = {.tokens = TOKENS,
                                 .keys = KEYS,
                                 .seqs = SEQS,
                                 .heads = HEADS,
                                 .kv_heads = KV,
                                 .k = K,
                                 .v = V,
                                 .window = window,
                                 .cap = cap,
                                 .causal = causal};
    forward.q_dtype = forward.kv_dtype = forward.o_dtype = SOP_F64;
    d.q_dtype = d.o_dtype = d.dq_dtype = SOP_F64;
    sop_op_attention.complete(&forward);
    sop_op_attention_grad.complete(&d);
    const sop_operand in[SOP_ATTENTION_ROLES] = {
        [SOP_ATTENTION_Q] = grad_operand(q, N_Q),
        [SOP_ATTENTION_K_POOL] = grad_operand(k, N_K),
        [SOP_ATTENTION_V_POOL] = grad_operand(v, N_V),
        [SOP_ATTENTION_TABLE] = {table, sizeof table},
        [SOP_ATTENTION_Q_START] = {q_start, sizeof q_start},
        [SOP_ATTENTION_KV_LEN] = {kv_len, sizeof kv_len},
        [SOP_ATTENTION_O] = grad_operand(o, N_O),
        [SOP_ATTENTION_LSE] = grad_operand(lse, TOKENS * HEADS)};
    const sop_operand args[SOP_ATTENTION_GRAD_ROLES] = {grad_operand(q, N_Q),
                                                        grad_operand(k, N_K),
                                                        grad_operand(v, N_V),
                                                        {q_start, sizeof q_start},
                                                        {k_start, sizeof k_start},
                                                        grad_operand(o, N_O),
                                                        grad_operand(lse, TOKENS * HEADS),
                                                        grad_operand(g, N_O),
                                                        grad_operand(dq, N_Q),
                                                        grad_operand(dk, N_K),
                                                        grad_operand(dv, N_V)};
    const grad_fn f = {&sop_op_attention, &forward, in, {SOP_ATTENTION_O, -1}, {g, NULL}};
    grad_fill(q, N_Q, 1);
    grad_fill(k, N_K, 2);
    grad_fill(v, N_V, 3);
    grad_fill(g, N_O, 4);
    CHECK(grad_run(&sop_op_attention, &forward, in) == SOP_OK);
    CHECK(grad_run(&sop_op_attention_grad, &d, args) == SOP_OK);
    grad_check(&f, q, dq, N_Q);
    grad_check(&f, k, dk, N_K);
    grad_check(&f, v, dv, N_V);
}

static void the_gradient_is_that_of_attention(void)
{
    slopes(0, 0, 0);
}

static void masks_and_caps_have_their_gradients(void)
{
    slopes(1, 0, 0);
    slopes(1, 2, 0);
    slopes(0, 2, 0);
    slopes(1, 0, 1.5f);
}

/* A query before all keys, and a key after all queries: nothing is seen. */
static void what_sees_nothing_has_no_gradient(void)
{
    float q[] = {1, 2}, k[] = {3}, v[] = {4}, o[] = {0, 4}, lse[] = {-INFINITY, 6}, g[] = {5, 7};
    float dq[2], dk[1], dv[1];
    int32_t q_from[] = {0, 2}, k_from[] = {0, 1};
    sop_attention_grad_desc d = {.tokens = 2, .keys = 1, .k = 1, .causal = 1};
    sop_op_attention_grad.complete(&d);
    const sop_operand args[SOP_ATTENTION_GRAD_ROLES] = {
        {q, sizeof q},           {k, sizeof k},   {v, sizeof v},     {q_from, sizeof q_from},
        {k_from, sizeof k_from}, {o, sizeof o},   {lse, sizeof lse}, {g, sizeof g},
        {dq, sizeof dq},         {dk, sizeof dk}, {dv, sizeof dv}};
    for (int32_t i = 0; i < sop_op_attention_grad.n_rows; i++) {
        const sop_row *row = &sop_op_attention_grad.rows[i];
        if (!row_takes(row, &d)) continue;
        CHECK(run_row(&sop_op_attention_grad, row, &d, args, 1) == SOP_OK);
        CHECK(dq[0] == 0 && dq[1] == 0 && dk[0] == 0 && dv[0] == 7);
    }
}

static void sequences_longer_than_their_bound_are_refused(void)
{
    sop_attention_grad_desc d;
    CHECK(sop_desc_parse(&sop_op_attention_grad, "tokens=9 k=8 seqs=2 max_q=4", &d) == SOP_E_SHAPE);
    CHECK(strstr(sop_last_error(), "max_q=4"));
}

int main(void)
{
    RUN(the_gradient_is_that_of_attention);
    RUN(masks_and_caps_have_their_gradients);
    RUN(what_sees_nothing_has_no_gradient);
    RUN(sequences_longer_than_their_bound_are_refused);
    return test_report();
}
