/*
 * The tensor-core kernels' host side: which problems, and what is launched. tensor_forward.cu and
 * tensor_backward_*.cu have the kernels.
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
/* Of backward the same, and where gradients may be added in any order the side of keys and what follows it. */
#define GRADIENTS(size, dim, share, tile, stages, rooms, tile_adjusted, blocks)                                                \
    {"tensor_gradients_" #size, TENSOR_GRAD_SHARED(dim, share, tile, stages, rooms)},                                          \
        {"tensor_gradients_" #size "_adjusted", TENSOR_GRAD_SHARED(dim, share, tile_adjusted, stages, 2)},
#define UNORDERED(size, dim, share, tile, stages, rooms, tile_adjusted, blocks)                                                \
    {"tensor_unordered_" #size, TENSOR_GRAD_SHARED(dim, share, tile, stages, rooms)}, {"tensor_unordered_end_" #size, 0},

static const cuda_function forward_functions[] = {TENSOR_FORWARD_SIZES(FORWARD)};
static const cuda_function f16_functions[] = {{"tensor_gradients_begin", 0}, TENSOR_GRAD_SIZES_F16(GRADIENTS)};
static const cuda_function bf16_functions[] = {{"tensor_gradients_begin", 0},
                                               TENSOR_GRAD_SIZES_BF16(GRADIENTS) TENSOR_GRAD_SIZES_BF16(UNORDERED)};
enum { GRADIENTS_BEGIN = 0, GRADIENTS_FIRST = 1, UNORDERED_FIRST = 1 + 2 * TENSOR_GRAD_SIZES };

/* What GPUs of compute capability 8.0 and 9.0 have, and those of 8.6 and 8.9. */
_Static_assert(TENSOR_FORWARD_SHARED(256, 256, 1, 64) <= 163 * 1024 && TENSOR_FORWARD_SHARED(512, 256, 1, 32) <= 163 * 1024 &&
                   TENSOR_GRAD_SHARED(128, 2, 64, 2, 2) <= 163 * 1024 && TENSOR_GRAD_SHARED(256, 4, 64, 1, 2) <= 163 * 1024 &&
                   TENSOR_GRAD_SHARED(64, 2, 128, 2, 1) <= 163 * 1024,
               "docs/features.md says that all dims fit");
_Static_assert(TENSOR_FORWARD_SHARED(256, 256, 1, 32) <= 99 * 1024 && TENSOR_GRAD_SHARED(64, 2, 64, 2, 2) <= 99 * 1024,
               "docs/features.md says that these dims fit, as where scores are adjusted");

CUDA_IMAGE_DEFINE(tensor_forward, forward_functions, 0);
CUDA_IMAGE_DEFINE(tensor_backward_f16, f16_functions, 0);
CUDA_IMAGE_DEFINE(tensor_backward_bf16, bf16_functions, 0);

/* Numbers of a size: the dims it is for, rows of a forward unit (by adjusted), columns of results of a unit. */
typedef struct forward_size {
    int64_t dim, width, rows[2];
} forward_size;

typedef struct backward_size {
    int64_t dim, own;
} backward_size;

#define FORWARD_SIZE(size, dim, width, m, keys, m_adjusted, keys_adjusted)                                                     \
    {dim, width, {TENSOR_ROWS(m), TENSOR_ROWS(m_adjusted)}},
#define BACKWARD_SIZE(size, dim, share, tile, stages, rooms, tile_adjusted, blocks) {dim, TENSOR_GRAD_OWN(share)},
static const forward_size forward_sizes[TENSOR_SIZES] = {TENSOR_FORWARD_SIZES(FORWARD_SIZE)};
static const backward_size backward_sizes[TENSOR_GRAD_SIZES] = {TENSOR_GRAD_SIZES_BF16(BACKWARD_SIZE)}; /* of f16 too */

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
    while (size < TENSOR_GRAD_SIZES - 1 && backward_sizes[size].dim < larger_dim(d))
        size++;
    return size;
}

/* Bytes are widened where scores are looked at. */
static bool adjusts(const fattn_desc *d)
{
    return cuda_adjusts(d) || d->kv_dtype == FATTN_I8;
}

/* Which of a size's two functions runs, on a GPU whose blocks may have `most` bytes of shared memory: the one that adjusts
 * scores needs less, and may adjust them by nothing. */
static bool forward_adjusts(const fattn_desc *d, size_t most)
{
    return adjusts(d) || forward_functions[4 * forward_size_of(d)].shared > most;
}

/* Backward's function of a size; behind it stands the one that adjusts scores. */
static const cuda_function *gradients_of(const fattn_desc *d)
{
    return (d->dtype == FATTN_BF16 ? bf16_functions : f16_functions) + GRADIENTS_FIRST + 2 * backward_size_of(d);
}

static bool backward_adjusts(const fattn_desc *d, size_t most)
{
    return cuda_adjusts(d) || gradients_of(d)->shared > most;
}

static int64_t forward_blocks(const fattn_problem *problem, bool adjusted, tensor_call *call)
{
    const fattn_desc *d = &problem->desc;
    const forward_size *size = &forward_sizes[forward_size_of(d)];
    call->tiles = cuda_tiles(problem->group * d->seq_q, size->rows[adjusted]);
    call->widths = cuda_tiles(d->dim_v, size->width);
    return cuda_blocks(cuda_blocks(call->tiles, call->widths), cuda_blocks(d->heads_kv, d->batch));
}

static fattn_status forward(const fattn_problem *problem, const fattn_launch *at)
{
    const fattn_desc *d = &problem->desc;
    const bool bytes = d->kv_dtype == FATTN_I8, bf16 = d->dtype == FATTN_BF16;
    const bool adjusted = forward_adjusts(d, at->context->shared);
    const int function = 4 * forward_size_of(d) + 2 * bf16 + adjusted;
    tensor_call call = {.q_lines = cuda_in_lines(&at->q, 2, d->dim),
                        .k_lines = !bytes && cuda_in_lines(&at->k, 2, d->dim),
                        .v_lines = !bytes && cuda_in_lines(&at->v, 2, d->dim_v)};
    const int64_t blocks = forward_blocks(problem, adjusted, &call);
    void *arguments[] = {(void *)(uintptr_t)problem, (void *)(uintptr_t)at, &call};
    return cuda_launch(at, CUDA_IMAGE_TENSOR_FORWARD, function, (cuda_shape){blocks, TENSOR_THREADS}, arguments);
}

/* A side of backward whose units are tiles of `n` keys, or rows, of `heads` heads. */
static tensor_grad_call side_of(const fattn_desc *d, int64_t n, int64_t heads)
{
    tensor_grad_call call = {.tiles = cuda_tiles(n, backward_sizes[backward_size_of(d)].own), .heads = heads};
    call.blocks = cuda_blocks(call.tiles, cuda_blocks(heads, d->batch));
    return call;
}

/* Strips of a head of all sequences, packed ones rounded up each; numbers of the sums of dQ. */
static int64_t strips_of(const fattn_desc *d)
{
    return d->total_q > 0 ? d->total_q / TENSOR_GRAD_STRIP + d->batch : d->batch * TENSOR_GRAD_STRIPS(d->seq_q);
}

static int64_t sums_of(const fattn_desc *d)
{
    return d->heads_q * strips_of(d) * TENSOR_GRAD_STRIP * backward_sizes[backward_size_of(d)].dim;
}

/* Bytes of delta, behind which the sums begin. */
static size_t delta_bytes(const fattn_problem *problem)
{
    return fattn_round_up(cuda_exact_delta_bytes(problem), FATTN_ALIGNMENT);
}

static size_t unordered_workspace(const fattn_problem *problem)
{
    return delta_bytes(problem) + sizeof(float) * (size_t)sums_of(&problem->desc);
}

/* What the launches of a backward call are given. */
typedef struct gradient_call {
    tensor_grad_call keys, rows;
    float *delta;
    int64_t sums;
} gradient_call;

static gradient_call gradient_call_of(const fattn_problem *problem, const fattn_launch *at)
{
    const fattn_desc *d = &problem->desc;
    gradient_call call = {side_of(d, d->seq_k, d->heads_kv), side_of(d, d->seq_q, d->heads_q), (float *)at->workspace, 0};
    tensor_grad_call *keys = &call.keys, *rows = &call.rows;
    keys->q_lines = rows->q_lines = cuda_in_lines(&at->q, 2, d->dim);
    keys->k_lines = rows->k_lines = cuda_in_lines(&at->k, 2, d->dim);
    keys->v_lines = rows->v_lines = cuda_in_lines(&at->v, 2, d->dim_v);
    keys->dout_lines = rows->dout_lines = cuda_in_lines(&at->dout, 2, d->dim_v);
    keys->out_lines = keys->dout_lines && cuda_in_lines(&at->out, 2, d->dim_v);
    return call;
}

static fattn_status launch_gradients(const fattn_problem *problem, const fattn_launch *at, int function, int64_t blocks,
                                     void **arguments)
{
    const bool bf16 = problem->desc.dtype == FATTN_BF16;
    return cuda_launch(at, bf16 ? CUDA_IMAGE_TENSOR_BACKWARD_BF16 : CUDA_IMAGE_TENSOR_BACKWARD_F16, function,
                       (cuda_shape){blocks, TENSOR_GRAD_THREADS}, arguments);
}

/* D, and zeros for the sums. */
static fattn_status begin(const fattn_problem *problem, const fattn_launch *at, gradient_call *call)
{
    const fattn_desc *d = &problem->desc;
    void *arguments[] = {(void *)(uintptr_t)problem, (void *)(uintptr_t)at, &call->keys, &call->delta, &call->sums};
    return launch_gradients(problem, at, GRADIENTS_BEGIN, cuda_tiles(d->batch * d->heads_q * d->seq_q, TENSOR_GRAD_THREADS / 8),
                            arguments);
}

static fattn_status backward(const fattn_problem *problem, const fattn_launch *at)
{
    const fattn_desc *d = &problem->desc;
    const int function = GRADIENTS_FIRST + 2 * backward_size_of(d) + backward_adjusts(d, at->context->shared);
    gradient_call call = gradient_call_of(problem, at);
    void *arguments[] = {(void *)(uintptr_t)problem, (void *)(uintptr_t)at, &call.keys, &call.rows, &call.delta};
    fattn_status status = begin(problem, at, &call);
    if (status == FATTN_OK)
        status = launch_gradients(problem, at, function, call.keys.blocks + call.rows.blocks, arguments);
    return status != FATTN_OK ? status : cuda_exact_rest(problem, at, call.delta);
}

static fattn_status backward_unordered(const fattn_problem *problem, const fattn_launch *at)
{
    const fattn_desc *d = &problem->desc;
    const int function = UNORDERED_FIRST + 2 * backward_size_of(d);
    const int64_t strips = d->batch * d->heads_q * TENSOR_GRAD_STRIPS(d->seq_q);
    gradient_call call = gradient_call_of(problem, at);
    call.sums = sums_of(d);
    call.keys.sums = (float *)(at->workspace + delta_bytes(problem));
    call.keys.strips = strips_of(d);
    void *arguments[] = {(void *)(uintptr_t)problem, (void *)(uintptr_t)at, &call.keys, &call.delta};
    fattn_status status = begin(problem, at, &call);
    if (status == FATTN_OK)
        status = launch_gradients(problem, at, function, call.keys.blocks, arguments);
    if (status == FATTN_OK)
        status = launch_gradients(problem, at, function + 1, cuda_tiles(strips, TENSOR_GRAD_THREADS / 32), arguments);
    return status != FATTN_OK ? status : cuda_exact_rest(problem, at, call.delta);
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
    return cuda_too_large(forward_blocks(problem, true, &call) > CUDA_BLOCKS_MOST);
}

static const char *refuse_backward(const fattn_problem *problem, int32_t dtype)
{
    const fattn_desc *d = &problem->desc;
    const char *reason = refuse_type(d, dtype);
    if (reason)
        return reason;
    if (larger_dim(d) > backward_sizes[TENSOR_GRAD_SIZES - 1].dim)
        return "takes dims up to 256";
    if (d->out_dtype != d->dtype)
        return "takes out and dout of the inputs' type only";
    if (d->seq_q > TENSOR_GRAD_ROWS_MOST || d->seq_k > TENSOR_GRAD_ROWS_MOST)
        return "takes sequences of up to 2^30 rows and keys";
    const int64_t blocks = side_of(d, d->seq_q, d->heads_q).blocks + side_of(d, d->seq_k, d->heads_kv).blocks;
    return cuda_too_large(blocks > CUDA_BLOCKS_MOST || !cuda_exact_rest_fits(problem));
}

static const char *refuse_backward_f16(const fattn_problem *problem)
{
    return refuse_backward(problem, FATTN_F16);
}

static const char *refuse_backward_bf16(const fattn_problem *problem)
{
    return refuse_backward(problem, FATTN_BF16);
}

static const char *refuse_backward_unordered_bf16(const fattn_problem *problem)
{
    return cuda_adjusts(&problem->desc) ? "takes no softcap, bias, slopes or dropout" : refuse_backward_bf16(problem);
}

static const char *refuse_forward_f16(const fattn_problem *problem)
{
    return refuse_forward(problem, FATTN_F16);
}

static const char *refuse_forward_bf16(const fattn_problem *problem)
{
    return refuse_forward(problem, FATTN_BF16);
}

static size_t forward_shared(const fattn_problem *problem)
{
    return forward_functions[4 * forward_size_of(&problem->desc) + 1].shared;
}

static size_t backward_shared(const fattn_problem *problem)
{
    return gradients_of(&problem->desc)[1].shared;
}

static size_t backward_unordered_shared(const fattn_problem *problem)
{
    return bf16_functions[UNORDERED_FIRST + 2 * backward_size_of(&problem->desc)].shared;
}

#define ROW(kernel, number, type, dtype, adds, room)                                                                           \
    {                                                                                                                          \
        .name = "cuda_tensor_" #kernel "_" #type, .family = "cuda_tensor", .op = number, .rounds = dtype, .unordered = adds,   \
        .device = FATTN_DEVICE_CUDA, .needs = FATTN_CUDA_SM80, .refuse = refuse_##kernel##_##type, .shared = kernel##_shared,  \
        .workspace = room, .run = kernel                                                                                       \
    }

FATTN_KERNEL_TABLE(fattn_cuda_tensor, ROW(forward, FATTN_OP_FORWARD, f16, FATTN_F16, false, NULL),
                   ROW(forward, FATTN_OP_FORWARD, bf16, FATTN_BF16, false, NULL),
                   ROW(backward_unordered, FATTN_OP_BACKWARD, bf16, FATTN_BF16, true, unordered_workspace),
                   ROW(backward, FATTN_OP_BACKWARD, f16, FATTN_F16, false, cuda_exact_delta_bytes),
                   ROW(backward, FATTN_OP_BACKWARD, bf16, FATTN_BF16, false, cuda_exact_delta_bytes));
