/*
 * Generating with a cache: the model's forward for the new tokens only, which attend to the cached keys and values.
 *
 * Per layer the cache holds k (normed and rotated) and v, [capacity, heads_kv * dim] each. New tokens are taken CHUNK at a
 * time, so that a long prompt is matrix products and the buffers stay small; a chunk's queries are the last rows of the
 * keys so far, which is the library's causal mask aligned bottom-right. Only the last token's logits are computed.
 */
#include "error.h"
#include "layers/layers.h"
#include "model.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 128 };

struct decoder {
    const model *m;
    const runtime *r;
    attention_path path;
    int64_t capacity, length, chunk; /* chunk: rows of the buffers */
    int64_t q_cols, kv_cols;         /* heads * dim, heads_kv * dim */
    float *block;                    /* all of the following */
    size_t block_floats;
    float *k, *v;      /* [layers, capacity, kv_cols] */
    float *x, *normed; /* [chunk, hidden] */
    float *qkv;        /* [chunk, q_cols + 2 kv_cols] */
    float *q, *out;    /* [chunk, q_cols] */
    float *lse;        /* [heads, chunk] */
    float *gate_up;    /* [chunk, 2 ffn] */
    float *inner;      /* [chunk, ffn] */
    float *logits;     /* [vocab] */
    void *workspace;   /* of attention */
    size_t workspace_bytes;
};

/* Hands out the block, or only counts it while the block is NULL. */
static float *take(decoder *d, int64_t floats)
{
    float *p = d->block ? d->block + d->block_floats : NULL;
    d->block_floats += (size_t)(floats + 15) / 16 * 16;
    return p;
}

static void lay_out(decoder *d)
{
    const model_config *c = &d->m->config;
    d->block_floats = 0;
    d->k = take(d, c->layers * d->capacity * d->kv_cols);
    d->v = take(d, c->layers * d->capacity * d->kv_cols);
    d->x = take(d, d->chunk * c->hidden);
    d->normed = take(d, d->chunk * c->hidden);
    d->qkv = take(d, d->chunk * (d->q_cols + 2 * d->kv_cols));
    d->q = take(d, d->chunk * d->q_cols);
    d->out = take(d, d->chunk * d->q_cols);
    d->lse = take(d, d->chunk * c->heads);
    d->gate_up = take(d, d->chunk * 2 * c->ffn);
    d->inner = take(d, d->chunk * c->ffn);
    d->logits = take(d, c->vocab);
}

static attention problem(const decoder *d, int64_t rows, int64_t length)
{
    const model_config *c = &d->m->config;
    return attention_problem(d->r, d->path, 1, c->heads, c->heads_kv, rows, length, c->head_dim);
}

/* The library's needs differ from length to length; the workspace grows to the largest so far. */
static bool ensure_workspace(decoder *d, const attention *a)
{
    size_t bytes;
    if (!attention_workspace(a, FATTN_OP_FORWARD, &bytes))
        return false;
    if (bytes <= d->workspace_bytes)
        return true;
    void *larger = realloc(d->workspace, bytes);
    if (!larger)
        return train_fail_as(TRAIN_ERROR_WORK, "no memory for attention: it needs %zu bytes", bytes);
    d->workspace = larger;
    d->workspace_bytes = bytes;
    return true;
}

static bool prepare(decoder *d)
{
    lay_out(d);
    d->block = aligned_alloc(64, d->block_floats * sizeof *d->block);
    if (!d->block)
        return train_fail_as(TRAIN_ERROR_WORK, "no memory for a cache of %" PRId64 " tokens: it needs %zu bytes", d->capacity,
                             d->block_floats * sizeof *d->block);
    lay_out(d);
    attention one = problem(d, 1, d->capacity), many = problem(d, d->chunk, d->capacity);
    return ensure_workspace(d, &one) && ensure_workspace(d, &many);
}

decoder *decoder_create(const model *m, const runtime *r, attention_path path, int64_t capacity)
{
    const model_config *c = &m->config;
    if (capacity < 1 || capacity > c->max_seq) {
        train_fail("the cache is to hold %" PRId64 " tokens, but the model takes 1 .. %" PRId64, capacity, c->max_seq);
        return NULL;
    }
    decoder *d = calloc(1, sizeof *d);
    if (!d) {
        train_fail_as(TRAIN_ERROR_WORK, "no memory for a decoder");
        return NULL;
    }
    *d = (decoder){.m = m,
                   .r = r,
                   .path = path,
                   .capacity = capacity,
                   .chunk = capacity < CHUNK ? capacity : CHUNK,
                   .q_cols = c->heads * c->head_dim,
                   .kv_cols = c->heads_kv * c->head_dim};
    if (prepare(d))
        return d;
    decoder_free(d);
    return NULL;
}

void decoder_free(decoder *d)
{
    if (!d)
        return;
    free(d->block);
    free(d->workspace);
    free(d);
}

/* out = attention of the new rows, whose keys and values join the cache of this layer. */
static bool attend(decoder *d, int64_t layer, int64_t rows)
{
    const model *m = d->m;
    const model_config *c = &m->config;
    const model_layer *l = &m->layer[layer];
    float *k = d->k + layer * d->capacity * d->kv_cols, *v = d->v + layer * d->capacity * d->kv_cols;
    int64_t stride = d->q_cols + 2 * d->kv_cols;
    rotation rotate_q = {m->rope_cos, m->rope_sin, c->heads, c->head_dim, rows};
    rotation rotate_k = {m->rope_cos, m->rope_sin, c->heads_kv, c->head_dim, rows};
    qknorm_rope_forward(d->q, d->q_cols, NULL, d->qkv, stride, rows, l->q_norm->data, &rotate_q, d->length, (float)c->rms_eps);
    qknorm_rope_forward(k + d->length * d->kv_cols, d->kv_cols, NULL, d->qkv + d->q_cols, stride, rows, l->k_norm->data,
                        &rotate_k, d->length, (float)c->rms_eps);
    for (int64_t i = 0; i < rows; i++)
        memcpy(v + (d->length + i) * d->kv_cols, d->qkv + i * stride + d->q_cols + d->kv_cols, (size_t)d->kv_cols * sizeof *v);
    attention a = problem(d, rows, d->length + rows);
    return ensure_workspace(d, &a) && attention_forward(&a, (attention_rows){d->q, d->q_cols}, (attention_rows){k, d->kv_cols},
                                                        (attention_rows){v, d->kv_cols}, (attention_rows){d->out, d->q_cols},
                                                        d->lse, d->workspace, d->workspace_bytes);
}

/* All layers for `rows` new tokens; x holds the last layer's rows afterwards. */
static bool feed_chunk(decoder *d, const int32_t *tokens, int64_t rows)
{
    const model *m = d->m;
    const model_config *c = &m->config;
    float eps = (float)c->rms_eps;
    embedding_forward(d->x, tokens, rows, &m->embed);
    for (int64_t i = 0; i < c->layers; i++) {
        const model_layer *l = &m->layer[i];
        rmsnorm_forward(d->normed, NULL, d->x, rows, c->hidden, l->input_norm->data, eps);
        linear_forward(d->qkv, d->normed, rows, &l->qkv, NULL);
        if (!attend(d, i, rows))
            return false;
        linear_forward(d->x, d->out, rows, &l->o, d->x);
        rmsnorm_forward(d->normed, NULL, d->x, rows, c->hidden, l->post_norm->data, eps);
        linear_forward(d->gate_up, d->normed, rows, &l->gate_up, NULL);
        swiglu_forward(d->inner, d->gate_up, rows, c->ffn);
        linear_forward(d->x, d->inner, rows, &l->down, d->x);
    }
    d->length += rows;
    return true;
}

static bool check_tokens(const decoder *d, const int32_t *tokens, int64_t n)
{
    if (n < 1 || n > d->capacity - d->length)
        return train_fail("%" PRId64 " tokens do not fit: the cache holds %" PRId64 " of %" PRId64, n, d->length, d->capacity);
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= d->m->config.vocab)
            return train_fail("token %" PRId64 " is %d, but must be 0 .. %" PRId64, i, tokens[i], d->m->config.vocab - 1);
    return true;
}

bool decoder_feed(decoder *d, const int32_t *tokens, int64_t n, const float **logits)
{
    int64_t before = d->length, rows = 0, hidden = d->m->config.hidden;
    if (!check_tokens(d, tokens, n))
        return false;
    for (int64_t done = 0; done < n; done += rows) {
        rows = n - done < d->chunk ? n - done : d->chunk;
        if (!feed_chunk(d, tokens + done, rows)) {
            d->length = before;
            return false;
        }
    }
    rmsnorm_forward(d->normed, NULL, d->x + (rows - 1) * hidden, 1, hidden, d->m->norm->data, (float)d->m->config.rms_eps);
    linear_forward(d->logits, d->normed, 1, &d->m->head, NULL);
    *logits = d->logits;
    return true;
}

int64_t decoder_length(const decoder *d)
{
    return d->length;
}

void decoder_rewind(decoder *d, int64_t length)
{
    if (length >= 0 && length < d->length)
        d->length = length;
}
