/*
 * From bytes to a call. What a byte means changes as little as possible with the bytes before it, so that a fuzzer can learn.
 */
#include "scene.h"

#include <math.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---------------------------------------------------------------------------------------------------------- descriptor */

static int64_t pick(fuzz_input *in, const int64_t *list, size_t count)
{
    return list[fuzz_byte(in) % count];
}

#define PICK(in, ...) pick(in, (const int64_t[]){__VA_ARGS__}, COUNT(((const int64_t[]){__VA_ARGS__})))

static int64_t wild_number(fuzz_input *in)
{
    const int64_t special[] = {-1, -2, 1, 2, 0, INT64_MAX, INT64_MIN, INT32_MAX, (int64_t)1 << 32, (int64_t)1 << 50, -64, 513};
    const uint8_t which = fuzz_byte(in);
    return which < 128 ? special[which % COUNT(special)] : (int64_t)fuzz_number(in, which % 8 + 1);
}

static double wild_double(fuzz_input *in)
{
    const uint64_t bits = fuzz_number(in, 8);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* One field becomes anything. */
static void spoil_desc(fattn_desc *d, fuzz_input *in)
{
    int32_t *const words[] = {&d->dtype,      &d->out_dtype,       &d->mask, &d->align, &d->kv_dtype,
                              &d->grad_dtype, (int32_t *)&d->flags};
    int64_t *const longs[] = {&d->batch,   &d->heads_q, &d->heads_kv,  &d->seq_q,       &d->seq_k,
                              &d->dim,     &d->dim_v,   &d->pages,     &d->window_left, &d->window_right,
                              &d->total_q, &d->total_k, &d->mask_size, &d->page_size};
    double *const doubles[] = {&d->scale, &d->softcap, &d->dropout};
    const size_t which = fuzz_byte(in) % (COUNT(words) + COUNT(longs) + COUNT(doubles) + 1);
    if (which < COUNT(words))
        *words[which] = (int32_t)wild_number(in);
    else if (which < COUNT(words) + COUNT(longs))
        *longs[which - COUNT(words)] = wild_number(in);
    else if (which < COUNT(words) + COUNT(longs) + COUNT(doubles))
        *doubles[which - COUNT(words) - COUNT(longs)] = wild_double(in);
    else
        d->seed = fuzz_number(in, 8);
}

static void describe_types(fattn_desc *d, fuzz_input *in)
{
    const bool narrow = (d->dtype = (int32_t)PICK(in, FATTN_F32, FATTN_F64, FATTN_F16, FATTN_BF16)) >= FATTN_F16;
    const uint8_t types = fuzz_byte(in);
    d->out_dtype = types & 1 ? (narrow && (types & 2) ? FATTN_F32 : d->dtype) : 0;
    d->grad_dtype = types & 4 ? (narrow && (types & 8) ? FATTN_F32 : d->dtype) : 0;
    d->kv_dtype = (types & 0x30) == 0x30 && d->dtype != FATTN_F64 ? FATTN_I8 : types & 0x10 ? d->dtype : 0;
}

static void describe_sizes(fattn_desc *d, fuzz_input *in)
{
    d->batch = PICK(in, 1, 2, 3, 1, 2, 0, 5);
    d->heads_kv = PICK(in, 1, 2, 3, 1);
    d->heads_q = d->heads_kv * PICK(in, 1, 2, 3, 1, 4, 8);
    d->seq_q = PICK(in, 1, 2, 3, 5, 8, 13, 16, 17, 31, 33, 64, 65, 7, 100, 0, 130, 200);
    d->seq_k = PICK(in, 1, 2, 3, 5, 8, 13, 16, 17, 31, 33, 64, 65, 7, 100, 0, 130, 200, 300, 520);
    d->dim = PICK(in, 8, 1, 3, 16, 17, 32, 64, 65, 80, 128, 256, 512);
    d->dim_v = fuzz_byte(in) % 2 ? d->dim : PICK(in, 8, 1, 3, 16, 17, 32, 64, 65, 80, 128, 256, 512);
}

static void describe_mask(fattn_desc *d, fuzz_input *in)
{
    d->mask = fuzz_byte(in) % (FATTN_MASK_INTERVALS + 1);
    d->align = fuzz_byte(in) % 2;
    if (d->mask == FATTN_MASK_WINDOW || d->mask == FATTN_MASK_DOCUMENT) {
        d->window_left = (int64_t)fuzz_byte(in) - 1;
        d->window_right = (int64_t)fuzz_byte(in) - 1;
    }
    if (d->mask == FATTN_MASK_CHUNKED || d->mask == FATTN_MASK_PREFIX)
        d->mask_size = (int64_t)fuzz_byte(in) + 1;
}

static void describe_parts(fattn_desc *d, fuzz_input *in)
{
    const double scales[] = {0, 0.125, -0.5, 1, 1e-3, 1e30};
    const uint8_t parts = fuzz_byte(in);
    d->scale = scales[fuzz_byte(in) % COUNT(scales)];
    d->softcap = parts & 1 ? 1 + fuzz_byte(in) / 8.0 : 0;
    if (parts & 2) {
        d->dropout = fuzz_byte(in) / 256.0;
        d->seed = d->dropout > 0 ? fuzz_number(in, 8) : 0;
    }
    if (parts & 4) {
        d->flags = fuzz_byte(in) & 0x3f;
        d->flags &= ~(d->flags & FATTN_WITH_BIAS ? 0u : FATTN_WITH_DBIAS);
        d->flags &= ~(d->flags & FATTN_WITH_SINKS ? 0u : FATTN_WITH_DSINKS);
    }
    if ((parts & 8) && d->seq_k > 0)
        d->page_size = PICK(in, 1, 3, 16, 64);
}

/* How long the sequences are, and how much room they have. */
static void describe_lengths(scene *s, fuzz_input *in)
{
    fattn_desc *d = &s->desc;
    const uint8_t kind = fuzz_byte(in);
    s->packed_q = (kind & 3) == 3;
    s->packed_k = (kind & 12) == 12 && d->page_size == 0;
    for (int64_t b = 0; b < d->batch && b < BATCH_MOST; b++) {
        const int64_t most_q = d->seq_q + 1, most_k = d->seq_k + 1;
        s->rooms_q[b] = (int32_t)(s->packed_q ? fuzz_byte(in) % most_q : d->seq_q);
        s->rooms_k[b] = (int32_t)(s->packed_k ? fuzz_number(in, 2) % (uint64_t)most_k : (uint64_t)d->seq_k);
        s->lengths_q[b] = (int32_t)(kind & 16 ? fuzz_byte(in) % (s->rooms_q[b] + 1) : s->rooms_q[b]);
        s->lengths_k[b] = (int32_t)(kind & 32 ? fuzz_number(in, 2) % ((uint64_t)s->rooms_k[b] + 1) : (uint64_t)s->rooms_k[b]);
        d->total_q += s->packed_q ? s->rooms_q[b] : 0;
        d->total_k += s->packed_k ? s->rooms_k[b] : 0;
    }
    /* A tensor for each list, present or not. */
    s->tensor[USED_Q].cols = kind & 16 ? d->batch : 0;
    s->tensor[USED_K].cols = kind & 32 ? d->batch : 0;
}

static double work(const fattn_desc *d)
{
    return (double)d->batch * (double)d->heads_q * (double)d->seq_q * (double)d->seq_k * ((double)d->dim + (double)d->dim_v);
}

bool scene_fits(const fattn_desc *d)
{
    const double queries = (double)d->batch * (double)d->seq_q, keys = (double)d->batch * (double)d->seq_k;
    return d->batch <= BATCH_MOST && d->seq_q < ROWS_MOST && d->seq_k < ROWS_MOST && queries < ROWS_MOST && keys < ROWS_MOST &&
           (double)d->pages * (double)d->page_size < ROWS_MOST && d->pages < ROWS_MOST && d->page_size < ROWS_MOST &&
           d->heads_q <= 64 && d->total_q < ROWS_MOST && d->total_k < ROWS_MOST && work(d) <= WORK_MOST &&
           (d->page_size == 0 || d->pages > 0);
}

/* Large sizes are halved until the call is quick. */
static void shrink(fattn_desc *d)
{
    while (work(d) > WORK_MOST) {
        int64_t *largest = d->dim > d->dim_v ? &d->dim : &d->dim_v;
        largest = d->seq_k > *largest ? &d->seq_k : largest;
        largest = d->seq_q > *largest ? &d->seq_q : largest;
        *largest = (*largest + 1) / 2;
    }
}

/* What a struct says of its own size: mostly the truth. An older struct ends at the end of a field; half a pointer would be
 * read as a whole one. */
static size_t claim(size_t own_size, fuzz_input *in, bool *tail)
{
    const uint8_t kind = fuzz_byte(in);
    *tail = kind >= 252;
    if (kind >= 240)
        return own_size + 1 + fuzz_byte(in) % 64;
    return kind >= 224 ? fuzz_number(in, 2) % own_size / 8 * 8 : own_size;
}

void scene_describe(scene *s, fuzz_input *in)
{
    fattn_desc *d = &s->desc;
    memset(s, 0, sizeof *s);
    const uint8_t wild = fuzz_byte(in);
    describe_types(d, in);
    describe_sizes(d, in);
    shrink(d);
    describe_mask(d, in);
    describe_parts(d, in);
    for (int i = 0; wild >= 224 && i <= wild % 2; i++)
        spoil_desc(d, in);
    if (d->page_size > 0 && d->pages == 0)
        d->pages = 1;
    const bool small = d->batch >= 0 && d->seq_q >= 0 && d->seq_k >= 0 && scene_fits(d);
    if (small)
        describe_lengths(s, in);
    if (small && d->page_size > 0 && d->pages == 1) {
        const int64_t columns = d->seq_k / d->page_size + (d->seq_k % d->page_size > 0);
        d->pages = columns * d->batch + fuzz_byte(in) % 3;
        d->pages = d->pages > 0 ? d->pages : 1;
    }
    s->desc_claims = claim(sizeof *d, in, &s->desc_tail);
    if (s->desc_claims < sizeof *d)
        memset((char *)d + s->desc_claims, 0, sizeof *d - s->desc_claims);
}

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

double scene_value(const unsigned char *element, int32_t dtype)
{
    uint16_t half = 0;
    uint32_t bits = 0;
    float single;
    double number;
    if (dtype == FATTN_F64) {
        memcpy(&number, element, sizeof number);
        return number;
    }
    memcpy(&half, element, sizeof half);
    if (dtype == FATTN_F16) {
        const int exponent = half >> 10 & 31, mantissa = half & 0x3ff;
        number = exponent == 31  ? (mantissa ? NAN : INFINITY)
                 : exponent == 0 ? ldexp(mantissa, -24)
                                 : ldexp(mantissa + 1024, exponent - 25);
        return half & 0x8000 ? -number : number;
    }
    memcpy(&bits, element, dtype == FATTN_F32 ? sizeof bits : 0);
    bits = dtype == FATTN_F32 ? bits : (uint32_t)half << 16;
    memcpy(&single, &bits, sizeof single);
    return single;
}

static uint64_t next_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void scene_fill(tensor *t, uint64_t seed, bool wild)
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

/* Which rows of the tensors exist. */
static void set_used(uint8_t *used, bool packed, int64_t seq, int64_t batch, const int32_t *rooms, const int32_t *lengths)
{
    int64_t at = 0;
    memset(used, 0, ROWS_MOST);
    for (int64_t b = 0; b < batch; b++) {
        memset(used + at, 1, (size_t)lengths[b]);
        at += packed ? rooms[b] : seq;
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
    const uint8_t numbers = fuzz_byte(in);
    s->numbers_wild = numbers % 4 == 3 || d->scale > 2 || d->scale < -2;
    for (int i = 0; i < TENSORS; i++)
        if (s->tensor[i].dtype != TENSOR_I32)
            scene_fill(&s->tensor[i], numbers + 1000u * (unsigned)i, numbers % 4 == 3);
    set_used(s->used_q, s->packed_q, d->seq_q, d->batch, s->rooms_q, s->lengths_q);
    set_used(s->used_k, s->packed_k, d->seq_k, d->batch, s->rooms_k, s->lengths_k);
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

/* ------------------------------------------------------------------------------------------------------------ mistakes */

/* A sequence's length: within its room it counts, beyond it is to be refused. */
static void spoil_used(scene *s, bool keys, int64_t b, int32_t value)
{
    const fattn_desc *d = &s->desc;
    const bool packed = keys ? s->packed_k : s->packed_q;
    int32_t *lengths = keys ? s->lengths_k : s->lengths_q, *rooms = keys ? s->rooms_k : s->rooms_q;
    if (value < 0 || value > rooms[b]) {
        s->refused = true;
        return;
    }
    lengths[b] = value;
    if (keys && d->page_size > 0)
        s->loose = true; /* its pages may be those of another one */
    else
        set_used(keys ? s->used_k : s->used_q, packed, keys ? d->seq_k : d->seq_q, d->batch, rooms, lengths);
}

/* A list that there is gets one number that is wrong, or only odd; a length mostly one about as large as its room. */
static void spoil_list(scene *s, fuzz_input *in)
{
    static const tensor_id lists[] = {USED_Q, USED_K, CU_Q, CU_K, DOCUMENT_Q, DOCUMENT_K, PAGE_TABLE};
    size_t which = fuzz_byte(in) % COUNT(lists);
    for (size_t tries = 0; tries < COUNT(lists) && tensor_empty(&s->tensor[lists[which]]); tries++)
        which = (which + 1) % COUNT(lists);
    const tensor *t = &s->tensor[lists[which]];
    if (tensor_empty(t))
        return;
    const int64_t at = (int64_t)(fuzz_number(in, 2) % (uint64_t)t->cols);
    const bool used = which < 2;
    int32_t *number = (int32_t *)t->view.data + at, near = used ? (which ? s->rooms_k : s->rooms_q)[at] : *number;
    const uint8_t how = fuzz_byte(in);
    *number = how < 192 ? (int32_t)((uint32_t)near + how % 4 - 1) : (int32_t)wild_number(in);
    if (used)
        spoil_used(s, which == 1, at, *number);
    else
        s->loose = true;
}

/* Strides that leave the address space wherever they count. */
static void spoil_stride(tensor *t, fuzz_input *in)
{
    const int64_t far[] = {INT64_MAX, INT64_MIN, (int64_t)1 << 60, -((int64_t)1 << 60), (int64_t)1 << 62};
    const uint8_t which = fuzz_byte(in);
    const int64_t count[3] = {t->batch, t->heads, t->rows};
    int64_t *const stride[3] = {&t->given.stride_batch, &t->given.stride_head, &t->given.stride_row};
    if (!tensor_empty(t) && count[which % 3] > 1)
        *stride[which % 3] = far[which / 3 % COUNT(far)];
}

/* An output or an input onto something else: refused, or else nothing is said about the results. Not onto the lists of lengths:
 * if it is not seen that an output overlaps those, the call follows its own results anywhere. */
static void spoil_place(scene *s, tensor *t, fuzz_input *in)
{
    const tensor *onto = &s->tensor[fuzz_byte(in) % TENSORS];
    if (t->dtype != TENSOR_I32 && onto->dtype != TENSOR_I32 && arena_move(t, onto, fuzz_byte(in) - 128))
        s->loose = true;
}

void scene_spoil(scene *s, fuzz_input *in)
{
    const uint8_t kind = fuzz_byte(in);
    tensor *t = &s->tensor[fuzz_byte(in) % TENSORS];
    if (kind < 160)
        return;
    switch (kind % 5) {
    case 0:
        spoil_list(s, in);
        break;
    case 1:
        spoil_place(s, t, in);
        break;
    case 2:
        spoil_stride(t, in);
        break;
    case 3:
        t->given.data = NULL;
        s->loose = true; /* where the list of used rows is missing, all are used */
        break;
    default:
        if (!tensor_empty(t) && tensor_size(t) > 1)
            t->given.data = (char *)t->given.data + 1 + fuzz_byte(in) % 4 * 2;
    }
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

fattn_forward_args *scene_forward_args(scene *s, fuzz_input *in, const char **kernel)
{
    const uint8_t odd = fuzz_byte(in);
    bool tail;
    const size_t claimed = claim(sizeof(fattn_forward_args), in, &tail);
    s->no_lse = odd % 4 == 3 || !array(s, LSE);
    const fattn_forward_args own = {.reserved = odd == 255,
                                    .q = view(s, Q, s->packed_q),
                                    .k = view(s, K, s->packed_k),
                                    .v = view(s, V, s->packed_k),
                                    .out = view(s, OUT, s->packed_q),
                                    .lse = s->no_lse ? NULL : array(s, LSE),
                                    .workspace = odd == 254 ? NULL : array(s, FORWARD_SPACE),
                                    .workspace_size = (size_t)s->tensor[FORWARD_SPACE].cols - (odd == 253),
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
                                    .document_k = array(s, DOCUMENT_K),
                                    .page_table = array(s, PAGE_TABLE),
                                    .k_scales = array(s, K_SCALES),
                                    .v_scales = array(s, V_SCALES)};
    return exact(&own, sizeof own, claimed, tail);
}

fattn_backward_args *scene_backward_args(const scene *s, fuzz_input *in, const char **kernel)
{
    const uint8_t odd = fuzz_byte(in);
    bool tail;
    const size_t claimed = claim(sizeof(fattn_backward_args), in, &tail);
    const fattn_backward_args own = {.reserved = odd == 255,
                                     .q = view(s, Q, s->packed_q),
                                     .k = view(s, K, s->packed_k),
                                     .v = view(s, V, s->packed_k),
                                     .out = view(s, OUT, s->packed_q),
                                     .dout = view(s, DOUT, s->packed_q),
                                     .dq = view(s, DQ, s->packed_q),
                                     .dk = view(s, DK, s->packed_k),
                                     .dv = view(s, DV, s->packed_k),
                                     .lse = array(s, LSE),
                                     .workspace = odd == 254 ? NULL : array(s, BACKWARD_SPACE),
                                     .workspace_size = (size_t)s->tensor[BACKWARD_SPACE].cols - (odd == 253),
                                     .kernel = odd % 8 == 7 ? NULL : kernel,
                                     .dlse = array(s, DLSE),
                                     .cu_seqlens_q = array(s, CU_Q),
                                     .cu_seqlens_k = array(s, CU_K),
                                     .used_q = array(s, USED_Q),
                                     .used_k = array(s, USED_K),
                                     .mask_lo = array(s, MASK_LO),
                                     .mask_hi = array(s, MASK_HI),
                                     .bias = s->desc.flags & FATTN_WITH_BIAS ? &s->tensor[BIAS].given : NULL,
                                     .slopes = array(s, SLOPES),
                                     .sinks = array(s, SINKS),
                                     .dbias = s->desc.flags & FATTN_WITH_DBIAS ? &s->tensor[DBIAS].given : NULL,
                                     .dsinks = array(s, DSINKS),
                                     .stream = odd == 252 ? array(s, Q) : NULL,
                                     .mask_stride = s->mask_stride + (odd == 251 && s->desc.mask != FATTN_MASK_INTERVALS),
                                     .document_q = array(s, DOCUMENT_Q),
                                     .document_k = array(s, DOCUMENT_K)};
    return exact(&own, sizeof own, claimed, tail);
}
