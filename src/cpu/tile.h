/*
 * What forward, backward and decode share: scratch memory, panels, register tiles, packing, and strips.
 *
 * Lanes are queries. A panel is up to TILE_VECS vectors of consecutive query rows; a tile of scores is
 * S^T[key][query], computed as K Q^T with Q packed transposed, [dim][panel width]. Keys and values are then broadcast one
 * number at a time, softmax runs down the lanes without a horizontal step, and a mask is one comparison per vector.
 * Why: docs/decisions/0002. Everything here is compiled once per instruction set and type, in isa_<isa>_<type>.c, over the
 * words of vec_<isa>_<type>.h (type_<type>.h has what depends on the type alone):
 *
 *   real, vec, LANES      the number type, a vector of LANES of them
 *   v_load, v_store       aligned; v_loadu, v_storeu: any address
 *   v_set1, v_add, v_sub, v_mul, v_div, v_abs, v_max; v_fma(a, b, c) = a b + c. v_max(a, b) is b where either is NaN
 *   v_if_less(a, b, yes, no)  yes where a < b, else (NaN too) no
 *   v_exp2(x)             2^x; exactly 0 for -inf; NaN for NaN; where 2^x overflows, infinity or some number above SUM_LIMIT
 *   v_keep(s, key, lo, hi, other)  s where lo <= key < hi, else other
 *   v_any_above(a, limit) does any lane fail to be <= limit (so NaN does)
 *   v_transpose(r)        LANES x LANES
 *   v_from_f16(p), v_from_bf16(p), v_from_i8(p), v_to_f16(p, a), v_to_bf16(p, a)  float only: LANES narrow numbers at any
 *                         address, widened, or rounded to nearest even
 *   TILE_ROWS, TILE_VECS  a register tile: rows (keys, or rows of a gradient) x vectors. TILE_ROWS divides LANES,
 *                         so that a panel is whole tiles whichever way it is read
 *   BLOCK_KEYS            keys per step of forward; GRAD_KEYS: keys per block of backward
 *   SUM_LIMIT             a partial sum of probabilities above it means that the reference must move (forward_panel.h)
 */
#ifndef FATTN_CPU_TILE_H
#define FATTN_CPU_TILE_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "compiler.h"
#include "core/kernel.h"
#include "core/mask.h"
#include "core/pool.h"
#include "core/sequence.h"

_Static_assert(LANES % TILE_ROWS == 0, "a panel must be whole tiles");
_Static_assert(TILE_VECS >= 1 && TILE_VECS <= 3, "tile_mac names three vectors, WITH_VECS counts to three");

#define LOG2E       1.44269504088896340736
#define LN2         0.69314718055994530942
#define REAL_LOWEST ((real)(sizeof(real) == 8 ? -DBL_MAX : -(double)FLT_MAX))
#define REAL_LOG(x) (sizeof(real) == 8 ? log(x) : (double)logf((float)(x)))

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t clamp64(int64_t x, int64_t lo, int64_t hi)
{
    return max64(lo, min64(x, hi));
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline int64_t round_to(int64_t n, int64_t multiple)
{
    return ceil_div(n, multiple) * multiple;
}

/* Calls `call` with the compile-time constant VECS equal to `vecs`, 1 .. TILE_VECS. */
#define WITH_VECS(vecs, call)                                                                                                  \
    do {                                                                                                                       \
        if (TILE_VECS > 1 && (vecs) == 1) {                                                                                    \
            enum { VECS = 1 };                                                                                                 \
            call;                                                                                                              \
        } else if (TILE_VECS > 2 && (vecs) == 2) {                                                                             \
            enum { VECS = TILE_VECS > 2 ? 2 : 1 };                                                                             \
            call;                                                                                                              \
        } else {                                                                                                               \
            enum { VECS = TILE_VECS };                                                                                         \
            call;                                                                                                              \
        }                                                                                                                      \
    } while (0)

/* The same for `vecs` vectors of a panel of `panel`, with the constant WIDTH, of the panel's rows: parts of the widest panel,
 * or a whole one. */
#define WITH_TILE(vecs, panel, call)                                                                                           \
    do {                                                                                                                       \
        if ((panel) == TILE_VECS) {                                                                                            \
            enum { WIDTH = TILE_VECS * LANES };                                                                                \
            WITH_VECS(vecs, call);                                                                                             \
        } else if ((panel) == 2) {                                                                                             \
            enum { VECS = TILE_VECS > 2 ? 2 : 1, WIDTH = VECS * LANES };                                                       \
            call;                                                                                                              \
        } else {                                                                                                               \
            enum { VECS = 1, WIDTH = LANES };                                                                                  \
            call;                                                                                                              \
        }                                                                                                                      \
    } while (0)

/* ----------------------------------------------------------------------------------------------------- scratch memory */

/* Carves aligned arrays out of one piece of memory; with base NULL it only counts. */
typedef struct carver {
    unsigned char *base;
    size_t used;
} carver;

static inline void *carve_bytes(carver *c, size_t bytes)
{
    void *at = c->base ? c->base + c->used : NULL;
    c->used += fattn_round_up(bytes, FATTN_ALIGNMENT);
    return at;
}

static inline real *carve(carver *c, int64_t count)
{
    return carve_bytes(c, (size_t)count * sizeof(real));
}

/* --------------------------------------------------------------------------------------------------------------- units */

/* The sequence that unit `unit` belongs to: the last with first[b] <= unit. */
static int64_t sequence_of_unit(const int64_t *first, int64_t batch, int64_t unit)
{
    int64_t lo = 0;
    while (batch - lo > 1) {
        const int64_t middle = lo + (batch - lo) / 2;
        if (first[middle] <= unit)
            lo = middle;
        else
            batch = middle;
    }
    return lo;
}

/* -------------------------------------------------------------------------------------------------------------- panels */

/* How `rows` query rows are cut into panels of at most TILE_VECS vectors. The last panel takes the rest; where that is a lone
 * vector it takes one more from its neighbour (`borrowed`), because two panels of 2 run faster than 3 and 1. */
typedef struct panels {
    int64_t rows, count;
    int64_t borrowed; /* vectors */
} panels;

enum { PANEL_WIDTH = TILE_VECS * LANES }; /* of the widest panel */

static inline panels panels_of(int64_t rows)
{
    const int64_t vecs = ceil_div(rows, LANES);
    panels p = {.rows = rows, .count = ceil_div(vecs, TILE_VECS)};
    p.borrowed = TILE_VECS > 2 && p.count > 1 && vecs - (p.count - 1) * TILE_VECS == 1;
    return p;
}

/* First row of panel i; panel `count` starts at the end, a whole number of vectors. */
static inline int64_t panel_start(const panels *p, int64_t i)
{
    if (i >= p->count)
        return round_to(p->rows, LANES);
    return (i * TILE_VECS - (i == p->count - 1 ? p->borrowed : 0)) * LANES;
}

static inline int panel_vecs(const panels *p, int64_t i)
{
    return (int)((panel_start(p, i + 1) - panel_start(p, i)) / LANES);
}

/* The keys that a set of rows keeps: all of them lie in [lo, hi), and every row keeps all of [in_lo, in_hi). */
typedef struct span {
    int64_t lo, hi, in_lo, in_hi;
} span;

static const span no_rows = {INT64_MAX, 0, 0, INT64_MAX};

static inline void span_add(span *s, fattn_interval row)
{
    if (row.lo < row.hi) {
        s->lo = min64(s->lo, row.lo);
        s->hi = max64(s->hi, row.hi);
    }
    s->in_lo = max64(s->in_lo, row.lo);
    s->in_hi = min64(s->in_hi, row.hi);
}

/* The keys that each vector of a panel's rows keeps, and all of them. */
typedef struct panel_span {
    span all, vec[TILE_VECS];
} panel_span;

/* keep: of the `vecs * LANES` rows of the panel, padding included, which repeats a row. */
static inline panel_span panel_span_of(const fattn_interval *keep, int vecs)
{
    panel_span s = {.all = no_rows};
    for (int j = 0; j < vecs; j++) {
        span *v = &s.vec[j];
        *v = no_rows;
        for (int l = 0; l < LANES; l++)
            span_add(v, keep[j * LANES + l]);
        s.all.lo = min64(s.all.lo, v->lo);
        s.all.hi = max64(s.all.hi, v->hi);
        s.all.in_lo = max64(s.all.in_lo, v->in_lo);
        s.all.in_hi = min64(s.all.in_hi, v->in_hi);
    }
    if (s.all.lo >= s.all.hi)
        s.all.lo = s.all.hi = 0;
    return s;
}

/* The intervals of rows among the n keys from `from` on, counted from it, as numbers that tiles can compare with; a last
 * group of keys may reach past them. */
static inline void row_bounds(const fattn_interval *keep, int64_t rows, int64_t from, int64_t n, real *lo, real *hi)
{
    for (int64_t i = 0; i < rows; i++) {
        lo[i] = (real)clamp64(keep[i].lo - from, 0, n);
        hi[i] = (real)clamp64(keep[i].hi - from, 0, n);
    }
}

/* A stretch of keys, in groups of TILE_ROWS, that the same vectors of a panel keep some of: what is computed as one. Other
 * vectors keep none of it. */
typedef struct stretch {
    int64_t group, count; /* counted from the first key of all stretches */
    int vec, vecs;
    bool masked;
    bool past; /* its one group reaches past key seq_k - 1, so that its rows of K cannot be read in place */
} stretch;

enum { STRETCHES_MOST = (BLOCK_KEYS > GRAD_KEYS ? BLOCK_KEYS : GRAD_KEYS) / TILE_ROWS };

_Static_assert(BLOCK_KEYS % TILE_ROWS == 0 && GRAD_KEYS % TILE_ROWS == 0, "steps and blocks are whole groups");

/* What of the group of keys [key, key + TILE_ROWS) is to be computed; no vectors if nothing. */
static inline stretch group_stretch(const panel_span *s, int panel_vecs, int64_t key)
{
    stretch t = {.count = 1};
    int end = 0;
    t.vec = panel_vecs;
    for (int j = 0; j < panel_vecs; j++)
        if (s->vec[j].lo < key + TILE_ROWS && s->vec[j].hi > key) {
            t.vec = j < t.vec ? j : t.vec;
            end = j + 1;
        }
    if (end > 0 && panel_vecs < TILE_VECS) { /* tiles know parts of the widest panel only */
        t.vec = 0;
        end = panel_vecs;
    }
    t.vecs = end > t.vec ? end - t.vec : 0;
    for (int j = t.vec; j < end; j++)
        t.masked |= s->vec[j].in_lo > key || s->vec[j].in_hi < key + TILE_ROWS;
    return t;
}

/* Whether group `next` can be computed with the stretch before it. */
static inline bool stretch_goes_on(const stretch *s, const stretch *next)
{
    return !next->past && next->masked == s->masked && next->vec == s->vec && next->vecs == s->vecs &&
           next->group == s->group + s->count;
}

/* Cuts keys [from, to) into stretches, and returns how many. */
static inline int stretches_of(const panel_span *s, int panel_vecs, int64_t from, int64_t to, int64_t seq_k, stretch *out)
{
    const int64_t count = ceil_div(to - from, TILE_ROWS);
    int n = 0;
    if (s->all.in_lo <= from && s->all.in_hi >= from + count * TILE_ROWS) {
        out[0] = (stretch){.count = count, .vecs = panel_vecs};
        return 1;
    }
    for (int64_t g = 0; g < count; g++) {
        stretch t = group_stretch(s, panel_vecs, from + g * TILE_ROWS);
        t.group = g;
        t.past = from + (g + 1) * TILE_ROWS > seq_k;
        if (t.vecs == 0)
            continue;
        if (n > 0 && stretch_goes_on(&out[n - 1], &t))
            out[n - 1].count++;
        else
            out[n++] = t;
    }
    return n;
}

/* --------------------------------------------------------------------------------------------------------------- tiles */

/* acc[r][j] += sum_n a[r row + n step] b[n ldb + j], r < rows, j < vecs vectors: the one inner loop of every product. */
INLINE void tile_mac(const int rows, const int vecs, vec *acc, const real *restrict a, ptrdiff_t row, ptrdiff_t step,
                     const real *restrict b, ptrdiff_t ldb, int64_t n)
{
    UNROLL_4
    for (int64_t i = 0; i < n; i++, b += ldb) {
        /* Names and not an array: an array here is what Clang leaves in memory. */
        const vec b0 = v_load(b), b1 = vecs > 1 ? v_load(b + LANES) : b0;
        const vec b2 = vecs > 2 ? v_load(b + 2 * LANES) : b0;
        UNROLL
        for (int r = 0; r < rows; r++) {
            const vec av = v_set1(a[r * row + i * step]);
            vec *to = acc + r * vecs;
            to[0] = v_fma(av, b0, to[0]);
            if (vecs > 1)
                to[1] = v_fma(av, b1, to[1]);
            if (vecs > 2)
                to[2] = v_fma(av, b2, to[2]);
        }
    }
}

/* The sum of LANES numbers, in order. */
static real across_sum(const real *x)
{
    real sum = 0;
    for (int l = 0; l < LANES; l++)
        sum += x[l];
    return sum;
}

/* tanh(x): as e^2x - 1 over e^2x + 1, and for small x, where that cancels, as a ratio of polynomials. */
INLINE vec v_tanh(vec x)
{
    const vec a = v_abs(x), most = v_set1(20), z = v_mul(x, x);
    const vec e = v_exp2(v_mul(v_if_less(most, a, most, a), v_set1((real)(2 * LOG2E)))); /* tanh(20) is 1 */
    const vec large = v_sub(e, v_set1(1)), edge = v_set1((real)0.625);
    const vec top = v_if_less(a, edge, v_mul(x, tanh_numerator(z)), v_if_less(x, v_set1(0), v_sub(v_set1(0), large), large));
    return v_div(top, v_if_less(a, edge, tanh_denominator(z), v_add(e, v_set1(1))));
}

/* ------------------------------------------------------------------------------------------------------------- packing */

/* A row as numbers of this file's type: in place, or a copy. */
static inline const real *row_as_real(const void *row, int32_t dtype, int64_t n, real *copy)
{
    if (dtype == REAL_DTYPE)
        return row;
    widen(copy, row, dtype, n, 1);
    return copy;
}

/* Is every number finite? x * 0 is 0 for those and NaN for the others. */
static bool all_finite(const real *x, int64_t n)
{
    vec sum = v_set1(0);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        sum = v_fma(v_loadu(x + i), v_set1(0), sum);
    bool finite = !v_any_above(sum, v_set1(0));
    for (; i < n; i++)
        finite &= x[i] * 0 == 0;
    return finite;
}

/* to[c][lane] = from[lane][c] * factor for `lanes` rows of `dim` numbers; lanes up to `width` become zero. */
static void pack_transposed(real *restrict to, int64_t width, const real *const *from, int64_t lanes, int64_t dim, real factor)
{
    const vec by = v_set1(factor);
    for (int64_t l0 = 0; l0 < width; l0 += LANES) {
        const int64_t have = clamp64(lanes - l0, 0, LANES);
        int64_t c = 0;
        for (; c + LANES <= dim; c += LANES) {
            vec block[LANES];
            UNROLL
            for (int l = 0; l < LANES; l++)
                block[l] = l < have ? v_mul(v_loadu(from[l0 + l] + c), by) : v_set1(0);
            v_transpose(block);
            UNROLL
            for (int l = 0; l < LANES; l++)
                v_store(to + (c + l) * width + l0, block[l]);
        }
        for (; c < dim; c++)
            for (int64_t l = 0; l < LANES; l++)
                to[c * width + l0 + l] = l < have ? from[l0 + l][c] * factor : 0;
    }
}

/* to[lane][c] = from[c][lane] * factor[lane], for the first `lanes` lanes: the way back. */
static void unpack_transposed(real *const *to, const real *restrict from, int64_t width, int64_t lanes, int64_t dim,
                              const real *restrict factor)
{
    for (int64_t l0 = 0; l0 < lanes; l0 += LANES) {
        const int64_t have = min64(lanes - l0, LANES);
        const vec by = v_load(factor + l0);
        int64_t c = 0;
        for (; c + LANES <= dim; c += LANES) {
            vec block[LANES];
            UNROLL
            for (int l = 0; l < LANES; l++)
                block[l] = v_mul(v_load(from + (c + l) * width + l0), by);
            v_transpose(block);
            UNROLL
            for (int l = 0; l < LANES; l++)
                if (l < have)
                    v_storeu(to[l0 + l] + c, block[l]);
        }
        for (; c < dim; c++)
            for (int64_t l = 0; l < have; l++)
                to[l0 + l][c] = from[c * width + l0 + l] * factor[l0 + l];
    }
}

/* to[lane][c] += from[c][lane] for the first `lanes` lanes. */
static void add_transposed(real *const *to, const real *restrict from, int64_t width, int64_t lanes, int64_t dim)
{
    for (int64_t l0 = 0; l0 < lanes; l0 += LANES) {
        const int64_t have = min64(lanes - l0, LANES);
        int64_t c = 0;
        for (; c + LANES <= dim; c += LANES) {
            vec block[LANES];
            UNROLL
            for (int l = 0; l < LANES; l++)
                block[l] = v_load(from + (c + l) * width + l0);
            v_transpose(block);
            UNROLL
            for (int l = 0; l < LANES; l++)
                if (l < have)
                    v_storeu(to[l0 + l] + c, v_add(v_loadu(to[l0 + l] + c), block[l]));
        }
        for (; c < dim; c++)
            for (int64_t l = 0; l < have; l++)
                to[l0 + l][c] += from[c * width + l0 + l];
    }
}

/* -------------------------------------------------------------------------------------------------------------- strips */

/* A matrix of `cols` columns cut into strips of nearly equal width, at most TILE_VECS vectors: strip s of row i lies at
 * strip_start(s) * rows + i * width(s), so that a gradient tile reads rows of B next to each other. */
typedef struct strips {
    int64_t vecs, count; /* vectors in a padded row; strips */
} strips;

static inline strips strips_of(int64_t cols)
{
    const int64_t vecs = ceil_div(cols, LANES);
    return (strips){vecs, ceil_div(vecs, TILE_VECS)};
}

static inline int64_t strip_start(const strips *s, int64_t i)
{
    return i * s->vecs / s->count * LANES;
}

static inline int64_t padded(const strips *s)
{
    return s->vecs * LANES;
}

/* Copies `rows` rows of `cols` numbers, times factor, into the strips of a matrix of `all` rows, from row `at` on; padding
 * becomes zero. */
static void pack_strips(real *to, const strips *s, int64_t all, int64_t at, const real *const *from, int64_t rows, int64_t cols,
                        real factor)
{
    const vec by = v_set1(factor);
    for (int64_t i = 0; i < s->count; i++) {
        const int64_t c0 = strip_start(s, i), width = strip_start(s, i + 1) - c0, have = min64(width, cols - c0);
        real *out = to + c0 * all + at * width;
        for (int64_t r = 0; r < rows; r++, out += width) {
            int64_t c = 0;
            for (; c + LANES <= have; c += LANES)
                v_store(out + c, v_mul(v_loadu(from[r] + c0 + c), by));
            for (; c < width; c++)
                out[c] = c < have ? from[r][c0 + c] * factor : 0;
        }
    }
}

/* Rows of the strips behind the last real row meet P = 0 and must not be NaN. */
static void clear_padding(real *to, const strips *s, int64_t all, int64_t from)
{
    for (int64_t i = 0; i < s->count; i++) {
        const int64_t c0 = strip_start(s, i), width = strip_start(s, i + 1) - c0;
        memset(to + c0 * all + from * width, 0, (size_t)((all - from) * width) * sizeof(real));
    }
}

#endif
