/*
 * The memory of a test case: shapes, layouts, and lists of integers; see run.h.
 */
#include <stdlib.h>
#include <string.h>

#include "run.h"

/* -------------------------------------------------------------------------------------------------------------- shapes */

static tensor shape(fattn_dtype type, int64_t batch, int64_t heads, int64_t rows, int64_t cols)
{
    return (tensor){.batch = batch, .heads = heads, .rows = rows, .cols = cols, .type = type, .size = type_size(type)};
}

static tensor query_shape(const test_case *c, fattn_dtype type, int64_t cols)
{
    const problem *p = &c->p;
    tensor t =
        p->packed_q.kind ? shape(type, 1, p->heads_q, c->g.total_q, cols) : shape(type, p->batch, p->heads_q, p->seq_q, cols);
    t.real = c->real_q;
    return t;
}

static tensor key_shape(const test_case *c, fattn_dtype type, int64_t cols)
{
    const problem *p = &c->p;
    const int64_t heads = p->heads_q / p->group;
    tensor t = p->page_size > 0   ? shape(type, c->g.pages, heads, p->page_size, cols)
               : p->packed_k.kind ? shape(type, 1, heads, c->g.total_k, cols)
                                  : shape(type, p->batch, heads, p->seq_k, cols);
    t.real = c->real_k;
    return t;
}

static tensor pair_shape(const test_case *c, fattn_dtype type, unsigned dims)
{
    const problem *p = &c->p;
    return shape(type, dims & HAS_BATCH ? p->batch : 1, dims & HAS_HEAD ? p->heads_q : 1, dims & HAS_ROW ? p->seq_q : 1,
                 p->seq_k);
}

static tensor list_shape(int64_t count)
{
    return shape(FATTN_F32, 1, 1, 1, count);
}

/* Marks the rows of memory that belong to a sequence. */
static bool mark_real(test_case *c)
{
    const problem *p = &c->p;
    const geometry *g = &c->g;
    const tensor q = query_shape(c, FATTN_F32, 1), k = key_shape(c, FATTN_F32, 1),
                 bias = pair_shape(c, FATTN_F32, p->bias_dims);
    c->real_q = calloc((size_t)(q.batch * q.rows) + 1, 1);
    c->real_k = calloc((size_t)(k.batch * k.rows) + 1, 1);
    c->real_bias = calloc((size_t)(bias.batch * bias.rows) + 1, 1);
    if (!c->real_q || !c->real_k || !c->real_bias)
        return false;
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t i = 0; i < g->seq_q[b]; i++) {
            c->real_q[p->packed_q.kind ? g->first_q[b] + i : b * p->seq_q + i] = 1;
            c->real_bias[(bias.batch > 1 ? b : 0) * bias.rows + (bias.rows > 1 ? i : 0)] = 1;
        }
        for (int64_t j = 0; j < g->seq_k[b]; j++) {
            const int64_t page = p->page_size > 0 ? g->page[b * g->columns + j / p->page_size] : 0;
            c->real_k[p->page_size > 0   ? page * p->page_size + j % p->page_size
                      : p->packed_k.kind ? g->first_k[b] + j
                                         : b * p->seq_k + j] = 1;
        }
    }
    return true;
}

static void set_shapes(test_case *c)
{
    const problem *p = &c->p;
    const fattn_dtype kv = p->kv_i8 ? FATTN_I8 : p->dtype, grad = problem_grad_type(p), out = problem_out_type(p);
    tensors *t = &c->t;
    t->q = query_shape(c, p->dtype, p->dim);
    t->k = key_shape(c, kv, p->dim);
    t->v = key_shape(c, kv, p->dim_v);
    t->out = t->dout = query_shape(c, out, p->dim_v);
    t->lse = t->dlse = query_shape(c, problem_lse_type(p), 1);
    t->dq = query_shape(c, grad, p->dim);
    t->dk = key_shape(c, grad, p->dim);
    t->dv = key_shape(c, grad, p->dim_v);
    t->bias = pair_shape(c, p->dtype, p->bias_dims);
    t->bias.real = c->real_bias;
    t->dbias = pair_shape(c, grad, p->dbias_dims);
    t->slopes = t->sinks = t->dsinks = list_shape(p->heads_q);
    t->k_scales = t->v_scales = key_shape(c, FATTN_F32, 1);
}

/* ------------------------------------------------------------------------------------------------------------- placing */

static bool contiguous_by_contract(const test_case *c, const tensor *t)
{
    const tensors *all = &c->t;
    return t == &all->lse || t == &all->dlse || t == &all->k_scales || t == &all->v_scales ||
           t->batch * t->heads * t->rows == 1;
}

/* The layout of one tensor in a problem of layout `layout`. */
static layout_kind layout_of(const test_case *c, const tensor *t)
{
    const layout_kind layout = c->p.layout;
    if (contiguous_by_contract(c, t))
        return layout == LAYOUT_FENCE_HIGH || layout == LAYOUT_FENCE_LOW || layout == LAYOUT_OFFSET ? layout : LAYOUT_BHSD;
    if (layout == LAYOUT_BROADCAST_ROW && t != &c->t.k && t != &c->t.v)
        return LAYOUT_BHSD;
    if (layout == LAYOUT_BROADCAST && (t == &c->t.out || t == &c->t.bias)) /* backward's input out is what forward wrote */
        return LAYOUT_BHSD;
    return layout;
}

static bool add(test_case *c, bool input, tensor *const *list, int count, const char *name)
{
    if (!input)
        c->output_name[c->outputs_count] = name;
    arena *a = input ? &c->inputs[c->inputs_count++] : &c->outputs[c->outputs_count++];
    return arena_make(a, layout_of(c, list[0]), input, list, count);
}

static bool add_one(test_case *c, bool input, tensor *t, const char *name)
{
    tensor *const list[] = {t};
    return add(c, input, list, 1, name);
}

static bool same_rows(const tensor *a, const tensor *b)
{
    return a->batch == b->batch && a->rows == b->rows && a->type == b->type;
}

/* q, k and v, or their gradients: side by side where the layout says so and they have as many rows. */
static bool add_qkv(test_case *c, bool input, tensor *q, tensor *k, tensor *v)
{
    tensor *const all[] = {q, k, v};
    if (c->p.layout == LAYOUT_PACKED && same_rows(q, k))
        return add(c, input, all, 3, "packed dq, dk, dv");
    if (c->p.layout == LAYOUT_PACKED)
        return add_one(c, input, q, "dq") && add(c, input, all + 1, 2, "packed dk, dv");
    return add_one(c, input, q, "dq") && add_one(c, input, k, "dk") && add_one(c, input, v, "dv");
}

static void broadcast(tensor *t, unsigned dims)
{
    t->view.stride_batch = dims & HAS_BATCH ? t->view.stride_batch : 0;
    t->view.stride_head = dims & HAS_HEAD ? t->view.stride_head : 0;
    t->view.stride_row = dims & HAS_ROW ? t->view.stride_row : 0;
}

static bool add_features(test_case *c)
{
    const problem *p = &c->p;
    tensors *t = &c->t;
    bool ok = (!p->bias || add_one(c, true, &t->bias, NULL)) && (!p->alibi || add_one(c, true, &t->slopes, NULL)) &&
              (!p->sinks || add_one(c, true, &t->sinks, NULL)) && (!p->dlse || add_one(c, true, &t->dlse, NULL)) &&
              (!p->kv_i8 || (add_one(c, true, &t->k_scales, NULL) && add_one(c, true, &t->v_scales, NULL))) &&
              (!p->dbias || add_one(c, false, &t->dbias, "dbias")) && (!p->dsinks || add_one(c, false, &t->dsinks, "dsinks"));
    broadcast(&t->bias, p->bias_dims);
    broadcast(&t->dbias, p->dbias_dims);
    return ok;
}

/* ---------------------------------------------------------------------------------------------------- lists of integers */

/* A list that the library gets, and an empty place for it. */
static int32_t *add_list(test_case *c, tensor *t, int64_t count)
{
    *t = list_shape(count);
    return add_one(c, true, t, NULL) ? t->view.data : NULL;
}

static bool add_cumulative(test_case *c, tensor *t, const int64_t *first, int64_t total)
{
    int32_t *list = add_list(c, t, c->p.batch + 1);
    for (int64_t b = 0; list && b < c->p.batch; b++)
        list[b] = (int32_t)first[b];
    if (list)
        list[c->p.batch] = (int32_t)total;
    return list != NULL;
}

static bool add_used(test_case *c, tensor *t, const int64_t *length)
{
    int32_t *list = add_list(c, t, c->p.batch);
    for (int64_t b = 0; list && b < c->p.batch; b++)
        list[b] = (int32_t)length[b];
    return list || c->p.batch == 0;
}

/* One integer per row in memory; from [batch][rows] to where each sequence's rows stand. first NULL: `stride` apart. What
 * belongs to no sequence keeps its poison, a large number. */
static bool add_row_list(test_case *c, tensor *t, const int32_t *from, int64_t rows, const int64_t *length,
                         const int64_t *first, int64_t total, int64_t stride)
{
    const int64_t batch = c->p.batch, count = first ? total : batch > 0 ? (batch - 1) * stride + rows : 0;
    int32_t *list = add_list(c, t, count);
    for (int64_t b = 0; list && b < batch; b++)
        for (int64_t i = 0; i < length[b]; i++)
            list[(first ? first[b] : b * stride) + i] = from[b * rows + i];
    return list || count == 0;
}

int64_t case_mask_stride(const test_case *c)
{
    if (c->p.mask != FATTN_MASK_INTERVALS || c->p.mask_shared || c->p.packed_q.kind)
        return 0;
    return c->p.seq_q + (c->p.layout == LAYOUT_PADDED ? 3 : 0);
}

static bool add_mask_lists(test_case *c)
{
    const geometry *g = &c->g;
    const problem *p = &c->p;
    const int64_t *first_q = p->packed_q.kind ? g->first_q : NULL, *first_k = p->packed_k.kind ? g->first_k : NULL;
    const int64_t stride = case_mask_stride(c);
    if (g->lo && (!add_row_list(c, &c->t.lo, g->lo, p->seq_q, g->seq_q, first_q, g->total_q, stride) ||
                  !add_row_list(c, &c->t.hi, g->hi, p->seq_q, g->seq_q, first_q, g->total_q, stride)))
        return false;
    return !g->document_q ||
           (add_row_list(c, &c->t.document_q, g->document_q, p->seq_q, g->seq_q, first_q, g->total_q, p->seq_q) &&
            add_row_list(c, &c->t.document_k, g->document_k, p->seq_k, g->seq_k, first_k, g->total_k, p->seq_k));
}

static bool add_lists(test_case *c)
{
    const problem *p = &c->p;
    tensors *t = &c->t;
    if ((p->packed_q.kind && !add_cumulative(c, &t->cu_q, c->g.first_q, c->g.total_q)) ||
        (p->packed_k.kind && !add_cumulative(c, &t->cu_k, c->g.first_k, c->g.total_k)) ||
        (p->used_q.kind && !add_used(c, &t->used_q, c->g.seq_q)) || (p->used_k.kind && !add_used(c, &t->used_k, c->g.seq_k)))
        return false;
    if (p->page_size > 0) {
        const int64_t count = p->batch * c->g.columns;
        int32_t *table = add_list(c, &t->page_table, count);
        if (!table && count > 0)
            return false;
        if (count > 0)
            memcpy(table, c->g.page, (size_t)count * sizeof *table);
    }
    return add_mask_lists(c);
}

bool case_place(test_case *c)
{
    tensors *t = &c->t;
    const bool forward = c->p.op == FATTN_OP_FORWARD;
    if (!mark_real(c))
        return false;
    set_shapes(c);
    return add_qkv(c, true, &t->q, &t->k, &t->v) && add_one(c, !forward, &t->out, "out") &&
           add_one(c, !forward, &t->lse, "lse") &&
           (forward || (add_one(c, true, &t->dout, NULL) && add_qkv(c, false, &t->dq, &t->dk, &t->dv))) && add_features(c) &&
           add_lists(c);
}
