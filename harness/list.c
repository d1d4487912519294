/*
 * The list of problems. Sweeps go through one size at a time (every head dimension, every short length, lengths around
 * the edges of tiles) while everything else is drawn from small sets; fixed problems put every fault that is known from
 * other systems where it shows; random ones look for what nobody thought of.
 *
 * Sizes are small: the truth is computed by plain loops, and what breaks, breaks at edges.
 */
#include "list.h"

#include <fnmatch.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    if (!problem_wrong(&p))
        list->item[list->count++] = p;
}

void list_add(maker *m, problem p, unsigned which)
{
    static const fattn_dtype types[] = {FATTN_F32, FATTN_F64, FATTN_F16, FATTN_BF16};
    for (int type = 0; type < 4; type++)
        for (int op = 0; op < 2; op++) {
            if (!(which & (F32 << type)) || !(which & (op ? BWD : FWD)))
                continue;
            p.dtype = types[type];
            p.op = op ? FATTN_OP_BACKWARD : FATTN_OP_FORWARD;
            add_one(m, p);
        }
}

void list_add_named(maker *m, const char *name, unsigned which)
{
    /* What goes with one operation or type only is read as a problem of that kind. */
    static const char *const kinds[] = {"", "backward/", "bf16/", "backward/bf16/"};
    char text[PROBLEM_NAME_SIZE], complaint[200];
    problem p;
    for (int i = 0; i < COUNT(kinds); i++) {
        snprintf(text, sizeof text, "%s%s", kinds[i], name);
        if (problem_parse(text, &p, complaint, sizeof complaint)) {
            list_add(m, p, which);
            return;
        }
    }
    fprintf(stderr, "harness: '%s': %s\n", name, complaint);
    abort();
}

int64_t list_pick(maker *m, const int *from, int count)
{
    return from[random_below(&m->random, count)];
}

void list_pick_mask(maker *m, problem *p)
{
    static const int sides[] = {-1, 0, 1, 5, 16, 31, 100}, sizes[] = {1, 2, 7, 16, 33, 64, 100};
    p->mask = (fattn_mask)random_below(&m->random, FATTN_MASK_INTERVALS + 1);
    if (random_below(&m->random, 3) == 0) /* the common ones more often */
        p->mask = (fattn_mask)random_below(&m->random, FATTN_MASK_CHUNKED);
    p->align = p->mask == FATTN_MASK_FULL ? FATTN_ALIGN_TOP_LEFT : (fattn_align)random_below(&m->random, 2);
    const bool window = p->mask == FATTN_MASK_WINDOW || (p->mask == FATTN_MASK_DOCUMENT && random_below(&m->random, 2) == 0);
    const bool sized = p->mask == FATTN_MASK_CHUNKED || p->mask == FATTN_MASK_PREFIX;
    p->left = window ? list_pick(m, sides, COUNT(sides)) : p->mask == FATTN_MASK_DOCUMENT ? -1 : 0;
    p->right = window ? list_pick(m, sides, COUNT(sides)) : p->mask == FATTN_MASK_DOCUMENT ? -1 : 0;
    p->mask_size = sized ? list_pick(m, sizes, COUNT(sizes)) : 0;
    p->mask_shared = p->mask == FATTN_MASK_INTERVALS && !p->packed_q.kind && random_below(&m->random, 3) == 0;
}

void list_pick_heads(maker *m, problem *p)
{
    static const int groups[] = {1, 1, 2, 3, 4};
    p->group = list_pick(m, groups, COUNT(groups));
    p->heads_q = p->group * (1 + random_below(&m->random, 2));
}

void list_pick_layout(maker *m, problem *p)
{
    p->layout = (layout_kind)random_below(&m->random, LAYOUT_FAR);
}

/* Draws what a sweep does not set itself. */
static problem vary(maker *m, problem p)
{
    list_pick_mask(m, &p);
    list_pick_heads(m, &p);
    list_pick_layout(m, &p);
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
        problem p = problem_of(list_pick(m, lengths, COUNT(lengths)), list_pick(m, lengths, COUNT(lengths)), d);
        list_add(m, vary(m, p), d % 3 == 0 ? ALL : F32 | BOTH);
    }
    static const int large[] = {512, 131, 160, 191, 192, 255, 256, 257, 320, 383, 384, 448, 511};
    for (int i = 0; i < (m->level == LIST_FULL ? COUNT(large) : m->level == LIST_DEFAULT ? 4 : 1); i++)
        list_add(m, vary(m, problem_of(19, 37, large[i])), m->level == LIST_QUICK ? F32 | BOTH : ALL);
}

static void sweep_dim_v(maker *m)
{
    static const int dims[][2] = {{64, 48}, {1, 33}, {33, 1}, {96, 128}, {192, 128}, {40, 72}, {64, 65}, {5, 7}, {128, 16}};
    const int count = m->level == LIST_QUICK ? 3 : COUNT(dims);
    for (int i = 0; i < count; i++) {
        problem p = vary(m, problem_of(35, 50, dims[i][0]));
        p.dim_v = dims[i][1];
        list_add(m, p, m->level == LIST_QUICK ? F32 | BOTH : ALL);
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
            list_add(m, vary(m, problem_of(q, k, list_pick(m, dims, COUNT(dims)))), n % 4 == 0 ? ALL : F32 | BOTH);
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
            list_add(m, p, i == 0 ? ALL : F32 | BOTH);
            if (m->level == LIST_QUICK)
                continue;
            p = problem_of(7 + i, edge, 64);
            list_pick_mask(m, &p);
            list_pick_layout(m, &p);
            list_add(m, p, F32 | FWD | (i % 2 ? BWD : F64));
            p = problem_of(edge, 5 + i, 32);
            list_pick_mask(m, &p);
            list_add(m, p, F32 | BWD | (i % 2 ? FWD : F64));
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
            list_pick_mask(m, &p);
            list_pick_layout(m, &p);
            p.batch = 1 + i % 3;
            p.heads_q = heads[i][0];
            p.group = heads[i][1];
            list_add(m, p, i % 3 == 1 ? ALL : F32 | BOTH);
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
                list_add(m, p, i % 4 == 0 && m->level != LIST_QUICK ? ALL : F32 | BOTH);
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
    list_add(m, p, ALL);
    list_add(m, problem_of(0, 5, 16), ALL);
    list_add(m, problem_of(9, 0, 16), ALL);
    list_add(m, problem_of(0, 0, 3), F32 | BOTH);
    list_add(m, with_mask(problem_of(9, 0, 16), causal, br), F32 | BOTH);
    list_add(m, with_mask(problem_of(8, 4, 16), causal, br), ALL); /* rows 0 .. 3 see nothing */
    list_add(m, with_mask(problem_of(300, 40, 32), causal, br), F32 | BOTH);
    p = with_mask(problem_of(8, 4, 16), window, tl); /* rows 4 .. 7 see nothing */
    p.batch = 2;
    list_add(m, p, ALL);
    p = with_mask(problem_of(1, 77, 24), causal, tl); /* a decoding query */
    list_add(m, p, ALL);
    list_add(m, with_mask(p, causal, br), ALL);
    p = with_mask(problem_of(200, 200, 32), window, tl);
    p.left = 0;
    p.right = 3;
    list_add(m, p, F32 | BOTH);
    list_add(m, with_mask(problem_of(20, 150, 32), causal, tl), F32 | BOTH); /* keys 20 .. are kept by none */
}

static void add_fills(maker *m)
{
    for (int fill = FILL_SPIKY; fill <= FILL_ONES; fill++) {
        list_add(m, with_fill(problem_of(40, 150, 32), (fill_kind)fill), m->level == LIST_QUICK ? F32 | BOTH : ALL);
        if (m->level == LIST_QUICK)
            continue;
        problem p = with_mask(problem_of(133, 300, 64), FATTN_MASK_CAUSAL, FATTN_ALIGN_BOTTOM_RIGHT);
        p.heads_q = p.group = 2;
        list_add(m, with_fill(p, (fill_kind)fill), ALL);
        list_add(m, with_fill(problem_of(1, 1, 80), (fill_kind)fill), F32 | NARROW | BOTH);
        list_add(m, with_fill(with_mask(problem_of(260, 260, 48), FATTN_MASK_CAUSAL, 0), (fill_kind)fill), F32 | NARROW | BOTH);
    }
    /* a running maximum that stays at 0 from a masked first tile */
    list_add(m, with_fill(with_mask(problem_of(88, 448, 32), FATTN_MASK_CAUSAL, FATTN_ALIGN_BOTTOM_RIGHT), FILL_LOW),
             F32 | BOTH);
    /* padding keys in backward: seq_k % 128 = 64, far below 0 */
    list_add(m, with_fill(problem_of(50, 192, 32), FILL_LOW), F32 | BOTH);
    list_add(m, with_fill(problem_of(50, 192, 32), FILL_LARGE), ALL);
}

/* Numbers of sizes that one exponent for many of them does not suit. */
static void add_magnitudes(maker *m)
{
    for (int fill = FILL_APART; fill <= FILL_TINY; fill++)
        for (int i = 0; i < (m->level == LIST_QUICK ? 1 : 3); i++) {
            static const int shapes[][3] = {{70, 90, 32}, {150, 200, 64}, {40, 50, 128}};
            problem p = problem_of(shapes[i][0], shapes[i][1], shapes[i][2]);
            if (fill == FILL_TINY) /* scores about 10 */
                p.scale = 0x1p125 / (double)p.dim;
            list_add(m, with_fill(p, (fill_kind)fill), F32 | F64 | BOTH);
            list_add(m, with_fill(with_mask(p, FATTN_MASK_CAUSAL, 0), (fill_kind)fill), F32 | F64 | BOTH);
            p.softcap = 20;
            p.dropout = 0.3;
            list_add(m, with_fill(p, (fill_kind)fill), F32 | F64 | BOTH);
        }
}

static void add_not_finite(maker *m)
{
    const fattn_mask causal = FATTN_MASK_CAUSAL;
    list_add(m, with_fill(problem_of(1, 2, 1), FILL_MINUS_INF_KEY), ALL); /* dS is 0 twice, and dq NaN all the same */
    for (int i = 0; i < (m->level == LIST_QUICK ? 1 : 3); i++) {
        static const int lengths[][2] = {{30, 45}, {150, 200}, {5, 3}};
        const int64_t q = lengths[i][0], k = lengths[i][1];
        list_add(m, with_fill(problem_of(q, k, 24), FILL_NAN_Q), i == 0 ? ALL : F32 | BOTH);
        list_add(m, with_fill(with_mask(problem_of(q, k, 24), causal, 0), FILL_NAN_Q), i == 0 ? ALL : F32 | BOTH);
        list_add(m, with_fill(problem_of(q, k, 24), FILL_NAN_V), F32 | F64 | NARROW | FWD);
        list_add(m, with_fill(problem_of(q, k, 24), FILL_INF_Q), F32 | F64 | NARROW | FWD);
        list_add(m, with_fill(problem_of(q, k, 24), FILL_INF_K), F32 | F64 | NARROW | FWD);
        list_add(m, with_fill(problem_of(q, k, 24), FILL_MINUS_INF), i == 0 ? ALL : F32 | BOTH);
        list_add(m, with_fill(with_mask(problem_of(q, k + q, 24), causal, 0), FILL_NAN_UNUSED), ALL);
        problem p = with_mask(problem_of(k, k, 24), causal, 0); /* the last row alone keeps the NaN */
        list_add(m, with_fill(p, FILL_NAN_V), F32 | F64 | NARROW | FWD);
        list_add(m, with_fill(problem_of(q, k, 24), FILL_MINUS_INF_KEY), ALL);
        list_add(m, with_fill(with_mask(problem_of(q, k, 24), causal, 0), FILL_MINUS_INF_KEY), ALL);
        p = with_mask(problem_of(q, k + 60, 24), FATTN_MASK_WINDOW, FATTN_ALIGN_BOTTOM_RIGHT);
        p.left = 9;
        list_add(m, with_fill(p, FILL_NAN_UNUSED), ALL);
    }
}

static void add_scales(maker *m)
{
    static const double scales[] = {-1, -1e4, 1e-30, 3, 0.02, -0.125};
    for (int i = 0; i < (m->level == LIST_QUICK ? 2 : COUNT(scales)); i++) {
        problem p = with_mask(problem_of(70, 90, 32), i % 2 ? FATTN_MASK_CAUSAL : FATTN_MASK_FULL, 0);
        p.scale = scales[i];
        list_add(m, p, ALL);
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
        list_add(m, p, m->level == LIST_QUICK ? F32 | BOTH : ALL);
        if (m->level == LIST_QUICK)
            continue;
        p.dim = p.dim_v = 64;
        list_add(m, p, F32 | BOTH);
        p.seq_q = p.seq_k = 1;
        list_add(m, p, F32 | BOTH);
    }
    problem p = problem_of(6, 10, 24);
    p.layout = LAYOUT_FAR;
    p.batch = 3;
    list_add(m, p, m->level == LIST_QUICK ? F32 | FWD : F32 | BOTH);
}

/* Many tiny problems at once, and a few large ones. */
static void add_sizes(maker *m)
{
    if (m->level == LIST_QUICK)
        return;
    problem p = problem_of(1, 1, 4);
    p.batch = 65536; /* grid limits */
    list_add(m, p, F32 | BOTH);
    p = problem_of(1, 1, 128);
    p.batch = 1038;
    p.heads_q = 16;
    list_add(m, p, F32 | FWD);
    p = problem_of(33, 33, 16); /* threads */
    p.heads_q = 3;
    list_add(m, with_mask(p, FATTN_MASK_CAUSAL, 0), ALL);
    list_add(m, problem_of(1, 2500, 64), ALL & ~BWD);
    list_add(m, with_mask(problem_of(1030, 1030, 16), FATTN_MASK_CAUSAL, 0), F32 | FWD);
    if (m->level != LIST_FULL)
        return;
    static const int lengths[][3] = {{1030, 1030, 64}, {513, 2050, 32}, {2050, 100, 32}, {700, 700, 128}, {385, 1153, 96}};
    for (int i = 0; i < COUNT(lengths); i++) {
        p = problem_of(lengths[i][0], lengths[i][1], lengths[i][2]);
        list_add(m, p, F32 | BOTH);
        list_add(m, with_mask(p, FATTN_MASK_CAUSAL, FATTN_ALIGN_BOTTOM_RIGHT), F32 | BOTH);
    }
    p = with_mask(problem_of(1200, 1200, 32), FATTN_MASK_WINDOW, 0);
    p.left = 200;
    list_add(m, p, F32 | BOTH);
}

/* -------------------------------------------------------------------------------------------------------------- lists */

/* FNV-1a. */
static uint64_t hash_of(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

/* Removes what was added twice, keeping the order of the rest: names with the same hash are the same. */
static bool remove_twins(problem_list *list)
{
    size_t size = 1;
    while (size < 3 * (size_t)list->count)
        size *= 2;
    uint64_t *seen = calloc(size, sizeof *seen); /* 0: free */
    int kept = 0;
    for (int i = 0; seen && i < list->count; i++) {
        char name[PROBLEM_NAME_SIZE];
        problem_print(&list->item[i], name);
        const uint64_t hash = hash_of(name) | 1;
        size_t at = hash >> 1 & (size - 1);
        while (seen[at] && seen[at] != hash)
            at = (at + 1) & (size - 1);
        if (!seen[at])
            list->item[kept++] = list->item[i];
        seen[at] = hash;
    }
    const bool ok = seen != NULL;
    list->count = kept;
    free(seen);
    return ok;
}

problem_list problem_list_make(list_level level, uint64_t seed)
{
    maker m = {.level = level, .seed = seed, .random = random_start(1, 999), .ok = true};
    add_empty(&m);
    add_layouts(&m);
    add_fills(&m);
    add_magnitudes(&m);
    add_not_finite(&m);
    add_scales(&m);
    sweep_dims(&m);
    sweep_dim_v(&m);
    sweep_lengths(&m);
    sweep_edges(&m);
    sweep_heads(&m);
    sweep_windows(&m);
    add_sizes(&m);
    list_add_features(&m);
    list_add_random(&m);
    if (!m.ok || !remove_twins(&m.list))
        problem_list_free(&m.list);
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
