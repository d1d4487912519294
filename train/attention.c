/*
 * Calls of the attention library: see attention.h.
 *
 * Causal with alignment bottom-right: query i of seq_q stands at position i + seq_k - seq_q. A key block that begins at j
 * concerns the queries at positions >= j; the first of them, at position p, keeps the block's keys up to p - j, and each
 * further query one more. As a mask of the library that is the window (unbounded left, p - j right), aligned top-left.
 */
#include "attention.h"
#include "error.h"
#include "ring.h"

attention attention_problem(const runtime *r, attention_path path, int64_t batch, int64_t heads, int64_t heads_kv,
                            int64_t seq_q, int64_t seq_k, int64_t dim)
{
    return (attention){.context = path.kind == ATTENTION_COMPOSED ? r->composed : r->flash,
                       .path = path,
                       .device = r->device,
                       .type = r->type,
                       .batch = batch,
                       .heads = heads,
                       .heads_kv = heads_kv,
                       .seq_q = seq_q,
                       .seq_k = seq_k,
                       .dim = dim};
}

static fattn_desc describe(const attention *a)
{
    fattn_desc d = {.struct_size = sizeof d,
                    .dtype = a->type == NUMBER_BF16 ? FATTN_BF16 : FATTN_F32,
                    .mask = FATTN_MASK_CAUSAL,
                    .align = FATTN_ALIGN_BOTTOM_RIGHT,
                    .batch = a->batch,
                    .heads_q = a->heads,
                    .heads_kv = a->heads_kv,
                    .seq_q = a->seq_q,
                    .seq_k = a->seq_k,
                    .dim = a->dim,
                    .dim_v = a->dim};
    if (a->path.kind == ATTENTION_WINDOW) {
        d.mask = FATTN_MASK_WINDOW;
        d.window_left = a->path.size - 1;
        d.window_right = 0;
    }
    return d;
}

/* One key block: its keys, the queries it concerns, and the problem they make. */
typedef struct key_block {
    int64_t first_key, first_row;
    fattn_desc desc;
} key_block;

static key_block block_at(const attention *a, int64_t first_key)
{
    int64_t offset = a->seq_k - a->seq_q, left = a->seq_k - first_key;
    key_block b = {.first_key = first_key, .first_row = first_key > offset ? first_key - offset : 0, .desc = describe(a)};
    b.desc.mask = FATTN_MASK_WINDOW;
    b.desc.align = FATTN_ALIGN_TOP_LEFT;
    b.desc.window_left = -1;
    b.desc.window_right = b.first_row + offset - first_key;
    b.desc.seq_q = a->seq_q - b.first_row;
    b.desc.seq_k = left < a->path.size ? left : a->path.size;
    return b;
}

/* One block's out and lse, which lie in the workspace before the library's own. */
static size_t partial_out_floats(const attention *a)
{
    return (size_t)(a->batch * a->seq_q * a->heads * a->dim);
}

static size_t partial_lse_floats(const attention *a)
{
    return (size_t)(a->batch * a->heads * a->seq_q);
}

static size_t partial_bytes(const attention *a)
{
    return (partial_out_floats(a) + partial_lse_floats(a)) * sizeof(float);
}

bool attention_workspace(const attention *a, fattn_op op, size_t *bytes)
{
    *bytes = 0;
    if (a->ring)
        return ring_workspace(a, op, bytes);
    if (a->path.kind != ATTENTION_BLOCK) {
        fattn_desc d = describe(a);
        return runtime_library_did(fattn_workspace_size(a->context, &d, op, bytes));
    }
    if (op == FATTN_OP_BACKWARD)
        return train_fail("attention by blocks has no backward: train with composed or flash");
    if (a->type != NUMBER_F32)
        return train_fail("attention by blocks computes in f32 only");
    for (int64_t key = 0; key < a->seq_k; key += a->path.size) {
        key_block b = block_at(a, key);
        size_t need;
        if (!runtime_library_did(fattn_workspace_size(a->context, &b.desc, op, &need)))
            return false;
        *bytes = need > *bytes ? need : *bytes;
    }
    *bytes += partial_bytes(a);
    return true;
}

/* `seq` rows per sequence, of which the view begins at row `first`. */
static fattn_view view(const attention *a, attention_rows x, int64_t seq, int64_t first)
{
    char *data = x.data;
    return (fattn_view){data + first * x.stride * (int64_t)number_bytes(a->type), seq * x.stride, a->dim, x.stride};
}

/* Adds a block's result to the rows that it concerns. */
static bool merge(const attention *a, const key_block *b, attention_rows out, float *lse, const float *block_out,
                  const float *block_lse)
{
    merge_call c = {.batch = a->batch,
                    .heads = a->heads,
                    .dim = a->dim,
                    .seq = a->seq_q,
                    .first = b->first_row,
                    .rows = b->desc.seq_q,
                    .out_stride = out.stride,
                    .out = out.data,
                    .lse = lse,
                    .block_out = block_out,
                    .block_lse = block_lse};
    return a->device->run->merge(a->device, &c);
}

static bool run_block(const attention *a, const key_block *b, attention_rows q, attention_rows k, attention_rows v,
                      attention_rows out, int64_t out_seq, int64_t out_first, float *lse, char *workspace, size_t bytes)
{
    fattn_forward_args args = {.struct_size = sizeof args,
                               .q = view(a, q, a->seq_q, b->first_row),
                               .k = view(a, k, a->seq_k, b->first_key),
                               .v = view(a, v, a->seq_k, b->first_key),
                               .out = view(a, out, out_seq, out_first),
                               .lse = lse,
                               .workspace = workspace,
                               .workspace_size = bytes,
                               .stream = a->device->stream};
    return runtime_library_did(fattn_forward(a->context, &b->desc, &args));
}

/* The first block concerns every query, so it goes straight to out; the others are merged into it. */
static bool forward_by_blocks(const attention *a, attention_rows q, attention_rows k, attention_rows v, attention_rows out,
                              float *lse, char *workspace, size_t bytes)
{
    attention_rows partial = {workspace, a->heads * a->dim};
    float *partial_lse = (float *)partial.data + partial_out_floats(a);
    char *rest = workspace + partial_bytes(a);
    bytes -= partial_bytes(a);
    for (int64_t key = 0; key < a->seq_k; key += a->path.size) {
        key_block b = block_at(a, key);
        if (key == 0) {
            if (!run_block(a, &b, q, k, v, out, a->seq_q, 0, lse, rest, bytes))
                return false;
            continue;
        }
        if (!run_block(a, &b, q, k, v, partial, b.desc.seq_q, 0, partial_lse, rest, bytes))
            return false;
        if (!merge(a, &b, out, lse, partial.data, partial_lse))
            return false;
    }
    return true;
}

bool attention_forward(const attention *a, attention_rows q, attention_rows k, attention_rows v, attention_rows out, float *lse,
                       void *workspace, size_t bytes)
{
    if (a->ring)
        return ring_forward(a, q, k, v, out, lse, workspace, bytes);
    if (a->path.kind == ATTENTION_BLOCK)
        return forward_by_blocks(a, q, k, v, out, lse, workspace, bytes);
    fattn_desc d = describe(a);
    fattn_forward_args args = {.struct_size = sizeof args,
                               .q = view(a, q, a->seq_q, 0),
                               .k = view(a, k, a->seq_k, 0),
                               .v = view(a, v, a->seq_k, 0),
                               .out = view(a, out, a->seq_q, 0),
                               .lse = lse,
                               .workspace = workspace,
                               .workspace_size = bytes,
                               .stream = a->device->stream};
    return runtime_library_did(fattn_forward(a->context, &d, &args));
}

bool attention_backward(const attention *a, attention_rows q, attention_rows k, attention_rows v, attention_rows out,
                        attention_rows dout, const float *lse, attention_rows dq, attention_rows dk, attention_rows dv,
                        void *workspace, size_t bytes)
{
    if (a->ring)
        return ring_backward(a, q, k, v, out, dout, lse, dq, dk, dv, workspace, bytes);
    fattn_desc d = describe(a);
    fattn_backward_args args = {.struct_size = sizeof args,
                                .q = view(a, q, a->seq_q, 0),
                                .k = view(a, k, a->seq_k, 0),
                                .v = view(a, v, a->seq_k, 0),
                                .out = view(a, out, a->seq_q, 0),
                                .dout = view(a, dout, a->seq_q, 0),
                                .dq = view(a, dq, a->seq_q, 0),
                                .dk = view(a, dk, a->seq_k, 0),
                                .dv = view(a, dv, a->seq_k, 0),
                                .lse = lse,
                                .workspace = workspace,
                                .workspace_size = bytes,
                                .stream = a->device->stream};
    return runtime_library_did(fattn_backward(a->context, &d, &args));
}
