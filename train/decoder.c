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

enum { CHUNK = 128 };

struct decoder {
    const model *m;
    const runtime *r;
    attention_path path;
    int64_t capacity, length, chunk; /* chunk: rows of the buffers */
    int64_t q_cols, kv_cols;         /* heads * dim, heads_kv * dim */
    char *block;                     /* all of the following, of the model's device */
    size_t block_bytes;
    char *k, *v;     /* [layers, capacity, kv_cols] */
    float *x;        /* [chunk, hidden] */
    void *normed;    /* [chunk, hidden] */
    char *qkv;       /* [chunk, q_cols + 2 kv_cols] */
    void *q, *out;   /* [chunk, q_cols] */
    float *lse;      /* [heads, chunk] */
    void *gate_up;   /* [chunk, 2 ffn] */
    void *inner;     /* [chunk, ffn] */
    float *logits;   /* [vocab] */
    int32_t *tokens; /* [chunk] */
    void *workspace; /* of attention */
    size_t workspace_bytes;
    float *host_logits; /* [vocab], of the host */
};

/* Hands out the block, or only counts it while the block is NULL. */
static void *take(decoder *d, int64_t count, size_t size)
{
    void *p = d->block ? d->block + d->block_bytes : NULL;
    d->block_bytes += ((size_t)count * size + 63) / 64 * 64;
    return p;
}

static void lay_out(decoder *d)
{
    const model_config *c = &d->m->config;
    const size_t size = number_bytes(d->r->type);
    d->block_bytes = 0;
    d->k = take(d, c->layers * d->capacity * d->kv_cols, size);
    d->v = take(d, c->layers * d->capacity * d->kv_cols, size);
    d->x = take(d, d->chunk * c->hidden, sizeof *d->x);
    d->normed = take(d, d->chunk * c->hidden, size);
    d->qkv = take(d, d->chunk * (d->q_cols + 2 * d->kv_cols), size);
    d->q = take(d, d->chunk * d->q_cols, size);
    d->out = take(d, d->chunk * d->q_cols, size);
    d->lse = take(d, d->chunk * c->heads, sizeof *d->lse);
    d->gate_up = take(d, d->chunk * 2 * c->ffn, size);
    d->inner = take(d, d->chunk * c->ffn, size);
    d->logits = take(d, c->vocab, sizeof *d->logits);
    d->tokens = take(d, d->chunk, sizeof *d->tokens);
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
    device *dev = d->m->device;
    dev->run->release(dev, d->workspace);
    d->workspace_bytes = 0;
    d->workspace = dev->run->allocate(dev, bytes);
    if (!d->workspace)
        return train_fail_for("attention");
    d->workspace_bytes = bytes;
    return true;
}

static bool prepare(decoder *d)
{
    device *dev = d->m->device;
    lay_out(d);
    d->host_logits = train_calloc((size_t)d->m->config.vocab, sizeof *d->host_logits);
    d->block = d->host_logits ? dev->run->allocate(dev, d->block_bytes) : NULL;
    if (!d->block)
        return train_fail_for("a cache of %" PRId64 " tokens", d->capacity);
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
    decoder *d = train_calloc(1, sizeof *d);
    if (!d)
        return NULL;
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
    device *dev = d->m->device;
    dev->run->release(dev, d->block);
    dev->run->release(dev, d->workspace);
    free(d->host_logits);
    free(d);
}

/* Norm and rotation of some columns of qkv into rows of their own. */
static bool turn(decoder *d, void *to, int64_t first_col, int64_t heads, int64_t rows, const parameter *weight)
{
    const model *m = d->m;
    const int64_t dim = m->config.head_dim;
    qknorm_rope_call c = {.rows = rows,
                          .heads = heads,
                          .dim = dim,
                          .seq = rows,
                          .first = d->length,
                          .stride = d->q_cols + 2 * d->kv_cols,
                          .out_stride = heads * dim,
                          .type = d->r->type,
                          .eps = (float)m->config.rms_eps,
                          .x = d->qkv + (size_t)first_col * number_bytes(d->r->type),
                          .weight = weight->data,
                          .cos = m->rope_cos,
                          .sin = m->rope_sin,
                          .out = to};
    return m->device->run->qknorm_rope_forward(m->device, &c);
}

/* The new rows' values join the cache. */
static bool keep_values(decoder *d, void *to, int64_t rows)
{
    device *dev = d->m->device;
    copy_call c = {.rows = rows,
                   .cols = d->kv_cols,
                   .to_stride = d->kv_cols,
                   .from_stride = d->q_cols + 2 * d->kv_cols,
                   .to_type = d->r->type,
                   .from_type = d->r->type,
                   .to = to,
                   .from = d->qkv + (size_t)(d->q_cols + d->kv_cols) * number_bytes(d->r->type)};
    return dev->run->copy(dev, &c);
}

/* out = attention of the new rows, whose keys and values join the cache of this layer. */
static bool attend(decoder *d, int64_t layer, int64_t rows)
{
    const model_config *c = &d->m->config;
    const model_layer *l = &d->m->layer[layer];
    const size_t row = (size_t)d->kv_cols * number_bytes(d->r->type), before = (size_t)d->length * row;
    char *k = d->k + (size_t)(layer * d->capacity) * row, *v = d->v + (size_t)(layer * d->capacity) * row;
    attention a = problem(d, rows, d->length + rows);
    return turn(d, d->q, 0, c->heads, rows, l->q_norm) && turn(d, k + before, d->q_cols, c->heads_kv, rows, l->k_norm) &&
           keep_values(d, v + before, rows) && ensure_workspace(d, &a) &&
           attention_forward(&a, (attention_rows){d->q, d->q_cols}, (attention_rows){k, d->kv_cols},
                             (attention_rows){v, d->kv_cols}, (attention_rows){d->out, d->q_cols}, d->lse, d->workspace,
                             d->workspace_bytes);
}

static bool norm(decoder *d, const float *x, int64_t rows, const parameter *weight)
{
    device *dev = d->m->device;
    rmsnorm_call c = {.rows = rows,
                      .cols = d->m->config.hidden,
                      .type = d->r->type,
                      .eps = (float)d->m->config.rms_eps,
                      .x = x,
                      .weight = weight->data,
                      .out = d->normed};
    return dev->run->rmsnorm_forward(dev, &c);
}

static bool embed(decoder *d, const int32_t *tokens, int64_t rows)
{
    device *dev = d->m->device;
    embedding_call c = {.rows = rows,
                        .vocab = d->m->config.vocab,
                        .hidden = d->m->config.hidden,
                        .tokens = d->tokens,
                        .weight = d->m->embed.data,
                        .out = d->x};
    return dev->run->put(dev, d->tokens, tokens, (size_t)rows * sizeof *tokens) && dev->run->embedding_forward(dev, &c);
}

static bool feed_layer(decoder *d, int64_t layer, int64_t rows)
{
    device *dev = d->m->device;
    const model_layer *l = &d->m->layer[layer];
    const number_type type = d->r->type;
    swiglu_call mlp = {.rows = rows, .ffn = d->m->config.ffn, .type = type, .x = d->gate_up, .out = d->inner};
    return norm(d, d->x, rows, l->input_norm) && linear_forward(dev, d->qkv, type, d->normed, type, rows, &l->qkv, NULL) &&
           attend(d, layer, rows) && linear_forward(dev, d->x, NUMBER_F32, d->out, type, rows, &l->o, d->x) &&
           norm(d, d->x, rows, l->post_norm) &&
           linear_forward(dev, d->gate_up, type, d->normed, type, rows, &l->gate_up, NULL) &&
           dev->run->swiglu_forward(dev, &mlp) && linear_forward(dev, d->x, NUMBER_F32, d->inner, type, rows, &l->down, d->x);
}

/* All layers for `rows` new tokens; x holds the last layer's rows afterwards. */
static bool feed_chunk(decoder *d, const int32_t *tokens, int64_t rows)
{
    if (!embed(d, tokens, rows))
        return false;
    for (int64_t i = 0; i < d->m->config.layers; i++)
        if (!feed_layer(d, i, rows))
            return false;
    d->length += rows;
    return true;
}

/* The logits that follow row `row` of x. */
static bool find_logits(decoder *d, int64_t row)
{
    const model *m = d->m;
    return norm(d, d->x + row * m->config.hidden, 1, m->norm) &&
           linear_forward(m->device, d->logits, NUMBER_F32, d->normed, d->r->type, 1, &m->head, NULL) &&
           m->device->run->get(m->device, d->host_logits, d->logits, (size_t)m->config.vocab * sizeof(float));
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
    int64_t before = d->length, rows = 0;
    if (!check_tokens(d, tokens, n))
        return false;
    for (int64_t done = 0; done < n; done += rows) {
        rows = n - done < d->chunk ? n - done : d->chunk;
        if (!feed_chunk(d, tokens + done, rows)) {
            d->length = before;
            return false;
        }
    }
    *logits = d->host_logits;
    if (find_logits(d, rows - 1))
        return true;
    d->length = before;
    return false;
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
