/* The sum of gradients over micro-batches and ranks: see gradients.h. */
#include "gradients.h"

#include <stdlib.h>

#include "error.h"

enum { UNIT = 16, LEVELS = 64 }; /* floats; parameters of a layer begin at a multiple of it */

struct gradients {
    model *m;
    ranks *r;
    int64_t parts, part;
    const int64_t *owned;
    float *held[LEVELS]; /* [size] each: held[l] is the sum of 2^l micro-batches that waits for its partner */
    int levels;
    int64_t end;   /* numbers from here on are being summed over the ranks already */
    int64_t *cuts; /* [ranks + 1] */
};

static bool make_room(gradients *g)
{
    device *d = g->m->device;
    g->cuts = calloc((size_t)g->r->size + 1, sizeof *g->cuts);
    if (!g->cuts)
        return train_fail_as(TRAIN_ERROR_WORK, "no memory for gradients");
    while ((g->parts - 1) >> g->levels) {
        g->held[g->levels] = d->run->allocate(d, (size_t)g->m->size * sizeof(float));
        if (!g->held[g->levels++])
            return false;
    }
    return true;
}

gradients *gradients_create(model *m, ranks *r, int64_t parts, const int64_t *owned)
{
    gradients *g = calloc(1, sizeof *g);
    if (!g) {
        train_fail_as(TRAIN_ERROR_WORK, "no memory for gradients");
        return NULL;
    }
    g->m = m;
    g->r = r;
    g->parts = parts;
    g->owned = owned;
    if (make_room(g))
        return g;
    gradients_free(g);
    return NULL;
}

void gradients_free(gradients *g)
{
    if (!g)
        return;
    for (int l = 0; l < g->levels; l++)
        g->m->device->run->release(g->m->device, g->held[l]);
    free(g->cuts);
    free(g);
}

size_t gradients_bytes(const gradients *g)
{
    return (size_t)g->levels * (size_t)g->m->size * sizeof(float);
}

bool gradients_begin(gradients *g)
{
    g->part = 0;
    g->end = g->m->size;
    return model_zero_grad(g->m);
}

/* to = from, or to += from, numbers first .. end - 1 of a block. */
static bool move(gradients *g, float *to, const float *from, int64_t first, int64_t end, bool add)
{
    device *d = g->m->device;
    const copy_call c = {.rows = (end - first) / UNIT,
                         .cols = UNIT,
                         .to_stride = UNIT,
                         .from_stride = UNIT,
                         .add = add,
                         .to = to + first,
                         .from = from + first};
    return first == end || d->run->copy(d, &c);
}

/* Adds what waits for this part: a partner on each level that has one, in the last part on every level that holds any. */
static bool add_held(gradients *g, int64_t first, int64_t end, bool last)
{
    for (int l = 0; l < g->levels; l++) {
        if (g->part >> l & 1) {
            if (!move(g, g->m->grad, g->held[l], first, end, true))
                return false;
        } else if (!last)
            return true;
    }
    return true;
}

/* The lowest level without a sum, once part's partners are added. */
static int free_level(int64_t part)
{
    int l = 0;
    while (part >> l & 1)
        l++;
    return l;
}

/* Numbers first .. g->end - 1 are complete on this rank. */
static bool sum_from(gradients *g, int64_t first)
{
    ranks *r = g->r;
    const int64_t end = g->end;
    g->end = first;
    if (!add_held(g, first, end, true))
        return false;
    if (r->size == 1 || first == end)
        return true;
    ranks_cut(r, end - first, UNIT, g->cuts);
    for (int i = 0; i <= r->size; i++) {
        const int64_t own = g->owned ? g->owned[i] : first + g->cuts[i];
        g->cuts[i] = own < first ? first : own > end ? end : own;
    }
    return r->run->sum_begin(r, g->m->grad, g->cuts, !g->owned);
}

bool gradients_layer(void *user, int layer)
{
    gradients *g = user;
    /* Of a layer the norm before attention is the first parameter. */
    return g->part + 1 < g->parts || sum_from(g, g->m->layer[layer].input_norm->offset);
}

bool gradients_end_part(gradients *g)
{
    const int64_t size = g->m->size;
    if (g->part + 1 == g->parts)
        return sum_from(g, 0) && g->r->run->sum_end(g->r);
    if (!add_held(g, 0, size, false) || !move(g, g->held[free_level(g->part)], g->m->grad, 0, size, false))
        return false;
    g->part++;
    return model_zero_grad(g->m);
}
