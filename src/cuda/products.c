/*
 * Products by cuBLASLt (gpu/cublas.h).
 *
 * It would choose an algorithm by the size of the batch too, and a sequence's results would then depend on how many others
 * there are. So algorithms are asked for as if the batch were always of the usual size, and none that splits the depth is
 * taken.
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

static cudaDataType type_of(int32_t dtype)
{
    return dtype == FATTN_F32 ? CUDA_R_32F : dtype == FATTN_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

static gpu_product describe(const cuda_product *p)
{
    const bool transposed = p->transposed == CUDA_A_TRANSPOSED;
    return (gpu_product){.type = type_of(p->a.dtype),
                         .c_type = type_of(p->c.dtype),
                         .transpose_a = transposed,
                         .transpose_b = p->transposed == CUDA_B_TRANSPOSED,
                         .m = p->c.rows,
                         .n = p->c.columns,
                         .k = transposed ? p->a.rows : p->a.columns,
                         .lda = p->a.pitch,
                         .ldb = p->b.pitch,
                         .ldc = p->c.pitch,
                         .usual = p->usual < ENTRIES_MOST ? p->usual : ENTRIES_MOST,
                         .alignment = CUDA_PRODUCT_ALIGNMENT};
}

/* Where entry number `first` of the batch begins. */
static void *entry_of(const cuda_matrix *m, int64_t first)
{
    return (char *)m->data + first * m->rows * m->pitch * (int64_t)fattn_dtype_size(m->dtype);
}

static cublasStatus_t run(const fattn_launch *at, const cuda_product *p)
{
    const cublasLtHandle_t handle = ((const cuda_gpu *)at->context->gpu)->products;
    const gpu_product product = describe(p);
    gpu_product_plan plan;
    cublasStatus_t status = gpu_product_choose(handle, &product, &plan);
    for (int64_t first = 0; first < p->batch && status == CUBLAS_STATUS_SUCCESS; first += ENTRIES_MOST) {
        const int64_t left = p->batch - first;
        const gpu_product_at where = {.by = p->by,
                                      .a = entry_of(&p->a, first),
                                      .b = entry_of(&p->b, first),
                                      .d = entry_of(&p->c, first),
                                      .c = entry_of(&p->c, first),
                                      .stream = at->stream};
        status = gpu_product_run(handle, &plan, (int32_t)(left < ENTRIES_MOST ? left : ENTRIES_MOST), &where);
    }
    return status;
}

fattn_status cuda_product_run(const fattn_launch *at, const cuda_product *product)
{
    const cublasStatus_t status = run(at, product);
    return status == CUBLAS_STATUS_SUCCESS ? FATTN_OK : fail(status, "a product of cuBLAS");
}
