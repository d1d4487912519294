/*
 * The list of problems. Sweeps go through one size at a time (every head dimension, every short length, lengths around
 * the edges of tiles) while everything else is drawn from small sets; fixed problems put every fault that is known from
 * other systems where it shows; random ones look for what nobody thought of.
 *
 * Sizes are small: the truth is computed by plain loops, and what breaks, breaks at edges.
 */
#include <fnmatch.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "problem.h"
#include "random.h"

typedef struct maker {
    problem_list list;
    list_level level;
    uint64_t seed;
    random_state random; /* of the sweeps: the same for every seed */
    bool ok;
} maker;

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* ------------------------------------------------------------------------------------------------------------- adding */

static void add_one(maker *m, problem p)
{
    problem_list *list = &m->list;
    if (list->count == list->capacity) {
        const int capacity = list->capacity ? 2 * list->capacity : 512;
        problem *item = realloc(list->item, (size_t)capacity * sizeof *item);
        if (!item) {
            m->ok = false;
            return;
        }
        list->item = item;
        list->capacity = capacity;
    }
    p.seed = m->seed;
    list->item[list->count++] = p;
}

enum { F32 = 1, F64 = 2, FWD = 4, BWD = 8, ALL = 15 };

/* Adds a problem as forward and backward, f32 and f64: those that `which` has. */
static void add(maker *m, problem p, unsigned which)
{
    for (int type = 0; type < 2; type++)
        for (int op = 0; op < 2; op++) {
            if (!(which & (type ? F64 : F32)) || !(which & (op ? BWD : FWD)))
                continue;
            p.dtype = type ? FATTN_F64 : FATTN_F32;
            p.op = op ? FATTN_OP_BACKWARD : FATTN_OP_FORWARD;
            add_one(m, p);
        }
}

static int64_t pick(maker *m, const int *from, int count)
{
    return from[random_below(&m->random, count)];
}

static void pick_mask(maker *m, problem *p)
{
    static const int sides[] = {-1, 0, 1, 5, 16, 31, 100};
    p->mask = (fattn_mask)random_below(&m->random, 3);
    p->align = p->mask == FATTN_MASK_FULL ? FATTN_ALIGN_TOP_LEFT : (fattn_align)random_below(&m->random, 2);
    p->left = p->right = 0;
    if (p->mask == FATTN_MASK_WINDOW) {
        p->left = pick(m, sides, COUNT(sides));
        p->right = pick(m, sides, COUNT(sides));
    }
}

static void pick_heads(maker *m, problem *p)
{
    static const int groups[] = {1, 1, 2, 3, 4};
    p->group = pick(m, groups, COUNT(groups));
    p->heads_q = p->group * (1 + random_below(&m->random, 2));
}

static void pick_layout(maker *m, problem *p)
{
    p->layout = (layout_kind)random_below(&m->random, LAYOUT_FAR);
}

/* Draws what a sweep does not set itself. */
static problem vary(maker *m, problem p)
{
    pick_mask(m, &p);
    pick_heads(m, &p);
    pick_layout(m, &p);
    if (random_below(&m->random, 4) == 0)
        p.fill = (fill_kind)random_below(&m->random, FILL_RISING + 2);
    return p;
}

/* ------------------------------------------------------------------------------------------------------------- sweeps */

static void sweep_dims(maker *m)
{
    static const int lengths[] = {3, 17, 40, 97};
    const int64_t step = m->level == LIST_FULL ? 1 : m->level == LIST_DEFAULT ? 7 : 43;
    for (int64_t d = 1; d <= 130; d += step) {
        problem p = problem_of(pick(m, lengths, COUNT(lengths)), pick(m, lengths, COUNT(lengths)), d);
        add(m, vary(m, p), d % 3 == 0 ? ALL : F32 | FWD | BWD);
    }
    static const int large[] = {512, 131, 160, 191, 192, 255, 256, 257, 320, 383, 384, 448, 511};
    for (int i = 0; i < (m->level == LIST_FULL ? COUNT(large) : m->level == LIST_DEFAULT ? 4 : 1); i++)
        add(m, vary(m, problem_of(19, 37, large[i])), m->level == LIST_QUICK ? F32 | FWD | BWD : ALL);
}

static void sweep_dim_v(maker *m)
{
    static const int dims[][2] = {{64, 48}, {1, 33}, {33, 1}, {96, 128}, {192, 128}, {40, 72}, {64, 65}, {5, 7}, {128, 16}};
    const int count = m->level == LIST_QUICK ? 3 : COUNT(dims);
    for (int i = 0; i < count; i++) {
        problem p = vary(m, problem_of(35, 50, dims[i][0]));
        p.dim_v = dims[i][1];
        add(m, p, m->level == LIST_QUICK ? F32 | FWD | BWD : ALL);
    }
}

static void sweep_lengths(maker *m)
{
    static const int dims[] = {8, 16, 32, 64, 33};
    const int64_t step = m->level == LIST_FULL ? 1 : m->level == LIST_DEFAULT ? 5 : 23;
    for (int64_t n = 1; n <= 70; n += step)
        for (int other = 0; other < (m->level == LIST_FULL ? 3 : 2); other++) {
            const int64_t q = other == 1 ? 1 + random_below(&m->random, 70) : n;
            const int64_t k = other == 2 ? 1 + random_below(&m->random, 70) : n;
            add(m, vary(m, problem_of(q, k, pick(m, dims, COUNT(dims)))), n % 4 == 0 ? ALL : F32 | FWD | BWD);
        }
}

/* Lengths on, before and behind the edges of tiles. */
static void sweep_edges(maker *m)
{
    static const int edges[] = {48, 64, 96, 128, 192, 256, 384};
    const int count = m->level == LIST_QUICK ? 2 : m->level == LIST_DEFAULT ? 6 : COUNT(edges);
    for (int i = 0; i < count; i++)
        for (int shift = -1; shift <= 1; shift++) {
            const int64_t edge = edges[i] + shift;
            problem p = problem_of(edge, edge, i % 2 ? 64 : 40);
            p.mask = shift == 0 ? FATTN_MASK_FULL : FATTN_MASK_CAUSAL;
            add(m, p, i == 0 ? ALL : F32 | FWD | BWD);
            if (m->level == LIST_QUICK)
                continue;
            p = problem_of(7 + i, edge, 64);
            pick_mask(m, &p);
            pick_layout(m, &p);
            add(m, p, F32 | FWD | (i % 2 ? BWD : F64));
            p = problem_of(edge, 5 + i, 32);
            pick_mask(m, &p);
            add(m, p, F32 | BWD | (i % 2 ? FWD : F64));
        }
}

static void sweep_heads(maker *m)
{
    static const int heads[][2] = {{2, 2},   {6, 3},  {4, 1},   {3, 3}, {8, 4},
                                   {16, 16}, {16, 8}, {48, 24}, {5, 1}}; /* heads, group */
    const int count = m->level == LIST_QUICK ? 3 : COUNT(heads);
    for (int i = 0; i < count; i++)
        for (int q = 0; q < 2; q++) {
            problem p = problem_of(q ? 1 : 21, 33, 24);
            pick_mask(m, &p);
            pick_layout(m, &p);
            p.batch = 1 + i % 3;
            p.heads_q = heads[i][0];
            p.group = heads[i][1];
            add(m, p, i % 3 == 1 ? ALL : F32 | FWD | BWD);
        }
}

static void sweep_windows(maker *m)
{
    static const int64_t windows[][2] = {
        {-1, 0},  {0, 0},         {0, -1},        {-1, -1},   {3, 2},       {16, 0},
        {0, 7},   {64, 0},        {127, 0},       {128, 128}, {1000000, 0}, {INT64_MAX, INT64_MAX},
        {40, -1}, {0, INT64_MAX}, {INT64_MAX, 0}, {31, 33},   {95, 1}};
    const int count = m->level == LIST_QUICK ? 5 : COUNT(windows);
    for (int i = 0; i < count; i++)
        for (int align = 0; align < 2; align++) {
            static const int lengths[][2] = {{130, 130}, {61, 140}, {140, 61}};
            for (int l = 0; l < (m->level == LIST_FULL ? 3 : 1); l++) {
                const int pair = m->level == LIST_FULL ? l : (i + align) % 3;
                problem p = problem_of(lengths[pair][0], lengths[pair][1], 20);
                p.mask = FATTN_MASK_WINDOW;
                p.align = (fattn_align)align;
                p.left = windows[i][0];
                p.right = windows[i][1];
                add(m, p, i % 4 == 0 && m->level != LIST_QUICK ? ALL : F32 | FWD | BWD);
            }
        }
}

/* ---------------------------------------------------------------------------------------------------- known situations */

static problem with_mask(problem p, fattn_mask mask, fattn_align align)
{
    p.mask = mask;
    p.align = align;
    return p;
}

static problem with_fill(problem p, fill_kind fill)
{
    p.fill = fill;
    return p;
}

/* Rows, queries, keys and batches that are not there. */
static void add_empty(maker *m)
{
    const fattn_mask causal = FATTN_MASK_CAUSAL, window = FATTN_MASK_WINDOW;
    const fattn_align tl = FATTN_ALIGN_TOP_LEFT, br = FATTN_ALIGN_BOTTOM_RIGHT;
    problem p = problem_of(9, 5, 16);
    p.batch = 0;
    add(m, p, ALL);
    add(m, problem_of(0, 5, 16), ALL);
    add(m, problem_of(9, 0, 16), ALL);
    add(m, problem_of(0, 0, 3), F32 | FWD | BWD);
    add(m, with_mask(problem_of(9, 0, 16), causal, br), F32 | FWD | BWD);
    add(m, with_mask(problem_of(8, 4, 16), causal, br), ALL); /* rows 0 .. 3 see nothing */
    add(m, with_mask(problem_of(300, 40, 32), causal, br), F32 | FWD | BWD);
    p = with_mask(problem_of(8, 4, 16), window, tl); /* rows 4 .. 7 see nothing */
    p.batch = 2;
    add(m, p, ALL);
    p = with_mask(problem_of(1, 77, 24), causal, tl); /* a decoding query */
    add(m, p, ALL);
    add(m, with_mask(p, causal, br), ALL);
    p = with_mask(problem_of(200, 200, 32), window, tl);
    p.left = 0;
    p.right = 3;
    add(m, p, F32 | FWD | BWD);
    add(m, with_mask(problem_of(20, 150, 32), causal, tl), F32 | FWD | BWD); /* keys 20 .. are kept by none */
}

static void add_fills(maker *m)
{
    for (int fill = FILL_SPIKY; fill <= FILL_ONES; fill++) {
        const bool high = fill == FILL_HIGH; /* rounding lse (1e11) alone makes gradients meaningless */
        const unsigned which = high ? F32 | F64 | FWD : ALL;
        add(m, with_fill(problem_of(40, 150, 32), (fill_kind)fill), m->level == LIST_QUICK ? which & ~(unsigned)F64 : which);
        if (m->level == LIST_QUICK)
            continue;
        problem p = with_mask(problem_of(133, 300, 64), FATTN_MASK_CAUSAL, FATTN_ALIGN_BOTTOM_RIGHT);
        p.heads_q = p.group = 2;
        add(m, with_fill(p, (fill_kind)fill), which);
        add(m, with_fill(problem_of(1, 1, 80), (fill_kind)fill), which & ~(unsigned)F64);
        add(m, with_fill(with_mask(problem_of(260, 260, 48), FATTN_MASK_CAUSAL, 0), (fill_kind)fill), which & ~(unsigned)F64);
    }
    /* a running maximum that stays at 0 from a masked first tile */
    add(m, with_fill(with_mask(problem_of(88, 448, 32), FATTN_MASK_CAUSAL, FATTN_ALIGN_BOTTOM_RIGHT), FILL_LOW),
        F32 | FWD | BWD);
    /* padding keys in backward: seq_k % 128 = 64, far below 0 */
    add(m, with_fill(problem_of(50, 192, 32), FILL_LOW), F32 | FWD | BWD);
    add(m, with_fill(problem_of(50, 192, 32), FILL_LARGE), ALL);
}

static void add_not_finite(maker *m)
{
    const fattn_mask causal = FATTN_MASK_CAUSAL;
    add(m, with_fill(problem_of(1, 2, 1), FILL_MINUS_INF_KEY), ALL); /* dS is 0 twice, and dq NaN all the same */
    for (int i = 0; i < (m->level == LIST_QUICK ? 1 : 3); i++) {
        static const int lengths[][2] = {{30, 45}, {150, 200}, {5, 3}};
        const int64_t q = lengths[i][0], k = lengths[i][1];
        add(m, with_fill(problem_of(q, k, 24), FILL_NAN_Q), i == 0 ? ALL : F32 | FWD | BWD);
        add(m, with_fill(with_mask(problem_of(q, k, 24), causal, 0), FILL_NAN_Q), F32 | FWD);
        add(m, with_fill(problem_of(q, k, 24), FILL_NAN_V), F32 | F64 | FWD);
        add(m, with_fill(problem_of(q, k, 24), FILL_INF_Q), F32 | F64 | FWD);
        add(m, with_fill(problem_of(q, k, 24), FILL_INF_K), F32 | F64 | FWD);
        add(m, with_fill(problem_of(q, k, 24), FILL_MINUS_INF), i == 0 ? ALL : F32 | FWD | BWD);
        add(m, with_fill(with_mask(problem_of(q, k + q, 24), causal, 0), FILL_NAN_UNUSED), ALL);
        problem p = with_mask(problem_of(k, k, 24), causal, 0); /* the last row alone keeps the NaN */
        add(m, with_fill(p, FILL_NAN_V), F32 | F64 | FWD);
        add(m, with_fill(problem_of(q, k, 24), FILL_MINUS_INF_KEY), ALL);
        add(m, with_fill(with_mask(problem_of(q, k, 24), causal, 0), FILL_MINUS_INF_KEY), ALL);
        p = with_mask(problem_of(q, k + 60, 24), FATTN_MASK_WINDOW, FATTN_ALIGN_BOTTOM_RIGHT);
        p.left = 9;
        add(m, with_fill(p, FILL_NAN_UNUSED), ALL);
    }
}

static void add_scales(maker *m)
{
    static const double scales[] = {-1, -1e4, 1e-30, 3, 0.02, -0.125};
    for (int i = 0; i < (m->level == LIST_QUICK ? 2 : COUNT(scales)); i++) {
        problem p = with_mask(problem_of(70, 90, 32), i % 2 ? FATTN_MASK_CAUSAL : FATTN_MASK_FULL, 0);
        p.scale = scales[i];
        add(m, p, ALL);
    }
}

static void add_layouts(maker *m)
{
    for (int layout = 0; layout < LAYOUT_FAR; layout++) {
        problem p = problem_of(37, layout == LAYOUT_PACKED ? 37 : 53, m->level == LIST_QUICK ? 17 : 33);
        p.layout = (layout_kind)layout;
        p.batch = 2;
        p.heads_q = 4;
        p.group = 2;
        p.mask = layout % 2 ? FATTN_MASK_CAUSAL : FATTN_MASK_FULL;
        add(m, p, m->level == LIST_QUICK ? F32 | FWD | BWD : ALL);
        if (m->level == LIST_QUICK)
            continue;
        p.dim = p.dim_v = 64;
        add(m, p, F32 | FWD | BWD);
        p.seq_q = p.seq_k = 1;
        add(m, p, F32 | FWD | BWD);
    }
    problem p = problem_of(6, 10, 24);
    p.layout = LAYOUT_FAR;
    p.batch = 3;
    add(m, p, m->level == LIST_QUICK ? F32 | FWD : F32 | FWD | BWD);
}

/* Many tiny problems at once, and a few large ones. */
static void add_sizes(maker *m)
{
    if (m->level == LIST_QUICK)
        return;
    problem p = problem_of(1, 1, 4);
    p.batch = 65536; /* grid limits */
    add(m, p, F32 | FWD | BWD);
    p = problem_of(1, 1, 128);
    p.batch = 1038;
    p.heads_q = 16;
    add(m, p, F32 | FWD);
    p = problem_of(33, 33, 16); /* threads */
    p.heads_q = 3;
    add(m, with_mask(p, FATTN_MASK_CAUSAL, 0), ALL);
    add(m, problem_of(1, 2500, 64), F32 | F64 | FWD);
    add(m, with_mask(problem_of(1030, 1030, 16), FATTN_MASK_CAUSAL, 0), F32 | FWD);
    if (m->level != LIST_FULL)
        return;
    static const int lengths[][3] = {{1030, 1030, 64}, {513, 2050, 32}, {2050, 100, 32}, {700, 700, 128}, {385, 1153, 96}};
    for (int i = 0; i < COUNT(lengths); i++) {
        p = problem_of(lengths[i][0], lengths[i][1], lengths[i][2]);
        add(m, p, F32 | FWD | BWD);
        add(m, with_mask(p, FATTN_MASK_CAUSAL, FATTN_ALIGN_BOTTOM_RIGHT), F32 | FWD | BWD);
    }
    p = with_mask(problem_of(1200, 1200, 32), FATTN_MASK_WINDOW, 0);
    p.left = 200;
    add(m, p, F32 | FWD | BWD);
}

/* ------------------------------------------------------------------------------------------------------------- random */

static problem draw(maker *m)
{
    random_state *r = &m->random;
    const int64_t longest = random_below(r, 6) == 0 ? 300 : 80;
    problem p = problem_of(random_below(r, longest + 1), random_below(r, longest + 1), 1 + random_below(r, 100));
    if (random_below(r, 3) == 0)
        p.seq_k = p.seq_q;
    if (random_below(r, 3) == 0)
        p.dim_v = 1 + random_below(r, 100);
    if (random_below(r, 3) == 0)
        p.dim = p.dim_v = 16 * (1 + random_below(r, 8));
    p = vary(m, p);
    p.batch = 1 + random_below(r, 2);
    if (p.mask == FATTN_MASK_WINDOW && random_below(r, 2) == 0) {
        p.left = random_below(r, longest) - 1;
        p.right = random_below(r, longest) - 1;
    }
    if (random_below(r, 8) == 0)
        p.scale = random_normal(r);
    return p;
}

static void add_random(maker *m)
{
    const int count = m->level == LIST_FULL ? 900 : m->level == LIST_DEFAULT ? 120 : 10;
    m->random = random_start(m->seed, 1000);
    for (int i = 0; i < count; i++)
        add(m, draw(m), (i % 4 == 3 ? F64 : F32) | (i % 2 ? FWD : BWD));
}

/* -------------------------------------------------------------------------------------------------------------- lists */

/* Removes what was added twice, keeping the order of the rest. */
static void remove_twins(problem_list *list)
{
    int kept = 0;
    for (int i = 0; i < list->count; i++) {
        bool twin = false;
        for (int j = 0; j < kept && !twin; j++)
            twin = memcmp(&list->item[i], &list->item[j], sizeof(problem)) == 0;
        if (!twin)
            list->item[kept++] = list->item[i];
    }
    list->count = kept;
}

problem_list problem_list_make(list_level level, uint64_t seed)
{
    maker m = {.level = level, .seed = seed, .random = random_start(1, 999), .ok = true};
    add_empty(&m);
    add_layouts(&m);
    add_fills(&m);
    add_not_finite(&m);
    add_scales(&m);
    sweep_dims(&m);
    sweep_dim_v(&m);
    sweep_lengths(&m);
    sweep_edges(&m);
    sweep_heads(&m);
    sweep_windows(&m);
    add_sizes(&m);
    add_random(&m);
    if (!m.ok)
        problem_list_free(&m.list);
    else
        remove_twins(&m.list);
    return m.list;
}

void problem_list_free(problem_list *list)
{
    free(list->item);
    *list = (problem_list){0};
}

void problem_list_filter(problem_list *list, const char *pattern)
{
    const bool glob = strpbrk(pattern, "*?") != NULL;
    int kept = 0;
    for (int i = 0; i < list->count; i++) {
        char name[PROBLEM_NAME_SIZE];
        problem_print(&list->item[i], name);
        if (glob ? fnmatch(pattern, name, 0) == 0 : strstr(name, pattern) != NULL)
            list->item[kept++] = list->item[i];
    }
    list->count = kept;
}
