/*
 * Decode: forward for few query rows and many keys, at the speed at which keys and values can be read (Flash-Decoding, Dao,
 * Haziza, Massa and Sizov 2023).
 *
 * The rows of all query heads that share a key/value head are one list. A unit is some of these rows against one chunk of
 * DECODE_CHUNK keys, so that long caches occupy all threads; it leaves sums that refer to its own largest score, and a second
 * pass joins the chunks of a row in order. Chunks start at multiples of DECODE_CHUNK whatever the number of threads, so a row's
 * bits depend on its sequence alone.
 *
 * Lanes run along dim, as keys lie in memory: K and V are read once for eight rows, in place, from pages or not, and widened on
 * the way to the registers. Per block of DECODE_KEYS keys, for up to four rows at a time,
 *
 *     scores    dot products: LANES partial sums each, transposed and added LANES keys at a time
 *     softmax   along the keys, relative to the maximum of a row's first block, which moves only when it must (forward_panel.h)
 *     values    O += P V, with O in registers over the block
 *
 * While one of K and V is at work the other is asked for: the two alternate too quickly for the processor to see the pattern.
 * K is asked for one and two blocks ahead of the scores, V of this block and the next, into the first-level cache, which
 * measured best: K one block further costs 15 %, one block less 10 %, the second-level cache 4 %. With few registers, which
 * take more instructions for the same, V of this block alone, and blocks of 32 keys: 18 % faster. A byte's factor is applied to
 * the score (K) and to the probability (V).
 */
#ifndef FATTN_CPU_DECODE_H
#define FATTN_CPU_DECODE_H

#include "decode_block.h"

/* --------------------------------------------------------------------------------------------------------------- units */

/* Row pointers of n keys from `key` on; what is missing to a whole block repeats the last. */
static void point_rows(const decode_unit *u, const fattn_view *view, const void **rows, int64_t key, int64_t n)
{
    const decode *c = u->call;
    const fattn_desc *desc = &c->problem->desc;
    const size_t size = fattn_dtype_size(desc->kv_dtype);
    const char *row = fattn_key_row(c->problem, c->at, view, size, &u->seq, u->head_kv, key);
    const int64_t step = view->stride_row * (int64_t)size;
    if (desc->page_size == 0) {
        for (int64_t j = 0; j < DECODE_KEYS; j++)
            rows[j] = row + min64(j, n - 1) * step;
        return;
    }
    int64_t left = desc->page_size - key % desc->page_size; /* rows of this page */
    for (int64_t j = 0; j < DECODE_KEYS; j++) {
        rows[j] = row;
        if (j >= n - 1)
            continue;
        row += step;
        if (--left == 0) {
            row = fattn_key_row(c->problem, c->at, view, size, &u->seq, u->head_kv, key + j + 1);
            left = desc->page_size;
        }
    }
}

/* Copies that end in zeros, of rows that are not whole vectors. */
static void copy_rows(const decode_unit *u, const void **rows, real *copy, int64_t dim, int64_t padded_dim)
{
    for (int64_t j = 0; j < DECODE_KEYS; j++) {
        real *to = copy + j * padded_dim;
        widen(to, rows[j], u->call->problem->desc.kv_dtype, dim, 1);
        memset(to + dim, 0, (size_t)(padded_dim - dim) * sizeof(real));
        rows[j] = to;
    }
}

/* Points at a block, and returns the type of its rows in `k_dtype` and `v_dtype`. */
static void block_point(decode_unit *u, int64_t key, int64_t n, int64_t end, int32_t *k_dtype, int32_t *v_dtype)
{
    const decode *c = u->call;
    const fattn_desc *desc = &c->problem->desc;
    point_rows(u, &c->at->k, u->k, key, n);
    point_rows(u, &c->at->v, u->v, key, n);
    const int64_t block = desc->page_size > 0 ? 0 : DECODE_KEYS * (int64_t)fattn_dtype_size(desc->kv_dtype);
    u->k_block = block * c->at->k.stride_row;
    u->v_block = block * c->at->v.stride_row;
    const int64_t after = min64(key + DECODE_KEYS, end - 1); /* the last key again where there is no next block */
    point_rows(u, &c->at->k, u->next, after, end - after);
    *k_dtype = *v_dtype = desc->kv_dtype;
    if (desc->dim != c->dim) {
        copy_rows(u, u->k, u->k_copy, desc->dim, c->dim);
        *k_dtype = REAL_DTYPE;
    }
    if (desc->dim_v != c->dim_v) {
        copy_rows(u, u->v, u->v_copy, desc->dim_v, c->dim_v);
        *v_dtype = REAL_DTYPE;
    }
    for (int64_t j = 0; j < DECODE_KEYS && desc->kv_dtype == FATTN_I8; j++) {
        const int64_t at = fattn_scale_index(c->problem, c->at, &u->seq, u->head_kv, key + min64(j, n - 1));
        u->k_factor[j] = (real)c->at->k_scales[at];
        u->v_factor[j] = (real)c->at->v_scales[at];
    }
}

/* All rows against keys [key, key + n), a block of a chunk that ends at `end`. */
static void decode_step(decode_unit *u, int64_t key, int64_t n, int64_t end)
{
    const decode *c = u->call;
    const int64_t size = (int64_t)fattn_dtype_size(c->problem->desc.kv_dtype);
    int32_t k_dtype, v_dtype;
    block_point(u, key, n, end, &k_dtype, &v_dtype);
    for (int64_t first = 0; first < u->rows; first += DECODE_TILE)
        score_tile(u, k_dtype, first, n, v_dtype == c->problem->desc.kv_dtype ? c->dim_v * size : 0);
    for (int64_t r = 0; r < u->rows; r++)
        softmax_row(u, r, key, n);
    for (int64_t first = 0; first < u->rows; first += DECODE_TILE)
        value_tile(u, v_dtype, first, n, k_dtype == c->problem->desc.kv_dtype ? c->dim * size : 0);
}

static void decode_carve(decode_unit *u, const decode *c, carver *to)
{
    const fattn_desc *desc = &c->problem->desc;
    u->q = carve(to, DECODE_ROWS * c->dim);
    u->o = carve(to, DECODE_ROWS * c->dim_v);
    u->p = carve(to, DECODE_ROWS * DECODE_KEYS);
    u->part = carve(to, DECODE_TILE * DECODE_KEYS * LANES);
    u->k_copy = carve(to, desc->dim != c->dim ? DECODE_KEYS * c->dim : 0);
    u->v_copy = carve(to, desc->dim_v != c->dim_v ? DECODE_KEYS * c->dim_v : 0);
    u->k_factor = carve(to, DECODE_KEYS);
    u->v_factor = carve(to, DECODE_KEYS);
    u->bias = carve(to, DECODE_KEYS);
    u->l = carve(to, DECODE_ROWS * LANES);
}

/* Rows first .. of a list of the sequence: where they stand, what they keep, q in log2 units, and empty sums. */
static void decode_load(decode_unit *u, int64_t first)
{
    const decode *c = u->call;
    const fattn_desc *desc = &c->problem->desc;
    const int64_t group = c->problem->group;
    u->rows = min64(DECODE_ROWS, group * u->seq.seq_q - first);
    memset(u->q, 0, (size_t)(DECODE_ROWS * c->dim) * sizeof(real));
    memset(u->o, 0, (size_t)(DECODE_ROWS * c->dim_v) * sizeof(real));
    memset(u->l, 0, DECODE_ROWS * LANES * sizeof(real));
    memset(u->p, 0, (size_t)(DECODE_ROWS * DECODE_KEYS) * sizeof(real));
    for (int64_t r = 0; r < u->rows; r++) {
        const int64_t row = first + r;
        real *q = u->q + r * c->dim;
        u->lane[r] = place_of(c->problem, c->at, &u->seq, u->head_kv * group + row / u->seq.seq_q, row % u->seq.seq_q);
        u->keep[r] = fattn_mask_row(&u->seq.mask, u->lane[r].i);
        widen(q, fattn_query_row(&c->at->q, fattn_dtype_size(desc->dtype), &u->seq, u->lane[r].h, u->lane[r].i), desc->dtype,
              desc->dim, 1);
        for (int64_t d = 0; d < desc->dim; d++)
            q[d] *= c->adjust.q_factor;
        u->ref[r] = REAL_LOWEST;
    }
}

/* Index of a row in lists of rows, all heads of one sequence together. */
static int64_t row_index(const decode *c, const fattn_sequence *s, const place *lane)
{
    return c->first_row[s->b] + lane->h * s->seq_q + lane->i;
}

static void decode_unit_run(void *arg, int32_t lane, int64_t unit)
{
    const decode *c = arg;
    const int64_t b = sequence_of_unit(c->first_unit, c->problem->desc.batch, unit), within = unit - c->first_unit[b];
    decode_unit u = {.call = c, .seq = fattn_sequence_of(c->problem, c->at, b)};
    carver to = {c->scratch + (size_t)lane * c->scratch_size, 0};
    decode_carve(&u, c, &to);
    const int64_t chunks = ceil_div(u.seq.seq_k, DECODE_CHUNK), lists = ceil_div(c->problem->group * u.seq.seq_q, DECODE_ROWS);
    const int64_t chunk = within % chunks;
    u.head_kv = within / chunks / lists;
    decode_load(&u, within / chunks % lists * DECODE_ROWS);

    span keys = no_rows;
    for (int64_t r = 0; r < u.rows; r++)
        span_add(&keys, u.keep[r]);
    const int64_t start = chunk * DECODE_CHUNK, end = min64(start + DECODE_CHUNK, keys.hi);
    for (int64_t key = start; key < end; key += DECODE_KEYS) {
        const int64_t from = max64(key, keys.lo), n = min64(key + DECODE_KEYS, end) - from;
        if (n > 0)
            decode_step(&u, from, n, end);
    }
    for (int64_t r = 0; r < u.rows; r++) {
        const int64_t at = row_index(c, &u.seq, &u.lane[r]) * c->chunks + chunk;
        c->ref[at] = u.ref[r];
        c->l[at] = across_sum(u.l + r * LANES);
        memcpy(c->sum + at * c->dim_v, u.o + r * c->dim_v, (size_t)c->dim_v * sizeof(real));
    }
}

/* ---------------------------------------------------------------------------------------------------------------- join */

/* sum = the chunks of a row, in order, and returns l; all refer to *ref. */
static real join_chunks(const decode *c, int64_t row, int64_t chunks, real *sum, real *ref)
{
    const real *m = c->ref + row * c->chunks, *l = c->l + row * c->chunks, *o = c->sum + row * c->chunks * c->dim_v;
    real total = 0;
    *ref = REAL_LOWEST;
    for (int64_t i = 0; i < chunks; i++)
        *ref = m[i] > *ref ? m[i] : *ref;
    memset(sum, 0, (size_t)c->dim_v * sizeof(real));
    for (int64_t i = 0; i < chunks; i++, o += c->dim_v) {
        const real root = (real)exp2(((double)m[i] - (double)*ref) / 2); /* twice, as in move_reference */
        total += l[i] * root * root;
        for (int64_t d = 0; d < c->dim_v; d += LANES)
            v_store(sum + d, v_fma(v_set1(root), v_mul(v_load(o + d), v_set1(root)), v_load(sum + d)));
    }
    return total;
}

static void join_run(void *arg, int32_t lane, int64_t unit)
{
    (void)lane;
    const decode *c = arg;
    const fattn_desc *desc = &c->problem->desc;
    const int64_t b = sequence_of_unit(c->first_row, desc->batch, unit);
    const fattn_sequence s = fattn_sequence_of(c->problem, c->at, b);
    const place at = {.h = (unit - c->first_row[b]) / s.seq_q, .i = (unit - c->first_row[b]) % s.seq_q};
    real sum[FATTN_DIM_MOST + LANES] __attribute__((aligned(FATTN_ALIGNMENT))), ref;
    const real l = join_chunks(c, unit, ceil_div(s.seq_k, DECODE_CHUNK), sum, &ref);
    const row_end end = end_row(c->problem, c->at, at.h, (double)l, (double)ref);
    for (int64_t d = 0; d < desc->dim_v; d++)
        sum[d] = l == 0 ? 0 : sum[d] * (real)end.factor;
    if (l * 0 == 0 && !all_finite(sum, desc->dim_v))
        row_alone(c->problem, c->at, &s, &at, sum);
    narrow(fattn_query_row(&c->at->out, fattn_dtype_size(desc->out_dtype), &s, at.h, at.i), desc->out_dtype, sum, desc->dim_v);
    if (c->at->lse)
        ((real *)c->at->lse)[s.lse_first + at.h * s.lse_head + at.i] = (real)end.lse;
}

/* ---------------------------------------------------------------------------------------------------------------- call */

static const char *decode_refuse(const fattn_problem *problem)
{
    return problem->group * problem->desc.seq_q > DECODE_ROWS_MOST ? "takes at most 64 query rows for each key/value head"
                                                                   : NULL;
}

/* Where K and V must be copied before tiles can read them, tiles take longer to be worth it. */
static const char *decode_unworthy(const fattn_problem *problem)
{
    const bool copy = problem->desc.kv_dtype != REAL_DTYPE || problem->desc.page_size > 0;
    return problem->group * problem->desc.seq_q > (copy ? DECODE_ROWS_WORTH_COPIED : DECODE_ROWS_WORTH)
               ? "is for few query rows for each key/value head; more are faster in tiles"
               : NULL;
}

static size_t decode_plan(decode *c, const fattn_problem *problem, unsigned char *workspace)
{
    const fattn_desc *desc = &problem->desc;
    *c = (decode){.problem = problem, .adjust = adjustment_of(desc)};
    c->dim = round_to(desc->dim, LANES);
    c->dim_v = round_to(desc->dim_v, LANES);
    c->chunks = ceil_div(desc->seq_k, DECODE_CHUNK);
    const int64_t sums = fattn_rows_q(desc) * desc->heads_q * c->chunks;
    carver to = {workspace, 0};
    c->first_unit = carve_bytes(&to, (size_t)(desc->batch + 1) * sizeof(int64_t));
    c->first_row = carve_bytes(&to, (size_t)(desc->batch + 1) * sizeof(int64_t));
    c->ref = carve(&to, sums);
    c->l = carve(&to, sums);
    c->sum = carve(&to, sums * c->dim_v);
    carver lane = {NULL, 0};
    decode_unit u;
    decode_carve(&u, c, &lane);
    c->scratch_size = lane.used;
    c->scratch = carve_bytes(&to, lane.used * (size_t)problem->lanes);
    return to.used;
}

static size_t decode_workspace(const fattn_problem *problem)
{
    decode c;
    return problem->desc.batch == 0 || problem->desc.seq_q == 0 ? 0 : decode_plan(&c, problem, NULL);
}

static fattn_status decode_run(const fattn_problem *problem, const fattn_launch *at)
{
    const fattn_desc *desc = &problem->desc;
    decode c;
    if (desc->batch == 0 || desc->seq_q == 0)
        return FATTN_OK;
    decode_plan(&c, problem, at->workspace);
    c.at = at;
    c.first_unit[0] = c.first_row[0] = 0;
    for (int64_t b = 0; b < desc->batch; b++) {
        const fattn_sequence s = fattn_sequence_of(problem, at, b);
        const int64_t lists = ceil_div(problem->group * s.seq_q, DECODE_ROWS);
        c.first_unit[b + 1] = c.first_unit[b] + desc->heads_kv * lists * ceil_div(s.seq_k, DECODE_CHUNK);
        c.first_row[b + 1] = c.first_row[b] + desc->heads_q * s.seq_q;
    }
    fattn_run_units(at->context, problem->lanes, c.first_unit[desc->batch], decode_unit_run, &c);
    fattn_run_units(at->context, problem->lanes, c.first_row[desc->batch], join_run, &c);
    return FATTN_OK;
}

#endif
