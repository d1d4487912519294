/*
 * AdamW: see optimizer.h for the formula.
 *
 * The parameters are cut into pieces of at most PIECE floats once; a piece belongs to one parameter. The device shares them
 * out, and the norm adds the pieces' sums in order. The norm stays on the device, which works out the clipping and leaves
 * everything as it is where the norm is beyond the limit; the host looks at it afterwards.
 */
#include "optimizer.h"
#include "error.h"
#include <math.h>
#include <stdlib.h>

enum { PIECE = 8192 };

struct optimizer_work {
    int64_t count;
    update_piece *pieces;   /* [count], of the device, as are the next two */
    double *squares, *norm; /* [count], [1] */
    double *shared_norm;    /* [1] */
};

optimizer_options optimizer_defaults(void)
{
    return (optimizer_options){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0};
}

static int64_t count_pieces(const model *m)
{
    int64_t count = 0;
    for (int i = 0; i < m->parameter_count; i++)
        count += (m->parameters[i].size + PIECE - 1) / PIECE;
    return count;
}

static void list_pieces(const model *m, bool spare_embedding, update_piece *next)
{
    for (int i = 0; i < m->parameter_count; i++) {
        const parameter *q = &m->parameters[i];
        const bool decays = q->ndim >= 2 && !(spare_embedding && q->data == m->embed.data);
        for (int64_t done = 0; done < q->size; done += PIECE)
            *next++ = (update_piece){q->offset + done, q->size - done < PIECE ? q->size - done : PIECE, decays};
    }
}

static bool make_work(optimizer *o)
{
    device *d = o->target->device;
    struct optimizer_work *w = o->work = train_calloc(1, sizeof *w);
    if (!w)
        return false;
    w->count = count_pieces(o->target);
    update_piece *list = train_calloc((size_t)w->count, sizeof *list);
    w->pieces = d->run->allocate(d, (size_t)w->count * sizeof *w->pieces);
    w->squares = d->run->allocate(d, (size_t)w->count * sizeof *w->squares);
    w->norm = d->run->allocate(d, sizeof *w->norm);
    w->shared_norm = d->run->allocate_shared(d, sizeof *w->shared_norm);
    bool good = list && w->pieces && w->squares && w->norm && w->shared_norm;
    if (good) {
        list_pieces(o->target, o->options.spare_embedding, list);
        good = d->run->put(d, w->pieces, list, (size_t)w->count * sizeof *list);
    }
    free(list);
    return good;
}

static bool check_options(const optimizer_options *o)
{
    if (!(o->beta1 >= 0 && o->beta1 < 1) || !(o->beta2 >= 0 && o->beta2 < 1))
        return train_fail("beta1 and beta2 are %g and %g, but must be in [0, 1)", o->beta1, o->beta2);
    if (!(o->eps >= 0) || !(o->weight_decay >= 0) || !(o->clip >= 0))
        return train_fail("eps, weight_decay and clip are %g, %g and %g, but must not be negative", o->eps, o->weight_decay,
                          o->clip);
    return true;
}

static bool make_moments(optimizer *o)
{
    device *d = o->target->device;
    size_t bytes = (size_t)o->target->size * sizeof *o->m;
    o->m = d->run->allocate(d, bytes);
    o->v = d->run->allocate(d, bytes);
    return o->m && o->v && d->run->fill(d, o->m, 0, bytes) && d->run->fill(d, o->v, 0, bytes);
}

optimizer *optimizer_create(model *m, const optimizer_options *options)
{
    if (!check_options(options) || !model_need_grad(m))
        return NULL;
    optimizer *o = train_calloc(1, sizeof *o);
    if (o) {
        o->options = *options;
        o->target = m;
        o->limit = INFINITY;
    }
    if (!o || !make_moments(o) || !make_work(o)) {
        train_fail_for("the optimiser");
        optimizer_free(o);
        return NULL;
    }
    return o;
}

void optimizer_free(optimizer *o)
{
    if (!o)
        return;
    device *d = o->target->device;
    if (o->work) {
        d->run->release(d, o->work->pieces);
        d->run->release(d, o->work->squares);
        d->run->release(d, o->work->norm);
        d->run->release_shared(d, o->work->shared_norm);
    }
    free(o->work);
    d->run->release(d, o->m);
    d->run->release(d, o->v);
    free(o);
}

static update_call call_of(const optimizer *o, double lr)
{
    const optimizer_options *c = &o->options;
    const struct optimizer_work *w = o->work;
    double t = (double)(o->step + 1);
    return (update_call){.count = w->count,
                         .pieces = w->pieces,
                         .grad = o->target->grad,
                         .squares = w->squares,
                         .norm = w->norm,
                         .shared_norm = w->shared_norm,
                         .data = o->target->data,
                         .m = o->m,
                         .v = o->v,
                         .rounded = o->target->rounded,
                         .clip = c->clip,
                         .limit = o->limit,
                         .decay = (float)(1.0 - lr * c->weight_decay),
                         .beta1 = (float)c->beta1,
                         .beta2 = (float)c->beta2,
                         .step = (float)(lr / (1.0 - pow(c->beta1, t))),
                         .root = (float)(1.0 / sqrt(1.0 - pow(c->beta2, t))),
                         .eps = (float)c->eps};
}

bool optimizer_update(optimizer *o, double lr, double *norm)
{
    device *d = o->target->device;
    update_call c = call_of(o, lr);
    if (!d->run->grad_norm(d, &c) || !d->run->mark(d, MARK_NORM) || !d->run->update(d, &c) || !d->run->wait(d, MARK_NORM))
        return false;
    *norm = *o->work->shared_norm;
    if (!isnan(o->limit) && !(isfinite(*norm) && *norm <= o->limit))
        return train_fail("the norm of the gradients is %g", *norm);
    o->step++;
    return true;
}

void optimizer_skip(optimizer *o)
{
    o->step++;
}

size_t optimizer_bytes(const optimizer *o)
{
    return 2 * (size_t)o->target->size * sizeof(float);
}
