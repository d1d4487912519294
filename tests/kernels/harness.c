/*
 * The harness itself: names, the truth on problems whose answer is known, and that it catches kernels that are wrong. A wrong
 * kernel is the library's, with something spoiled before or after the call.
 */
#include <inttypes.h>
#include <math.h>

#include "judged.h"
#include "random.h"

/* ---------------------------------------------------------------------------------------------------- spoiling a kernel */

typedef enum spoil {
    SPOIL_NOTHING,
    SPOIL_LAST_BIT,       /* of one element: allowed */
    SPOIL_NOISE_SMALL,    /* relative 6e-8 everywhere: allowed */
    SPOIL_NOISE,          /* relative 1e-5 everywhere */
    SPOIL_ELEMENT,        /* one element by 1e-4 of its row */
    SPOIL_NOT_WRITTEN,    /* the last row of the output stays as it was */
    SPOIL_PAST_ROW,       /* writes one element behind a row */
    SPOIL_BEFORE,         /* writes one element in front of the output */
    SPOIL_WORKSPACE,      /* writes a byte behind the workspace */
    SPOIL_INPUT,          /* changes q */
    SPOIL_SECOND_RUN,     /* every other run differs in one bit */
    SPOIL_THREADS,        /* more than one thread: differs in one bit */
    SPOIL_LSE_BASE,       /* base 2 */
    SPOIL_NO_LSE,         /* other bits when lse is not wanted */
    SPOIL_NAN_HIDDEN,     /* a NaN becomes 0 */
    SPOIL_EMPTY_NOT_ZERO, /* a row of zeros becomes tiny numbers */
    SPOIL_NAME,           /* reports another kernel */
    SPOIL_STATUS,         /* fails */
    SPOIL_SCALE,          /* scale off by 1e-4 */
    SPOIL_HEAD,           /* every query head reads key/value head 0 */
    SPOIL_ALIGN,          /* top-left for bottom-right */
    SPOIL_WINDOW          /* a window one key too wide */
} spoil;

static spoil mode;
static int calls;

static fattn_desc spoiled_desc(const fattn_desc *desc)
{
    fattn_desc d = *desc;
    if (mode == SPOIL_SCALE)
        d.scale = (d.scale != 0 ? d.scale : 1 / sqrt((double)d.dim)) * 1.0001;
    if (mode == SPOIL_ALIGN)
        d.align = FATTN_ALIGN_TOP_LEFT;
    if (mode == SPOIL_WINDOW)
        d.window_left++;
    return d;
}

static float *at(const fattn_view *view, int64_t b, int64_t h, int64_t i)
{
    return (float *)view->data + b * view->stride_batch + h * view->stride_head + i * view->stride_row;
}

static void flip(float *x)
{
    uint32_t bits;
    memcpy(&bits, x, 4);
    bits ^= 1;
    memcpy(x, &bits, 4);
}

static void add_noise(const fattn_view *out, const fattn_desc *d, int64_t rows, int64_t cols, float size)
{
    random_state r = random_start(5, 5);
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t h = 0; h < d->heads_q; h++)
            for (int64_t i = 0; i < rows; i++)
                for (int64_t c = 0; c < cols; c++)
                    at(out, b, h, i)[c] *= 1 + size * (float)(2 * random_unit(&r) - 1);
}

/* Spoils what was written through `out` (dq in backward), [batch, heads_q, seq_q, cols]. */
static void spoil_output(const fattn_view *out, const fattn_desc *d, int64_t cols, const fattn_context *context)
{
    float *last = at(out, d->batch - 1, d->heads_q - 1, d->seq_q - 1);
    fattn_context_info info = {.struct_size = sizeof info};
    calls++;
    switch (mode) {
    case SPOIL_LAST_BIT:
        flip(last);
        break;
    case SPOIL_NOISE_SMALL:
        add_noise(out, d, d->seq_q, cols, 6e-8f);
        break;
    case SPOIL_NOISE:
        add_noise(out, d, d->seq_q, cols, 1e-5f);
        break;
    case SPOIL_ELEMENT:
        last[cols - 1] += 1e-4f;
        break;
    case SPOIL_NOT_WRITTEN: {
        const uint32_t fresh = 0x7fd1e1e1; /* what arena.c puts there */
        for (int64_t c = 0; c < cols; c++)
            memcpy(last + c, &fresh, 4);
        break;
    }
    case SPOIL_PAST_ROW:
        at(out, 0, 0, 0)[cols] = 0;
        break;
    case SPOIL_BEFORE:
        at(out, 0, 0, 0)[-1] = 0;
        break;
    case SPOIL_SECOND_RUN:
        if (calls % 2 == 0)
            flip(last);
        break;
    case SPOIL_THREADS:
        if (fattn_context_query(context, &info) == FATTN_OK && info.threads > 1)
            flip(last);
        break;
    case SPOIL_NAN_HIDDEN:
    case SPOIL_EMPTY_NOT_ZERO:
        for (int64_t i = 0; i < d->seq_q; i++)
            for (int64_t c = 0; c < cols; c++) {
                float *x = at(out, d->batch - 1, d->heads_q - 1, i) + c;
                if (mode == SPOIL_NAN_HIDDEN ? isnan(*x) : *x == 0)
                    *x = mode == SPOIL_NAN_HIDDEN ? 0 : 1e-30f;
            }
        break;
    default:
        break;
    }
}

static void spoil_rest(const fattn_view *q, void *workspace, size_t bytes, const char **kernel)
{
    if (mode == SPOIL_WORKSPACE && workspace)
        ((unsigned char *)workspace)[bytes] = 0;
    if (mode == SPOIL_INPUT)
        flip(q->data);
    if (mode == SPOIL_NAME && kernel)
        *kernel = "another";
}

static fattn_status bad_forward(const fattn_context *context, const fattn_desc *desc, const fattn_forward_args *args)
{
    const fattn_desc d = spoiled_desc(desc);
    fattn_forward_args a = *args;
    if (mode == SPOIL_STATUS)
        return FATTN_ERROR_UNSUPPORTED;
    if (mode == SPOIL_HEAD)
        a.k.stride_head = a.v.stride_head = 0;
    const fattn_status status = fattn_forward(context, &d, &a);
    spoil_output(&a.out, &d, d.dim_v, context);
    spoil_rest(&a.q, a.workspace, a.workspace_size, a.kernel);
    for (int64_t i = 0; mode == SPOIL_LSE_BASE && a.lse && i < d.batch * d.heads_q * d.seq_q; i++)
        ((float *)a.lse)[i] *= 1.442695f;
    if (mode == SPOIL_NO_LSE && !a.lse)
        flip(a.out.data);
    return status;
}

static fattn_status bad_backward(const fattn_context *context, const fattn_desc *desc, const fattn_backward_args *args)
{
    const fattn_desc d = spoiled_desc(desc);
    fattn_backward_args a = *args;
    if (mode == SPOIL_STATUS)
        return FATTN_ERROR_UNSUPPORTED;
    if (mode == SPOIL_HEAD)
        a.k.stride_head = a.v.stride_head = 0;
    const fattn_status status = fattn_backward(context, &d, &a);
    spoil_output(&a.dq, &d, d.dim, context);
    spoil_rest(&a.q, a.workspace, a.workspace_size, a.kernel);
    return status;
}

/* -------------------------------------------------------------------------------------------------------------- judging */

/* Runs a problem with ref, spoiled. Returns whether the harness lets it pass; text gets what it says. */
static bool passes(const char *name, spoil how, char text[VERDICT_TEXT])
{
    mode = how;
    calls = 0;
    const bool passed = judged(name, bad_forward, bad_backward, text);
    mode = SPOIL_NOTHING;
    return passed;
}

static void assert_passes(const char *name, spoil how)
{
    char text[VERDICT_TEXT];
    if (!passes(name, how, text))
        fail_msg("%s should pass, but: %s", name, text);
}

/* Caught, and the message has `word`. */
static void assert_caught(const char *name, spoil how, const char *word)
{
    char text[VERDICT_TEXT];
    if (passes(name, how, text))
        fail_msg("%s passed with fault %d", name, (int)how);
    if (!strstr(text, word))
        fail_msg("%s was caught for another reason than '%s': %s", name, word, text);
}

static const char *const plain[] = {"forward/f32/b2/h4/gqa2/q33k40/d24/causal-br/padded/seed3",
                                    "backward/f32/b2/h4/gqa2/q33k40/d24/causal-br/padded/seed3"};

static void right_kernels_pass(void **state)
{
    (void)state;
    static const char *const alone[] = {"forward/f32/h4/gqa2/q33k40/d24/causal-br/padded/seed3",
                                        "backward/f32/h4/gqa2/q33k40/d24/causal-br/padded/seed3"};
    for (int i = 0; i < 2; i++) {
        assert_passes(plain[i], SPOIL_NOTHING);
        assert_passes(alone[i], SPOIL_LAST_BIT);
        assert_passes(alone[i], SPOIL_NOISE_SMALL);
    }
}

static void wrong_numbers_are_caught(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_caught(plain[i], SPOIL_NOISE, "units");
        assert_caught(plain[i], SPOIL_ELEMENT, "units");
        assert_caught(plain[i], SPOIL_SCALE, "units");
        assert_caught(plain[i], SPOIL_HEAD, "units");
        assert_caught(plain[i], SPOIL_ALIGN, "units");
    }
    assert_caught("forward/f32/q40k40/d16/window:5,0", SPOIL_WINDOW, "units");
    assert_caught("backward/f32/q40k40/d16/window:5,0", SPOIL_WINDOW, "units");
    assert_caught(plain[0], SPOIL_LSE_BASE, "lse");
    assert_caught("forward/f32/q30k45/d24/fill-nan-q", SPOIL_NAN_HIDDEN, "nan");
    assert_caught("forward/f32/q20k9/d24/causal-br", SPOIL_EMPTY_NOT_ZERO, "instead of 0");
    assert_caught("backward/f32/q20k9/d24/causal-br", SPOIL_EMPTY_NOT_ZERO, "instead of 0");
}

static void stray_writes_are_caught(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_caught(plain[i], SPOIL_NOT_WRITTEN, "not written");
        assert_caught(plain[i], SPOIL_PAST_ROW, "outside the tensor");
        assert_caught(plain[i], SPOIL_BEFORE, "outside the tensor");
        assert_caught(plain[i], SPOIL_INPUT, "input changed");
    }
    assert_caught("forward/f32/b2/h2/q7k9/d8", SPOIL_BEFORE, "outside the tensor");
    assert_caught("backward/f32/b2/h2/q9k9/d8/packed", SPOIL_BEFORE, "outside the tensor");
}

static void other_bits_are_caught(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_caught(plain[i], SPOIL_SECOND_RUN, "other bits");
        assert_caught(plain[i], SPOIL_THREADS, "other bits");
        assert_caught(plain[i], SPOIL_NAME, "another");
        assert_caught(plain[i], SPOIL_STATUS, "UNSUPPORTED");
    }
    assert_caught(plain[0], SPOIL_NO_LSE, "without lse");
}

/* A byte behind the workspace; needs a kernel that has one. */
static void workspace_is_guarded(void **state)
{
    (void)state;
    harness h = harness_make();
    problem p;
    assert_true(problem_parse(plain[0], &p, NULL, 0));
    const fattn_desc desc = problem_desc(&p);
    size_t bytes = 0;
    assert_int_equal(fattn_workspace_size(harness_context(&h, "ref", 1), &desc, p.op, &bytes), FATTN_OK);
    harness_free(&h);
    if (bytes == 0)
        skip();
    assert_caught(plain[0], SPOIL_WORKSPACE, "workspace");
}

/* ---------------------------------------------------------------------------------------------------------------- truth */

static void known_answers(void **state)
{
    (void)state;
    problem p = problem_of(3, 5, 4);
    char reason[100];
    test_case *c = malloc(sizeof *c);
    assert_non_null(c);
    p.fill = FILL_ZERO; /* every score 0: out is the mean of v = 0, lse the logarithm of the number of keys */
    p.mask = FATTN_MASK_CAUSAL;
    assert_true(case_make(c, &p, reason, sizeof reason));
    for (int i = 0; i < 3; i++)
        assert_true(fabs(c->truth.value[RESULT_LSE][i] - log(i + 1)) < 1e-15);
    case_free(c);

    p = problem_of(4, 2, 3); /* bottom-right: rows 0 and 1 keep nothing, row 2 key 0 alone */
    p.mask = FATTN_MASK_CAUSAL;
    p.align = FATTN_ALIGN_BOTTOM_RIGHT;
    p.dtype = FATTN_F64;
    assert_true(case_make(c, &p, reason, sizeof reason));
    const double *q = c->t.q.view.data, *k = c->t.k.view.data, *v = c->t.v.view.data;
    assert_true(c->truth.value[RESULT_LSE][0] == -INFINITY && c->truth.value[RESULT_LSE][1] == -INFINITY);
    for (int d = 0; d < 3; d++)
        assert_true(c->truth.value[RESULT_OUT][d] == 0 && c->truth.value[RESULT_OUT][6 + d] == v[d]);
    double s[2] = {0, 0};
    for (int j = 0; j < 2; j++)
        for (int d = 0; d < 3; d++)
            s[j] += q[9 + d] * k[3 * j + d] / sqrt(3);
    for (int d = 0; d < 3; d++) {
        const double w = 1 / (1 + exp(s[1] - s[0])), out = w * v[d] + (1 - w) * v[3 + d];
        assert_true(fabs(c->truth.value[RESULT_OUT][9 + d] - out) < 1e-15);
    }
    case_free(c);
    free(c);
}

/* ---------------------------------------------------------------------------------------------------------------- names */

static void names_round_trip(void **state)
{
    (void)state;
    problem_list list = problem_list_make(LIST_FULL, 12345);
    assert_true(list.count > 20000);
    for (int i = 0; i < list.count; i++) {
        char name[PROBLEM_NAME_SIZE], again[PROBLEM_NAME_SIZE], reason[100];
        problem p;
        problem_print(&list.item[i], name);
        if (!problem_parse(name, &p, reason, sizeof reason))
            fail_msg("%s: %s", name, reason);
        problem_print(&p, again);
        assert_string_equal(name, again);
        const fattn_desc a = problem_desc(&p), b = problem_desc(&list.item[i]);
        assert_memory_equal(&a, &b, sizeof a); /* no field is left out of the name */
        assert_true(p.bias_dims == list.item[i].bias_dims && p.dbias_dims == list.item[i].dbias_dims);
        assert_true(p.used_q.kind == list.item[i].used_q.kind && p.used_k.kind == list.item[i].used_k.kind);
        assert_true(p.mask_shared == list.item[i].mask_shared && p.part == list.item[i].part);
    }
    problem_list_free(&list);
}

static void bad_names_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"",
                                        "forward",
                                        "forward/q3k4",
                                        "forward/d8",
                                        "q3k4/d8/b",
                                        "q3k4/d8/h3/gqa2",
                                        "q3k4/d8/h0",
                                        "q3k-4/d8",
                                        "q3k4/d8x",
                                        "q3k4/d0",
                                        "q3k4/d8/window:3",
                                        "q3k4/d8/window:-2,0",
                                        "q3k4/d8/fill-fun",
                                        "q3k4/d8/scale:nan",
                                        "q3k4/d8/chunked:0",
                                        "q3k4/d8/chunked",
                                        "q3k4/d8/prefix:-1",
                                        "q3k4/d8/document:3",
                                        "q3k4/d8/intervals:own",
                                        "q3k4/d8/bias",
                                        "q3k4/d8/bias:khq",
                                        "q3k4/d8/dbias",
                                        "backward/q3k4/d8/dbias",
                                        "q3k4/d8/dlse",
                                        "backward/q3k4/d8/dsinks",
                                        "q3k4/d8/dropout:1",
                                        "q3k4/d8/softcap:-1",
                                        "q3k4/d8/out-f32",
                                        "f16/q3k4/d8/grad-f32",
                                        "backward/q3k4/d8/kv-i8",
                                        "backward/q3k4/d8/paged:4",
                                        "b2/q3k4/d8/packed-q:3",
                                        "b2/q3k4/d8/used-k:3,5",
                                        "b2/q3k4/d8/packed-q:1,3/used-q:2,1",
                                        "q3k4/d8/fill-bias-inf",
                                        "q3k4/d513",
                                        "q3k4/d8/seed"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        problem p;
        if (problem_parse(names[i], &p, NULL, 0))
            fail_msg("'%s' was read as a problem", names[i]);
    }
}

static void lists_are_filtered(void **state)
{
    (void)state;
    problem_list list = problem_list_make(LIST_QUICK, 1);
    const int all = list.count;
    problem_list_filter(&list, "backward/f64/*");
    assert_in_range(list.count, 1, all - 1);
    problem_list_filter(&list, "causal");
    for (int i = 0; i < list.count; i++)
        assert_int_equal(list.item[i].mask, FATTN_MASK_CAUSAL);
    problem_list_free(&list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_kernels_pass),      cmocka_unit_test(wrong_numbers_are_caught),
        cmocka_unit_test(stray_writes_are_caught), cmocka_unit_test(other_bits_are_caught),
        cmocka_unit_test(workspace_is_guarded),    cmocka_unit_test(known_answers),
        cmocka_unit_test(names_round_trip),        cmocka_unit_test(bad_names_are_refused),
        cmocka_unit_test(lists_are_filtered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
