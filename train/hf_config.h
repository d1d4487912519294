/*
 * config.json of Hugging Face's transformers, for Qwen3ForCausalLM: what of it this model is, and nothing else.
 *
 * Read are the fields of versions 4 and 5 of transformers, which say theta and window in different places; a field that is not
 * there has the value that Qwen3Config gives it. Whatever would make it another function than model.h's is refused by name:
 * other architectures and activations, biases, scaled positions, quantised weights, windows in some layers only.
 */
#ifndef TRAIN_HF_CONFIG_H
#define TRAIN_HF_CONFIG_H

#include "bpe.h"
#include "model.h"
#include "narrow.h"
#include "text.h"

typedef struct hf_config {
    model_config model;
    int64_t window;   /* every layer sees so many keys, its own position among them; 0: all */
    int64_t bos, eos; /* tokens; -1: not said */
} hf_config;

/* False, with train_error() set; `label` begins it. */
bool hf_config_parse(const char *json, size_t size, const char *label, hf_config *c);
bool hf_config_read(const char *path, hf_config *c);

/* bos and every eos of any file that has them, such as generation_config.json; -1 and none: not said. */
void hf_config_tokens(const char *json, size_t size, int64_t *bos, token_list *eos);

/* Appends the object, for weights of this type. */
void hf_config_write(text_buffer *json, const hf_config *c, narrow_type type);

#endif
