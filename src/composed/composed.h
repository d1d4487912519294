/*
 * What the files of the composed baseline share. composed.c says what it is.
 */
#ifndef FATTN_COMPOSED_COMPOSED_H
#define FATTN_COMPOSED_COMPOSED_H

#include "core/context.h"
#include "core/dropout.h"
#include "core/kernel.h"
#include "core/sequence.h"

/* ------------------------------------------------------------------------------------------------------------ products */

typedef struct matrix {
    float *data;
    int64_t rows, columns;
    int64_t stride; /* from row to row, in elements; any value */
} matrix;

/* Rows first .. first+rows-1 of (b, h) of a tensor. */
matrix composed_matrix(const fattn_view *view, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t columns);

/* Which rows and keys of a head's seq_q x seq_k matrix a block of it stands for. */
typedef struct block {
    const fattn_sequence *sequence;
    int64_t h;
    int64_t row, key; /* of its element (0, 0) */
    const float *lse; /* of its rows, -inf where one counts as empty; NULL while it is not known */
} block;

/* The columns of a block's row i that count: those that the mask keeps, and none if lse is -inf. */
fattn_interval composed_kept(const block *at, int64_t i, int64_t columns);

/* The three products of attention. Each is one sgemm, unless a matrix has rows that overlap or run backwards, or holds a
 * number that is not finite: then a plain loop over what composed_kept says, since 0 * NaN is not 0. */

/* c = alpha a b^T. Outside what is kept c is anything. */
void composed_scores(const block *at, float alpha, const matrix *a, const matrix *b, const matrix *c);

/* c = alpha p b, p being 0 outside what is kept. */
void composed_rows(const block *at, float alpha, const matrix *p, const matrix *b, const matrix *c);

/* c = alpha p^T a, or c += alpha p^T a. */
void composed_columns(const block *at, float alpha, const matrix *p, const matrix *a, const matrix *c, bool add);

/* sgemm on this thread only, until composed_threads_restore. Pool threads are the parallelism. */
int composed_threads_one(void);
void composed_threads_restore(int before);

/* ------------------------------------------------------------------------------------------------------------- softmax */

/* Rows of n kept numbers, compiled once per instruction set from softmax.h. */
typedef struct softmax_words {
    /* s = exp(s - lse), lse = ln (sum exp(s) + exp(sink)); returns lse, or -inf if every s is, whatever the sink. */
    float (*softmax)(float *s, int64_t n, float sink);
    /* s = exp(s - lse) */
    void (*probabilities)(float *s, int64_t n, float lse);
    /* dp = p (dp - delta) scale */
    void (*gradient)(float *dp, const float *p, int64_t n, float delta, float scale);
    /* s = limit tanh(s / limit); and slope = scale (1 - tanh(s / limit)^2), unless it is NULL */
    void (*softcap)(float *s, float *slope, int64_t n, float limit, float scale);
    /* s_j -= slope |first - j| */
    void (*alibi)(float *s, int64_t n, float slope, int64_t first);
    void (*add)(float *a, const float *b, int64_t n);      /* a += b */
    void (*multiply)(float *a, const float *b, int64_t n); /* a *= b */
    /* m = `kept` or 0, dropout's factors of keys 4 quad .. 4 (quad + quads) - 1 of row i of list bh */
    void (*dropout)(float *m, const fattn_dropout *dropout, int64_t bh, int64_t i, int64_t quad, int64_t quads, float kept);
} softmax_words;

extern const softmax_words composed_softmax_generic, composed_softmax_avx2, composed_softmax_avx512;

/* ----------------------------------------------------------------------------------------------------------- operations */

/* The matrices of the workspace. */
enum { MATRIX_P, MATRIX_DS, MATRIX_DX, MATRICES };

typedef struct work {
    const fattn_problem *problem;
    const fattn_launch *launch;
    const softmax_words *words;
    fattn_dropout dropout;
    float *matrix[MATRICES];    /* each sequence's [heads_q, seq_q, seq_k], see composed_part_of */
    float *row_lse;             /* like lse, of the workspace: where the caller wants no lse, or it does not tell empty rows */
    float *delta;               /* like lse, backward with sinks: D */
    int64_t blocks, key_blocks; /* units per head of the longest sequence */
} work;

/* What a unit works on: `count` rows (or keys) from `first` on, of head h of a sequence. */
typedef struct part {
    fattn_sequence s;
    int64_t h, first, count;
} part;

/* The part of unit `number`; false if its sequence has fewer blocks than the longest. */
bool composed_part_rows(const work *w, int64_t number, part *own);
bool composed_part_keys(const work *w, int64_t number, part *own);

/* Index of row (h, i) of a sequence in lse; its row of a matrix begins seq_k of the descriptor times the index of (h, 0), and i
 * times the sequence's seq_k, behind the matrix's beginning. */
static inline int64_t composed_row_index(const fattn_sequence *s, int64_t h, int64_t i)
{
    return s->lse_first + h * s->lse_head + i;
}

matrix composed_part_of(const work *w, int which, const fattn_sequence *s, int64_t h, int64_t row, int64_t rows, int64_t key,
                        int64_t keys);

/* Sets a row to 0 outside what is kept. */
static inline void composed_clear(float *row, fattn_interval kept, int64_t columns)
{
    for (int64_t j = 0; j < kept.lo; j++)
        row[j] = 0;
    for (int64_t j = kept.hi; j < columns; j++)
        row[j] = 0;
}

/* scale q.k to scores, in a block of whole rows: softcap, bias and ALiBi of the kept keys of row i. With softcap also dx/ds
 * times scale, unless slope is NULL. */
void composed_change(const work *w, const block *at, int64_t i, fattn_interval kept, float *row, float *slope);

/* row *= dropout's factors, for the kept keys of row i. */
void composed_drop(const work *w, const block *at, int64_t i, fattn_interval kept, float *row);

/* softmax_words.gradient with dropout: dp = p (m dp - delta) scale and p = m p. */
void composed_drop_gradient(const work *w, const block *at, int64_t i, fattn_interval kept, float *dp, float *p, float delta,
                            float scale);

void composed_forward(const work *w);
void composed_backward(const work *w);

/* The gradients that are sums over sequences and heads, from dS and D: behind composed_backward's other passes. */
void composed_dbias(const work *w);
void composed_dsinks(const work *w);

#endif
