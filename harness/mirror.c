/*
 * See mirror.h.
 */
#include "mirror.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu/memory.h"

enum { PLACES_MAX = CASE_INPUTS_MAX + CASE_OUTPUTS_MAX + 1, ALIGNMENT = 256 };

/* Bytes of the host, and where they are on the GPU. */
typedef struct place {
    char *host;
    size_t bytes;
    char *gpu;
} place;

struct mirror {
    gpu_device *gpu;
    size_t memory; /* bytes that the GPU has */
    char *pool;
    size_t pool_bytes;
    place place[PLACES_MAX]; /* the last is the workspace */
    int places;
};

#define POOL_LEAST ((size_t)64 << 20)
#define POOL_KEPT  ((size_t)1 << 30)

static bool fail(const mirror *m, char *reason, size_t size)
{
    snprintf(reason, size, "%s", gpu_error(m->gpu));
    return false;
}

mirror *mirror_open(int index, char *reason, size_t size)
{
    gpu_info info;
    mirror *m = calloc(1, sizeof *m);
    if (!m) {
        snprintf(reason, size, "no memory");
        return NULL;
    }
    if (gpu_look(index, &info, reason, size) && (m->gpu = gpu_open(index, reason, size))) {
        m->memory = info.memory;
        return m;
    }
    free(m);
    return NULL;
}

void mirror_close(mirror *m)
{
    if (!m)
        return;
    gpu_release(m->gpu, m->pool);
    gpu_close(m->gpu);
    free(m);
}

static size_t span_of(size_t bytes)
{
    return (bytes + 2 * ALIGNMENT) / ALIGNMENT * ALIGNMENT;
}

/* A pool for all places, full of NaN, and where in it each lies: as far from its alignment as on the host. */
static bool place_all(mirror *m)
{
    size_t all = 0;
    for (int i = 0; i < m->places; i++)
        all += span_of(m->place[i].bytes);
    if (all > m->pool_bytes) {
        const size_t wanted = all < POOL_LEAST ? POOL_LEAST : all;
        gpu_release(m->gpu, m->pool);
        m->pool = gpu_allocate(m->gpu, wanted);
        m->pool_bytes = m->pool ? wanted : 0;
        if (!m->pool)
            return false;
    }
    if (!gpu_fill(m->gpu, m->pool, 0xff, all))
        return false;
    char *at = m->pool;
    for (int i = 0; i < m->places; i++) {
        m->place[i].gpu = at + (uintptr_t)m->place[i].host % ALIGNMENT;
        at += span_of(m->place[i].bytes);
    }
    return true;
}

static bool copy(const mirror *m, const place *p, size_t first, size_t bytes, bool up)
{
    if (bytes == 0)
        return true;
    return up ? gpu_put(m->gpu, p->gpu + first, p->host + first, bytes)
              : gpu_get(m->gpu, p->host + first, p->gpu + first, bytes);
}

static bool copy_arena(const mirror *m, const place *p, const arena *a, bool up)
{
    bool ok = true;
    for (int i = 0; i < a->islands && ok; i++)
        ok = copy(m, p, (size_t)a->low[i] * a->size, (size_t)(a->high[i] - a->low[i]) * a->size, up);
    return ok;
}

static bool copy_all(const mirror *m, const test_case *c, bool up)
{
    const place *p = m->place;
    bool ok = true;
    for (int i = 0; i < c->inputs_count && ok; i++)
        ok = copy_arena(m, p++, &c->inputs[i], up);
    for (int i = 0; i < c->outputs_count && ok; i++)
        ok = copy_arena(m, p++, &c->outputs[i], up);
    return ok && copy(m, p, 0, p->bytes, up);
}

static place place_of(const arena *a)
{
    return (place){(char *)a->start, (size_t)a->count * a->size, NULL};
}

bool mirror_has_room(const mirror *m, const test_case *c)
{
    size_t wanted = POOL_LEAST;
    for (int i = 0; i < c->inputs_count; i++)
        wanted += span_of(place_of(&c->inputs[i]).bytes);
    for (int i = 0; i < c->outputs_count; i++)
        wanted += span_of(place_of(&c->outputs[i]).bytes);
    return wanted <= m->memory / 2; /* other programs take some too */
}

void mirror_shrink(mirror *m)
{
    if (m->pool_bytes <= POOL_KEPT)
        return;
    gpu_release(m->gpu, m->pool);
    m->pool = NULL;
    m->pool_bytes = 0;
}

bool mirror_push(mirror *m, const test_case *c, void *workspace, size_t bytes, bool *no_memory, char *reason, size_t size)
{
    gpu_forget_error(m->gpu);
    m->places = 0;
    for (int i = 0; i < c->inputs_count; i++)
        m->place[m->places++] = place_of(&c->inputs[i]);
    for (int i = 0; i < c->outputs_count; i++)
        m->place[m->places++] = place_of(&c->outputs[i]);
    m->place[m->places++] = (place){workspace, bytes, NULL};
    if (place_all(m) && copy_all(m, c, true))
        return true;
    *no_memory = gpu_error_is_memory(m->gpu);
    return fail(m, reason, size);
}

bool mirror_pull(mirror *m, const test_case *c, char *reason, size_t size)
{
    return (gpu_wait(m->gpu) && copy_all(m, c, false)) || fail(m, reason, size);
}

/* A pointer to what was pushed, or just behind it, becomes one to the GPU. */
static void move(const mirror *m, void *pointer)
{
    char **const at = pointer;
    for (int i = 0; i < m->places && *at; i++) {
        const place *p = &m->place[i];
        if (*at >= p->host && *at <= p->host + p->bytes) {
            *at = p->gpu + (*at - p->host);
            return;
        }
    }
}

static void move_view(const mirror *m, const fattn_view **view, fattn_view *room)
{
    if (!*view)
        return;
    *room = **view;
    move(m, &room->data);
    *view = room;
}

/* Addresses of the pointers that both operations' arguments have. */
#define COMMON_POINTERS(args)                                                                                                  \
    &(args)->q.data, &(args)->k.data, &(args)->v.data, &(args)->out.data, &(args)->lse, &(args)->workspace,                    \
        &(args)->cu_seqlens_q, &(args)->cu_seqlens_k, &(args)->used_q, &(args)->used_k, &(args)->mask_lo, &(args)->mask_hi,    \
        &(args)->slopes, &(args)->sinks, &(args)->document_q, &(args)->document_k

void mirror_move_forward(const mirror *m, fattn_forward_args *args, fattn_view *bias)
{
    void *const pointers[] = {COMMON_POINTERS(args), &args->page_table, &args->k_scales, &args->v_scales};
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
        move(m, pointers[i]);
    move_view(m, &args->bias, bias);
    args->stream = gpu_stream(m->gpu);
}

void mirror_move_backward(const mirror *m, fattn_backward_args *args, fattn_view *bias, fattn_view *dbias)
{
    void *const pointers[] = {COMMON_POINTERS(args), &args->dout.data, &args->dlse,  &args->dq.data,
                              &args->dk.data,        &args->dv.data,   &args->dsinks};
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
        move(m, pointers[i]);
    move_view(m, &args->bias, bias);
    move_view(m, &args->dbias, dbias);
    args->stream = gpu_stream(m->gpu);
}
