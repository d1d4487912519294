/*
 * Configuration, parameters and their first values: see model.h.
 *
 * The block of parameters, in this order: embedding; per layer input_layernorm, q, k, v, q_norm, k_norm, o,
 * post_attention_layernorm, gate, up, down; the last norm; the head if untied. q, k, v and gate, up follow each other
 * without a gap, so that the layers see them as one matrix; elsewhere a parameter begins at a multiple of 16 floats.
 */
#include "model.h"
#include "error.h"
#include "random.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN_FLOATS = 16, LAYER_PARAMETERS = 11 };

/* ------------------------------------------------------------------------------------------------------- configuration */

static bool check_range(const char *name, int64_t value, int64_t least, int64_t most)
{
    if (value >= least && value <= most)
        return true;
    return train_fail("%s is %" PRId64 ", but must be %" PRId64 " .. %" PRId64, name, value, least, most);
}

bool model_config_check(const model_config *c)
{
    const int64_t large = 1 << 24;
    if (!check_range("vocab", c->vocab, 1, large) || !check_range("hidden", c->hidden, 1, large) ||
        !check_range("layers", c->layers, 0, 4096) || !check_range("heads", c->heads, 1, 4096) ||
        !check_range("heads_kv", c->heads_kv, 1, c->heads) || !check_range("head_dim", c->head_dim, 2, HEAD_DIM_MAX) ||
        !check_range("ffn", c->ffn, 1, large) || !check_range("max_seq", c->max_seq, 1, large))
        return false;
    if (c->heads % c->heads_kv)
        return train_fail("heads is %" PRId64 ", not a multiple of heads_kv, %" PRId64, c->heads, c->heads_kv);
    if (c->head_dim % 2)
        return train_fail("head_dim is %" PRId64 ", but must be even", c->head_dim);
    if (!(c->rope_theta > 0) || !isfinite(c->rope_theta))
        return train_fail("rope_theta is %g, but must be positive", c->rope_theta);
    if (!(c->rms_eps >= 0) || !isfinite(c->rms_eps))
        return train_fail("rms_eps is %g, but must not be negative", c->rms_eps);
    return true;
}

static const char *const path_names[] = {"composed", "flash", "block", "window"};

bool attention_path_parse(const char *text, attention_path *path)
{
    for (int i = 0; i < 4; i++) {
        size_t length = strlen(path_names[i]);
        if (strncmp(text, path_names[i], length))
            continue;
        *path = (attention_path){.kind = (attention_kind)i};
        if (i < ATTENTION_BLOCK && !text[length])
            return true;
        char *end = NULL;
        if (i >= ATTENTION_BLOCK && text[length] == ':' && text[length + 1] >= '0' && text[length + 1] <= '9') {
            path->size = strtoll(text + length + 1, &end, 10);
            if (!*end && path->size >= 1 && path->size <= INT32_MAX)
                return true;
        }
    }
    return train_fail("'%s' is none of: composed, flash, block:N, window:W, with N and W from 1 on", text);
}

const char *attention_path_print(attention_path path, char *text, size_t size)
{
    if (path.kind < ATTENTION_BLOCK)
        snprintf(text, size, "%s", path_names[path.kind]);
    else
        snprintf(text, size, "%s:%" PRId64, path_names[path.kind], path.size);
    return text;
}

/* ---------------------------------------------------------------------------------------------------------- parameters */

/* Counts, and on a second walk names, the parameters. */
typedef struct layout {
    parameter *list; /* NULL while counting */
    int count;
    int64_t size, weights;
} layout;

static void append(layout *l, const char *name, int64_t rows, int64_t cols)
{
    if (l->list) {
        parameter *p = &l->list[l->count];
        snprintf(p->name, sizeof p->name, "%s", name);
        p->ndim = cols ? 2 : 1;
        p->shape[0] = rows;
        p->shape[1] = cols ? cols : 1;
        p->size = p->shape[0] * p->shape[1];
        p->offset = l->size;
    }
    l->count++;
    l->size += rows * (cols ? cols : 1);
    l->weights += rows * (cols ? cols : 1);
}

/* cols 0 makes a vector. */
static void append_aligned(layout *l, const char *name, int64_t rows, int64_t cols)
{
    l->size = (l->size + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
    append(l, name, rows, cols);
}

static void append_layer(layout *l, const model_config *c, int64_t layer)
{
    const struct {
        const char *name;
        int64_t rows, cols;
        bool follows; /* directly, as one more part of a matrix */
    } parts[LAYER_PARAMETERS] = {
        {"input_layernorm", c->hidden, 0, false},
        {"self_attn.q_proj", c->heads * c->head_dim, c->hidden, false},
        {"self_attn.k_proj", c->heads_kv * c->head_dim, c->hidden, true},
        {"self_attn.v_proj", c->heads_kv * c->head_dim, c->hidden, true},
        {"self_attn.q_norm", c->head_dim, 0, false},
        {"self_attn.k_norm", c->head_dim, 0, false},
        {"self_attn.o_proj", c->hidden, c->heads * c->head_dim, false},
        {"post_attention_layernorm", c->hidden, 0, false},
        {"mlp.gate_proj", c->ffn, c->hidden, false},
        {"mlp.up_proj", c->ffn, c->hidden, true},
        {"mlp.down_proj", c->hidden, c->ffn, false},
    };
    for (int i = 0; i < LAYER_PARAMETERS; i++) {
        char name[PARAMETER_NAME_SIZE];
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", (int)layer, parts[i].name);
        (parts[i].follows ? append : append_aligned)(l, name, parts[i].rows, parts[i].cols);
    }
}

static void append_all(layout *l, const model_config *c)
{
    append_aligned(l, "model.embed_tokens.weight", c->vocab, c->hidden);
    for (int64_t i = 0; i < c->layers; i++)
        append_layer(l, c, i);
    append_aligned(l, "model.norm.weight", c->hidden, 0);
    if (!c->tied)
        append_aligned(l, "lm_head.weight", c->vocab, c->hidden);
    l->size = (l->size + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

/* `count` parameters that follow each other, as one matrix. */
static matrix joined(const model *whole, const parameter *p, int count)
{
    const char *rounded = whole->rounded;
    matrix m = {.cols = p->shape[1],
                .data = p->data,
                .grad = p->grad,
                .rounded = rounded ? rounded + (size_t)p->offset * number_bytes(NUMBER_BF16) : NULL};
    for (int i = 0; i < count; i++)
        m.rows += p[i].shape[0];
    return m;
}

/* Points everything to its part of data, grad and rounded. */
static void connect(model *m)
{
    for (int i = 0; i < m->parameter_count; i++) {
        m->parameters[i].data = m->data + m->parameters[i].offset;
        m->parameters[i].grad = m->grad ? m->grad + m->parameters[i].offset : NULL;
    }
    const parameter *p = m->parameters;
    m->embed = joined(m, p++, 1);
    for (int64_t i = 0; i < m->config.layers; i++, p += LAYER_PARAMETERS)
        m->layer[i] = (model_layer){.input_norm = &p[0],
                                    .qkv = joined(m, &p[1], 3),
                                    .q_norm = &p[4],
                                    .k_norm = &p[5],
                                    .o = joined(m, &p[6], 1),
                                    .post_norm = &p[7],
                                    .gate_up = joined(m, &p[8], 2),
                                    .down = joined(m, &p[10], 1)};
    m->norm = p++;
    m->head = m->config.tied ? m->embed : joined(m, p, 1);
}

/* ------------------------------------------------------------------------------------------------------- first values */

/* A normal deviate as the sum of twelve uniform ones, less 6: additions and a shift only, so the same bits on every machine,
 * which the logarithm and cosine of other methods do not promise. Its tails end at 6 deviations. */
static float next_normal(random_state *state)
{
    double sum = -6.0;
    for (int i = 0; i < 12; i++)
        sum += random_unit(state);
    return (float)sum;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && !strcmp(text + length - tail, end);
}

static void initialise(model *m, uint64_t seed)
{
    random_state state = {seed};
    float deviation = 0.02f, residual = m->config.layers ? (float)(0.02 / sqrt(2.0 * (double)m->config.layers)) : 0.0f;
    for (int i = 0; i < m->parameter_count; i++) {
        parameter *p = &m->parameters[i];
        bool scaled = ends_with(p->name, "o_proj.weight") || ends_with(p->name, "down_proj.weight");
        for (int64_t j = 0; j < p->size; j++)
            p->data[j] = p->ndim == 1 ? 1.0f : (scaled ? residual : deviation) * next_normal(&state);
    }
}

/* Angles position * theta^(-2i/D), worked out in double. */
static void fill_rotation(model *m)
{
    int64_t half = m->config.head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double frequency = pow(m->config.rope_theta, -(double)(2 * i) / (double)m->config.head_dim);
        for (int64_t position = 0; position < m->config.max_seq; position++) {
            m->rope_cos[position * half + i] = (float)cos((double)position * frequency);
            m->rope_sin[position * half + i] = (float)sin((double)position * frequency);
        }
    }
}

static size_t rope_bytes(const model_config *c)
{
    return (size_t)(c->max_seq * c->head_dim / 2) * sizeof(float);
}

/* Zeroed memory of a device. */
static void *zeroed(device *d, size_t bytes)
{
    void *p = d->run->allocate(d, bytes);
    if (p && !d->run->fill(d, p, 0, bytes)) {
        d->run->release(d, p);
        return NULL;
    }
    return p;
}

model *model_reserve(const model_config *config)
{
    layout l = {0};
    if (!model_config_check(config))
        return NULL;
    append_all(&l, config);
    model *m = train_calloc(1, sizeof *m);
    if (m) {
        m->config = *config;
        m->device = device_cpu();
        m->parameter_count = l.count;
        m->size = l.size;
        m->weights = l.weights;
        m->parameters = train_calloc((size_t)l.count, sizeof *m->parameters);
        m->layer = train_calloc((size_t)config->layers + 1, sizeof *m->layer);
        m->data = zeroed(m->device, (size_t)l.size * sizeof *m->data);
        m->rope_cos = zeroed(m->device, rope_bytes(config));
        m->rope_sin = zeroed(m->device, rope_bytes(config));
    }
    if (!m || !m->parameters || !m->layer || !m->data || !m->rope_cos || !m->rope_sin) {
        train_fail_for("a model of %" PRId64 " parameters", l.weights);
        model_free(m);
        return NULL;
    }
    l = (layout){.list = m->parameters};
    append_all(&l, config);
    connect(m);
    fill_rotation(m);
    return m;
}

model *model_create(const model_config *config, uint64_t seed)
{
    model *m = model_reserve(config);
    if (m)
        initialise(m, seed);
    return m;
}

void model_free(model *m)
{
    if (!m)
        return;
    void *const numbers[] = {m->data, m->grad, m->rounded, m->rope_cos, m->rope_sin};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        m->device->run->release(m->device, numbers[i]);
    free(m->parameters);
    free(m->layer);
    free(m);
}

/* The bytes at `numbers` of the host in a device's memory; NULL if that cannot be. */
static void *copy_to(device *d, const void *numbers, size_t bytes)
{
    void *there = d->run->allocate(d, bytes);
    if (there && !d->run->put(d, there, numbers, bytes)) {
        d->run->release(d, there);
        return NULL;
    }
    return there;
}

static bool move(model *m, device *to)
{
    struct {
        float **numbers;
        size_t bytes;
        void *there;
    } parts[] = {{&m->data, (size_t)m->size * sizeof *m->data, NULL},
                 {&m->rope_cos, rope_bytes(&m->config), NULL},
                 {&m->rope_sin, rope_bytes(&m->config), NULL}};
    bool good = true;
    for (int i = 0; i < 3 && good; i++)
        good = (parts[i].there = copy_to(to, *parts[i].numbers, parts[i].bytes)) != NULL;
    for (int i = 0; i < 3; i++) {
        if (!good) {
            to->run->release(to, parts[i].there);
            continue;
        }
        m->device->run->release(m->device, *parts[i].numbers);
        *parts[i].numbers = parts[i].there;
    }
    if (good) {
        m->device = to;
        connect(m);
    }
    return good;
}

bool model_place(model *m, const runtime *r)
{
    if (r->device != m->device && !move(m, r->device))
        return false;
    if (r->type == NUMBER_BF16 && !m->rounded) {
        m->rounded = zeroed(m->device, (size_t)m->size * number_bytes(NUMBER_BF16));
        if (!m->rounded)
            return false;
        connect(m);
    }
    return model_round(m);
}

bool model_round(model *m)
{
    copy_call c = {.rows = 1,
                   .cols = m->size,
                   .to_stride = m->size,
                   .from_stride = m->size,
                   .to_type = NUMBER_BF16,
                   .from_type = NUMBER_F32,
                   .to = m->rounded,
                   .from = m->data};
    return !m->rounded || m->device->run->copy(m->device, &c);
}

bool model_need_grad(model *m)
{
    if (m->grad)
        return true;
    m->grad = zeroed(m->device, (size_t)m->size * sizeof *m->grad);
    if (!m->grad)
        return train_fail_for("the gradients of %" PRId64 " parameters", m->weights);
    connect(m);
    return true;
}

bool model_zero_grad(model *m)
{
    return !m->grad || m->device->run->fill(m->device, m->grad, 0, (size_t)m->size * sizeof *m->grad);
}
