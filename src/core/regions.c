/*
 * Where tensors lie; see regions.h.
 */
#include "core/regions.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "core/error.h"

#define MOST_REACH ((int64_t)1 << 57) /* bytes; the largest address spaces of programs are of this size */

/* ----------------------------------------------------------------------------------------------------------- regions */

static void sort_loops(fattn_region *r)
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

fattn_status fattn_region_view(fattn_region *r, const char *name, const fattn_view *view, size_t size, int64_t batch,
                               int64_t heads, int64_t rows, int64_t dim)
{
    const int64_t count[3] = {batch, heads, rows};
    const int64_t stride[3] = {view->stride_batch, view->stride_head, view->stride_row};
    static const char *const stride_name[3] = {"stride_batch", "stride_head", "stride_row"};
    int64_t below = 0, above = dim * (int64_t)size;

    memset(r, 0, sizeof *r);
    r->name = name;
    if (batch == 0 || heads == 0 || rows == 0 || dim == 0)
        return FATTN_OK;
    if (!view->data)
        return fattn_fail(FATTN_ERROR_ARGUMENT,
                          "args.%s.data is NULL, but its shape is [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]", name,
                          batch, heads, rows, dim);
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

static fattn_status check_nested(const fattn_region *r, const fattn_view *view, const int64_t count[3])
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

fattn_status fattn_region_output(fattn_region *r, const char *name, const fattn_view *view, size_t size, int64_t batch,
                                 int64_t heads, int64_t rows, int64_t dim)
{
    const int64_t count[3] = {batch, heads, rows};
    const fattn_status status = fattn_region_view(r, name, view, size, batch, heads, rows, dim);
    return status != FATTN_OK ? status : check_nested(r, view, count);
}

fattn_status fattn_region_array(fattn_region *r, const char *name, const void *data, size_t size, int64_t elements)
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
static bool has_byte(const fattn_region *r, uintptr_t address)
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

fattn_status fattn_region_apart(const fattn_region *output, const fattn_region *others, int count)
{
    for (int i = 0; i < count; i++) {
        const fattn_region *o = &others[i];
        if (output->lo >= o->hi || o->lo >= output->hi)
            continue;
        if (has_byte(output, o->lo) || has_byte(output, o->hi - 1) || has_byte(o, output->lo) || has_byte(o, output->hi - 1))
            return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s, at 0x%" PRIxPTR ", overlaps args.%s, at 0x%" PRIxPTR,
                              output->name, output->lo, o->name, o->lo);
    }
    return FATTN_OK;
}
