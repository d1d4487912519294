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
                       .widens = r->type == NUMBER_BF16 && path.kind == ATTENTION_COMPOSED && r->composed_widens,
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
                    .dim_v = a->dim,
                    .dropout = a->drop.p,
                    .seed = a->drop.p > 0 ? dropout_key(&a->drop) : 0};
    if (a->path.kind == ATTENTION_WINDOW || a->documents) {
        d.mask = a->documents ? FATTN_MASK_DOCUMENT : FATTN_MASK_WINDOW;
        d.window_left = a->path.kind == ATTENTION_WINDOW ? a->path.size - 1 : -1;
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
    b.desc.out_dtype = FATTN_F32;
    return b;
}

/* ------------------------------------------------------------------------------------------------------------- workspace */

/* One block's out and lse, which lie in the workspace before the library's own; and, if out is rounded, the sum's out. */
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
    const size_t outs = a->type == NUMBER_F32 ? 1 : 2;
    return (outs * partial_out_floats(a) + partial_lse_floats(a)) * sizeof(float);
}

/* What is widened: q, k, v and out, and for backward dout, dq, dk and dv. */
static size_t widened_bytes(const attention *a, fattn_op op)
{
    const size_t queries = (size_t)(a->batch * a->seq_q * a->heads * a->dim);
    const size_t keys = (size_t)(a->batch * a->seq_k * a->heads_kv * a->dim);
    return (op == FATTN_OP_BACKWARD ? 4 * queries + 4 * keys : 2 * queries + 2 * keys) * sizeof(float);
}

static attention as_floats(const attention *a)
{
    attention wide = *a;
    wide.type = NUMBER_F32;
    wide.widens = false;
    return wide;
}

bool attention_workspace(const attention *a, fattn_op op, size_t *bytes)
{
    *bytes = 0;
    if (a->widens) {
        const attention wide = as_floats(a);
        const bool good = attention_workspace(&wide, op, bytes);
        *bytes += widened_bytes(a, op);
        return good;
    }
    if (a->ring)
        return ring_workspace(a, op, bytes);
    if (a->path.kind != ATTENTION_BLOCK) {
        fattn_desc d = describe(a);
        return runtime_library_did(fattn_workspace_size(a->context, &d, op, bytes));
    }
    if (a->documents)
        return train_fail("attention by blocks knows no documents: use composed or flash");
    if (op == FATTN_OP_BACKWARD)
        return train_fail("attention by blocks has no backward: train with composed or flash");
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

/* ----------------------------------------------------------------------------------------------------------------- blocks */

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
                      attention_rows out, int64_t out_seq, float *lse, char *workspace, size_t bytes)
{
    fattn_forward_args args = {.struct_size = sizeof args,
                               .q = view(a, q, a->seq_q, b->first_row),
                               .k = view(a, k, a->seq_k, b->first_key),
                               .v = view(a, v, a->seq_k, b->first_key),
                               .out = view(a, out, out_seq, 0),
                               .lse = lse,
                               .workspace = workspace,
                               .workspace_size = bytes,
                               .stream = a->device->stream};
    return runtime_library_did(fattn_forward(a->context, &b->desc, &args));
}

/* The first block concerns every query, so it goes straight to the sum; the others are merged into it. */
static bool sum_of_blocks(const attention *a, attention_rows q, attention_rows k, attention_rows v, attention_rows out,
                          float *lse, char *workspace, size_t bytes)
{
    attention_rows partial = {workspace, a->heads * a->dim};
    float *partial_lse = (float *)partial.data + partial_out_floats(a);
    char *rest = (char *)(partial_lse + partial_lse_floats(a));
    bytes -= (size_t)(rest - workspace);
    for (int64_t key = 0; key < a->seq_k; key += a->path.size) {
        key_block b = block_at(a, key);
        if (key == 0) {
            if (!run_block(a, &b, q, k, v, out, a->seq_q, lse, rest, bytes))
                return false;
            continue;
        }
        if (!run_block(a, &b, q, k, v, partial, b.desc.seq_q, partial_lse, rest, bytes))
            return false;
        if (!merge(a, &b, out, lse, partial.data, partial_lse))
            return false;
    }
    return true;
}

/* Rows of all queries or keys from one place and type to another. */
static bool copy_rows(const attention *a, attention_rows to, number_type to_type, attention_rows from, number_type from_type,
                      bool queries)
{
    const copy_call c = {.rows = a->batch * (queries ? a->seq_q : a->seq_k),
                         .cols = (queries ? a->heads : a->heads_kv) * a->dim,
                         .to_stride = to.stride,
                         .from_stride = from.stride,
                         .to_type = to_type,
                         .from_type = from_type,
                         .to = to.data,
                         .from = from.data};
    return a->device->run->copy(a->device, &c);
}

static bool forward_by_blocks(const attention *a, attention_rows q, attention_rows k, attention_rows v, attention_rows out,
                              float *lse, char *workspace, size_t bytes)
{
    const size_t sum_bytes = partial_out_floats(a) * sizeof(float);
    const attention_rows sum = {workspace, a->heads * a->dim};
    if (a->type == NUMBER_F32)
        return sum_of_blocks(a, q, k, v, out, lse, workspace, bytes);
    return sum_of_blocks(a, q, k, v, sum, lse, workspace + sum_bytes, bytes - sum_bytes) &&
           copy_rows(a, out, a->type, sum, NUMBER_F32, true);
}

/* --------------------------------------------------------------------------------------------------------------- widened */

/* Hands out rows of floats from the workspace. */
static attention_rows take(const attention *a, bool queries, float **next)
{
    const int64_t width = (queries ? a->heads : a->heads_kv) * a->dim;
    const attention_rows rows = {*next, width};
    *next += a->batch * (queries ? a->seq_q : a->seq_k) * width;
    return rows;
}

static bool widen(const attention *a, attention_rows from, bool queries, float **next, attention_rows *to)
{
    *to = take(a, queries, next);
    return copy_rows(a, *to, NUMBER_F32, from, a->type, queries);
}

static bool forward_widened(const attention *a, attention_rows q, attention_rows k, attention_rows v, attention_rows out,
                            float *lse, void *workspace, size_t bytes)
{
    const attention wide = as_floats(a);
    float *next = workspace;
    attention_rows q32, k32, v32, out32;
    if (!widen(a, q, true, &next, &q32) || !widen(a, k, false, &next, &k32) || !widen(a, v, false, &next, &v32))
        return false;
    out32 = take(a, true, &next);
    return attention_forward(&wide, q32, k32, v32, out32, lse, next, bytes - widened_bytes(a, FATTN_OP_FORWARD)) &&
           copy_rows(a, out, a->type, out32, NUMBER_F32, true);
}

static bool backward_widened(const attention *a, attention_rows q, attention_rows k, attention_rows v, attention_rows out,
                             attention_rows dout, const float *lse, attention_rows dq, attention_rows dk, attention_rows dv,
                             void *workspace, size_t bytes)
{
    const attention wide = as_floats(a);
    float *next = workspace;
    attention_rows q32, k32, v32, out32, dout32;
    if (!widen(a, q, true, &next, &q32) || !widen(a, k, false, &next, &k32) || !widen(a, v, false, &next, &v32) ||
        !widen(a, out, true, &next, &out32) || !widen(a, dout, true, &next, &dout32))
        return false;
    const attention_rows dq32 = take(a, true, &next), dk32 = take(a, false, &next), dv32 = take(a, false, &next);
    return attention_backward(&wide, q32, k32, v32, out32, dout32, lse, dq32, dk32, dv32, next,
                              bytes - widened_bytes(a, FATTN_OP_BACKWARD)) &&
           copy_rows(a, dq, a->type, dq32, NUMBER_F32, true) && copy_rows(a, dk, a->type, dk32, NUMBER_F32, false) &&
           copy_rows(a, dv, a->type, dv32, NUMBER_F32, false);
}

/* ---------------------------------------------------------------------------------------------------------------- calls */

bool attention_forward(const attention *a, attention_rows q, attention_rows k, attention_rows v, attention_rows out, float *lse,
                       void *workspace, size_t bytes)
{
    if (a->widens)
        return forward_widened(a, q, k, v, out, lse, workspace, bytes);
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
                               .document_q = a->documents,
                               .document_k = a->documents,
                               .workspace = workspace,
                               .workspace_size = bytes,
                               .stream = a->device->stream};
    return runtime_library_did(fattn_forward(a->context, &d, &args));
}

bool attention_backward(const attention *a, attention_rows q, attention_rows k, attention_rows v, attention_rows out,
                        attention_rows dout, const float *lse, attention_rows dq, attention_rows dk, attention_rows dv,
                        void *workspace, size_t bytes)
{
    if (a->widens)
        return backward_widened(a, q, k, v, out, dout, lse, dq, dk, dv, workspace, bytes);
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
                                .document_q = a->documents,
                                .document_k = a->documents,
                                .workspace = workspace,
                                .workspace_size = bytes,
                                .stream = a->device->stream};
    return runtime_library_did(fattn_backward(a->context, &d, &args));
}
