/*
 * Products by cuBLASLt (gpu/cublas.h), with memory of their own to work in.
 */
#include "train/cuda/product.h"

#include "train/error.h"

static bool done(cublasStatus_t status)
{
    char text[200];
    return status == CUBLAS_STATUS_SUCCESS ||
           train_fail_as(TRAIN_ERROR_WORK, "cuBLAS: %s", gpu_cublas_error_text(status, text, sizeof text));
}

bool products_open(products *p, void *stream, void *workspace)
{
    const gpu_cublas_calls *blas = gpu_cublas();
    if (!blas)
        return train_fail("%s", gpu_cublas_absent());
    p->stream = stream;
    p->workspace = workspace;
    return done(blas->cublasLtCreate(&p->handle));
}

void products_close(products *p)
{
    if (p->handle)
        gpu_cublas()->cublasLtDestroy(p->handle);
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

bool products_run(products *p, const product_call *c)
{
    const gpu_product product = {.type = type_of(c->type),
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
    const gpu_product_at at = {.by = 1,
                               .beta = c->beta,
                               .a = c->a,
                               .b = c->b,
                               .d = c->from ? c->from : c->c,
                               .c = c->c,
                               .workspace = p->workspace,
                               .workspace_size = PRODUCT_WORKSPACE,
                               .stream = p->stream};
    gpu_product_plan plan;
    return c->m == 0 || c->n == 0 ||
           (done(gpu_product_choose(p->handle, &product, &plan)) && done(gpu_product_run(p->handle, &plan, 1, &at)));
}
