/* See faults.h. Rows and sequences with nothing in them, alignment, windows. */
#include "faults.h"

#include <math.h>
#include <stdlib.h>

/* Intervals in which the second half of the rows, of sequences from `from` on, keeps no key, each in one of four ways. */
static void empty_half(scene *s, int64_t from)
{
    const int64_t n = s->desc.seq_q, keys = s->desc.seq_k;
    const int64_t lo[] = {0, 5, keys + 3, -5}, hi[] = {0, 3, keys + 9, 0};
    for (int64_t b = from; b < s->desc.batch; b++)
        for (int64_t i = n / 2; i < n; i++) {
            s->lo[b * n + i] = (int32_t)lo[i % 4];
            s->hi[b * n + i] = (int32_t)hi[i % 4];
        }
}

void fully_masked_row_gives_zeros(void **state)
{
    static const int64_t rows[] = {8, 16, 63, 64, 65};
    static const int32_t masks[] = {FATTN_MASK_CAUSAL, FATTN_MASK_WINDOW, FATTN_MASK_CHUNKED, FATTN_MASK_PREFIX};
    (void)state;
    for (int n = 0; n < COUNT(rows); n++)
        for (int sinks = 0; sinks < 2; sinks++) {
            fattn_desc d = masked(sizes(2, 2, 1, rows[n], rows[n]), FATTN_MASK_INTERVALS, FATTN_ALIGN_TOP_LEFT);
            d.flags = sinks ? FATTN_WITH_SINKS | FATTN_WITH_DSINKS : 0;
            scene s = scene_make(&d, 1);
            empty_half(&s, 0);
            check_scene(&s, &(form){.what = "second half of the rows empty"});
            scene_free(&s);
        }
    for (int n = 0; n < COUNT(masks); n++) {
        fattn_desc d = masked(sizes(1, 2, 1, 70, 9), masks[n], FATTN_ALIGN_BOTTOM_RIGHT);
        d.mask_size = masks[n] == FATTN_MASK_CHUNKED ? 4 : 0;
        check(d, (form){.what = "more rows than keys, bottom-right"});
        d.flags = FATTN_WITH_SINKS | FATTN_WITH_DSINKS | FATTN_WITH_DLSE;
        check(d, (form){.what = "more rows than keys, bottom-right, sinks"});
    }
}

/* Only the empty row's own results are zero: all else is what it is without the row. */
void empty_row_in_one_of_two_batches(void **state)
{
    (void)state;
    for (int64_t n = 8; n <= 72; n += 32) {
        const fattn_desc d = masked(sizes(2, 2, 1, n, n), FATTN_MASK_INTERVALS, FATTN_ALIGN_TOP_LEFT);
        scene s = scene_make(&d, 1);
        s.lo[n + 4] = s.hi[n + 4] = 3;
        check_scene(&s, &(form){.what = "one row empty"});
        for (int64_t h = 0; h < 2; h++) /* its gradient must not matter either */
            scene_row(&s, s.dout, 2, n, 8, 1, h, 4)[2] = (double)INFINITY;
        check_scene(&s, &(form){.what = "one row empty, with an infinite gradient"});
        scene_length(&s, 1, n, 0);
        check_scene(&s, &(form){.what = "one sequence without keys"});
        scene_free(&s);
    }
}

void finite_stand_in_for_minus_infinity(void **state)
{
    static const double keys[] = {-6, -24, -64}; /* scores of about -5000, -21000, -57000 */
    (void)state;
    for (int n = 0; n < COUNT(keys); n++)
        for (int mask = FATTN_MASK_FULL; mask <= FATTN_MASK_CAUSAL; mask++) {
            fattn_desc d = masked(sizes(1, 2, 1, 20, 70), mask, FATTN_ALIGN_TOP_LEFT);
            d.scale = 1;
            scene s = scene_make(&d, 1);
            shift_scores(&s, 128, keys[n]);
            if (mask == FATTN_MASK_CAUSAL) /* would show if a key that no row keeps came in */
                fill(s.v + 20 * d.dim_v, 50 * d.dim_v, 16384);
            check_scene(&s, &(form){.what = "scores far below 0"});
            scene_free(&s);
        }
    /* Scores of -3.5e31, beyond stand-ins of -1e30; all are equal, so rounding does not tell them apart. */
    fattn_desc d = masked(sizes(1, 2, 1, 20, 70), FATTN_MASK_CAUSAL, FATTN_ALIGN_TOP_LEFT);
    d.scale = 1;
    scene s = scene_make(&d, 1);
    fill(s.q, 2 * 20 * d.dim, 0x1p51);
    fill(s.k, 70 * d.dim, -0x1p51);
    check_scene(&s, &(form){.what = "scores of -4e31", .forward_only = true, .most_bound = 1e-4});
    scene_free(&s);
}

/* exp(score - 0) is 0 in float from scores of -280, in double from those of -1800. */
static void check_far_below(int64_t rows, int32_t mask, int32_t align, double query)
{
    fattn_desc d = masked(sizes(1, 2, 1, rows, 448), mask, align);
    d.window_left = mask == FATTN_MASK_WINDOW ? 20 : 0;
    d.scale = 1;
    scene s = scene_make(&d, 1);
    shift_scores(&s, query, -8);
    for (int64_t i = 0; mask == FATTN_MASK_INTERVALS && i < rows; i++)
        s.lo[i] = 300 + (int32_t)i;
    check_scene(&s, &(form){.what = "scores far below 0"});
    scene_free(&s);
}

void running_maximum_stuck_at_zero(void **state)
{
    (void)state;
    for (int64_t rows = 87; rows <= 89; rows++)
        for (double query = 5; query <= 32; query += 27) {
            check_far_below(rows, FATTN_MASK_CAUSAL, FATTN_ALIGN_TOP_LEFT, query);
            check_far_below(rows, FATTN_MASK_CAUSAL, FATTN_ALIGN_BOTTOM_RIGHT, query);
            check_far_below(rows, FATTN_MASK_WINDOW, FATTN_ALIGN_BOTTOM_RIGHT, query);
            check_far_below(rows, FATTN_MASK_INTERVALS, FATTN_ALIGN_TOP_LEFT, query);
        }
}

void empty_batch_queries_or_keys(void **state)
{
    (void)state;
    for (int mask = FATTN_MASK_FULL; mask <= FATTN_MASK_INTERVALS; mask++)
        for (int n = 0; n < 7; n++)
            for (int features = 0; features < 2; features++) {
                const fattn_desc base = sizes(n & 1 ? 0 : 2, 4, 2, n & 2 ? 0 : 5, n & 4 ? 0 : 7);
                fattn_desc d = features ? featured(base) : base;
                d.mask = mask;
                d.mask_size = mask == FATTN_MASK_CHUNKED || mask == FATTN_MASK_PREFIX ? 3 : 0;
                if (mask != FATTN_MASK_WINDOW && mask != FATTN_MASK_DOCUMENT)
                    d.window_left = d.window_right = 0;
                check(d, (form){.what = "nothing along a dimension"});
                check(d, (form){.what = "nothing along a dimension", .packed = true});
            }
}

static void check_lengths(fattn_desc d, const int64_t lengths[4][2], form how)
{
    scene s = scene_make(&d, 1);
    for (int64_t b = 0; b < 4; b++)
        scene_length(&s, b, lengths[b][0], lengths[b][1]);
    check_scene(&s, &how);
    scene_free(&s);
}

void empty_segment(void **state)
{
    static const int64_t met[4][2] = {{0, 0}, {1208, 1208}, {840, 840}, {0, 0}};
    static const int64_t near[4][4][2] = {{{0, 0}, {5, 5}, {0, 0}, {33, 33}},
                                          {{7, 7}, {0, 9}, {9, 0}, {1, 1}},
                                          {{0, 0}, {0, 0}, {0, 0}, {0, 0}},
                                          {{33, 33}, {0, 0}, {0, 0}, {17, 17}}};
    (void)state;
    fattn_desc d = masked(sizes(4, 1, 1, 1208, 1208), FATTN_MASK_CAUSAL, FATTN_ALIGN_TOP_LEFT);
    d.dim = d.dim_v = 4;
    check_lengths(d, met, (form){.what = "0, 1208, 840, 0", .packed = true});
    for (int n = 0; n < 4; n++)
        for (int mask = FATTN_MASK_FULL; mask <= FATTN_MASK_CAUSAL; mask++) {
            d = masked(sizes(4, 4, 2, 33, 33), mask, FATTN_ALIGN_BOTTOM_RIGHT);
            check_lengths(d, near[n], (form){.what = "some sequences empty", .packed = true});
            check_lengths(d, near[n], (form){.what = "some sequences empty", .packed = true, .gap = 3});
            check_lengths(d, near[n], (form){.what = "some sequences empty, padded"});
            check_lengths(featured(d), near[n], (form){.what = "some sequences empty, all features", .packed = true});
        }
}

/* fattn_mask_interval is the test's own formula. */
static void check_intervals(const scene *s)
{
    fattn_desc d = s->desc;
    d.dtype = FATTN_F32;
    for (int64_t i = 0; i < d.seq_q; i++) {
        int64_t lo, hi;
        assert_int_equal(fattn_mask_interval(&d, i, &lo, &hi), FATTN_OK);
        for (int64_t j = 0; j < d.seq_k; j++)
            assert_int_equal(lo <= j && j < hi, scene_keeps(s, 0, i, j));
    }
}

void decoding_query_sees_its_key(void **state)
{
    static const int64_t keys[] = {1, 2, 15, 16, 17, 33, 64, 65, 129, 257};
    static const int32_t masks[] = {FATTN_MASK_CAUSAL, FATTN_MASK_WINDOW, FATTN_MASK_CHUNKED, FATTN_MASK_PREFIX};
    (void)state;
    for (int n = 0; n < COUNT(keys) * COUNT(masks) * 2; n++)
        for (int64_t rows = 1; rows <= 3; rows++) {
            const int32_t mask = masks[n / 2 % COUNT(masks)];
            fattn_desc d = masked(sizes(1, 2, 1, rows, keys[n / 2 / COUNT(masks)]), mask, n % 2);
            d.window_left = mask == FATTN_MASK_WINDOW ? -1 : 0;
            d.mask_size = mask == FATTN_MASK_CHUNKED ? 16 : mask == FATTN_MASK_PREFIX ? 4 : 0;
            scene s = scene_make(&d, 1);
            check_intervals(&s);
            check_scene(&s, &(form){.what = n % 2 ? "decoding, bottom-right" : "decoding, top-left"});
            scene_free(&s);
        }
}

/* Windows of 2048 at both ends: the last key inside counts most, and the first one outside would count more. */
static void wide_window(int32_t mask)
{
    const int64_t keys = 2060;
    fattn_desc d = masked(sizes(1, 1, 1, 3, keys), mask, FATTN_ALIGN_BOTTOM_RIGHT);
    d.scale = 1;
    if (mask == FATTN_MASK_WINDOW)
        d.window_left = 2048;
    else
        d.mask_size = 2058; /* rows stand at keys 2057 .. 2059: the last of one chunk, and the first two of the next */
    scene s = scene_make(&d, 1);
    shift_scores(&s, 1, 0);
    for (int64_t j = 0; j < 16; j++)
        for (int64_t x = 0; x < d.dim; x++)
            s.k[j * d.dim + x] = (double)(16 - j) / 2;
    check_scene(&s, &(form){.what = "2048 keys back"});
    scene_free(&s);
}

void window_off_by_one(void **state)
{
    static const int64_t left[] = {-1, 0, 1, 15, 16, 17, 63, 64, 65}, right[] = {-1, 0, 1, 17};
    (void)state;
    for (int n = 0; n < COUNT(left) * COUNT(right) * 2; n++) {
        fattn_desc d = masked(sizes(1, 2, 1, 66, 71), FATTN_MASK_WINDOW, n % 2);
        d.window_left = left[n / 2 % COUNT(left)];
        d.window_right = right[n / 2 / COUNT(left)];
        scene s = scene_make(&d, 1);
        check_intervals(&s);
        check_scene(&s, &(form){.what = "window"});
        scene_free(&s);
    }
    wide_window(FATTN_MASK_WINDOW);
    wide_window(FATTN_MASK_CHUNKED);
}

static void run_both_masks(placed *p, fattn_op op, const truth *t, const char *kernel, const char *label, void *arg)
{
    const fattn_context *context = context_of(kernel, 2);
    void (*const run)(placed *, const fattn_context *) = op == FATTN_OP_FORWARD ? placed_forward : placed_backward;
    (void)t, (void)arg;
    run(p, context);
    snapshot causal = snapshot_of(p, op);
    p->desc.mask = FATTN_MASK_WINDOW;
    p->desc.window_left = -1;
    run(p, context);
    snapshot window = snapshot_of(p, op);
    p->desc.mask = FATTN_MASK_CAUSAL;
    p->desc.window_left = 0;
    if (!snapshot_same(&causal, &window))
        fail_msg("%s: causal and window (-1, 0) differ", label);
    free(causal.bytes);
    free(window.bytes);
}

static void same_bits(fattn_desc d, form how)
{
    scene s = scene_make(&d, 1);
    how.blank = true;
    for_each_kernel(&s, &how, run_both_masks, NULL);
    scene_free(&s);
}

void causal_equals_window_minus_one_zero(void **state)
{
    (void)state;
    for (int align = 0; align < 2; align++) {
        fattn_desc d = masked(sizes(1, 1, 1, 24, 16384), FATTN_MASK_CAUSAL, align);
        d.dim = d.dim_v = 4;
        same_bits(d, (form){.what = "24 rows, 16384 keys"});
        same_bits(masked(sizes(2, 4, 2, 67, 70), FATTN_MASK_CAUSAL, align), (form){.what = "67 rows, 70 keys"});
    }
    fattn_desc d = masked(sizes(1, 1, 1, 16384, 16384), FATTN_MASK_CAUSAL, FATTN_ALIGN_TOP_LEFT);
    d.dim = d.dim_v = 4;
    same_bits(d, (form){.what = "16384 rows and keys", .quick = true});
}
