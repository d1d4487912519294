/*
 * The results of a timed kernel against a computation in double, written from the header's formulas, on sampled rows.
 *
 * Backward's check starts from the same out and lse as the kernel does; they were checked when forward made them. Dropout's
 * random numbers are the harness's own.
 */
#include <math.h>
#include <stdlib.h>

#include "bench.h"
#include "naive_features.h"
#include "numbers.h"
#include "random.h"

enum { ROWS = 16, HEADS = 4, PAIRS = 8 }; /* sampled */
enum { DIM_MOST = 512 };

/* What every function here needs, and a head of a sequence. */
typedef struct at_head {
    const bench_cell *cell;
    const bench_data *data;
    int64_t b, h;
} at_head;

typedef struct comparison {
    double error, largest;
    double step; /* of the coarsest type that was compared, relative */
} comparison;

static void compare(comparison *c, fattn_dtype type, double value, double truth)
{
    const double error = fabs(value - truth);
    c->error = error > c->error || isnan(error) ? error : c->error; /* a NaN stays */
    c->largest = fmax(c->largest, fabs(truth));
    c->step = fmax(c->step, ldexp(1, -type_fraction(type)));
}

/* ------------------------------------------------------------------------------------------------------------- looking */

static int64_t kv_head(const at_head *a)
{
    return a->h / (a->cell->heads / a->cell->heads_kv);
}

static const void *row_of(const bench_tensor *t, int64_t b, int64_t h, int64_t i)
{
    const fattn_view *v = &t->view;
    const int64_t offset = b * v->stride_batch + h * v->stride_head + i * v->stride_row;
    return (const char *)v->data + offset * (int64_t)type_size(t->type);
}

static const void *query_row(const at_head *a, const bench_tensor *t, int64_t i)
{
    return bench_packed(a->cell) ? row_of(t, 0, a->h, a->data->sequences.cu_q[a->b] + i) : row_of(t, a->b, a->h, i);
}

static const void *key_row(const at_head *a, const bench_tensor *t, int64_t j)
{
    const bench_sequences *s = &a->data->sequences;
    const int64_t page = a->cell->page;
    if (page > 0)
        return row_of(t, s->page_table[a->b * s->columns + j / page], kv_head(a), j % page);
    return bench_packed(a->cell) ? row_of(t, 0, kv_head(a), s->cu_k[a->b] + j) : row_of(t, a->b, kv_head(a), j);
}

/* The factor of a row of bytes; 1 of other types. */
static double key_factor(const at_head *a, const bench_tensor *t, const bench_tensor *scales, int64_t j)
{
    return t->type == FATTN_I8 ? number_get(FATTN_F32, key_row(a, scales, j), 0) : 1;
}

/* Numbers of 16 bits by their bits, as decoding each anew would take most of the time. */
static const float *narrow_table(fattn_dtype type)
{
    static float tables[2][1 << 16];
    static bool made[2];
    const int which = type == FATTN_F16;
    for (uint32_t bits = 0; bits < 1u << 16 && !made[which]; bits++)
        tables[which][bits] = (float)narrow_decode(type, (uint16_t)bits);
    made[which] = true;
    return tables[which];
}

static void load_row(fattn_dtype type, const void *row, int64_t n, double *to)
{
    const float *table = type_is_narrow(type) ? narrow_table(type) : NULL;
    for (int64_t d = 0; d < n; d++)
        to[d] = table               ? (double)table[((const uint16_t *)row)[d]]
                : type == FATTN_F32 ? (double)((const float *)row)[d]
                                    : number_get(type, row, d);
}

static double dot(fattn_dtype x_type, const void *x_row, fattn_dtype y_type, const void *y_row, int64_t n)
{
    double x[DIM_MOST], y[DIM_MOST], sum = 0;
    load_row(x_type, x_row, n, x);
    load_row(y_type, y_row, n, y);
    for (int64_t d = 0; d < n; d++)
        sum += x[d] * y[d];
    return sum;
}

static void add_row(double *to, double factor, fattn_dtype type, const void *row, int64_t n)
{
    double x[DIM_MOST];
    load_row(type, row, n, x);
    for (int64_t d = 0; d < n && factor != 0; d++)
        to[d] += factor * x[d];
}

static double lse_of(const at_head *a, int64_t i)
{
    const bench_tensor *t = &a->data->lse;
    return number_get(t->type, query_row(a, t, i), 0);
}

static double sink_of(const at_head *a)
{
    return a->cell->sinks ? number_get(FATTN_F32, a->data->sinks.view.data, a->h) : -(double)INFINITY;
}

static bool keeps(const at_head *a, int64_t i, int64_t j)
{
    const bench_sequences *s = &a->data->sequences;
    const int64_t row = s->cu_q[a->b] + i;
    return j >= s->lo[row] && j < s->hi[row];
}

static double dropped(const at_head *a, int64_t i, int64_t j)
{
    return dropout_factor(a->cell->dropout, a->data->desc.seed, a->b * a->cell->heads + a->h, i, j);
}

/* The score of a pair that is kept; *slope is its derivative by q . k. */
static double score(const at_head *a, int64_t i, int64_t j, double *slope)
{
    const bench_cell *cell = a->cell;
    const bench_data *data = a->data;
    const double factor = key_factor(a, &data->k, &data->k_scales, j) / sqrt((double)cell->dim);
    double x = factor * dot(data->q.type, query_row(a, &data->q, i), data->k.type, key_row(a, &data->k, j), cell->dim);
    *slope = 1 / sqrt((double)cell->dim);
    if (cell->softcap > 0) {
        const double t = tanh(x / cell->softcap);
        x = cell->softcap * t;
        *slope *= 1 - t * t;
    }
    if (data->bias.view.data)
        x += number_get(data->bias.type, row_of(&data->bias, a->b, a->h, i), j);
    if (cell->alibi)
        x -= number_get(FATTN_F32, data->slopes.view.data, a->h) *
             fabs((double)(i + bench_offset(cell, &data->sequences, a->b) - j));
    return x;
}

/* ------------------------------------------------------------------------------------------------------------- forward */

static void add_value(const at_head *a, double weight, int64_t j, double *out)
{
    const bench_tensor *v = &a->data->v;
    add_row(out, weight * key_factor(a, v, &a->data->v_scales, j), v->type, key_row(a, v, j), a->cell->dim_v);
}

/* Row i of out and lse. */
static bool check_row(const at_head *a, int64_t i, comparison *c)
{
    const bench_data *data = a->data;
    const int64_t keys = data->sequences.len_k[a->b], dim_v = a->cell->dim_v;
    double *prob = calloc((size_t)keys + 1, sizeof *prob), *out = calloc((size_t)dim_v, sizeof *out);
    double max = sink_of(a), sum = 0, slope;
    const bool ok = prob && out;
    for (int64_t j = 0; ok && j < keys; j++) {
        prob[j] = keeps(a, i, j) ? score(a, i, j, &slope) : -(double)INFINITY;
        max = fmax(max, prob[j]);
    }
    for (int64_t j = 0; ok && j < keys; j++)
        sum += prob[j] = prob[j] == -(double)INFINITY ? 0 : exp(prob[j] - max);
    sum += a->cell->sinks ? exp(sink_of(a) - max) : 0;
    for (int64_t j = 0; ok && j < keys; j++)
        if (prob[j] > 0)
            add_value(a, dropped(a, i, j) * prob[j] / sum, j, out);
    for (int64_t d = 0; ok && d < dim_v; d++)
        compare(c, data->out.type, number_get(data->out.type, query_row(a, &data->out, i), d), out[d]);
    if (ok && sum > 0)
        compare(c, data->lse.type, lse_of(a, i), max + log(sum));
    free(prob);
    free(out);
    return ok;
}

/* ------------------------------------------------------------------------------------------------------------ backward */

/* D of row i. */
static double row_sum(const at_head *a, int64_t i)
{
    const bench_tensor *dout = &a->data->dout, *out = &a->data->out;
    return dot(dout->type, query_row(a, dout, i), out->type, query_row(a, out, i), a->cell->dim_v);
}

/* A pair: its weight in dv, the gradient of its score, and that of its q . k. */
typedef struct pair {
    double weight, ds, dx;
} pair;

static pair pair_of(const at_head *a, int64_t i, int64_t j)
{
    const bench_tensor *dout = &a->data->dout, *v = &a->data->v;
    const double lse = lse_of(a, i);
    if (!keeps(a, i, j) || lse == -(double)INFINITY)
        return (pair){0};
    double slope;
    const double prob = exp(score(a, i, j, &slope) - lse), factor = dropped(a, i, j);
    const double dp = dot(dout->type, query_row(a, dout, i), v->type, key_row(a, v, j), a->cell->dim_v);
    const double ds = prob * (factor * dp - row_sum(a, i));
    return (pair){.weight = prob * factor, .ds = ds, .dx = ds * slope};
}

static void compare_row(comparison *c, fattn_dtype type, const void *row, const double *truth, int64_t n)
{
    for (int64_t d = 0; d < n; d++)
        compare(c, type, number_get(type, row, d), truth[d]);
}

static void check_dq(const at_head *a, int64_t i, double *dq, comparison *c)
{
    const bench_data *data = a->data;
    for (int64_t d = 0; d < a->cell->dim; d++)
        dq[d] = 0;
    for (int64_t j = 0; j < data->sequences.len_k[a->b]; j++)
        add_row(dq, pair_of(a, i, j).dx, data->k.type, key_row(a, &data->k, j), a->cell->dim);
    compare_row(c, data->dq.type, query_row(a, &data->dq, i), dq, a->cell->dim);
}

static void check_dkv(const at_head *a, int64_t j, double *dk, double *dv, comparison *c)
{
    const bench_data *data = a->data;
    const bench_cell *cell = a->cell;
    const int64_t group = cell->heads / cell->heads_kv;
    at_head each = *a;
    for (int64_t d = 0; d < cell->dim; d++)
        dk[d] = 0;
    for (int64_t d = 0; d < cell->dim_v; d++)
        dv[d] = 0;
    for (each.h = a->h / group * group; each.h < (a->h / group + 1) * group; each.h++)
        for (int64_t i = 0; i < data->sequences.len_q[a->b]; i++) {
            const pair p = pair_of(&each, i, j);
            add_row(dk, p.dx, data->q.type, query_row(&each, &data->q, i), cell->dim);
            add_row(dv, p.weight, data->dout.type, query_row(&each, &data->dout, i), cell->dim_v);
        }
    compare_row(c, data->dk.type, key_row(a, &data->dk, j), dk, cell->dim);
    compare_row(c, data->dv.type, key_row(a, &data->dv, j), dv, cell->dim_v);
}

/* Element (b, h, i, j) of dbias: the sum over what is broadcast. */
static void check_dbias(const at_head *a, int64_t i, int64_t j, comparison *c)
{
    const bench_cell *cell = a->cell;
    const bench_sequences *s = &a->data->sequences;
    const bench_tensor *t = &a->data->dbias;
    const bool by_batch = cell->bias & BIAS_BATCH, by_head = cell->bias & BIAS_HEAD, by_row = cell->bias & BIAS_ROW;
    double sum = 0;
    at_head each = *a;
    for (each.b = by_batch ? a->b : 0; each.b < (by_batch ? a->b + 1 : cell->batch); each.b++)
        for (each.h = by_head ? a->h : 0; each.h < (by_head ? a->h + 1 : cell->heads); each.h++)
            for (int64_t row = by_row ? i : 0; row < (by_row ? i + 1 : s->longest_q) && row < s->len_q[each.b]; row++)
                if (j < s->len_k[each.b])
                    sum += pair_of(&each, row, j).ds;
    compare(c, t->type, number_get(t->type, row_of(t, a->b, a->h, i), j), sum);
}

static void check_dsink(const at_head *a, comparison *c)
{
    at_head each = *a;
    double sum = 0;
    for (each.b = 0; each.b < a->cell->batch; each.b++)
        for (int64_t i = 0; i < a->data->sequences.len_q[each.b]; i++)
            sum -= exp(sink_of(&each) - lse_of(&each, i)) * row_sum(&each, i);
    compare(c, FATTN_F32, number_get(FATTN_F32, a->data->dsinks.view.data, a->h), sum);
}

/* ------------------------------------------------------------------------------------------------------------ sampling */

/* Sample number s of n things: the last, the first, and random ones. */
static int64_t sample(random_state *r, int s, int64_t n)
{
    return s == 0 ? n - 1 : s == 1 ? 0 : random_below(r, n);
}

static bool check_head_forward(const at_head *a, random_state *r, comparison *c)
{
    const int64_t rows = a->data->sequences.len_q[a->b];
    bool ok = true;
    for (int s = 0; s < ROWS && s < rows && ok; s++)
        ok = check_row(a, sample(r, s, rows), c);
    return ok;
}

/* With what a bias sums over, an element of dbias costs as much as the whole gradient, so few of those are looked at. */
static bool check_head_backward(const at_head *a, random_state *r, comparison *c)
{
    const int64_t rows = a->data->sequences.len_q[a->b], keys = a->data->sequences.len_k[a->b];
    double *dq = malloc((size_t)a->cell->dim * sizeof *dq), *dk = malloc((size_t)a->cell->dim * sizeof *dk);
    double *dv = malloc((size_t)a->cell->dim_v * sizeof *dv);
    const bool ok = dq && dk && dv;
    for (int s = 0; s < ROWS / 2 && ok && rows > 0 && keys > 0; s++) {
        check_dq(a, sample(r, s, rows), dq, c);
        check_dkv(a, sample(r, s, keys), dk, dv, c);
        if (a->data->dbias.view.data && s < ((a->cell->bias & BIAS_ROW) != 0 ? PAIRS : 2))
            check_dbias(a, sample(r, s, rows), sample(r, s, keys), c);
    }
    if (ok && a->cell->sinks)
        check_dsink(a, c);
    free(dq);
    free(dk);
    free(dv);
    return ok;
}

/* Results are sums of many terms that were rounded to float, and are rounded once more to their own type. */
static double allowed_error(const bench_cell *cell, const comparison *c)
{
    const double sums = cell->dtype == FATTN_F64 ? 1e-11 : 2e-4;
    return (sums + c->step) * (1 + c->largest);
}

double bench_error(const bench_cell *cell, const bench_data *data, double *allowed)
{
    random_state r = random_start(cell->seed, 77);
    comparison c = {0};
    const bool backward = cell->pass == BENCH_BACKWARD;
    for (int s = 0; s < (backward ? HEADS / 2 : HEADS) && cell->batch > 0; s++) {
        const int64_t b = sample(&r, s, cell->batch), h = sample(&r, s, cell->heads);
        const at_head a = {cell, data, b, h};
        if (!(backward ? check_head_backward(&a, &r, &c) : check_head_forward(&a, &r, &c)))
            c.error = NAN;
    }
    *allowed = allowed_error(cell, &c);
    return c.error;
}
