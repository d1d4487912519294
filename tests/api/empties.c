/*
 * What features leave of problems in which nothing is to be computed: no sequences, no rows, no keys, none that exist, none
 * that a row keeps. Gradients that are sums are zeros then, written whole; a row without keys returns its sink, and passes the
 * gradient of its lse on to it.
 */
#include "numbers.h"

enum { B = 2, HQ = 4, HKV = 2, SQ = 5, SK = 7, D = 3, DV = 6, Q_N = B * HQ * SQ, K_N = B * HKV * SK };

typedef enum nothing { NO_BATCH, NO_ROWS, NO_KEYS, NO_USED_ROWS, NO_USED_KEYS, NO_TOTALS, NO_KEPT_KEYS, NOTHINGS } nothing;

static const char *const names[NOTHINGS] = {"no batch",     "no rows",   "no keys",     "no used rows",
                                            "no used keys", "no totals", "no kept keys"};

typedef struct problem {
    nothing kind;
    bool broadcast; /* bias and its gradient are one row for all */
    fattn_context *context;
    fattn_desc desc;
    fattn_forward_args forward;
    fattn_backward_args backward;
    fattn_view bias_view, dbias_view;
    float q[Q_N * D], k[K_N * D], v[K_N * DV], dout[Q_N * DV], dlse[Q_N], bias[Q_N * SK], slopes[HQ], sinks[HQ];
    float out[Q_N * DV], lse[Q_N], dq[Q_N * D], dk[K_N * D], dv[K_N * DV], dbias[Q_N * SK], dsinks[HQ];
    int32_t zeros[B * SK];
} problem;

static problem p;

static bool no_keys_for_rows(void)
{
    return p.kind == NO_KEYS || p.kind == NO_USED_KEYS || p.kind == NO_KEPT_KEYS;
}

static void describe(int32_t mask)
{
    p.desc = (fattn_desc){.struct_size = sizeof p.desc,
                          .dtype = FATTN_F32,
                          .mask = mask,
                          .flags = FATTN_WITH_BIAS | FATTN_WITH_SLOPES | FATTN_WITH_SINKS | FATTN_WITH_DLSE | FATTN_WITH_DBIAS |
                                   FATTN_WITH_DSINKS,
                          .batch = p.kind == NO_BATCH ? 0 : B,
                          .heads_q = HQ,
                          .heads_kv = HKV,
                          .seq_q = p.kind == NO_ROWS ? 0 : SQ,
                          .seq_k = p.kind == NO_KEYS ? 0 : SK,
                          .dim = D,
                          .dim_v = DV,
                          .softcap = 3,
                          .dropout = 0.25,
                          .seed = 5};
    if (mask == FATTN_MASK_CHUNKED || mask == FATTN_MASK_PREFIX)
        p.desc.mask_size = 2;
    if (mask == FATTN_MASK_WINDOW || mask == FATTN_MASK_DOCUMENT)
        p.desc.window_left = -1, p.desc.window_right = 2;
}

static void give_arguments(void)
{
    const int32_t *zeros = p.zeros;
    const bool packed = p.kind == NO_TOTALS, intervals = p.desc.mask == FATTN_MASK_INTERVALS;
    const int32_t *documents = p.desc.mask == FATTN_MASK_DOCUMENT ? zeros : NULL;
    p.bias_view = p.dbias_view = fattn_view_bhsd(p.bias, HQ, SQ, SK);
    if (p.broadcast)
        p.bias_view = p.dbias_view = (fattn_view){p.bias, 0, 0, 0};
    p.dbias_view.data = p.dbias;
    p.forward = (fattn_forward_args){.q = fattn_view_bhsd(p.q, HQ, SQ, D),
                                     .k = fattn_view_bhsd(p.k, HKV, SK, D),
                                     .v = fattn_view_bhsd(p.v, HKV, SK, DV),
                                     .out = fattn_view_bhsd(p.out, HQ, SQ, DV),
                                     .lse = p.lse,
                                     .cu_seqlens_q = packed ? zeros : NULL,
                                     .cu_seqlens_k = packed ? zeros : NULL,
                                     .used_q = p.kind == NO_USED_ROWS ? zeros : NULL,
                                     .used_k = p.kind == NO_USED_KEYS ? zeros : NULL,
                                     .mask_lo = intervals ? zeros : NULL,
                                     .mask_hi = intervals ? zeros : NULL,
                                     .document_q = documents,
                                     .document_k = documents,
                                     .bias = &p.bias_view,
                                     .slopes = p.slopes,
                                     .sinks = p.sinks};
    const fattn_forward_args *f = &p.forward;
    p.backward = (fattn_backward_args){.q = f->q,
                                       .k = f->k,
                                       .v = f->v,
                                       .out = f->out,
                                       .dout = fattn_view_bhsd(p.dout, HQ, SQ, DV),
                                       .dq = fattn_view_bhsd(p.dq, HQ, SQ, D),
                                       .dk = fattn_view_bhsd(p.dk, HKV, SK, D),
                                       .dv = fattn_view_bhsd(p.dv, HKV, SK, DV),
                                       .lse = p.lse,
                                       .dlse = p.dlse,
                                       .cu_seqlens_q = f->cu_seqlens_q,
                                       .cu_seqlens_k = f->cu_seqlens_k,
                                       .used_q = f->used_q,
                                       .used_k = f->used_k,
                                       .mask_lo = f->mask_lo,
                                       .mask_hi = f->mask_hi,
                                       .document_q = documents,
                                       .document_k = documents,
                                       .bias = &p.bias_view,
                                       .slopes = p.slopes,
                                       .sinks = p.sinks,
                                       .dbias = &p.dbias_view,
                                       .dsinks = p.dsinks};
}

static void make(nothing kind, int32_t mask, bool broadcast)
{
    float *const inputs[] = {p.q, p.k, p.v, p.dout, p.dlse, p.bias, p.slopes, p.sinks};
    const size_t sizes[] = {Q_N * D, K_N * D, K_N * DV, Q_N * DV, Q_N, Q_N * SK, HQ, HQ};
    memset(&p, 0, sizeof p);
    p.kind = kind;
    p.broadcast = broadcast;
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
        fill(inputs[n], FATTN_F32, sizes[n], n + 1);
    float *const outputs[] = {p.out, p.lse, p.dq, p.dk, p.dv, p.dbias, p.dsinks};
    const size_t rooms[] = {sizeof p.out, sizeof p.lse, sizeof p.dq, sizeof p.dk, sizeof p.dv, sizeof p.dbias, sizeof p.dsinks};
    for (size_t n = 0; n < sizeof rooms / sizeof *rooms; n++)
        memset(outputs[n], POISON, rooms[n]);
    describe(mask);
    give_arguments();
}

static void untouched(const char *name, const float *data, size_t count)
{
    for (size_t i = 0; i < count * sizeof *data; i++)
        if (((const unsigned char *)data)[i] != POISON)
            fail_msg("%s: element %zu of %s was written", names[p.kind], i / sizeof *data, name);
}

static void zeros(const char *name, const float *data, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (data[i] != 0)
            fail_msg("%s: element %zu of %s is %g, not 0", names[p.kind], i, name, (double)data[i]);
}

static void check_rows(void)
{
    if (!no_keys_for_rows()) {
        untouched("out", p.out, Q_N * DV);
        untouched("lse", p.lse, Q_N);
        untouched("dq", p.dq, Q_N * D);
        zeros("dsinks", p.dsinks, HQ);
        return;
    }
    zeros("out", p.out, Q_N * DV);
    zeros("dq", p.dq, Q_N * D);
    for (int h = 0; h < HQ; h++) {
        double sum = 0;
        for (int n = 0; n < B * SQ; n++) {
            const int at = (n / SQ * HQ + h) * SQ + n % SQ;
            assert_true(p.lse[at] == p.sinks[h]);
            sum += (double)p.dlse[at];
        }
        if (!(fabs((double)p.dsinks[h] - sum) <= 1e-6))
            fail_msg("%s: dsinks[%d] is %.9g, not %.9g", names[p.kind], h, (double)p.dsinks[h], sum);
    }
}

static void check_keys(void)
{
    const bool exist = p.kind == NO_ROWS || p.kind == NO_USED_ROWS || p.kind == NO_KEPT_KEYS;
    (exist ? zeros : untouched)("dk", p.dk, K_N * D);
    (exist ? zeros : untouched)("dv", p.dv, K_N * DV);
}

/* Its own shape, whatever exists of it: one row where it is a sum, else as many as the descriptor says. */
static void check_dbias(void)
{
    const size_t all = (size_t)(p.desc.batch * HQ * p.desc.seq_q * p.desc.seq_k);
    const size_t count = p.broadcast ? (size_t)p.desc.seq_k : all;
    zeros("dbias", p.dbias, count);
    untouched("dbias", p.dbias + count, Q_N * SK - count);
}

static void nothing_to_compute(void **state)
{
    (void)state;
    for (nothing kind = 0; kind < NOTHINGS; kind++)
        for (int32_t mask = FATTN_MASK_FULL; mask <= FATTN_MASK_INTERVALS; mask++)
            for (int broadcast = 0; broadcast < 2; broadcast++)
                for (int k = 0, pairs = 1; k < pairs; k++) {
                    if (kind == NO_KEPT_KEYS && mask != FATTN_MASK_INTERVALS)
                        continue;
                    make(kind, mask, broadcast == 1);
                    p.context = context_of_pair(&p.desc, k, &pairs);
                    run_forward(p.context, &p.desc, p.forward);
                    run_backward(p.context, &p.desc, p.backward);
                    check_rows();
                    check_keys();
                    check_dbias();
                    fattn_context_destroy(p.context);
                }
}

/* Tensors without elements need no memory, nor do lists and lse. What is a sum is written all the same. */
static void no_memory_for_nothing(void **state)
{
    static const fattn_view none = {NULL, 0, 0, 0};
    (void)state;
    for (int broadcast = 0; broadcast < 2; broadcast++) {
        make(NO_BATCH, FATTN_MASK_INTERVALS, broadcast == 1);
        p.context = make_context(2, "");
        const fattn_view bias = {NULL, 1, 1, 1};
        const fattn_forward_args forward = {.q = none, .k = none, .v = none, .out = none, .slopes = p.slopes, .sinks = p.sinks};
        const fattn_backward_args backward = {.q = none,
                                              .k = none,
                                              .v = none,
                                              .out = none,
                                              .dout = none,
                                              .dq = none,
                                              .dk = none,
                                              .dv = none,
                                              .slopes = p.slopes,
                                              .sinks = p.sinks,
                                              .dbias = broadcast ? &p.dbias_view : &bias,
                                              .dsinks = p.dsinks};
        run_forward(p.context, &p.desc, forward);
        run_backward(p.context, &p.desc, backward);
        zeros("dsinks", p.dsinks, HQ);
        zeros("dbias", p.dbias, broadcast ? SK : 0);
        untouched("dbias", p.dbias + (broadcast ? SK : 0), Q_N * SK - SK);
        fattn_backward_args missing = backward;
        missing.struct_size = sizeof missing;
        missing.dbias = NULL;
        assert_fails(fattn_backward(p.context, &p.desc, &missing), FATTN_ERROR_ARGUMENT, "args.dbias is NULL");
        fattn_context_destroy(p.context);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_to_compute), cmocka_unit_test(no_memory_for_nothing)};
    unsetenv("FATTN_KERNEL"); /* these tests force their own */
    return cmocka_run_group_tests_name("empties", tests, NULL, NULL);
}
