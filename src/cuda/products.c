/*
 * Products by cuBLASLt, which keeps nothing of a call in its handle: any number of threads and streams use one.
 *
 * cuBLAS would choose an algorithm by the size of the batch too, and a sequence's results would then depend on how many others
 * there are. So algorithms are asked for as if the batch were always of the usual size, and none that splits the depth is
 * taken; cuBLASLt remembers its answers. Column-major as it is, it sees each matrix transposed and computes C^T = B^T A^T.
 */
#include "cuda/products.h"

#include "gpu/cublas.h"

/* Of the entries of a batch, at a time: what the third dimension of a grid has. */
enum { ENTRIES_MOST = 65535 };

static fattn_status fail(cublasStatus_t status, const char *what)
{
    char text[200];
    return fattn_fail(FATTN_ERROR_SYSTEM, "%s: %s", what, gpu_cublas_error_text(status, text, sizeof text));
}

const char *cuda_products_absent(void)
{
    return gpu_cublas() ? NULL : "needs cuBLAS, libcublas.so.13 or .12, which is not here or too old";
}

fattn_status cuda_products_open(cuda_gpu *gpu)
{
    const gpu_cublas_calls *blas = gpu_cublas();
    gpu->products = NULL;
    if (!blas)
        return FATTN_OK;
    cublasLtHandle_t handle;
    const cublasStatus_t status = blas->cublasLtCreate(&handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        return fail(status, "opening cuBLAS");
    gpu->products = handle;
    return FATTN_OK;
}

void cuda_products_close(cuda_gpu *gpu)
{
    if (gpu->products)
        gpu_cublas()->cublasLtDestroy(gpu->products);
}

/* ----------------------------------------------------------------------------------------------------------- describing */

/* Room for what cuBLASLt makes, which may be newer than the header that this was compiled with, and have more to say. */
typedef union room {
    cublasLtMatmulDescOpaque_t how;
    cublasLtMatrixLayoutOpaque_t layout;
    cublasLtMatmulPreferenceOpaque_t preference;
    uint64_t bytes[128];
} room;

/* What cuBLASLt takes a product as. */
typedef struct description {
    room how, a, b, c; /* of its own operands: a is the product's B, b its A */
} description;

static cudaDataType type_of(int32_t dtype)
{
    return dtype == FATTN_F32 ? CUDA_R_32F : dtype == FATTN_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

static cublasStatus_t describe_matrix(const gpu_cublas_calls *blas, room *r, const cuda_matrix *m)
{
    const int64_t stride = m->rows * m->pitch;
    cublasStatus_t status = blas->cublasLtMatrixLayoutInit_internal(&r->layout, sizeof *r, type_of(m->dtype),
                                                                    (uint64_t)m->columns, (uint64_t)m->rows, m->pitch);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = blas->cublasLtMatrixLayoutSetAttribute(&r->layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                        sizeof stride);
    return status;
}

static cublasStatus_t describe(const gpu_cublas_calls *blas, const cuda_product *p, description *d)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasStatus_t status = blas->cublasLtMatmulDescInit_internal(&d->how.how, sizeof d->how, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS && p->transposed != CUDA_AS_THEY_ARE)
        status = blas->cublasLtMatmulDescSetAttribute(
            &d->how.how, p->transposed == CUDA_B_TRANSPOSED ? CUBLASLT_MATMUL_DESC_TRANSA : CUBLASLT_MATMUL_DESC_TRANSB,
            &transposed, sizeof transposed);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_matrix(blas, &d->a, &p->b);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_matrix(blas, &d->b, &p->a);
    return status != CUBLAS_STATUS_SUCCESS ? status : describe_matrix(blas, &d->c, &p->c);
}

static cublasStatus_t set_batch(const gpu_cublas_calls *blas, description *d, int64_t entries)
{
    const int32_t count = (int32_t)entries;
    cublasLtMatrixLayout_t layouts[] = {&d->a.layout, &d->b.layout, &d->c.layout};
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < 3 && status == CUBLAS_STATUS_SUCCESS; i++)
        status = blas->cublasLtMatrixLayoutSetAttribute(layouts[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------- choosing */

static cublasStatus_t prefer(const gpu_cublas_calls *blas, room *r)
{
    const uint32_t alignment = CUDA_PRODUCT_ALIGNMENT, whole = CUBLASLT_REDUCTION_SCHEME_NONE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        uint32_t value;
    } wanted[] = {{CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, whole},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment}};
    cublasStatus_t status = blas->cublasLtMatmulPreferenceInit_internal(&r->preference, sizeof *r);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && status == CUBLAS_STATUS_SUCCESS; i++)
        status = blas->cublasLtMatmulPreferenceSetAttribute(&r->preference, wanted[i].attribute, &wanted[i].value,
                                                            sizeof wanted[i].value);
    return status;
}

/* An algorithm that needs no workspace. */
static cublasStatus_t choose(const gpu_cublas_calls *blas, cublasLtHandle_t handle, const cuda_product *p, description *d,
                             cublasLtMatmulAlgo_t *algorithm)
{
    room preference;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    cublasStatus_t status = prefer(blas, &preference);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_batch(blas, d, p->usual < ENTRIES_MOST ? p->usual : ENTRIES_MOST);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = blas->cublasLtMatmulAlgoGetHeuristic(handle, &d->how.how, &d->a.layout, &d->b.layout, &d->c.layout,
                                                      &d->c.layout, &preference.preference, 1, &found, &count);
    if (status == CUBLAS_STATUS_SUCCESS && count == 0)
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (status == CUBLAS_STATUS_SUCCESS)
        *algorithm = found.algo;
    return status;
}

/* -------------------------------------------------------------------------------------------------------------- running */

/* Where entry number `first` of the batch begins. */
static void *entry_of(const cuda_matrix *m, int64_t first)
{
    return (char *)m->data + first * m->rows * m->pitch * (int64_t)fattn_dtype_size(m->dtype);
}

static cublasStatus_t run(const gpu_cublas_calls *blas, const fattn_launch *at, const cuda_product *p)
{
    const cublasLtHandle_t handle = ((const cuda_gpu *)at->context->gpu)->products;
    const float none = 0;
    description d;
    cublasLtMatmulAlgo_t algorithm;
    cublasStatus_t status = describe(blas, p, &d);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = choose(blas, handle, p, &d, &algorithm);
    for (int64_t first = 0; first < p->batch && status == CUBLAS_STATUS_SUCCESS; first += ENTRIES_MOST) {
        void *c = entry_of(&p->c, first);
        status = set_batch(blas, &d, p->batch - first < ENTRIES_MOST ? p->batch - first : ENTRIES_MOST);
        if (status == CUBLAS_STATUS_SUCCESS)
            status =
                blas->cublasLtMatmul(handle, &d.how.how, &p->by, entry_of(&p->b, first), &d.a.layout, entry_of(&p->a, first),
                                     &d.b.layout, &none, c, &d.c.layout, c, &d.c.layout, &algorithm, NULL, 0, at->stream);
    }
    return status;
}

fattn_status cuda_product_run(const fattn_launch *at, const cuda_product *product)
{
    const gpu_driver_calls *cu = gpu_driver();
    const cuda_gpu *gpu = at->context->gpu;
    CUcontext before;
    if (cu->cuCtxPushCurrent(gpu->context) != CUDA_SUCCESS)
        return fattn_fail(FATTN_ERROR_SYSTEM, "a product: the GPU's context cannot be made current");
    const cublasStatus_t status = run(gpu_cublas(), at, product);
    cu->cuCtxPopCurrent(&before);
    return status == CUBLAS_STATUS_SUCCESS ? FATTN_OK : fail(status, "a product of cuBLAS");
}
