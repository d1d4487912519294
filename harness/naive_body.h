/*
 * Naive attention in type REAL; included by naive.c once per type, with REAL, its functions EXP, EXP2, LOG, LOG2, and NAME(x),
 * which makes the names of that type.
 */

/* One query head at work, and the tensors of the whole problem, dense in REAL: [batch, heads, rows, cols]. */
typedef struct NAME(work) {
    const problem *p;
    naive_form form;
    REAL *q, *k, *v, *dout, *out, *lse; /* whole tensors */
    REAL *qs;                           /* [dim]: the row of q times the factor on the scores, if folded */
    REAL *s, *prob;                     /* [seq_k]: one row's scores and probabilities */
    bool *kept;                         /* [seq_k] */
    REAL *dq, *dk, *dv;                 /* whole gradients */
    double *sums;                       /* [dim or dim_v]: one row's units */
    double *unit_dk, *unit_dv;          /* [seq_k, dim], [seq_k, dim_v] of the present key/value head; NULL: no units */
} NAME(work);

static REAL *NAME(load)(const tensor *t)
{
    REAL *dense = calloc((size_t)tensor_count(t) + 1, sizeof(REAL));
    if (!dense)
        return NULL;
    REAL *to = dense;
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < t->rows; i++) {
                const void *row = tensor_empty(t) ? NULL : tensor_row(t, b, h, i);
                for (int64_t d = 0; d < t->cols; d++)
                    *to++ = t->size == 4 ? (REAL)((const float *)row)[d] : (REAL)((const double *)row)[d];
            }
    return dense;
}

/* sum |a_d b_d|, for the units. */
static double NAME(size)(const REAL *a, const REAL *b, int64_t n)
{
    double sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += fabs((double)(a[d] * b[d]));
    return sum;
}

static REAL NAME(dot)(const REAL *a, const REAL *b, int64_t n)
{
    REAL sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += a[d] * b[d];
    return sum;
}

/* Scores of row i against keys k, in base 2 if folded; sets kept. Returns false if the row is empty or every score is -inf. */
static bool NAME(score_row)(const NAME(work) * w, const REAL *q, const REAL *k, int64_t i)
{
    const problem *p = w->p;
    const bool folded = w->form == NAIVE_FOLDED;
    const REAL factor = folded ? (REAL)problem_scale(p) * (REAL)1.4426950408889634074L : (REAL)problem_scale(p);
    bool any = false;
    for (int64_t d = 0; d < p->dim; d++)
        w->qs[d] = folded ? q[d] * factor : q[d];
    for (int64_t j = 0; j < p->seq_k; j++) {
        w->kept[j] = problem_keeps(p, i, j);
        if (!w->kept[j])
            continue;
        w->s[j] = NAME(dot)(w->qs, k + j * p->dim, p->dim) * (folded ? 1 : factor);
        any |= !(w->s[j] == -(REAL)INFINITY);
    }
    return any;
}

/* out[dim_v] and lse of a row whose scores are there; leaves the probabilities in w->prob. */
static void NAME(softmax_row)(const NAME(work) * w, const REAL *v, REAL *out, REAL *lse)
{
    const problem *p = w->p;
    REAL max = -(REAL)INFINITY, sum = 0;
    for (int64_t j = 0; j < p->seq_k; j++)
        if (w->kept[j] && w->s[j] > max)
            max = w->s[j];
    for (int64_t j = 0; j < p->seq_k; j++)
        if (w->kept[j])
            sum += w->prob[j] = w->form == NAIVE_FOLDED ? EXP2(w->s[j] - max) : EXP(w->s[j] - max);
    for (int64_t j = 0; j < p->seq_k; j++) {
        if (!w->kept[j])
            continue;
        w->prob[j] /= sum;
        for (int64_t d = 0; d < p->dim_v; d++)
            out[d] += w->prob[j] * v[j * p->dim_v + d];
    }
    *lse = w->form == NAIVE_FOLDED ? (max + LOG2(sum)) * (REAL)0.69314718055994530942L : max + LOG(sum);
}

/* The units of out and lse of that row; see naive.h. */
static void NAME(unit_row)(const NAME(work) * w, const REAL *v, int64_t row, const REAL *k, double *unit_out, double *unit_lse)
{
    const problem *p = w->p;
    const REAL *q = w->q + row * p->dim, *out = w->out + row * p->dim_v;
    double *sum = w->sums;
    memset(sum, 0, (size_t)p->dim_v * sizeof *sum);
    *unit_lse = 1 + fabs((double)w->lse[row]);
    for (int64_t j = 0; j < p->seq_k; j++) {
        if (!w->kept[j] || w->prob[j] == 0)
            continue;
        const double prob = (double)w->prob[j], score = fabs(problem_scale(p)) * NAME(size)(q, k + j * p->dim, p->dim);
        for (int64_t d = 0; d < p->dim_v; d++) {
            const double value = (double)v[j * p->dim_v + d];
            sum[d] += prob * (fabs(value) + score * fabs(value - (double)out[d]));
        }
        *unit_lse += prob * score;
    }
    *unit_out = largest(sum, p->dim_v);
}

static void NAME(forward)(NAME(work) * w, results *r)
{
    const problem *p = w->p;
    const int64_t heads_kv = p->heads_q / p->group;
    for (int64_t bh = 0; bh < p->batch * p->heads_q; bh++) {
        const int64_t kv = bh / p->heads_q * heads_kv + bh % p->heads_q / p->group;
        const REAL *k = w->k + kv * p->seq_k * p->dim, *v = w->v + kv * p->seq_k * p->dim_v;
        for (int64_t i = 0; i < p->seq_q; i++) {
            const int64_t row = bh * p->seq_q + i;
            REAL *out = w->out + row * p->dim_v;
            memset(out, 0, (size_t)p->dim_v * sizeof(REAL));
            w->lse[row] = -(REAL)INFINITY;
            const bool any = NAME(score_row)(w, w->q + row * p->dim, k, i);
            if (any)
                NAME(softmax_row)(w, v, out, &w->lse[row]);
            if (any && r->unit[RESULT_OUT])
                NAME(unit_row)(w, v, row, k, &r->unit[RESULT_OUT][row], &r->unit[RESULT_LSE][row]);
            for (int64_t d = 0; d < p->dim_v; d++)
                r->value[RESULT_OUT][row * p->dim_v + d] = (double)out[d];
            r->value[RESULT_LSE][row] = (double)w->lse[row];
        }
    }
}

/* Adds the pair (query row, key j) to the units of dq, dk and dv; see naive.h. */
static void NAME(unit_pair)(NAME(work) * w, const REAL *k, const REAL *v, int64_t row, int64_t j, REAL prob, REAL dp,
                            REAL big_d)
{
    const problem *p = w->p;
    const REAL *q = w->q + row * p->dim, *dout = w->dout + row * p->dim_v, *out = w->out + row * p->dim_v;
    const double scale = fabs(problem_scale(p));
    const double exponent = 1 + scale * NAME(size)(q, k + j * p->dim, p->dim) + fabs((double)w->lse[row]);
    const double sizes = NAME(size)(dout, v + j * p->dim_v, p->dim_v) + NAME(size)(dout, out, p->dim_v);
    const double a = (double)prob * scale * (exponent * fabs((double)(dp - big_d)) + sizes);
    for (int64_t d = 0; d < p->dim; d++) {
        w->sums[d] += a * fabs((double)k[j * p->dim + d]);
        w->unit_dk[j * p->dim + d] += a * fabs((double)q[d]);
    }
    for (int64_t d = 0; d < p->dim_v; d++)
        w->unit_dv[j * p->dim_v + d] += exponent * (double)prob * fabs((double)dout[d]);
}

/* Adds row `row` = (head, query) to the gradients; dk and dv are those of its key/value head. */
static void NAME(backward_row)(NAME(work) * w, const REAL *k, const REAL *v, REAL *dk, REAL *dv, int64_t row, bool units)
{
    const problem *p = w->p;
    const REAL *q = w->q + row * p->dim, *dout = w->dout + row * p->dim_v;
    const bool folded = w->form == NAIVE_FOLDED;
    const REAL scale = (REAL)problem_scale(p), lse = folded ? w->lse[row] * (REAL)1.4426950408889634074L : w->lse[row];
    const REAL big_d = NAME(dot)(dout, w->out + row * p->dim_v, p->dim_v);
    for (int64_t j = 0; j < p->seq_k; j++) {
        if (!w->kept[j])
            continue;
        const REAL prob = folded ? EXP2(w->s[j] - lse) : EXP(w->s[j] - lse);
        const REAL dp = NAME(dot)(dout, v + j * p->dim_v, p->dim_v);
        const REAL ds = prob * (dp - big_d) * scale;
        for (int64_t d = 0; d < p->dim; d++) {
            w->dq[row * p->dim + d] += ds * k[j * p->dim + d];
            dk[j * p->dim + d] += ds * q[d];
        }
        for (int64_t d = 0; d < p->dim_v; d++)
            dv[j * p->dim_v + d] += prob * dout[d];
        if (units && prob != 0)
            NAME(unit_pair)(w, k, v, row, j, prob, dp, big_d);
    }
}

/* All query heads of key/value head kv (counted over the batch). */
static void NAME(backward_group)(NAME(work) * w, results *r, int64_t kv)
{
    const problem *p = w->p;
    const bool units = r->unit[RESULT_DQ] != NULL;
    const int64_t heads_kv = p->heads_q / p->group;
    const int64_t first = kv / heads_kv * p->heads_q + kv % heads_kv * p->group;
    const REAL *k = w->k + kv * p->seq_k * p->dim, *v = w->v + kv * p->seq_k * p->dim_v;
    memset(w->unit_dk, 0, (size_t)(p->seq_k * p->dim) * sizeof(double));
    memset(w->unit_dv, 0, (size_t)(p->seq_k * p->dim_v) * sizeof(double));
    for (int64_t bh = first; bh < first + p->group; bh++)
        for (int64_t i = 0; i < p->seq_q; i++) {
            const int64_t row = bh * p->seq_q + i;
            NAME(score_row)(w, w->q + row * p->dim, k, i);
            if (w->lse[row] == -(REAL)INFINITY)
                continue;
            memset(w->sums, 0, (size_t)p->dim * sizeof(double));
            NAME(backward_row)(w, k, v, w->dk + kv * p->seq_k * p->dim, w->dv + kv * p->seq_k * p->dim_v, row, units);
            if (units)
                r->unit[RESULT_DQ][row] = largest(w->sums, p->dim);
        }
    for (int64_t j = 0; units && j < p->seq_k; j++) {
        r->unit[RESULT_DK][kv * p->seq_k + j] = largest(w->unit_dk + j * p->dim, p->dim);
        r->unit[RESULT_DV][kv * p->seq_k + j] = largest(w->unit_dv + j * p->dim_v, p->dim_v);
    }
}

static void NAME(store)(const REAL *from, double *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = (double)from[i];
}

static void NAME(backward)(NAME(work) * w, results *r)
{
    const problem *p = w->p;
    const int64_t kvs = p->batch * (p->heads_q / p->group);
    for (int64_t kv = 0; kv < kvs; kv++)
        NAME(backward_group)(w, r, kv);
    NAME(store)(w->dq, r->value[RESULT_DQ], p->batch * p->heads_q * p->seq_q * p->dim);
    NAME(store)(w->dk, r->value[RESULT_DK], kvs * p->seq_k * p->dim);
    NAME(store)(w->dv, r->value[RESULT_DV], kvs * p->seq_k * p->dim_v);
}

static void NAME(free_work)(NAME(work) * w)
{
    REAL *const parts[] = {w->q, w->k, w->v, w->dout, w->out, w->lse, w->qs, w->s, w->prob, w->dq, w->dk, w->dv};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        free(parts[i]);
    free(w->kept);
    free(w->sums);
    free(w->unit_dk);
    free(w->unit_dv);
}

/* given: backward starts from the out and lse in t instead of its own. */
static bool NAME(run)(const problem *p, const tensors *t, results *r, naive_form form, bool given)
{
    const size_t keys = (size_t)p->seq_k + 1;
    NAME(work) w = {.p = p, .form = form, .q = NAME(load)(&t->q), .k = NAME(load)(&t->k), .v = NAME(load)(&t->v)};
    w.qs = calloc((size_t)p->dim, sizeof(REAL));
    w.s = calloc(keys, sizeof(REAL));
    w.prob = calloc(keys, sizeof(REAL));
    w.kept = calloc(keys, sizeof(bool));
    w.sums = calloc((size_t)(p->dim + p->dim_v), sizeof(double));
    w.out = calloc((size_t)(p->batch * p->heads_q * p->seq_q * p->dim_v) + 1, sizeof(REAL));
    w.lse = calloc((size_t)(p->batch * p->heads_q * p->seq_q) + 1, sizeof(REAL));
    bool ok = w.q && w.k && w.v && w.qs && w.s && w.prob && w.kept && w.sums && w.out && w.lse;
    if (ok)
        NAME(forward)(&w, r);
    if (ok && p->op == FATTN_OP_BACKWARD) {
        if (given) {
            free(w.out);
            free(w.lse);
            w.out = NAME(load)(&t->out);
            w.lse = NAME(load)(&t->lse);
        }
        const int64_t kvs = p->batch * (p->heads_q / p->group);
        w.dout = NAME(load)(&t->dout);
        w.dq = calloc((size_t)tensor_count(&t->q) + 1, sizeof(REAL));
        w.dk = calloc((size_t)(kvs * p->seq_k * p->dim) + 1, sizeof(REAL));
        w.dv = calloc((size_t)(kvs * p->seq_k * p->dim_v) + 1, sizeof(REAL));
        w.unit_dk = calloc(keys * (size_t)p->dim, sizeof(double));
        w.unit_dv = calloc(keys * (size_t)p->dim_v, sizeof(double));
        ok = w.out && w.lse && w.dout && w.dq && w.dk && w.dv && w.unit_dk && w.unit_dv;
        if (ok)
            NAME(backward)(&w, r);
    }
    NAME(free_work)(&w);
    return ok;
}

#undef REAL
#undef EXP
#undef EXP2
#undef LOG
#undef LOG2
#undef NAME
