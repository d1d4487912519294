/*
 * Naive attention in type REAL; included by naive.c once per type, with REAL, its functions EXP, EXP2, LOG, LOG2, TANH, and
 * NAME(x), which makes the names of that type. Letters are those of naive.h.
 */

/* The tensors of the whole problem, dense in REAL, [batch, heads, rows, cols] with the rows of the longest sequence; and one
 * row at work. */
typedef struct NAME(work) {
    const problem *p;
    const geometry *g;
    const tensors *t;
    naive_form form;
    results *r;
    uint64_t seed;                             /* dropout's */
    REAL *q, *k, *v, *out, *lse, *dout, *dlse; /* whole tensors */
    REAL *dq, *dk, *dv, *dbias, *dsinks;       /* whole gradients */
    REAL *qs;                                  /* [dim]: the row of q times the factor on the scores, if folded */
    REAL *x, *tanh, *slope, *s, *prob, *m;     /* [seq_k]: of one row; x and s in base 2 if folded */
    bool *kept;                                /* [seq_k] */
    double *sums;                              /* [dim or dim_v]: one row's units */
    double *unit_dk, *unit_dv;                 /* [seq_k, dim], [seq_k, dim_v] of one key/value head */
} NAME(work);

/* One query row: where it stands. */
typedef struct NAME(place) {
    int64_t b, h, i, keys, row; /* row: counted over all heads and sequences */
    const REAL *k, *v;          /* of its key/value head */
} NAME(place);

static REAL *NAME(load_queries)(const NAME(work) * w, const tensor *t)
{
    const problem *p = w->p;
    REAL *dense = calloc((size_t)(p->batch * p->heads_q * p->seq_q * t->cols) + 1, sizeof(REAL));
    for (int64_t bh = 0; dense && bh < p->batch * p->heads_q; bh++)
        for (int64_t i = 0; i < w->g->seq_q[bh / p->heads_q]; i++) {
            const void *row = query_row(p, w->g, t, bh / p->heads_q, bh % p->heads_q, i);
            for (int64_t d = 0; d < t->cols; d++)
                dense[(bh * p->seq_q + i) * t->cols + d] = (REAL)tensor_get(t, row, d);
        }
    return dense;
}

/* Bytes are multiplied with their factor in REAL. */
static REAL *NAME(load_keys)(const NAME(work) * w, const tensor *t, const tensor *scales)
{
    const problem *p = w->p;
    const int64_t heads = p->heads_q / p->group;
    REAL *dense = calloc((size_t)(p->batch * heads * p->seq_k * t->cols) + 1, sizeof(REAL));
    for (int64_t bh = 0; dense && bh < p->batch * heads; bh++)
        for (int64_t j = 0; j < w->g->seq_k[bh / heads]; j++) {
            const void *row = key_row(p, w->g, t, bh / heads, bh % heads, j);
            REAL factor = 1;
            if (t->type == FATTN_I8)
                factor = (REAL)tensor_get(scales, key_row(p, w->g, scales, bh / heads, bh % heads, j), 0);
            for (int64_t d = 0; d < t->cols; d++)
                dense[(bh * p->seq_k + j) * t->cols + d] = (REAL)tensor_get(t, row, d) * factor;
        }
    return dense;
}

static NAME(place) NAME(place_of)(const NAME(work) * w, int64_t b, int64_t h, int64_t i)
{
    const problem *p = w->p;
    const int64_t kv = b * (p->heads_q / p->group) + h / p->group;
    return (NAME(place)){.b = b,
                         .h = h,
                         .i = i,
                         .keys = w->g->seq_k[b],
                         .row = (b * p->heads_q + h) * p->seq_q + i,
                         .k = w->k + kv * p->seq_k * p->dim,
                         .v = w->v + kv * p->seq_k * p->dim_v};
}

/* sum |a_d b_d|, for the units. */
static double NAME(size)(const REAL *a, const REAL *b, int64_t n)
{
    double sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += fabs((double)(a[d] * b[d]));
    return sum;
}

static REAL NAME(dot_from)(REAL sum, const REAL *a, const REAL *b, int64_t n)
{
    for (int64_t d = 0; d < n; d++)
        sum += a[d] * b[d];
    return sum;
}

static REAL NAME(dot)(const REAL *a, const REAL *b, int64_t n)
{
    return NAME(dot_from)(0, a, b, n);
}

static REAL NAME(bias)(const NAME(work) * w, const NAME(place) * at, int64_t j)
{
    return w->p->bias ? (REAL)tensor_get(&w->t->bias, tensor_row(&w->t->bias, at->b, at->h, at->i), j) : 0;
}

static REAL NAME(alibi)(const NAME(work) * w, const NAME(place) * at, int64_t j)
{
    if (!w->p->alibi)
        return 0;
    const int64_t distance = at->i + geometry_offset(w->g, w->p, at->b) - j;
    return (REAL)((const float *)w->t->slopes.view.data)[at->h] * (REAL)(distance < 0 ? -distance : distance);
}

static REAL NAME(sink)(const NAME(work) * w, int64_t h)
{
    return w->p->sinks ? (REAL)((const float *)w->t->sinks.view.data)[h] : -(REAL)INFINITY;
}

/* 1 - tanh(y)^2. The truth is free of cancellation. */
static REAL NAME(slope)(const NAME(work) * w, REAL y, REAL tanh)
{
    if (!w->r->unit[RESULT_OUT])
        return 1 - tanh * tanh;
    const REAL e = EXP(y < 0 ? 2 * y : -2 * y);
    return 4 * e / ((1 + e) * (1 + e));
}

/* Scores of a row in base e, or in base 2 if folded; sets kept, m, x, tanh and slope too. Returns false if the row is empty,
 * sink included, or every score is -inf. */
static bool NAME(score_row)(const NAME(work) * w, const NAME(place) * at)
{
    const problem *p = w->p;
    const bool folded = w->form == NAIVE_FOLDED;
    const REAL base = folded ? (REAL)1.4426950408889634074L : 1, factor = (REAL)problem_scale(p) * base;
    const REAL *q = w->q + at->row * p->dim, cap = (REAL)p->softcap * base;
    bool any = NAME(sink)(w, at->h) > -(REAL)INFINITY;
    for (int64_t d = 0; d < p->dim; d++)
        w->qs[d] = folded ? q[d] * factor : q[d];
    for (int64_t j = 0; j < at->keys; j++) {
        w->kept[j] = geometry_keeps(w->g, p, at->b, at->i, j);
        if (!w->kept[j])
            continue;
        w->x[j] = NAME(dot)(w->qs, at->k + j * p->dim, p->dim) * (folded ? 1 : factor);
        w->tanh[j] = p->softcap > 0 ? TANH(w->x[j] / cap) : 0;
        w->slope[j] = p->softcap > 0 ? NAME(slope)(w, w->x[j] / cap, w->tanh[j]) : 1;
        w->s[j] = p->softcap > 0 ? cap * w->tanh[j] : w->x[j];
        if (p->bias)
            w->s[j] += NAME(bias)(w, at, j) * base;
        if (p->alibi)
            w->s[j] -= NAME(alibi)(w, at, j) * base;
        w->m[j] = (REAL)dropout_factor(p->dropout, w->seed, at->b * p->heads_q + at->h, at->i, j);
        any |= !(w->s[j] == -(REAL)INFINITY);
    }
    return any;
}

/* e_ij; *ex gets e^x_ij. Of plain scores. */
static double NAME(score_error)(const NAME(work) * w, const NAME(place) * at, int64_t j, double *ex)
{
    const problem *p = w->p;
    const double t = (double)w->tanh[j], slope = (double)w->slope[j];
    *ex = fabs(problem_scale(p)) * NAME(size)(w->q + at->row * p->dim, at->k + j * p->dim, p->dim);
    return slope * *ex + p->softcap * fabs(t) + fabs((double)NAME(bias)(w, at, j)) + fabs((double)NAME(alibi)(w, at, j));
}

/* ------------------------------------------------------------------------------------------------------------- forward */

/* out[dim_v] and lse of a row whose scores are there; leaves the probabilities in w->prob. */
static void NAME(softmax_row)(const NAME(work) * w, const NAME(place) * at, REAL *out, REAL *lse)
{
    const problem *p = w->p;
    const bool folded = w->form == NAIVE_FOLDED;
    const REAL sink = NAME(sink)(w, at->h) * (folded ? (REAL)1.4426950408889634074L : 1);
    REAL max = sink, sum = 0;
    for (int64_t j = 0; j < at->keys; j++)
        if (w->kept[j] && w->s[j] > max)
            max = w->s[j];
    if (p->sinks)
        sum = folded ? EXP2(sink - max) : EXP(sink - max);
    for (int64_t j = 0; j < at->keys; j++)
        if (w->kept[j])
            sum += w->prob[j] = folded ? EXP2(w->s[j] - max) : EXP(w->s[j] - max);
    for (int64_t j = 0; j < at->keys; j++) {
        if (!w->kept[j])
            continue;
        w->prob[j] /= sum;
        for (int64_t d = 0; d < p->dim_v; d++)
            out[d] += w->m[j] * w->prob[j] * at->v[j * p->dim_v + d];
    }
    *lse = folded ? (max + LOG2(sum)) * (REAL)0.69314718055994530942L : max + LOG(sum);
}

/* The units of out and lse of that row. */
static void NAME(unit_row)(const NAME(work) * w, const NAME(place) * at)
{
    const problem *p = w->p;
    const REAL *out = w->out + at->row * p->dim_v;
    const double sink = (double)NAME(sink)(w, at->h), lse = (double)w->lse[at->row];
    const double sunk = isfinite(sink) ? exp(sink - lse) * fabs(sink) : 0;
    double *sum = w->sums, unit_lse = 1 + fabs(lse) + sunk, ex;
    for (int64_t d = 0; d < p->dim_v; d++)
        sum[d] = sunk * fabs((double)out[d]);
    for (int64_t j = 0; j < at->keys; j++) {
        if (!w->kept[j] || w->prob[j] == 0)
            continue;
        const double prob = (double)w->prob[j], e = NAME(score_error)(w, at, j, &ex), m = (double)w->m[j];
        for (int64_t d = 0; d < p->dim_v; d++) {
            const double value = m * (double)at->v[j * p->dim_v + d];
            sum[d] += prob * (fabs(value) + e * fabs(value - (double)out[d]));
        }
        unit_lse += prob * e;
    }
    w->r->unit[RESULT_OUT][at->row] = largest(sum, p->dim_v);
    w->r->unit[RESULT_LSE][at->row] = unit_lse;
}

static void NAME(forward)(NAME(work) * w)
{
    const problem *p = w->p;
    for (int64_t bh = 0; bh < p->batch * p->heads_q; bh++)
        for (int64_t i = 0; i < w->g->seq_q[bh / p->heads_q]; i++) {
            const NAME(place) at = NAME(place_of)(w, bh / p->heads_q, bh % p->heads_q, i);
            REAL *out = w->out + at.row * p->dim_v, *lse = &w->lse[at.row];
            *lse = -(REAL)INFINITY;
            const bool any = NAME(score_row)(w, &at);
            if (any)
                NAME(softmax_row)(w, &at, out, lse);
            if (any && w->r->unit[RESULT_OUT])
                NAME(unit_row)(w, &at);
            for (int64_t d = 0; d < p->dim_v; d++)
                w->r->value[RESULT_OUT][at.row * p->dim_v + d] = (double)out[d];
            w->r->value[RESULT_LSE][at.row] = (double)*lse;
        }
}

/* ------------------------------------------------------------------------------------------------------------ backward */

/* Of a row: D, its error, and lse in base e. */
typedef struct NAME(row_values) {
    REAL big_d;
    double error_d, lse;
} NAME(row_values);

/* Where element (b, h, i, j) of dbias stands in the results. */
static int64_t NAME(bias_index)(const problem *p, const NAME(place) * at, int64_t j)
{
    const int64_t b = p->dbias_dims & HAS_BATCH ? at->b : 0, h = p->dbias_dims & HAS_HEAD ? at->h : 0;
    const int64_t heads = p->dbias_dims & HAS_HEAD ? p->heads_q : 1, rows = p->dbias_dims & HAS_ROW ? p->seq_q : 1;
    return ((b * heads + h) * rows + (p->dbias_dims & HAS_ROW ? at->i : 0)) * p->seq_k + j;
}

/* Adds the pair (row, key j) to the units of dq, dk, dv and dbias. */
static void NAME(unit_pair)(NAME(work) * w, const NAME(place) * at, const NAME(row_values) * row, int64_t j, REAL prob,
                            double gap)
{
    const problem *p = w->p;
    const REAL *q = w->q + at->row * p->dim, *dout = w->dout + at->row * p->dim_v;
    double ex;
    const double e = NAME(score_error)(w, at, j, &ex), relative = 1 + e + fabs(row->lse);
    const double m = (double)w->m[j], t = fabs((double)w->tanh[j]), slope = (double)w->slope[j];
    const double size_v = NAME(size)(dout, at->v + j * p->dim_v, p->dim_v);
    const double b = (double)prob * (relative * gap + m * size_v + row->error_d);
    const double bend = p->softcap > 0 ? (double)prob * gap * 2 * t * (t + slope * ex / p->softcap) : 0;
    const double a = fabs(problem_scale(p)) * (slope * b + bend);
    for (int64_t d = 0; d < p->dim; d++) {
        w->sums[d] += a * fabs((double)at->k[j * p->dim + d]);
        w->unit_dk[j * p->dim + d] += a * fabs((double)q[d]);
    }
    for (int64_t d = 0; d < p->dim_v; d++)
        w->unit_dv[j * p->dim_v + d] += relative * m * (double)prob * fabs((double)dout[d]);
    if (p->dbias)
        w->r->unit[RESULT_DBIAS][NAME(bias_index)(p, at, j)] += b;
}

static void NAME(backward_sink)(NAME(work) * w, const NAME(place) * at, const NAME(row_values) * row, bool units)
{
    const bool folded = w->form == NAIVE_FOLDED;
    const REAL base = folded ? (REAL)1.4426950408889634074L : 1, sink = NAME(sink)(w, at->h), lse = w->lse[at->row];
    const REAL prob = folded ? EXP2(sink * base - lse * base) : EXP(sink - lse);
    w->dsinks[at->h] -= prob * row->big_d;
    if (units && prob != 0)
        w->r->unit[RESULT_DSINKS][at->h] +=
            (double)prob * ((1 + fabs((double)sink) + fabs(row->lse)) * fabs((double)row->big_d) + row->error_d);
}

/* m dout . v - D. */
static REAL NAME(gap)(const NAME(work) * w, const REAL *dout, const REAL *v, REAL m, REAL big_d)
{
    if (w->form == NAIVE_FOLDED && w->p->dropout == 0)
        return NAME(dot_from)(-big_d, dout, v, w->p->dim_v);
    return m * NAME(dot)(dout, v, w->p->dim_v) - big_d;
}

/* Adds a row to the gradients of its key/value head, dk and dv, and to the others. */
static void NAME(backward_row)(NAME(work) * w, const NAME(place) * at, REAL *dk, REAL *dv, bool units)
{
    const problem *p = w->p;
    const REAL *q = w->q + at->row * p->dim, *dout = w->dout + at->row * p->dim_v, *out = w->out + at->row * p->dim_v;
    const bool folded = w->form == NAIVE_FOLDED;
    const REAL scale = (REAL)problem_scale(p), dlse = p->dlse ? w->dlse[at->row] : 0;
    const REAL lse = folded ? w->lse[at->row] * (REAL)1.4426950408889634074L : w->lse[at->row];
    const NAME(row_values) row = {.big_d = NAME(dot)(dout, out, p->dim_v) - dlse,
                                  .error_d = NAME(size)(dout, out, p->dim_v) + fabs((double)dlse),
                                  .lse = (double)w->lse[at->row]};
    for (int64_t j = 0; j < at->keys; j++) {
        if (!w->kept[j])
            continue;
        const REAL prob = folded ? EXP2(w->s[j] - lse) : EXP(w->s[j] - lse);
        const REAL gap = NAME(gap)(w, dout, at->v + j * p->dim_v, w->m[j], row.big_d);
        const REAL ds = prob * gap, dx = ds * scale * w->slope[j];
        for (int64_t d = 0; d < p->dim; d++) {
            w->dq[at->row * p->dim + d] += dx * at->k[j * p->dim + d];
            dk[j * p->dim + d] += dx * q[d];
        }
        for (int64_t d = 0; d < p->dim_v; d++)
            dv[j * p->dim_v + d] += w->m[j] * prob * dout[d];
        if (p->dbias)
            w->dbias[NAME(bias_index)(p, at, j)] += ds;
        if (units && prob != 0)
            NAME(unit_pair)(w, at, &row, j, prob, fabs((double)gap));
    }
    if (p->dsinks)
        NAME(backward_sink)(w, at, &row, units);
}

/* All query heads of key/value head g of sequence b. */
static void NAME(backward_group)(NAME(work) * w, int64_t b, int64_t g)
{
    const problem *p = w->p;
    const bool units = w->r->unit[RESULT_DQ] != NULL;
    const int64_t kv = b * (p->heads_q / p->group) + g;
    memset(w->unit_dk, 0, (size_t)(p->seq_k * p->dim) * sizeof(double));
    memset(w->unit_dv, 0, (size_t)(p->seq_k * p->dim_v) * sizeof(double));
    for (int64_t h = g * p->group; h < (g + 1) * p->group; h++)
        for (int64_t i = 0; i < w->g->seq_q[b]; i++) {
            const NAME(place) at = NAME(place_of)(w, b, h, i);
            if (w->lse[at.row] == -(REAL)INFINITY)
                continue;
            NAME(score_row)(w, &at);
            memset(w->sums, 0, (size_t)p->dim * sizeof(double));
            NAME(backward_row)(w, &at, w->dk + kv * p->seq_k * p->dim, w->dv + kv * p->seq_k * p->dim_v, units);
            if (units)
                w->r->unit[RESULT_DQ][at.row] = largest(w->sums, p->dim);
        }
    for (int64_t j = 0; units && j < p->seq_k; j++) {
        w->r->unit[RESULT_DK][kv * p->seq_k + j] = largest(w->unit_dk + j * p->dim, p->dim);
        w->r->unit[RESULT_DV][kv * p->seq_k + j] = largest(w->unit_dv + j * p->dim_v, p->dim_v);
    }
}

static void NAME(store)(NAME(work) * w, const REAL *from, result_kind kind)
{
    const int64_t count = result_rows(w->p, kind) * result_cols(w->p, kind);
    for (int64_t i = 0; w->r->value[kind] && i < count; i++)
        w->r->value[kind][i] = (double)from[i];
}

static void NAME(backward)(NAME(work) * w)
{
    const problem *p = w->p;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t g = 0; g < p->heads_q / p->group; g++)
            NAME(backward_group)(w, b, g);
    NAME(store)(w, w->dq, RESULT_DQ);
    NAME(store)(w, w->dk, RESULT_DK);
    NAME(store)(w, w->dv, RESULT_DV);
    NAME(store)(w, w->dbias, RESULT_DBIAS);
    NAME(store)(w, w->dsinks, RESULT_DSINKS);
}

/* -------------------------------------------------------------------------------------------------------------- memory */

static REAL *NAME(zeros)(int64_t count)
{
    return calloc((size_t)count + 1, sizeof(REAL));
}

static void NAME(free_work)(NAME(work) * w)
{
    void *const parts[] = {w->q,    w->k,    w->v,     w->out,    w->lse,     w->dout,    w->dlse, w->dq,
                           w->dk,   w->dv,   w->dbias, w->dsinks, w->qs,      w->x,       w->s,    w->m,
                           w->prob, w->tanh, w->slope, w->kept,   w->unit_dk, w->unit_dv, w->sums};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        free(parts[i]);
}

static bool NAME(make_common)(NAME(work) * w)
{
    const problem *p = w->p;
    REAL **const rows[] = {&w->x, &w->tanh, &w->slope, &w->s, &w->prob, &w->m};
    bool ok = (w->q = NAME(load_queries)(w, &w->t->q)) && (w->k = NAME(load_keys)(w, &w->t->k, &w->t->k_scales)) &&
              (w->v = NAME(load_keys)(w, &w->t->v, &w->t->v_scales)) && (w->qs = NAME(zeros)(p->dim));
    for (int i = 0; i < 6; i++)
        ok = ok && (*rows[i] = NAME(zeros)(p->seq_k));
    w->kept = calloc((size_t)p->seq_k + 1, sizeof(bool));
    w->sums = calloc((size_t)(p->dim + p->dim_v), sizeof(double));
    return ok && w->kept && w->sums;
}

static bool NAME(make_gradients)(NAME(work) * w)
{
    const problem *p = w->p;
    const tensors *t = w->t;
    w->unit_dk = calloc((size_t)(p->seq_k * p->dim) + 1, sizeof(double));
    w->unit_dv = calloc((size_t)(p->seq_k * p->dim_v) + 1, sizeof(double));
    if (!w->unit_dk || !w->unit_dv || (p->dlse && !(w->dlse = NAME(load_queries)(w, &t->dlse))))
        return false;
    w->dq = NAME(zeros)(result_rows(p, RESULT_DQ) * p->dim);
    w->dk = NAME(zeros)(result_rows(p, RESULT_DK) * p->dim);
    w->dv = NAME(zeros)(result_rows(p, RESULT_DV) * p->dim_v);
    w->dbias = NAME(zeros)(p->dbias ? result_rows(p, RESULT_DBIAS) : 0);
    w->dsinks = NAME(zeros)(p->heads_q);
    return (w->out = NAME(load_queries)(w, &t->out)) && (w->lse = NAME(load_queries)(w, &t->lse)) &&
           (w->dout = NAME(load_queries)(w, &t->dout)) && w->dq && w->dk && w->dv && w->dbias && w->dsinks;
}

static bool NAME(run)(const problem *p, const geometry *g, const tensors *t, results *r, naive_form form, fattn_op op)
{
    NAME(work) w = {.p = p, .g = g, .t = t, .r = r, .form = form, .seed = problem_dropout_seed(p)};
    const int64_t rows = p->batch * p->heads_q * p->seq_q;
    bool ok = NAME(make_common)(&w);
    if (ok && op == FATTN_OP_FORWARD) {
        ok = (w.out = NAME(zeros)(rows * p->dim_v)) && (w.lse = NAME(zeros)(rows));
        if (ok)
            NAME(forward)(&w);
    } else if (ok && (ok = NAME(make_gradients)(&w)))
        NAME(backward)(&w);
    NAME(free_work)(&w);
    return ok;
}

#undef REAL
#undef EXP
#undef EXP2
#undef LOG
#undef LOG2
#undef TANH
#undef NAME
