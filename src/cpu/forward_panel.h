/*
 * Forward, one panel of queries against one block of keys: scores, online softmax, and the sum over values. forward.h says how
 * panels make up a call.
 *
 * For each panel and block of keys, in log2 units (Q is packed with scale log2(e) folded in):
 *
 *   first block     S^T = K Q^T is stored; its row maximum becomes the reference r; P = 2^(S - r); l = sum P; O^T = V^T P^T
 *   later blocks    the accumulators start at -r, and P = 2^(S - r) leaves the registers without S ever being stored;
 *                   l += sum P; O^T += V^T P^T. Nothing is rescaled: float has the exponent range to spare, up to SUM_LIMIT
 *   sum too large   (or NaN) the block is done again the first way: r moves to the new maximum, O and l are multiplied by
 *                   2^(r_old - r_new)
 *   end             out = O / l, lse = (r + log2 l) ln 2
 *
 * The first way makes the reference the largest score so far, whose P is 1, so l >= 1 for a row that has met a score above
 * -inf, and l == 0 says that it met none. Which way a block takes depends on the data alone, and blocks are counted from the
 * first key that the panel keeps, so the bits of the result depend neither on threads nor on how panels are grouped into units.
 *
 * Where scores are more than q.k (adjust.h), accumulators start at 0: softcap bends what the product gave, and bias is added
 * before -r, so that a score is the same number whether it moves the reference or not. Dropout multiplies P once it is in l.
 */
#ifndef FATTN_CPU_FORWARD_PANEL_H
#define FATTN_CPU_FORWARD_PANEL_H

#include "adjust.h"

enum {
    PANELS_MOST = 4,
    FIRST_KEYS = 64 /* keys of the first block: enough for a reference, few enough that the slow way does not show */
};

/* What holds for the whole call. */
typedef struct forward {
    const fattn_problem *problem;
    const fattn_launch *at;
    adjustment adjust;
    int64_t block;                    /* panels per unit */
    int64_t dim_v_padded;             /* to TILE_ROWS */
    bool copy;                        /* K is copied: it is of another type, or paged */
    bool pack;                        /* V is packed; else read in place */
    int64_t *first_unit, *first_pack; /* [batch + 1] of each sequence */
    real *keys;                       /* copies: per sequence [heads_kv][seq_k][dim] */
    real *packed;                     /* per sequence [heads_kv][dim_v_padded / TILE_ROWS][seq_k][TILE_ROWS] */
    unsigned char *scratch;
    size_t scratch_size; /* per lane */
} forward;

/* One unit: pointers to its head and the scratch of its lane. */
typedef struct forward_unit {
    const forward *call;
    fattn_sequence seq;
    int64_t head_kv;
    int64_t rows;                /* real rows, without the padding of the last vector */
    const real *k, *v;           /* key 0, real or copied; v: packed, or in place */
    ptrdiff_t k_row, v_row;      /* from key to key */
    ptrdiff_t v_group;           /* from TILE_ROWS of dim_v to the next */
    real *q, *o, *p, *tail;      /* [dim][width], [dim_v_padded][width] per panel; [keys][width]; [TILE_ROWS][dim] */
    real *nref, *l;              /* [rows] -r; sum of probabilities */
    real *sum, *alpha, *lo, *hi; /* [width] of the panel at hand */
    real *added, *factor;        /* [PIECE_KEYS][width], [keys][width] of adjust.h, if asked for */
    real *wide;                  /* rows of a narrower type, widened: [width][dim, dim_v or keys] */
    fattn_interval *keep;        /* [rows] */
    place *lane;                 /* [rows] */
} forward_unit;

typedef struct forward_panel {
    int64_t first, width; /* rows within the unit */
    int vecs;
    span keys;
    bool started; /* O holds something */
    bool pending; /* some row that keeps keys has met no score above -inf yet */
} forward_panel;

/* ------------------------------------------------------------------------------------------------------------- scores */

/* Where a run of groups reads and writes. */
typedef struct score_run {
    const real *k;
    ptrdiff_t k_row;
    const real *q; /* [dim][width] */
    real *p;       /* [groups * TILE_ROWS][width] */
    int64_t dim, groups;
    int64_t key;                 /* of the first row, relative to the block */
    const real *start, *lo, *hi; /* [width]: -r; which keys a row keeps, relative to the block */
    real *fold;                  /* [width]: row sums of P, or row maxima of S */
    const real *added;           /* [groups * TILE_ROWS][width], or NULL */
    bias_ahead ahead;
    bool cap; /* softcap, whose size is cap_log2 */
    real cap_log2;
} score_run;

/* S^T or P^T for groups of TILE_ROWS keys. `final`: P = 2^(start + S), summed; else S, with its maximum. */
INLINE void score_groups(const int vecs, const bool masked, const bool final, const score_run *run)
{
    const ptrdiff_t width = vecs * LANES;
    const real *k = run->k;
    real *p = run->p;
    vec fold[TILE_VECS];
    UNROLL
    for (int j = 0; j < vecs; j++)
        fold[j] = v_load(run->fold + j * LANES);
    for (int64_t g = 0; g < run->groups; g++, k += TILE_ROWS * run->k_row, p += TILE_ROWS * width) {
        vec acc[TILE_ROWS * TILE_VECS];
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            UNROLL
            for (int j = 0; j < vecs; j++)
                acc[r * vecs + j] = final ? v_load(run->start + j * LANES) : v_set1(0);
        }
        tile_mac(TILE_ROWS, vecs, acc, k, run->k_row, 1, run->q, width, run->dim);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            const vec key = v_set1((real)(run->key + g * TILE_ROWS + r));
            UNROLL
            for (int j = 0; j < vecs; j++) {
                vec s = acc[r * vecs + j];
                if (masked)
                    s = v_keep(s, key, v_load(run->lo + j * LANES), v_load(run->hi + j * LANES), -INFINITY);
                if (final)
                    s = v_exp2(s);
                v_store(p + r * width + j * LANES, s);
                fold[j] = final ? v_add(fold[j], s) : v_max(s, fold[j]);
            }
        }
    }
    UNROLL
    for (int j = 0; j < vecs; j++)
        v_store(run->fold + j * LANES, fold[j]);
}

static void score_plain(int vecs, bool final, const score_run *run)
{
    if (final)
        WITH_VECS(vecs, score_groups(VECS, false, true, run));
    else
        WITH_VECS(vecs, score_groups(VECS, false, false, run));
}

static void score_masked(int vecs, bool final, const score_run *run)
{
    if (final)
        WITH_VECS(vecs, score_groups(VECS, true, true, run));
    else
        WITH_VECS(vecs, score_groups(VECS, true, false, run));
}

/* The products alone. What follows on them here, where they are adjusted, would take the accumulators' registers. */
INLINE void product_groups(const int vecs, const score_run *run)
{
    const ptrdiff_t width = vecs * LANES;
    const real *k = run->k;
    real *p = run->p;
    for (int64_t g = 0; g < run->groups; g++, k += TILE_ROWS * run->k_row, p += TILE_ROWS * width) {
        vec acc[TILE_ROWS * TILE_VECS];
        fetch_bias(&run->ahead, g, run->groups);
        UNROLL
        for (int i = 0; i < TILE_ROWS * vecs; i++)
            acc[i] = v_set1(0);
        tile_mac(TILE_ROWS, vecs, acc, k, run->k_row, 1, run->q, width, run->dim);
        UNROLL
        for (int i = 0; i < TILE_ROWS * vecs; i++)
            v_store(p + i * LANES, acc[i]);
    }
}

/* Softcap, bias and ALiBi, then what score_groups does, for one vector of rows and all keys of a piece. */
INLINE void adjust_column(const bool masked, const bool final, const score_run *run, ptrdiff_t width, int64_t lane)
{
    const vec start = final ? v_load(run->start + lane) : v_set1(0), log2e = v_set1((real)LOG2E);
    vec fold = v_load(run->fold + lane);
    for (int64_t r = 0; r < run->groups * TILE_ROWS; r++) {
        real *p = run->p + r * width + lane;
        vec s = v_load(p);
        if (run->cap)
            s = v_mul(v_tanh(s), v_set1(run->cap_log2));
        /* Rounded to the score first, as when the reference was taken: together with it, rounding might favour some keys. */
        if (run->added)
            s = v_fma(v_load(run->added + r * width + lane), log2e, s);
        s = v_add(s, start);
        if (masked)
            s = v_keep(s, v_set1((real)(run->key + r)), v_load(run->lo + lane), v_load(run->hi + lane), -INFINITY);
        if (final)
            s = v_exp2(s);
        v_store(p, s);
        fold = final ? v_add(fold, s) : v_max(s, fold);
    }
    v_store(run->fold + lane, fold);
}

static void score_adjusted(int vecs, bool masked, bool final, const score_run *run)
{
    WITH_VECS(vecs, product_groups(VECS, run));
    for (int64_t lane = 0; lane < vecs * LANES; lane += LANES) {
        if (masked && final)
            adjust_column(true, true, run, vecs * LANES, lane);
        else if (masked)
            adjust_column(true, false, run, vecs * LANES, lane);
        else if (final)
            adjust_column(false, true, run, vecs * LANES, lane);
        else
            adjust_column(false, false, run, vecs * LANES, lane);
    }
}

/* Adjusted scores, a piece at a time. `from`: the key that run->key is relative to; n: keys that exist. */
static void score_pieces(const forward_unit *u, const forward_panel *panel, bool masked, bool final, score_run *run,
                         int64_t from, int64_t n)
{
    const forward *f = u->call;
    const int64_t all = run->groups, lanes = min64(panel->width, u->rows - panel->first);
    const int64_t size = (int64_t)fattn_dtype_size(f->problem->desc.dtype);
    const bool bias = (f->problem->desc.flags & FATTN_WITH_BIAS) != 0;
    for (int64_t g = 0; g < all; g += PIECE_KEYS / TILE_ROWS) {
        run->groups = min64(PIECE_KEYS / TILE_ROWS, all - g);
        if (f->adjust.added)
            fill_added(f->problem, f->at, &u->seq, u->added, panel->width, u->lane + panel->first, lanes, from + run->key,
                       min64(run->groups * TILE_ROWS, n), u->wide);
        run->ahead = (bias_ahead){bias ? u->lane + panel->first : NULL, lanes, (from + run->key + PIECE_KEYS) * size};
        score_adjusted(panel->vecs, masked, final, run);
        run->k += PIECE_KEYS * run->k_row;
        run->p += PIECE_KEYS * panel->width;
        run->key += PIECE_KEYS;
        n -= PIECE_KEYS;
    }
}

/* Scores of run->groups groups, of whose keys n exist. */
static void score_any(const forward_unit *u, const forward_panel *panel, bool masked, bool final, score_run *run, int64_t from,
                      int64_t n)
{
    if (u->call->adjust.scores)
        score_pieces(u, panel, masked, final, run, from, n);
    else if (masked)
        score_masked(panel->vecs, final, run);
    else
        score_plain(panel->vecs, final, run);
}

/* The intervals of a panel's rows among keys [from, to), relative to `from`, as numbers that the tile can compare with; the
 * last group may reach past them. */
static void panel_bounds(const forward_unit *u, const forward_panel *panel, int64_t from, int64_t to)
{
    for (int64_t i = 0; i < panel->width; i++) {
        const fattn_interval keep = u->keep[panel->first + i];
        u->lo[i] = (real)clamp64(keep.lo - from, 0, to - from);
        u->hi[i] = (real)clamp64(keep.hi - from, 0, to - from);
    }
}

/* Scores of a panel with keys [from, to), into u->p. */
static void panel_scores(const forward_unit *u, const forward_panel *panel, int64_t from, int64_t to, bool final)
{
    const forward *f = u->call;
    const int64_t dim = f->problem->desc.dim, seq_k = u->seq.seq_k;
    const groups g = groups_of(&panel->keys, from, to, seq_k);
    score_run run = {.k_row = u->k_row,
                     .q = u->q + panel->first * dim,
                     .dim = dim,
                     .start = u->nref + panel->first,
                     .lo = u->lo,
                     .hi = u->hi,
                     .fold = u->sum,
                     .added = f->adjust.added ? u->added : NULL,
                     .cap = f->adjust.cap,
                     .cap_log2 = f->adjust.cap_log2};
    const int64_t edge[] = {0, g.clean_from, g.clean_to, g.whole};
    if (g.clean_from > 0 || g.clean_to < g.count)
        panel_bounds(u, panel, from, to);
    for (int i = 0; i < 3; i++) {
        run.groups = edge[i + 1] - edge[i];
        if (run.groups <= 0)
            continue;
        const int64_t key = from + edge[i] * TILE_ROWS;
        run.k = u->k + key * u->k_row;
        run.p = u->p + edge[i] * TILE_ROWS * panel->width;
        run.key = key - from;
        score_any(u, panel, i != 1, final, &run, from, run.groups * TILE_ROWS);
    }
    if (g.whole < g.count) { /* the last keys of all do not fill a group: a copy with rows of zeros, which the mask drops */
        const int64_t key = from + g.whole * TILE_ROWS;
        memset(u->tail, 0, (size_t)(TILE_ROWS * dim) * sizeof(real));
        for (int64_t r = 0; r < seq_k - key; r++)
            memcpy(u->tail + r * dim, u->k + (key + r) * u->k_row, (size_t)dim * sizeof(real));
        run.groups = 1;
        run.k = u->tail;
        run.k_row = dim;
        run.p = u->p + g.whole * TILE_ROWS * panel->width;
        run.key = key - from;
        score_any(u, panel, true, final, &run, from, seq_k - key);
    }
}

/* ------------------------------------------------------------------------------------------------------------- softmax */

/* The first way: moves the reference to the largest score so far, and leaves the root of the factor for O in u->alpha. */
static void panel_rebase(const forward_unit *u, forward_panel *panel, int64_t from, int64_t to)
{
    real *nref = u->nref + panel->first, *l = u->l + panel->first;
    for (int64_t i = 0; i < panel->width; i++)
        u->sum[i] = l[i] == 0 ? -INFINITY : -nref[i];
    panel_scores(u, panel, from, to, false);
    const int64_t width = panel->width;
    for (int64_t j = 0; j < width; j += LANES) {
        /* The lowest number for a row without a score above -inf: 2^(-inf - that) is 0, and no finite score is less. */
        const vec ref = v_max(v_set1(REAL_LOWEST), v_load(u->sum + j));
        const vec shift = v_sub(v_set1(0), ref);
        vec sum = v_set1(0);
        for (int64_t key = 0; key < to - from; key++) {
            const vec e = v_exp2(v_add(v_load(u->p + key * width + j), shift));
            v_store(u->p + key * width + j, e);
            sum = v_add(sum, e);
        }
        for (int i = 0; i < LANES; i++)
            u->alpha[j + i] = l[j + i] == 0 ? -INFINITY : -nref[j + i];
        /* The root of the factor, applied twice: the factor itself may be too small a number where sums are large. */
        const vec root = v_exp2(v_mul(v_add(v_load(u->alpha + j), shift), v_set1((real)0.5)));
        v_store(u->alpha + j, root);
        v_store(l + j, v_fma(v_mul(v_load(l + j), root), root, sum));
        v_store(nref + j, shift);
    }
    panel->pending = false;
    for (int64_t i = 0; i < width; i++) {
        const fattn_interval keep = u->keep[panel->first + i];
        panel->pending |= l[i] == 0 && keep.lo < keep.hi;
    }
}

/* The second way; false if a sum came out too large or NaN, and nothing has changed but u->p. */
static bool panel_extend(const forward_unit *u, const forward_panel *panel, int64_t from, int64_t to)
{
    real *l = u->l + panel->first;
    memset(u->sum, 0, (size_t)panel->width * sizeof(real));
    panel_scores(u, panel, from, to, true);
    for (int64_t j = 0; j < panel->width; j += LANES)
        if (v_any_above(v_load(u->sum + j), v_set1(SUM_LIMIT)))
            return false;
    for (int64_t j = 0; j < panel->width; j += LANES)
        v_store(l + j, v_add(v_load(l + j), v_load(u->sum + j)));
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- accumulate */

typedef enum { O_SET, O_ADD, O_SCALE } o_mode;

/* O^T = V^T P^T, + O^T or + alpha^2 O^T, over n keys. */
INLINE void accumulate_groups(const int vecs, const o_mode mode, const forward_unit *u, const forward_panel *panel,
                              const real *v, int64_t n)
{
    const ptrdiff_t width = vecs * LANES;
    real *o = u->o + panel->first * u->call->dim_v_padded;
    const int64_t count = u->call->dim_v_padded / TILE_ROWS;
    for (int64_t g = 0; g < count; g++, v += u->v_group, o += TILE_ROWS * width) {
        vec acc[TILE_ROWS * TILE_VECS];
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            UNROLL
            for (int j = 0; j < vecs; j++) {
                const real *at = o + r * width + j * LANES;
                acc[r * vecs + j] = mode == O_SET ? v_set1(0)
                                    : mode == O_ADD
                                        ? v_load(at)
                                        : v_mul(v_mul(v_load(at), v_load(u->alpha + j * LANES)), v_load(u->alpha + j * LANES));
            }
        }
        if (u->call->pack) /* a constant step keeps the addresses of the hot loop simple */
            tile_mac(TILE_ROWS, vecs, acc, v, 1, TILE_ROWS, u->p, width, n);
        else
            tile_mac(TILE_ROWS, vecs, acc, v, 1, u->v_row, u->p, width, n);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            UNROLL
            for (int j = 0; j < vecs; j++)
                v_store(o + r * width + j * LANES, acc[r * vecs + j]);
        }
    }
}

static void panel_accumulate(const forward_unit *u, const forward_panel *panel, o_mode mode, int64_t from, int64_t n)
{
    const real *v = u->v + from * u->v_row;
    if (mode == O_ADD)
        WITH_VECS(panel->vecs, accumulate_groups(VECS, O_ADD, u, panel, v, n));
    else if (mode == O_SET)
        WITH_VECS(panel->vecs, accumulate_groups(VECS, O_SET, u, panel, v, n));
    else
        WITH_VECS(panel->vecs, accumulate_groups(VECS, O_SCALE, u, panel, v, n));
}

/* P of n keys, once it is summed: what dropout leaves of it. */
static void panel_drop(const forward_unit *u, const forward_panel *panel, int64_t from, int64_t n)
{
    const forward *f = u->call;
    fill_dropout(f->problem, &u->seq, &f->adjust, u->factor, panel->width, u->lane + panel->first,
                 min64(panel->width, u->rows - panel->first), from, n);
    for (int64_t i = 0; i < n * panel->width; i += LANES)
        v_store(u->p + i, v_mul(v_load(u->p + i), v_load(u->factor + i)));
}

/* One panel against n of the keys that it keeps, or what there is of them, from key number `first` of them on. */
static void panel_step(const forward_unit *u, forward_panel *panel, int64_t first, int64_t n)
{
    const forward *f = u->call;
    const int64_t from = panel->keys.lo + first, to = min64(from + n, panel->keys.hi);
    if (from >= to)
        return;
    o_mode mode = O_ADD;
    if (panel->pending || !panel_extend(u, panel, from, to)) {
        panel_rebase(u, panel, from, to);
        mode = panel->started ? O_SCALE : O_SET;
    }
    if (f->adjust.drop)
        panel_drop(u, panel, from, to - from);
    panel_accumulate(u, panel, mode, from, to - from);
    panel->started = true;
}

#endif
