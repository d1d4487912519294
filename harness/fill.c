/*
 * Fills. Each kind says what element (i, d) of a tensor's row is; then single elements are poisoned. Elements are written
 * through the views, and everyone reads them through the views, so broadcast tensors need no care.
 */
#include "fill.h"

#include <math.h>
#include <stdlib.h>

#include "random.h"

typedef enum fill_role { ROLE_Q, ROLE_K, ROLE_V, ROLE_DOUT, ROLE_BIAS, ROLE_SLOPES, ROLE_SINKS, ROLE_DLSE } fill_role;

enum { COLS_MAX = 512 };

typedef struct filling {
    const problem *p;
    const geometry *g;
    fill_role role;
    random_state random;
    double row_factor; /* of the row being filled */
    int64_t outlier;   /* its column, or -1 */
    double unit;       /* score_unit */
} filling;

/* A weight per column that q and k share; its sign too, so that their product is a sum of positive terms. They differ, as
 * the rounding errors of equal terms would add up. */
static double column_weight(int64_t d)
{
    random_state r = random_start(99, (uint64_t)d);
    const double size = 0.5 + random_unit(&r);
    return random_bits(&r) & 1 ? size : -size;
}

/* What a column of k must be multiplied with to make a score of 1 with q = weight. */
static double score_unit(const problem *p)
{
    double sum = 0;
    for (int64_t d = 0; d < p->dim; d++)
        sum += column_weight(d) * column_weight(d);
    return 1 / (problem_scale(p) * sum);
}

/* Of FILL_COUNTER: what falls by a factor from key to key, in a row of q. */
static double counter_weight(int64_t i)
{
    random_state r = random_start(98, (uint64_t)i);
    return 0.5 + random_unit(&r);
}

/* FILL_EQUAL, RISING, FALLING, LOW, COUNTER: scores are row_factor of q times a number that depends on the key only. */
static double ladder(filling *f, int64_t i, int64_t d)
{
    const problem *p = f->p;
    const double share = p->fill == FILL_LOW && p->dtype == FATTN_F16 ? 32 : 1; /* keeps k in the type's range */
    const double weight = column_weight(d), k = weight * f->unit / share;
    if (f->role == ROLE_Q)
        return f->row_factor * weight * share;
    if (p->fill == FILL_EQUAL)
        return 3 * k;
    if (p->fill == FILL_LOW)
        return -(51000 + (double)(i % 7)) * k;
    const int64_t step = p->fill == FILL_RISING ? i : p->seq_k - 1 - i;
    return 0.5 * (double)step * k + 0.01 * random_normal(&f->random);
}

static double tiny(const problem *p)
{
    return p->dtype == FATTN_F64 ? 1e-310 : p->dtype == FATTN_F16 ? 1e-6 : 1e-40;
}

static double element(filling *f, int64_t i, int64_t d)
{
    const double normal = random_normal(&f->random);
    const bool score = f->role == ROLE_Q || f->role == ROLE_K;
    switch (f->p->fill) {
    case FILL_SPIKY:
        return f->role == ROLE_K || f->role == ROLE_V ? normal * f->row_factor : normal;
    case FILL_LARGE:
        return f->role == ROLE_Q ? 130 * normal : normal;
    case FILL_EQUAL:
    case FILL_RISING:
    case FILL_FALLING:
    case FILL_LOW:
        return score ? ladder(f, i, d) : normal;
    case FILL_HIGH:
        return f->role == ROLE_DOUT ? normal : f->p->dtype == FATTN_F16 ? 256 : 133120;
    case FILL_ZERO:
        return 0;
    case FILL_SUBNORMAL:
        return f->role == ROLE_Q ? normal : normal * tiny(f->p);
    case FILL_APART:
        return normal * f->row_factor;
    case FILL_SPARSE:
        if (d == 0 && f->role == ROLE_Q)
            return f->outlier == 0 ? 0x1p40 * normal : 0;
        return d % 5 == 1 ? normal * f->row_factor : 0;
    case FILL_COUNTER:
        return score ? ladder(f, i, d) : normal * f->row_factor;
    case FILL_OUTLIER:
        return (d == f->outlier ? normal * f->row_factor : normal) * (f->role == ROLE_K ? 1e-6 : 1);
    case FILL_TINY:
        /* Products are normal floats, and positive, so that sums are too: some computations flush what is not. */
        return score ? column_weight(d) * 0x1p-61 * (0.9 + 0.2 * f->row_factor) : 1e-15 * normal;
    case FILL_ONES:
        return f->role == ROLE_V ? 1 : normal;
    case FILL_MINUS_INF:
        return f->role == ROLE_Q ? 0.1 + fabs(normal) : f->role == ROLE_K ? -INFINITY : normal;
    case FILL_MINUS_INF_KEY:
        return f->role == ROLE_Q ? 0.1 + fabs(normal) : f->role == ROLE_K && i == 0 ? -INFINITY : normal;
    default:
        return normal;
    }
}

static double factor_of_row(filling *f, int64_t i)
{
    const bool wide = f->role == ROLE_V || f->role == ROLE_DOUT;
    if (f->p->fill == FILL_SPIKY)
        return random_below(&f->random, 16) == 0 ? 30 : 1;
    if (f->p->fill == FILL_LOW)
        return 1 + 0.25 * (double)random_below(&f->random, 2);
    if (f->p->fill == FILL_OUTLIER)
        return random_below(&f->random, 2) == 0 && f->role == ROLE_V ? 1e15 : f->role == ROLE_K ? 1 : 1e6;
    if (f->p->fill == FILL_APART || f->p->fill == FILL_SPARSE) {
        /* with a causal mask the first rows see small values only, in a tile with large ones */
        const int step = f->role == ROLE_V && i < 4 ? 0 : (int)random_below(&f->random, 4);
        if (f->p->fill == FILL_SPARSE && wide)
            return ldexp(1, 28 * step - 40);
        if (f->role == ROLE_DOUT)
            return ldexp(1, 12 * step - 16);
        if (f->p->op == FATTN_OP_BACKWARD) /* dout alone: others must not make a kernel take each row apart */
            return f->role == ROLE_V ? 1 : ldexp(1, 4 * step - 12);
        return ldexp(1, f->role == ROLE_V ? 14 * step - 20 : 8 * step - 24);
    }
    if (f->p->fill == FILL_COUNTER && f->role == ROLE_V)
        return exp(0.5 * (double)(i < 70 ? i : 70));
    if (f->p->fill == FILL_COUNTER)
        return f->role == ROLE_DOUT ? exp(20 * counter_weight(i)) : counter_weight(i);
    return 0.5 + random_unit(&f->random);
}

/* One row; bytes get the factor that makes 127 of the largest. */
static void fill_row(filling *f, const tensor *t, void *row, const tensor *scales, void *scale, int64_t i)
{
    double x[COLS_MAX], largest = 0;
    f->row_factor = factor_of_row(f, i);
    if (f->p->fill == FILL_OUTLIER)
        f->outlier = i >= 4 && random_below(&f->random, 4) == 0 ? random_below(&f->random, t->cols) : -1;
    if (f->p->fill == FILL_SPARSE)
        f->outlier = random_below(&f->random, 4) == 0 ? 0 : -1;
    for (int64_t d = 0; d < t->cols; d++) {
        x[d] = element(f, i, d);
        largest = fmax(largest, fabs(x[d]));
    }
    if (t->type == FATTN_I8) {
        const double factor = (double)(float)(largest > 0 ? largest / 127 : 1);
        tensor_put(scales, scale, 0, factor);
        for (int64_t d = 0; d < t->cols; d++)
            x[d] /= factor;
    }
    for (int64_t d = 0; d < t->cols; d++)
        tensor_put(t, row, d, x[d]);
}

static void poison_row(const tensor *t, void *row, const tensor *scales, void *scale, double value)
{
    if (t->type == FATTN_I8)
        tensor_put(scales, scale, 0, value);
    for (int64_t d = 0; d < t->cols && t->type != FATTN_I8; d++)
        tensor_put(t, row, d, value);
}

static filling filling_of(const problem *p, const geometry *g, fill_role role)
{
    return (filling){.p = p, .g = g, .role = role, .random = random_start(p->seed, (uint64_t)role), .unit = score_unit(p)};
}

static void fill_queries(const problem *p, const geometry *g, fill_role role, const tensor *t)
{
    filling f = filling_of(p, g, role);
    for (int64_t b = 0; b < p->batch && !tensor_empty(t); b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < g->seq_q[b]; i++)
                fill_row(&f, t, query_row(p, g, t, b, h, i), NULL, NULL, i);
}

static bool key_is_used(const problem *p, const geometry *g, int64_t b, int64_t j)
{
    for (int64_t i = 0; i < g->seq_q[b]; i++)
        if (geometry_keeps(g, p, b, i, j))
            return true;
    return false;
}

/* Memory may be that of several sequences, in one of which a key is used: those come last. */
static void fill_keys(const problem *p, const geometry *g, fill_role role, const tensor *t, const tensor *scales)
{
    filling f = filling_of(p, g, role);
    for (int pass = p->fill == FILL_NAN_UNUSED ? 0 : 1; pass < 2; pass++)
        for (int64_t b = 0; b < p->batch && !tensor_empty(t); b++)
            for (int64_t h = 0; h < t->heads; h++)
                for (int64_t j = 0; j < g->seq_k[b]; j++) {
                    void *row = key_row(p, g, t, b, h, j);
                    void *scale = t->type == FATTN_I8 ? key_row(p, g, scales, b, h, j) : NULL;
                    const bool used = p->fill != FILL_NAN_UNUSED || key_is_used(p, g, b, j);
                    if (pass == 0 && !used)
                        poison_row(t, row, scales, scale, NAN);
                    if (pass == 1 && used)
                        fill_row(&f, t, row, scales, scale, j);
                }
}

/* ------------------------------------------------------------------------------------------------------- other tensors */

static double bias_element(filling *f, bool row_is_low)
{
    const double normal = random_normal(&f->random);
    const bool low = f->p->fill == FILL_BIAS_INF && (row_is_low || random_below(&f->random, 6) == 0);
    return low ? -(double)INFINITY : f->p->fill == FILL_ZERO ? 0 : f->p->fill == FILL_LARGE ? 30 * normal : normal;
}

/* Elements that no pair looks at are NaN: of rows and keys that do not exist and, if the fill says so, of pairs that are not
 * kept. */
static void fill_bias(const problem *p, const geometry *g, const tensor *t)
{
    filling f = filling_of(p, g, ROLE_BIAS);
    double *row_of = malloc(((size_t)t->cols + 1) * sizeof *row_of);
    const bool each[3] = {t->batch > 1, t->heads > 1, t->rows > 1};
    for (int64_t x = 0; row_of && x < t->batch * t->heads * t->rows && t->cols > 0; x++) {
        const int64_t b0 = x / t->rows / t->heads, h0 = x / t->rows % t->heads, i0 = x % t->rows;
        const bool low = random_below(&f.random, 6) == 0;
        void *row = tensor_row(t, b0, h0, i0);
        for (int64_t j = 0; j < t->cols; j++) {
            row_of[j] = bias_element(&f, low);
            tensor_put(t, row, j, NAN);
        }
        for (int64_t b = each[0] ? b0 : 0; b < (each[0] ? b0 + 1 : p->batch); b++)
            for (int64_t i = each[2] ? i0 : 0; i < (each[2] ? i0 + 1 : p->seq_q) && i < g->seq_q[b]; i++)
                for (int64_t j = 0; j < g->seq_k[b]; j++)
                    if (p->fill != FILL_NAN_UNUSED || geometry_keeps(g, p, b, i, j))
                        tensor_put(t, row, j, row_of[j]);
    }
    free(row_of);
}

/* Slopes as in the paper, some 0 and some negative. Sinks of which some are missing and some win. */
static void fill_heads(const problem *p, const geometry *g, fill_role role, const tensor *t)
{
    filling f = filling_of(p, g, role);
    for (int64_t h = 0; h < t->cols; h++) {
        const double normal = random_normal(&f.random), slope = exp2(-8 * (double)(h + 1) / (double)p->heads_q);
        const int64_t kind = random_below(&f.random, 8);
        const double x = role == ROLE_SLOPES ? (kind == 0   ? 0
                                                : kind == 1 ? -slope
                                                            : slope)
                                             : (kind == 0   ? -(double)INFINITY
                                                : kind == 1 ? 20 + normal
                                                            : 2 * normal);
        tensor_put(t, t->view.data, h, x);
    }
}

/* --------------------------------------------------------------------------------------------------------------- poison */

static int64_t last_with(const int64_t *length, int64_t batch)
{
    while (batch > 0 && length[batch - 1] == 0)
        batch--;
    return batch - 1;
}

/* One element of the last head of the last sequence that has rows: at `part` of its rows. */
static void poison_query(const problem *p, const geometry *g, const tensor *t, int64_t part, double value)
{
    const int64_t b = last_with(g->seq_q, p->batch);
    if (b >= 0)
        tensor_put(t, query_row(p, g, t, b, t->heads - 1, g->seq_q[b] / part), p->dim / 2, value);
}

/* The same of keys: bytes get it through their factor. */
static void poison_key(const problem *p, const geometry *g, const tensor *t, const tensor *scales, bool middle, double value)
{
    const int64_t b = last_with(g->seq_k, p->batch);
    if (b < 0)
        return;
    const int64_t j = middle ? g->seq_k[b] / 2 : g->seq_k[b] - 1, h = t->heads - 1;
    if (t->type == FATTN_I8)
        tensor_put(scales, key_row(p, g, scales, b, h, j), 0, value);
    else
        tensor_put(t, key_row(p, g, t, b, h, j), middle ? p->dim / 2 : 0, value);
}

void fill_inputs(const problem *p, const geometry *g, const tensors *t)
{
    fill_queries(p, g, ROLE_Q, &t->q);
    fill_keys(p, g, ROLE_K, &t->k, &t->k_scales);
    fill_keys(p, g, ROLE_V, &t->v, &t->v_scales);
    if (p->op == FATTN_OP_BACKWARD)
        fill_queries(p, g, ROLE_DOUT, &t->dout);
    if (p->bias)
        fill_bias(p, g, &t->bias);
    if (p->alibi)
        fill_heads(p, g, ROLE_SLOPES, &t->slopes);
    if (p->sinks)
        fill_heads(p, g, ROLE_SINKS, &t->sinks);
    if (p->dlse)
        fill_queries(p, g, ROLE_DLSE, &t->dlse);
    if (p->fill == FILL_NAN_Q)
        poison_query(p, g, &t->q, 2, NAN);
    if (p->fill == FILL_INF_Q)
        poison_query(p, g, &t->q, 3, INFINITY);
    if (p->fill == FILL_INF_K)
        poison_key(p, g, &t->k, &t->k_scales, true, -INFINITY);
    if (p->fill == FILL_NAN_V)
        poison_key(p, g, &t->v, &t->v_scales, false, NAN);
}
