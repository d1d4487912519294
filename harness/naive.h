/*
 * The harness's own attention: plain loops, written from the formulas and independent of the library. It runs in a
 * precision above the problem's (double for float and 16 bits, long double for double), which is the truth that kernels are
 * compared with, and in the precision that kernels compute in (float; double for f64), whose error says how good a kernel must
 * be. 16-bit inputs are exact in either; that results are rounded to their type once more is the judge's business.
 *
 * Errors are measured in units, one per row of a result: the size of the error that one rounding of every intermediate
 * would make, to first order, divided by the machine epsilon. |a| . |b| means sum |a_d b_d|: what a dot product can lose to
 * cancellation.
 *
 * Scores. x_ij = scale q_i . k_j loses e^x_ij = |scale| |q_i| . |k_j|. Softcap c = cap tanh(x / cap) has the slope
 * 1 - t^2 with t = tanh(x / cap), and is itself rounded: (1 - t^2) e^x + |c|. Bias and ALiBi are exact, but rounded where they
 * are multiplied (a slope with a distance; both with log2 e) and added, and a sum of terms is no larger than they are together:
 *
 *     e_ij = (1 - t_ij^2) e^x_ij + |c_ij| (softcap only) + |bias_ij| + |slope_h (i + off - j)|
 *
 * Forward. With p the probabilities of a row, p_z = exp(z - lse) that of a sink z, and m dropout's factors (0 or 1 / (1 - P);
 * 1 without), out_d = sum_j m_j p_j v_jd. A change of score j by u changes p_j by u p_j (1 - p_j) and every other p_l by
 * - u p_j p_l, so out_d by u p_j (m_j v_jd - out_d); the sink has no value:
 *
 *     out:  max over d of   sum_j p_j (m_j |v_jd| + e_j |m_j v_jd - out_d|)  +  p_z |z| |out_d|
 *     lse:  1 + |lse| + sum_j p_j e_j + p_z |z|
 *
 * The second term of out is the condition of the softmax: a relative error of each score. It vanishes where one key takes
 * all, or where the values agree.
 *
 * Backward starts from given out and lse, whatever they are. p_ij = exp(s_ij - lse_i) has the relative error
 * r_ij = 1 + e_ij + |lse_i|; D_i = dout_i . out_i - dlse_i the error |dout_i| . |out_i| + |dlse_i|. So ds = p (m dout . v - D)
 * has b_ij, and dx = ds scale (1 - t^2), where 1 - t^2 loses 2 |t| (|t| + (1 - t^2) e^x / |cap|), has a_ij:
 *
 *     b_ij = p_ij (r_ij |m_ij dout_i . v_j - D_i| + m_ij |dout_i| . |v_j| + |dout_i| . |out_i| + |dlse_i|)
 *     a_ij = |scale| ((1 - t_ij^2) b_ij + |ds_ij| 2 |t_ij| (|t_ij| + (1 - t_ij^2) e^x_ij / cap))
 *
 *     dq:      max over d of   sum_j a_ij |k_jd|
 *     dk:      max over d of   sum_i a_ij |q_id|
 *     dv:      max over d of   sum_i r_ij m_ij p_ij |dout_id|
 *     dbias:   of each element, sum b_ij over what is broadcast
 *     dsinks:  of each head, sum_i exp(z - lse_i) ((1 + |z| + |lse_i|) |D_i| + |dout_i| . |out_i| + |dlse_i|)
 */
#ifndef HARNESS_NAIVE_H
#define HARNESS_NAIVE_H

#include "tensors.h"

typedef enum result_kind {
    RESULT_OUT,
    RESULT_LSE,
    RESULT_DQ,
    RESULT_DK,
    RESULT_DV,
    RESULT_DBIAS,
    RESULT_DSINKS,
    RESULT_COUNT
} result_kind;

extern const char *const result_names[RESULT_COUNT];

/* Results as doubles, contiguous [batch, heads, rows, cols], where rows are those of the longest sequence: shorter ones have
 * zeros behind their end; and the unit of each row. dbias is of the shape of its tensor, and each element is a row of its own.
 * NULL: not computed. */
typedef struct results {
    double *value[RESULT_COUNT];
    double *unit[RESULT_COUNT];
} results;

bool results_make(results *r, const problem *p, bool units);
void results_free(results *r);

/* Whether the problem's operation has this result. */
bool result_wanted(const problem *p, result_kind kind);

/* rows and cols of a result: rows counts [batch, heads, rows] together. */
int64_t result_rows(const problem *p, result_kind kind);
int64_t result_cols(const problem *p, result_kind kind);
fattn_dtype result_type(const problem *p, result_kind kind);

/* The truth, with units: out and lse; and the gradients, from the out and lse in t. r was made. Return false without memory. */
bool oracle_forward(const problem *p, const geometry *g, const tensors *t, results *r);
bool oracle_backward(const problem *p, const geometry *g, const tensors *t, results *r);

/* Two ways to write the same formulas. One alone may be exact by luck, where its constants are: scores as scale * (q . k)
 * and exp; or q times scale * log2(e) before the dot product, exp2, and the sum of dout . v begun with -D, as fast kernels do.
 */
typedef enum naive_form { NAIVE_PLAIN, NAIVE_FOLDED, NAIVE_FORMS } naive_form;

/* The problem's operation in the precision of kernels, without units. Backward starts from t->out and t->lse. */
bool naive_run(const problem *p, const geometry *g, const tensors *t, naive_form form, results *r);

#endif
