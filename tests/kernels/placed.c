/* See placed.h. Where a row lies in a tensor; the tensors of a problem. */
#include "placed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ROOM = 64, POISON = 0xff }; /* bytes of 0xff are NaN in every type */

const int32_t all_types[4] = {FATTN_F64, FATTN_F32, FATTN_F16, FATTN_BF16};

static bool is_input(int slot)
{
    return slot <= SLOT_DOUT || slot == SLOT_DLSE || slot == SLOT_BIAS;
}

static bool is_keys(int slot)
{
    return slot == SLOT_K || slot == SLOT_V || slot == SLOT_DK || slot == SLOT_DV;
}

/* A tensor as the library sees it. */
typedef struct shape {
    int64_t outer, heads, rows, cols;
} shape;

static int64_t total(const placed *p, bool keys)
{
    const int64_t *first = keys ? p->first_k : p->first_q;
    return first[p->desc.batch];
}

static shape shape_of(const placed *p, int slot)
{
    const fattn_desc *d = &p->desc;
    const bool keys = is_keys(slot), values = slot == SLOT_V || slot == SLOT_DV || slot == SLOT_OUT || slot == SLOT_DOUT;
    shape s = {d->batch, keys ? d->heads_kv : d->heads_q, keys ? d->seq_k : d->seq_q, values ? d->dim_v : d->dim};
    if (slot == SLOT_BIAS || slot == SLOT_DBIAS)
        return (shape){p->s->bias_has[0] ? d->batch : 1, p->s->bias_has[1] ? d->heads_q : 1, p->s->bias_has[2] ? d->seq_q : 1,
                       d->seq_k};
    if (slot == SLOT_LSE || slot == SLOT_DLSE)
        s.cols = 1;
    if (p->f.packed && !(keys && d->page_size > 0))
        s = (shape){1, s.heads, total(p, keys), s.cols};
    if (d->page_size > 0 && (slot == SLOT_K || slot == SLOT_V))
        s = (shape){d->pages, s.heads, d->page_size, s.cols};
    return s;
}

static int32_t dtype_of(const placed *p, int slot)
{
    const fattn_desc *d = &p->desc;
    if (slot == SLOT_LSE || slot == SLOT_DLSE)
        return d->dtype == FATTN_F64 ? FATTN_F64 : FATTN_F32;
    if (slot == SLOT_OUT || slot == SLOT_DOUT)
        return d->out_dtype != 0 ? d->out_dtype : d->dtype;
    return slot >= SLOT_DQ && d->grad_dtype != 0 ? d->grad_dtype : d->dtype;
}

/* Strides of a tensor in its layout, the element of its first row, and how many elements its memory has. */
static fattn_view strides_of(const placed *p, int slot, int64_t *start, int64_t *elements)
{
    const shape s = shape_of(p, slot);
    layout how = p->f.layout;
    const bool numbers = slot == SLOT_LSE || slot == SLOT_DLSE, pairs = slot == SLOT_BIAS || slot == SLOT_DBIAS;
    const int64_t all = s.outer * s.heads * s.rows;
    fattn_view view = {NULL, s.heads * s.rows * s.cols, s.rows * s.cols, s.cols};
    *start = 0;
    *elements = all * s.cols;
    if (numbers || (pairs && how != LAYOUT_ODD) || how == LAYOUT_QKV)
        return view;
    if (how == LAYOUT_BSHD)
        view = (fattn_view){NULL, s.heads * s.rows * s.cols, s.cols, s.heads * s.cols};
    if (how == LAYOUT_ODD) {
        const int64_t row = s.cols + 1;
        view = (fattn_view){NULL, s.heads * s.rows * row, s.rows * row, row};
        *start = 1;
        *elements = all * row + 1;
    }
    if (how == LAYOUT_REVERSED && is_input(slot)) {
        view = (fattn_view){NULL, -view.stride_batch, -view.stride_head, -view.stride_row};
        *start = all > 0 ? (all - 1) * s.cols : 0;
    } else if (how == LAYOUT_REVERSED) {
        view = (fattn_view){NULL, s.cols, s.rows * s.outer * s.cols, s.outer * s.cols};
    }
    return view;
}

static void spread(tensor *t, int64_t elements, bool infinite)
{
    const int64_t size = (int64_t)number_size(t->dtype);
    t->bytes = (size_t)(elements * size + 2 * ROOM);
    t->memory = aligned_alloc(64, (t->bytes + 63) / 64 * 64);
    assert_non_null(t->memory);
    memset(t->memory, POISON, t->bytes);
    for (int64_t i = 0; infinite && i < elements; i++)
        number_set(t->memory + ROOM, t->dtype, i, (double)INFINITY);
}

/* Zeros in the system's memory, of which only touched pages take any. */
static void make_sparse(placed *p, int slot)
{
    tensor *t = &p->t[slot];
    const shape s = shape_of(p, slot);
    const int64_t huge = (int64_t)1 << (slot == SLOT_BIAS || slot == SLOT_DBIAS ? 31 : 30),
                  size = (int64_t)number_size(t->dtype);
    const int64_t extent = p->f.sparse == 0 ? s.outer : p->f.sparse == 1 ? s.heads : s.rows;
    t->view = (fattn_view){NULL, s.heads * s.rows * s.cols, s.rows * s.cols, s.cols};
    *(p->f.sparse == 0 ? &t->view.stride_batch : p->f.sparse == 1 ? &t->view.stride_head : &t->view.stride_row) = huge;
    if (p->f.sparse == 1) /* the others lie within */
        t->view.stride_batch = s.rows * s.cols;
    if (p->f.sparse == 2)
        t->view.stride_batch = s.heads * s.cols, t->view.stride_head = s.cols;
    t->mapped = (size_t)(extent * huge * size);
    t->memory = mmap(NULL, t->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (t->memory == MAP_FAILED) {
        print_message("%zu bytes of address space are not to be had\n", t->mapped);
        skip();
    }
    t->view.data = t->memory;
}

static void make_tensor(placed *p, int slot)
{
    tensor *t = &p->t[slot];
    int64_t start, elements;
    t->dtype = dtype_of(p, slot);
    if (p->f.layout == LAYOUT_SPARSE && slot != SLOT_LSE && slot != SLOT_DLSE) {
        make_sparse(p, slot);
        return;
    }
    t->view = strides_of(p, slot, &start, &elements);
    spread(t, elements, p->f.infinite && is_input(slot));
    t->view.data = t->memory + ROOM + start * (int64_t)number_size(t->dtype);
    if (slot == SLOT_BIAS || slot == SLOT_DBIAS) {
        t->view.stride_batch = p->s->bias_has[0] ? t->view.stride_batch : 0;
        t->view.stride_head = p->s->bias_has[1] ? t->view.stride_head : 0;
        t->view.stride_row = p->s->bias_has[2] ? t->view.stride_row : 0;
    }
}

/* q, k, v side by side, and dq, dk, dv: the first of three holds the memory. Needs dim = dim_v and, padded, seq_q = seq_k. */
static void make_sides(placed *p, int slot)
{
    const shape q = shape_of(p, slot), k = shape_of(p, slot + 1);
    const int64_t row = (q.heads + 2 * k.heads) * q.cols;
    tensor *t = &p->t[slot];
    const int sides[] = {slot, slot == SLOT_Q ? SLOT_K : SLOT_DK, slot == SLOT_Q ? SLOT_V : SLOT_DV};
    const int64_t first[] = {0, q.heads * q.cols, (q.heads + k.heads) * q.cols};
    t->dtype = dtype_of(p, slot);
    assert_true(q.rows == k.rows && p->desc.dim == p->desc.dim_v);
    spread(t, q.outer * q.rows * row, p->f.infinite && is_input(slot));
    for (int n = 0; n < 3; n++) {
        p->t[sides[n]].dtype = t->dtype;
        p->t[sides[n]].view =
            (fattn_view){t->memory + ROOM + first[n] * (int64_t)number_size(t->dtype), q.rows * row, q.cols, row};
    }
}

void *placed_at(const placed *p, int slot, int64_t b, int64_t h, int64_t i, int64_t *index)
{
    const tensor *t = &p->t[slot];
    const bool keys = is_keys(slot), pairs = slot == SLOT_BIAS || slot == SLOT_DBIAS;
    if (p->desc.page_size > 0 && (slot == SLOT_K || slot == SLOT_V)) {
        const int64_t columns = (p->desc.seq_k + p->desc.page_size - 1) / p->desc.page_size;
        b = p->pages[b * columns + i / p->desc.page_size];
        i %= p->desc.page_size;
    } else if (p->f.packed && !pairs) {
        i += (keys ? p->first_k : p->first_q)[b];
        b = 0;
    }
    *index = b * t->view.stride_batch + h * t->view.stride_head + i * t->view.stride_row;
    return t->view.data;
}

/* Copies numbers of the scene into a tensor, of rows that exist. */
static void copy_in(placed *p, int slot, double *from)
{
    const fattn_desc *d = &p->s->desc;
    const bool keys = is_keys(slot);
    const shape s = shape_of(p, slot);
    const int64_t heads = keys ? d->heads_kv : d->heads_q, rows = keys ? d->seq_k : d->seq_q;
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < (keys ? p->s->keys : p->s->rows)[b]; i++) {
                int64_t index;
                void *to = placed_at(p, slot, b, h, i, &index);
                const double *row = scene_row(p->s, from, heads, rows, s.cols, b, h, i);
                for (int64_t x = 0; x < s.cols; x++)
                    number_set(to, p->t[slot].dtype, index + x, row[x]);
            }
}

static void copy_bias(placed *p)
{
    const shape s = shape_of(p, SLOT_BIAS);
    const tensor *t = &p->t[SLOT_BIAS];
    for (int64_t b = 0; b < s.outer; b++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t i = 0; i < s.rows; i++)
                for (int64_t j = 0; j < s.cols; j++)
                    number_set(t->view.data, t->dtype,
                               b * t->view.stride_batch + h * t->view.stride_head + i * t->view.stride_row + j,
                               p->s->bias[scene_bias_index(p->s, b, h, i) + j]);
    p->bias = t->view;
    p->dbias = p->t[SLOT_DBIAS].view;
}

/* ---------------------------------------------------------------------------------------------------------------- lists */

static int32_t *cumulative(const int64_t *first, int64_t batch)
{
    int32_t *cu = allocate(batch + 1, sizeof *cu);
    for (int64_t b = 0; b <= batch; b++)
        cu[b] = (int32_t)first[b];
    return cu;
}

/* Where sequences start in packed tensors. */
static int64_t *firsts(const int32_t *lengths, int64_t batch, int64_t gap, int64_t most)
{
    int64_t *first = allocate(batch + 1, sizeof *first);
    for (int64_t b = 0; b < batch; b++)
        first[b + 1] = first[b] + (lengths[b] + gap < most ? lengths[b] + gap : most);
    return first;
}

/* A list with one number for each row, or key: padded as it is, or packed. */
static int32_t *list_of(const placed *p, const int32_t *from, bool keys)
{
    const int64_t batch = p->desc.batch, rows = keys ? p->desc.seq_k : p->desc.seq_q;
    const int64_t *first = keys ? p->first_k : p->first_q;
    const int32_t *lengths = keys ? p->s->keys : p->s->rows;
    if (!from)
        return NULL;
    int32_t *to = allocate(p->f.packed ? first[batch] : batch * rows, sizeof *to);
    memset(to, 0x7f, (size_t)(p->f.packed ? first[batch] : batch * rows) * sizeof *to); /* large where nothing counts */
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < lengths[b]; i++)
            to[(p->f.packed ? first[b] : b * rows) + i] = from[b * rows + i];
    return to;
}

static int32_t *copy_of(const int32_t *from, int64_t count)
{
    int32_t *to = allocate(count, sizeof *to);
    memcpy(to, from, (size_t)count * sizeof *to);
    return to;
}

static void make_lists(placed *p)
{
    const scene *s = p->s;
    const fattn_desc *d = &p->desc;
    bool shorter = false;
    p->first_q = firsts(s->rows, d->batch, p->f.gap, d->seq_q);
    p->first_k = firsts(s->keys, d->batch, p->f.gap, d->seq_k);
    for (int64_t b = 0; b < d->batch; b++)
        shorter |= s->rows[b] < d->seq_q || s->keys[b] < d->seq_k;
    if (p->f.packed) {
        p->cu_q = cumulative(p->first_q, d->batch);
        p->cu_k = p->f.page_size > 0 ? NULL : cumulative(p->first_k, d->batch);
        p->desc.total_q = p->first_q[d->batch];
        p->desc.total_k = p->f.page_size > 0 ? 0 : p->first_k[d->batch];
    }
    if (p->f.gap > 0 || (shorter && !p->f.packed) || (shorter && p->f.page_size > 0)) {
        p->used_q = copy_of(s->rows, d->batch);
        p->used_k = copy_of(s->keys, d->batch);
    }
    p->lo = list_of(p, s->lo, false);
    p->hi = list_of(p, s->hi, false);
    p->document_q = list_of(p, s->document_q, false);
    p->document_k = list_of(p, s->document_k, true);
}

/* Pages in the order of a stride that meets each; entries behind a sequence's keys are no pages. */
static void make_pages(placed *p)
{
    fattn_desc *d = &p->desc;
    const int64_t columns = (d->seq_k + p->f.page_size - 1) / p->f.page_size, count = d->batch * columns;
    d->page_size = p->f.page_size;
    d->pages = count + 2;
    p->pages = allocate(count, sizeof *p->pages);
    for (int64_t n = 0; n < count; n++)
        p->pages[n] = n % columns * d->page_size < p->s->keys[n / columns] ? (int32_t)(count + 1 - n) : -1;
}

placed placed_make(const scene *s, const truth *t, const form *f, int32_t dtype)
{
    placed p = {.s = s, .f = *f, .desc = s->desc};
    p.desc.dtype = dtype;
    if (f->wide && number_size(dtype) == 2)
        p.desc.out_dtype = p.desc.grad_dtype = FATTN_F32;
    make_lists(&p);
    if (f->page_size > 0)
        make_pages(&p);
    for (int slot = 0; slot < SLOTS; slot++) {
        const bool pairs = slot == SLOT_BIAS || slot == SLOT_DBIAS;
        if (f->layout == LAYOUT_QKV && (slot == SLOT_Q || slot == SLOT_DQ))
            make_sides(&p, slot);
        else if ((!pairs || s->bias) && !p.t[slot].view.data)
            make_tensor(&p, slot);
    }
    copy_in(&p, SLOT_Q, s->q);
    copy_in(&p, SLOT_K, s->k);
    copy_in(&p, SLOT_V, s->v);
    copy_in(&p, SLOT_DOUT, s->dout);
    copy_in(&p, SLOT_OUT, t->value[OUT]);
    copy_in(&p, SLOT_LSE, t->value[LSE]);
    if (s->dlse)
        copy_in(&p, SLOT_DLSE, s->dlse);
    if (s->bias)
        copy_bias(&p);
    p.dsinks = allocate(s->desc.heads_q, sizeof *p.dsinks);
    return p;
}

void placed_free(placed *p)
{
    void *all[] = {p->dsinks, p->first_q, p->first_k, p->cu_q,       p->cu_k,       p->used_q,
                   p->used_k, p->lo,      p->hi,      p->document_q, p->document_k, p->pages};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    for (int slot = 0; slot < SLOTS; slot++) {
        if (p->t[slot].mapped > 0)
            munmap(p->t[slot].memory, p->t[slot].mapped);
        else
            free(p->t[slot].memory);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- calls */

static void poison(placed *p, int slot)
{
    if (p->t[slot].memory && p->t[slot].mapped == 0)
        memset(p->t[slot].memory, POISON, p->t[slot].bytes);
}

fattn_forward_args placed_forward_args(placed *p)
{
    const tensor *t = p->t;
    poison(p, SLOT_OUT);
    poison(p, SLOT_LSE);
    return (fattn_forward_args){.struct_size = sizeof(fattn_forward_args),
                                .q = t[SLOT_Q].view,
                                .k = t[SLOT_K].view,
                                .v = t[SLOT_V].view,
                                .out = t[SLOT_OUT].view,
                                .lse = t[SLOT_LSE].view.data,
                                .cu_seqlens_q = p->cu_q,
                                .cu_seqlens_k = p->cu_k,
                                .used_q = p->used_q,
                                .used_k = p->used_k,
                                .mask_lo = p->lo,
                                .mask_hi = p->hi,
                                .mask_stride = p->lo && !p->cu_q ? p->desc.seq_q : 0,
                                .document_q = p->document_q,
                                .document_k = p->document_k,
                                .bias = p->s->bias ? &p->bias : NULL,
                                .slopes = p->s->slopes,
                                .sinks = p->s->sinks,
                                .page_table = p->pages};
}

fattn_backward_args placed_backward_args(placed *p)
{
    const tensor *t = p->t;
    for (int slot = SLOT_DQ; slot < SLOTS; slot++)
        poison(p, slot);
    memset(p->dsinks, POISON, (size_t)p->desc.heads_q * sizeof *p->dsinks);
    return (fattn_backward_args){.struct_size = sizeof(fattn_backward_args),
                                 .q = t[SLOT_Q].view,
                                 .k = t[SLOT_K].view,
                                 .v = t[SLOT_V].view,
                                 .out = t[SLOT_OUT].view,
                                 .dout = t[SLOT_DOUT].view,
                                 .dq = t[SLOT_DQ].view,
                                 .dk = t[SLOT_DK].view,
                                 .dv = t[SLOT_DV].view,
                                 .lse = t[SLOT_LSE].view.data,
                                 .dlse = p->s->dlse ? t[SLOT_DLSE].view.data : NULL,
                                 .cu_seqlens_q = p->cu_q,
                                 .cu_seqlens_k = p->cu_k,
                                 .used_q = p->used_q,
                                 .used_k = p->used_k,
                                 .mask_lo = p->lo,
                                 .mask_hi = p->hi,
                                 .mask_stride = p->lo && !p->cu_q ? p->desc.seq_q : 0,
                                 .document_q = p->document_q,
                                 .document_k = p->document_k,
                                 .bias = p->s->bias ? &p->bias : NULL,
                                 .slopes = p->s->slopes,
                                 .sinks = p->s->sinks,
                                 .dbias = p->desc.flags & FATTN_WITH_DBIAS ? &p->dbias : NULL,
                                 .dsinks = p->desc.flags & FATTN_WITH_DSINKS ? p->dsinks : NULL};
}

static void require_ok(fattn_status status, const placed *p)
{
    if (status != FATTN_OK)
        fail_msg("%s %s: %s: %s", p->f.what ? p->f.what : "", number_name(p->desc.dtype), fattn_status_name(status),
                 fattn_last_error());
}

void placed_forward(placed *p, const fattn_context *context)
{
    fattn_forward_args args = placed_forward_args(p);
    require_ok(fattn_workspace_size(context, &p->desc, FATTN_OP_FORWARD, &args.workspace_size), p);
    args.workspace = malloc(args.workspace_size + 1);
    memset(args.workspace, POISON, args.workspace_size + 1);
    require_ok(fattn_forward(context, &p->desc, &args), p);
    free(args.workspace);
}

void placed_backward(placed *p, const fattn_context *context)
{
    fattn_backward_args args = placed_backward_args(p);
    require_ok(fattn_workspace_size(context, &p->desc, FATTN_OP_BACKWARD, &args.workspace_size), p);
    args.workspace = malloc(args.workspace_size + 1);
    memset(args.workspace, POISON, args.workspace_size + 1);
    require_ok(fattn_backward(context, &p->desc, &args), p);
    free(args.workspace);
}
