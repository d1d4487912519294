/*
 * From a scene to a call: the tensors that its descriptor asks for, what they hold, and the structs that say where they lie.
 */
#include <string.h>

#include "harness/call.h"
#include "scene.h"

/* ------------------------------------------------------------------------------------------------------------ elements */

/* A number between 1/16 and 1, of either sign: the exponent's and the mantissa's bits are drawn. */
static uint64_t tame_bits(int32_t dtype, uint64_t random)
{
    const uint64_t sign = random & 1, exponent = random >> 1 & 3, mantissa = random >> 3;
    switch (dtype) {
    case FATTN_F64:
        return sign << 63 | (1019 + exponent) << 52 | (mantissa & 0xffffffffff) << 12;
    case FATTN_F16:
        return sign << 15 | (11 + exponent) << 10 | (mantissa & 0x3ff);
    case FATTN_BF16:
        return sign << 15 | (123 + exponent) << 7 | (mantissa & 0x7f);
    case FATTN_I8:
        return random & 0xff;
    default:
        return sign << 31 | (123 + exponent) << 23 | (mantissa & 0x7fffff);
    }
}

static uint64_t next_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void fill(tensor *t, uint64_t seed, bool wild)
{
    const size_t size = tensor_size(t);
    for (int64_t b = 0; b < t->batch && !tensor_empty(t); b++) {
        for (int64_t h = 0; h < t->heads; h++) {
            for (int64_t i = 0; i < t->rows; i++) {
                unsigned char *row = tensor_row(t, b, h, i);
                for (int64_t c = 0; c < t->cols; c++) {
                    const uint64_t random = next_random(&seed);
                    const uint64_t bits =
                        wild && random >> 61 == 0 ? random * 0x2545f4914f6cdd1du : tame_bits(t->dtype, random);
                    memcpy(row + (size_t)c * size, &bits, size);
                }
            }
        }
    }
}

bool scene_fill(tensor *all, int count, uint8_t numbers)
{
    const bool wild = numbers % 4 == 3;
    for (int i = 0; i < count; i++)
        if (all[i].dtype != TENSOR_I32)
            fill(&all[i], numbers + 1000u * (unsigned)i, wild);
    return wild;
}

/* A list of lengths: its first `count` numbers. */
static void set_list(tensor *t, const int32_t *values)
{
    if (!tensor_empty(t))
        memcpy(t->view.data, values, (size_t)t->cols * sizeof *values);
}

static void set_cumulative(tensor *t, const int32_t *rooms)
{
    int32_t *cu = t->view.data;
    for (int64_t b = 0; b < t->cols; b++)
        cu[b] = b == 0 ? 0 : cu[b - 1] + rooms[b - 1];
}

/* Ids that do not go down along a sequence; they may where the next one begins. */
static void set_documents(tensor *t, fuzz_input *in, const int32_t *rooms, int64_t batch)
{
    int32_t *ids = t->view.data;
    const uint8_t often = fuzz_byte(in) % 16 + 1;
    uint64_t seed = fuzz_byte(in);
    for (int64_t b = 0, at = 0; !tensor_empty(t) && b < batch; b++)
        for (int32_t i = 0, id = -2; i < rooms[b] && at < t->cols; i++, at++)
            ids[at] = id += next_random(&seed) % often == 0;
}

static void set_intervals(scene *s, fuzz_input *in)
{
    int32_t *lo = s->tensor[MASK_LO].view.data, *hi = s->tensor[MASK_HI].view.data;
    uint64_t seed = fuzz_byte(in);
    const bool wild = fuzz_byte(in) % 4 == 3;
    for (int64_t i = 0; i < s->tensor[MASK_LO].cols; i++) {
        const uint64_t random = next_random(&seed), range = (uint64_t)s->desc.seq_k + 1;
        lo[i] = wild ? (int32_t)random : (int32_t)(random % range);
        hi[i] = wild ? (int32_t)(random >> 32) : lo[i] + (int32_t)((random >> 32) % range);
    }
}

/* Pages of its own for each sequence, in some order; behind the used ones, numbers that no page has. */
static void set_pages(scene *s, fuzz_input *in)
{
    const fattn_desc *d = &s->desc;
    int32_t *table = s->tensor[PAGE_TABLE].view.data;
    if (tensor_empty(&s->tensor[PAGE_TABLE]))
        return;
    const int64_t columns = (d->seq_k + d->page_size - 1) / d->page_size;
    const uint8_t turn = fuzz_byte(in);
    memset(s->used_k, 0, sizeof s->used_k);
    for (int64_t b = 0; b < d->batch; b++) {
        for (int64_t c = 0; c < columns; c++) {
            const int64_t page = (b * columns + c + turn) % d->pages, rows = s->lengths_k[b] - c * d->page_size;
            table[b * columns + c] = rows > 0 ? (int32_t)page : -7;
            for (int64_t r = 0; r < rows && r < d->page_size; r++)
                s->used_k[page * d->page_size + r] = 1;
        }
    }
}

void scene_use(scene *s, bool keys)
{
    const int32_t *rooms = keys ? s->rooms_k : s->rooms_q, *lengths = keys ? s->lengths_k : s->lengths_q;
    const bool packed = keys ? s->packed_k : s->packed_q;
    const int64_t seq = keys ? s->desc.seq_k : s->desc.seq_q;
    uint8_t *used = keys ? s->used_k : s->used_q;
    memset(used, 0, ROWS_MOST);
    for (int64_t b = 0; b < s->desc.batch; b++) {
        memset(used, 1, (size_t)lengths[b]);
        used += packed ? rooms[b] : seq;
    }
}

/* ------------------------------------------------------------------------------------------------------------- tensors */

static void shape(scene *s, tensor_id id, int32_t dtype, int64_t batch, int64_t heads, int64_t rows, int64_t cols)
{
    tensor *t = &s->tensor[id];
    *t = (tensor){.batch = batch, .heads = heads, .rows = rows, .cols = cols, .dtype = dtype};
    t->distinct = id == OUT || id == DQ || id == DK || id == DV || id == DBIAS;
    t->plain = id == LSE || id == DLSE || id == K_SCALES || id == V_SCALES || (batch == 1 && heads == 1 && rows == 1);
}

static void shape_list(scene *s, tensor_id id, int32_t dtype, int64_t count)
{
    shape(s, id, dtype, 1, 1, 1, count);
}

/* A float, or a double beside doubles. */
static int32_t wide(const fattn_desc *d)
{
    return d->dtype == FATTN_F64 ? FATTN_F64 : FATTN_F32;
}

static int32_t or_dtype(int32_t type, const fattn_desc *d)
{
    return type == FATTN_DTYPE_NONE ? d->dtype : type;
}

static void shape_main(scene *s)
{
    const fattn_desc *d = &s->desc;
    const int32_t out = or_dtype(d->out_dtype, d), kv = or_dtype(d->kv_dtype, d), grad = or_dtype(d->grad_dtype, d);
    const int64_t bq = s->packed_q ? 1 : d->batch, rq = s->packed_q ? d->total_q : d->seq_q;
    const bool paged = d->page_size > 0;
    const int64_t bk = s->packed_k ? 1 : paged ? d->pages : d->batch;
    const int64_t rk = s->packed_k ? d->total_k : paged ? d->page_size : d->seq_k;
    shape(s, Q, d->dtype, bq, d->heads_q, rq, d->dim);
    shape(s, OUT, out, bq, d->heads_q, rq, d->dim_v);
    shape(s, DOUT, out, bq, d->heads_q, rq, d->dim_v);
    shape(s, DQ, grad, bq, d->heads_q, rq, d->dim);
    shape(s, LSE, wide(d), bq, d->heads_q, rq, 1);
    shape(s, DLSE, wide(d), d->flags & FATTN_WITH_DLSE ? bq : 0, d->heads_q, rq, 1);
    shape(s, K, kv, bk, d->heads_kv, rk, d->dim);
    shape(s, V, kv, bk, d->heads_kv, rk, d->dim_v);
    shape(s, DK, grad, bk, d->heads_kv, rk, d->dim);
    shape(s, DV, grad, bk, d->heads_kv, rk, d->dim_v);
    shape(s, K_SCALES, FATTN_F32, kv == FATTN_I8 ? bk : 0, d->heads_kv, rk, 1);
    shape(s, V_SCALES, FATTN_F32, kv == FATTN_I8 ? bk : 0, d->heads_kv, rk, 1);
    const tensor_id queries[] = {Q, OUT, DOUT, DQ, LSE, DLSE}, keys[] = {K, V, DK, DV, K_SCALES, V_SCALES};
    for (size_t i = 0; i < COUNT(queries); i++) {
        s->tensor[queries[i]].rows_used = s->used_q;
        s->tensor[keys[i]].rows_used = s->used_k;
    }
}

static void shape_lists(scene *s, fuzz_input *in)
{
    const fattn_desc *d = &s->desc;
    const int64_t rows = s->packed_q ? d->total_q : d->batch * d->seq_q, keys = s->packed_k ? d->total_k : d->batch * d->seq_k;
    const bool used_q = s->tensor[USED_Q].cols > 0, used_k = s->tensor[USED_K].cols > 0;
    const bool documents = d->mask == FATTN_MASK_DOCUMENT, intervals = d->mask == FATTN_MASK_INTERVALS;
    const bool each = intervals && !s->packed_q && fuzz_byte(in) % 2;
    s->mask_stride = each ? d->seq_q : 0;
    const int64_t bounds = !intervals ? 0 : each || s->packed_q ? rows : d->batch > 0 ? d->seq_q : 0;
    shape_list(s, CU_Q, TENSOR_I32, s->packed_q ? d->batch + 1 : 0);
    shape_list(s, CU_K, TENSOR_I32, s->packed_k ? d->batch + 1 : 0);
    shape_list(s, USED_Q, TENSOR_I32, used_q ? d->batch : 0);
    shape_list(s, USED_K, TENSOR_I32, used_k ? d->batch : 0);
    shape_list(s, MASK_LO, TENSOR_I32, bounds);
    shape_list(s, MASK_HI, TENSOR_I32, bounds);
    shape_list(s, DOCUMENT_Q, TENSOR_I32, documents ? rows : 0);
    shape_list(s, DOCUMENT_K, TENSOR_I32, documents ? keys : 0);
    shape_list(s, PAGE_TABLE, TENSOR_I32, d->page_size > 0 ? d->batch * ((d->seq_k + d->page_size - 1) / d->page_size) : 0);
    shape_list(s, SLOPES, FATTN_F32, d->flags & FATTN_WITH_SLOPES ? d->heads_q : 0);
    shape_list(s, SINKS, FATTN_F32, d->flags & FATTN_WITH_SINKS ? d->heads_q : 0);
    shape_list(s, DSINKS, FATTN_F32, d->flags & FATTN_WITH_DSINKS ? d->heads_q : 0);
}

/* bias and dbias may lack dimensions, whose stride is then 0. */
static void shape_bias(scene *s, fuzz_input *in)
{
    const fattn_desc *d = &s->desc;
    const uint8_t lacks[2] = {fuzz_byte(in), fuzz_byte(in)};
    for (int i = 0; i < 2; i++) {
        const bool there = d->flags & (i ? FATTN_WITH_DBIAS : FATTN_WITH_BIAS) && d->batch > 0;
        const int32_t dtype = i ? or_dtype(d->grad_dtype, d) : d->dtype;
        shape(s, i ? DBIAS : BIAS, dtype,
              !there         ? 0
              : lacks[i] & 1 ? 1
                             : d->batch,
              lacks[i] & 2 ? 1 : d->heads_q, lacks[i] & 4 && d->seq_q > 0 ? 1 : d->seq_q, d->seq_k);
    }
}

static void narrow_strides(tensor *t, const fattn_desc *d)
{
    /* A tensor without elements may say anything, and says nothing. */
    if (tensor_empty(t))
        return;
    if (t->batch < d->batch)
        t->view.stride_batch = 0;
    if (t->heads < d->heads_q)
        t->view.stride_head = 0;
    if (t->rows < d->seq_q)
        t->view.stride_row = 0;
    t->given = t->view;
}

static void set_elements(scene *s, fuzz_input *in)
{
    const fattn_desc *d = &s->desc;
    s->numbers_wild = scene_fill(s->tensor, TENSORS, fuzz_byte(in)) || d->scale > 2 || d->scale < -2 ||
                      (d->softcap > 0 && d->softcap < 1.0 / 16);
    scene_use(s, false);
    scene_use(s, true);
    set_cumulative(&s->tensor[CU_Q], s->rooms_q);
    set_cumulative(&s->tensor[CU_K], s->rooms_k);
    set_list(&s->tensor[USED_Q], s->lengths_q);
    set_list(&s->tensor[USED_K], s->lengths_k);
    set_documents(&s->tensor[DOCUMENT_Q], in, s->rooms_q, d->batch);
    set_documents(&s->tensor[DOCUMENT_K], in, s->rooms_k, d->batch);
    set_intervals(s, in);
    set_pages(s, in);
}

bool scene_place(scene *s, fuzz_input *in, size_t forward_space, size_t backward_space)
{
    if (forward_space > ARENA_MOST || backward_space > ARENA_MOST)
        return false;
    shape_main(s);
    shape_lists(s, in);
    shape_bias(s, in);
    shape_list(s, FORWARD_SPACE, FATTN_I8, (int64_t)forward_space);
    shape_list(s, BACKWARD_SPACE, FATTN_I8, (int64_t)backward_space);
    arena_begin();
    for (int i = 0; i < TENSORS; i++)
        if (!arena_place(&s->tensor[i], in))
            return false;
    narrow_strides(&s->tensor[BIAS], &s->desc);
    narrow_strides(&s->tensor[DBIAS], &s->desc);
    set_elements(s, in);
    return true;
}

void scene_roles(scene *s, fattn_op op)
{
    static const tensor_id common[] = {Q,       K,       V,          CU_Q,       CU_K, USED_Q, USED_K,
                                       MASK_LO, MASK_HI, DOCUMENT_Q, DOCUMENT_K, BIAS, SLOPES, SINKS};
    static const tensor_id forward_in[] = {PAGE_TABLE, K_SCALES, V_SCALES}, forward_out[] = {OUT, LSE};
    static const tensor_id backward_in[] = {OUT, LSE, DOUT, DLSE}, backward_out[] = {DQ, DK, DV, DBIAS, DSINKS};
    const bool forward = op == FATTN_OP_FORWARD;
    for (int i = 0; i < TENSORS; i++)
        s->tensor[i].role = ROLE_NONE;
    for (size_t i = 0; i < COUNT(common); i++)
        s->tensor[common[i]].role = ROLE_INPUT;
    for (size_t i = 0; i < (forward ? COUNT(forward_in) : COUNT(backward_in)); i++)
        s->tensor[forward ? forward_in[i] : backward_in[i]].role = ROLE_INPUT;
    for (size_t i = 0; i < (forward ? COUNT(forward_out) : COUNT(backward_out)); i++)
        s->tensor[forward ? forward_out[i] : backward_out[i]].role = ROLE_OUTPUT;
    s->tensor[forward ? FORWARD_SPACE : BACKWARD_SPACE].role = ROLE_SCRATCH;
    if (forward && s->no_lse)
        s->tensor[LSE].role = ROLE_NONE;
}

/* ------------------------------------------------------------------------------------------------------------- structs */

/* A copy of exactly `claimed` bytes, the struct's beginning and what follows it; the size is set to that. */
static void *exact(const void *own, size_t own_size, size_t claimed, bool tail)
{
    unsigned char *copy = calloc(1, claimed < 4 ? 4 : claimed);
    FUZZ_CHECK(copy != NULL);
    memcpy(copy, own, claimed < own_size ? claimed : own_size);
    if (tail && claimed > own_size)
        copy[claimed - 1] = 1;
    const uint32_t size = (uint32_t)claimed;
    memcpy(copy, &size, sizeof size);
    return copy;
}

fattn_desc *scene_desc(const scene *s)
{
    return exact(&s->desc, sizeof s->desc, s->desc_claims, s->desc_tail);
}

/* The pointer to a plain tensor, or NULL if there is none. */
static void *array(const scene *s, tensor_id id)
{
    return s->tensor[id].given.data;
}

/* A packed tensor's batch stride says nothing. */
static fattn_view view(const scene *s, tensor_id id, bool packed)
{
    fattn_view v = s->tensor[id].given;
    if (packed)
        v.stride_batch = 123456789;
    return v;
}

/* What both calls take. Now and then `odd` makes a field wrong. */
static fattn_forward_args common_args(const scene *s, uint8_t odd, tensor_id space, const char **kernel)
{
    return (fattn_forward_args){.reserved = odd == 255,
                                .q = view(s, Q, s->packed_q),
                                .k = view(s, K, s->packed_k),
                                .v = view(s, V, s->packed_k),
                                .out = view(s, OUT, s->packed_q),
                                .lse = array(s, LSE),
                                .workspace = odd == 254 ? NULL : array(s, space),
                                .workspace_size = (size_t)s->tensor[space].cols - (odd == 253),
                                .kernel = odd % 8 == 7 ? NULL : kernel,
                                .cu_seqlens_q = array(s, CU_Q),
                                .cu_seqlens_k = array(s, CU_K),
                                .used_q = array(s, USED_Q),
                                .used_k = array(s, USED_K),
                                .mask_lo = array(s, MASK_LO),
                                .mask_hi = array(s, MASK_HI),
                                .bias = s->desc.flags & FATTN_WITH_BIAS ? &s->tensor[BIAS].given : NULL,
                                .slopes = array(s, SLOPES),
                                .sinks = array(s, SINKS),
                                .stream = odd == 252 ? array(s, Q) : NULL,
                                .mask_stride = s->mask_stride + (odd == 251 && s->desc.mask != FATTN_MASK_INTERVALS),
                                .document_q = array(s, DOCUMENT_Q),
                                .document_k = array(s, DOCUMENT_K)};
}

fattn_forward_args *scene_forward_args(scene *s, fuzz_input *in, const char **kernel)
{
    const uint8_t odd = fuzz_byte(in);
    bool tail;
    const size_t claimed = scene_claim(sizeof(fattn_forward_args), in, &tail);
    fattn_forward_args own = common_args(s, odd, FORWARD_SPACE, kernel);
    s->no_lse = odd % 4 == 3 || !own.lse;
    own.lse = s->no_lse ? NULL : own.lse;
    own.page_table = array(s, PAGE_TABLE);
    own.k_scales = array(s, K_SCALES);
    own.v_scales = array(s, V_SCALES);
    return exact(&own, sizeof own, claimed, tail);
}

fattn_backward_args *scene_backward_args(const scene *s, fuzz_input *in, const char **kernel)
{
    const uint8_t odd = fuzz_byte(in);
    bool tail;
    const size_t claimed = scene_claim(sizeof(fattn_backward_args), in, &tail);
    const fattn_forward_args common = common_args(s, odd, BACKWARD_SPACE, kernel);
    fattn_backward_args own = call_backward_of(&common);
    own.dout = view(s, DOUT, s->packed_q);
    own.dlse = array(s, DLSE);
    own.dq = view(s, DQ, s->packed_q);
    own.dk = view(s, DK, s->packed_k);
    own.dv = view(s, DV, s->packed_k);
    own.dbias = s->desc.flags & FATTN_WITH_DBIAS ? &s->tensor[DBIAS].given : NULL;
    own.dsinks = array(s, DSINKS);
    return exact(&own, sizeof own, claimed, tail);
}
