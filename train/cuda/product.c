/*
 * Products by cuBLAS, which counts by columns: what is row-major here it sees transposed, so C^T = op(B)^T op(A)^T. Sums are
 * float also where cuBLAS cuts a product along k.
 *
 * cublasGemmEx adds to what is in C. Where the sum goes elsewhere (a residual), cuBLASLt reads the one and writes the other.
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
    return done(blas->cublasCreate(&p->plain)) && done(blas->cublasLtCreate(&p->beside)) &&
           done(blas->cublasSetStream(p->plain, stream)) &&
           done(blas->cublasSetWorkspace(p->plain, workspace, PRODUCT_WORKSPACE)) &&
           done(blas->cublasSetMathMode(p->plain, CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
}

void products_close(products *p)
{
    if (p->plain)
        gpu_cublas()->cublasDestroy(p->plain);
    if (p->beside)
        gpu_cublas()->cublasLtDestroy(p->beside);
}

static cudaDataType type_of(number_type type)
{
    return type == NUMBER_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static cublasOperation_t operation(bool transpose)
{
    return transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
}

static bool in_place(products *p, const product_call *c)
{
    const float one = 1;
    return done(gpu_cublas()->cublasGemmEx_64(p->plain, operation(c->transpose_b), operation(c->transpose_a), c->n, c->m, c->k,
                                              &one, c->b, type_of(c->type), c->ldb, c->a, type_of(c->type), c->lda, &c->beta,
                                              c->c, type_of(c->c_type), c->ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

/* ---------------------------------------------------------------------------------------------------- not in its place */

/* Room for what cuBLASLt makes, which may be newer than the header that this was compiled with, and have more to say. */
typedef union room {
    cublasLtMatmulDescOpaque_t how;
    cublasLtMatrixLayoutOpaque_t layout;
    cublasLtMatmulPreferenceOpaque_t preference;
    uint64_t bytes[128];
} room;

/* A product as cuBLASLt takes it: of its operands a is the call's B and b its A. */
typedef struct description {
    room how, a, b, c;
} description;

static bool describe_matrix(room *r, number_type type, bool transpose, int64_t rows, int64_t cols, int64_t ld)
{
    return done(gpu_cublas()->cublasLtMatrixLayoutInit_internal(
        &r->layout, sizeof *r, type_of(type), (uint64_t)(transpose ? rows : cols), (uint64_t)(transpose ? cols : rows), ld));
}

static bool describe(const product_call *c, description *d)
{
    const gpu_cublas_calls *blas = gpu_cublas();
    const cublasOperation_t a = operation(c->transpose_b), b = operation(c->transpose_a);
    return done(blas->cublasLtMatmulDescInit_internal(&d->how.how, sizeof d->how, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
           done(blas->cublasLtMatmulDescSetAttribute(&d->how.how, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a)) &&
           done(blas->cublasLtMatmulDescSetAttribute(&d->how.how, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b)) &&
           describe_matrix(&d->a, c->type, c->transpose_b, c->k, c->n, c->ldb) &&
           describe_matrix(&d->b, c->type, c->transpose_a, c->m, c->k, c->lda) &&
           describe_matrix(&d->c, c->c_type, false, c->m, c->n, c->ldc);
}

/* cuBLASLt remembers its answers. */
static bool choose(products *p, description *d, cublasLtMatmulAlgo_t *algorithm)
{
    const gpu_cublas_calls *blas = gpu_cublas();
    const uint64_t most = PRODUCT_WORKSPACE;
    room wanted;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    if (!done(blas->cublasLtMatmulPreferenceInit_internal(&wanted.preference, sizeof wanted)) ||
        !done(blas->cublasLtMatmulPreferenceSetAttribute(&wanted.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                                                         sizeof most)) ||
        !done(blas->cublasLtMatmulAlgoGetHeuristic(p->beside, &d->how.how, &d->a.layout, &d->b.layout, &d->c.layout,
                                                   &d->c.layout, &wanted.preference, 1, &found, &count)))
        return false;
    if (count == 0)
        return done(CUBLAS_STATUS_NOT_SUPPORTED);
    *algorithm = found.algo;
    return true;
}

static bool beside(products *p, const product_call *c)
{
    const float one = 1;
    description d;
    cublasLtMatmulAlgo_t algorithm;
    return describe(c, &d) && choose(p, &d, &algorithm) &&
           done(gpu_cublas()->cublasLtMatmul(p->beside, &d.how.how, &one, c->b, &d.a.layout, c->a, &d.b.layout, &c->beta,
                                             c->from, &d.c.layout, c->c, &d.c.layout, &algorithm, p->workspace,
                                             PRODUCT_WORKSPACE, p->stream));
}

bool products_run(products *p, const product_call *c)
{
    return c->m == 0 || c->n == 0 || (c->from && c->from != c->c ? beside : in_place)(p, c);
}
