/* Ring attention: see ring.h. */
#include "ring.h"

#include <inttypes.h>
#include <string.h>

#include "error.h"

enum { HALVES = 2, ALIGN = 256 };

int64_t ring_rows(const ranks *r, int64_t seq)
{
    if (seq % (HALVES * r->shards) == 0)
        return seq / r->shards;
    train_fail("sequences of %" PRId64 " cannot be cut into %d chunks of equal length, two for each of %d ranks", seq,
               HALVES * r->shards, r->shards);
    return 0;
}

/* Where a half of some shard's rows begins in a sequence. */
static int64_t first_of(const ranks *r, int shard, int half, int64_t half_rows)
{
    return (half ? HALVES * r->shards - 1 - shard : shard) * half_rows;
}

int64_t ring_position(const ranks *r, int64_t rows, int64_t i)
{
    const int64_t half_rows = rows / HALVES, half = i / half_rows;
    return first_of(r, r->shard, (int)half, half_rows) + i - half * half_rows;
}

void ring_place_documents(const ranks *r, int64_t batch, int64_t seq, const int32_t *documents, int32_t *placed)
{
    const int64_t half_rows = seq / r->shards / HALVES;
    const size_t bytes = (size_t)half_rows * sizeof *placed;
    int32_t *chunk = placed, *of_shard = placed + batch * seq;
    for (int shard = 0; shard < r->shards; shard++)
        for (int half = 0; half < HALVES; half++)
            for (int64_t i = 0; i < batch; i++, chunk += half_rows) {
                const int32_t *from = documents + i * seq + first_of(r, shard, half, half_rows);
                memcpy(chunk, from, bytes);
                memcpy(of_shard + ((shard * batch + i) * HALVES + half) * half_rows, from, bytes);
            }
}

/* -------------------------------------------------------------------------------------------------------------- rounds */

/* The keys that one half meets: the first `keys` rows of a shard's, 0 for none. */
typedef struct block {
    int half, source;
    int64_t keys;
    bool causal;
} block;

/* In round n this shard has the keys and values of the n-th before it. */
static block block_of(const attention *a, int half, int round)
{
    const ranks *r = a->ring;
    const int64_t rows = a->seq_k;
    const int source = (r->shard - round + r->shards) % r->shards;
    if (round == 0)
        return (block){half, source, half ? rows : rows / HALVES, true};
    if (source < r->shard)
        return (block){half, source, rows / HALVES, false};
    return (block){half, source, half ? rows : 0, false};
}

static fattn_desc describe(const attention *a, const block *b)
{
    return (fattn_desc){.struct_size = sizeof(fattn_desc),
                        .dtype = a->type == NUMBER_BF16 ? FATTN_BF16 : FATTN_F32,
                        .mask = a->documents ? FATTN_MASK_DOCUMENT
                                : b->causal  ? FATTN_MASK_CAUSAL
                                             : FATTN_MASK_FULL,
                        .window_left = a->documents ? -1 : 0,
                        .window_right = a->documents && !b->causal ? -1 : 0,
                        .align = b->causal ? FATTN_ALIGN_BOTTOM_RIGHT : FATTN_ALIGN_TOP_LEFT,
                        .batch = a->batch,
                        .heads_q = a->heads,
                        .heads_kv = a->heads_kv,
                        .seq_q = a->seq_q / HALVES,
                        .seq_k = b->keys,
                        .dim = a->dim,
                        .dim_v = a->dim};
}

/* [batch, rows / 2]; NULL: none. */
static const int32_t *chunk_documents(const attention *a, int shard, int half)
{
    return a->documents ? a->documents + (shard * HALVES + half) * a->batch * a->seq_q / HALVES : NULL;
}

/* [batch, keys] */
static const int32_t *key_documents(const attention *a, const block *b)
{
    if (!a->documents || b->keys < a->seq_k)
        return chunk_documents(a, b->source, 0);
    return a->documents + (a->ring->shards + b->source) * a->batch * a->seq_k;
}

static fattn_desc describe_forward(const attention *a, const block *b)
{
    fattn_desc d = describe(a, b);
    d.out_dtype = FATTN_F32;
    return d;
}

static fattn_desc describe_backward(const attention *a, const block *b)
{
    fattn_desc d = describe(a, b);
    d.grad_dtype = FATTN_F32;
    return d;
}

static int next_shard(const ranks *r)
{
    return r->rank - r->shard + (r->shard + 1) % r->shards;
}

static int shard_before(const ranks *r)
{
    return r->rank - r->shard + (r->shard + r->shards - 1) % r->shards;
}

/* ----------------------------------------------------------------------------------------------------------- workspace */

/* Hands out pieces of the workspace; from NULL it counts. */
typedef struct room {
    char *base;
    size_t used;
} room;

static void *take(room *w, size_t bytes)
{
    void *piece = w->base ? w->base + w->used : NULL;
    w->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return piece;
}

typedef struct buffers {
    void *keys[2];    /* [2][batch, rows, heads_kv, dim]: keys, then values; at hand and arriving */
    size_t key_bytes; /* of one of them */
    float *out;       /* forward: [2][batch, rows / 2, heads, dim], the sums so far; backward: of dq */
    float *part;      /* [batch, rows / 2, heads, dim]: of one block, out or dq */
    float *part_lse;  /* [batch, heads, rows / 2] */
    float *sums[2];   /* backward: dk and dv, as keys */
    float *part_keys; /* backward: likewise, of one block */
    void *rest;       /* the library's */
} buffers;

static int64_t query_numbers(const attention *a)
{
    return a->batch * a->seq_q / HALVES * a->heads * a->dim;
}

static int64_t key_numbers(const attention *a)
{
    return a->batch * a->seq_k * a->heads_kv * a->dim;
}

static int64_t lse_numbers(const attention *a)
{
    return a->batch * a->heads * a->seq_q / HALVES;
}

static buffers share_out(const attention *a, fattn_op op, room *w)
{
    const size_t queries = (size_t)query_numbers(a) * sizeof(float), keys = 2 * (size_t)key_numbers(a);
    buffers b = {.key_bytes = keys * number_bytes(a->type)};
    for (int i = 0; i < 2; i++)
        b.keys[i] = take(w, b.key_bytes);
    b.out = take(w, HALVES * queries);
    b.part = take(w, queries);
    if (op == FATTN_OP_FORWARD)
        b.part_lse = take(w, (size_t)lse_numbers(a) * sizeof(float));
    else {
        for (int i = 0; i < 2; i++)
            b.sums[i] = take(w, keys * sizeof(float));
        b.part_keys = take(w, keys * sizeof(float));
    }
    b.rest = w->base ? w->base + w->used : NULL;
    return b;
}

bool ring_workspace(const attention *a, fattn_op op, size_t *bytes)
{
    room w = {0};
    size_t most = 0;
    share_out(a, op, &w);
    if (a->path.kind != ATTENTION_COMPOSED && a->path.kind != ATTENTION_FLASH)
        return train_fail("attention over several ranks is exact and causal: composed or flash");
    for (int round = 0; round < a->ring->shards; round++)
        for (int half = 0; half < HALVES; half++) {
            const block b = block_of(a, half, round);
            const fattn_desc d = op == FATTN_OP_FORWARD ? describe_forward(a, &b) : describe_backward(a, &b);
            size_t need = 0;
            if (b.keys && !runtime_library_did(fattn_workspace_size(a->context, &d, op, &need)))
                return false;
            most = need > most ? need : most;
        }
    *bytes = w.used + most;
    return true;
}

/* --------------------------------------------------------------------------------------------------------------- moving */

/* Rows first .. first + count - 1 of each sequence's `seq`. */
typedef struct some_rows {
    attention_rows at;
    number_type type;
    int64_t seq, first;
} some_rows;

static void *row_address(const some_rows *x, int64_t sequence)
{
    return (char *)x->at.data + (sequence * x->seq + x->first) * x->at.stride * (int64_t)number_bytes(x->type);
}

/* to = from, or is added to, `count` rows of each sequence. */
static bool move(const attention *a, some_rows to, some_rows from, int64_t count, int64_t cols, bool add)
{
    /* One after the other they are as one. */
    const bool whole = count == to.seq && count == from.seq;
    const int64_t times = whole ? 1 : a->batch;
    for (int64_t i = 0; i < times; i++) {
        const copy_call c = {.rows = whole ? a->batch * count : count,
                             .cols = cols,
                             .to_stride = to.at.stride,
                             .from_stride = from.at.stride,
                             .to_type = to.type,
                             .from_type = from.type,
                             .add = add,
                             .to = row_address(&to, i),
                             .from = row_address(&from, i)};
        if (!a->device->run->copy(a->device, &c))
            return false;
    }
    return true;
}

/* A block of keys (which = 0) or values (1) that travels, or of their gradients. */
static some_rows travelling(const attention *a, void *block_of_both, number_type type, int which)
{
    char *data = (char *)block_of_both + (size_t)(which * key_numbers(a)) * number_bytes(type);
    return (some_rows){{data, a->heads_kv * a->dim}, type, a->seq_k, 0};
}

static some_rows own(const attention *a, attention_rows x, int64_t first)
{
    return (some_rows){x, a->type, a->seq_q, first};
}

/* A half's rows on their own. */
static some_rows half_of(const attention *a, float *halves, int half)
{
    return (some_rows){{halves + half * query_numbers(a), a->heads * a->dim}, NUMBER_F32, a->seq_q / HALVES, 0};
}

static bool pack_keys(const attention *a, attention_rows k, attention_rows v, void *keys)
{
    const int64_t cols = a->heads_kv * a->dim;
    return move(a, travelling(a, keys, a->type, 0), own(a, k, 0), a->seq_k, cols, false) &&
           move(a, travelling(a, keys, a->type, 1), own(a, v, 0), a->seq_k, cols, false);
}

/* Rows as the library reads them. */
static fattn_view view(const attention *a, some_rows x)
{
    return (fattn_view){row_address(&x, 0), x.seq * x.at.stride, a->dim, x.at.stride};
}

static bool send_on(ranks *r, const void *from, void *to, size_t bytes)
{
    return r->run->exchange_begin(r, from, next_shard(r), to, shard_before(r), bytes);
}

/* -------------------------------------------------------------------------------------------------------------- forward */

/* Joins a block's result to what its half has so far. */
static bool join(const attention *a, const block *b, const buffers *w, float *lse)
{
    const fattn_desc d = {.struct_size = sizeof d,
                          .dtype = FATTN_F32,
                          .batch = a->batch,
                          .heads_q = a->heads,
                          .heads_kv = a->heads_kv,
                          .seq_q = a->seq_q / HALVES,
                          .seq_k = a->seq_k,
                          .dim = a->dim,
                          .dim_v = a->dim};
    const fattn_view outs[] = {view(a, half_of(a, w->out, b->half)), view(a, half_of(a, w->part, 0))};
    const void *lses[] = {lse, w->part_lse};
    const fattn_merge_args args = {.struct_size = sizeof args,
                                   .count = 2,
                                   .outs = outs,
                                   .lses = lses,
                                   .out = outs[0],
                                   .lse = lse,
                                   .stream = a->device->stream};
    return runtime_library_did(fattn_merge(a->context, &d, &args));
}

static bool forward_block(const attention *a, const block *b, attention_rows q, void *keys, const buffers *w, float *lse,
                          size_t rest, bool first)
{
    const fattn_desc d = describe_forward(a, b);
    lse += b->half * lse_numbers(a);
    const fattn_forward_args args = {.struct_size = sizeof args,
                                     .q = view(a, own(a, q, b->half * a->seq_q / HALVES)),
                                     .k = view(a, travelling(a, keys, a->type, 0)),
                                     .v = view(a, travelling(a, keys, a->type, 1)),
                                     .out = view(a, first ? half_of(a, w->out, b->half) : half_of(a, w->part, 0)),
                                     .lse = first ? lse : w->part_lse,
                                     .document_q = chunk_documents(a, a->ring->shard, b->half),
                                     .document_k = key_documents(a, b),
                                     .workspace = w->rest,
                                     .workspace_size = rest,
                                     .stream = a->device->stream};
    return runtime_library_did(fattn_forward(a->context, &d, &args)) && (first || join(a, b, w, lse));
}

bool ring_forward(const attention *a, attention_rows q, attention_rows k, attention_rows v, attention_rows out, float *lse,
                  void *workspace, size_t bytes)
{
    ranks *r = a->ring;
    room w = {.base = workspace};
    const buffers b = share_out(a, FATTN_OP_FORWARD, &w);
    bool good = pack_keys(a, k, v, b.keys[0]);
    for (int round = 0; good && round < r->shards; round++) {
        void *here = b.keys[round % 2];
        const bool more = round + 1 < r->shards;
        good = !more || send_on(r, here, b.keys[(round + 1) % 2], b.key_bytes);
        for (int half = 0; good && half < HALVES; half++) {
            const block x = block_of(a, half, round);
            good = !x.keys || forward_block(a, &x, q, here, &b, lse, bytes - w.used, round == 0);
        }
        good = good && (!more || r->run->exchange_end(r));
    }
    for (int half = 0; good && half < HALVES; half++)
        good = move(a, own(a, out, half * a->seq_q / HALVES), half_of(a, b.out, half), a->seq_q / HALVES, a->heads * a->dim,
                    false);
    return good;
}

/* ------------------------------------------------------------------------------------------------------------- backward */

typedef struct backward_call {
    attention_rows q, out, dout;
    const float *lse;
} backward_call;

static bool backward_block(const attention *a, const block *b, const backward_call *c, void *keys, float *sums,
                           const buffers *w, size_t rest, bool first)
{
    const fattn_desc d = describe_backward(a, b);
    const int64_t row = b->half * a->seq_q / HALVES;
    const some_rows dk = travelling(a, w->part_keys, NUMBER_F32, 0), dv = travelling(a, w->part_keys, NUMBER_F32, 1);
    const some_rows dq = first ? half_of(a, w->out, b->half) : half_of(a, w->part, 0);
    const fattn_backward_args args = {.struct_size = sizeof args,
                                      .q = view(a, own(a, c->q, row)),
                                      .k = view(a, travelling(a, keys, a->type, 0)),
                                      .v = view(a, travelling(a, keys, a->type, 1)),
                                      .out = view(a, own(a, c->out, row)),
                                      .dout = view(a, own(a, c->dout, row)),
                                      .dq = view(a, dq),
                                      .dk = view(a, dk),
                                      .dv = view(a, dv),
                                      .lse = c->lse + b->half * lse_numbers(a),
                                      .document_q = chunk_documents(a, a->ring->shard, b->half),
                                      .document_k = key_documents(a, b),
                                      .workspace = w->rest,
                                      .workspace_size = rest,
                                      .stream = a->device->stream};
    const int64_t cols = a->heads_kv * a->dim;
    return runtime_library_did(fattn_backward(a->context, &d, &args)) &&
           (first || move(a, half_of(a, w->out, b->half), dq, a->seq_q / HALVES, a->heads * a->dim, true)) &&
           move(a, travelling(a, sums, NUMBER_F32, 0), dk, b->keys, cols, true) &&
           move(a, travelling(a, sums, NUMBER_F32, 1), dv, b->keys, cols, true);
}

/* In every round the sums go on to where their keys have just gone, in the last one home. */
static bool backward_rounds(const attention *a, const backward_call *c, const buffers *b, size_t rest)
{
    ranks *r = a->ring;
    const size_t sum_bytes = 2 * (size_t)key_numbers(a) * sizeof(float);
    bool good = a->device->run->fill(a->device, b->sums[0], 0, sum_bytes);
    for (int round = 0; good && round < r->shards; round++) {
        void *here = b->keys[round % 2];
        float *sums = b->sums[round % 2];
        const bool more = round + 1 < r->shards;
        good = !more || send_on(r, here, b->keys[(round + 1) % 2], b->key_bytes);
        for (int half = 0; good && half < HALVES; half++) {
            const block x = block_of(a, half, round);
            good = !x.keys || backward_block(a, &x, c, here, sums, b, rest, round == 0);
        }
        good = good && (!more || r->run->exchange_end(r)) && send_on(r, sums, b->sums[(round + 1) % 2], sum_bytes) &&
               r->run->exchange_end(r);
    }
    return good;
}

bool ring_backward(const attention *a, attention_rows q, attention_rows k, attention_rows v, attention_rows out,
                   attention_rows dout, const float *lse, attention_rows dq, attention_rows dk, attention_rows dv,
                   void *workspace, size_t bytes)
{
    room w = {.base = workspace};
    const buffers b = share_out(a, FATTN_OP_BACKWARD, &w);
    const backward_call c = {q, out, dout, lse};
    const int64_t half_rows = a->seq_q / HALVES, q_cols = a->heads * a->dim, cols = a->heads_kv * a->dim;
    float *sums = b.sums[a->ring->shards % 2];
    bool good = pack_keys(a, k, v, b.keys[0]) && backward_rounds(a, &c, &b, bytes - w.used);
    for (int half = 0; good && half < HALVES; half++)
        good = move(a, own(a, dq, half * half_rows), half_of(a, b.out, half), half_rows, q_cols, false);
    return good && move(a, own(a, dk, 0), travelling(a, sums, NUMBER_F32, 0), a->seq_k, cols, false) &&
           move(a, own(a, dv, 0), travelling(a, sums, NUMBER_F32, 1), a->seq_k, cols, false);
}
