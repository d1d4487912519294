/* See faults.h. What must not matter: when, how often, on how many threads; and dropout, which depends on the seed alone. */
#include "faults.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void run_often(placed *p, fattn_op op, const truth *t, const char *kernel, const char *label, void *arg)
{
    const fattn_context *context = context_of(kernel, 2);
    void (*const run)(placed *, const fattn_context *) = op == FATTN_OP_FORWARD ? placed_forward : placed_backward;
    (void)t;
    run(p, context);
    snapshot first = snapshot_of(p, op);
    for (int n = 1; n < *(const int *)arg; n++) {
        run(p, context);
        snapshot again = snapshot_of(p, op);
        if (!snapshot_same(&first, &again))
            fail_msg("%s: run %d differs", label, n);
        free(again.bytes);
    }
    free(first.bytes);
}

void bitwise_deterministic(void **state)
{
    int runs = 100;
    const fattn_desc d = featured(sizes(2, 4, 2, 33, 70));
    (void)state;
    scene s = scene_make(&d, 1), sum = scene_make_with_bias(&d, 1, false, false, false);
    for_each_kernel(&s, &(form){.what = "all features", .packed = true}, run_often, &runs);
    for_each_kernel(&sum, &(form){.what = "all features, one row of dbias", .threads = 2}, run_often, &runs);
    scene_free(&s);
    scene_free(&sum);
}

static void run_with_threads(placed *p, fattn_op op, const truth *t, const char *kernel, const char *label, void *arg)
{
    void (*const run)(placed *, const fattn_context *) = op == FATTN_OP_FORWARD ? placed_forward : placed_backward;
    snapshot first = {0};
    (void)t, (void)arg;
    for (int threads = 1; threads <= 8; threads++) {
        const fattn_context_options options = {.struct_size = sizeof options, .threads = threads, .kernel = kernel};
        fattn_context *context;
        assert_int_equal(fattn_context_create(&options, &context), FATTN_OK);
        run(p, context);
        snapshot now = snapshot_of(p, op);
        if (threads > 1 && !snapshot_same(&first, &now))
            fail_msg("%s: %d threads give other bits than 1", label, threads);
        free(threads > 1 ? now.bytes : NULL);
        first = threads > 1 ? first : now;
        fattn_context_destroy(context);
    }
    free(first.bytes);
}

void threads_change_nothing(void **state)
{
    static const int64_t rows[] = {1, 33, 67};
    (void)state;
    for (int n = 0; n < COUNT(rows); n++)
        for (int features = 0; features < 2; features++) {
            fattn_desc d =
                masked(sizes(1, 2, 1, rows[n], rows[n] < 33 ? 300 : rows[n]), FATTN_MASK_CAUSAL, FATTN_ALIGN_BOTTOM_RIGHT);
            d = features ? featured(d) : d;
            scene s = scene_make_with_bias(&d, 1, false, false, false);
            for_each_kernel(&s, &(form){.what = "1 to 8 threads"}, run_with_threads, NULL);
            scene_free(&s);
        }
}

/* ------------------------------------------------------------------------------------------------------------- dropout */

/* Elements that dropout drops are counted within 5 standard deviations of what p says. */
static void check_frequency(int64_t dropped, int64_t count, double p, const char *what)
{
    const double deviation = sqrt((double)count * p * (1 - p)), expected = (double)count * p;
    if (!(fabs((double)dropped - expected) <= 5 * deviation))
        fail_msg("%s: %lld of %lld elements dropped, expected %.0f", what, (long long)dropped, (long long)count, expected);
}

static int64_t count_dropped(const fattn_desc *d)
{
    uint8_t *keep = allocate(d->seq_k, 1);
    int64_t dropped = 0;
    for (int64_t row = 0; row < d->batch * d->heads_q * d->seq_q; row++) {
        assert_int_equal(
            fattn_dropout_keep(d, row / (d->heads_q * d->seq_q), row / d->seq_q % d->heads_q, row % d->seq_q, keep), FATTN_OK);
        for (int64_t j = 0; j < d->seq_k; j++)
            dropped += !keep[j];
    }
    free(keep);
    return dropped;
}

/* q is 0 and values are unit vectors, so that out is the row's probabilities after dropout. Backward: dout is, and dv the
 * columns'. */
typedef struct drawn {
    int64_t dropped, count;
} drawn;

static void run_drawn(placed *p, fattn_op op, const truth *t, const char *kernel, const char *label, void *arg)
{
    drawn *sum = arg;
    const fattn_desc *d = &p->desc;
    const result k = op == FATTN_OP_FORWARD ? OUT : DV;
    const int slot = op == FATTN_OP_FORWARD ? SLOT_OUT : SLOT_DV;
    uint8_t *keep = allocate(d->seq_k, 1);
    (void)t, (void)k;
    (op == FATTN_OP_FORWARD ? placed_forward : placed_backward)(p, context_of(kernel, 2));
    for (int64_t row = 0; row < d->heads_q * d->seq_q; row++) {
        assert_int_equal(fattn_dropout_keep(d, 0, row / d->seq_q, row % d->seq_q, keep), FATTN_OK);
        for (int64_t j = 0; j < d->seq_k; j++) {
            int64_t index;
            const int64_t at = op == FATTN_OP_FORWARD ? row % d->seq_q : j, x = op == FATTN_OP_FORWARD ? j : row % d->seq_q;
            const void *data = placed_at(p, slot, 0, row / d->seq_q, at, &index);
            const bool kept = number_get(data, p->t[slot].dtype, index + x) != 0;
            if (kept != keep[j])
                fail_msg("%s: element (%lld, %lld) is %s", label, (long long)row, (long long)j, kept ? "kept" : "dropped");
            sum->dropped += !kept;
            sum->count++;
        }
    }
    free(keep);
}

/* One tensor of unit vectors. */
static void units(double *x, int64_t lists, int64_t rows, int64_t cols)
{
    for (int64_t n = 0; n < lists * rows; n++)
        for (int64_t i = 0; i < cols; i++)
            x[n * cols + i] = n % rows == i;
}

static drawn draw(int64_t heads, int64_t rows, int64_t keys, double dropout, form how)
{
    fattn_desc d = sizes(1, heads, heads, rows, keys);
    drawn sum = {0};
    d.dim_v = how.backward_only ? rows : keys;
    d.dropout = dropout;
    d.seed = 0xfedcba9876543210;
    scene s = scene_make(&d, 1);
    fill(s.q, heads * rows * d.dim, 0);
    units(s.v, heads, keys, d.dim_v);
    units(s.dout, heads, rows, d.dim_v);
    how.blank = true;
    for_each_kernel(&s, &how, run_drawn, &sum);
    scene_free(&s);
    return sum;
}

void dropout_probability_exact(void **state)
{
    static const double p[] = {0.001, 1.0 / 256, 0.003, 0.1, 0.5, 0.999, 1e-5};
    (void)state;
    for (int n = 0; n < COUNT(p); n++) {
        fattn_desc d = sizes(2, 4, 4, 512, 1024);
        d.dtype = FATTN_F32;
        d.dropout = p[n];
        d.seed = 42;
        check_frequency(count_dropped(&d), (int64_t)2 * 4 * 512 * 1024, p[n], "fattn_dropout_keep");
    }
    /* The same from what kernels make of it: the fastest, then all. */
    drawn sum =
        draw(8, 512, 512, 0.001, (form){.what = "p = 0.001", .quick = true, .forward_only = true, .types = 1u << FATTN_F32});
    assert_true(sum.count >= 4000000);
    check_frequency(sum.dropped % sum.count, sum.count, 0.001, "forward");
    sum = draw(8, 512, 512, 0.001, (form){.what = "p = 0.001", .quick = true, .backward_only = true, .types = 1u << FATTN_F32});
    assert_true(sum.count >= 4000000);
    check_frequency(sum.dropped, sum.count, 0.001, "backward");
}

void dropout_is_the_same_everywhere(void **state)
{
    static const double p[] = {0.001, 0.3, 0.9};
    (void)state;
    for (int n = 0; n < COUNT(p); n++) {
        draw(2, 67, 129, p[n], (form){.what = "dropout", .forward_only = true});
        draw(2, 67, 129, p[n], (form){.what = "dropout", .backward_only = true});
        draw(2, 3, 300, p[n], (form){.what = "dropout", .forward_only = true});
    }
    check(featured(sizes(2, 4, 2, 33, 70)), (form){.what = "dropout, all features"});
}
