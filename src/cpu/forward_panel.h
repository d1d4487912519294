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
#include "ahead.h"

enum {
    PANELS_MOST = 8,
    FIRST_KEYS = 64 /* keys of the first block: enough for a reference, few enough that the slow way does not show */
};

/* What holds for the whole call. */
typedef struct forward {
    const fattn_problem *problem;
    const fattn_launch *at;
    adjustment adjust;
    int64_t block;                    /* panels per unit */
    int64_t dim_v_padded;             /* to TILE_ROWS */
    bool copy_k;                      /* K is copied: it is of another type, or paged */
    bool copy_v;                      /* V is copied; always with K */
    int64_t *first_unit, *first_copy; /* [batch + 1] of each sequence */
    real *keys;                       /* copies: per sequence [heads_kv][seq_k][dim] */
    real *values;                     /* likewise [heads_kv][seq_k][dim_v_padded] */
    unsigned char *scratch;
    size_t scratch_size; /* per lane */
} forward;

/* One unit: pointers to its head and the scratch of its lane. */
typedef struct forward_unit {
    const forward *call;
    fattn_sequence seq;
    int64_t head_kv;
    int64_t rows;           /* real rows, without the padding of the last vector */
    const real *k, *v;      /* key 0, in place or copied */
    ptrdiff_t k_row, v_row; /* from key to key */
    real *q, *o, *p, *tail; /* [dim][width], [dim_v_padded][width] per panel; [keys][width]; [TILE_ROWS][dim] */
    real *nref, *l;         /* [rows] -r; sum of probabilities */
    real *sum, *lo, *hi;    /* [width] of the panel at hand */
    real *added;            /* [PIECE_KEYS][width] of adjust.h, if asked for */
    real *slope, *diagonal; /* [width] of the panel at hand, likewise */
    real *factor;           /* [keys][width], what dropout multiplies with, if asked for */
    real *wide;             /* rows of a narrower type, widened: [width][dim, dim_v] */
    fattn_interval *keep;   /* [rows] */
    place *lane;            /* [rows] */
} forward_unit;

typedef struct forward_panel {
    int64_t first, width; /* rows within the unit */
    int vecs;
    panel_span keys;
    bool pending; /* some row that keeps keys has met no score above -inf yet */
} forward_panel;

/* ------------------------------------------------------------------------------------------------------------- scores */

/* Where a run of groups reads and writes. */
typedef struct score_run {
    const real *k;
    ptrdiff_t k_row;
    const real *q; /* [dim][width of the panel] */
    real *p;       /* [groups * TILE_ROWS][width of the panel] */
    int64_t dim, groups;
    int64_t key;                 /* of the first row, relative to the step */
    const real *start, *lo, *hi; /* [lanes]: -r; which keys a row keeps, relative to the step */
    const real *added;           /* [groups * TILE_ROWS][width of the panel]: bias and ALiBi; or NULL */
    real *fold;                  /* [lanes]: row sums of P, or row maxima of S */
    ahead_queue *ahead;
    bool cap; /* softcap, whose size is cap_log2 */
    real cap_log2;
} score_run;

/* S^T or P^T for groups of TILE_ROWS keys and `vecs` vectors of rows. `final`: P = 2^(start + S), summed; else S, with its
 * maximum. */
INLINE void score_groups(const int vecs, const ptrdiff_t width, const bool masked, const bool final, const bool added,
                         const score_run *run)
{
    const real *k = run->k, *plus = run->added;
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
                acc[r * vecs + j] = final && !added ? v_load(run->start + j * LANES) : v_set1(0);
        }
        tile_mac_ahead(vecs, acc, k, run->k_row, run->q, width, run->dim, run->ahead);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            const vec key = v_set1((real)(run->key + g * TILE_ROWS + r));
            UNROLL
            for (int j = 0; j < vecs; j++) {
                vec s = acc[r * vecs + j];
                /* Rounded to the score first, as when the reference was taken: together with it, rounding might favour some
                 * keys. */
                if (added)
                    s = v_add(s, v_load(plus + r * width + j * LANES));
                if (added && final)
                    s = v_add(s, v_load(run->start + j * LANES));
                if (masked)
                    s = v_keep(s, key, v_load(run->lo + j * LANES), v_load(run->hi + j * LANES), -INFINITY);
                if (final)
                    s = v_exp2(s);
                v_store(p + r * width + j * LANES, s);
                fold[j] = final ? v_add(fold[j], s) : v_max(s, fold[j]);
            }
        }
        if (added)
            plus += TILE_ROWS * width;
    }
    UNROLL
    for (int j = 0; j < vecs; j++)
        v_store(run->fold + j * LANES, fold[j]);
}

/* Softcap, bias and ALiBi, then what score_groups does, for one vector of rows and all keys of a piece. */
INLINE void adjust_column(const bool masked, const bool final, const score_run *run, ptrdiff_t width, int64_t lane)
{
    const vec start = final ? v_load(run->start + lane) : v_set1(0);
    vec fold = v_load(run->fold + lane);
    for (int64_t r = 0; r < run->groups * TILE_ROWS; r++) {
        real *p = run->p + r * width + lane;
        vec s = v_load(p);
        if (run->cap)
            s = v_mul(v_tanh(s), v_set1(run->cap_log2));
        if (run->added)
            s = v_add(s, v_load(run->added + r * width + lane));
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

/* A run with softcap. */
static void score_adjusted(int vecs, int panel, bool masked, bool final, const score_run *run)
{
    const ptrdiff_t width = panel * LANES;
    WITH_TILE(vecs, panel,
              tile_products(VECS, WIDTH, run->p, WIDTH, run->k, run->k_row, run->q, run->dim, run->groups, run->ahead));
    for (int64_t lane = 0; lane < vecs * LANES; lane += LANES) {
        if (masked && final)
            adjust_column(true, true, run, width, lane);
        else if (masked)
            adjust_column(true, false, run, width, lane);
        else if (final)
            adjust_column(false, true, run, width, lane);
        else
            adjust_column(false, false, run, width, lane);
    }
}

/* A run without. */
INLINE void score_plain(const bool masked, int vecs, int panel, bool final, const score_run *run)
{
    if (final && run->added)
        WITH_TILE(vecs, panel, score_groups(VECS, WIDTH, masked, true, true, run));
    else if (final)
        WITH_TILE(vecs, panel, score_groups(VECS, WIDTH, masked, true, false, run));
    else if (run->added)
        WITH_TILE(vecs, panel, score_groups(VECS, WIDTH, masked, false, true, run));
    else
        WITH_TILE(vecs, panel, score_groups(VECS, WIDTH, masked, false, false, run));
}

/* Two functions: in one, GCC 12 runs out of AVX2's registers, and forward takes a third longer. */
APART void score_unmasked(int vecs, int panel, bool final, const score_run *run)
{
    score_plain(false, vecs, panel, final, run);
}

APART void score_masked(int vecs, int panel, bool final, const score_run *run)
{
    score_plain(true, vecs, panel, final, run);
}

/* S^T or P^T of a run of groups, for `vecs` vectors of rows of a panel of `panel`. */
static void score_tiles(int vecs, int panel, bool masked, bool final, const score_run *run)
{
    if (run->cap)
        score_adjusted(vecs, panel, masked, final, run);
    else if (masked)
        score_masked(vecs, panel, final, run);
    else
        score_unmasked(vecs, panel, final, run);
}

/* Scores of a stretch that are more than products, a piece at a time. */
static void score_pieces(const forward_unit *u, int vecs, int panel, bool masked, bool final, const added_run *added,
                         score_run *run)
{
    const int64_t all = run->groups;
    for (int64_t g = 0; g < all; g += PIECE_KEYS / TILE_ROWS) {
        run->groups = min64(PIECE_KEYS / TILE_ROWS, all - g);
        if (added->lane) {
            fill_added(added, u->added, panel * LANES, vecs, run->key, run->groups * TILE_ROWS);
            run->added = u->added;
        }
        score_tiles(vecs, panel, masked, final, run);
        run->k += PIECE_KEYS * run->k_row;
        run->p += PIECE_KEYS * panel * LANES;
        run->key += PIECE_KEYS;
    }
}

/* The keys of a step: what is computed of them, and from which key on. */
typedef struct key_step {
    int64_t from, to;
    ahead_queue ahead;
    int count;
    stretch stretch[STRETCHES_MOST];
} key_step;

/* A group of keys of which not all exist: a copy that ends in rows of zeros, which the mask drops. */
static const real *copy_tail(const forward_unit *u, int64_t key)
{
    const int64_t dim = u->call->problem->desc.dim;
    memset(u->tail, 0, (size_t)(TILE_ROWS * dim) * sizeof(real));
    for (int64_t r = 0; r < u->seq.seq_k - key; r++)
        memcpy(u->tail + r * dim, u->k + (key + r) * u->k_row, (size_t)dim * sizeof(real));
    return u->tail;
}

/* Scores of a panel with the keys of a step, into u->p. */
static void panel_scores(const forward_unit *u, const forward_panel *panel, key_step *t, bool final)
{
    const forward *f = u->call;
    const int64_t dim = f->problem->desc.dim;
    const added_run added = f->adjust.added
                                ? added_run_of(f->problem, f->at, &u->seq, u->lane + panel->first,
                                               min64(panel->width, u->rows - panel->first), t->from, u->slope, u->diagonal)
                                : (added_run){0};
    bool bounded = false;
    for (int i = 0; i < t->count; i++) {
        const stretch *part = &t->stretch[i];
        const int64_t lane = part->vec * LANES, first = part->group * TILE_ROWS, key = t->from + first;
        score_run run = {.k = part->past ? copy_tail(u, key) : u->k + key * u->k_row,
                         .k_row = part->past ? dim : u->k_row,
                         .q = u->q + panel->first * dim + lane,
                         .p = u->p + first * panel->width + lane,
                         .dim = dim,
                         .groups = part->count,
                         .key = first,
                         .start = u->nref + panel->first + lane,
                         .lo = u->lo + lane,
                         .hi = u->hi + lane,
                         .fold = u->sum + lane,
                         .ahead = &t->ahead,
                         .cap = f->adjust.cap,
                         .cap_log2 = f->adjust.cap_log2};
        if (part->masked && !bounded)
            row_bounds(u->keep + panel->first, panel->width, t->from, t->to - t->from, u->lo, u->hi);
        bounded |= part->masked;
        const added_run part_added = added_lanes(&added, lane);
        if (f->adjust.scores)
            score_pieces(u, part->vecs, panel->vecs, part->masked, final, &part_added, &run);
        else
            score_tiles(part->vecs, panel->vecs, part->masked, final, &run);
    }
}

/* ------------------------------------------------------------------------------------------------------------- softmax */

/* The first way: moves the reference to the largest score so far. */
static void panel_rebase(const forward_unit *u, forward_panel *panel, key_step *t)
{
    const int64_t width = panel->width;
    real *nref = u->nref + panel->first, *l = u->l + panel->first, *o = u->o + panel->first * u->call->dim_v_padded;
    real before[PANEL_WIDTH] __attribute__((aligned(FATTN_ALIGNMENT)));
    for (int64_t i = 0; i < width; i++)
        u->sum[i] = before[i] = l[i] == 0 ? -INFINITY : -nref[i];
    panel_scores(u, panel, t, false);
    for (int j = 0; j < panel->vecs; j++) {
        const int64_t lane = j * LANES;
        /* The lowest number for a row without a score above -inf: 2^(-inf - that) is 0, and no finite score is less. */
        const vec ref = v_max(v_set1(REAL_LOWEST), v_load(u->sum + lane)), shift = v_sub(v_set1(0), ref);
        vec sum = v_set1(0);
        for (int i = 0; i < t->count; i++) {
            const stretch *part = &t->stretch[i];
            real *p = u->p + part->group * TILE_ROWS * width + lane;
            if (j < part->vec || j >= part->vec + part->vecs)
                continue;
            for (int64_t r = 0; r < part->count * TILE_ROWS; r++, p += width) {
                const vec e = v_exp2(v_add(v_load(p), shift));
                v_store(p, e);
                sum = v_add(sum, e);
            }
        }
        /* The root of the factor, applied twice: the factor itself may be too small a number where sums are large. */
        const vec root = v_exp2(v_mul(v_add(v_load(before + lane), shift), v_set1((real)0.5)));
        v_store(l + lane, v_fma(v_mul(v_load(l + lane), root), root, sum));
        v_store(nref + lane, shift);
        if (t->from == panel->keys.all.lo) /* O is still 0 */
            continue;
        for (int64_t d = 0; d < u->call->dim_v_padded; d++)
            v_store(o + d * width + lane, v_mul(v_mul(v_load(o + d * width + lane), root), root));
    }
    panel->pending = false;
    for (int64_t i = 0; i < width; i++) {
        const fattn_interval keep = u->keep[panel->first + i];
        panel->pending |= l[i] == 0 && keep.lo < keep.hi;
    }
}

/* The second way; false if a sum came out too large or NaN, and nothing has changed but u->p. */
static bool panel_extend(const forward_unit *u, const forward_panel *panel, key_step *t)
{
    real *l = u->l + panel->first;
    memset(u->sum, 0, (size_t)panel->width * sizeof(real));
    panel_scores(u, panel, t, true);
    for (int64_t j = 0; j < panel->width; j += LANES)
        if (v_any_above(v_load(u->sum + j), v_set1(SUM_LIMIT)))
            return false;
    for (int64_t j = 0; j < panel->width; j += LANES)
        v_store(l + j, v_add(v_load(l + j), v_load(u->sum + j)));
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- accumulate */

/* O^T += V^T P^T over n keys, for `vecs` vectors of rows: o and p are [dim_v_padded][width], [n][width]. */
INLINE void accumulate_groups(const int vecs, const ptrdiff_t width, const forward_unit *u, real *o, const real *v,
                              const real *p, int64_t n)
{
    const int64_t count = u->call->dim_v_padded / TILE_ROWS;
    for (int64_t g = 0; g < count; g++, v += TILE_ROWS, o += TILE_ROWS * width) {
        vec acc[TILE_ROWS * TILE_VECS];
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            UNROLL
            for (int j = 0; j < vecs; j++)
                acc[r * vecs + j] = v_load(o + r * width + j * LANES);
        }
        tile_mac(TILE_ROWS, vecs, acc, v, 1, u->v_row, p, width, n);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            UNROLL
            for (int j = 0; j < vecs; j++)
                v_store(o + r * width + j * LANES, acc[r * vecs + j]);
        }
    }
}

/* The values of the keys of a step. Masks matter no more: stretches of the same vectors go together. */
static void panel_accumulate(const forward_unit *u, const forward_panel *panel, const key_step *t)
{
    for (int i = 0, next; i < t->count; i = next) {
        const stretch *part = &t->stretch[i];
        int64_t groups = part->count;
        for (next = i + 1; next < t->count; next++) {
            const stretch *other = &t->stretch[next];
            if (other->vec != part->vec || other->vecs != part->vecs || other->group != part->group + groups)
                break;
            groups += other->count;
        }
        const int64_t first = part->group * TILE_ROWS, lane = part->vec * LANES;
        const int64_t n = min64(groups * TILE_ROWS, t->to - t->from - first);
        real *o = u->o + panel->first * u->call->dim_v_padded + lane;
        const real *v = u->v + (t->from + first) * u->v_row, *p = u->p + first * panel->width + lane;
        WITH_TILE(part->vecs, panel->vecs, accumulate_groups(VECS, WIDTH, u, o, v, p, n));
    }
}

/* P of the keys of a step, once it is summed: what dropout leaves of it. */
static void panel_drop(const forward_unit *u, const forward_panel *panel, const key_step *t)
{
    const forward *f = u->call;
    fill_dropout(f->problem, &u->seq, &f->adjust, u->factor, panel->width, u->lane + panel->first,
                 min64(panel->width, u->rows - panel->first), t->from, t->to - t->from);
    for (int i = 0; i < t->count; i++) {
        const stretch *part = &t->stretch[i];
        for (int64_t r = part->group * TILE_ROWS; r < min64((part->group + part->count) * TILE_ROWS, t->to - t->from); r++)
            for (int64_t lane = part->vec * LANES; lane < (part->vec + part->vecs) * LANES; lane += LANES) {
                real *p = u->p + r * panel->width + lane;
                v_store(p, v_mul(v_load(p), v_load(u->factor + r * panel->width + lane)));
            }
    }
}

/* One panel against keys [t->from, t->to), that it keeps some of. */
static void panel_step(const forward_unit *u, forward_panel *panel, key_step *t)
{
    t->count = stretches_of(&panel->keys, panel->vecs, t->from, t->to, u->seq.seq_k, t->stretch);
    if (panel->pending || !panel_extend(u, panel, t))
        panel_rebase(u, panel, t);
    if (u->call->adjust.drop)
        panel_drop(u, panel, t);
    panel_accumulate(u, panel, t);
}

#endif
