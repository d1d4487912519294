/*
 * Struct versions, and the descriptor: every field is checked here once, so that nothing behind this file has to.
 *
 * Order: the struct itself, enumerators, sizes, products of sizes (everything a kernel may compute in 64 bits does not
 * overflow), the mask, the numbers, and at last what makes sense but is not supported yet.
 */
#include "core/validate.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "core/flush.h"

_Static_assert(sizeof(fattn_desc) == FATTN_DESC_FIRST_SIZE, "fields are only appended");
_Static_assert(sizeof(fattn_forward_args) == FATTN_FORWARD_ARGS_FIRST_SIZE || sizeof(void *) != 8, "fields are only appended");
_Static_assert(sizeof(fattn_backward_args) == FATTN_BACKWARD_ARGS_FIRST_SIZE || sizeof(void *) != 8,
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
    if (d->mask < FATTN_MASK_FULL || d->mask > FATTN_MASK_WINDOW)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.mask is %" PRId32 ", not one of fattn_mask, 0 .. %d", d->mask,
                          FATTN_MASK_WINDOW);
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
        (status = check_range("dim_v", d->dim_v, 1, FATTN_DIM_MOST)))
        return status;
    if (d->heads_q % d->heads_kv != 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.heads_q is %" PRId64 ", not a multiple of desc.heads_kv, %" PRId64,
                          d->heads_q, d->heads_kv);
    return FATTN_OK;
}

/* A contiguous [batch, heads, seq, dim] tensor of doubles fits in 2^50 bytes, even if sizes of 0 were 1. That is beyond any
 * machine, and leaves kernels room to compute with sizes: a few such tensors for each of 1024 lanes do not overflow 64 bits. */
static fattn_status check_product(const fattn_desc *d, const char *heads_name, const char *seq_name, int64_t heads, int64_t seq)
{
    const int64_t dim = d->dim > d->dim_v ? d->dim : d->dim_v;
    int64_t bytes;
    if (__builtin_mul_overflow(d->batch > 0 ? d->batch : 1, heads, &bytes) ||
        __builtin_mul_overflow(bytes, seq > 0 ? seq : 1, &bytes) ||
        __builtin_mul_overflow(bytes, dim * (int64_t)sizeof(double), &bytes) || bytes > (int64_t)1 << 50)
        return fattn_fail(FATTN_ERROR_ARGUMENT,
                          "desc.batch * desc.%s * desc.%s is %" PRId64 " * %" PRId64 " * %" PRId64 ", which times %" PRId64
                          " doubles is more than 2^50 bytes",
                          heads_name, seq_name, d->batch, heads, seq, dim);
    return FATTN_OK;
}

static fattn_status check_window(const fattn_desc *d)
{
    if (d->mask == FATTN_MASK_WINDOW) {
        const fattn_status status = check_range("window_left", d->window_left, -1, INT64_MAX);
        return status != FATTN_OK ? status : check_range("window_right", d->window_right, -1, INT64_MAX);
    }
    if (d->window_left != 0 || d->window_right != 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT,
                          "desc.window_left and window_right are %" PRId64 " and %" PRId64 ", but desc.mask is %" PRId32
                          ", not FATTN_MASK_WINDOW",
                          d->window_left, d->window_right, d->mask);
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
    if (!(d->dropout >= 0 && d->dropout < 1))
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.dropout is %g, outside [0, 1)", d->dropout);
    if (d->seed != 0 && d->dropout == 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "desc.seed is %" PRIu64 ", but desc.dropout is 0", d->seed);
    return FATTN_OK;
}

static fattn_status check_supported(const fattn_desc *d)
{
    if (d->dtype == FATTN_F16 || d->dtype == FATTN_BF16)
        return fattn_fail(FATTN_ERROR_UNSUPPORTED, "desc.dtype is %s, which is not supported yet",
                          d->dtype == FATTN_F16 ? "FATTN_F16" : "FATTN_BF16");
    if (d->out_dtype != FATTN_DTYPE_NONE && d->out_dtype != d->dtype)
        return fattn_fail(FATTN_ERROR_UNSUPPORTED,
                          "desc.out_dtype is %" PRId32 " and desc.dtype %" PRId32 "; that they differ is not supported yet",
                          d->out_dtype, d->dtype);
    if (d->flags != 0)
        return fattn_fail(FATTN_ERROR_UNSUPPORTED, "desc.flags is 0x%" PRIx32 "; flags other than 0 are not supported yet",
                          d->flags);
    if (d->softcap != 0)
        return fattn_fail(FATTN_ERROR_UNSUPPORTED, "desc.softcap is %g; other than 0 is not supported yet", d->softcap);
    if (d->dropout != 0)
        return fattn_fail(FATTN_ERROR_UNSUPPORTED, "desc.dropout is %g; other than 0 is not supported yet", d->dropout);
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
    if (status != FATTN_OK || (status = check_enumerators(d)) || (status = check_sizes(d)) ||
        (status = check_product(d, "heads_q", "seq_q", d->heads_q, d->seq_q)) ||
        (status = check_product(d, "heads_kv", "seq_k", d->heads_kv, d->seq_k)) || (status = check_window(d)) ||
        (status = check_numbers(d)) || (status = check_supported(d)))
        return status;
    d->struct_size = sizeof *d;
    d->out_dtype = d->dtype;
    if (d->scale == 0)
        d->scale = default_scale(d->dim);
    problem->group = d->heads_q / d->heads_kv;
    return FATTN_OK;
}
