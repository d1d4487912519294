/*
 * A folder with a model, of two kinds: a checkpoint of this trainer (checkpoint.h, state.json), or what Hugging Face's
 * transformers save of a Qwen3 model (config.json, model.safetensors). If it has SHA256SUMS, as exports have, those files are
 * verified.
 */
#ifndef TRAIN_MODEL_FOLDER_H
#define TRAIN_MODEL_FOLDER_H

#include "checkpoint.h"
#include "hf_config.h"
#include "tokenizer.h"

typedef struct model_folder {
    char *path;
    bool is_checkpoint;
    model_config model;
    int64_t window;         /* the attention that the model was made for sees so many keys; 0: all */
    char *configuration;    /* JSON object: the options of the training run; {} if nobody knows them */
    hf_config config;       /* of Hugging Face's folder */
    checkpoint_state state; /* of a checkpoint */
} model_folder;

/* False, with train_error() set, if it is neither. model_folder_close() is due in any case. */
bool model_folder_open(const char *path, model_folder *f);
void model_folder_close(model_folder *f);
/* NULL, with train_error() set. */
model *model_folder_load(const model_folder *f);

/* The attention that the model was made for. */
attention_path model_folder_attention(const model_folder *f);
/* What tokenizer_open() takes for the model's tokens, for the caller to free: a tokenizer.json in the folder, or "bytes" for a
 * checkpoint without one. NULL, with train_error() set, if the folder has none or it is altered. */
char *model_folder_tokenizer(const model_folder *f);

/* The tokens that begin and end a text of this model, opened as `words` (NULL: none is known): what the folder says, else
 * what generation_config.json says, else the tokenizer's. -1: not known. */
void model_folder_ends(const model_folder *f, const tokenizer *words, int64_t *bos, int64_t *eos);
/* Appends every token that ends what the model generates: all that these say. */
void model_folder_stops(const model_folder *f, const tokenizer *words, token_list *stops);

#endif
