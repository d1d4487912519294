/*
 * A model for programs of others: a Hugging Face folder (config.json, model.safetensors, the tokenizer's files, SHA256SUMS), or
 * one GGUF file as llama.cpp reads it. Both are written beside their place and renamed when they are whole.
 */
#ifndef TRAIN_EXPORT_H
#define TRAIN_EXPORT_H

#include "hf_config.h"
#include "narrow.h"
#include "tokenizer.h"

typedef struct export_job {
    const model *m; /* in the host's memory */
    hf_config config;
    narrow_type type;
    const tokenizer *words; /* NULL: none is known */
    /* Called for each file that was written; NULL: nobody. */
    void (*written)(void *user, const char *path, const char *sha256);
    void *user;
} export_job;

/* False, with train_error() set: what stood there before is as it was. */
bool export_hf(const export_job *job, const char *folder);
/* Of the numbers with one dimension all are F32. Refuses windows, which llama.cpp's Qwen3 has not. */
bool export_gguf(const export_job *job, const char *path);

/* Whether every number of the model fits the type, and every token of the tokenizer the model. */
bool export_check(const export_job *job);

#endif
