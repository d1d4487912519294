/* See faults.h. Logsumexp, and results of parts of the keys. */
#include "faults.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS_MOST = 8 };

/* The results of parts of the keys: numbers in float, or double for FATTN_F64. */
typedef struct parts {
    int count;
    fattn_view outs[PARTS_MOST];
    const void *lses[PARTS_MOST];
} parts;

static int32_t wide_type(const placed *p)
{
    return p->desc.dtype == FATTN_F64 ? FATTN_F64 : FATTN_F32;
}

/* A row of keys begins elsewhere. */
static fattn_view keys_from(const tensor *t, int64_t first)
{
    fattn_view view = t->view;
    view.data = (char *)view.data + first * view.stride_row * (int64_t)number_size(t->dtype);
    return view;
}

/* Runs forward on each part of the keys. */
static parts run_parts(placed *p, int count, const char *kernel)
{
    const fattn_context *context = context_of(kernel, 2);
    const int64_t rows = p->desc.batch * p->desc.heads_q * p->desc.seq_q;
    parts all = {.count = count};
    fattn_desc d = p->desc;
    d.seq_k /= count;
    d.out_dtype = wide_type(p);
    for (int n = 0; n < count; n++) {
        fattn_forward_args args = placed_forward_args(p);
        all.outs[n] = fattn_view_bhsd(allocate(rows * d.dim_v, 8), d.heads_q, d.seq_q, d.dim_v);
        all.lses[n] = args.lse = allocate(rows, 8);
        args.out = all.outs[n];
        args.k = keys_from(&p->t[SLOT_K], n * d.seq_k);
        args.v = keys_from(&p->t[SLOT_V], n * d.seq_k);
        assert_int_equal(fattn_workspace_size(context, &d, FATTN_OP_FORWARD, &args.workspace_size), FATTN_OK);
        args.workspace = malloc(args.workspace_size + 1);
        if (fattn_forward(context, &d, &args) != FATTN_OK)
            fail_msg("%s: %s", kernel, fattn_last_error());
        free(args.workspace);
    }
    return all;
}

static void parts_free(parts *all)
{
    for (int n = 0; n < all->count; n++) {
        free(all->outs[n].data);
        free((void *)(uintptr_t)all->lses[n]);
    }
}

/* The merged parts have the error of one pass. */
static void merge_forward(placed *p, const truth *t, int count, const char *kernel, const char *label)
{
    parts all = run_parts(p, count, kernel);
    fattn_forward_args whole = placed_forward_args(p);
    const fattn_merge_args args = {
        .struct_size = sizeof args, .count = count, .outs = all.outs, .lses = all.lses, .out = whole.out, .lse = whole.lse};
    if (fattn_merge(context_of(kernel, 2), &p->desc, &args) != FATTN_OK)
        fail_msg("%s: %s", label, fattn_last_error());
    placed_compare(p, FATTN_OP_FORWARD, t, label);
    parts_free(&all);
}

/* Each part with the whole's out and lse gives its keys' gradients; those of the queries add up. */
static void merge_backward(placed *p, const truth *t, int count, const char *kernel, const char *label)
{
    const fattn_context *context = context_of(kernel, 2);
    fattn_desc d = p->desc;
    double *sum = allocate(t->count[DQ], sizeof *sum);
    d.seq_k /= count;
    fattn_backward_args all = placed_backward_args(p);
    for (int n = 0; n < count; n++) {
        fattn_backward_args args = all;
        args.k = keys_from(&p->t[SLOT_K], n * d.seq_k);
        args.v = keys_from(&p->t[SLOT_V], n * d.seq_k);
        args.dk = keys_from(&p->t[SLOT_DK], n * d.seq_k);
        args.dv = keys_from(&p->t[SLOT_DV], n * d.seq_k);
        assert_int_equal(fattn_workspace_size(context, &d, FATTN_OP_BACKWARD, &args.workspace_size), FATTN_OK);
        args.workspace = malloc(args.workspace_size + 1);
        if (fattn_backward(context, &d, &args) != FATTN_OK)
            fail_msg("%s: %s", kernel, fattn_last_error());
        free(args.workspace);
        for (int64_t x = 0; x < t->count[DQ]; x++)
            sum[x] += number_get(all.dq.data, p->t[SLOT_DQ].dtype, x);
    }
    for (int64_t x = 0; x < t->count[DQ]; x++)
        number_set(all.dq.data, p->t[SLOT_DQ].dtype, x, sum[x]);
    placed_compare(p, FATTN_OP_BACKWARD, t, label);
    free(sum);
}

static void run_merged(placed *p, fattn_op op, const truth *t, const char *kernel, const char *label, void *arg)
{
    (op == FATTN_OP_FORWARD ? merge_forward : merge_backward)(p, t, *(const int *)arg, kernel, label);
}

static void check_parts(int64_t rows, int64_t keys, int count, form how)
{
    scene s = scene_make(
        &(fattn_desc){.batch = 2, .heads_q = 4, .heads_kv = 2, .seq_q = rows, .seq_k = keys, .dim = 8, .dim_v = 8}, 1);
    for_each_kernel(&s, &how, run_merged, &count);
    scene_free(&s);
}

void partials_merged_in_float(void **state)
{
    (void)state;
    for (int count = 1; count <= 8; count *= 2)
        for (int64_t rows = 1; rows <= 3; rows += 2) {
            check_parts(rows, 128, count, (form){.what = "merged", .wide = true});
            /* With results of 16 bits too out is rounded once; sums of dq cannot be. */
            check_parts(rows, 128, count, (form){.what = "merged", .forward_only = true});
        }
}

void lse_is_natural(void **state)
{
    static const int64_t keys[] = {1, 2, 64, 4096};
    (void)state;
    for (int n = 0; n < COUNT(keys); n++) {
        const fattn_desc d = sizes(1, 2, 1, 2, keys[n]);
        scene s = scene_make(&d, 1);
        fill(s.q, 2 * 2 * 8, 0); /* lse is ln keys */
        check_scene(&s, &(form){.what = "q = 0"});
        truth t = truth_of(&s, 0x1p-53, 0x1p-53);
        assert_true(fabs(t.value[LSE][0] - log((double)keys[n])) < 1e-14 * 10);
        truth_free(&t);
        scene_free(&s);
    }
    check_parts(2, 4096, 2, (form){.what = "merged", .wide = true});
}
