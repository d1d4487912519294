/*
 * fattn_merge and its gradient refuse what makes no sense by name, with its place in a list, before anything is written; and
 * have nothing to do without rows.
 */
#include "merge.h"

static void merge_refused(parts *p, const char *words)
{
    assert_fails(fattn_merge(p->context, &p->desc, &p->forward), FATTN_ERROR_ARGUMENT, words);
}

static void backward_refused(parts *p, const char *words)
{
    assert_fails(fattn_merge_backward(p->context, &p->desc, &p->backward), FATTN_ERROR_ARGUMENT, words);
}

static void all_poison(const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(((const unsigned char *)data)[i], POISON);
}

static void pointers_and_counts(void **state)
{
    parts p;
    (void)state;
    parts_make(&p, FATTN_F32, 0, 3);
    const fattn_merge_args forward = p.forward;
    const fattn_merge_backward_args backward = p.backward;
    assert_fails(fattn_merge(NULL, &p.desc, &p.forward), FATTN_ERROR_ARGUMENT, "context is NULL");
    assert_fails(fattn_merge(p.context, NULL, &p.forward), FATTN_ERROR_ARGUMENT, "desc is NULL");
    assert_fails(fattn_merge(p.context, &p.desc, NULL), FATTN_ERROR_ARGUMENT, "args is NULL");
    assert_fails(fattn_merge_backward(NULL, &p.desc, &p.backward), FATTN_ERROR_ARGUMENT, "context is NULL");
    assert_fails(fattn_merge_backward(p.context, NULL, &p.backward), FATTN_ERROR_ARGUMENT, "desc is NULL");
    assert_fails(fattn_merge_backward(p.context, &p.desc, NULL), FATTN_ERROR_ARGUMENT, "args is NULL");
    p.forward.count = 0, p.backward.count = -1;
    merge_refused(&p, "args.count is 0");
    backward_refused(&p, "args.count is -1");
    p.forward = forward, p.backward = backward;
    p.forward.outs = NULL, p.backward.outs = NULL;
    merge_refused(&p, "args.outs is NULL");
    backward_refused(&p, "args.outs is NULL");
    p.forward = forward, p.backward = backward;
    p.forward.lses = NULL, p.backward.lses = NULL;
    merge_refused(&p, "args.lses is NULL");
    backward_refused(&p, "args.lses is NULL");
    p.forward = forward, p.backward = backward;
    p.backward.douts = NULL;
    backward_refused(&p, "args.douts is NULL");
    p.backward = backward;
    p.backward.dlses = NULL;
    backward_refused(&p, "args.dlses is NULL");
    p.backward = backward;
    p.backward.lse = NULL;
    backward_refused(&p, "args.lse is NULL");
    p.backward = backward;
    p.lses[1] = NULL;
    merge_refused(&p, "args.lses[1] is NULL");
    p.lses[1] = p.lse[1];
    p.dlses[2] = NULL;
    backward_refused(&p, "args.dlses[2] is NULL");
    p.dlses[2] = p.dlse_p[2];
    p.outs[2].data = NULL;
    merge_refused(&p, "args.outs[2].data is NULL");
    p.outs[2].data = (char *)p.out[2] + 1;
    merge_refused(&p, "args.outs[2].data");
    p.outs[2].data = p.out[2];
    p.outs[0].stride_row = INT64_MAX / 2;
    merge_refused(&p, "args.outs[0].stride_row");
    p.forward.stream = p.backward.stream = &p;
    merge_refused(&p, "args.stream is not NULL");
    backward_refused(&p, "args.stream is not NULL");
    all_poison(p.whole, ROWS * DV * sizeof(float));
    all_poison(p.dout_p[0], ROWS * DV * sizeof(float));
    parts_free(&p);
}

static void overlaps(void **state)
{
    parts p;
    (void)state;
    parts_make(&p, FATTN_F32, 0, PARTS_MOST);
    const fattn_view out = p.forward.out;
    p.forward.out.stride_row = 0;
    merge_refused(&p, "args.out.stride_row is 0");
    p.forward.out = out;
    p.forward.out.data = (float *)p.out[1] + 1;
    merge_refused(&p, "overlaps args.outs[1]");
    p.forward.out = fattn_view_bhsd(p.out[1], H, S, DV);
    merge_refused(&p, "overlaps args.outs[1]"); /* the same address, but another order */
    p.forward.out = out;
    p.forward.out.data = p.lse[2];
    merge_refused(&p, "overlaps args.lses[2]");
    p.forward.out = out;
    p.forward.lse = p.whole;
    merge_refused(&p, "overlaps args.");
    p.forward.lse = (float *)p.lse[4] + 1;
    merge_refused(&p, "args.lse, at");
    p.forward.lse = p.out[5];
    merge_refused(&p, "overlaps args.outs[5]");
    p.forward.lse = NULL;
    assert_ok(fattn_merge(p.context, &p.desc, &p.forward));

    /* Pairs of outputs that are far apart in the list, and every input. */
    const struct {
        const void *data;
        const char *words;
    } others[] = {{p.out[5], "overlaps args.outs[5]"}, {p.lse[0], "overlaps args.lses[0]"}, {p.whole, "overlaps args.out,"},
                  {p.whole_lse, "overlaps args.lse,"}, {p.dout, "overlaps args.dout,"},     {p.dlse, "overlaps args.dlse,"},
                  {p.dout_p[5], "args.douts[5]"},      {p.dlse_p[4], "args.dlses[4]"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        p.douts[0].data = (void *)(uintptr_t)others[i].data;
        backward_refused(&p, others[i].words);
        p.douts[0].data = p.dout_p[0];
        p.dlses[0] = (void *)(uintptr_t)others[i].data;
        backward_refused(&p, others[i].words);
        p.dlses[0] = p.dlse_p[0];
    }
    p.douts[11].data = p.dlse_p[10];
    backward_refused(&p, "args.dlses[10]");
    p.douts[11].data = p.dout_p[11];
    p.douts[11].stride_row -= 1;
    backward_refused(&p, "args.douts[11] overlaps itself");
    all_poison(p.dout_p[0], ROWS * DV * sizeof(float));
    parts_free(&p);
}

/* The gradients of part a where those of part b, and what part b is, lie. */
static void gradients_over(parts *p, fattn_view *douts, void **dlses, int a, int b)
{
    const fattn_view dout_a = douts[a];
    void *const dlse_a = dlses[a];
    char words[4][32];
    snprintf(words[0], sizeof words[0], "args.douts[%d]", b);
    snprintf(words[1], sizeof words[1], "overlaps args.outs[%d]", b);
    snprintf(words[2], sizeof words[2], "args.dlses[%d]", b);
    snprintf(words[3], sizeof words[3], "overlaps args.lses[%d]", b);
    douts[a].data = douts[b].data;
    backward_refused(p, words[0]);
    douts[a].data = p->backward.outs[b].data;
    backward_refused(p, words[1]);
    douts[a] = dout_a;
    dlses[a] = dlses[b];
    backward_refused(p, words[2]);
    dlses[a] = (void *)(uintptr_t)p->backward.lses[b];
    backward_refused(p, words[3]);
    dlses[a] = dlse_a;
}

/* More outputs than are checked at a time, whose ranges of bytes meet though they have no byte in common: they lie in one
 * tensor, row by row, and in another order than in the lists. */
static void many_parts(void **state)
{
    enum { MANY = 300, LINE = 4, N = 2 * MANY * LINE };
    static float out_p[N], dout_p[N], lse_p[2 * MANY], dlse_p[2 * MANY], out[2 * LINE], lse[2], dout[2 * LINE];
    static fattn_view outs[MANY], douts[MANY];
    static const void *lses[MANY];
    static void *dlses[MANY];
    parts p;
    (void)state;
    parts_make(&p, FATTN_F32, 0, 1);
    p.desc.batch = p.desc.heads_q = 1, p.desc.seq_q = 2, p.desc.dim_v = LINE;
    memset(dout_p, POISON, sizeof dout_p);
    memset(dlse_p, POISON, sizeof dlse_p);
    for (int i = 0; i < MANY; i++) {
        const int place = i * 7 % MANY;
        outs[i] = (fattn_view){out_p + i * LINE, 0, 0, MANY * LINE};
        douts[i] = (fattn_view){dout_p + place * LINE, 0, 0, MANY * LINE};
        lses[i] = lse_p + 2 * i;
        dlses[i] = dlse_p + 2 * place;
    }
    p.forward = (fattn_merge_args){.struct_size = sizeof p.forward, .count = MANY, .outs = outs, .lses = lses, .lse = lse};
    p.forward.out = fattn_view_bhsd(out, 1, 2, LINE);
    p.backward.count = MANY, p.backward.outs = outs, p.backward.lses = lses, p.backward.out = p.forward.out;
    p.backward.lse = lse, p.backward.dout = fattn_view_bhsd(dout, 1, 2, LINE), p.backward.dlse = NULL;
    p.backward.douts = douts, p.backward.dlses = dlses;
    static const int pairs[][2] = {{0, 1}, {0, MANY - 1}, {MANY - 1, 0}, {MANY - 2, MANY - 1}, {17, 140}, {280, 3}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        gradients_over(&p, douts, dlses, pairs[i][0], pairs[i][1]);
    all_poison(dout_p, sizeof dout_p);
    all_poison(dlse_p, sizeof dlse_p);
    assert_ok(fattn_merge(p.context, &p.desc, &p.forward));
    assert_ok(fattn_merge_backward(p.context, &p.desc, &p.backward));
    parts_free(&p);
}

/* Rows, or a batch, of none: nothing to do, and no tensor is needed. */
static void no_rows(void **state)
{
    parts p;
    (void)state;
    parts_make(&p, FATTN_F32, 0, 2);
    const fattn_view nothing[2] = {{NULL, 0, 0, 0}, {NULL, 0, 0, 0}};
    const void *const no_lses[2] = {NULL, NULL};
    void *const no_dlses[2] = {NULL, NULL};
    const fattn_merge_args forward = {.struct_size = sizeof forward, .count = 2, .outs = nothing, .lses = no_lses};
    const fattn_merge_backward_args backward = {
        .struct_size = sizeof backward, .count = 2, .outs = nothing, .lses = no_lses, .douts = nothing, .dlses = no_dlses};
    p.desc.seq_q = 0;
    assert_ok(fattn_merge(p.context, &p.desc, &forward));
    assert_ok(fattn_merge_backward(p.context, &p.desc, &backward));
    p.desc.seq_q = S, p.desc.batch = 0;
    assert_ok(fattn_merge(p.context, &p.desc, &forward));
    assert_ok(fattn_merge_backward(p.context, &p.desc, &backward));
    parts_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pointers_and_counts), cmocka_unit_test(overlaps),
                                       cmocka_unit_test(many_parts), cmocka_unit_test(no_rows)};
    return cmocka_run_group_tests_name("merge_errors", tests, NULL, NULL);
}
