/*
 * The harness's own attention: plain loops, written from the formulas and independent of the library. It runs in a
 * precision above the problem's (double for f32, long double for f64), which is the truth that kernels are compared with,
 * and in the problem's own precision, whose error says how good a kernel must be.
 *
 * Errors are measured in units, one per row of a result: the size of the error that one rounding of every intermediate
 * would make, to first order, divided by the machine epsilon. |a| . |b| means sum |a_d b_d|: what a dot product can lose to
 * cancellation. With p the probabilities of a row and e_j = |scale| |q| . |k_j| the size of its scores,
 *
 *     out:  max over d of   sum_j p_j (|v_jd| + e_j |v_jd - out_d|)
 *     lse:  1 + |lse| + sum_j p_j e_j
 *     dq:   max over d of   sum_j a_ij |k_jd|
 *           a_ij = p_ij |scale| ((1 + e_ij + |lse_i|) |dp_ij - D_i| + |dout_i| . |v_j| + |dout_i| . |out_i|)
 *     dk:   max over d of   sum_i a_ij |q_id|
 *     dv:   max over d of   sum_i (1 + e_ij + |lse_i|) p_ij |dout_id|
 *
 * The second term of out is the condition of the softmax: a relative error of each score. It vanishes where one key takes
 * all, or where the values agree. backward gets lse rounded, which is why |lse| is in its rows.
 */
#ifndef HARNESS_NAIVE_H
#define HARNESS_NAIVE_H

#include "arena.h"

/* Tensors of a problem; unused ones are empty. */
typedef struct tensors {
    tensor q, k, v, out, lse, dout, dq, dk, dv; /* lse: [batch, heads_q, seq_q, 1] */
} tensors;

typedef enum result_kind { RESULT_OUT, RESULT_LSE, RESULT_DQ, RESULT_DK, RESULT_DV, RESULT_COUNT } result_kind;

extern const char *const result_names[RESULT_COUNT];

/* Results as doubles, contiguous [batch, heads, rows, cols], and the unit of each row. NULL: not computed. */
typedef struct results {
    double *value[RESULT_COUNT];
    double *unit[RESULT_COUNT];
} results;

bool results_make(results *r, const problem *p, bool units);
void results_free(results *r);

/* rows and cols of a result: rows counts [batch, heads, rows] together. */
int64_t result_rows(const problem *p, result_kind kind);
int64_t result_cols(const problem *p, result_kind kind);

/* The truth, with units. out and lse always, gradients for a backward problem. Returns false without memory. */
bool oracle_run(const problem *p, const tensors *t, results *r);

/* Two ways to write the same formulas. One alone may be exact by luck, where its constants are: scores as scale * (q . k)
 * and exp; or q times scale * log2(e) before the dot product, and exp2, as fast kernels do. */
typedef enum naive_form { NAIVE_PLAIN, NAIVE_FOLDED, NAIVE_FORMS } naive_form;

/* The same in the problem's precision, without units. Backward starts from t->out and t->lse. */
bool naive_run(const problem *p, const tensors *t, naive_form form, results *r);

#endif
