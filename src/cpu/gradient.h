/*
 * The tiles of backward: P^T and dS^T of a panel of queries, and the products that add them up into dK, dV and dQ.
 *
 * P^T and dS^T of a block lie as [key][query] with rows of P_ROW numbers. The gradient products read them along rows (dK, dV:
 * the sum runs over queries) or along columns (dQ: over keys), and their other operand from strips (tile.h).
 */
#ifndef FATTN_CPU_GRADIENT_H
#define FATTN_CPU_GRADIENT_H

#include "adjust.h"
#include "ahead.h"

enum {
    BACKWARD_PANELS = 3, /* panels per block of queries */
    BACKWARD_ROWS = BACKWARD_PANELS * PANEL_WIDTH,
    P_ROW = BACKWARD_ROWS /* of P^T and dS^T. Padding it by a cache line measured no gain with AVX2 or AVX-512 */
};

typedef struct grad_run {
    const real *a; /* rows of K or V */
    ptrdiff_t a_row;
    const real *b;   /* [dim][width] */
    ptrdiff_t width; /* of the panel */
    int64_t dim, groups;
    int64_t key;                 /* of the first row, relative to the block */
    const real *start, *lo, *hi; /* [lanes]: -lse log2(e), or -D; which keys a row keeps, relative to the block */
    real *p, *ds;                /* at the first group's row and the first lane's column; only the gradient has ds */
    const real *added;           /* [groups * TILE_ROWS][width]: bias and ALiBi; or NULL */
    ahead_queue *ahead;
    const real *factor; /* [groups * TILE_ROWS][width], or NULL: what dropout multiplies with */
    real *bend;         /* likewise, 1 - tanh^2 of softcap: written with P, read with dS */
    real cap_log2;
} grad_run;

/* The same from row `row` of keys, whole groups, and lane `lane` on. */
static inline grad_run grad_run_from(const grad_run *all, int64_t row, int64_t lane)
{
    grad_run run = *all;
    run.a += row * run.a_row;
    run.b += lane;
    run.key += row;
    run.start += lane;
    run.lo += lane;
    run.hi += lane;
    run.p += row * P_ROW + lane;
    if (run.ds)
        run.ds += row * P_ROW + lane;
    if (run.factor)
        run.factor += row * run.width + lane;
    if (run.bend)
        run.bend += row * run.width + lane;
    return run;
}

/* P^T for groups of TILE_ROWS keys and `vecs` vectors of rows. */
INLINE void probability_groups(const int vecs, const ptrdiff_t width, const bool masked, const bool added, const grad_run *run)
{
    const real *a = run->a, *plus = run->added;
    real *p = run->p;
    for (int64_t g = 0; g < run->groups; g++, a += TILE_ROWS * run->a_row, p += TILE_ROWS * P_ROW) {
        vec acc[TILE_ROWS * TILE_VECS];
        UNROLL
        for (int i = 0; i < TILE_ROWS * vecs; i++)
            acc[i] = v_set1(0);
        tile_mac_ahead(vecs, acc, a, run->a_row, run->b, width, run->dim, run->ahead);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            const vec key = v_set1((real)(run->key + g * TILE_ROWS + r));
            UNROLL
            for (int j = 0; j < vecs; j++) {
                vec s = acc[r * vecs + j];
                if (added)
                    s = v_add(s, v_load(plus + r * width + j * LANES));
                s = v_add(s, v_load(run->start + j * LANES));
                if (masked)
                    s = v_keep(s, key, v_load(run->lo + j * LANES), v_load(run->hi + j * LANES), -INFINITY);
                v_store(p + r * P_ROW + j * LANES, v_exp2(s));
            }
        }
        if (added)
            plus += TILE_ROWS * width;
    }
}

/* dS^T = P^T (V dO^T - D) for the same groups; exactly 0 where the mask drops the key, whatever its value is. */
INLINE void score_gradient_groups(const int vecs, const ptrdiff_t width, const bool masked, const grad_run *run)
{
    const real *a = run->a, *p = run->p;
    real *ds = run->ds;
    for (int64_t g = 0; g < run->groups; g++, a += TILE_ROWS * run->a_row, p += TILE_ROWS * P_ROW, ds += TILE_ROWS * P_ROW) {
        vec acc[TILE_ROWS * TILE_VECS];
        UNROLL
        for (int i = 0; i < TILE_ROWS * vecs; i++)
            acc[i] = v_load(run->start + i % vecs * LANES);
        tile_mac_ahead(vecs, acc, a, run->a_row, run->b, width, run->dim, run->ahead);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            const vec key = v_set1((real)(run->key + g * TILE_ROWS + r));
            UNROLL
            for (int j = 0; j < vecs; j++) {
                vec s = v_mul(v_load(p + r * P_ROW + j * LANES), acc[r * vecs + j]);
                if (masked)
                    s = v_keep(s, key, v_load(run->lo + j * LANES), v_load(run->hi + j * LANES), 0);
                v_store(ds + r * P_ROW + j * LANES, s);
            }
        }
    }
}

/* P^T of products that softcap changes, for one vector of rows. */
INLINE void adjust_probabilities(const bool masked, const grad_run *run, int64_t lane)
{
    const vec start = v_load(run->start + lane);
    for (int64_t r = 0; r < run->groups * TILE_ROWS; r++) {
        real *p = run->p + r * P_ROW + lane;
        vec s = v_load(p);
        const vec t = v_tanh(s);
        v_store(run->bend + r * run->width + lane, v_sub(v_set1(1), v_mul(t, t)));
        s = v_mul(t, v_set1(run->cap_log2));
        if (run->added)
            s = v_add(s, v_load(run->added + r * run->width + lane));
        s = v_add(s, start);
        if (masked)
            s = v_keep(s, v_set1((real)(run->key + r)), v_load(run->lo + lane), v_load(run->hi + lane), -INFINITY);
        v_store(p, v_exp2(s));
    }
}

/* dS^T of products that dropout and softcap change, for one vector of rows; P becomes what dropout leaves. */
INLINE void adjust_gradients(const bool masked, const grad_run *run, int64_t lane)
{
    const vec start = v_load(run->start + lane);
    for (int64_t r = 0; r < run->groups * TILE_ROWS; r++) {
        real *ds = run->ds + r * P_ROW + lane, *at = run->p + r * P_ROW + lane;
        const vec p = v_load(at);
        vec s = v_load(ds);
        if (run->factor) {
            const vec factor = v_load(run->factor + r * run->width + lane);
            s = v_mul(s, factor);
            v_store(at, v_mul(p, factor));
        }
        s = v_mul(p, v_add(s, start));
        if (run->bend)
            s = v_mul(s, v_load(run->bend + r * run->width + lane));
        if (masked)
            s = v_keep(s, v_set1((real)(run->key + r)), v_load(run->lo + lane), v_load(run->hi + lane), 0);
        v_store(ds, s);
    }
}

/* P^T of a run of groups, for `vecs` vectors of rows of a panel of `panel`. */
static void probabilities(int vecs, int panel, bool masked, const grad_run *run)
{
    if (!run->bend) {
        if (masked && run->added)
            WITH_TILE(vecs, panel, probability_groups(VECS, WIDTH, true, true, run));
        else if (masked)
            WITH_TILE(vecs, panel, probability_groups(VECS, WIDTH, true, false, run));
        else if (run->added)
            WITH_TILE(vecs, panel, probability_groups(VECS, WIDTH, false, true, run));
        else
            WITH_TILE(vecs, panel, probability_groups(VECS, WIDTH, false, false, run));
        return;
    }
    WITH_TILE(vecs, panel,
              tile_products(VECS, WIDTH, run->p, P_ROW, run->a, run->a_row, run->b, run->dim, run->groups, run->ahead));
    for (int64_t lane = 0; lane < vecs * LANES; lane += LANES)
        if (masked)
            adjust_probabilities(true, run, lane);
        else
            adjust_probabilities(false, run, lane);
}

/* dS^T, once P^T is there. */
static void score_gradients(int vecs, int panel, bool masked, const grad_run *run)
{
    if (!run->factor && !run->bend) {
        if (masked)
            WITH_TILE(vecs, panel, score_gradient_groups(VECS, WIDTH, true, run));
        else
            WITH_TILE(vecs, panel, score_gradient_groups(VECS, WIDTH, false, run));
        return;
    }
    WITH_TILE(vecs, panel,
              tile_products(VECS, WIDTH, run->ds, P_ROW, run->a, run->a_row, run->b, run->dim, run->groups, run->ahead));
    for (int64_t lane = 0; lane < vecs * LANES; lane += LANES)
        if (masked)
            adjust_gradients(true, run, lane);
        else
            adjust_gradients(false, run, lane);
}

/* C[rows][width] += A B, A(r, n) = a[r row + n step], B a strip with rows of `vecs` vectors; rows a multiple of TILE_ROWS. */
INLINE void gradient_tiles(const int vecs, real *c, ptrdiff_t c_row, int64_t rows, const real *a, ptrdiff_t row, ptrdiff_t step,
                           const real *b, int64_t n)
{
    for (int64_t r0 = 0; r0 < rows; r0 += TILE_ROWS, a += TILE_ROWS * row, c += TILE_ROWS * c_row) {
        vec acc[TILE_ROWS * TILE_VECS];
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            UNROLL
            for (int j = 0; j < vecs; j++)
                acc[r * vecs + j] = v_loadu(c + r * c_row + j * LANES);
        }
        tile_mac(TILE_ROWS, vecs, acc, a, row, step, b, vecs * LANES, n);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            UNROLL
            for (int j = 0; j < vecs; j++)
                v_storeu(c + r * c_row + j * LANES, acc[r * vecs + j]);
        }
    }
}

/* Rows that gradients are added to: the output's own, or scratch. */
typedef struct gradient {
    real *rows;
    ptrdiff_t row;
} gradient;

/* Which cells of P^T and dS^T are not zero throughout: bit v of met[g] stands for vector v of queries and group g of keys. Sums
 * leave out what lies outside the first and the last. */
typedef struct cells {
    uint32_t met[GRAD_KEYS / TILE_ROWS];
    int64_t vecs, keys; /* whole vectors of queries; keys that exist */
} cells;

_Static_assert(BACKWARD_PANELS *TILE_VECS <= 32, "a bit for every vector");

/* The vectors that group g has to do with. */
static inline fattn_interval group_queries(const cells *c, int64_t g)
{
    const uint32_t met = c->met[g];
    return met ? (fattn_interval){__builtin_ctz(met), 32 - __builtin_clz(met)} : (fattn_interval){0, 0};
}

/* The groups that vector v has to do with. */
static inline fattn_interval vector_keys(const cells *c, int64_t v)
{
    fattn_interval k = {0, ceil_div(c->keys, TILE_ROWS)};
    while (k.lo < k.hi && !(c->met[k.lo] >> v & 1))
        k.lo++;
    while (k.lo < k.hi && !(c->met[k.hi - 1] >> v & 1))
        k.hi--;
    return k;
}

static inline bool same_interval(fattn_interval a, fattn_interval b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

/* dK or dV of the block: rows are keys, the sum runs over queries. b: strips of a matrix of `all` rows, from row `at`. */
static void gradient_of_keys(const gradient *c, const cells *met, const strips *s, const real *pt, const real *b, int64_t all,
                             int64_t at)
{
    const int64_t groups = ceil_div(met->keys, TILE_ROWS);
    for (int64_t i = 0; i < s->count; i++) {
        const int64_t c0 = strip_start(s, i), width = strip_start(s, i + 1) - c0;
        for (int64_t g = 0, next; g < groups; g = next) {
            const fattn_interval q = group_queries(met, g);
            for (next = g + 1; next < groups && same_interval(q, group_queries(met, next)); next++)
                ;
            const real *a = pt + g * TILE_ROWS * P_ROW + q.lo * LANES, *strip = b + c0 * all + (at + q.lo * LANES) * width;
            real *to = c->rows + g * TILE_ROWS * c->row + c0;
            const int64_t rows = (next - g) * TILE_ROWS, n = (q.hi - q.lo) * LANES;
            if (n > 0)
                WITH_VECS(width / LANES, gradient_tiles(VECS, to, c->row, rows, a, P_ROW, 1, strip, n));
        }
    }
}

/* dQ from its row `first` on: rows are queries, the sum runs over keys. */
static void gradient_of_queries(const gradient *c, int64_t first, const cells *met, const strips *s, const real *dst,
                                const real *ks)
{
    for (int64_t i = 0; i < s->count; i++) {
        const int64_t c0 = strip_start(s, i), width = strip_start(s, i + 1) - c0;
        for (int64_t v = 0, next; v < met->vecs; v = next) {
            const fattn_interval k = vector_keys(met, v);
            for (next = v + 1; next < met->vecs && same_interval(k, vector_keys(met, next)); next++)
                ;
            const int64_t at = k.lo * TILE_ROWS, n = min64(k.hi * TILE_ROWS, met->keys) - at, rows = (next - v) * LANES;
            const real *strip = ks + c0 * GRAD_KEYS + at * width, *a = dst + at * P_ROW + v * LANES;
            real *to = c->rows + (first + v * LANES) * c->row + c0;
            if (n > 0)
                WITH_VECS(width / LANES, gradient_tiles(VECS, to, c->row, rows, a, 1, P_ROW, strip, n));
        }
    }
}

#endif
