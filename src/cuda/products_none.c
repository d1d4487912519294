/*
 * Products in builds that found no cublas_v2.h.
 */
#include "cuda/products.h"

const char *cuda_products_absent(void)
{
    return "needs cuBLAS, without which this library was built";
}

fattn_status cuda_products_open(cuda_gpu *gpu)
{
    gpu->products = NULL;
    return FATTN_OK;
}

void cuda_products_close(cuda_gpu *gpu)
{
    (void)gpu;
}

fattn_status cuda_product_run(const fattn_launch *at, const cuda_product *product)
{
    (void)at;
    (void)product;
    return fattn_fail(FATTN_ERROR_UNSUPPORTED, "this library was built without cuBLAS");
}
