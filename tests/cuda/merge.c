/*
 * fattn_merge and its gradient on a GPU against the CPU's: types, sizes, layouts, packed rows, parts that are empty, infinite
 * or NaN, results in the place of a part, and more parts than a launch takes.
 */
#include "arena.h"

enum { PARTS_MOST = 130, JOINED_MOST = 96, PAD = 3, SPECIAL_ROWS = 6 };

typedef struct shape {
    int64_t batch, heads, seq, dim;
    bool packed;
} shape;

/* A tensor [batch, heads, seq, dim], or [heads, batch * seq, dim] where rows are packed. */
typedef struct tensor {
    fattn_view view;
    int64_t count; /* elements of its memory, gaps too */
    int32_t dtype;
} tensor;

typedef struct merging {
    shape shape;
    fattn_desc desc;
    int32_t count, type; /* of partials */
    tensor out, dout, outs[PARTS_MOST], douts[PARTS_MOST];
    void *lse, *dlse, *lses[PARTS_MOST], *dlses[PARTS_MOST];
} merging;

static int64_t rows_of(const merging *m)
{
    return m->shape.batch * m->shape.heads * m->shape.seq;
}

/* layout: 0 [batch, heads, seq, dim], 1 [batch, seq, heads, dim], 2 with room behind each row, 3 (inputs) one row for all. */
static tensor make_tensor(const shape *s, int32_t dtype, int layout, uint64_t seed)
{
    const int64_t batch = s->packed ? 1 : s->batch, seq = s->packed ? s->batch * s->seq : s->seq, row = s->dim + PAD;
    const int64_t count = batch * s->heads * seq * row;
    void *data = take_numbers(dtype, count, seed, 2);
    fattn_view view = layout == 1 ? fattn_view_bshd(data, s->heads, seq, s->dim) : fattn_view_bhsd(data, s->heads, seq, s->dim);
    if (layout == 2)
        view = fattn_view_bhsd(data, s->heads, seq, row);
    if (layout == 3)
        view.stride_row = 0;
    if (s->packed)
        view.stride_batch = -12345; /* means nothing */
    return (tensor){view, count, dtype};
}

static void make(merging *m, int32_t dtype, int32_t out_dtype, int32_t count, shape s)
{
    const int32_t wide = out_dtype ? out_dtype : dtype;
    arena_clear();
    *m = (merging){.shape = s, .count = count, .type = dtype == FATTN_F64 ? FATTN_F64 : FATTN_F32};
    m->desc = (fattn_desc){.struct_size = sizeof m->desc,
                           .dtype = dtype,
                           .out_dtype = out_dtype,
                           .batch = s.batch,
                           .heads_q = s.heads,
                           .heads_kv = 1,
                           .seq_q = s.seq,
                           .dim = 4,
                           .dim_v = s.dim,
                           .total_q = s.packed ? s.batch * s.seq : 0};
    m->out = make_tensor(&s, wide, 1, 0);
    m->dout = make_tensor(&s, wide, 2, 900);
    m->lse = take_numbers(m->type, rows_of(m), 0, 0);
    m->dlse = take_numbers(m->type, rows_of(m), 901, 1);
    for (int32_t p = 0; p < count; p++) {
        m->outs[p] = make_tensor(&s, m->type, p % 4, 1000 + (uint64_t)p);
        m->douts[p] = make_tensor(&s, m->type, (p + 1) % 3, 0);
        m->lses[p] = take_numbers(m->type, rows_of(m), 2000 + (uint64_t)p, 3);
        m->dlses[p] = take_numbers(m->type, rows_of(m), 0, 0);
    }
}

/* Rows of special values, among the first: without keys, with those of one part, and with infinite and NaN parts. */
static void make_special(merging *m)
{
    if (rows_of(m) < SPECIAL_ROWS)
        return;
    for (int32_t p = 0; p < m->count; p++) {
        set(m->lses[p], m->type, 0, -(double)INFINITY);
        if (p > 0)
            set(m->lses[p], m->type, 1, -(double)INFINITY);
    }
    set(m->lses[m->count - 1], m->type, 2, INFINITY);
    set(m->lses[0], m->type, 3, INFINITY);
    set(m->lses[m->count - 1], m->type, 3, INFINITY);
    set(m->lses[m->count / 2], m->type, 4, NAN);
    set(m->outs[0].view.data, m->type, 2 * m->shape.dim,
        NAN); /* row 2, where another part outweighs this one if there is one */
    set_any(m->dout.view.data, m->dout.dtype, m->shape.dim + PAD, NAN); /* row 1, whose other parts are empty */
    for (int32_t p = 0; p < m->count; p += 2)
        set(m->outs[p].view.data, m->type, m->shape.dim / 2, p % 4 ? INFINITY : NAN); /* row 0: no keys; layout 3: every row */
}

/* The arguments for the CPU, and with everything on the GPU. */
typedef struct lists {
    fattn_view outs[PARTS_MOST], douts[PARTS_MOST];
    const void *lses[PARTS_MOST];
    void *dlses[PARTS_MOST];
} lists;

static void fill_lists(const merging *m, lists *l, bool on_gpu)
{
    for (int32_t p = 0; p < m->count; p++) {
        l->outs[p] = on_gpu ? view_there(m->outs[p].view) : m->outs[p].view;
        l->douts[p] = on_gpu ? view_there(m->douts[p].view) : m->douts[p].view;
        l->lses[p] = on_gpu ? there(m->lses[p]) : m->lses[p];
        l->dlses[p] = on_gpu ? there(m->dlses[p]) : m->dlses[p];
    }
}

static fattn_status forward(const merging *m, bool on_gpu)
{
    lists l;
    fill_lists(m, &l, on_gpu);
    const fattn_merge_args args = {.struct_size = sizeof args,
                                   .count = m->count,
                                   .outs = l.outs,
                                   .lses = l.lses,
                                   .out = on_gpu ? view_there(m->out.view) : m->out.view,
                                   .lse = on_gpu ? there(m->lse) : m->lse,
                                   .stream = on_gpu ? a.stream : NULL};
    return fattn_merge(on_gpu ? a.gpu_context : a.cpu_context, &m->desc, &args);
}

static fattn_status backward(const merging *m, bool on_gpu)
{
    lists l;
    fill_lists(m, &l, on_gpu);
    const fattn_merge_backward_args args = {.struct_size = sizeof args,
                                            .count = m->count,
                                            .outs = l.outs,
                                            .lses = l.lses,
                                            .out = on_gpu ? view_there(m->out.view) : m->out.view,
                                            .lse = on_gpu ? there(m->lse) : m->lse,
                                            .dout = on_gpu ? view_there(m->dout.view) : m->dout.view,
                                            .dlse = on_gpu ? there(m->dlse) : m->dlse,
                                            .douts = l.douts,
                                            .dlses = l.dlses,
                                            .stream = on_gpu ? a.stream : NULL};
    return fattn_merge_backward(on_gpu ? a.gpu_context : a.cpu_context, &m->desc, &args);
}

static fattn_status forward_there(const void *m)
{
    return forward(m, true);
}

static fattn_status backward_there(const void *m)
{
    return backward(m, true);
}

/* Doubles that differ by rounding become neighbours at most: twice the roundoff, or the spacing of the smallest halves. */
static void alike_tensor(const char *name, const tensor *t, double absolute)
{
    assert_alike(name, t->view.data, t->dtype, t->count, 2 * roundoff(t->dtype),
                 absolute + (t->dtype == FATTN_F16 ? 0x1p-24 : 0));
}

static void check_forward(const merging *m)
{
    pull();
    alike_tensor("out", &m->out, 1e-14);
    if (m->lse)
        assert_alike("lse", m->lse, m->type, rows_of(m), 2 * roundoff(m->type), 1e-14);
    assert_rest();
}

static void compare_forward(const merging *m)
{
    push();
    assert_ok(forward(m, false));
    assert_ok(forward(m, true));
    check_forward(m);
}

static void check_backward(const merging *m)
{
    pull();
    for (int32_t p = 0; p < m->count; p++) {
        alike_tensor("douts", &m->douts[p], 1e-14);
        assert_alike("dlses", m->dlses[p], m->type, rows_of(m), 2 * roundoff(m->type), 1e-12);
    }
    assert_rest();
}

/* With out and lse as the CPU's forward left them. */
static void compare_backward(const merging *m)
{
    push();
    assert_ok(backward(m, false));
    assert_ok(backward(m, true));
    check_backward(m);
}

static const int32_t types[][2] = {{FATTN_F32, 0},  {FATTN_F64, 0},         {FATTN_F16, 0},
                                   {FATTN_BF16, 0}, {FATTN_F16, FATTN_F32}, {FATTN_BF16, FATTN_F32}};
enum { TYPES = sizeof types / sizeof *types };

static const shape shapes[] = {{2, 3, 7, 5, false},  {1, 1, 1, 1, false},   {1, 2, 9, 512, false}, {2, 2, 5, 64, true},
                               {3, 1, 4, 33, false}, {1, 4, 50, 128, true}, {2, 3, 0, 8, false}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void like_the_cpu(void **state)
{
    static const int32_t counts[] = {1, 2, 5};
    static merging m;
    (void)state;
    needs_gpu();
    for (int t = 0; t < TYPES; t++)
        for (int s = 0; s < SHAPES; s++)
            for (int c = 0; c < 3; c++) {
                make(&m, types[t][0], types[t][1], counts[c], shapes[s]);
                compare_forward(&m);
                compare_backward(&m);
            }
}

static void special_values(void **state)
{
    static const int32_t counts[] = {1, 2, 3, 6};
    static merging m;
    (void)state;
    needs_gpu();
    for (int t = 0; t < TYPES; t++)
        for (int s = 0; s < SHAPES; s++)
            for (int c = 0; c < 4; c++) {
                make(&m, types[t][0], types[t][1], counts[c], shapes[s]);
                make_special(&m);
                compare_forward(&m);
                compare_backward(&m);
            }
}

/* Means of 1 + 2^-n and 1 + 2^-23, just above the middle of two neighbours that are 2^-n apart: rounded to float on the way,
 * they would fall on it, and then to 1. */
static void rounded_once(void **state)
{
    static const double steps[][2] = {{FATTN_F16, 0x1p-10}, {FATTN_BF16, 0x1p-7}};
    static merging m;
    (void)state;
    needs_gpu();
    for (int t = 0; t < 2; t++) {
        make(&m, (int32_t)steps[t][0], 0, 2, shapes[0]);
        for (int32_t p = 0; p < 2; p++) {
            for (int64_t x = 0; x < m.outs[p].count; x++)
                set(m.outs[p].view.data, m.type, x, 1 + (p ? 0x1p-23 : steps[t][1]));
            for (int64_t n = 0; n < rows_of(&m); n++)
                set(m.lses[p], m.type, n, 1);
        }
        push();
        assert_ok(forward(&m, true));
        pull();
        assert_true(get(a.back + ((unsigned char *)m.out.view.data - a.host), m.out.dtype, 0) == 1 + steps[t][1]);
        compare_forward(&m);
    }
}

/* lse and dlse are not wanted; and results take the place of a part. */
static void optional_and_in_place(void **state)
{
    static merging m;
    (void)state;
    needs_gpu();
    for (int32_t dtype = FATTN_F32; dtype <= FATTN_F64; dtype++)
        for (int p = 0; p < 3; p++) {
            make(&m, dtype, 0, 4, shapes[0]);
            compare_forward(&m);
            m.dlse = NULL;
            compare_backward(&m);
            m.lse = NULL;
            compare_forward(&m);
            m.out = m.outs[p];
            m.lse = m.lses[p];
            compare_forward(&m);
        }
}

/* As many as a GPU joins, and more; the gradient takes any number. */
static void many_parts(void **state)
{
    static merging m;
    (void)state;
    needs_gpu();
    for (int t = 0; t < TYPES; t++) {
        make(&m, types[t][0], types[t][1], JOINED_MOST, shapes[3]);
        compare_forward(&m);
        compare_backward(&m);
        make(&m, types[t][0], types[t][1], PARTS_MOST, shapes[4]);
        assert_ok(forward(&m, false));
        compare_backward(&m);
    }
    m.count = JOINED_MOST + 1;
    push();
    assert_fails(forward(&m, true), FATTN_ERROR_UNSUPPORTED, "args.count is 97, but a GPU joins at most 96");
    pull();
    assert_rest();
}

/* Checks of shapes and pointers are the CPU's. */
static void refusals(void **state)
{
    static merging m;
    (void)state;
    needs_gpu();
    make(&m, FATTN_F32, 0, 3, shapes[0]);
    push();
    m.lses[1] = NULL;
    assert_fails(forward(&m, true), FATTN_ERROR_ARGUMENT, "args.lses[1] is NULL");
    make(&m, FATTN_F32, 0, 3, shapes[0]);
    m.out.view = m.outs[1].view;
    m.out.view.data = (float *)m.out.view.data + 1;
    assert_fails(forward(&m, true), FATTN_ERROR_ARGUMENT, "args.out");
    make(&m, FATTN_F32, 0, 3, shapes[0]);
    m.douts[2].view = m.douts[1].view;
    assert_fails(backward(&m, true), FATTN_ERROR_ARGUMENT, "args.douts[");
    pull();
    assert_rest();
}

static void without_a_context(void **state)
{
    static merging m;
    (void)state;
    needs_gpu();
    make(&m, FATTN_F32, 0, 3, shapes[0]);
    push();
    assert_ok(forward(&m, false));
    assert_ok_apart(forward_there, &m);
    check_forward(&m);
    push();
    assert_ok(backward(&m, false));
    assert_ok_apart(backward_there, &m);
    check_backward(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(like_the_cpu),          cmocka_unit_test(special_values), cmocka_unit_test(rounded_once),
        cmocka_unit_test(optional_and_in_place), cmocka_unit_test(many_parts),     cmocka_unit_test(refusals),
        cmocka_unit_test(without_a_context),
    };
    return cmocka_run_group_tests_name("cuda_merge", tests, arena_open, arena_close);
}
