/*
 * A GPU as a device: memory and order through gpu/memory.h, kernels through the driver, products by cuBLAS with memory of its
 * own to work in. All work is on one stream; nothing waits but get and wait.
 */
#include <stdio.h>
#include <stdlib.h>

#include "gpu/driver.h"
#include "gpu/memory.h"
#include "train/cuda/kernels.h"
#include "train/cuda/product.h"
#include "train/device.h"
#include "train/error.h"

typedef enum image_id { IMAGE_NORMS, IMAGE_ROWS, IMAGE_SUMS, IMAGE_TRIALS, IMAGES } image_id;

extern const unsigned char fattn_cuda_bytes_train_norms[], fattn_cuda_bytes_train_rows[], fattn_cuda_bytes_train_sums[],
    fattn_cuda_bytes_train_trials[];

static const unsigned char *const images[IMAGES] = {fattn_cuda_bytes_train_norms, fattn_cuda_bytes_train_rows,
                                                    fattn_cuda_bytes_train_sums, fattn_cuda_bytes_train_trials};

typedef enum kernel_id {
#define KERNEL_ID(image, name) K_##name,
    CUDA_TRAIN_KERNELS(KERNEL_ID)
#undef KERNEL_ID
        KERNELS
} kernel_id;

static const struct {
    image_id image;
    const char *name;
} kernels[KERNELS] = {
#define KERNEL_ROW(image, name) {IMAGE_##image, #name},
    CUDA_TRAIN_KERNELS(KERNEL_ROW)
#undef KERNEL_ROW
};

typedef struct cuda_device {
    device base;
    gpu_device *gpu;
    gpu_info info;
    CUmodule module[IMAGES];
    CUfunction function[KERNELS];
    products products;
    void *workspace; /* of products */
} cuda_device;

static cuda_device *cuda_of(device *d)
{
    return (cuda_device *)d;
}

products *products_of(device *d)
{
    return &cuda_of(d)->products;
}

static bool failed(gpu_device *g)
{
    train_fail_as(TRAIN_ERROR_WORK, "GPU: %s", gpu_error(g));
    gpu_forget_error(g);
    return false;
}

static bool driver_failed(CUresult result, const char *what)
{
    char text[200];
    return train_fail_as(TRAIN_ERROR_WORK, "GPU: %s: %s", what, gpu_error_text(result, text, sizeof text));
}

/* -------------------------------------------------------------------------------------------------------------- memory */

static void *allocate(device *d, size_t bytes)
{
    void *memory = gpu_allocate(cuda_of(d)->gpu, bytes);
    if (!memory)
        failed(cuda_of(d)->gpu);
    return memory;
}

static void release(device *d, void *memory)
{
    gpu_release(cuda_of(d)->gpu, memory);
}

static void *allocate_shared(device *d, size_t bytes)
{
    void *memory = gpu_allocate_shared(cuda_of(d)->gpu, bytes);
    if (!memory)
        failed(cuda_of(d)->gpu);
    return memory;
}

static void release_shared(device *d, void *memory)
{
    gpu_release_shared(cuda_of(d)->gpu, memory);
}

static bool put(device *d, void *to, const void *host, size_t bytes)
{
    return gpu_put(cuda_of(d)->gpu, to, host, bytes) || failed(cuda_of(d)->gpu);
}

static bool get(device *d, void *host, const void *from, size_t bytes)
{
    return gpu_get(cuda_of(d)->gpu, host, from, bytes) || failed(cuda_of(d)->gpu);
}

static bool fill(device *d, void *to, unsigned char byte, size_t bytes)
{
    return gpu_fill(cuda_of(d)->gpu, to, byte, bytes) || failed(cuda_of(d)->gpu);
}

static bool mark(device *d, device_mark m)
{
    return gpu_mark(cuda_of(d)->gpu, m) || failed(cuda_of(d)->gpu);
}

static bool wait_mark(device *d, device_mark m)
{
    return gpu_wait_mark(cuda_of(d)->gpu, m) || failed(cuda_of(d)->gpu);
}

/* --------------------------------------------------------------------------------------------------------------- noting */

/* Another thread's work does not disturb. */
static bool note_begin(device *d)
{
    CUresult result = gpu_driver()->cuStreamBeginCapture(d->stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    cuda_of(d)->products.noting = result == CUDA_SUCCESS;
    return result == CUDA_SUCCESS || driver_failed(result, "noting work");
}

static void *note_end(device *d, bool good)
{
    const gpu_driver_calls *cu = gpu_driver();
    CUgraph graph = NULL;
    CUgraphExec noted = NULL;
    CUresult result = cu->cuStreamEndCapture(d->stream, &graph);
    cuda_of(d)->products.noting = false;
    if (result == CUDA_SUCCESS && good)
        result = cu->cuGraphInstantiateWithFlags(&noted, graph, 0);
    if (graph)
        cu->cuGraphDestroy(graph);
    if (result != CUDA_SUCCESS && good)
        driver_failed(result, "noting work");
    return noted;
}

static bool replay(device *d, void *noted)
{
    CUresult result = gpu_driver()->cuGraphLaunch(noted, d->stream);
    return result == CUDA_SUCCESS || driver_failed(result, "running noted work");
}

static void forget(device *d, void *noted)
{
    (void)d;
    gpu_driver()->cuGraphExecDestroy(noted);
}

/* ------------------------------------------------------------------------------------------------------------- launching */

static bool launch_blocks(device *d, kernel_id k, int64_t x, int64_t y, int threads, void **arguments)
{
    const cuda_device *c = cuda_of(d);
    const CUlaunchConfig config = {.gridDimX = (unsigned)x,
                                   .gridDimY = (unsigned)y,
                                   .gridDimZ = 1,
                                   .blockDimX = (unsigned)threads,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .hStream = d->stream};
    CUresult result = x && y ? gpu_driver()->cuLaunchKernelEx(&config, c->function[k], arguments, NULL) : CUDA_SUCCESS;
    return result == CUDA_SUCCESS || driver_failed(result, kernels[k].name);
}

static bool launch_grid(device *d, kernel_id k, int64_t x, int64_t y, void **arguments)
{
    return launch_blocks(d, k, x, y, CUDA_THREADS, arguments);
}

/* `blocks` of a kernel that takes a call. */
static bool launch(device *d, kernel_id k, int64_t blocks, const void *call)
{
    void *arguments[] = {(void *)(uintptr_t)call};
    return launch_grid(d, k, blocks, 1, arguments);
}

/* Blocks for n pieces of work, `each` of them to a block; no more than keep the GPU busy, as kernels stride over the rest. */
static int64_t blocks_for(device *d, int64_t n, int64_t each)
{
    const int64_t most = (int64_t)cuda_of(d)->info.multiprocessors * 16, need = (n + each - 1) / each;
    return need < most ? need : most;
}

enum { WARPS = CUDA_THREADS / 32 };

static bool launch_warps(device *d, kernel_id k, int64_t warps, const void *call)
{
    return launch(d, k, blocks_for(d, warps, WARPS), call);
}

/* Elementwise kernels take four numbers at a time. */
static bool launch_numbers(device *d, kernel_id k, int64_t numbers, const void *call)
{
    return launch(d, k, blocks_for(d, numbers, 4 * CUDA_THREADS), call);
}

/* The kernel of a type; the float one stands first. */
static kernel_id of_type(kernel_id k, number_type type)
{
    return (kernel_id)(k + (type == NUMBER_BF16));
}

static bool add_chunks(device *d, float *total, const float *partial, int64_t cols)
{
    void *arguments[] = {&total, &partial, &cols};
    return launch_grid(d, K_add_chunks, (cols + CUDA_COLUMNS - 1) / CUDA_COLUMNS, 1, arguments);
}

/* ------------------------------------------------------------------------------------------------------------ operations */

static bool product(device *d, const product_call *c)
{
    return products_run(&cuda_of(d)->products, c);
}

static bool copy(device *d, const copy_call *c)
{
    const kernel_id k = c->to_type == NUMBER_F32 ? K_copy_f32_f32 : K_copy_bf16_f32;
    return launch_numbers(d, of_type(k, c->from_type), c->rows * c->cols, c);
}

static bool embedding_forward(device *d, const embedding_call *c)
{
    return launch_warps(d, K_embedding_forward, c->rows, c);
}

static bool embedding_backward(device *d, const embedding_call *c)
{
    enum { ENOUGH = 4096 }; /* blocks that have something to add up */
    const int64_t columns = (c->hidden + CUDA_COLUMNS - 1) / CUDA_COLUMNS, groups = (columns + 3) / 4;
    const int64_t tokens = c->vocab < c->rows ? c->vocab : c->rows, wanted = (ENOUGH + tokens - 1) / tokens;
    void *arguments[] = {(void *)(uintptr_t)c};
    return launch_grid(d, K_embedding_backward, tokens, groups < wanted ? groups : wanted, arguments);
}

static bool rmsnorm_forward(device *d, const rmsnorm_call *c)
{
    return launch_warps(d, of_type(K_rmsnorm_forward_f32, c->type), c->rows, c);
}

static bool rmsnorm_backward(device *d, const rmsnorm_call *c)
{
    void *arguments[] = {(void *)(uintptr_t)c};
    if (c->cols <= CUDA_HELD && c->cols % 4 == 0)
        return launch(d, of_type(K_rmsnorm_backward_held_f32, c->type), CUDA_CHUNKS, c) &&
               add_chunks(d, c->dweight, c->partial, c->cols);
    return launch_warps(d, of_type(K_rmsnorm_backward_f32, c->type), c->rows, c) &&
           launch_grid(d, of_type(K_rmsnorm_weights_f32, c->type), (c->cols + CUDA_COLUMNS - 1) / CUDA_COLUMNS, CUDA_CHUNKS,
                       arguments) &&
           add_chunks(d, c->dweight, c->partial, c->cols) && (!c->out || rmsnorm_forward(d, c));
}

static bool qknorm_rope_forward(device *d, const qknorm_rope_call *c)
{
    return launch_warps(d, of_type(K_qknorm_rope_forward_f32, c->type), c->rows * c->heads, c);
}

static bool qknorm_rope_backward(device *d, const qknorm_rope_call *c)
{
    return launch(d, of_type(K_qknorm_rope_backward_f32, c->type), CUDA_CHUNKS, c) &&
           add_chunks(d, c->dweight, c->partial, c->dim);
}

/* Where a branch joins, bf16 or float goes to float; where its gradient leaves, float to either. */
static bool dropout_rows(device *d, const dropout_call *c)
{
    const kernel_id k = c->add ? of_type(K_dropout_branch_f32, c->from_type) : of_type(K_dropout_grad_f32, c->to_type);
    return launch_numbers(d, k, c->rows * c->cols, c);
}

static bool swiglu_forward(device *d, const swiglu_call *c)
{
    return launch_numbers(d, of_type(K_swiglu_forward_f32, c->type), c->rows * c->ffn, c);
}

static bool swiglu_backward(device *d, const swiglu_call *c)
{
    return launch_numbers(d, of_type(K_swiglu_backward_f32, c->type), c->rows * c->ffn, c);
}

static bool cross_entropy(device *d, const cross_entropy_call *c)
{
    enum { WIDE = 8192 };
    void *arguments[] = {(void *)(uintptr_t)c};
    if (c->vocab < WIDE)
        return launch_warps(d, of_type(K_cross_entropy_f32, c->type), c->rows, c);
    return launch_blocks(d, of_type(K_cross_entropy_wide_f32, c->type), blocks_for(d, c->rows, 1), 1, CUDA_WIDE, arguments);
}

static bool loss_sum(device *d, const loss_sum_call *c)
{
    return launch(d, K_loss_sum, 1, c);
}

static bool merge(device *d, const merge_call *c)
{
    return launch_warps(d, K_merge_rows, c->batch * c->rows * c->heads, c);
}

static bool grad_squares(device *d, const update_call *c)
{
    return launch(d, K_grad_squares, c->count, c);
}

static bool grad_norm(device *d, const update_call *c)
{
    return launch(d, K_grad_norm, 1, c);
}

static bool update(device *d, const update_call *c)
{
    return launch(d, K_update_pieces, c->count, c);
}

/* --------------------------------------------------------------------------------------------------------------- opening */

static bool load_kernels(cuda_device *c)
{
    const gpu_driver_calls *cu = gpu_driver();
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < IMAGES && result == CUDA_SUCCESS; i++)
        result = cu->cuModuleLoadData(&c->module[i], images[i]);
    for (int k = 0; k < KERNELS && result == CUDA_SUCCESS; k++)
        result = cu->cuModuleGetFunction(&c->function[k], c->module[kernels[k].image], kernels[k].name);
    return result == CUDA_SUCCESS || driver_failed(result, "loading kernels");
}

static bool open_products(cuda_device *c)
{
    c->workspace = allocate(&c->base, PRODUCT_WORKSPACE);
    c->products.random = c->function[K_random_numbers];
    c->products.digest = c->function[K_digest_bits];
    return c->workspace && products_open(&c->products, c->gpu, c->workspace);
}

static void close_device(device *d)
{
    cuda_device *c = cuda_of(d);
    products_close(&c->products);
    for (int i = 0; i < IMAGES; i++)
        if (c->module[i])
            gpu_driver()->cuModuleUnload(c->module[i]);
    release(d, c->workspace);
    gpu_close(c->gpu);
    free(c);
}

static const device_table table = {.allocate = allocate,
                                   .release = release,
                                   .allocate_shared = allocate_shared,
                                   .release_shared = release_shared,
                                   .put = put,
                                   .get = get,
                                   .fill = fill,
                                   .mark = mark,
                                   .wait = wait_mark,
                                   .close = close_device,
                                   .note_begin = note_begin,
                                   .note_end = note_end,
                                   .replay = replay,
                                   .forget = forget,
                                   .product = product,
                                   .copy = copy,
                                   .embedding_forward = embedding_forward,
                                   .embedding_backward = embedding_backward,
                                   .rmsnorm_forward = rmsnorm_forward,
                                   .rmsnorm_backward = rmsnorm_backward,
                                   .qknorm_rope_forward = qknorm_rope_forward,
                                   .qknorm_rope_backward = qknorm_rope_backward,
                                   .dropout = dropout_rows,
                                   .swiglu_forward = swiglu_forward,
                                   .swiglu_backward = swiglu_backward,
                                   .cross_entropy = cross_entropy,
                                   .loss_sum = loss_sum,
                                   .merge = merge,
                                   .grad_squares = grad_squares,
                                   .grad_norm = grad_norm,
                                   .update = update};

device *device_open_cuda(int32_t index)
{
    char reason[300];
    cuda_device *c = calloc(1, sizeof *c);
    if (!c) {
        train_fail_as(TRAIN_ERROR_WORK, "no memory for a device");
        return NULL;
    }
    c->gpu = gpu_open(index, reason, sizeof reason);
    if (!c->gpu || !gpu_look(index, &c->info, reason, sizeof reason)) {
        train_fail("%s", reason);
        gpu_close(c->gpu);
        free(c);
        return NULL;
    }
    c->base = (device){.run = &table,
                       .kind = FATTN_DEVICE_CUDA,
                       .stream = gpu_stream(c->gpu),
                       .chunks = CUDA_CHUNKS,
                       .own_bytes = PRODUCT_WORKSPACE,
                       .name = c->info.name};
    if (load_kernels(c) && open_products(c))
        return &c->base;
    close_device(&c->base);
    return NULL;
}
