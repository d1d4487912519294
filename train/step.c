/*
 * One step of the model on the tape: see model.h for the mathematics and layers/layers.h for the layers.
 */
#include "error.h"
#include "layers/layers.h"
#include "model.h"
#include "ring.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { NO_TARGET = 0xff }; /* each byte of -1 */

struct model_step {
    model *m;
    step_options options;
    ranks *ring;  /* whose shards have the other rows; NULL: all are here */
    int64_t seq;  /* rows of a sequence that are here */
    int64_t rows; /* batch * seq */
    tape *t;
    int32_t *tokens, *targets; /* [rows] each, of the device: copies that the tape's nodes read */
    int32_t *positions;        /* likewise; NULL: row r is at r % seq */
    int32_t *documents;        /* of the device, as attention.h has them; NULL: none */
    int32_t *picked; /* [3][rows], of the host: tokens, targets and positions of the rows that are here; NULL if all are */
    int32_t *split;  /* [5][batch, whole sequence], of the host: see make_documents; NULL: no documents */
    tensor *logits;  /* [rows, vocab]; NULL: not wanted */
    loss_state loss;
    bool has_loss;         /* of the last forward: it is on its way */
    int64_t counted;       /* targets of the last forward */
    uint64_t seed, places; /* of dropout: what it draws, and how many places were recorded */
};

/* Dropout in the next place. */
static dropout drop_at(model_step *s)
{
    return (dropout){s->options.dropout, &s->seed, s->places++};
}

/* residual + f(x) W^T, the product with dropout */
static tensor *record_branch(model_step *s, tensor *x, const feed *f, const matrix *weight, tensor *residual)
{
    const dropout d = drop_at(s);
    return d.p > 0 ? layer_dropout_residual(s->t, layer_linear(s->t, x, f, weight), &d, residual)
                   : layer_linear_residual(s->t, x, f, weight, residual);
}

/* x + attention(norm(x)); the layer's first node */
static tensor *record_attention(model_step *s, int64_t layer, tensor *x, attention a)
{
    const model_config *c = &s->m->config;
    const model_layer *l = &s->m->layer[layer];
    const feed norm = feed_rmsnorm(l->input_norm, c->rms_eps);
    int64_t q_cols = c->heads * c->head_dim, kv_cols = c->heads_kv * c->head_dim;
    rotation rotate_q = {s->m->rope_cos, s->m->rope_sin, c->heads, c->head_dim, s->seq, s->positions};
    rotation rotate_k = {s->m->rope_cos, s->m->rope_sin, c->heads_kv, c->head_dim, s->seq, s->positions};
    tensor *qkv = layer_linear(s->t, x, &norm, &l->qkv); /* [rows, q_cols + 2 kv_cols] */
    if (s->options.layer_done)
        tape_tell(s->t, (int)layer);
    tensor *q = tape_columns(s->t, qkv, 0, q_cols);
    tensor *k = tape_columns(s->t, qkv, q_cols, kv_cols);
    tensor *v = tape_columns(s->t, qkv, q_cols + kv_cols, kv_cols);
    q = layer_qknorm_rope(s->t, q, l->q_norm, &rotate_q, c->rms_eps);
    k = layer_qknorm_rope(s->t, k, l->k_norm, &rotate_k, c->rms_eps);
    a.drop = drop_at(s);
    tensor *o = layer_attention(s->t, q, k, v, &a); /* [rows, q_cols] */
    return record_branch(s, o, NULL, &l->o, x);
}

/* x + mlp(norm(x)) */
static tensor *record_mlp(model_step *s, const model_layer *l, tensor *x)
{
    const feed norm = feed_rmsnorm(l->post_norm, s->m->config.rms_eps), swiglu = feed_swiglu();
    tensor *gate_up = layer_linear(s->t, x, &norm, &l->gate_up); /* [rows, 2 ffn] */
    return record_branch(s, gate_up, &swiglu, &l->down, x);
}

static void record(model_step *s, const runtime *r)
{
    const model_config *c = &s->m->config;
    attention a =
        attention_problem(r, s->options.attention, s->options.batch, c->heads, c->heads_kv, s->seq, s->seq, c->head_dim);
    a.ring = s->ring;
    a.documents = s->documents;
    tensor *x = layer_embedding(s->t, s->tokens, s->rows, &s->m->embed); /* [rows, hidden] */
    for (int64_t i = 0; i < c->layers; i++) {
        tape_begin_segment(s->t);
        x = record_attention(s, i, x, a);
        x = record_mlp(s, &s->m->layer[i], x);
        tape_end_segment(s->t);
    }
    x = layer_rmsnorm(s->t, x, s->m->norm, c->rms_eps);
    if (s->options.logits)
        s->logits = tape_tensor(s->t, s->rows, c->vocab, NUMBER_F32);
    layer_head(s->t, x, &s->m->head, &s->loss, s->logits, s->options.head_rows);
    tape_tell(s->t, (int)c->layers);
}

/* What backward has got to: the loss, and then a layer. */
static bool told(void *user, int what)
{
    model_step *s = user;
    if (what < s->m->config.layers)
        return s->options.layer_done(s->options.user, what);
    s->has_loss = true;
    return s->m->device->run->mark(s->m->device, MARK_LOSS);
}

/* The widest row of an activation. */
static int64_t widest(const model_config *c)
{
    const int64_t widths[] = {c->hidden, 2 * c->ffn, c->vocab, (c->heads + 2 * c->heads_kv) * c->head_dim};
    int64_t most = 0;
    for (int i = 0; i < 4; i++)
        most = widths[i] > most ? widths[i] : most;
    return most;
}

static bool check_options(const model *m, const step_options *o)
{
    if (o->batch < 1 || o->batch > 1 << 24)
        return train_fail("batch is %" PRId64 ", but must be 1 or more", o->batch);
    if (o->seq < 1 || o->seq > m->config.max_seq)
        return train_fail("seq is %" PRId64 ", but the model takes 1 .. %" PRId64, o->seq, m->config.max_seq);
    if (o->batch * o->seq > ((int64_t)1 << 40) / widest(&m->config))
        return train_fail("batch %" PRId64 " and seq %" PRId64 " are too much: an activation would have more than 2^40 numbers",
                          o->batch, o->seq);
    if (o->attention.kind >= ATTENTION_BLOCK && o->attention.size < 1)
        return train_fail("the size of attention's blocks or window is %" PRId64 ", but must be 1 or more", o->attention.size);
    if (o->head_rows < 0)
        return train_fail("head_rows is %" PRId64 ", but must not be negative", o->head_rows);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return train_fail("dropout is %g, but must be in [0, 1)", o->dropout);
    if (o->backward && o->attention.kind == ATTENTION_BLOCK)
        return train_fail("attention by blocks has no backward: train with composed or flash");
    return true;
}

static bool no_room(const model_step *s)
{
    return train_fail_as(TRAIN_ERROR_WORK, "no memory for a step of %" PRId64 " tokens", s->rows);
}

/* Do positions begin anew in each document? */
static bool positions_change(const model_step *s)
{
    return s->options.documents.on && !s->options.documents.positions_go_on;
}

/* Which rows are here. */
static bool place_rows(model_step *s, const runtime *r)
{
    s->seq = s->options.seq;
    if (r->ranks->shards > 1) {
        s->ring = r->ranks;
        s->seq = ring_rows(s->ring, s->options.seq);
    }
    s->rows = s->options.batch * s->seq;
    s->picked = s->ring && s->seq ? malloc(3 * (size_t)s->rows * sizeof *s->picked) : NULL;
    return s->seq && (!s->ring || s->picked || no_room(s));
}

/* Where rows are not at the position of their number. */
static bool make_positions(model_step *s)
{
    device *d = s->m->device;
    const size_t bytes = (size_t)s->rows * sizeof *s->positions;
    if (!s->ring && !positions_change(s))
        return true;
    s->positions = d->run->allocate(d, bytes);
    if (!s->positions)
        return no_room(s);
    for (int64_t row = 0; s->ring && row < s->rows; row++)
        s->picked[row] = (int32_t)ring_position(s->ring, s->seq, row % s->seq);
    return positions_change(s) || d->run->put(d, s->positions, s->picked, bytes);
}

static bool make_inputs(model_step *s, const runtime *r)
{
    device *d = s->m->device;
    s->tokens = d->run->allocate(d, (size_t)s->rows * sizeof *s->tokens);
    s->targets = d->run->allocate(d, (size_t)s->rows * sizeof *s->targets);
    s->loss = (loss_state){.targets = s->targets, .loss = d->run->allocate_shared(d, sizeof *s->loss.loss)};
    s->t = tape_create(d, r->type);
    return (s->tokens && s->targets && s->loss.loss && s->t) || no_room(s);
}

/* Room for what is said of documents: of all rows their documents, positions and targets, and documents as the ring has them.
 */
static bool make_documents(model_step *s)
{
    device *d = s->m->device;
    const size_t bytes = (size_t)(s->options.batch * s->options.seq) * sizeof *s->split;
    if (!s->options.documents.on)
        return true;
    s->split = malloc(5 * bytes);
    s->documents = d->run->allocate(d, s->ring ? 2 * bytes : bytes);
    return (s->split && s->documents) || no_room(s);
}

model_step *step_create(model *m, const runtime *r, const step_options *options)
{
    if (!check_options(m, options) || (options->backward && !model_need_grad(m)))
        return NULL;
    model_step *s = train_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->m = m;
    s->options = *options;
    bool ready = place_rows(s, r) && make_positions(s) && make_documents(s) && make_inputs(s, r);
    if (ready) {
        record(s, r);
        /* What ranks tell each other is not noted down. */
        ready = tape_plan(s->t, &(tape_options){.backward = options->backward,
                                                .recompute = options->recompute,
                                                .told = told,
                                                .user = s,
                                                .one_by_one = s->ring != NULL});
    }
    if (ready)
        return s;
    train_fail_for("a step of %" PRId64 " tokens", s->rows);
    step_free(s);
    return NULL;
}

void step_free(model_step *s)
{
    if (!s)
        return;
    device *d = s->m->device;
    tape_free(s->t);
    d->run->release(d, s->tokens);
    d->run->release(d, s->targets);
    d->run->release_shared(d, s->loss.loss);
    d->run->release(d, s->documents);
    d->run->release(d, s->positions);
    free(s->split);
    free(s->picked);
    free(s);
}

/* What a forward is given, of all rows and then of those that are here. */
typedef struct step_inputs {
    const int32_t *tokens, *targets, *positions; /* NULL: not wanted, or as they were */
} step_inputs;

/* The rows of [batch, whole sequence] that are here. */
static const int32_t *pick(const model_step *s, int32_t *picked, const int32_t *all)
{
    for (int64_t row = 0; all && row < s->rows; row++)
        picked[row] = all[row / s->seq * s->options.seq + ring_position(s->ring, s->seq, row % s->seq)];
    return all ? picked : NULL;
}

static void pick_rows(const model_step *s, step_inputs *in)
{
    in->tokens = pick(s, s->picked, in->tokens);
    in->targets = pick(s, s->picked + s->rows, in->targets);
    in->positions = pick(s, s->picked + 2 * s->rows, in->positions);
}

bool step_counts(const model_step *s, int32_t token, int32_t target)
{
    const document_options *o = &s->options.documents;
    return target >= 0 && (!o->on || o->targets_go_on || token != o->end);
}

/* Documents are numbered within a sequence, each up to and with its end token. Targets become those that count. */
static bool split_documents(const model_step *s, step_inputs *in)
{
    const document_options *o = &s->options.documents;
    device *d = s->m->device;
    const int64_t seq = s->options.seq, rows = s->options.batch * seq;
    const size_t bytes = (size_t)rows * sizeof *s->split;
    int32_t *documents = s->split, *positions = documents + rows, *counted = positions + rows, *placed = counted + rows;
    for (int64_t row = 0; row < rows; row++) {
        const bool starts = row % seq == 0, follows = !starts && in->tokens[row - 1] != o->end;
        documents[row] = starts ? 0 : documents[row - 1] + !follows;
        positions[row] = follows ? positions[row - 1] + 1 : 0;
        if (in->targets)
            counted[row] = step_counts(s, in->tokens[row], in->targets[row]) ? in->targets[row] : -1;
    }
    in->targets = in->targets ? counted : NULL;
    in->positions = positions_change(s) ? positions : NULL;
    if (!s->ring)
        return d->run->put(d, s->documents, documents, bytes);
    ring_place_documents(s->ring, s->options.batch, seq, documents, placed);
    return d->run->put(d, s->documents, placed, 2 * bytes);
}

static bool in_range(const char *what, const int32_t *values, int64_t count, int32_t least, int64_t end)
{
    for (int64_t i = 0; i < count; i++)
        if (values[i] < least || values[i] >= end)
            return train_fail("%s %" PRId64 " is %d, but must be %d .. %" PRId64, what, i, values[i], least, end - 1);
    return true;
}

static int64_t count_targets(const int32_t *targets, int64_t rows)
{
    int64_t count = 0;
    for (int64_t i = 0; targets && i < rows; i++)
        count += targets[i] >= 0;
    return count;
}

/* The head, and with it the loss. */
static bool finish(model_step *s)
{
    return s->has_loss || (tape_finish(s->t) && told(s, (int)s->m->config.layers));
}

bool step_forward(model_step *s, const int32_t *tokens, const int32_t *targets, double *loss)
{
    device *d = s->m->device;
    const int64_t whole = s->options.batch * s->options.seq;
    const size_t bytes = (size_t)s->rows * sizeof *tokens;
    step_inputs in = {.tokens = tokens, .targets = targets};
    if (!in_range("token", tokens, whole, 0, s->m->config.vocab))
        return false;
    if (targets && !in_range("target", targets, whole, -1, s->m->config.vocab))
        return false;
    if (s->split && !split_documents(s, &in))
        return false;
    if (s->ring)
        pick_rows(s, &in);
    s->counted = count_targets(in.targets, s->rows);
    s->has_loss = false;
    return d->run->put(d, s->tokens, in.tokens, bytes) &&
           (in.targets ? d->run->put(d, s->targets, in.targets, bytes) : d->run->fill(d, s->targets, NO_TARGET, bytes)) &&
           (!in.positions || d->run->put(d, s->positions, in.positions, bytes)) && tape_forward(s->t) &&
           ((s->options.backward && !s->logits) || finish(s)) && (!loss || step_loss(s, loss));
}

/* The key that a kernel is given is noted with it. */
void step_seed(model_step *s, uint64_t seed)
{
    if (s->options.dropout > 0 && seed != s->seed) {
        tape_changed(s->t, TAPE_FORWARD);
        tape_changed(s->t, TAPE_BACKWARD);
    }
    s->seed = seed;
}

bool step_loss(model_step *s, double *loss)
{
    device *d = s->m->device;
    bool done = finish(s) && d->run->wait(d, MARK_LOSS);
    *loss = s->counted ? *s->loss.loss / (double)s->counted : 0.0;
    return done;
}

bool step_backward(model_step *s, float scale)
{
    if (!s->options.backward)
        return train_fail("this step was made for forward only");
    if (scale != s->loss.scale)
        tape_changed(s->t, TAPE_BACKWARD);
    s->loss.scale = scale;
    return tape_backward(s->t);
}

const float *step_logits(const model_step *s)
{
    return s->logits ? s->logits->data : NULL;
}

int64_t step_targets(const model_step *s)
{
    return s->counted;
}

step_memory step_memory_use(const model_step *s)
{
    const memory_plan *a = tape_memory(s->t);
    size_t bytes = (size_t)s->m->size * sizeof(float), rounded = (size_t)s->m->size * number_bytes(NUMBER_BF16);
    return (step_memory){.parameters = bytes + (s->m->rounded ? rounded : 0),
                         .gradients = s->options.backward ? bytes : 0,
                         .activations = a->peak_use[MEMORY_ACTIVATION],
                         .activation_gradients = a->peak_use[MEMORY_GRADIENT],
                         .workspace = a->peak_use[MEMORY_WORKSPACE],
                         .arena = a->bytes};
}
