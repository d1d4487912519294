/*
 * Products by cuBLASLt (gpu/cublas.h), with memory of their own to work in.
 *
 * What cuBLASLt thinks the fastest algorithm takes up to twice the time of the best that it knows. So the first call of a large
 * product tries those it names, with the numbers at hand. A faster one is taken only if its results have the bits of the
 * first's, as those do that add in the same order: then what was measured, which differs from run to run, decides about time
 * alone.
 */
#include "train/cuda/product.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* What the address is a multiple of, as far as algorithms ask. */
static uint32_t alignment_of(const void *address)
{
    enum { MOST = 256 };
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

enum { SLICES = 16, SLICE = 1 << 14, TRIES = 3, MARK_BEGIN = GPU_MARKS - 2, MARK_END };

/* Bytes from all over a result, to be compared with others; some rows of another order of additions are sure to differ. */
typedef struct sample {
    unsigned char bytes[SLICES][SLICE];
} sample;

static bool take_sample(products *p, const void *result, size_t size, sample *s)
{
    const size_t slice = size < SLICE ? size : SLICE;
    memset(s, 0, sizeof *s);
    for (int i = 0; i < SLICES; i++)
        if (!gpu_get(p->gpu, s->bytes[i], (const char *)result + (size - slice) / (SLICES - 1) * (size_t)i, slice))
            return false;
    return true;
}

/* Seconds of the fastest of a few runs; infinity where it cannot run. */
static double time_of(products *p, gpu_product_plan *plan, const gpu_product_at *at)
{
    double least = (double)INFINITY;
    for (int i = 0; i < TRIES; i++) {
        const bool ran = gpu_mark(p->gpu, MARK_BEGIN) && gpu_product_run(p->handle, plan, 1, at) == CUBLAS_STATUS_SUCCESS &&
                         gpu_mark(p->gpu, MARK_END) && gpu_wait(p->gpu);
        if (!ran)
            return (double)INFINITY;
        least = fmin(least, gpu_seconds(p->gpu, MARK_BEGIN, MARK_END));
    }
    return least;
}

/* Sets plan->algorithm to the fastest of those whose results have the first's bits. */
static bool try_out(products *p, gpu_product_plan *plan, const gpu_product_choices *choices, const gpu_product_at *at,
                    size_t size)
{
    sample *first = malloc(2 * sizeof *first), *other = first + 1;
    double least = (double)INFINITY;
    int best = 0;
    if (!first)
        return train_fail_as(TRAIN_ERROR_WORK, "no memory: %zu bytes are needed", 2 * sizeof *first);
    for (int i = 0; i < choices->count; i++) {
        plan->algorithm = choices->algorithm[i];
        const double seconds = time_of(p, plan, at);
        if (seconds >= least)
            continue;
        if (!take_sample(p, at->c, size, i == 0 ? first : other))
            break;
        if (i > 0 && memcmp(first, other, sizeof *first) != 0)
            continue;
        least = seconds;
        best = i;
    }
    free(first);
    plan->algorithm = choices->algorithm[best];
    if (!gpu_error(p->gpu)[0])
        return true;
    train_fail_as(TRAIN_ERROR_WORK, "GPU: %s", gpu_error(p->gpu));
    gpu_forget_error(p->gpu);
    return false;
}

/* What is added to must not be added to by every try: they write to memory of their own. Without any, or with nothing to choose
 * from, the first algorithm stays. */
static bool tune(products *p, const gpu_product *product, const product_call *c, gpu_product_plan *plan)
{
    const size_t size = (size_t)(c->m * c->ldc) * number_bytes(c->c_type);
    const bool apart = c->beta != 0 && (!c->from || c->from == c->c);
    gpu_product_choices choices;
    gpu_product_at at = place(p, c);
    if (!done(gpu_product_list(p->handle, product, plan, &choices)))
        return false;
    if (choices.count == 1)
        return true;
    if (apart && !(at.c = gpu_allocate(p->gpu, size))) {
        gpu_forget_error(p->gpu);
        return true;
    }
    const bool good = try_out(p, plan, &choices, &at, size);
    if (apart)
        gpu_release(p->gpu, at.c);
    return good;
}

/* ---------------------------------------------------------------------------------------------------------------- running */

/* Smaller ones take less time than a choice could save in a run. */
static bool is_large(const product_call *c)
{
    return 2e-9 * (double)c->m * (double)c->n * (double)c->k > 4 && c->ldc == c->n;
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
    const bool adds = c->beta != 0, elsewhere = adds && c->from && c->from != c->c, large = is_large(c);
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

bool products_run(products *p, const product_call *c)
{
    gpu_product_plan own;
    if (c->m == 0 || c->n == 0)
        return true;
    gpu_product_plan *plan = plan_of(p, c, &own);
    const gpu_product_at at = place(p, c);
    return plan && done(gpu_product_run(p->handle, plan, 1, &at));
}
