/*
 * The model: a decoder-only transformer of the Qwen3 shape.
 *
 *     x = embed[tokens]                                                [rows, hidden], rows = batch * seq
 *     for every layer
 *         n = rmsnorm(x) input_layernorm
 *         q, k, v = n q_proj^T, n k_proj^T, n v_proj^T                 [rows, heads * head_dim], k and v with heads_kv
 *         q, k = rope(rmsnorm(q) q_norm), rope(rmsnorm(k) k_norm)      per head; positions restart in every sequence
 *         x += attention(q, k, v) o_proj^T                             causal, scale 1/sqrt(head_dim)
 *         n = rmsnorm(x) post_attention_layernorm
 *         x += (silu(n gate_proj^T) * (n up_proj^T)) down_proj^T       [rows, ffn] in between
 *     logits = rmsnorm(x) norm lm_head^T                               [rows, vocab]; tied: lm_head = embed
 *     loss = mean over rows with target >= 0 of  logsumexp(logits) - logits[target]
 *
 * With dropout p, each number that a layer adds to x, and each of attention's probabilities, is 0 with probability p, and the
 * others are divided by 1 - p.
 *
 * Names, shapes and order of the parameters are Qwen3's: model.embed_tokens.weight, model.layers.{i}.input_layernorm.weight,
 * model.layers.{i}.self_attn.{q_proj,k_proj,v_proj,o_proj,q_norm,k_norm}.weight, ...post_attention_layernorm.weight,
 * ...mlp.{gate_proj,up_proj,down_proj}.weight, model.norm.weight, lm_head.weight (absent if tied).
 */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include "runtime.h"
#include "tensor.h"
#include <stddef.h>
#include <stdint.h>

typedef struct model_config {
    int64_t vocab, hidden, layers, heads, heads_kv, head_dim, ffn;
    int64_t max_seq; /* the longest sequence: max_position_embeddings */
    double rope_theta, rms_eps;
    bool tied; /* the head is the embedding */
} model_config;

/* Is every number sensible (positive, heads a multiple of heads_kv, head_dim even and at most 512)? Names the field. */
bool model_config_check(const model_config *c);

/* ---------------------------------------------------------------------------------------------------- attention path */

/* How attention is evaluated: a switch for the run, not part of the model's configuration or of its files. */
typedef enum attention_kind {
    ATTENTION_COMPOSED = 0, /* writes the whole probability matrix; the default and the baseline */
    ATTENTION_FLASH,        /* tile by tile, the library's choice of kernel */
    ATTENTION_BLOCK,        /* exact, key blocks of `size` evaluated apart and merged by their lse; forward only */
    ATTENTION_WINDOW        /* an approximation: every position sees itself and the `size` - 1 before it */
} attention_kind;

typedef struct attention_path {
    attention_kind kind;
    int64_t size; /* of ATTENTION_BLOCK and ATTENTION_WINDOW; else 0 */
} attention_path;

/* Reads "composed", "flash", "block:N" or "window:W". */
bool attention_path_parse(const char *text, attention_path *path);
/* Writes it back; returns `text`. */
const char *attention_path_print(attention_path path, char *text, size_t size);

/* --------------------------------------------------------------------------------------------------------------- model */

/* The matrices and vectors of one layer, as the layers use them. */
typedef struct model_layer {
    const parameter *input_norm, *q_norm, *k_norm, *post_norm; /* [hidden], [head_dim], [head_dim], [hidden] */
    matrix qkv;                                                /* [(heads + 2 heads_kv) head_dim, hidden] */
    matrix o;                                                  /* [hidden, heads * head_dim] */
    matrix gate_up;                                            /* [2 ffn, hidden] */
    matrix down;                                               /* [hidden, ffn] */
} model_layer;

typedef struct model {
    model_config config;
    parameter *parameters;
    int parameter_count;
    int64_t size;       /* floats in data and in grad: all parameters, and zeros between them for alignment */
    int64_t weights;    /* the number of parameters proper */
    device *device;     /* whose memory all of the following is; the CPU's, until model_place() */
    float *data, *grad; /* [size] each; grad is NULL until somebody needs it */
    void *rounded;      /* [size]: data in bf16, for matrix products; NULL where they are of float */
    matrix embed, head; /* [vocab, hidden] */
    const parameter *norm;
    model_layer *layer;         /* [layers] */
    float *rope_cos, *rope_sin; /* [max_seq, head_dim / 2] */
} model;

/* A model with random weights and no gradients yet: normal with deviation 0.02, those of o_proj and down_proj divided by sqrt(2
 * layers), norms 1. The same seed gives the same bits on every machine. NULL, with train_error() set, for a bad configuration
 * or no memory. */
model *model_create(const model_config *config, uint64_t seed);
/* The same with all weights 0, for whoever loads them. */
model *model_reserve(const model_config *config);
void model_free(model *m);
/* Moves the model to the runtime's device, and makes what products of the runtime's type need. Before the model has gradients,
 * an optimiser, a step or a decoder; the device must outlive the model. */
bool model_place(model *m, const runtime *r);
/* Makes `rounded` from data again, after somebody changed data. */
bool model_round(model *m);
/* Allocates the gradients, zeroed, unless they are there. Optimisers and steps with backward ask for them when they are
 * created, so that a model that only evaluates or generates does without. */
bool model_need_grad(model *m);
/* Nothing if there are none. */
bool model_zero_grad(model *m);

/* ---------------------------------------------------------------------------------------------------------------- step */

/* One forward (and backward) of a model on [batch, seq] tokens, recorded and planned once and replayed for every batch. Where
 * ranks share sequences (ranks.h), all of a group take the same batch, and each computes its rows (ring.h): loss, targets,
 * logits and the gradients are those of these rows. */
typedef struct model_step model_step;

/* Documents that stand one behind the other in a sequence, each with its end token. Rows attend within their document;
 * positions begin anew in each, and what follows an end token is no target, unless the options say otherwise. */
typedef struct document_options {
    bool on; /* false: a sequence is one document, whatever it holds */
    int32_t end;
    bool positions_go_on, targets_go_on;
} document_options;

typedef struct step_options {
    int64_t batch, seq;
    attention_path attention;
    document_options documents;
    bool backward;     /* false: forward only, with far less memory */
    bool recompute;    /* whole layers are computed again in backward instead of kept */
    bool logits;       /* step_logits() is wanted */
    int64_t head_rows; /* so many rows' logits exist at a time; 0: what is good */
    double dropout;    /* of residual branches and of attention's probabilities; 0: none, as evaluation wants it */
    /* Not NULL: called within step_backward() when the gradients of a layer's parameters, and of all behind it but a tied head,
     * are on their way: from the last layer to the first. False, with train_error() set: it failed. */
    bool (*layer_done)(void *user, int layer);
    void *user;
} step_options;

typedef struct step_memory {     /* bytes */
    size_t parameters;           /* and their copies in bf16 */
    size_t gradients;            /* of the parameters */
    size_t optimizer;            /* 0 here: add optimizer_bytes() */
    size_t activations;          /* values kept for backward, at the fullest moment */
    size_t activation_gradients; /* likewise */
    size_t workspace;            /* likewise; attention's workspace is here */
    size_t arena;                /* the block that holds the last three: what the step allocates */
} step_memory;

/* The model and the runtime must outlive the step. Several steps of one model may exist at a time (training and evaluation,
 * say), but only one may be used at a time. NULL with train_error() set: a path that has no backward, a sequence longer than
 * max_seq, no memory, a library without a fitting kernel. */
model_step *step_create(model *m, const runtime *r, const step_options *options);
void step_free(model_step *s);

/* tokens and targets: [batch, seq]; a target of -1 does not count. targets may be NULL (no loss is wanted: gives 0). Puts the
 * mean loss in *loss, if loss is not NULL, which waits for it; if backward follows anyway, which works the loss out, too,
 * asking for it there costs less: step_loss() after step_backward(). False for a token outside 0 .. vocab-1 or a target outside
 * -1 .. vocab-1. */
bool step_forward(model_step *s, const int32_t *tokens, const int32_t *targets, double *loss);
/* What dropout draws until the next call, in forward and in backward. */
void step_seed(model_step *s, uint64_t seed);
/* Adds scale times the gradient of the sum of the last forward's losses, one for each target, to the parameters' gradients; 1 /
 * step_targets() makes that of their mean. One scale for all of several micro-batches makes a mean over the targets of all,
 * however many each has. One backward for each forward at most. */
bool step_backward(model_step *s, float scale);
/* The mean loss of the last forward, once it is done; backward need not be. */
bool step_loss(model_step *s, double *loss);
/* [batch * seq, vocab] of the last forward, in the device's memory; valid until the next forward. NULL unless options.logits.
 */
const float *step_logits(const model_step *s);
/* Targets that counted in the last forward. */
int64_t step_targets(const model_step *s);
/* Whether what follows a token is predicted: it is no padding, and of the same document. */
bool step_counts(const model_step *s, int32_t token, int32_t target);
step_memory step_memory_use(const model_step *s);

/* ------------------------------------------------------------------------------------------------------------- decoder */

/* Token by token with a cache of keys and values: one sequence. */
typedef struct decoder decoder;

/* capacity: the most tokens that the cache holds, at most max_seq. */
decoder *decoder_create(const model *m, const runtime *r, attention_path attention, int64_t capacity);
void decoder_free(decoder *d);
/* Appends n >= 1 tokens and gives the logits [vocab] that follow the last of them in *logits (the host's memory, the decoder's
 * own, valid until the next call). A prompt goes in with one call. False if the cache is full or a token is out of range: then
 * nothing was appended. */
bool decoder_feed(decoder *d, const int32_t *tokens, int64_t n, const float **logits);
/* How many tokens the cache holds, and going back to fewer (0: a new sequence). */
int64_t decoder_length(const decoder *d);
void decoder_rewind(decoder *d, int64_t length);

#endif
