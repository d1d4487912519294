/*
 * The arguments of a call: tensors lie where they say, aligned, within the address space, and outputs lie apart.
 *
 * A tensor becomes a region: three loops (batch, head, row) over runs of contiguous bytes, sorted by step. An output's region
 * must be nested, each step at least the span of all that the smaller ones reach, which every layout made by permuting and
 * slicing a contiguous buffer is. In a nested region, whether an address belongs to it follows from three divisions.
 *
 * Two regions overlap for certain where the lowest or highest byte of one belongs to the other. This is what is refused.
 * Interleaved tensors, such as packed q, k, v and their gradients, have no common byte and pass; odd overlaps in the middle of
 * two sparse regions are not found.
 */
#include <inttypes.h>
#include <string.h>

#include "core/error.h"
#include "core/validate.h"

#define MOST_REACH ((int64_t)1 << 57) /* bytes; the largest address spaces of programs are of this size */

typedef struct region {
    const char *name;
    uintptr_t lo, hi;  /* first byte, and the one past the last; equal if it has no elements */
    uint64_t step[3];  /* bytes, descending */
    uint64_t count[3]; /* 1 where the step is 0 */
    uint64_t run;      /* contiguous bytes at the bottom */
} region;

/* ----------------------------------------------------------------------------------------------------------- regions */

static void sort_loops(region *r)
{
    static const int pairs[3][2] = {{0, 1}, {1, 2}, {0, 1}};
    for (int p = 0; p < 3; p++) {
        const int a = pairs[p][0], b = pairs[p][1];
        if (r->step[a] < r->step[b]) {
            const uint64_t step = r->step[a], count = r->count[a];
            r->step[a] = r->step[b], r->count[a] = r->count[b];
            r->step[b] = step, r->count[b] = count;
        }
    }
}

/* Turns a view into a region, or says why it is none. */
static fattn_status read_view(region *r, const char *name, const fattn_view *view, size_t size, int64_t batch, int64_t heads,
                              int64_t rows, int64_t dim)
{
    const int64_t count[3] = {batch, heads, rows};
    const int64_t stride[3] = {view->stride_batch, view->stride_head, view->stride_row};
    static const char *const stride_name[3] = {"stride_batch", "stride_head", "stride_row"};
    int64_t below = 0, above = dim * (int64_t)size;

    memset(r, 0, sizeof *r);
    r->name = name;
    if (batch == 0 || heads == 0 || rows == 0)
        return FATTN_OK;
    if (!view->data)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s.data is NULL, but %s has %" PRId64 " elements", name, name,
                          batch * heads * rows * dim);
    if ((uintptr_t)view->data % size != 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s.data is %p, not aligned to its type's %zu bytes", name, view->data,
                          size);
    r->run = (uint64_t)above;
    for (int i = 0; i < 3; i++) {
        int64_t step = 0, reach = 0;
        const bool used = count[i] > 1 && stride[i] != 0;
        int64_t *end = stride[i] < 0 ? &below : &above;
        if (used && (__builtin_mul_overflow(stride[i], (int64_t)size, &step) ||
                     __builtin_mul_overflow(step, count[i] - 1, &reach) || __builtin_add_overflow(*end, reach, end)))
            return fattn_fail(FATTN_ERROR_ARGUMENT,
                              "args.%s.%s is %" PRId64 ", which times %" PRId64 " leaves 64-bit addresses", name,
                              stride_name[i], stride[i], count[i]);
        r->step[i] = step < 0 ? -(uint64_t)step : (uint64_t)step;
        r->count[i] = used ? (uint64_t)count[i] : 1;
    }
    const uintptr_t data = (uintptr_t)view->data;
    if (below < -MOST_REACH || above > MOST_REACH || -(uint64_t)below > data ||
        __builtin_add_overflow(data, (uint64_t)above, &r->hi))
        return fattn_fail(FATTN_ERROR_ARGUMENT,
                          "args.%s.data is %p, from where its strides reach %" PRId64 " .. %" PRId64
                          " bytes, out of the address space",
                          name, view->data, below, above);
    r->lo = data - -(uint64_t)below;
    sort_loops(r);
    return FATTN_OK;
}

static fattn_status check_nested(const region *r, const fattn_view *view, const int64_t count[3])
{
    const int64_t stride[3] = {view->stride_batch, view->stride_head, view->stride_row};
    static const char *const stride_name[3] = {"stride_batch", "stride_head", "stride_row"};
    uint64_t span = r->run;
    if (r->lo == r->hi)
        return FATTN_OK;
    for (int i = 0; i < 3; i++)
        if (count[i] > 1 && stride[i] == 0)
            return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s.%s is 0, but args.%s is an output and has %" PRId64 " of them",
                              r->name, stride_name[i], r->name, count[i]);
    for (int i = 2; i >= 0; i--) {
        if (r->count[i] > 1 && r->step[i] < span)
            return fattn_fail(FATTN_ERROR_ARGUMENT,
                              "args.%s overlaps itself: a stride of %" PRIu64 " bytes steps over a span of %" PRIu64 " bytes",
                              r->name, r->step[i], span);
        span += r->step[i] * (r->count[i] - 1);
    }
    return FATTN_OK;
}

static fattn_status read_output(region *r, const char *name, const fattn_view *view, size_t size, int64_t batch, int64_t heads,
                                int64_t rows, int64_t dim)
{
    const int64_t count[3] = {batch, heads, rows};
    const fattn_status status = read_view(r, name, view, size, batch, heads, rows, dim);
    return status != FATTN_OK ? status : check_nested(r, view, count);
}

/* One contiguous array; lse is one. */
static fattn_status read_array(region *r, const char *name, const void *data, size_t size, int64_t elements)
{
    memset(r, 0, sizeof *r);
    r->name = name;
    if (!data || elements == 0)
        return FATTN_OK;
    if ((uintptr_t)data % size != 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s is %p, not aligned to its type's %zu bytes", name, data, size);
    r->lo = (uintptr_t)data;
    r->run = (uint64_t)elements * size;
    if (__builtin_add_overflow(r->lo, r->run, &r->hi))
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s is %p, from where %" PRIu64 " bytes leave the address space", name,
                          data, r->run);
    r->count[0] = r->count[1] = r->count[2] = 1;
    return FATTN_OK;
}

/* -------------------------------------------------------------------------------------------------------- overlaps */

/* Whether the region has this byte. True is certain; false is certain if the region is nested. */
static bool has_byte(const region *r, uintptr_t address)
{
    if (address < r->lo || address >= r->hi)
        return false;
    uint64_t offset = address - r->lo;
    for (int i = 0; i < 3; i++) {
        if (r->count[i] <= 1)
            continue;
        const uint64_t n = offset / r->step[i];
        offset -= (n < r->count[i] ? n : r->count[i] - 1) * r->step[i];
    }
    return offset < r->run;
}

static fattn_status check_apart(const region *output, const region *others, int count)
{
    for (int i = 0; i < count; i++) {
        const region *o = &others[i];
        if (output->lo >= o->hi || o->lo >= output->hi)
            continue;
        if (has_byte(output, o->lo) || has_byte(output, o->hi - 1) || has_byte(o, output->lo) || has_byte(o, output->hi - 1))
            return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s, at 0x%" PRIxPTR ", overlaps args.%s, at 0x%" PRIxPTR,
                              output->name, output->lo, o->name, o->lo);
    }
    return FATTN_OK;
}

/* --------------------------------------------------------------------------------------------------------- operations */

static fattn_status unsupported_field(const char *name)
{
    return fattn_fail(FATTN_ERROR_UNSUPPORTED, "args.%s is not NULL; it is not supported yet", name);
}

static fattn_status check_reserved(uint32_t reserved)
{
    return reserved == 0 ? FATTN_OK : fattn_fail(FATTN_ERROR_ARGUMENT, "args.reserved is %" PRIu32 ", not 0", reserved);
}

/* The first field of the list that is set. */
typedef struct optional {
    const void *value;
    const char *name;
} optional;

static fattn_status check_optional(const optional *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (list[i].value)
            return unsupported_field(list[i].name);
    return FATTN_OK;
}

fattn_status fattn_forward_args_read(const fattn_problem *problem, const fattn_forward_args *args, fattn_launch *launch)
{
    const fattn_desc *d = &problem->desc;
    const size_t size = fattn_dtype_size(d->dtype);
    fattn_forward_args own;
    region inputs[4], out, lse;
    fattn_status status = fattn_struct_read(&own, sizeof own, FATTN_FORWARD_ARGS_FIRST_SIZE, args, "args");
    if (status != FATTN_OK || (status = check_reserved(own.reserved)))
        return status;
    const optional unsupported[] = {{own.cu_seqlens_q, "cu_seqlens_q"},
                                    {own.cu_seqlens_k, "cu_seqlens_k"},
                                    {own.used_q, "used_q"},
                                    {own.used_k, "used_k"},
                                    {own.mask_lo, "mask_lo"},
                                    {own.mask_hi, "mask_hi"},
                                    {own.bias, "bias"},
                                    {own.slopes, "slopes"},
                                    {own.sinks, "sinks"},
                                    {own.stream, "stream"}};
    if ((status = check_optional(unsupported, sizeof unsupported / sizeof *unsupported)) ||
        (status = read_view(&inputs[0], "q", &own.q, size, d->batch, d->heads_q, d->seq_q, d->dim)) ||
        (status = read_view(&inputs[1], "k", &own.k, size, d->batch, d->heads_kv, d->seq_k, d->dim)) ||
        (status = read_view(&inputs[2], "v", &own.v, size, d->batch, d->heads_kv, d->seq_k, d->dim_v)) ||
        (status = read_output(&out, "out", &own.out, size, d->batch, d->heads_q, d->seq_q, d->dim_v)) ||
        (status = read_array(&lse, "lse", own.lse, size, d->batch * d->heads_q * d->seq_q)) ||
        (status = read_array(&inputs[3], "workspace", own.workspace, 1, own.workspace ? (int64_t)own.workspace_size : 0)) ||
        (status = check_apart(&out, inputs, 4)) || (status = check_apart(&lse, inputs, 4)) ||
        (status = check_apart(&lse, &out, 1)) || (status = check_apart(&inputs[3], inputs, 3)))
        return status;
    *launch = (fattn_launch){.q = own.q, .k = own.k, .v = own.v, .out = own.out, .lse = own.lse};
    return FATTN_OK;
}

static fattn_status check_lse(const fattn_problem *problem, const void *lse)
{
    const fattn_desc *d = &problem->desc;
    if (!lse && d->batch > 0 && d->seq_q > 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.lse is NULL, but backward needs its %" PRId64 " elements",
                          d->batch * d->heads_q * d->seq_q);
    return FATTN_OK;
}

fattn_status fattn_backward_args_read(const fattn_problem *problem, const fattn_backward_args *args, fattn_launch *launch)
{
    const fattn_desc *d = &problem->desc;
    const size_t size = fattn_dtype_size(d->dtype);
    fattn_backward_args own;
    region inputs[7], outputs[3];
    fattn_status status = fattn_struct_read(&own, sizeof own, FATTN_BACKWARD_ARGS_FIRST_SIZE, args, "args");
    if (status != FATTN_OK || (status = check_reserved(own.reserved)))
        return status;
    const optional unsupported[] = {{own.dlse, "dlse"},
                                    {own.cu_seqlens_q, "cu_seqlens_q"},
                                    {own.cu_seqlens_k, "cu_seqlens_k"},
                                    {own.used_q, "used_q"},
                                    {own.used_k, "used_k"},
                                    {own.mask_lo, "mask_lo"},
                                    {own.mask_hi, "mask_hi"},
                                    {own.bias, "bias"},
                                    {own.slopes, "slopes"},
                                    {own.sinks, "sinks"},
                                    {own.dbias, "dbias"},
                                    {own.dsinks, "dsinks"},
                                    {own.stream, "stream"}};
    if ((status = check_optional(unsupported, sizeof unsupported / sizeof *unsupported)) ||
        (status = read_view(&inputs[0], "q", &own.q, size, d->batch, d->heads_q, d->seq_q, d->dim)) ||
        (status = read_view(&inputs[1], "k", &own.k, size, d->batch, d->heads_kv, d->seq_k, d->dim)) ||
        (status = read_view(&inputs[2], "v", &own.v, size, d->batch, d->heads_kv, d->seq_k, d->dim_v)) ||
        (status = read_view(&inputs[3], "out", &own.out, size, d->batch, d->heads_q, d->seq_q, d->dim_v)) ||
        (status = read_view(&inputs[4], "dout", &own.dout, size, d->batch, d->heads_q, d->seq_q, d->dim_v)) ||
        (status = check_lse(problem, own.lse)) ||
        (status = read_array(&inputs[5], "lse", own.lse, size, d->batch * d->heads_q * d->seq_q)) ||
        (status = read_array(&inputs[6], "workspace", own.workspace, 1, own.workspace ? (int64_t)own.workspace_size : 0)) ||
        (status = read_output(&outputs[0], "dq", &own.dq, size, d->batch, d->heads_q, d->seq_q, d->dim)) ||
        (status = read_output(&outputs[1], "dk", &own.dk, size, d->batch, d->heads_kv, d->seq_k, d->dim)) ||
        (status = read_output(&outputs[2], "dv", &own.dv, size, d->batch, d->heads_kv, d->seq_k, d->dim_v)))
        return status;
    for (int i = 0; i < 3; i++)
        if ((status = check_apart(&outputs[i], inputs, 7)) || (status = check_apart(&outputs[i], outputs, i)))
            return status;
    if ((status = check_apart(&inputs[6], inputs, 6)))
        return status;
    *launch = (fattn_launch){.q = own.q,
                             .k = own.k,
                             .v = own.v,
                             .out = own.out,
                             .dout = own.dout,
                             .dq = own.dq,
                             .dk = own.dk,
                             .dv = own.dv,
                             /* Only forward writes lse. */
                             .lse = (void *)(uintptr_t)own.lse};
    return FATTN_OK;
}
