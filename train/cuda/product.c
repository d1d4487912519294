/*
 * Products by cuBLASLt (gpu/cublas.h), with memory of their own to work in.
 *
 * What cuBLASLt thinks the fastest algorithm, the first, takes up to 1.8 times as long as the best that it names. So the first
 * call of a large product tries these. Results always have the bits of the first: another is taken only if it gives
 * these bits for the whole of a product of random numbers, the same in every process, where each other order of additions
 * shows. Which those are depends on cuBLASLt, the GPU and the product's shape; what was measured decides only between them.
 */
#include "train/cuda/product.h"

#include <math.h>
#include <stdlib.h>

#include "train/cuda/kernels.h"
#include "train/error.h"

static bool done(cublasStatus_t status)
{
    char text[200];
    return status == CUBLAS_STATUS_SUCCESS ||
           train_fail_as(TRAIN_ERROR_WORK, "cuBLAS: %s", gpu_cublas_error_text(status, text, sizeof text));
}

bool products_open(products *p, gpu_device *gpu, void *workspace)
{
    const gpu_cublas_calls *blas = gpu_cublas();
    if (!blas)
        return train_fail("%s", gpu_cublas_absent());
    p->gpu = gpu;
    p->workspace = workspace;
    p->from = TUNED_FROM;
    p->tuned = train_calloc(TUNED_MOST, sizeof *p->tuned);
    return p->tuned && done(blas->cublasLtCreate(&p->handle));
}

void products_close(products *p)
{
    if (p->handle)
        gpu_cublas()->cublasLtDestroy(p->handle);
    free(p->tuned);
}

static cudaDataType type_of(number_type type)
{
    return type == NUMBER_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* What the address is a multiple of, as far as cuBLASLt's answers differ: where a memory plan puts a matrix then does not
 * decide about bits. */
static uint32_t alignment_of(const void *address)
{
    enum { MOST = 16 };
    const uintptr_t lowest = (uintptr_t)address & -(uintptr_t)address;
    return lowest && lowest < MOST ? (uint32_t)lowest : MOST;
}

static uint32_t alignment(const product_call *c)
{
    const uint32_t each[] = {alignment_of(c->a), alignment_of(c->b), alignment_of(c->c), alignment_of(c->from)};
    uint32_t least = each[0];
    for (int i = 1; i < 4; i++)
        least = each[i] < least ? each[i] : least;
    return least;
}

static gpu_product describe(const product_call *c)
{
    return (gpu_product){.type = type_of(c->type),
                         .c_type = type_of(c->c_type),
                         .transpose_a = c->transpose_a,
                         .transpose_b = c->transpose_b,
                         .m = c->m,
                         .n = c->n,
                         .k = c->k,
                         .lda = c->lda,
                         .ldb = c->ldb,
                         .ldc = c->ldc,
                         .usual = 1,
                         .alignment = alignment(c),
                         .workspace = PRODUCT_WORKSPACE};
}

static gpu_product_at place(const products *p, const product_call *c)
{
    return (gpu_product_at){.by = 1,
                            .beta = c->beta,
                            .a = c->a,
                            .b = c->b,
                            .d = c->from ? c->from : c->c,
                            .c = c->c,
                            .workspace = p->workspace,
                            .workspace_size = PRODUCT_WORKSPACE,
                            .stream = gpu_stream(p->gpu)};
}

/* ------------------------------------------------------------------------------------------------------------- trying out */

enum { TRIES = 3, MARK_BEGIN = GPU_MARKS - 2, MARK_END };

/* What algorithms are tried with. */
typedef struct trial {
    gpu_product_plan *plan;
    gpu_product_at call, random; /* the call's numbers, for the time; random ones, for the bits */
    size_t size;                 /* bytes of the result */
} trial;

static bool launch(products *p, CUfunction function, void **arguments)
{
    const CUlaunchConfig config = {.gridDimX = CUDA_CHUNKS,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = CUDA_THREADS,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .hStream = gpu_stream(p->gpu)};
    const CUresult result = gpu_driver()->cuLaunchKernelEx(&config, function, arguments, NULL);
    char text[200];
    return result == CUDA_SUCCESS ||
           train_fail_as(TRAIN_ERROR_WORK, "GPU: trying products: %s", gpu_error_text(result, text, sizeof text));
}

/* False, with train_error() set, once the GPU has failed. */
static bool works(products *p, bool good)
{
    if (good)
        return true;
    train_fail_as(TRAIN_ERROR_WORK, "GPU: %s", gpu_error(p->gpu));
    gpu_forget_error(p->gpu);
    return false;
}

static bool runs(products *p, const trial *t, const gpu_product_at *at)
{
    return gpu_product_run(p->handle, t->plan, 1, at) == CUBLAS_STATUS_SUCCESS;
}

/* Sets *digest to a number that stands for all bits of the result of random numbers, or *ran to false where the algorithm does
 * not run. */
static bool digest_of(products *p, const trial *t, bool *ran, uint64_t *digest)
{
    uint64_t parts[CUDA_CHUNKS];
    void *result = t->random.c, *at = p->workspace; /* which the product no longer needs */
    int64_t halves = (int64_t)(t->size / 2);
    void *arguments[] = {&result, &halves, &at};
    *ran = runs(p, t, &t->random);
    if (!*ran)
        return true;
    if (!launch(p, p->digest, arguments) || !works(p, gpu_get(p->gpu, parts, at, sizeof parts)))
        return false;
    *digest = 0;
    for (int i = 0; i < CUDA_CHUNKS; i++)
        *digest += parts[i];
    return true;
}

/* Seconds of the fastest of a few runs. */
static bool time_of(products *p, const trial *t, double *least)
{
    *least = (double)INFINITY;
    for (int i = 0; i < TRIES; i++) {
        if (!works(p, gpu_mark(p->gpu, MARK_BEGIN)))
            return false;
        const bool ran = runs(p, t, &t->call);
        if (!works(p, gpu_mark(p->gpu, MARK_END) && gpu_wait(p->gpu)))
            return false;
        if (ran)
            *least = fmin(*least, gpu_seconds(p->gpu, MARK_BEGIN, MARK_END));
    }
    return true;
}

/* Sets plan->algorithm, which is the first, to the one to be taken of those that give its bits. */
static bool try_out(products *p, const trial *t, const gpu_product_choices *choices)
{
    const cublasLtMatmulAlgo_t first = t->plan->algorithm;
    cublasLtMatmulAlgo_t best = first;
    uint64_t wanted = 0, digest;
    double taken, seconds;
    bool ran, good = digest_of(p, t, &ran, &wanted) && time_of(p, t, &taken);
    for (int i = 0; i < choices->count && good && ran; i++) {
        bool runs_too;
        t->plan->algorithm = choices->algorithm[i];
        good = digest_of(p, t, &runs_too, &digest);
        if (!good || !runs_too || digest != wanted)
            continue;
        good = time_of(p, t, &seconds);
        if (good && (p->slowest ? seconds > taken : seconds < taken)) {
            taken = seconds;
            best = choices->algorithm[i];
        }
    }
    t->plan->algorithm = best;
    return good;
}

static size_t larger(size_t x, size_t y)
{
    return x > y ? x : y;
}

/* The first stays where there is nothing to choose from, or no memory for random numbers: as many as the largest matrix that is
 * read has, which all of them share. Every try writes where the result will be, or where that is to be added to, to memory of
 * its own. */
static bool tune(products *p, const gpu_product *product, const product_call *c, gpu_product_plan *plan)
{
    const size_t size = (size_t)(c->m * c->ldc) * number_bytes(c->c_type), each = number_bytes(c->type);
    const size_t a = (size_t)((c->transpose_a ? c->k : c->m) * c->lda) * each;
    const size_t b = (size_t)((c->transpose_b ? c->n : c->k) * c->ldb) * each, added = c->beta != 0 ? size : 0;
    const bool apart = c->beta != 0 && (!c->from || c->from == c->c);
    gpu_product_choices choices;
    gpu_product_plan other;
    if (!done(gpu_product_choose(p->handle, product, plan)) || !done(gpu_product_list(p->handle, product, &other, &choices)))
        return false;
    int64_t halves = (int64_t)(larger(added, larger(a, b)) / 2);
    void *numbers = gpu_allocate(p->gpu, (size_t)halves * 2), *own = apart ? gpu_allocate(p->gpu, size) : NULL;
    void *arguments[] = {&numbers, &halves};
    trial t = {.plan = plan, .call = place(p, c), .size = size};
    t.call.c = apart ? own : c->c;
    t.random = t.call;
    t.random.a = t.random.b = t.random.d = numbers;
    bool good = true;
    if (numbers && t.call.c)
        good = launch(p, p->random, arguments) && try_out(p, &t, &choices);
    else
        gpu_forget_error(p->gpu);
    gpu_release(p->gpu, numbers);
    gpu_release(p->gpu, own);
    return good;
}

/* ---------------------------------------------------------------------------------------------------------------- running */

/* Smaller ones take less time than a choice could save in a run. Between the rows of a result nothing may lie that must stay.
 */
static bool is_large(const products *p, const product_call *c)
{
    return 2e-9 * (double)c->m * (double)c->n * (double)c->k > p->from && c->ldc == c->n;
}

static bool same(const gpu_product *x, const gpu_product *y)
{
    return x->type == y->type && x->c_type == y->c_type && x->transpose_a == y->transpose_a &&
           x->transpose_b == y->transpose_b && x->m == y->m && x->n == y->n && x->k == y->k && x->lda == y->lda &&
           x->ldb == y->ldb && x->ldc == y->ldc && x->alignment == y->alignment;
}

static gpu_product_plan *find(products *p, const gpu_product *product, bool adds, bool elsewhere)
{
    for (int i = 0; i < p->tuned_count; i++) {
        tuned_product *t = &p->tuned[i];
        if (t->adds == adds && t->elsewhere == elsewhere && same(&t->product, product))
            return &t->plan;
    }
    return NULL;
}

/* NULL with train_error() set. own: room for one that is not kept. */
static gpu_product_plan *plan_of(products *p, const product_call *c, gpu_product_plan *own)
{
    const gpu_product product = describe(c);
    const bool adds = c->beta != 0, elsewhere = adds && c->from && c->from != c->c, large = is_large(p, c);
    gpu_product_plan *plan = large ? find(p, &product, adds, elsewhere) : NULL;
    if (plan)
        return plan;
    if (!large || p->noting || p->tuned_count == TUNED_MOST)
        return done(gpu_product_choose(p->handle, &product, own)) ? own : NULL;
    tuned_product *t = &p->tuned[p->tuned_count];
    *t = (tuned_product){.product = product, .adds = adds, .elsewhere = elsewhere};
    if (!tune(p, &product, c, &t->plan))
        return NULL;
    p->tuned_count++;
    return &t->plan;
}

void products_forget(products *p)
{
    p->tuned_count = 0;
}

bool products_run(products *p, const product_call *c)
{
    gpu_product_plan own;
    if (c->m == 0 || c->n == 0)
        return true;
    gpu_product_plan *plan = plan_of(p, c, &own);
    const gpu_product_at at = place(p, c);
    return plan && done(gpu_product_run(p->handle, plan, 1, &at));
}
