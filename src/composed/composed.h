/*
 * What the files of the composed baseline share. composed.c says what it is.
 */
#ifndef FATTN_COMPOSED_COMPOSED_H
#define FATTN_COMPOSED_COMPOSED_H

#include "core/context.h"
#include "core/kernel.h"
#include "core/mask.h"

/* ------------------------------------------------------------------------------------------------------------ products */

typedef struct matrix {
    float *data;
    int64_t rows, columns;
    int64_t stride; /* from row to row, in elements; any value */
} matrix;

/* Rows first .. first+rows-1 of (b, h) of a tensor. */
matrix composed_matrix(const fattn_view *view, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t columns);

/* Which rows of the mask, and which keys, a block of the seq_q x seq_k matrix stands for. */
typedef struct block {
    const fattn_desc *desc;
    int64_t row, key; /* of its element (0, 0) */
    const float *lse; /* of its rows; NULL while it is not known */
} block;

/* The columns of a block's row i that count: those that the mask keeps, and none if lse is -inf. */
fattn_interval composed_kept(const block *at, int64_t i, int64_t columns);

/* The three products of attention. Each is one sgemm, unless a matrix has rows that overlap or run backwards, or holds a
 * number that is not finite: then a plain loop over what composed_kept says, since 0 * NaN is not 0. */

/* c = alpha a b^T. Outside what is kept c is anything. */
void composed_scores(const block *at, float alpha, const matrix *a, const matrix *b, const matrix *c);

/* c = p b, p being 0 outside what is kept. */
void composed_rows(const block *at, const matrix *p, const matrix *b, const matrix *c);

/* c = p^T a, or c += p^T a. */
void composed_columns(const block *at, const matrix *p, const matrix *a, const matrix *c, bool add);

/* sgemm on this thread only, until composed_threads_restore. Pool threads are the parallelism. */
int composed_threads_one(void);
void composed_threads_restore(int before);

/* ------------------------------------------------------------------------------------------------------------- softmax */

/* Rows of n kept numbers, compiled once per instruction set from softmax.h. */
typedef struct softmax_words {
    /* s = softmax(s); returns lse. */
    float (*softmax)(float *s, int64_t n);
    /* s = exp(s - lse) */
    void (*probabilities)(float *s, int64_t n, float lse);
    /* dp = p (dp - delta) scale */
    void (*gradient)(float *dp, const float *p, int64_t n, float delta, float scale);
} softmax_words;

extern const softmax_words composed_softmax_generic, composed_softmax_avx2, composed_softmax_avx512;

/* ----------------------------------------------------------------------------------------------------------- operations */

typedef struct work {
    const fattn_problem *problem;
    const fattn_launch *launch;
    const softmax_words *words;
    float *own_lse;           /* [batch, heads_q, seq_q] of the workspace, for a forward that the caller wants none of */
    int64_t rows;             /* query rows per unit */
    int64_t blocks;           /* units per head: ceil(seq_q / rows) */
    int64_t keys, key_blocks; /* the same for keys, in backward */
} work;

/* Sets a row to 0 outside what is kept. */
static inline void composed_clear(float *row, fattn_interval kept, int64_t columns)
{
    for (int64_t j = 0; j < kept.lo; j++)
        row[j] = 0;
    for (int64_t j = kept.hi; j < columns; j++)
        row[j] = 0;
}

void composed_forward(const work *w);
void composed_backward(const work *w);

#endif
