/*
 * The trainer's kernels, for the host that launches them and the .cu files that define them. Each takes its operation's call
 * (operations.h) by value and strides over the work, so that any number of blocks will do but where it says otherwise.
 */
#ifndef TRAIN_CUDA_KERNELS_H
#define TRAIN_CUDA_KERNELS_H

enum {
    CUDA_THREADS = 256, /* of a block */
    CUDA_WIDE = 1024,   /* of one that has a row of logits, which the L2 holds for all blocks at once until it is read again */
    CUDA_CHUNKS = 264,  /* blocks that sums over rows are cut into: two for each multiprocessor of an H200 */
    CUDA_COLUMNS = 32,  /* columns of a block of add_chunks, and of a warp of embedding_backward: 4 times as many at best */
    CUDA_SCAN = 4096,   /* tokens that a block of embedding_backward looks at, at a time */
    CUDA_HELD = 1024    /* columns of a row that rmsnorm_backward_held takes at most; a multiple of 4 */
};

/* X(image, kernel); kernels that exist for both types stand twice, float first. */
#define CUDA_TRAIN_KERNELS(X)                                                                                                  \
    X(NORMS, rmsnorm_forward_f32)                                                                                              \
    X(NORMS, rmsnorm_forward_bf16)                                                                                             \
    X(NORMS, rmsnorm_backward_f32)                                                                                             \
    X(NORMS, rmsnorm_backward_bf16)                                                                                            \
    X(NORMS, rmsnorm_backward_held_f32)                                                                                        \
    X(NORMS, rmsnorm_backward_held_bf16)                                                                                       \
    X(NORMS, rmsnorm_weights_f32)                                                                                              \
    X(NORMS, rmsnorm_weights_bf16)                                                                                             \
    X(NORMS, qknorm_rope_forward_f32)                                                                                          \
    X(NORMS, qknorm_rope_forward_bf16)                                                                                         \
    X(NORMS, qknorm_rope_backward_f32)                                                                                         \
    X(NORMS, qknorm_rope_backward_bf16)                                                                                        \
    X(NORMS, add_chunks)                                                                                                       \
    X(ROWS, copy_f32_f32)                                                                                                      \
    X(ROWS, copy_f32_bf16)                                                                                                     \
    X(ROWS, copy_bf16_f32)                                                                                                     \
    X(ROWS, copy_bf16_bf16)                                                                                                    \
    X(ROWS, embedding_forward)                                                                                                 \
    X(ROWS, embedding_backward)                                                                                                \
    X(ROWS, dropout_branch_f32)                                                                                                \
    X(ROWS, dropout_branch_bf16)                                                                                               \
    X(ROWS, dropout_grad_f32)                                                                                                  \
    X(ROWS, dropout_grad_bf16)                                                                                                 \
    X(ROWS, swiglu_forward_f32)                                                                                                \
    X(ROWS, swiglu_forward_bf16)                                                                                               \
    X(ROWS, swiglu_backward_f32)                                                                                               \
    X(ROWS, swiglu_backward_bf16)                                                                                              \
    X(ROWS, merge_rows)                                                                                                        \
    X(SUMS, cross_entropy_f32)                                                                                                 \
    X(SUMS, cross_entropy_bf16)                                                                                                \
    X(SUMS, cross_entropy_wide_f32)                                                                                            \
    X(SUMS, cross_entropy_wide_bf16)                                                                                           \
    X(SUMS, loss_sum)                                                                                                          \
    X(SUMS, grad_squares)                                                                                                      \
    X(SUMS, grad_norm)                                                                                                         \
    X(SUMS, update_pieces)                                                                                                     \
    X(TRIALS, random_numbers)                                                                                                  \
    X(TRIALS, digest_bits)

#endif
