/*
 * AdamW: see optimizer.h for the formula.
 *
 * The parameters are cut into pieces of at most PIECE floats once; a piece belongs to one parameter. Pieces are shared out
 * to the threads, and the norm adds the pieces' sums in order, so nothing depends on the number of threads.
 */
#include "optimizer.h"
#include "error.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 8192 };

typedef struct piece {
    int64_t offset, count;
    bool decays;
} piece;

struct optimizer_pieces {
    int64_t count;
    piece *list;
    double *squares; /* [count] */
};

/* What is the same for every number in an update. */
typedef struct factors {
    float clip, decay, beta1, beta2, step, root, eps; /* root: 1/sqrt(1 - beta2^t) */
} factors;

optimizer_options optimizer_defaults(void)
{
    return (optimizer_options){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0};
}

static bool make_pieces(optimizer *o)
{
    const model *m = o->target;
    struct optimizer_pieces *p = o->pieces = calloc(1, sizeof *p);
    if (!p)
        return false;
    for (int i = 0; i < m->parameter_count; i++)
        p->count += (m->parameters[i].size + PIECE - 1) / PIECE;
    p->list = calloc((size_t)p->count + 1, sizeof *p->list);
    p->squares = calloc((size_t)p->count + 1, sizeof *p->squares);
    if (!p->list || !p->squares)
        return false;
    piece *next = p->list;
    for (int i = 0; i < m->parameter_count; i++) {
        const parameter *q = &m->parameters[i];
        for (int64_t done = 0; done < q->size; done += PIECE)
            *next++ = (piece){q->offset + done, q->size - done < PIECE ? q->size - done : PIECE, q->ndim >= 2};
    }
    return true;
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

optimizer *optimizer_create(model *m, const optimizer_options *options)
{
    if (!check_options(options) || !model_need_grad(m))
        return NULL;
    optimizer *o = calloc(1, sizeof *o);
    if (o) {
        o->options = *options;
        o->target = m;
        o->m = calloc((size_t)m->size, sizeof *o->m);
        o->v = calloc((size_t)m->size, sizeof *o->v);
    }
    if (!o || !o->m || !o->v || !make_pieces(o)) {
        train_fail_as(TRAIN_ERROR_WORK, "no memory for the optimiser: it needs %zu bytes", 2 * (size_t)m->size * sizeof(float));
        optimizer_free(o);
        return NULL;
    }
    return o;
}

void optimizer_free(optimizer *o)
{
    if (!o)
        return;
    if (o->pieces) {
        free(o->pieces->list);
        free(o->pieces->squares);
    }
    free(o->pieces);
    free(o->m);
    free(o->v);
    free(o);
}

double optimizer_grad_norm(const optimizer *o)
{
    const struct optimizer_pieces *p = o->pieces;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < p->count; i++) {
        const float *g = o->target->grad + p->list[i].offset;
        double sum = 0.0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < p->list[i].count; j++)
            sum += (double)g[j] * (double)g[j];
        p->squares[i] = sum;
    }
    double sum = 0.0;
    for (int64_t i = 0; i < p->count; i++)
        sum += p->squares[i];
    return sqrt(sum);
}

static void update_piece(float *restrict p, float *restrict m, float *restrict v, const float *restrict grad, int64_t count,
                         factors f, float decay)
{
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * f.clip;
        m[i] = f.beta1 * m[i] + (1.0f - f.beta1) * g;
        v[i] = f.beta2 * v[i] + (1.0f - f.beta2) * g * g;
        p[i] = p[i] * decay - f.step * m[i] / (sqrtf(v[i]) * f.root + f.eps);
    }
}

bool optimizer_update(optimizer *o, double lr, double norm)
{
    const optimizer_options *c = &o->options;
    const struct optimizer_pieces *p = o->pieces;
    if (!isfinite(norm))
        return train_fail("the norm of the gradients is not finite");
    o->step++;
    double clip = c->clip > 0 ? c->clip / (norm + 1e-6) : 1.0;
    factors f = {.clip = (float)(clip < 1.0 ? clip : 1.0),
                 .decay = (float)(1.0 - lr * c->weight_decay),
                 .beta1 = (float)c->beta1,
                 .beta2 = (float)c->beta2,
                 .step = (float)(lr / (1.0 - pow(c->beta1, (double)o->step))),
                 .root = (float)(1.0 / sqrt(1.0 - pow(c->beta2, (double)o->step))),
                 .eps = (float)c->eps};
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < p->count; i++) {
        int64_t at = p->list[i].offset;
        update_piece(o->target->data + at, o->m + at, o->v + at, o->target->grad + at, p->list[i].count, f,
                     p->list[i].decays ? f.decay : 1.0f);
    }
    return true;
}

size_t optimizer_bytes(const optimizer *o)
{
    return 2 * (size_t)o->target->size * sizeof(float);
}
