/*
 * From bytes to a scene: what the descriptor says, how long sequences are, and what is wrong with the memory that scene_build.c
 * gives it. What a byte means changes as little as possible with the bytes before it, so that a fuzzer can learn.
 */
#include "scene.h"

#include <string.h>

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

/* An older struct ends at the end of a field; half a pointer would be read as a whole one. */
size_t scene_claim(size_t own_size, fuzz_input *in, bool *tail)
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
    s->desc_claims = scene_claim(sizeof *d, in, &s->desc_tail);
    if (s->desc_claims < sizeof *d)
        memset((char *)d + s->desc_claims, 0, sizeof *d - s->desc_claims);
}

/* ------------------------------------------------------------------------------------------------------------ mistakes */

/* A sequence's length: within its room it counts, beyond it is to be refused. */
static void spoil_used(scene *s, bool keys, int64_t b, int32_t value)
{
    if (value < 0 || value > (keys ? s->rooms_k : s->rooms_q)[b]) {
        s->refused = true;
        return;
    }
    (keys ? s->lengths_k : s->lengths_q)[b] = value;
    if (keys && s->desc.page_size > 0)
        s->loose = true; /* its pages may be those of another one */
    else
        scene_use(s, keys);
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
