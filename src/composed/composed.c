/*
 * The composed path: attention as a framework computes it from a matrix product, a softmax and another matrix product. It is
 * here to be compared with, and runs only if forced.
 *
 *     forward     S = score(scale Q K^T)         P = m softmax(S), in place          out = P V
 *     backward    P = exp(score(scale Q K^T) - lse)        dS = P (m dout V^T - D)   dX = dS scale dscore
 *                 dQ = dX K          dK = dX^T Q           dV = (m P)^T dout         dbias = dS
 *
 * score() being softcap, bias and ALiBi, dscore the derivative of the softcap, m dropout's factors, each where asked for. P,
 * in backward dS, and with a softcap dX, are [batch, heads_q, seq_q, seq_k] in the workspace: all of them are written to memory
 * and read again, that is the point. A row without keys is known by its lse, so forward has room for one behind P; with sinks,
 * which hide it, backward too, and for D. The products are oneDNN's sgemm over all keys of a sequence; what lies between them
 * looks only at kept keys. A unit is a block of rows of one head, with sgemm on one thread: the threads of the context take
 * units, which is better than sgemm's own threads, as nothing waits between product and softmax. sgemm adds in another order
 * when its matrix has more rows, so blocks depend on the heads and on their own sequence's length alone, and so do results.
 * oneDNN allocates its packing buffers itself, so this kernel, unlike others, takes memory during a call.
 *
 * Files: products.c (sgemm, and what happens with odd strides and NaN), softmax.h and its three instruction sets, scores.c
 * (what lies between the products), forward.c, backward.c, sums.c (dbias and dsinks), and here the sizes and the table.
 */
#include "composed/composed.h"

/* Enough units for many threads, in blocks large enough for sgemm to run at its speed: 256 rows are within 3% of 4096 (AVX-512,
 * 8 heads of 2048 and 2 of 4096). */
enum { UNITS = 64, LEAST_BLOCK = 256 };

static int64_t blocks_for(int64_t heads, int64_t rows)
{
    const int64_t most = (rows + LEAST_BLOCK - 1) / LEAST_BLOCK;
    const int64_t wanted = (UNITS + heads - 1) / heads;
    return wanted < most ? wanted : most;
}

/* Query rows of all heads. */
static int64_t rows_of(const fattn_desc *d)
{
    return fattn_rows_q(d) * d->heads_q;
}

/* Bytes of one [batch, heads_q, seq_q, seq_k] matrix, or 0 if `count` of them would not fit in 2^62 bytes. */
static uint64_t matrix_bytes(const fattn_desc *d, int64_t count)
{
    int64_t bytes;
    if (__builtin_mul_overflow(rows_of(d), d->seq_k, &bytes) ||
        __builtin_mul_overflow(bytes, (int64_t)sizeof(float) * count, &bytes) || bytes > (int64_t)1 << 62)
        return 0;
    return (uint64_t)(bytes / count);
}

static int64_t matrices(const fattn_desc *d, fattn_op op)
{
    return op == FATTN_OP_FORWARD ? 1 : d->softcap != 0 ? 3 : 2;
}

static const char *refuse(const fattn_problem *p)
{
    const fattn_desc *d = &p->desc;
    if (d->dtype != FATTN_F32 || d->out_dtype != FATTN_F32 || d->grad_dtype != FATTN_F32)
        return "takes f32 only";
    if (d->kv_dtype != FATTN_F32)
        return "reads no keys of 8 bits";
    if (d->page_size > 0)
        return "reads no paged keys";
    if (rows_of(d) > 0 && d->seq_k > 0 && matrix_bytes(d, matrices(d, FATTN_OP_BACKWARD)) == 0)
        return "its seq_q x seq_k matrices exceed the address space";
    return NULL;
}

static const char *unworthy(const fattn_problem *p)
{
    (void)p;
    return "the baseline, which writes the whole seq_q x seq_k matrix";
}

static size_t forward_workspace(const fattn_problem *p)
{
    return (size_t)matrix_bytes(&p->desc, 1) + (size_t)rows_of(&p->desc) * sizeof(float);
}

static size_t backward_workspace(const fattn_problem *p)
{
    const int64_t count = matrices(&p->desc, FATTN_OP_BACKWARD), lists = p->desc.flags & FATTN_WITH_SINKS ? 2 : 0;
    return (size_t)matrix_bytes(&p->desc, count) * (size_t)count + (size_t)(rows_of(&p->desc) * lists) * sizeof(float);
}

static const softmax_words *choose_words(const fattn_context *context)
{
#ifdef FATTN_HAVE_X86
    if (context->features & FATTN_CPU_AVX512)
        return &composed_softmax_avx512;
    if (context->features & FATTN_CPU_AVX2)
        return &composed_softmax_avx2;
#else
    (void)context;
#endif
    return &composed_softmax_generic;
}

/* ---------------------------------------------------------------------------------------------------------------- units */

/* Unit `number` of a pass over `heads` heads of every sequence, of which the longest has `blocks` blocks. */
static bool find_part(const work *w, int64_t heads, int64_t blocks, bool keys, int64_t number, part *own)
{
    const int64_t place = number % blocks, list = number / blocks;
    own->s = fattn_sequence_of(w->problem, w->launch, list / heads);
    own->h = list % heads;
    const int64_t all = keys ? own->s.seq_k : own->s.seq_q, parts = blocks_for(heads, all);
    if (parts == 0)
        return false;
    const int64_t size = (all + parts - 1) / parts;
    own->first = place * size;
    own->count = all - own->first < size ? all - own->first : size;
    return own->count > 0;
}

bool composed_part_rows(const work *w, int64_t number, part *own)
{
    return find_part(w, w->problem->desc.heads_q, w->blocks, false, number, own);
}

bool composed_part_keys(const work *w, int64_t number, part *own)
{
    return find_part(w, w->problem->desc.heads_kv, w->key_blocks, true, number, own);
}

matrix composed_part_of(const work *w, int which, const fattn_sequence *s, int64_t h, int64_t row, int64_t rows, int64_t key,
                        int64_t keys)
{
    float *head = w->matrix[which] + composed_row_index(s, h, 0) * w->problem->desc.seq_k;
    return (matrix){head + row * s->seq_k + key, rows, keys, s->seq_k};
}

static work plan(const fattn_problem *p, const fattn_launch *launch, fattn_op op)
{
    const fattn_desc *d = &p->desc;
    const int64_t rows = rows_of(d);
    float *room = (float *)(void *)launch->workspace;
    work w = {.problem = p, .launch = launch, .words = choose_words(launch->context), .dropout = fattn_dropout_of(d)};
    for (int64_t i = 0; i < matrices(d, op); i++, room += rows * d->seq_k)
        w.matrix[i] = room;
    w.row_lse = room;
    w.delta = room + rows;
    w.blocks = blocks_for(d->heads_q, d->seq_q);
    w.key_blocks = blocks_for(d->heads_kv, d->seq_k);
    return w;
}

static fattn_status forward(const fattn_problem *problem, const fattn_launch *launch)
{
    const work w = plan(problem, launch, FATTN_OP_FORWARD);
    composed_forward(&w);
    return FATTN_OK;
}

static fattn_status backward(const fattn_problem *problem, const fattn_launch *launch)
{
    const work w = plan(problem, launch, FATTN_OP_BACKWARD);
    composed_backward(&w);
    return FATTN_OK;
}

extern const fattn_kernel_table fattn_composed;
FATTN_KERNEL_TABLE(fattn_composed,
                   {.name = "composed_forward_f32",
                    .op = FATTN_OP_FORWARD,
                    .refuse = refuse,
                    .unworthy = unworthy,
                    .workspace = forward_workspace,
                    .run = forward},
                   {.name = "composed_backward_f32",
                    .op = FATTN_OP_BACKWARD,
                    .refuse = refuse,
                    .unworthy = unworthy,
                    .workspace = backward_workspace,
                    .run = backward});
