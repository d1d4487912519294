/*
 * The operations on the CPU: loops on OpenMP's threads, products by oneDNN. All arithmetic is float; table.c lists
 * the operations.
 */
#ifndef TRAIN_CPU_CPU_H
#define TRAIN_CPU_CPU_H

#include "train/device.h"

bool cpu_product(device *d, const product_call *c);
/* Of bf16, m and n not 0, and what is added to C lying there. */
bool cpu_product_bf16(device *d, const product_call *c);
bool cpu_copy(device *d, const copy_call *c);
bool cpu_embedding_forward(device *d, const embedding_call *c);
bool cpu_embedding_backward(device *d, const embedding_call *c);
bool cpu_rmsnorm_forward(device *d, const rmsnorm_call *c);
bool cpu_rmsnorm_backward(device *d, const rmsnorm_call *c);
bool cpu_qknorm_rope_forward(device *d, const qknorm_rope_call *c);
bool cpu_qknorm_rope_backward(device *d, const qknorm_rope_call *c);
bool cpu_dropout(device *d, const dropout_call *c);
bool cpu_swiglu_forward(device *d, const swiglu_call *c);
bool cpu_swiglu_backward(device *d, const swiglu_call *c);
bool cpu_cross_entropy_forward(device *d, const cross_entropy_call *c);
bool cpu_cross_entropy_backward(device *d, const cross_entropy_call *c);
bool cpu_merge(device *d, const merge_call *c);
bool cpu_grad_squares(device *d, const update_call *c);
bool cpu_grad_norm(device *d, const update_call *c);
bool cpu_update(device *d, const update_call *c);

#endif
