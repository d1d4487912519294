/*
 * The tensor-core kernels' host side: which problems, and what is launched. tensor_forward.cu and tensor_backward.cu have the
 * kernels.
 */
#include "cuda/tensor.h"
#include "cuda/cuda.h"
#include "cuda/exact.h"

/* For each size a function, then the one where scores are adjusted. */
#define FORWARD(size, dim, width, m, keys, m_adjusted, keys_adjusted)                                                          \
    {"tensor_forward_f16_" #size, TENSOR_FORWARD_SHARED(dim, width, m, keys)},                                                 \
        {"tensor_forward_f16_" #size "_adjusted", TENSOR_FORWARD_SHARED(dim, width, m_adjusted, keys_adjusted)},               \
        {"tensor_forward_bf16_" #size, TENSOR_FORWARD_SHARED(dim, width, m, keys)},                                            \
        {"tensor_forward_bf16_" #size "_adjusted", TENSOR_FORWARD_SHARED(dim, width, m_adjusted, keys_adjusted)},
#define KEYS(size, dim, width, rows, keys)                                                                                     \
    {"tensor_keys_bf16_" #size, TENSOR_BACKWARD_SHARED(dim, rows)},                                                            \
        {"tensor_keys_bf16_" #size "_adjusted", TENSOR_BACKWARD_SHARED(dim, rows)},
#define QUERIES(size, dim, width, rows, keys)                                                                                  \
    {"tensor_queries_bf16_" #size, TENSOR_BACKWARD_SHARED(dim, keys)},                                                         \
        {"tensor_queries_bf16_" #size "_adjusted", TENSOR_BACKWARD_SHARED(dim, keys)},

static const cuda_function forward_functions[] = {TENSOR_FORWARD_SIZES(FORWARD)};
static const cuda_function backward_functions[] = {TENSOR_BACKWARD_SIZES(KEYS) TENSOR_BACKWARD_SIZES(QUERIES)};
enum { FIRST_QUERIES = 2 * TENSOR_BACKWARD_COUNT };

_Static_assert(sizeof forward_functions / sizeof *forward_functions <= CUDA_FUNCTIONS_MOST &&
                   sizeof backward_functions / sizeof *backward_functions <= CUDA_FUNCTIONS_MOST,
               "a context has room for them");
_Static_assert(TENSOR_FORWARD_SHARED(256, 256, 1, 64) <= 163 * 1024 && TENSOR_FORWARD_SHARED(512, 256, 1, 32) <= 163 * 1024 &&
                   TENSOR_BACKWARD_SHARED(256, 32) <= 163 * 1024,
               "FATTN_CUDA_SHARED promises no more");

extern const unsigned char fattn_cuda_bytes_tensor_forward[], fattn_cuda_bytes_tensor_backward[];
const cuda_image fattn_cuda_tensor_forward_image = {fattn_cuda_bytes_tensor_forward, forward_functions,
                                                    sizeof forward_functions / sizeof *forward_functions, 0};
const cuda_image fattn_cuda_tensor_backward_image = {fattn_cuda_bytes_tensor_backward, backward_functions,
                                                     sizeof backward_functions / sizeof *backward_functions, 0};

/* Numbers of a size: the dims it is for, rows of a forward unit (by adjusted), columns of results of a unit. */
typedef struct forward_size {
    int64_t dim, width, rows[2];
} forward_size;

typedef struct backward_size {
    int64_t dim, width;
} backward_size;

#define FORWARD_SIZE(size, dim, width, m, keys, m_adjusted, keys_adjusted)                                                     \
    {dim, width, {TENSOR_ROWS(m), TENSOR_ROWS(m_adjusted)}},
#define BACKWARD_SIZE(size, dim, width, rows, keys) {dim, width},
static const forward_size forward_sizes[TENSOR_SIZES] = {TENSOR_FORWARD_SIZES(FORWARD_SIZE)};
static const backward_size backward_sizes[TENSOR_BACKWARD_COUNT] = {TENSOR_BACKWARD_SIZES(BACKWARD_SIZE)};

static int64_t larger_dim(const fattn_desc *d)
{
    return d->dim > d->dim_v ? d->dim : d->dim_v;
}

/* The least size for the problem's dims. */
static int forward_size_of(const fattn_desc *d)
{
    int size = 0;
    while (forward_sizes[size].dim < larger_dim(d))
        size++;
    return size;
}

static int backward_size_of(const fattn_desc *d)
{
    int size = 0;
    while (size < TENSOR_BACKWARD_COUNT - 1 && backward_sizes[size].dim < larger_dim(d))
        size++;
    return size;
}

/* Whether scores or probabilities are more than products and powers. */
static int is_adjusted(const fattn_desc *d)
{
    return fattn_scores_change(d) || d->dropout != 0 || d->kv_dtype == FATTN_I8;
}

/* Blocks of a launch whose units are tiles of `rows` of `n`, and `width` columns of `columns`. */
static int64_t blocks_of(const fattn_desc *d, tensor_call *call, int64_t n, int64_t rows, int64_t columns, int64_t width)
{
    call->tiles = cuda_tiles(n, rows);
    call->widths = cuda_tiles(columns, width);
    return cuda_blocks(cuda_blocks(call->tiles, call->widths), cuda_blocks(d->heads_kv, d->batch));
}

static int64_t forward_blocks(const fattn_problem *problem, tensor_call *call)
{
    const fattn_desc *d = &problem->desc;
    const forward_size *size = &forward_sizes[forward_size_of(d)];
    return blocks_of(d, call, problem->group * d->seq_q, size->rows[is_adjusted(d)], d->dim_v, size->width);
}

static int64_t keys_blocks(const fattn_problem *problem, tensor_call *call)
{
    const fattn_desc *d = &problem->desc;
    return blocks_of(d, call, d->seq_k, TENSOR_OWN, larger_dim(d), backward_sizes[backward_size_of(d)].width);
}

static int64_t queries_blocks(const fattn_problem *problem, tensor_call *call)
{
    const fattn_desc *d = &problem->desc;
    return blocks_of(d, call, problem->group * d->seq_q, TENSOR_OWN, d->dim, backward_sizes[backward_size_of(d)].width);
}

/* Whether all rows of a tensor of 16-bit numbers may be read in pieces of 16 bytes. */
static int32_t in_lines(const fattn_view *view, int64_t dim)
{
    const int64_t strides = view->stride_batch | view->stride_head | view->stride_row;
    return (uintptr_t)view->data % 16 == 0 && strides % 8 == 0 && dim % 8 == 0;
}

static fattn_status forward(const fattn_problem *problem, const fattn_launch *at)
{
    const fattn_desc *d = &problem->desc;
    const bool bytes = d->kv_dtype == FATTN_I8, bf16 = d->dtype == FATTN_BF16;
    const int function = 4 * forward_size_of(d) + 2 * bf16 + is_adjusted(d);
    tensor_call call = {.q_lines = in_lines(&at->q, d->dim),
                        .k_lines = !bytes && in_lines(&at->k, d->dim),
                        .v_lines = !bytes && in_lines(&at->v, d->dim_v)};
    const int64_t blocks = forward_blocks(problem, &call);
    void *arguments[] = {(void *)(uintptr_t)problem, (void *)(uintptr_t)at, &call};
    return cuda_launch(at, CUDA_IMAGE_TENSOR_FORWARD, function, (cuda_shape){blocks, TENSOR_THREADS}, arguments);
}

static fattn_status backward(const fattn_problem *problem, const fattn_launch *at)
{
    const fattn_desc *d = &problem->desc;
    const int function = 2 * backward_size_of(d) + is_adjusted(d);
    void *delta = at->workspace, *whole = (void *)(uintptr_t)problem, *where = (void *)(uintptr_t)at;
    tensor_call rows = {.q_lines = in_lines(&at->q, d->dim),
                        .k_lines = in_lines(&at->k, d->dim),
                        .v_lines = in_lines(&at->v, d->dim_v),
                        .dout_lines = in_lines(&at->dout, d->dim_v)};
    tensor_call keys = rows;
    const int64_t rows_blocks = queries_blocks(problem, &rows), all_keys = keys_blocks(problem, &keys);
    void *of_rows[] = {whole, where, &rows, &delta}, *of_keys[] = {whole, where, &keys, &delta};
    fattn_status status = cuda_exact_delta(problem, at, delta);
    if (status == FATTN_OK)
        status = cuda_launch(at, CUDA_IMAGE_TENSOR_BACKWARD, FIRST_QUERIES + function,
                             (cuda_shape){rows_blocks, TENSOR_THREADS}, of_rows);
    if (status == FATTN_OK)
        status = cuda_launch(at, CUDA_IMAGE_TENSOR_BACKWARD, function, (cuda_shape){all_keys, TENSOR_THREADS}, of_keys);
    return status != FATTN_OK ? status : cuda_exact_rest(problem, at, delta);
}

static const char *refuse_type(const fattn_desc *d, int32_t dtype)
{
    return d->dtype == dtype ? NULL : dtype == FATTN_F16 ? "takes f16 only" : "takes bf16 only";
}

static const char *refuse_forward(const fattn_problem *problem, int32_t dtype)
{
    tensor_call call;
    const char *reason = refuse_type(&problem->desc, dtype);
    if (reason)
        return reason;
    if (problem->desc.kv_dtype == FATTN_I8 && dtype == FATTN_F16)
        return "takes no keys of bytes in f16, whose range their factors may leave";
    return cuda_too_large(forward_blocks(problem, &call) > CUDA_BLOCKS_MOST);
}

static const char *refuse_backward_bf16(const fattn_problem *problem)
{
    tensor_call call;
    const fattn_desc *d = &problem->desc;
    const char *reason = refuse_type(d, FATTN_BF16);
    if (reason)
        return reason;
    if (larger_dim(d) > backward_sizes[TENSOR_BACKWARD_COUNT - 1].dim)
        return "takes dims up to 256";
    if (d->out_dtype != d->dtype)
        return "takes out and dout of the inputs' type only";
    return cuda_too_large(keys_blocks(problem, &call) > CUDA_BLOCKS_MOST || queries_blocks(problem, &call) > CUDA_BLOCKS_MOST ||
                          !cuda_exact_rest_fits(problem));
}

static const char *refuse_forward_f16(const fattn_problem *problem)
{
    return refuse_forward(problem, FATTN_F16);
}

static const char *refuse_forward_bf16(const fattn_problem *problem)
{
    return refuse_forward(problem, FATTN_BF16);
}

#define ROW(kernel, number, type, dtype, room)                                                                                 \
    {                                                                                                                          \
        .name = "cuda_tensor_" #kernel "_" #type, .family = "cuda_tensor", .op = number, .rounds = dtype,                      \
        .device = FATTN_DEVICE_CUDA, .needs = FATTN_CUDA_SM80 | FATTN_CUDA_SHARED, .refuse = refuse_##kernel##_##type,         \
        .workspace = room, .run = kernel                                                                                       \
    }

FATTN_KERNEL_TABLE(fattn_cuda_tensor, ROW(forward, FATTN_OP_FORWARD, f16, FATTN_F16, NULL),
                   ROW(forward, FATTN_OP_FORWARD, bf16, FATTN_BF16, NULL),
                   ROW(backward, FATTN_OP_BACKWARD, bf16, FATTN_BF16, cuda_exact_delta_bytes));
