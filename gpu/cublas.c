/*
 * Opening libcublas.so, and products by cuBLASLt, which counts by columns: what is row-major here it sees transposed, so that
 * it computes C^T = op(B)^T op(A)^T.
 */
#include "gpu/cublas.h"

#include <pthread.h>
#include <stdio.h>

#include "gpu/symbols.h"

static gpu_cublas_calls calls;
static char absent[200];

/* The types of the calls are the same in both; older ones have no calls with sizes of 64 bits. */
static const char *const names[] = {"libcublas.so.13", "libcublas.so.12"};

static void open_cublas(void)
{
    const gpu_symbol symbols[] = {
#define GPU_CUBLAS_SYMBOL(call) {GPU_SYMBOL_NAME(call), &calls.call},
        GPU_CUBLAS_CALLS(GPU_CUBLAS_SYMBOL)
#undef GPU_CUBLAS_SYMBOL
    };
    snprintf(absent, sizeof absent, "there is no cuBLAS (%s or %s) here", names[0], names[1]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        const char *missing = library ? gpu_symbols_find(library, symbols, sizeof symbols / sizeof *symbols) : "";
        if (!missing) {
            absent[0] = '\0';
            return;
        }
        if (library) {
            snprintf(absent, sizeof absent, "%s is too old: it has no %s", names[i], missing);
            dlclose(library);
        }
    }
}

static void open_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_cublas);
}

const gpu_cublas_calls *gpu_cublas(void)
{
    open_once();
    return absent[0] ? NULL : &calls;
}

const char *gpu_cublas_absent(void)
{
    open_once();
    return absent;
}

const char *gpu_cublas_error_text(cublasStatus_t status, char *text, size_t size)
{
    const char *name = calls.cublasGetStatusName(status), *meaning = calls.cublasGetStatusString(status);
    snprintf(text, size, "%s: %s", name ? name : "no name", meaning ? meaning : "no further text");
    return text;
}

/* ------------------------------------------------------------------------------------------------------------- products */

/* A matrix of `rows` rows in memory, with as many numbers each as there are columns. */
static cublasStatus_t describe_matrix(gpu_cublas_room *r, cudaDataType type, int64_t rows, int64_t columns, int64_t ld)
{
    const int64_t stride = rows * ld;
    const cublasStatus_t status =
        calls.cublasLtMatrixLayoutInit_internal(&r->layout, sizeof *r, type, (uint64_t)columns, (uint64_t)rows, ld);
    return status != CUBLAS_STATUS_SUCCESS
               ? status
               : calls.cublasLtMatrixLayoutSetAttribute(&r->layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                        sizeof stride);
}

static cublasStatus_t describe(const gpu_product *p, gpu_product_plan *plan)
{
    const cublasOperation_t a = p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, b = p->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulDesc_t how = &plan->how.how;
    cublasStatus_t status = calls.cublasLtMatmulDescInit_internal(how, sizeof plan->how, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = calls.cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = calls.cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_matrix(&plan->a, p->type, p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n, p->ldb);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_matrix(&plan->b, p->type, p->transpose_a ? p->k : p->m, p->transpose_a ? p->m : p->k, p->lda);
    return status != CUBLAS_STATUS_SUCCESS ? status : describe_matrix(&plan->c, p->c_type, p->m, p->n, p->ldc);
}

static cublasStatus_t set_batch(gpu_product_plan *plan, int32_t entries)
{
    cublasLtMatrixLayout_t layouts[] = {&plan->a.layout, &plan->b.layout, &plan->c.layout};
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < 3 && status == CUBLAS_STATUS_SUCCESS; i++)
        status =
            calls.cublasLtMatrixLayoutSetAttribute(layouts[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &entries, sizeof entries);
    return status;
}

/* Where a sum is cut along k, its parts are kept as floats. */
static cublasStatus_t prefer(const gpu_product *p, gpu_cublas_room *r)
{
    const uint32_t reductions = p->workspace ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t size;
    } wanted[] = {{CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
                  {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &p->workspace, sizeof p->workspace},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &p->alignment, sizeof p->alignment},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &p->alignment, sizeof p->alignment},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &p->alignment, sizeof p->alignment},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &p->alignment, sizeof p->alignment}};
    cublasStatus_t status = calls.cublasLtMatmulPreferenceInit_internal(&r->preference, sizeof *r);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && status == CUBLAS_STATUS_SUCCESS; i++)
        status =
            calls.cublasLtMatmulPreferenceSetAttribute(&r->preference, wanted[i].attribute, wanted[i].value, wanted[i].size);
    return status;
}

static cublasStatus_t list(cublasLtHandle_t handle, const gpu_product *p, gpu_product_plan *plan, int most,
                           gpu_product_choices *choices)
{
    gpu_cublas_room preference;
    cublasLtMatmulHeuristicResult_t found[GPU_PRODUCT_CHOICES];
    cublasStatus_t status = describe(p, plan);
    choices->count = 0;
    if (status == CUBLAS_STATUS_SUCCESS)
        status = prefer(p, &preference);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_batch(plan, (int32_t)p->usual);
    int count = 0;
    if (status == CUBLAS_STATUS_SUCCESS)
        status = calls.cublasLtMatmulAlgoGetHeuristic(handle, &plan->how.how, &plan->a.layout, &plan->b.layout, &plan->c.layout,
                                                      &plan->c.layout, &preference.preference, most, found, &count);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    for (int i = 0; i < count; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS)
            choices->algorithm[choices->count++] = found[i].algo;
    if (choices->count == 0)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    plan->algorithm = choices->algorithm[0];
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t gpu_product_choose(cublasLtHandle_t handle, const gpu_product *p, gpu_product_plan *plan)
{
    gpu_product_choices only;
    return list(handle, p, plan, 1, &only);
}

cublasStatus_t gpu_product_list(cublasLtHandle_t handle, const gpu_product *p, gpu_product_plan *plan,
                                gpu_product_choices *choices)
{
    return list(handle, p, plan, GPU_PRODUCT_CHOICES, choices);
}

cublasStatus_t gpu_product_run(cublasLtHandle_t handle, gpu_product_plan *plan, int32_t entries, const gpu_product_at *at)
{
    const cublasStatus_t status = set_batch(plan, entries);
    return status != CUBLAS_STATUS_SUCCESS
               ? status
               : calls.cublasLtMatmul(handle, &plan->how.how, &at->by, at->b, &plan->a.layout, at->a, &plan->b.layout,
                                      &at->beta, at->d, &plan->c.layout, at->c, &plan->c.layout, &plan->algorithm,
                                      at->workspace, at->workspace_size, at->stream);
}
