/*
 * Fills. Each kind says what element (i, d) of a tensor's row is; then single elements are poisoned. Elements are written
 * through the views, and everyone reads them through the views, so broadcast tensors need no care.
 */
#include "fill.h"

#include <math.h>

#include "random.h"

typedef enum fill_role { ROLE_Q, ROLE_K, ROLE_V, ROLE_DOUT } fill_role;

typedef struct filling {
    const problem *p;
    fill_role role;
    random_state random;
    double row_factor; /* of the row being filled */
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

/* FILL_EQUAL, RISING, FALLING, LOW: scores are row_factor of q times a number that depends on the key only. */
static double ladder(filling *f, int64_t i, int64_t d)
{
    const problem *p = f->p;
    const double weight = column_weight(d), k = weight * f->unit;
    if (f->role == ROLE_Q)
        return f->row_factor * weight;
    if (p->fill == FILL_EQUAL)
        return 3 * k;
    if (p->fill == FILL_LOW)
        return -(51000 + (double)(i % 7)) * k;
    const int64_t step = p->fill == FILL_RISING ? i : p->seq_k - 1 - i;
    return 0.5 * (double)step * k + 0.01 * random_normal(&f->random);
}

static double tiny(const problem *p)
{
    return p->dtype == FATTN_F64 ? 1e-310 : 1e-40;
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
        return f->role == ROLE_DOUT ? normal : 133120;
    case FILL_ZERO:
        return 0;
    case FILL_SUBNORMAL:
        return f->role == ROLE_Q ? normal : normal * tiny(f->p);
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

static double factor_of_row(filling *f)
{
    if (f->p->fill == FILL_SPIKY)
        return random_below(&f->random, 16) == 0 ? 30 : 1;
    if (f->p->fill == FILL_LOW)
        return 1 + 0.25 * (double)random_below(&f->random, 2);
    return 0.5 + random_unit(&f->random);
}

static void fill_tensor(const problem *p, fill_role role, const tensor *t)
{
    filling f = {.p = p, .role = role, .random = random_start(p->seed, (uint64_t)role), .unit = score_unit(p)};
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < t->rows; i++) {
                void *row = tensor_row(t, b, h, i);
                f.row_factor = factor_of_row(&f);
                for (int64_t d = 0; d < t->cols; d++)
                    tensor_put(t, row, d, element(&f, i, d));
            }
}

/* One element of the last head of the last batch. */
static void poison_one(const tensor *t, int64_t i, int64_t d, double value)
{
    if (!tensor_empty(t))
        tensor_put(t, tensor_row(t, t->batch - 1, t->heads - 1, i), d, value);
}

static bool key_is_used(const problem *p, int64_t j)
{
    for (int64_t i = 0; i < p->seq_q; i++)
        if (problem_keeps(p, i, j))
            return true;
    return false;
}

static void poison_unused_keys(const problem *p, const tensor *k, const tensor *v)
{
    for (int64_t j = 0; j < p->seq_k; j++) {
        if (key_is_used(p, j))
            continue;
        for (int64_t b = 0; b < k->batch; b++)
            for (int64_t h = 0; h < k->heads; h++) {
                for (int64_t d = 0; d < k->cols; d++)
                    tensor_put(k, tensor_row(k, b, h, j), d, NAN);
                for (int64_t d = 0; d < v->cols; d++)
                    tensor_put(v, tensor_row(v, b, h, j), d, NAN);
            }
    }
}

void fill_inputs(const problem *p, const tensor *q, const tensor *k, const tensor *v, const tensor *dout)
{
    fill_tensor(p, ROLE_Q, q);
    fill_tensor(p, ROLE_K, k);
    fill_tensor(p, ROLE_V, v);
    if (dout)
        fill_tensor(p, ROLE_DOUT, dout);
    if (p->fill == FILL_NAN_Q)
        poison_one(q, p->seq_q / 2, p->dim / 2, NAN);
    if (p->fill == FILL_INF_Q)
        poison_one(q, p->seq_q / 3, p->dim / 2, INFINITY);
    if (p->fill == FILL_INF_K)
        poison_one(k, p->seq_k / 2, p->dim / 2, -INFINITY);
    if (p->fill == FILL_NAN_V)
        poison_one(v, p->seq_k - 1, 0, NAN);
    if (p->fill == FILL_NAN_UNUSED)
        poison_unused_keys(p, k, v);
}
