/*
 * Joining partial results, and the gradient of that, in double for each row:
 *
 *     m = max_p lse_p      w_p = exp(lse_p - m)      out = sum_p w_p out_p / sum_p w_p      lse = m + ln sum_p w_p
 *
 * A row is read whole before it is written, so that the result may take the place of a partial. The partials are read where the
 * caller's lists say, as there may be any number of them; their checks go over the lists for the same reason, once for every
 * few hundred outputs, which are sorted by where they lie.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/context.h"
#include "core/convert.h"
#include "core/error.h"
#include "core/merge.h"
#include "core/pool.h"
#include "core/regions.h"
#include "core/validate.h"

enum {
    UNIT_ELEMENTS = 1 << 14, /* that a unit reads: some microseconds, so that handing it out costs little beside it */
    BLOCK = 512              /* outputs that are held against all tensors at a time; 16 KB of stack */
};

/* ------------------------------------------------------------------------------------------------------------- tensors */

/* One tensor of a call: a view, or one number per row. */
typedef struct tensor {
    const char *name;
    int32_t part; /* its place in a list; -1: it stands alone */
    const fattn_view *view;
    const void *numbers;
    int32_t dtype;
    bool output, optional;
} tensor;

enum { NAME_ROOM = 24 };

/* How many tensors stand alone, which is also how many lists there are. */
static int64_t lists(const fattn_merging *m)
{
    return m->backward ? 4 : 2;
}

static int64_t tensors(const fattn_merging *m)
{
    return lists(m) * (1 + (int64_t)m->count);
}

/* Tensor number n of the call: first those that stand alone, then those of each part. */
static tensor tensor_of(const fattn_merging *m, int64_t n)
{
    const int32_t part = (int32_t)(n / lists(m)) - 1;
    const bool listed = part >= 0, written = !m->backward;
    switch (n % lists(m)) {
    case 0:
        return listed ? (tensor){"outs", part, &m->outs[part], NULL, m->type, false, false}
                      : (tensor){"out", -1, &m->out, NULL, m->out_dtype, written, false};
    case 1:
        return listed ? (tensor){"lses", part, NULL, m->lses[part], m->type, false, false}
                      : (tensor){"lse", -1, NULL, m->lse, m->type, written, written};
    case 2:
        return listed ? (tensor){"douts", part, &m->douts[part], NULL, m->type, true, false}
                      : (tensor){"dout", -1, &m->dout, NULL, m->out_dtype, false, false};
    default:
        return listed ? (tensor){"dlses", part, NULL, m->dlses[part], m->type, true, false}
                      : (tensor){"dlse", -1, NULL, m->dlse, m->type, false, true};
    }
}

static const char *full_name(const tensor *t, char room[NAME_ROOM])
{
    if (t->part < 0)
        return t->name;
    snprintf(room, NAME_ROOM, "%s[%" PRId32 "]", t->name, t->part);
    return room;
}

static fattn_status read_as(const fattn_merging *m, const tensor *t, const char *name, fattn_region *r)
{
    const size_t size = fattn_dtype_size(t->dtype);
    if (t->view)
        return (t->output ? fattn_region_output : fattn_region_view)(r, name, t->view, size, m->batch, m->heads, m->rows,
                                                                     m->dim);
    if (!t->numbers && !t->optional && fattn_merging_rows(m) > 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s is NULL, but has %" PRId64 " elements", name, fattn_merging_rows(m));
    return fattn_region_array(r, name, t->numbers, size, fattn_merging_rows(m));
}

/* The region of a tensor. Its place in a list is only written out for a message. */
static fattn_status read_tensor(const fattn_merging *m, const tensor *t, fattn_region *r)
{
    char room[NAME_ROOM];
    const fattn_status status = read_as(m, t, t->name, r);
    return status == FATTN_OK ? FATTN_OK : read_as(m, t, full_name(t, room), r);
}

static bool same_stride(int64_t a, int64_t b, int64_t count)
{
    return a == b || count <= 1;
}

/* Whether the output takes the place of the partial, element for element. */
static bool in_place(const fattn_merging *m, const tensor *output, const tensor *other)
{
    if (m->backward || other->part < 0 || output->dtype != other->dtype)
        return false;
    if (!output->view || !other->view)
        return !output->view && !other->view && output->numbers == other->numbers;
    const fattn_view *a = output->view, *b = other->view;
    return a->data == b->data && same_stride(a->stride_batch, b->stride_batch, m->batch) &&
           same_stride(a->stride_head, b->stride_head, m->heads) && same_stride(a->stride_row, b->stride_row, m->rows);
}

/* An output's bytes, and how far it and those before it in a list reach. */
typedef struct span {
    uintptr_t lo, hi, reach;
    int64_t number; /* of the tensor */
} span;

/* By first byte: a Shell sort, as qsort may allocate and the lists are often in order already. */
static void sort_spans(span *spans, int count)
{
    for (int gap = count / 2; gap > 0; gap /= 2)
        for (int i = gap; i < count; i++) {
            const span moved = spans[i];
            int to = i;
            for (; to >= gap && spans[to - gap].lo > moved.lo; to -= gap)
                spans[to] = spans[to - gap];
            spans[to] = moved;
        }
    for (int i = 0; i < count; i++)
        spans[i].reach = i > 0 && spans[i - 1].reach > spans[i].hi ? spans[i - 1].reach : spans[i].hi;
}

/* The next outputs from tensor *n on, as many as are held at a time, sorted. */
static fattn_status hold_outputs(const fattn_merging *m, int64_t *n, span *spans, int *held)
{
    for (*held = 0; *n < tensors(m) && *held < BLOCK; ++*n) {
        const tensor t = tensor_of(m, *n);
        fattn_region r;
        const fattn_status status = t.output ? read_tensor(m, &t, &r) : FATTN_OK;
        if (status != FATTN_OK)
            return status;
        if (t.output && r.lo < r.hi)
            spans[(*held)++] = (span){r.lo, r.hi, 0, *n};
    }
    sort_spans(spans, *held);
    return FATTN_OK;
}

/* An output and another tensor, whose ranges of bytes meet. */
static fattn_status check_pair(const fattn_merging *m, int64_t output, int64_t other)
{
    const tensor t = tensor_of(m, output), u = tensor_of(m, other);
    char room[2][NAME_ROOM];
    fattn_region r, s;
    fattn_status status;
    if (output == other || in_place(m, &t, &u))
        return FATTN_OK;
    if ((status = read_tensor(m, &t, &r)) || (status = read_tensor(m, &u, &s)) ||
        (status = fattn_region_apart(&r, &s, 1)) == FATTN_OK)
        return status;
    r.name = full_name(&t, room[0]);
    s.name = full_name(&u, room[1]);
    return fattn_region_apart(&r, &s, 1);
}

/* Tensor number n against the outputs that are held. */
static fattn_status check_against(const fattn_merging *m, const span *spans, int held, int64_t n)
{
    const tensor t = tensor_of(m, n);
    fattn_region r;
    fattn_status status = read_tensor(m, &t, &r);
    int first = 0, end = held;
    if (status != FATTN_OK)
        return status;
    while (first < end) { /* the first that reaches behind its first byte, or one before does */
        const int middle = (first + end) / 2;
        if (spans[middle].reach > r.lo)
            end = middle;
        else
            first = middle + 1;
    }
    for (int i = first; i < held && spans[i].lo < r.hi && status == FATTN_OK; i++)
        if (spans[i].hi > r.lo)
            status = check_pair(m, spans[i].number, n);
    return status;
}

/* Every tensor lies within the address space, and every output apart from all others. */
static fattn_status check_tensors(const fattn_merging *m)
{
    span spans[BLOCK];
    for (int64_t next = 0; next < tensors(m);) {
        int held;
        fattn_status status = hold_outputs(m, &next, spans, &held);
        for (int64_t n = 0; n < tensors(m) && status == FATTN_OK; n++)
            status = check_against(m, spans, held, n);
        if (status != FATTN_OK)
            return status;
    }
    return FATTN_OK;
}

static fattn_status check_list(const char *name, const void *list, int32_t count)
{
    if (!list)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s is NULL, but has %" PRId32 " elements", name, count);
    return FATTN_OK;
}

/* Checks what fattn_merge and its gradient have in common, and fills in the sizes. */
static fattn_status check_call(fattn_merging *m, const fattn_problem *problem)
{
    const fattn_desc *desc = &problem->desc;
    fattn_status status = fattn_stream_check(problem, m->stream);
    if (status != FATTN_OK)
        return status;
    m->heads = desc->heads_q;
    m->dim = desc->dim_v;
    m->out_dtype = desc->out_dtype;
    m->type = desc->dtype == FATTN_F64 ? FATTN_F64 : FATTN_F32;
    m->batch = desc->total_q > 0 ? 1 : desc->batch;
    m->rows = desc->total_q > 0 ? desc->total_q : desc->seq_q;
    if (m->count < 1)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.count is %" PRId32 ", less than 1", m->count);
    if ((status = check_list("outs", m->outs, m->count)) || (status = check_list("lses", m->lses, m->count)))
        return status;
    if (m->backward &&
        ((status = check_list("douts", m->douts, m->count)) || (status = check_list("dlses", m->dlses, m->count))))
        return status;
    const int64_t block = UNIT_ELEMENTS / desc->dim_v / m->count;
    m->block = block > 0 ? block : 1;
    return check_tensors(m);
}

/* ---------------------------------------------------------------------------------------------------------------- rows */

/* sum += w * row; a loop for each type, for compilers that leave a choice within the loop. */
static void add_scaled(double *sum, double w, const void *row, int32_t dtype, int64_t n)
{
    if (dtype == FATTN_F64)
        for (int64_t x = 0; x < n; x++)
            sum[x] += w * ((const double *)row)[x];
    else
        for (int64_t x = 0; x < n; x++)
            sum[x] += w * (double)((const float *)row)[x];
}

static void store(void *row, int32_t dtype, const double *numbers, int64_t n)
{
    if (dtype == FATTN_F32)
        for (int64_t x = 0; x < n; x++)
            ((float *)row)[x] = (float)numbers[x];
    else
        for (int64_t x = 0; x < n; x++)
            fattn_set_element(row, dtype, x, numbers[x]);
}

static void merge_row(const fattn_merging *m, const fattn_merge_place *at)
{
    const int64_t n = m->dim;
    fattn_merge_weights all = fattn_merge_weights_of(m, at);
    double sum[FATTN_DIM_MOST], w;
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int32_t p = 0; p < m->count; p++)
        if (fattn_merge_weigh(&all, fattn_merge_number(m, m->lses[p], at), &w))
            add_scaled(sum, w, fattn_merge_row(&m->outs[p], m->type, at), m->type, n);
    fattn_merge_settle(&all);
    for (int64_t x = 0; x < n && all.total != 0; x++)
        sum[x] /= all.total;
    store(fattn_merge_row(&m->out, m->out_dtype, at), m->out_dtype, sum, n);
    if (m->lse)
        fattn_set_element((void *)(uintptr_t)m->lse, m->type, at->n, fattn_merge_lse(&all));
}

/* The gradients of part p, from dout and out of the row. */
static void backward_part(const fattn_merging *m, const fattn_merge_place *at, int32_t p, const double *dout, const double *out)
{
    const int64_t n = m->dim;
    const double lse = fattn_merge_number(m, m->lses[p], at);
    const bool none = lse == -(double)INFINITY;
    const double w = none ? 0 : fattn_merge_weight(lse, fattn_merge_number(m, m->lse, at));
    const void *out_p = fattn_merge_row(&m->outs[p], m->type, at);
    void *dout_p = fattn_merge_row(&m->douts[p], m->type, at);
    double dot = m->dlse ? fattn_merge_number(m, m->dlse, at) : 0;
    for (int64_t x = 0; x < n; x++) {
        dot += dout[x] * (fattn_element(out_p, m->type, x) - out[x]);
        fattn_set_element(dout_p, m->type, x, none ? 0 : w * dout[x]);
    }
    fattn_set_element(m->dlses[p], m->type, at->n, none ? 0 : w * dot);
}

static void backward_row(const fattn_merging *m, const fattn_merge_place *at)
{
    const int32_t dtype = m->out_dtype;
    const void *out_row = fattn_merge_row(&m->out, dtype, at), *dout_row = fattn_merge_row(&m->dout, dtype, at);
    double out[FATTN_DIM_MOST], dout[FATTN_DIM_MOST];
    for (int64_t x = 0; x < m->dim; x++) {
        out[x] = fattn_element(out_row, dtype, x);
        dout[x] = fattn_element(dout_row, dtype, x);
    }
    for (int32_t p = 0; p < m->count; p++)
        backward_part(m, at, p, dout, out);
}

static void rows_unit(void *arg, int32_t lane, int64_t unit)
{
    const fattn_merging *m = arg;
    const int64_t from = unit * m->block;
    const int64_t to = from + m->block < fattn_merging_rows(m) ? from + m->block : fattn_merging_rows(m);
    (void)lane;
    for (int64_t n = from; n < to; n++) {
        const fattn_merge_place at = fattn_merge_place_of(m, n);
        if (m->backward)
            backward_row(m, &at);
        else
            merge_row(m, &at);
    }
}

/* --------------------------------------------------------------------------------------------------------------- calls */

static fattn_status run(const fattn_context *context, const fattn_problem *problem, fattn_merging *m)
{
    const fattn_status status = check_call(m, problem);
    if (status == FATTN_OK && context->backend)
        return context->backend->merge(context, m);
    if (status == FATTN_OK)
        fattn_run_units(context, INT32_MAX, (fattn_merging_rows(m) + m->block - 1) / m->block, rows_unit, m);
    return status;
}

fattn_status fattn_merge(const fattn_context *context, const fattn_desc *desc, const fattn_merge_args *args)
{
    fattn_problem problem;
    fattn_merge_args own;
    fattn_status status = fattn_context_problem(context, desc, &problem);
    if (status != FATTN_OK ||
        (status = fattn_struct_read(&own, sizeof own, FATTN_MERGE_ARGS_FIRST_SIZE, args, "args")) != FATTN_OK)
        return status;
    fattn_merging m = {
        .count = own.count, .outs = own.outs, .lses = own.lses, .out = own.out, .lse = own.lse, .stream = own.stream};
    return run(context, &problem, &m);
}

fattn_status fattn_merge_backward(const fattn_context *context, const fattn_desc *desc, const fattn_merge_backward_args *args)
{
    fattn_problem problem;
    fattn_merge_backward_args own;
    fattn_status status = fattn_context_problem(context, desc, &problem);
    if (status != FATTN_OK ||
        (status = fattn_struct_read(&own, sizeof own, FATTN_MERGE_BACKWARD_ARGS_FIRST_SIZE, args, "args")) != FATTN_OK)
        return status;
    fattn_merging m = {.count = own.count,
                       .outs = own.outs,
                       .lses = own.lses,
                       .out = own.out,
                       .lse = own.lse,
                       .backward = true,
                       .dout = own.dout,
                       .dlse = own.dlse,
                       .douts = own.douts,
                       .dlses = own.dlses,
                       .stream = own.stream};
    return run(context, &problem, &m);
}
