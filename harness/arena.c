/*
 * Arenas: placing tensors by layout, poisoning and inspecting; see arena.h.
 */
#include "arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Two NaNs whose payloads no arithmetic makes, in every type (those of 16 bits are NaN as binary16 and as bfloat16); bytes
 * have none. */
static const uint8_t gap8 = 0x5a, fresh8 = 0x61;
static const uint16_t gap16 = 0x7fc5, fresh16 = 0x7fd1;
static const uint32_t gap32 = 0x7fc5a5a5, fresh32 = 0x7fd1e1e1;
static const uint64_t gap64 = 0x7ff85a5a5a5a5a5a, fresh64 = 0x7ff91e1e1e1e1e1e;

enum { BAND = 256 }; /* elements of guard band: wider than any kernel's tile row */

static const int64_t far_stride = ((int64_t)1 << 30) + 1;

/* The lowest and highest offset from view.data, [low, high). */
static void span_of(const tensor *t, int64_t *low, int64_t *high)
{
    const int64_t ends[3] = {(t->batch - 1) * t->view.stride_batch, (t->heads - 1) * t->view.stride_head,
                             (t->rows - 1) * t->view.stride_row};
    *low = 0;
    *high = t->cols;
    for (int i = 0; i < 3; i++) {
        *low += ends[i] < 0 ? ends[i] : 0;
        *high += ends[i] > 0 ? ends[i] : 0;
    }
}

static void set_strides(tensor *t, int64_t batch, int64_t head, int64_t row)
{
    t->view = (fattn_view){NULL, batch, head, row};
}

/* Strides of a tensor that has its arena to itself. */
static void plan_strides(tensor *t, layout_kind layout, bool input)
{
    const int64_t b = t->batch, h = t->heads, s = t->rows, d = t->cols;
    switch (layout) {
    case LAYOUT_BSHD:
    case LAYOUT_PACKED: /* what is not packed: q of another length, out */
        set_strides(t, s * h * d, d, h * d);
        break;
    case LAYOUT_HSBD:
        set_strides(t, d, s * b * d, b * d);
        break;
    case LAYOUT_PADDED:
        set_strides(t, h * (s * (d + 1) + 3) + 5, s * (d + 1) + 3, d + 1);
        break;
    case LAYOUT_NEGATIVE:
        set_strides(t, -h * s * d, -s * d, -d);
        break;
    case LAYOUT_BROADCAST:
        set_strides(t, input ? 0 : h * s * d, input ? 0 : s * d, d);
        break;
    case LAYOUT_BROADCAST_ROW:
        set_strides(t, h * d, d, 0);
        break;
    case LAYOUT_FAR:
        set_strides(t, far_stride, s * d, d);
        break;
    default:
        set_strides(t, h * s * d, s * d, d);
        break;
    }
}

/* Strides of tensors side by side in each (batch, row): [b][s][h0*d0 + h1*d1 + ...]. offsets: where each begins. */
static void plan_packed(tensor *const *tensors, int count, int64_t *offsets)
{
    int64_t width = 0;
    for (int i = 0; i < count; i++) {
        offsets[i] = width;
        width += tensors[i]->heads * tensors[i]->cols;
    }
    for (int i = 0; i < count; i++)
        set_strides(tensors[i], tensors[i]->rows * width, tensors[i]->cols, width);
}

/* Maps `bytes` with an unreadable page before and after; *start is flush with one of them or 64-byte aligned. */
static bool map_fenced(arena *a, size_t bytes, layout_kind layout)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t inner = (bytes + page - 1) / page * page;
    a->mapped = inner + 2 * page;
    a->mapping = mmap(NULL, a->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a->mapping == MAP_FAILED)
        return false;
    unsigned char *first = (unsigned char *)a->mapping + page;
    if (inner && mprotect(first, inner, PROT_READ | PROT_WRITE) != 0)
        return false;
    a->start = layout == LAYOUT_FENCE_HIGH ? first + (inner - bytes) : first;
    return true;
}

/* Cuts the arena into the parts that are looked at. */
static bool make_islands(arena *a, const tensor *t, layout_kind layout, int64_t band)
{
    const bool apart = layout == LAYOUT_FAR && t->batch > 1;
    if (apart && t->batch > ARENA_ISLANDS_MAX)
        return false;
    a->islands = apart ? (int)t->batch : 1;
    for (int i = 0; i < a->islands; i++) {
        a->low[i] = apart ? i * t->view.stride_batch : 0;
        a->high[i] = apart ? a->low[i] + 2 * band + t->heads * t->rows * t->cols : a->count;
        a->owned[i] = calloc((size_t)(a->high[i] - a->low[i]) + 1, 1);
        if (!a->owned[i])
            return false;
    }
    return true;
}

static unsigned char *owner_mark(const arena *a, int64_t element)
{
    for (int i = 0; i < a->islands; i++)
        if (element >= a->low[i] && element < a->high[i])
            return &a->owned[i][element - a->low[i]];
    abort(); /* a mistake in this file */
}

static void mark_owned(const arena *a, const tensor *t)
{
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < t->rows; i++) {
                if (!tensor_has_row(t, b, i))
                    continue;
                const int64_t row = ((unsigned char *)tensor_row(t, b, h, i) - a->start) / (int64_t)t->size;
                memset(owner_mark(a, row), 1, (size_t)t->cols);
            }
}

bool arena_make(arena *a, layout_kind layout, bool input, tensor *const *tensors, int count)
{
    int64_t offsets[ARENA_TENSORS_MAX] = {0};
    *a = (arena){.size = tensors[0]->size, .tensors = count};
    if (count > 1)
        plan_packed(tensors, count, offsets);
    else
        plan_strides(tensors[0], layout, input);
    int64_t low = 0, high = 0;
    for (int i = 0; i < count; i++) {
        a->tensor[i] = tensors[i];
        int64_t first, last;
        if (tensor_empty(tensors[i]))
            continue;
        span_of(tensors[i], &first, &last);
        low = first + offsets[i] < low ? first + offsets[i] : low;
        high = last + offsets[i] > high ? last + offsets[i] : high;
    }
    const bool fenced = layout == LAYOUT_FENCE_HIGH || layout == LAYOUT_FENCE_LOW;
    const int64_t band = fenced ? 0 : BAND;
    const int64_t origin = band - low + (layout == LAYOUT_OFFSET ? 1 : 0);
    a->count = origin + high + band;
    if (!map_fenced(a, (size_t)a->count * a->size, layout) || !make_islands(a, tensors[0], layout, band))
        return false;
    for (int i = 0; i < count; i++)
        if (!tensor_empty(tensors[i])) {
            tensors[i]->view.data = a->start + (size_t)(origin + offsets[i]) * a->size;
            mark_owned(a, tensors[i]);
        }
    arena_poison(a);
    return true;
}

void arena_free(arena *a)
{
    for (int i = 0; i < a->islands; i++)
        free(a->owned[i]);
    if (a->mapping && a->mapping != MAP_FAILED)
        munmap(a->mapping, a->mapped);
    *a = (arena){0};
}

/* The NaN that an element has before a run. */
static const void *poison_of(const arena *a, bool owned)
{
    switch (a->size) {
    case 1:
        return owned ? &fresh8 : &gap8;
    case 2:
        return owned ? (const void *)&fresh16 : &gap16;
    case 4:
        return owned ? (const void *)&fresh32 : &gap32;
    default:
        return owned ? (const void *)&fresh64 : &gap64;
    }
}

static void put_poison(const arena *a, int64_t element, bool owned)
{
    memcpy(a->start + element * (int64_t)a->size, poison_of(a, owned), a->size);
}

static bool is_poison(const arena *a, int64_t element, bool owned)
{
    return memcmp(a->start + element * (int64_t)a->size, poison_of(a, owned), a->size) == 0;
}

void arena_poison(arena *a)
{
    for (int i = 0; i < a->islands; i++)
        for (int64_t e = a->low[i]; e < a->high[i]; e++)
            put_poison(a, e, a->owned[i][e - a->low[i]]);
}

arena_fault arena_inspect(const arena *a, bool written, int64_t *where)
{
    const unsigned char *data = a->tensor[0]->view.data;
    const int64_t origin = data ? (data - a->start) / (int64_t)a->size : 0;
    for (int i = 0; i < a->islands; i++)
        for (int64_t e = a->low[i]; e < a->high[i]; e++) {
            const bool owned = a->owned[i][e - a->low[i]];
            *where = e - origin;
            if (!owned && !is_poison(a, e, false))
                return ARENA_OUTSIDE_WRITTEN;
            if (owned && written && is_poison(a, e, true))
                return ARENA_NOT_WRITTEN;
        }
    return ARENA_CLEAN;
}

size_t arena_bytes(const arena *a)
{
    size_t bytes = 0;
    for (int i = 0; i < a->islands; i++)
        bytes += (size_t)(a->high[i] - a->low[i]) * a->size;
    return bytes;
}

void arena_save(const arena *a, unsigned char *copy)
{
    for (int i = 0; i < a->islands; i++) {
        const size_t bytes = (size_t)(a->high[i] - a->low[i]) * a->size;
        memcpy(copy, a->start + a->low[i] * (int64_t)a->size, bytes);
        copy += bytes;
    }
}

bool arena_same(const arena *a, const unsigned char *copy)
{
    for (int i = 0; i < a->islands; i++) {
        const size_t bytes = (size_t)(a->high[i] - a->low[i]) * a->size;
        if (memcmp(copy, a->start + a->low[i] * (int64_t)a->size, bytes) != 0)
            return false;
        copy += bytes;
    }
    return true;
}
