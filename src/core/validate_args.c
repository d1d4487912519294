/*
 * The arguments of a call: what the descriptor asks for is there and nothing else, lists of lengths make sense, and tensors lie
 * where they say, outputs apart from all else.
 */
#include <inttypes.h>
#include <string.h>

#include "core/error.h"
#include "core/regions.h"
#include "core/sequence.h"
#include "core/validate.h"

/* ------------------------------------------------------------------------------------------------------------ presence */

static fattn_status check_reserved(uint32_t reserved)
{
    return reserved == 0 ? FATTN_OK : fattn_fail(FATTN_ERROR_ARGUMENT, "args.reserved is %" PRIu32 ", not 0", reserved);
}

/* A pointer that a call may have, and whether the descriptor asks for it. */
typedef struct optional {
    const char *name;
    const void *value;
    bool wanted;
    const char *asker; /* what in the descriptor asks */
    int64_t elements;  /* of which 0 need no pointer */
    size_t size;       /* of an element of an array; 0: it is read in another way */
} optional;

enum { OPTIONAL_MOST = 20 };

typedef struct optional_list {
    optional item[OPTIONAL_MOST];
    int count;
} optional_list;

static void add(optional_list *list, const char *name, const void *value, bool wanted, const char *asker, int64_t elements,
                size_t size)
{
    list->item[list->count++] = (optional){name, value, wanted, asker, elements, size};
}

static fattn_status check_optional(const optional_list *list)
{
    for (const optional *x = list->item; x < list->item + list->count; x++) {
        if (x->wanted && !x->value && x->elements > 0)
            return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s is NULL, but %s asks for its %" PRId64 " elements", x->name,
                              x->asker, x->elements);
        if (!x->wanted && x->value)
            return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s is given, but %s does not ask for it", x->name, x->asker);
    }
    return FATTN_OK;
}

/* Rows of tensors with one per query, and keys of those with one per key. */
static int64_t all_rows(const fattn_desc *d, const fattn_launch *at)
{
    return at->cu_q ? d->total_q : d->batch * d->seq_q;
}

static int64_t all_keys(const fattn_desc *d, const fattn_launch *at)
{
    return at->cu_k ? d->total_k : d->batch * d->seq_k;
}

/* Elements of one head's bias. Validation bounds rows and keys, but not their product. */
static int64_t pairs(const fattn_desc *d)
{
    int64_t n;
    return __builtin_mul_overflow(d->batch * d->seq_q, d->seq_k, &n) ? INT64_MAX : n;
}

fattn_status fattn_stream_check(const fattn_problem *problem, const void *stream)
{
    if (stream && problem->device == FATTN_DEVICE_CPU)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.stream is not NULL, but the context's device is the CPU");
    return FATTN_OK;
}

/* What forward and backward have in common, besides q, k, v. */
static void list_common(optional_list *list, const fattn_problem *problem, const fattn_launch *at, const fattn_view *bias)
{
    const fattn_desc *d = &problem->desc;
    const bool intervals = d->mask == FATTN_MASK_INTERVALS, documents = d->mask == FATTN_MASK_DOCUMENT;
    const int64_t rows = all_rows(d, at), keys = all_keys(d, at);
    add(list, "cu_seqlens_q", at->cu_q, d->total_q > 0 || at->cu_q, "desc.total_q", d->batch + 1, 4);
    add(list, "cu_seqlens_k", at->cu_k, d->total_k > 0 || at->cu_k, "desc.total_k", d->batch + 1, 4);
    add(list, "used_q", at->used_q, at->used_q, "", d->batch, 4);
    add(list, "used_k", at->used_k, at->used_k, "", d->batch, 4);
    add(list, "mask_lo", at->mask_lo, intervals, "desc.mask", rows, 0);
    add(list, "mask_hi", at->mask_hi, intervals, "desc.mask", rows, 0);
    add(list, "document_q", at->document_q, documents, "desc.mask", rows, 4);
    add(list, "document_k", at->document_k, documents, "desc.mask", keys, 4);
    add(list, "bias", bias, (d->flags & FATTN_WITH_BIAS) != 0, "desc.flags", pairs(d), 0);
    add(list, "slopes", at->slopes, (d->flags & FATTN_WITH_SLOPES) != 0, "desc.flags", d->heads_q, 4);
    add(list, "sinks", at->sinks, (d->flags & FATTN_WITH_SINKS) != 0, "desc.flags", d->heads_q, 4);
}

static void list_forward(optional_list *list, const fattn_problem *problem, const fattn_launch *at)
{
    const fattn_desc *d = &problem->desc;
    const int64_t columns = d->page_size > 0 ? (d->seq_k + d->page_size - 1) / d->page_size : 0;
    const int64_t scales = d->heads_kv * (d->page_size > 0 ? d->pages * d->page_size : all_keys(d, at));
    const bool bytes = d->kv_dtype == FATTN_I8;
    add(list, "page_table", at->page_table, d->page_size > 0, "desc.page_size", d->batch * columns, 4);
    add(list, "k_scales", at->k_scales, bytes, "desc.kv_dtype", scales, 4);
    add(list, "v_scales", at->v_scales, bytes, "desc.kv_dtype", scales, 4);
}

static fattn_status check_common(const fattn_problem *problem, const fattn_launch *at, const void *stream)
{
    const fattn_desc *d = &problem->desc;
    const fattn_status status = fattn_stream_check(problem, stream);
    if (status != FATTN_OK)
        return status;
    if (at->mask_stride != 0 && (d->mask != FATTN_MASK_INTERVALS || at->cu_q))
        return fattn_fail(FATTN_ERROR_ARGUMENT,
                          "args.mask_stride is %" PRId64 ", but there is no intervals mask of padded rows", at->mask_stride);
    return FATTN_OK;
}

/* --------------------------------------------------------------------------------------------------------------- lists */

/* cu[0 .. batch] ascends from 0 to total in steps of at most `most`. */
static fattn_status check_cumulative(const char *name, const int32_t *cu, int64_t batch, int64_t total, const char *total_name,
                                     int64_t most, const char *most_name)
{
    if (!cu)
        return FATTN_OK;
    if (cu[0] != 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s[0] is %" PRId32 ", not 0", name, cu[0]);
    for (int64_t b = 0; b < batch; b++) {
        if (cu[b + 1] < cu[b])
            return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s[%" PRId64 "] is %" PRId32 ", less than the %" PRId32 " before it",
                              name, b + 1, cu[b + 1], cu[b]);
        if ((int64_t)cu[b + 1] - cu[b] > most)
            return fattn_fail(FATTN_ERROR_ARGUMENT,
                              "args.%s has %" PRId64 " rows in sequence %" PRId64 ", more than desc.%s, %" PRId64, name,
                              (int64_t)cu[b + 1] - cu[b], b, most_name, most);
    }
    if (cu[batch] != total)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s[%" PRId64 "] is %" PRId32 ", but desc.%s is %" PRId64, name, batch,
                          cu[batch], total_name, total);
    return FATTN_OK;
}

static fattn_status check_used(const char *name, const int32_t *used, const int32_t *cu, int64_t batch, int64_t most)
{
    for (int64_t b = 0; used && b < batch; b++) {
        const int64_t rows = cu ? cu[b + 1] - cu[b] : most;
        if (used[b] < 0 || used[b] > rows)
            return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s[%" PRId64 "] is %" PRId32 ", outside 0 .. %" PRId64, name, b,
                              used[b], rows);
    }
    return FATTN_OK;
}

static fattn_status check_lengths(const fattn_desc *d, const fattn_launch *at)
{
    fattn_status status = check_cumulative("cu_seqlens_q", at->cu_q, d->batch, d->total_q, "total_q", d->seq_q, "seq_q");
    if (status == FATTN_OK)
        status = check_cumulative("cu_seqlens_k", at->cu_k, d->batch, d->total_k, "total_k", d->seq_k, "seq_k");
    if (status == FATTN_OK)
        status = check_used("used_q", at->used_q, at->cu_q, d->batch, d->seq_q);
    return status != FATTN_OK ? status : check_used("used_k", at->used_k, at->cu_k, d->batch, d->seq_k);
}

static fattn_status check_ascending(const char *name, const int32_t *ids, int64_t n, int64_t b)
{
    for (int64_t i = 1; i < n; i++)
        if (ids[i] < ids[i - 1])
            return fattn_fail(FATTN_ERROR_ARGUMENT,
                              "args.%s of sequence %" PRId64 " goes down from %" PRId32 " to %" PRId32 " at row %" PRId64, name,
                              b, ids[i - 1], ids[i], i);
    return FATTN_OK;
}

static fattn_status check_documents(const fattn_problem *problem, const fattn_launch *at)
{
    for (int64_t b = 0; problem->desc.mask == FATTN_MASK_DOCUMENT && b < problem->desc.batch; b++) {
        const fattn_sequence s = fattn_sequence_of(problem, at, b);
        fattn_status status = check_ascending("document_q", s.mask.document_q, s.seq_q, b);
        if (status != FATTN_OK || (status = check_ascending("document_k", s.mask.document_k, s.seq_k, b)))
            return status;
    }
    return FATTN_OK;
}

fattn_status fattn_pages_check(const fattn_desc *d, const int32_t *page_table, int64_t b, int64_t from, int64_t to)
{
    const int64_t columns = (d->seq_k + d->page_size - 1) / d->page_size;
    for (int64_t i = from / d->page_size; i * d->page_size < to; i++) {
        const int32_t page = page_table[b * columns + i];
        if (page < 0 || page >= d->pages)
            return fattn_fail(FATTN_ERROR_ARGUMENT,
                              "args.page_table[%" PRId64 "][%" PRId64 "] is %" PRId32 ", outside the %" PRId64 " pages", b, i,
                              page, d->pages);
    }
    return FATTN_OK;
}

static fattn_status check_page_table(const fattn_problem *problem, const fattn_launch *at)
{
    for (int64_t b = 0; problem->desc.page_size > 0 && b < problem->desc.batch; b++) {
        const fattn_sequence s = fattn_sequence_of(problem, at, b);
        const fattn_status status = fattn_pages_check(&problem->desc, at->page_table, b, 0, s.seq_k);
        if (status != FATTN_OK)
            return status;
    }
    return FATTN_OK;
}

/* Tensors and lists without elements may be NULL, and C has no arithmetic on NULL, not even adding 0: kernels need not care. */
static void fill_absent(fattn_launch *at)
{
    fattn_view *const views[] = {&at->q, &at->k, &at->v, &at->out, &at->dout, &at->dq, &at->dk, &at->dv, &at->bias, &at->dbias};
    const int32_t **const lists[] = {&at->mask_lo, &at->mask_hi, &at->document_q, &at->document_k, &at->page_table};
    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        if (!views[i]->data)
            views[i]->data = fattn_nothing();
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (!*lists[i])
            *lists[i] = fattn_nothing();
}

/* What the lists say, whose alignment was checked before. */
static fattn_status check_lists(const fattn_problem *problem, fattn_launch *at)
{
    fill_absent(at);
    if (problem->device != FATTN_DEVICE_CPU)
        return FATTN_OK; /* they lie in the device's memory */
    fattn_status status = check_lengths(&problem->desc, at);
    if (status == FATTN_OK)
        status = check_documents(problem, at);
    return status != FATTN_OK ? status : check_page_table(problem, at);
}

/* ------------------------------------------------------------------------------------------------------------- regions */

enum { INPUTS_MOST = 20, OUTPUTS_MOST = 6 };

/* All tensors of a call. */
typedef struct tensors {
    const fattn_problem *problem;
    const fattn_launch *at;
    fattn_region input[INPUTS_MOST], output[OUTPUTS_MOST];
    int inputs, outputs;
} tensors;

/* A tensor with one row per query, or per key. */
static fattn_status read_queries(const tensors *t, fattn_region *r, bool output, const char *name, const fattn_view *view,
                                 int32_t dtype, int64_t dim)
{
    const fattn_desc *d = &t->problem->desc;
    const bool packed = t->at->cu_q != NULL;
    return (output ? fattn_region_output : fattn_region_view)(r, name, view, fattn_dtype_size(dtype), packed ? 1 : d->batch,
                                                              d->heads_q, packed ? d->total_q : d->seq_q, dim);
}

static fattn_status read_keys(const tensors *t, fattn_region *r, bool output, const char *name, const fattn_view *view,
                              int32_t dtype, int64_t dim)
{
    const fattn_desc *d = &t->problem->desc;
    const bool packed = t->at->cu_k != NULL, paged = d->page_size > 0;
    return (output ? fattn_region_output : fattn_region_view)(r, name, view, fattn_dtype_size(dtype),
                                                              packed  ? 1
                                                              : paged ? d->pages
                                                                      : d->batch,
                                                              d->heads_kv,
                                                              packed  ? d->total_k
                                                              : paged ? d->page_size
                                                                      : d->seq_k,
                                                              dim);
}

/* A tensor of rows: by which of the two it is read. */
typedef struct row_tensor {
    fattn_status (*read)(const tensors *t, fattn_region *r, bool output, const char *name, const fattn_view *view,
                         int32_t dtype, int64_t dim);
    const char *name;
    const fattn_view *view;
    int32_t dtype;
    int64_t dim;
} row_tensor;

static fattn_status read_inputs(tensors *t, const row_tensor *list, size_t count)
{
    fattn_status status = FATTN_OK;
    for (const row_tensor *x = list; x < list + count && status == FATTN_OK; x++)
        status = x->read(t, &t->input[t->inputs++], false, x->name, x->view, x->dtype, x->dim);
    return status;
}

static fattn_status read_outputs(tensors *t, const row_tensor *list, size_t count)
{
    fattn_status status = FATTN_OK;
    for (const row_tensor *x = list; x < list + count && status == FATTN_OK; x++)
        status = x->read(t, &t->output[t->outputs++], true, x->name, x->view, x->dtype, x->dim);
    return status;
}

static fattn_status read_pairs(const tensors *t, fattn_region *r, const char *name, const fattn_view *view)
{
    const fattn_desc *d = &t->problem->desc;
    return fattn_region_view(r, name, view, fattn_dtype_size(d->dtype), d->batch, d->heads_q, d->seq_q, d->seq_k);
}

static fattn_status read_dbias(const tensors *t, fattn_region *r)
{
    const fattn_desc *d = &t->problem->desc;
    const fattn_view *view = &t->at->dbias;
    const fattn_dbias_shape shape = fattn_dbias_shape_of(d, view);
    return fattn_region_output(r, "dbias", view, fattn_dtype_size(d->grad_dtype), shape.batch, shape.heads, shape.rows,
                               d->seq_k);
}

/* lse, dlse: one number per query row and head. */
static fattn_status read_row_numbers(const tensors *t, fattn_region *r, const char *name, const void *data)
{
    const fattn_desc *d = &t->problem->desc;
    return fattn_region_array(r, name, data, d->dtype == FATTN_F64 ? 8 : 4, all_rows(d, t->at) * d->heads_q);
}

/* mask_lo and mask_hi: a list for all sequences, for each one, or of all packed rows. */
static fattn_status read_intervals(const tensors *t, fattn_region *r, const char *name, const int32_t *data)
{
    const fattn_desc *d = &t->problem->desc;
    const fattn_view view = {(void *)(uintptr_t)data, t->at->mask_stride, 0, 0};
    if (!data || t->at->cu_q)
        return fattn_region_array(r, name, data, 4, d->total_q);
    return fattn_region_view(r, name, &view, 4, d->batch, 1, 1, d->seq_q);
}

/* The workspace, and what the list has. */
static fattn_status read_optional(tensors *t, const optional_list *list, const void *workspace, size_t workspace_size)
{
    const fattn_desc *d = &t->problem->desc;
    const fattn_launch *at = t->at;
    fattn_status status =
        fattn_region_array(&t->input[t->inputs++], "workspace", workspace, 1, workspace ? (int64_t)workspace_size : 0);
    for (const optional *x = list->item; x < list->item + list->count && status == FATTN_OK; x++)
        if (x->size > 0)
            status = fattn_region_array(&t->input[t->inputs++], x->name, x->value, x->size, x->elements);
    if (status != FATTN_OK || (status = read_intervals(t, &t->input[t->inputs++], "mask_lo", at->mask_lo)) ||
        (status = read_intervals(t, &t->input[t->inputs++], "mask_hi", at->mask_hi)))
        return status;
    return d->flags & FATTN_WITH_BIAS ? read_pairs(t, &t->input[t->inputs++], "bias", &at->bias) : FATTN_OK;
}

/* The workspace is the first input; it is written, so it too lies apart from all others. */
static fattn_status check_apart(const tensors *t)
{
    fattn_status status = fattn_region_apart(&t->input[0], t->input + 1, t->inputs - 1);
    for (int i = 0; i < t->outputs && status == FATTN_OK; i++) {
        status = fattn_region_apart(&t->output[i], t->input, t->inputs);
        if (status == FATTN_OK)
            status = fattn_region_apart(&t->output[i], t->output, i);
    }
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- operations */

/* Strides over at most one element mean nothing: 0, so that kernels may multiply with them. */
static void settle(fattn_view *view, int64_t batch, int64_t heads, int64_t rows)
{
    const bool none = batch == 0 || heads == 0 || rows == 0;
    if (none || batch == 1)
        view->stride_batch = 0;
    if (none || heads == 1)
        view->stride_head = 0;
    if (none || rows == 1)
        view->stride_row = 0;
}

/* A packed tensor's rows count through, as one sequence's. */
static void settle_queries(const tensors *t, fattn_view *view)
{
    const fattn_desc *d = &t->problem->desc;
    settle(view, t->at->cu_q ? 1 : d->batch, d->heads_q, t->at->cu_q ? d->total_q : d->seq_q);
}

static void settle_keys(const tensors *t, fattn_view *view)
{
    const fattn_desc *d = &t->problem->desc;
    if (d->page_size > 0)
        settle(view, d->pages, d->heads_kv, d->page_size);
    else
        settle(view, t->at->cu_k ? 1 : d->batch, d->heads_kv, t->at->cu_k ? d->total_k : d->seq_k);
}

static void settle_common(const tensors *t, fattn_launch *at)
{
    const fattn_desc *d = &t->problem->desc;
    settle(&at->bias, d->seq_k > 0 ? d->batch : 0, d->heads_q, d->seq_q);
    if (d->batch <= 1 || d->seq_q == 0)
        at->mask_stride = 0;
    settle_queries(t, &at->q);
    settle_keys(t, &at->k);
    settle_keys(t, &at->v);
}

/* The fields of fattn_launch that are those of a call's arguments whichever they are. But for bias, which is only looked at
 * once it is known to be asked for. */
#define COMMON_FIELDS(own)                                                                                                     \
    .q = (own)->q, .k = (own)->k, .v = (own)->v, .cu_q = (own)->cu_seqlens_q, .cu_k = (own)->cu_seqlens_k,                     \
    .used_q = (own)->used_q, .used_k = (own)->used_k, .mask_lo = (own)->mask_lo, .mask_hi = (own)->mask_hi,                    \
    .mask_stride = (own)->mask_stride, .document_q = (own)->document_q, .document_k = (own)->document_k,                       \
    .slopes = (own)->slopes, .sinks = (own)->sinks, .stream = (own)->stream

/* Everything that forward reads. */
static fattn_status read_forward_inputs(const fattn_problem *problem, const fattn_forward_args *own, fattn_launch *launch,
                                        tensors *t)
{
    const fattn_desc *d = &problem->desc;
    optional_list list = {.count = 0};
    *launch =
        (fattn_launch){COMMON_FIELDS(own), .page_table = own->page_table, .k_scales = own->k_scales, .v_scales = own->v_scales};
    *t = (tensors){.problem = problem, .at = launch};
    list_common(&list, problem, launch, own->bias);
    list_forward(&list, problem, launch);
    fattn_status status = check_reserved(own->reserved);
    if (status != FATTN_OK || (status = check_common(problem, launch, own->stream)))
        return status;
    if (d->page_size > 0 && launch->cu_k)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.cu_seqlens_k is given, but k and v are paged (desc.page_size)");
    if ((status = check_optional(&list)))
        return status;
    if (own->bias)
        launch->bias = *own->bias;
    if ((status = read_optional(t, &list, own->workspace, own->workspace_size)) || (status = check_lists(problem, launch)))
        return status;
    const row_tensor rows[] = {{read_queries, "q", &own->q, d->dtype, d->dim},
                               {read_keys, "k", &own->k, d->kv_dtype, d->dim},
                               {read_keys, "v", &own->v, d->kv_dtype, d->dim_v}};
    status = read_inputs(t, rows, sizeof rows / sizeof *rows);
    settle_common(t, launch);
    return status;
}

fattn_status fattn_forward_args_read(const fattn_problem *problem, const fattn_forward_args *args, fattn_launch *launch)
{
    const fattn_desc *d = &problem->desc;
    fattn_forward_args own;
    tensors t;
    fattn_status status = fattn_struct_read(&own, sizeof own, FATTN_FORWARD_ARGS_FIRST_SIZE, args, "args");
    if (status != FATTN_OK || (status = read_forward_inputs(problem, &own, launch, &t)) ||
        (status = read_queries(&t, &t.output[t.outputs++], true, "out", &own.out, d->out_dtype, d->dim_v)) ||
        (status = read_row_numbers(&t, &t.output[t.outputs++], "lse", own.lse)))
        return status;
    launch->out = own.out;
    launch->lse = own.lse;
    settle_queries(&t, &launch->out);
    fill_absent(launch);
    return check_apart(&t);
}

fattn_status fattn_scores_args_read(const fattn_problem *problem, const fattn_forward_args *args, fattn_launch *launch)
{
    fattn_forward_args own;
    tensors t;
    const fattn_status status = fattn_struct_read(&own, sizeof own, FATTN_FORWARD_ARGS_FIRST_SIZE, args, "args");
    if (status != FATTN_OK)
        return status;
    own.workspace = NULL;
    return read_forward_inputs(problem, &own, launch, &t);
}

static void list_backward(optional_list *list, const fattn_problem *problem, const fattn_launch *at,
                          const fattn_backward_args *own)
{
    const fattn_desc *d = &problem->desc;
    add(list, "dlse", own->dlse, (d->flags & FATTN_WITH_DLSE) != 0, "desc.flags", d->heads_q * all_rows(d, at), 0);
    /* Written: read_gradients reads them. A sum over nothing is written too. */
    add(list, "dbias", own->dbias, (d->flags & FATTN_WITH_DBIAS) != 0, "desc.flags", 1, 0);
    add(list, "dsinks", own->dsinks, (d->flags & FATTN_WITH_DSINKS) != 0, "desc.flags", d->heads_q, 0);
}

static fattn_status check_lse(const fattn_problem *problem, const fattn_launch *at)
{
    const int64_t rows = problem->desc.heads_q * all_rows(&problem->desc, at);
    if (!at->lse && rows > 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.lse is NULL, but backward needs its %" PRId64 " elements", rows);
    return FATTN_OK;
}

static fattn_status read_backward_inputs(tensors *t, const fattn_backward_args *own)
{
    const fattn_desc *d = &t->problem->desc;
    const row_tensor list[] = {{read_queries, "q", &own->q, d->dtype, d->dim},
                               {read_keys, "k", &own->k, d->dtype, d->dim},
                               {read_keys, "v", &own->v, d->dtype, d->dim_v},
                               {read_queries, "out", &own->out, d->out_dtype, d->dim_v},
                               {read_queries, "dout", &own->dout, d->out_dtype, d->dim_v}};
    fattn_status status = read_inputs(t, list, sizeof list / sizeof *list);
    if (status == FATTN_OK)
        status = read_row_numbers(t, &t->input[t->inputs++], "lse", own->lse);
    return status != FATTN_OK ? status : read_row_numbers(t, &t->input[t->inputs++], "dlse", own->dlse);
}

static fattn_status read_gradients(tensors *t, const fattn_backward_args *own)
{
    const fattn_desc *d = &t->problem->desc;
    const row_tensor list[] = {{read_queries, "dq", &own->dq, d->grad_dtype, d->dim},
                               {read_keys, "dk", &own->dk, d->grad_dtype, d->dim},
                               {read_keys, "dv", &own->dv, d->grad_dtype, d->dim_v}};
    fattn_status status = read_outputs(t, list, sizeof list / sizeof *list);
    if (status == FATTN_OK)
        status = fattn_region_array(&t->output[t->outputs++], "dsinks", own->dsinks, 4, own->dsinks ? d->heads_q : 0);
    return status != FATTN_OK || !own->dbias ? status : read_dbias(t, &t->output[t->outputs++]);
}

static void settle_backward(const tensors *t, fattn_launch *at)
{
    settle_common(t, at);
    settle_queries(t, &at->out);
    settle_queries(t, &at->dout);
    settle_queries(t, &at->dq);
    settle_keys(t, &at->dk);
    settle_keys(t, &at->dv);
    if (!at->lse)
        at->lse = fattn_nothing();
    if (!at->dlse)
        at->dlse = fattn_nothing();
}

fattn_status fattn_backward_args_read(const fattn_problem *problem, const fattn_backward_args *args, fattn_launch *launch)
{
    fattn_backward_args own;
    fattn_status status = fattn_struct_read(&own, sizeof own, FATTN_BACKWARD_ARGS_FIRST_SIZE, args, "args");
    if (status != FATTN_OK || (status = check_reserved(own.reserved)))
        return status;
    *launch = (fattn_launch){COMMON_FIELDS(&own),
                             .out = own.out,
                             .dout = own.dout,
                             .dq = own.dq,
                             .dk = own.dk,
                             .dv = own.dv,
                             .lse = (void *)(uintptr_t)own.lse, /* only forward writes it */
                             .dlse = own.dlse,
                             .dsinks = own.dsinks};
    tensors t = {.problem = problem, .at = launch};
    optional_list list = {.count = 0};
    list_common(&list, problem, launch, own.bias);
    list_backward(&list, problem, launch, &own);
    if ((status = check_common(problem, launch, own.stream)) || (status = check_lse(problem, launch)) ||
        (status = check_optional(&list)))
        return status;
    if (own.bias)
        launch->bias = *own.bias;
    if (own.dbias)
        launch->dbias = *own.dbias;
    if ((status = read_optional(&t, &list, own.workspace, own.workspace_size)) || (status = check_lists(problem, launch)) ||
        (status = read_backward_inputs(&t, &own)) || (status = read_gradients(&t, &own)))
        return status;
    settle_backward(&t, launch);
    return check_apart(&t);
}
