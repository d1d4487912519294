/* See faults.h. Where things lie in memory. */
#include "faults.h"

#include <stdlib.h>
#include <string.h>

void every_head_of_a_group_is_written(void **state)
{
    static const int64_t keys[] = {1, 16, 40, 65};
    (void)state;
    for (int n = 0; n < COUNT(keys); n++)
        for (int64_t rows = 1; rows <= 3; rows++)
            for (int64_t heads_kv = 1; heads_kv <= 8; heads_kv *= 2) {
                check(sizes(2, 8, heads_kv, rows, keys[n]), (form){.what = "group"});
                check(featured(sizes(2, 8, heads_kv, rows, keys[n])), (form){.what = "group, all features", .packed = true});
            }
}

void grouped_heads_order(void **state)
{
    static const int64_t heads[][2] = {{48, 2}, {48, 3}, {48, 48}, {48, 1}, {6, 3}, {15, 5}};
    (void)state;
    for (int n = 0; n < COUNT(heads); n++)
        for (int64_t rows = 1; rows <= 17; rows += 16)
            check(sizes(1, heads[n][0], heads[n][1], rows, 5), (form){.what = "group"});
}

void strides_honoured(void **state)
{
    static const int64_t dims[] = {64, 5, 16, 33};
    (void)state;
    for (int n = 0; n < COUNT(dims); n++)
        for (layout l = 0; l <= LAYOUT_QKV; l++)
            for (int features = 0; features < 2; features++) {
                fattn_desc d = sizes(2, 4, 2, 19, 19);
                d = features ? featured(d) : d;
                d.dim = d.dim_v = dims[n];
                check(d, (form){.what = "strides", .layout = l});
                check(d, (form){.what = "strides, packed", .layout = l, .packed = true});
            }
}

/* All sequences and heads read one and the same q, k, v and dout. */
static void run_broadcast(placed *p, fattn_op op, const truth *t, const char *kernel, const char *label, void *arg)
{
    static const int slots[] = {SLOT_Q, SLOT_K, SLOT_V, SLOT_DOUT};
    (void)arg;
    for (int n = 0; n < COUNT(slots); n++)
        p->t[slots[n]].view.stride_batch = p->t[slots[n]].view.stride_head = 0;
    (op == FATTN_OP_FORWARD ? placed_forward : placed_backward)(p, context_of(kernel, 2));
    placed_compare(p, op, t, label);
}

static void repeat(double *x, int64_t count, int64_t period)
{
    for (int64_t i = period; i < count; i++)
        x[i] = x[i - period];
}

void broadcast_strides_honoured(void **state)
{
    static const int64_t rows[] = {1, 19, 70};
    (void)state;
    for (int n = 0; n < COUNT(rows); n++) {
        const fattn_desc d = masked(sizes(2, 4, 2, rows[n], 70), FATTN_MASK_CAUSAL, FATTN_ALIGN_BOTTOM_RIGHT);
        scene s = scene_make(&d, 1);
        repeat(s.q, 8 * rows[n] * 8, rows[n] * 8);
        repeat(s.dout, 8 * rows[n] * 8, rows[n] * 8);
        repeat(s.k, 4 * 70 * 8, 70 * 8);
        repeat(s.v, 4 * 70 * 8, 70 * 8);
        for_each_kernel(&s, &(form){.what = "strides of 0"}, run_broadcast, NULL);
        scene_free(&s);
    }
}

void offsets_of_64_bits(void **state)
{
    (void)state;
    for (int sparse = 0; sparse < 3; sparse++)
        for (int64_t rows = 3; rows <= 6; rows += 3) {
            fattn_desc d = sizes(3, 3, 3, rows, 6);
            d.flags = FATTN_WITH_BIAS | FATTN_WITH_DBIAS;
            check(d, (form){.what = "strides of 2^30", .layout = LAYOUT_SPARSE, .sparse = sparse});
        }
    check(sizes(3, 6, 3, 1, 6), (form){.what = "strides of 2^30, one row", .layout = LAYOUT_SPARSE});
}

/* ------------------------------------------------------------------------------------------------------- many sequences */

enum { SHORT_BATCH = 8300, SHORT_HEADS = 16, SHORT_DIM = 128, PERIOD = 10007 };

/* Small numbers whose pattern repeats nowhere near the strides: multiples of 1/8, of either sign. */
static unsigned char *pattern(int64_t count, int32_t dtype, int seed)
{
    const int64_t size = (int64_t)number_size(dtype);
    unsigned char *x = allocate(count, (size_t)size);
    uint64_t state = (uint64_t)seed;
    for (int64_t i = 0; i < PERIOD && i < count; i++)
        number_set(x, dtype, i, (double)(int)(random_next(&state) * 8) / 8);
    for (int64_t i = PERIOD; i < count; i += PERIOD)
        memcpy(x + i * size, x, (size_t)((i + PERIOD < count ? PERIOD : count - i) * size));
    return x;
}

typedef struct calls {
    fattn_desc desc;
    unsigned char *q, *v, *dout, *out, *dv, *dq;
    float *lse;
} calls;

/* With one key a row's value is its result. */
static void many_forward(calls *c, const char *kernel)
{
    const fattn_context *context = context_of(kernel, 2);
    const int64_t count = (int64_t)SHORT_BATCH * SHORT_HEADS * SHORT_DIM;
    fattn_forward_args args = {.struct_size = sizeof args,
                               .q = fattn_view_bhsd(c->q, SHORT_HEADS, 1, SHORT_DIM),
                               .k = fattn_view_bhsd(c->q, SHORT_HEADS, 1, SHORT_DIM),
                               .v = fattn_view_bhsd(c->v, SHORT_HEADS, 1, SHORT_DIM),
                               .out = fattn_view_bhsd(c->out, SHORT_HEADS, 1, SHORT_DIM),
                               .lse = c->lse};
    assert_int_equal(fattn_workspace_size(context, &c->desc, FATTN_OP_FORWARD, &args.workspace_size), FATTN_OK);
    args.workspace = malloc(args.workspace_size + 1);
    memset(c->out, 0xff, (size_t)count * 2);
    if (fattn_forward(context, &c->desc, &args) != FATTN_OK)
        fail_msg("%s: %s", kernel, fattn_last_error());
    free(args.workspace);
    for (int64_t x = 0; x < count; x++)
        if (number_get(c->out, c->desc.dtype, x) != number_get(c->v, c->desc.dtype, x))
            fail_msg("%s: out[%lld] is not v's element", kernel, (long long)x);
}

static void many_backward(calls *c, const char *kernel)
{
    const fattn_context *context = context_of(kernel, 2);
    const int64_t count = (int64_t)SHORT_BATCH * SHORT_HEADS * SHORT_DIM;
    fattn_backward_args args = {.struct_size = sizeof args,
                                .q = fattn_view_bhsd(c->q, SHORT_HEADS, 1, SHORT_DIM),
                                .k = fattn_view_bhsd(c->q, SHORT_HEADS, 1, SHORT_DIM),
                                .v = fattn_view_bhsd(c->v, SHORT_HEADS, 1, SHORT_DIM),
                                .out = fattn_view_bhsd(c->v, SHORT_HEADS, 1, SHORT_DIM),
                                .dout = fattn_view_bhsd(c->dout, SHORT_HEADS, 1, SHORT_DIM),
                                .dq = fattn_view_bhsd(c->dq, SHORT_HEADS, 1, SHORT_DIM),
                                .dk = fattn_view_bhsd(c->out, SHORT_HEADS, 1, SHORT_DIM),
                                .dv = fattn_view_bhsd(c->dv, SHORT_HEADS, 1, SHORT_DIM),
                                .lse = c->lse};
    assert_int_equal(fattn_workspace_size(context, &c->desc, FATTN_OP_BACKWARD, &args.workspace_size), FATTN_OK);
    args.workspace = malloc(args.workspace_size + 1);
    unsigned char *const outputs[] = {c->dq, c->out, c->dv};
    for (int n = 0; n < 3; n++)
        memset(outputs[n], 0xff, (size_t)count * 2);
    if (fattn_backward(context, &c->desc, &args) != FATTN_OK)
        fail_msg("%s: %s", kernel, fattn_last_error());
    free(args.workspace);
    for (int64_t x = 0; x < count; x++)
        if (!number_near(number_get(c->dv, c->desc.dtype, x), number_get(c->dout, c->desc.dtype, x), 1e-4, c->desc.dtype) ||
            !number_near(number_get(c->dq, c->desc.dtype, x), 0, 1e-3, c->desc.dtype) ||
            !number_near(number_get(c->out, c->desc.dtype, x), 0, 1e-3, c->desc.dtype))
            fail_msg("%s: dv[%lld] is not dout's element, or dq or dk not 0", kernel, (long long)x);
}

/* 8300 sequences of one row, with 16 heads of 128. In one type of 16 bits, as they were met: 17 million elements a tensor. */
void many_short_sequences(void **state)
{
    const int64_t rows = (int64_t)SHORT_BATCH * SHORT_HEADS, count = rows * SHORT_DIM;
    const char *name[NAMES_MOST];
    calls c = {.desc = sizes(SHORT_BATCH, SHORT_HEADS, SHORT_HEADS, 1, 1)};
    (void)state;
    c.desc.dtype = FATTN_BF16;
    c.desc.dim = c.desc.dim_v = SHORT_DIM;
    unsigned char **const inputs[] = {&c.q, &c.v, &c.dout}, **const outputs[] = {&c.out, &c.dq, &c.dv};
    for (int n = 0; n < 3; n++) {
        *inputs[n] = pattern(count, FATTN_BF16, n + 1);
        *outputs[n] = allocate(count, 2);
    }
    c.lse = allocate(rows, sizeof *c.lse);
    const int forward = kernels_of(&c.desc, FATTN_OP_FORWARD, name);
    for (int n = 0; n < forward; n++)
        many_forward(&c, name[n]);
    const int backward = kernels_of(&c.desc, FATTN_OP_BACKWARD, name);
    for (int n = 0; n < backward; n++)
        many_backward(&c, name[n]);
    for (int n = 0; n < 3; n++) {
        free(*inputs[n]);
        free(*outputs[n]);
    }
    free(c.lse);
}

/* More than 65535 of each thing that could be counted in 16 bits. */
void grid_limit(void **state)
{
    fattn_desc all[] = {sizes(65536, 1, 1, 1, 1), sizes(1, 65537, 1, 1, 2), sizes(1, 65537, 65537, 1, 1),
                        sizes(1, 1, 1, 65537, 2), sizes(1, 1, 1, 2, 65537)};
    (void)state;
    for (int n = 0; n < COUNT(all); n++) {
        all[n].dim = all[n].dim_v = 4;
        check(all[n], (form){.what = "65536 and more"});
    }
    check(all[0], (form){.what = "65536 and more", .packed = true});
}

void rows_outside_sequences_untouched(void **state)
{
    (void)state;
    for (int mask = FATTN_MASK_FULL; mask <= FATTN_MASK_INTERVALS; mask++)
        for (int features = 0; features < 2; features++) {
            fattn_desc d = features ? featured(sizes(3, 4, 2, 37, 41)) : sizes(3, 4, 2, 37, 41);
            d.mask = mask;
            d.mask_size = mask == FATTN_MASK_CHUNKED || mask == FATTN_MASK_PREFIX ? 7 : 0;
            if (mask != FATTN_MASK_WINDOW && mask != FATTN_MASK_DOCUMENT)
                d.window_left = d.window_right = 0;
            scene s = scene_make(&d, 1);
            scene_length(&s, 0, 17, 40);
            scene_length(&s, 1, 0, 3);
            scene_length(&s, 2, 33, 16);
            for (layout l = 0; l < LAYOUT_QKV; l++) {
                check_scene(&s, &(form){.what = "used lengths", .layout = l});
                check_scene(&s, &(form){.what = "gaps between sequences", .layout = l, .packed = true, .gap = 3});
            }
            scene_free(&s);
        }
}
