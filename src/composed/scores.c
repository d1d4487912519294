/*
 * Between the products: what becomes of a row of scale q.k before the softmax, and dropout of what comes out of it. Rows are
 * whole, so the keys of a block begin at 0.
 */
#include "composed/composed.h"

void composed_change(const work *w, const block *at, int64_t i, fattn_interval kept, float *row, float *slope)
{
    const fattn_desc *d = &w->problem->desc;
    const int64_t n = kept.hi - kept.lo;
    float *const s = row + kept.lo;
    if (n == 0)
        return;
    if (d->softcap != 0)
        w->words->softcap(s, slope ? slope + kept.lo : NULL, n, (float)d->softcap, (float)d->scale);
    if (d->flags & FATTN_WITH_BIAS) {
        const float *bias = fattn_row(&w->launch->bias, sizeof(float), at->sequence->b, at->h, at->row + i);
        w->words->add(s, bias + kept.lo, n);
    }
    if (d->flags & FATTN_WITH_SLOPES)
        w->words->alibi(s, n, w->launch->slopes[at->h], at->row + i + at->sequence->mask.offset - kept.lo);
}

/* ------------------------------------------------------------------------------------------------------------- dropout */

/* Factors are drawn for so many keys at a time, on the stack; a multiple of FATTN_PHILOX_WORDS. */
enum { CHUNK = 512 };

/* Draws the factors of kept keys j .. up to the next multiple of CHUNK. They begin at *m; returns their number. */
static int64_t draw(const work *w, const block *at, int64_t i, fattn_interval kept, int64_t j, float room[CHUNK], float **m)
{
    const fattn_desc *d = &w->problem->desc;
    const int64_t next = (j / CHUNK + 1) * CHUNK, end = next < kept.hi ? next : kept.hi;
    const int64_t quad = j / FATTN_PHILOX_WORDS, quads = (end + FATTN_PHILOX_WORDS - 1) / FATTN_PHILOX_WORDS - quad;
    w->words->dropout(room, &w->dropout, at->sequence->b * d->heads_q + at->h, at->row + i, quad, quads,
                      (float)(1 / (1 - d->dropout)));
    *m = room + (j - quad * FATTN_PHILOX_WORDS);
    return end - j;
}

void composed_drop(const work *w, const block *at, int64_t i, fattn_interval kept, float *row)
{
    float room[CHUNK], *m;
    for (int64_t j = kept.lo, n; j < kept.hi; j += n) {
        n = draw(w, at, i, kept, j, room, &m);
        w->words->multiply(row + j, m, n);
    }
}

void composed_drop_gradient(const work *w, const block *at, int64_t i, fattn_interval kept, float *dp, float *p, float delta,
                            float scale)
{
    float room[CHUNK], *m;
    for (int64_t j = kept.lo, n; j < kept.hi; j += n) {
        n = draw(w, at, i, kept, j, room, &m);
        w->words->multiply(dp + j, m, n);
        w->words->gradient(dp + j, p + j, n, delta, scale);
        w->words->multiply(p + j, m, n);
    }
}
