/*
 * AdamW: see optimizer.h for the formula.
 *
 * The parameters are cut into pieces of at most PIECE floats once; a piece belongs to one parameter. The device shares them
 * out, and the norm adds the pieces' sums in order. The norm stays on the device, which works out the clipping and leaves
 * everything as it is where the norm is beyond the limit; the host looks at it afterwards.
 *
 * Shared out among ranks (ZeRO-1: Rajbhandari et al. 2020), each has the pieces that begin in an equal part of the block, so
 * that the sums of squares are those of one rank. They are gathered before the norm, and the parameters after the update.
 */
#include "optimizer.h"
#include "error.h"
#include <math.h>
#include <stdlib.h>

enum { PIECE = 8192, UNIT = 16 };

struct optimizer_work {
    int64_t count;
    int64_t *cuts;          /* [ranks + 1]: the shares, in pieces; NULL: not shared out */
    int64_t first, own;     /* this rank's */
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

/* Shares begin with pieces that begin at a multiple of UNIT, as moments are read by fours. */
static bool share_out(optimizer *o, const update_piece *pieces)
{
    struct optimizer_work *w = o->work;
    const ranks *r = o->options.among;
    w->own = w->count;
    o->count = o->target->size;
    if (!r || r->size == 1)
        return true;
    o->cuts = calloc((size_t)r->size + 1, sizeof *o->cuts);
    w->cuts = calloc((size_t)r->size + 1, sizeof *w->cuts);
    if (!o->cuts || !w->cuts)
        return false;
    for (int i = 1; i <= r->size; i++) {
        int64_t piece = w->cuts[i - 1], least = o->target->size / r->size * i;
        while (piece < w->count && (i == r->size || pieces[piece].offset < least || pieces[piece].offset % UNIT))
            piece++;
        w->cuts[i] = piece;
        o->cuts[i] = piece < w->count ? pieces[piece].offset : o->target->size;
    }
    w->first = w->cuts[r->rank];
    w->own = w->cuts[r->rank + 1] - w->first;
    o->first = o->cuts[r->rank];
    o->count = o->cuts[r->rank + 1] - o->first;
    return true;
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
        good = share_out(o, list) && d->run->put(d, w->pieces, list, (size_t)w->count * sizeof *list);
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
    size_t bytes = (size_t)o->count * sizeof *o->m;
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
        o->scale = 1;
        o->limit = INFINITY;
    }
    if (!o || !make_work(o) || !make_moments(o)) {
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
        free(o->work->cuts);
    }
    free(o->cuts);
    free(o->gathered);
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
    return (update_call){.count = w->own,
                         .pieces = w->pieces + w->first,
                         .grad = o->target->grad,
                         .squares = w->squares + w->first,
                         .norm = w->norm,
                         .shared_norm = w->shared_norm,
                         .data = o->target->data,
                         .m = o->m,
                         .v = o->v,
                         .moments_first = o->first,
                         .rounded = o->target->rounded,
                         .clip = c->clip,
                         .limit = o->limit,
                         .scale = o->scale,
                         .decay = (float)(1.0 - lr * c->weight_decay),
                         .beta1 = (float)c->beta1,
                         .beta2 = (float)c->beta2,
                         .step = (float)(lr / (1.0 - pow(c->beta1, t))),
                         .root = (float)(1.0 / sqrt(1.0 - pow(c->beta2, t))),
                         .eps = (float)c->eps};
}

static bool find_norm(optimizer *o, update_call c)
{
    device *d = o->target->device;
    struct optimizer_work *w = o->work;
    ranks *r = o->options.among;
    if (!d->run->grad_squares(d, &c) || (o->cuts && !r->run->gather(r, w->squares, sizeof *w->squares, w->cuts)))
        return false;
    c.count = w->count;
    c.squares = w->squares;
    return d->run->grad_norm(d, &c) && d->run->mark(d, MARK_NORM);
}

/* Every rank gets what the others have updated. */
static bool gather_parameters(optimizer *o)
{
    ranks *r = o->options.among;
    model *m = o->target;
    return !o->cuts || (r->run->gather(r, m->data, sizeof *m->data, o->cuts) && (!m->rounded || model_round(m)));
}

bool optimizer_update(optimizer *o, double lr, double *norm)
{
    device *d = o->target->device;
    update_call c = call_of(o, lr);
    if (!find_norm(o, c) || !d->run->update(d, &c) || !gather_parameters(o) || !d->run->wait(d, MARK_NORM))
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
    return 2 * (size_t)o->count * sizeof(float);
}

/* -------------------------------------------------------------------------------------------------- the whole moments */

/* By way of the gradients, which are as large. */
static bool gather_moment(optimizer *o, const float *own, float *whole)
{
    model *m = o->target;
    device *d = m->device;
    ranks *r = o->options.among;
    const copy_call c = {
        .rows = o->count / UNIT, .cols = UNIT, .to_stride = UNIT, .from_stride = UNIT, .to = m->grad + o->first, .from = own};
    return (!o->count || d->run->copy(d, &c)) && r->run->gather(r, m->grad, sizeof *own, o->cuts) &&
           (!whole || d->run->get(d, whole, m->grad, (size_t)m->size * sizeof *own));
}

bool optimizer_gather(optimizer *o)
{
    const size_t size = (size_t)o->target->size;
    if (!o->cuts)
        return true;
    const bool looks = o->options.among->rank == 0;
    if (looks && !o->gathered && !(o->gathered = calloc(2 * size, sizeof *o->gathered)))
        return train_fail_as(TRAIN_ERROR_WORK, "no memory for the optimiser's %zu bytes", 2 * size * sizeof(float));
    return gather_moment(o, o->m, o->gathered) && gather_moment(o, o->v, looks ? o->gathered + size : NULL);
}

const float *optimizer_look(const optimizer *o, int which)
{
    if (o->cuts)
        return o->gathered + (which ? o->target->size : 0);
    return device_look(o->target->device, which ? o->v : o->m, (size_t)o->count * sizeof(float));
}

void optimizer_look_end(const optimizer *o, const float *seen)
{
    if (!o->cuts)
        device_look_end(o->target->device, seen);
}

bool optimizer_put(optimizer *o, const float *mean, const float *square)
{
    device *d = o->target->device;
    const size_t bytes = (size_t)o->count * sizeof(float);
    return d->run->put(d, o->m, mean + o->first, bytes) && d->run->put(d, o->v, square + o->first, bytes);
}
