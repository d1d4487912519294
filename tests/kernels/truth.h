/*
 * Problems in double, their results by plain loops over the header's formulas, and how far from them a kernel may be. Shared by
 * the tests that hold the library against PyTorch's numbers and against the faults that other libraries had.
 */
#ifndef FATTN_TESTS_KERNELS_TRUTH_H
#define FATTN_TESTS_KERNELS_TRUTH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h> /* after the headers it wants */

#include "fattn/fattn.h"

/* A problem, dense and padded: [batch, heads, seq, dim] in double whatever the library is given. What lies behind a sequence's
 * rows or keys does not count. Arrays of what the descriptor does not ask for are NULL; dtype and totals of desc are unset. */
typedef struct scene {
    fattn_desc desc;
    double *q, *k, *v, *dout, *dlse;
    double *bias;     /* [batch, heads_q, seq_q, seq_k], of which each but the last is 1 where bias_has says so */
    bool bias_has[3]; /* batch, heads, rows */
    float *slopes, *sinks;
    int32_t *rows, *keys; /* [batch]: of each sequence */
    int32_t *lo, *hi;     /* [batch, seq_q] */
    int32_t *document_q, *document_k;
} scene;

/* Random multiples of 1/32 below 2, which all types hold; lengths are seq_q and seq_k, intervals keep everything, documents
 * are some keys long. */
scene scene_make(const fattn_desc *desc, uint64_t seed);
scene scene_make_with_bias(const fattn_desc *desc, uint64_t seed, bool batch, bool heads, bool rows);
void scene_free(scene *s);

/* Sets the lengths of one sequence. */
void scene_length(scene *s, int64_t b, int64_t rows, int64_t keys);

/* Whether a type holds all of a scene's numbers. */
bool scene_fits(const scene *s, int32_t dtype);

/* Row i of sequence b keeps key j. */
bool scene_keeps(const scene *s, int64_t b, int64_t i, int64_t j);

double *scene_row(const scene *s, double *tensor, int64_t heads, int64_t rows, int64_t cols, int64_t b, int64_t h, int64_t i);
int64_t scene_bias_index(const scene *s, int64_t b, int64_t h, int64_t i);

typedef enum result { OUT, LSE, DQ, DK, DV, DBIAS, DSINKS, RESULTS } result;
extern const char *const result_name[RESULTS];

/*
 * The results, padded like the scene, and the bound on each element's error before it is rounded to its type. u is the unit
 * roundoff of the arithmetic, u_out that of the type in which backward is given out. Bounds are what rounding of every step
 * comes to at worst, to first order: a sum of n products errs by at most (n + few) u sum |products|; a score's absolute error
 * is a probability's relative error, and reaches out by how far the key's value is from out. Few is 4 for sums and 16 where
 * exponentials or their tables come in. Nothing of it is fitted to what kernels do.
 */
typedef struct truth {
    double *value[RESULTS], *bound[RESULTS];
    int64_t count[RESULTS];
} truth;

truth truth_of(const scene *s, double u, double u_out);
truth truth_blank(const scene *s); /* zeros: where only bits are compared */
void truth_free(truth *t);

/* ------------------------------------------------------------------------------------------------------------- numbers */

size_t number_size(int32_t dtype);
double number_unit(int32_t dtype); /* unit roundoff */
double number_round(double x, int32_t dtype);
double number_get(const void *data, int32_t dtype, int64_t i);
void number_set(void *data, int32_t dtype, int64_t i, double x); /* rounded to nearest */
const char *number_name(int32_t dtype);

/* got, of dtype, is want within the bound and rounding. NaN wants NaN, an infinity itself, zero without bound zero. */
bool number_near(double got, double want, double bound, int32_t dtype);

double random_next(uint64_t *state);        /* in [-1, 1) */
void *allocate(int64_t count, size_t size); /* zeros; fails the test without memory */

#endif
