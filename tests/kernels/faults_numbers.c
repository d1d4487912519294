/* See faults.h. What arithmetic can do wrong. */
#include "faults.h"

#include <math.h>
#include <stdlib.h>

/* Sums of padding keys' exponentials, exp(0 - lse), would be infinite. */
void padding_keys_overflow_exp(void **state)
{
    static const int64_t keys[] = {1, 7, 15, 17, 63, 64, 65, 127, 192, 193};
    static const double size[] = {-200, -1000, 200, 1000};
    (void)state;
    for (int n = 0; n < COUNT(keys) * COUNT(size); n++)
        for (int mask = FATTN_MASK_FULL; mask <= FATTN_MASK_CAUSAL; mask++) {
            fattn_desc d = masked(sizes(1, 2, 1, 20, keys[n / COUNT(size)]), mask, FATTN_ALIGN_BOTTOM_RIGHT);
            d.scale = 1;
            scene s = scene_make(&d, 1);
            shift_scores(&s, fabs(size[n % COUNT(size)]) / 8, size[n % COUNT(size)] < 0 ? -1 : 1);
            check_scene(&s, &(form){.what = "lse far from 0"});
            scene_free(&s);
        }
}

/* All of q, k and v is one number; so is out. Of scores this large the last place exceeds 1 in narrower types, and only double
 * can tell in backward what exp(s - lse) is. */
static void check_big(double value, int64_t dim, uint32_t types, uint32_t backward)
{
    for (int64_t n = 1; n <= 3; n++) {
        fattn_desc d = sizes(1, 2, 1, n, n);
        d.dim = d.dim_v = dim;
        scene s = scene_make(&d, 1);
        fill(s.q, 2 * n * dim, value);
        fill(s.k, n * dim, value);
        fill(s.v, n * dim, value);
        check_scene(&s, &(form){.what = "big inputs", .forward_only = true, .types = types});
        if (backward)
            check_scene(&s, &(form){.what = "big inputs", .backward_only = true, .types = backward});
        scene_free(&s);
    }
}

void big_inputs(void **state)
{
    (void)state;
    check_big(133120, 64, 0, 1u << FATTN_F64);
    check_big(256, 80, 0, 1u << FATTN_F64);
    check_big(-256, 80, 0, 1u << FATTN_F64);
    check_big(8, 64, 0, 1u << FATTN_F64 | 1u << FATTN_F32 | 1u << FATTN_F16 | 1u << FATTN_BF16);
    check_big(0x1p60, 64, 0, 0);
}

void negative_scale(void **state)
{
    static const double scale[] = {-1e4, -100, -1, -0.125, -1e-4};
    (void)state;
    for (int n = 0; n < COUNT(scale); n++)
        for (int mask = FATTN_MASK_FULL; mask <= FATTN_MASK_CAUSAL; mask++) {
            fattn_desc d = masked(sizes(1, 2, 1, 33, 65), mask, FATTN_ALIGN_BOTTOM_RIGHT);
            d.scale = scale[n];
            check(d, (form){.what = "negative scale"});
            d.softcap = 2;
            check(d, (form){.what = "negative scale, softcap"});
        }
}

/* ----------------------------------------------------------------------------------------------------------------- NaN */

static void check_unused(fattn_desc d, int64_t rows0, int64_t keys0, int64_t rows1, int64_t keys1)
{
    static const int64_t pages[] = {1, 2, 16, 64};
    scene s = scene_make(&d, 1);
    scene_length(&s, 0, rows0, keys0);
    scene_length(&s, 1, rows1, keys1);
    for (int infinite = 0; infinite < 2; infinite++) {
        for (layout l = 0; l < LAYOUT_QKV; l++)
            check_scene(&s, &(form){.what = "unused slots", .layout = l, .infinite = infinite});
        check_scene(&s, &(form){.what = "unused slots", .infinite = infinite, .packed = true, .gap = 2});
        for (int n = 0; n < COUNT(pages); n++)
            check_scene(&s, &(form){.what = "unused slots, pages", .infinite = infinite, .page_size = pages[n]});
    }
    scene_free(&s);
}

void nan_in_unused_slots(void **state)
{
    (void)state;
    for (int mask = FATTN_MASK_FULL; mask <= FATTN_MASK_CAUSAL; mask++) {
        check_unused(masked(sizes(2, 4, 2, 1, 3), mask, FATTN_ALIGN_BOTTOM_RIGHT), 1, 1, 1, 3);
        check_unused(masked(sizes(2, 4, 2, 33, 65), mask, FATTN_ALIGN_BOTTOM_RIGHT), 17, 40, 33, 64);
        check_unused(featured(sizes(2, 4, 2, 33, 65)), 17, 40, 33, 64);
    }
}

/* Where the truth has numbers, the results have the same: the NaN stays in its row, and in what keys get from it. */
void nan_in_a_query_stays_there(void **state)
{
    static const int64_t rows[] = {1, 5, 37, 70};
    (void)state;
    for (int n = 0; n < COUNT(rows); n++)
        for (int mask = FATTN_MASK_FULL; mask <= FATTN_MASK_CAUSAL; mask++) {
            const fattn_desc d = masked(sizes(2, 4, 2, rows[n], 70), mask, FATTN_ALIGN_BOTTOM_RIGHT);
            scene s = scene_make(&d, 1);
            scene_row(&s, s.q, 4, rows[n], d.dim, 1, 2, rows[n] / 2)[3] = (double)NAN;
            check_scene(&s, &(form){.what = "NaN in a query"});
            scene_free(&s);
        }
}

void nan_in_a_key_or_value_stays_there(void **state)
{
    (void)state;
    for (int where = 0; where < 3; where++)
        for (int mask = FATTN_MASK_FULL; mask <= FATTN_MASK_WINDOW; mask++) {
            fattn_desc d = masked(sizes(2, 4, 2, 37, 70), mask, FATTN_ALIGN_BOTTOM_RIGHT);
            d.window_left = mask == FATTN_MASK_WINDOW ? 9 : 0;
            scene s = scene_make(&d, 1);
            if (where < 2)
                scene_row(&s, where == 0 ? s.k : s.v, 2, 70, 8, 1, 1, 47)[5] = (double)NAN;
            else
                scene_row(&s, s.dout, 4, 37, 8, 1, 2, 14)[5] = (double)NAN;
            check_scene(&s, &(form){.what = where == 0 ? "NaN in a key" : where == 1 ? "NaN in a value" : "NaN in dout"});
            scene_free(&s);
        }
}

/* ------------------------------------------------------------------------------------------------------------- softcap */

/* Keys that no row keeps, and one that only the last rows keep, hold what would show. */
void softcap_before_mask(void **state)
{
    static const double poison[] = {16384, -16384, (double)NAN, (double)INFINITY};
    (void)state;
    for (int n = 0; n < COUNT(poison); n++)
        for (int keys = 0; keys < 2; keys++)
            for (int mask = FATTN_MASK_CAUSAL; mask <= FATTN_MASK_WINDOW; mask++) {
                fattn_desc d = masked(sizes(1, 2, 1, 40, 70), mask, FATTN_ALIGN_TOP_LEFT);
                d.window_left = mask == FATTN_MASK_WINDOW ? 12 : 0;
                d.softcap = 15;
                d.scale = 4;
                scene s = scene_make(&d, 1);
                for (int64_t j = 40; j < 70; j++)
                    s.v[j * d.dim_v + j % 8] = poison[n];
                for (int64_t j = 44; keys && j < 60; j++)
                    s.k[j * d.dim + 3] = poison[n];
                if (n < 2)
                    s.v[38 * d.dim_v + 1] = poison[n];
                check_scene(&s, &(form){.what = "poison at masked keys"});
                scene_free(&s);
            }
}

/* sum dout . out by the library's own forward in double. */
static double loss(const scene *s, const truth *t)
{
    placed p = placed_make(s, t, &(form){0}, FATTN_F64);
    double sum = 0;
    placed_forward(&p, context_of("", 2));
    for (int64_t x = 0; x < t->count[OUT]; x++)
        sum += s->dout[x] * ((const double *)p.t[SLOT_OUT].view.data)[x];
    placed_free(&p);
    return sum;
}

static void check_slope(scene *s, const truth *t, double *x, double gradient)
{
    const double before = *x, h = 1e-4;
    *x = before + h;
    const double above = loss(s, t);
    *x = before - h;
    const double below = loss(s, t);
    *x = before;
    if (!(fabs((above - below) / (2 * h) - gradient) <= 1e-6 * (1 + fabs(gradient))))
        fail_msg("the gradient is %.9g, but differences give %.9g", gradient, (above - below) / (2 * h));
}

void softcap_gradient(void **state)
{
    static const double cap[] = {15, 1, 50};
    (void)state;
    for (int n = 0; n < COUNT(cap); n++) {
        fattn_desc d = sizes(1, 2, 1, 128, 217);
        d.softcap = cap[n];
        d.scale = 2;
        scene s = scene_make(&d, 1);
        truth t = truth_of(&s, 0x1p-53, 0x1p-53);
        for (int64_t x = 3; x < 2 * 128 * 8; x += 401)
            check_slope(&s, &t, &s.q[x], t.value[DQ][x]);
        for (int64_t x = 5; x < 217 * 8; x += 301) {
            check_slope(&s, &t, &s.k[x], t.value[DK][x]);
            check_slope(&s, &t, &s.v[x], t.value[DV][x]);
        }
        check_scene(&s, &(form){.what = "softcap"});
        truth_free(&t);
        scene_free(&s);
    }
}

/* ----------------------------------------------------------------------------------------------------------- precision */

/* One head of full attention in float, term by term, as anyone would write it first. Probabilities of one row are in p. */
static float naive_scores(const scene *s, int64_t i, float *p)
{
    const fattn_desc *d = &s->desc;
    float largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < d->seq_k; j++) {
        p[j] = 0;
        for (int64_t x = 0; x < d->dim; x++)
            p[j] += (float)s->q[i * d->dim + x] * (float)s->k[j * d->dim + x];
        p[j] *= (float)d->scale;
        largest = p[j] > largest ? p[j] : largest;
    }
    for (int64_t j = 0; j < d->seq_k; j++)
        sum += p[j] = expf(p[j] - largest);
    for (int64_t j = 0; j < d->seq_k; j++)
        p[j] /= sum;
    return largest + logf(sum);
}

/* Row i's part of all results. */
static void naive_row(const scene *s, int64_t i, float *p, float *r[RESULTS])
{
    const fattn_desc *d = &s->desc;
    float delta = 0;
    r[LSE][i] = naive_scores(s, i, p);
    for (int64_t x = 0; x < d->dim_v; x++) {
        for (int64_t j = 0; j < d->seq_k; j++)
            r[OUT][i * d->dim_v + x] += p[j] * (float)s->v[j * d->dim_v + x];
        delta += r[OUT][i * d->dim_v + x] * (float)s->dout[i * d->dim_v + x];
    }
    for (int64_t j = 0; j < d->seq_k; j++) {
        float dp = 0;
        for (int64_t x = 0; x < d->dim_v; x++) {
            dp += (float)s->dout[i * d->dim_v + x] * (float)s->v[j * d->dim_v + x];
            r[DV][j * d->dim_v + x] += p[j] * (float)s->dout[i * d->dim_v + x];
        }
        for (int64_t x = 0; x < d->dim; x++) {
            r[DQ][i * d->dim + x] += p[j] * (dp - delta) * (float)d->scale * (float)s->k[j * d->dim + x];
            r[DK][j * d->dim + x] += p[j] * (dp - delta) * (float)d->scale * (float)s->q[i * d->dim + x];
        }
    }
}

/* The largest error of each result, and how large the result is. */
typedef struct errors {
    double error[RESULTS], size[RESULTS];
} errors;

static errors naive_errors(const scene *s, const truth *t)
{
    float *r[RESULTS], *p = allocate(s->desc.seq_k, sizeof *p);
    errors e = {0};
    for (int k = 0; k < RESULTS; k++)
        r[k] = allocate(t->count[k], sizeof **r);
    for (int64_t i = 0; i < s->desc.seq_q; i++)
        naive_row(s, i, p, r);
    for (int k = 0; k < RESULTS; k++) {
        for (int64_t x = 0; x < t->count[k]; x++) {
            e.error[k] = fmax(e.error[k], fabs((double)r[k][x] - t->value[k][x]));
            e.size[k] = fmax(e.size[k], fabs(t->value[k][x]));
        }
        free(r[k]);
    }
    free(p);
    return e;
}

/* Within twice the naive errors, and a few roundings of what backward is given. */
static void run_against_naive(placed *p, fattn_op op, const truth *t, const char *kernel, const char *label, void *arg)
{
    const errors *naive = arg;
    truth want = *t;
    (op == FATTN_OP_FORWARD ? placed_forward : placed_backward)(p, context_of(kernel, 2));
    for (int k = 0; k < RESULTS; k++) {
        want.bound[k] = allocate(t->count[k], sizeof(double));
        fill(want.bound[k], t->count[k], 2 * naive->error[k] + 8 * 0x1p-24 * naive->size[k]);
    }
    placed_compare(p, op, &want, label);
    for (int k = 0; k < RESULTS; k++)
        free(want.bound[k]);
}

void half_precision_accumulators(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) { /* long sums over keys, then over rows */
        fattn_desc d = n == 0 ? sizes(1, 1, 1, 5, 8192) : sizes(1, 1, 1, 8192, 5);
        d.dim = d.dim_v = 16;
        d.scale = 0.25;
        scene s = scene_make(&d, 1);
        for (int64_t x = 0; x < d.seq_k * d.dim_v; x++) /* of one sign, so that sums grow */
            s.v[x] = fabs(s.v[x]) / 2 + 0.5;
        for (int64_t x = 0; x < d.seq_q * d.dim_v; x++)
            s.dout[x] = fabs(s.dout[x]) / 2 + 0.5;
        truth t = truth_of(&s, 0x1p-24, 0x1p-24);
        errors naive = naive_errors(&s, &t);
        const uint32_t types = 1u << FATTN_F32 | 1u << FATTN_F16 | 1u << FATTN_BF16;
        for_each_kernel(&s, &(form){.what = "long sums", .wide = true, .types = types}, run_against_naive, &naive);
        check_scene(&s, &(form){.what = "long sums"});
        truth_free(&t);
        scene_free(&s);
    }
}

/* Every element of out is 1, or as near as float comes. */
static void run_ones(placed *p, fattn_op op, const truth *t, const char *kernel, const char *label, void *arg)
{
    const int32_t dtype = p->t[SLOT_OUT].dtype;
    const double most = dtype == FATTN_F64 || dtype == FATTN_F32 ? (double)(p->desc.seq_k + 16) * number_unit(dtype) : 0;
    (void)op, (void)arg;
    placed_forward(p, context_of(kernel, 2));
    for (int64_t x = 0; x < t->count[OUT]; x++) {
        const double got = number_get(p->t[SLOT_OUT].view.data, dtype, x);
        if (!(fabs(got - 1) <= most))
            fail_msg("%s: out is %.9g, not 1", label, got);
    }
}

void probabilities_not_rounded(void **state)
{
    static const int64_t keys[] = {1, 7, 64, 65, 100, 513};
    (void)state;
    for (int n = 0; n < COUNT(keys); n++)
        for (int mask = FATTN_MASK_FULL; mask <= FATTN_MASK_CAUSAL; mask++) {
            const fattn_desc d = masked(sizes(1, 2, 1, 35, keys[n]), mask, FATTN_ALIGN_TOP_LEFT);
            scene s = scene_make(&d, 1);
            fill(s.v, keys[n] * d.dim_v, 1);
            for (int wide = 0; wide < 2; wide++)
                for_each_kernel(&s, &(form){.what = "v = 1", .forward_only = true, .wide = wide}, run_ones, NULL);
            check_scene(&s, &(form){.what = "v = 1", .wide = true});
            scene_free(&s);
        }
}
