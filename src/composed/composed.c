/*
 * The composed path: attention as a framework computes it from a matrix product, a softmax and another matrix product. It is
 * here to be compared with, and runs only if forced.
 *
 *     forward     S = scale Q K^T             P = softmax(S), in place          out = P V
 *     backward    P = exp(scale Q K^T - lse)  dS = P (dout V^T - D) scale       dQ = dS K   dK = dS^T Q   dV = P^T dout
 *
 * P, and in backward dS, are [batch, heads_q, seq_q, seq_k] in the workspace: all of them are written to memory and read
 * again, that is the point. A row without keys is known by its lse, so forward has room for one behind P. The products are
 * oneDNN's sgemm over all keys; the softmax looks only at kept keys. A unit is a block of rows of one head, with sgemm on one
 * thread: the threads of the context take units, which is better than sgemm's own threads, as nothing waits between product and
 * softmax. Blocks depend on the problem's shape alone, and so do results. oneDNN allocates its packing buffers itself, so this
 * kernel, unlike others, takes memory during a call.
 *
 * Files: products.c (sgemm, and what happens with odd strides and NaN), softmax.h and its three instruction sets, forward.c,
 * backward.c, and here the sizes and the table.
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
    return d->batch * d->heads_q * d->seq_q;
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

static const char *refuse(const fattn_problem *p)
{
    if (p->desc.dtype != FATTN_F32)
        return "takes f32 only";
    const bool empty = p->desc.batch == 0 || p->desc.seq_q == 0 || p->desc.seq_k == 0;
    if (!empty && matrix_bytes(&p->desc, 2) == 0)
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
    return (size_t)matrix_bytes(&p->desc, 2) * 2;
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

static work plan(const fattn_problem *p, const fattn_launch *launch)
{
    const fattn_desc *d = &p->desc;
    work w = {.problem = p, .launch = launch, .words = choose_words(launch->context)};
    const int64_t blocks = blocks_for(d->batch * d->heads_q, d->seq_q);
    const int64_t key_blocks = blocks_for(d->batch * d->heads_kv, d->seq_k);
    w.rows = (d->seq_q + blocks - 1) / blocks;
    w.blocks = (d->seq_q + w.rows - 1) / w.rows;
    w.keys = (d->seq_k + key_blocks - 1) / key_blocks;
    w.key_blocks = (d->seq_k + w.keys - 1) / w.keys;
    return w;
}

static void forward(const fattn_problem *problem, const fattn_launch *launch)
{
    work w = plan(problem, launch);
    w.own_lse = (float *)(void *)launch->workspace + rows_of(&problem->desc) * problem->desc.seq_k;
    composed_forward(&w);
}

static void backward(const fattn_problem *problem, const fattn_launch *launch)
{
    const work w = plan(problem, launch);
    composed_backward(&w);
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
