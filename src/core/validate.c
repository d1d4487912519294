/*
 * Struct versions, and the descriptor: every field is checked here once, so that nothing behind this file has to.
 *
 * Order: the struct itself, enumerators, sizes, products of sizes (everything a kernel may compute in 64 bits does not
 * overflow), the mask, the numbers, and at last which of them go together.
 */
#include "core/validate.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "core/error.h"
#include "core/flush.h"

_Static_assert(offsetof(fattn_desc, total_q) == FATTN_DESC_FIRST_SIZE, "fields are only appended");
_Static_assert(offsetof(fattn_forward_args, mask_stride) == FATTN_FORWARD_ARGS_FIRST_SIZE || sizeof(void *) != 8,
               "fields are only appended");
_Static_assert(offsetof(fattn_backward_args, mask_stride) == FATTN_BACKWARD_ARGS_FIRST_SIZE || sizeof(void *) != 8,
               "fields are only appended");
_Static_assert(offsetof(fattn_merge_args, stream) == FATTN_MERGE_ARGS_FIRST_SIZE || sizeof(void *) != 8,
               "fields are only appended");
_Static_assert(offsetof(fattn_merge_backward_args, stream) == FATTN_MERGE_BACKWARD_ARGS_FIRST_SIZE || sizeof(void *) != 8,
               "fields are only appended");
_Static_assert(offsetof(fattn_cache_args, stream) == FATTN_CACHE_ARGS_FIRST_SIZE || sizeof(void *) != 8,
               "fields are only appended");

/* ----------------------------------------------------------------------------------------------------------- structs */

/* The struct_size of a caller's struct; 0 after an error, which is one of argument. */
static uint32_t size_of_caller(const void *caller, size_t first_size, const char *name)
{
    uint32_t size;
    if (!caller) {
        fattn_fail(FATTN_ERROR_ARGUMENT, "%s is NULL", name);
        return 0;
    }
    memcpy(&size, caller, sizeof size);
    if (size >= first_size)
        return size;
    fattn_fail(FATTN_ERROR_ARGUMENT, "%s.struct_size is %" PRIu32 ", less than %zu, the size of its first version", name, size,
               first_size);
    return 0;
}

fattn_status fattn_struct_read(void *own, size_t own_size, size_t first_size, const void *caller, const char *name)
{
    const uint32_t size = size_of_caller(caller, first_size, name);
    if (size == 0)
        return FATTN_ERROR_ARGUMENT;
    const unsigned char *bytes = caller;
    for (size_t i = own_size; i < size; i++)
        if (bytes[i] != 0)
            return fattn_fail(FATTN_ERROR_ARGUMENT,
                              "%s.struct_size is %" PRIu32 " and byte %zu is set, but this library (%s) knows %zu bytes", name,
                              size, i, fattn_version(), own_size);
    if (size >= own_size) {
        memcpy(own, caller, own_size);
    } else {
        memset(own, 0, own_size);
        memcpy(own, caller, size);
    }
    return FATTN_OK;
}

fattn_status fattn_struct_write(const void *own, size_t own_size, size_t first_size, void *caller, const char *name)
{
    const uint32_t size = size_of_caller(caller, first_size, name);
    if (size == 0)
        return FATTN_ERROR_ARGUMENT;
    const size_t end = size < own_size ? size : own_size;
    memcpy((char *)caller + sizeof size, (const char *)own + sizeof size, end - sizeof size);
    return FATTN_OK;
}

/* -------------------------------------------------------------------------------------------------------- descriptor */

static fattn_status check_enumerators(const fattn_desc *d)
{
    if (d->dtype < FATTN_F32 || d->dtype > FATTN_BF16)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.dtype is %" PRId32 ", not one of fattn_dtype, 1 .. %d", d->dtype,
                          FATTN_BF16);
    if (d->out_dtype < FATTN_DTYPE_NONE || d->out_dtype > FATTN_BF16)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.out_dtype is %" PRId32 ", not one of fattn_dtype, 0 .. %d", d->out_dtype,
                          FATTN_BF16);
    if (d->kv_dtype < FATTN_DTYPE_NONE || d->kv_dtype > FATTN_I8)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.kv_dtype is %" PRId32 ", not one of fattn_dtype, 0 .. %d", d->kv_dtype,
                          FATTN_I8);
    if (d->grad_dtype < FATTN_DTYPE_NONE || d->grad_dtype > FATTN_BF16)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.grad_dtype is %" PRId32 ", not one of fattn_dtype, 0 .. %d",
                          d->grad_dtype, FATTN_BF16);
    if (d->mask < FATTN_MASK_FULL || d->mask > FATTN_MASK_INTERVALS)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.mask is %" PRId32 ", not one of fattn_mask, 0 .. %d", d->mask,
                          FATTN_MASK_INTERVALS);
    if (d->align < FATTN_ALIGN_TOP_LEFT || d->align > FATTN_ALIGN_BOTTOM_RIGHT)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.align is %" PRId32 ", not one of fattn_align, 0 .. %d", d->align,
                          FATTN_ALIGN_BOTTOM_RIGHT);
    return FATTN_OK;
}

static fattn_status check_range(const char *name, int64_t value, int64_t low, int64_t high)
{
    if (value < low || value > high)
        return high == INT64_MAX
                   ? fattn_fail(FATTN_ERROR_ARGUMENT, "desc.%s is %" PRId64 ", less than %" PRId64, name, value, low)
                   : fattn_fail(FATTN_ERROR_ARGUMENT, "desc.%s is %" PRId64 ", outside %" PRId64 " .. %" PRId64, name, value,
                                low, high);
    return FATTN_OK;
}

static fattn_status check_sizes(const fattn_desc *d)
{
    fattn_status status;
    if ((status = check_range("batch", d->batch, 0, INT64_MAX)) ||
        (status = check_range("heads_q", d->heads_q, 1, INT64_MAX)) ||
        (status = check_range("heads_kv", d->heads_kv, 1, INT64_MAX)) ||
        (status = check_range("seq_q", d->seq_q, 0, INT64_MAX)) || (status = check_range("seq_k", d->seq_k, 0, INT64_MAX)) ||
        (status = check_range("dim", d->dim, 1, FATTN_DIM_MOST)) ||
        (status = check_range("dim_v", d->dim_v, 1, FATTN_DIM_MOST)) ||
        (status = check_range("total_q", d->total_q, 0, INT64_MAX)) ||
        (status = check_range("total_k", d->total_k, 0, INT64_MAX)) ||
        (status = check_range("page_size", d->page_size, 0, INT64_MAX)) ||
        (status = check_range("pages", d->pages, 0, INT64_MAX)))
        return status;
    if (d->heads_q % d->heads_kv != 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.heads_q is %" PRId64 ", not a multiple of desc.heads_kv, %" PRId64,
                          d->heads_q, d->heads_kv);
    return FATTN_OK;
}

/* What one tensor holds: a product of sizes, each with its name. */
typedef struct product {
    const char *outer_name, *heads_name, *rows_name;
    int64_t outer, heads, rows;
} product;

/* A contiguous [outer, heads, rows, dim] tensor of doubles fits in 2^50 bytes, even if sizes of 0 were 1. That is beyond any
 * machine, and leaves kernels room to compute with sizes: a few such tensors for each of 1024 lanes do not overflow 64 bits. */
static fattn_status check_product(const fattn_desc *d, const product *p)
{
    const int64_t dim = d->dim > d->dim_v ? d->dim : d->dim_v;
    int64_t bytes;
    if (__builtin_mul_overflow(p->outer > 0 ? p->outer : 1, p->heads, &bytes) ||
        __builtin_mul_overflow(bytes, p->rows > 0 ? p->rows : 1, &bytes) ||
        __builtin_mul_overflow(bytes, dim * (int64_t)sizeof(double), &bytes) || bytes > (int64_t)1 << 50)
        return fattn_fail(FATTN_ERROR_ARGUMENT,
                          "desc.%s * desc.%s * desc.%s is %" PRId64 " * %" PRId64 " * %" PRId64 ", which times %" PRId64
                          " doubles is more than 2^50 bytes",
                          p->outer_name, p->heads_name, p->rows_name, p->outer, p->heads, p->rows, dim);
    return FATTN_OK;
}

static fattn_status check_products(const fattn_desc *d)
{
    const product all[] = {{"batch", "heads_q", "seq_q", d->batch, d->heads_q, d->seq_q},
                           {"batch", "heads_kv", "seq_k", d->batch, d->heads_kv, d->seq_k},
                           {"batch", "heads_q", "total_q", d->batch, d->heads_q, d->total_q},
                           {"batch", "heads_kv", "total_k", d->batch, d->heads_kv, d->total_k},
                           {"pages", "heads_kv", "page_size", d->pages, d->heads_kv, d->page_size}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const fattn_status status = check_product(d, &all[i]);
        if (status != FATTN_OK)
            return status;
    }
    return FATTN_OK;
}

/* ---------------------------------------------------------------------------------------------------------------- mask */

static fattn_status check_window(const fattn_desc *d)
{
    if (d->mask == FATTN_MASK_WINDOW || d->mask == FATTN_MASK_DOCUMENT) {
        const fattn_status status = check_range("window_left", d->window_left, -1, INT64_MAX);
        return status != FATTN_OK ? status : check_range("window_right", d->window_right, -1, INT64_MAX);
    }
    if (d->window_left != 0 || d->window_right != 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT,
                          "desc.window_left and window_right are %" PRId64 " and %" PRId64 ", but desc.mask is %" PRId32
                          ", neither FATTN_MASK_WINDOW nor FATTN_MASK_DOCUMENT",
                          d->window_left, d->window_right, d->mask);
    return FATTN_OK;
}

static fattn_status check_mask(const fattn_desc *d)
{
    const fattn_status status = check_window(d);
    if (status != FATTN_OK)
        return status;
    if (d->mask == FATTN_MASK_CHUNKED)
        return check_range("mask_size", d->mask_size, 1, INT64_MAX);
    if (d->mask == FATTN_MASK_PREFIX)
        return check_range("mask_size", d->mask_size, 0, INT64_MAX);
    if (d->mask_size != 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT,
                          "desc.mask_size is %" PRId64 ", but desc.mask is %" PRId32
                          ", neither FATTN_MASK_CHUNKED nor FATTN_MASK_PREFIX",
                          d->mask_size, d->mask);
    return FATTN_OK;
}

/* ---------------------------------------------------------------------------------------------------- types and numbers */

static bool is_narrow(int32_t dtype)
{
    return dtype == FATTN_F16 || dtype == FATTN_BF16;
}

/* A result's type: that of the inputs, or float where those have 16 bits. */
static fattn_status check_result_type(const fattn_desc *d, const char *name, int32_t type)
{
    if (type == FATTN_DTYPE_NONE || type == d->dtype || (type == FATTN_F32 && is_narrow(d->dtype)))
        return FATTN_OK;
    return fattn_fail(FATTN_ERROR_UNSUPPORTED,
                      "desc.%s is %" PRId32 " and desc.dtype %" PRId32
                      "; they may differ only as FATTN_F32 for results of 16-bit inputs",
                      name, type, d->dtype);
}

static fattn_status check_types(const fattn_desc *d)
{
    const fattn_status status = check_result_type(d, "out_dtype", d->out_dtype);
    if (status != FATTN_OK)
        return status;
    if (d->kv_dtype != FATTN_DTYPE_NONE && d->kv_dtype != d->dtype && (d->kv_dtype != FATTN_I8 || d->dtype == FATTN_F64))
        return fattn_fail(FATTN_ERROR_UNSUPPORTED,
                          "desc.kv_dtype is %" PRId32 " and desc.dtype %" PRId32
                          "; they may differ only as FATTN_I8 beside a type of 32 or 16 bits",
                          d->kv_dtype, d->dtype);
    return check_result_type(d, "grad_dtype", d->grad_dtype);
}

/* Elements are numbered in 32 bits for Philox. */
static fattn_status check_dropout(const fattn_desc *d)
{
    const int64_t most = (int64_t)1 << 32;
    if (!(d->dropout >= 0 && d->dropout < 1))
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.dropout is %g, outside [0, 1)", d->dropout);
    if (d->seed != 0 && d->dropout == 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.seed is %" PRIu64 ", but desc.dropout is 0", d->seed);
    if (d->dropout > 0 && (d->seq_q > most || d->seq_k / 4 > most || (d->batch > 0 && d->heads_q > most / d->batch)))
        return fattn_fail(FATTN_ERROR_UNSUPPORTED,
                          "desc.dropout is %g, but seq_q %" PRId64 ", seq_k / 4 %" PRId64 " or batch * heads_q %" PRId64
                          " * %" PRId64 " exceeds 2^32",
                          d->dropout, d->seq_q, d->seq_k / 4, d->batch, d->heads_q);
    return FATTN_OK;
}

static fattn_status check_numbers(const fattn_desc *d)
{
    if (!isfinite(d->scale))
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.scale is %g, not finite", d->scale);
    if (d->dtype != FATTN_F64 && fabs(d->scale) > FLT_MAX)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.scale is %g, beyond the largest float, %g", d->scale, FLT_MAX);
    if (!(d->softcap >= 0 && isfinite(d->softcap)))
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.softcap is %g, not a finite number of at least 0", d->softcap);
    if (d->dtype != FATTN_F64 && d->softcap > FLT_MAX)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.softcap is %g, beyond the largest float, %g", d->softcap, FLT_MAX);
    const double least = d->dtype == FATTN_F64 ? DBL_MIN : FLT_MIN;
    if (d->softcap > 0 && d->softcap < least)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.softcap is %g, below the smallest normal number, %g; 0 is none",
                          d->softcap, least);
    return check_dropout(d);
}

enum {
    FLAGS = FATTN_WITH_BIAS | FATTN_WITH_SLOPES | FATTN_WITH_SINKS | FATTN_WITH_DLSE | FATTN_WITH_DBIAS | FATTN_WITH_DSINKS |
            FATTN_UNORDERED
};

static fattn_status check_flags(const fattn_desc *d)
{
    if (d->flags & ~(uint32_t)FLAGS)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.flags is 0x%" PRIx32 ", with bits beyond those that there are, 0x%x",
                          d->flags, (unsigned)FLAGS);
    if ((d->flags & FATTN_WITH_DBIAS) && !(d->flags & FATTN_WITH_BIAS))
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.flags is 0x%" PRIx32 ": FATTN_WITH_DBIAS without FATTN_WITH_BIAS",
                          d->flags);
    if ((d->flags & FATTN_WITH_DSINKS) && !(d->flags & FATTN_WITH_SINKS))
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.flags is 0x%" PRIx32 ": FATTN_WITH_DSINKS without FATTN_WITH_SINKS",
                          d->flags);
    return FATTN_OK;
}

static fattn_status check_pages(const fattn_desc *d)
{
    if (d->page_size == 0 && d->pages != 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.pages is %" PRId64 ", but desc.page_size is 0", d->pages);
    if (d->page_size > 0 && d->total_k > 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT,
                          "desc.page_size is %" PRId64 " and desc.total_k %" PRId64 ": k and v are either paged or packed",
                          d->page_size, d->total_k);
    return FATTN_OK;
}

/* Rounded to nearest, like all that kernels compute, whatever the caller's mode is. The compiler knows nothing of modes;
 * volatile keeps the arithmetic between the switches. */
static double default_scale(int64_t dim)
{
    volatile double x = (double)dim;
    const fattn_fp_mode mode = fattn_fp_enter();
    x = 1 / sqrt(x);
    fattn_fp_leave(mode);
    return x;
}

fattn_status fattn_desc_read(const fattn_desc *desc, fattn_problem *problem)
{
    fattn_desc *d = &problem->desc;
    fattn_status status = fattn_struct_read(d, sizeof *d, FATTN_DESC_FIRST_SIZE, desc, "desc");
    if (status != FATTN_OK || (status = check_enumerators(d)) || (status = check_sizes(d)) || (status = check_products(d)) ||
        (status = check_pages(d)) || (status = check_mask(d)) || (status = check_numbers(d)) || (status = check_flags(d)) ||
        (status = check_types(d)))
        return status;
    d->struct_size = sizeof *d;
    d->out_dtype = d->out_dtype == FATTN_DTYPE_NONE ? d->dtype : d->out_dtype;
    d->kv_dtype = d->kv_dtype == FATTN_DTYPE_NONE ? d->dtype : d->kv_dtype;
    d->grad_dtype = d->grad_dtype == FATTN_DTYPE_NONE ? d->dtype : d->grad_dtype;
    if (d->scale == 0)
        d->scale = default_scale(d->dim);
    problem->group = d->heads_q / d->heads_kv;
    return FATTN_OK;
}
