/*
 * The weights of a Hugging Face folder: model.safetensors, or the files that model.safetensors.index.json names. Tensors are
 * F32, F16 or BF16, named as in model.h; files are mapped, and become floats tensor by tensor.
 */
#ifndef TRAIN_HF_WEIGHTS_H
#define TRAIN_HF_WEIGHTS_H

#include "hf_config.h"

#define HF_WEIGHTS_NAME "model.safetensors"
#define HF_INDEX_NAME   "model.safetensors.index.json"

/* NULL, with train_error() set, if a tensor is missing, of another shape or type, or one is there that the model has not. A
 * tied model's folder may hold lm_head.weight, if it is the embedding. */
model *hf_weights_load(const char *folder, const hf_config *c);

#endif
