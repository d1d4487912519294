/*
 * Matrix products, float, row-major, by oneDNN's dnnl_sgemm.
 *
 *     C = op(A) op(B) + beta C        op(A) [m, k], op(B) [k, n], C [m, n]
 *
 * The three products of a linear layer y = x W^T, x [rows, in], W [out, in], y [rows, out]:
 *
 *     y  = x W^T      gemm(false, true,  rows, out, in,   x, W, y)
 *     dx = dy W       gemm(false, false, rows, in,  out,  dy, W, dx)
 *     dW = dy^T x     gemm(true,  false, out,  in,  rows, dy, x, dW)
 */
#ifndef TRAIN_GEMM_H
#define TRAIN_GEMM_H

#include <stdbool.h>
#include <stdint.h>

/* lda, ldb, ldc are the distances between rows of A, B and C as they lie in memory. A product with k = 0 scales C. */
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
          int64_t ldb, float beta, float *c, int64_t ldc);

#endif
