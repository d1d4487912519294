/*
 * Strides and places of tensors; out-of-bounds bytes.
 */
#include "arena.h"

#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN
#endif
#ifdef HAS_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size)   ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

enum { GUARD = 64, BEHIND = 4096 };

static _Alignas(64) unsigned char memory[ARENA_BYTES], before[ARENA_BYTES];
static unsigned char owner[ARENA_BYTES]; /* the tensor_role of each byte */
static int64_t used;                     /* bytes up to which tensors were placed */
static int64_t last;                     /* and up to which moved ones reach */

size_t tensor_size(const tensor *t)
{
    switch (t->dtype) {
    case FATTN_I8:
        return 1;
    case FATTN_F64:
        return 8;
    case FATTN_F32:
    case TENSOR_I32:
        return 4;
    default:
        return 2;
    }
}

bool tensor_empty(const tensor *t)
{
    return t->batch == 0 || t->heads == 0 || t->rows == 0 || t->cols == 0;
}

unsigned char *tensor_row(const tensor *t, int64_t b, int64_t h, int64_t i)
{
    const int64_t offset = b * t->view.stride_batch + h * t->view.stride_head + i * t->view.stride_row;
    return (unsigned char *)t->view.data + offset * (int64_t)tensor_size(t);
}

/* ------------------------------------------------------------------------------------------------------------- placing */

void arena_begin(void)
{
    used = last = GUARD;
}

/* Strides for the loops in one of the six orders, the innermost first. Bits of `style` make an input's stride 0, and any
 * stride negative. */
static void choose_strides(tensor *t, fuzz_input *in)
{
    static const int orders[6][3] = {{2, 1, 0}, {1, 2, 0}, {2, 0, 1}, {0, 2, 1}, {1, 0, 2}, {0, 1, 2}};
    const int order = t->plain ? 0 : fuzz_byte(in), style = order >= 128 ? fuzz_byte(in) : 0;
    const int64_t count[3] = {t->batch, t->heads, t->rows};
    int64_t *const stride[3] = {&t->view.stride_batch, &t->view.stride_head, &t->view.stride_row};
    int64_t span = t->cols;
    t->low = t->high = 0;
    for (int level = 0; level < 3; level++) {
        const int which = orders[order % 6][level];
        const int64_t steps = count[which] > 0 ? count[which] - 1 : 0, step = span + (order >= 64 ? fuzz_byte(in) % 8 : 0);
        if (!t->distinct && (style & (1 << level))) {
            *stride[which] = 0;
            continue;
        }
        *stride[which] = style & (8 << level) ? -step : step;
        *(*stride[which] < 0 ? &t->low : &t->high) += *stride[which] * steps;
        span += step * steps;
    }
    t->high += t->cols;
}

static int64_t round_up(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

bool arena_place(tensor *t, fuzz_input *in)
{
    const int64_t size = (int64_t)tensor_size(t);
    if (tensor_empty(t)) {
        /* Nothing may be read through it, so NULL will do. */
        t->view = t->given = (fattn_view){NULL, 0, 0, 0};
        t->low = t->high = 0;
        return true;
    }
    choose_strides(t, in);
    const int64_t start = round_up(used, 64) + GUARD + fuzz_byte(in) % 16 * size;
    t->low *= size;
    t->high *= size;
    if (t->high - t->low > ARENA_MOST || start + t->high - t->low > ARENA_MOST)
        return false;
    t->view.data = memory + start - t->low;
    t->given = t->view;
    used = last = start + t->high - t->low + GUARD;
    return true;
}

bool arena_move(tensor *t, const tensor *onto, int64_t delta)
{
    if (tensor_empty(t) || tensor_empty(onto))
        return false;
    const int64_t size = (int64_t)tensor_size(t);
    const int64_t start = ((unsigned char *)onto->view.data - memory + onto->low) / size * size + delta * size;
    if (start < GUARD || start + t->high - t->low > ARENA_BYTES - GUARD - BEHIND)
        return false;
    t->view.data = t->given.data = memory + start - t->low;
    if (last < start + t->high - t->low + GUARD)
        last = start + t->high - t->low + GUARD;
    return true;
}

/* -------------------------------------------------------------------------------------------------------------- bounds */

static void own(const tensor *t, int poison)
{
    const size_t bytes = (size_t)t->cols * tensor_size(t);
    for (int64_t b = 0; b < t->batch; b++) {
        for (int64_t i = 0; i < t->rows; i++) {
            if (t->rows_used && !t->rows_used[b * t->rows + i])
                continue;
            for (int64_t h = 0; h < t->heads; h++) {
                unsigned char *row = tensor_row(t, b, h, i);
                memset(owner + (row - memory), t->role, bytes);
                if (t->role == ROLE_OUTPUT || t->role == ROLE_SCRATCH)
                    memset(row, poison, bytes);
            }
        }
    }
}

void arena_close(const tensor *all, int count, int poison, bool loose)
{
    memset(owner, ROLE_NONE, (size_t)last);
    /* In the order of the roles: where an output lies on an input, the input's bytes may be written. */
    for (int role = ROLE_INPUT; role <= ROLE_SCRATCH; role++)
        for (int i = 0; i < count; i++)
            if ((int)all[i].role == role && !tensor_empty(&all[i]))
                own(&all[i], poison);
    memcpy(before, memory, (size_t)last);
    for (int64_t start = 0, end; start < last && !loose; start = end) {
        for (end = start + 1; end < last && !owner[end] == !owner[start]; end++)
            ;
        if (!owner[start])
            ASAN_POISON_MEMORY_REGION(memory + start, (size_t)(end - start));
    }
    if (!loose)
        ASAN_POISON_MEMORY_REGION(memory + last, BEHIND);
}

void arena_open(void)
{
    ASAN_UNPOISON_MEMORY_REGION(memory, (size_t)last + BEHIND);
}

bool arena_same(void)
{
    return memcmp(memory, before, (size_t)last) == 0;
}

bool arena_outside_same(void)
{
    enum { BLOCK = 256 };
    for (int64_t start = 0; start < last; start += BLOCK) {
        const int64_t end = start + BLOCK < last ? start + BLOCK : last;
        if (memcmp(memory + start, before + start, (size_t)(end - start)) == 0)
            continue;
        for (int64_t i = start; i < end; i++)
            if (owner[i] < ROLE_OUTPUT && memory[i] != before[i])
                return false;
    }
    return true;
}

uint64_t arena_outputs(void)
{
    uint64_t hash = 1469598103934665603u;
    for (int64_t i = 0; i < last; i++)
        if (owner[i] == ROLE_OUTPUT || owner[i] == ROLE_CHANGED)
            hash = (hash ^ memory[i]) * 1099511628211u;
    return hash;
}
