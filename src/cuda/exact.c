/*
 * The exact kernels' host side: which problems, how much workspace, what is launched. exact.cu has the kernels.
 */
#include "cuda/exact.h"
#include "cuda/cuda.h"

/* The kernels, each in float; in double it is the next. */
enum {
    EXACT_FORWARD = 0,
    EXACT_DELTA = 2,
    EXACT_QUERIES = 4,
    EXACT_KEYS = 6,
    EXACT_BIAS = 8,
    EXACT_SINKS = 10,
    EXACT_FUNCTIONS = 12
};

static const cuda_function functions[EXACT_FUNCTIONS] = {{"exact_forward_f32", EXACT_SHARED_F32},
                                                         {"exact_forward_f64", EXACT_SHARED_F64},
                                                         {"exact_delta_f32", 0},
                                                         {"exact_delta_f64", 0},
                                                         {"exact_queries_f32", EXACT_SHARED_F32},
                                                         {"exact_queries_f64", EXACT_SHARED_F64},
                                                         {"exact_keys_f32", EXACT_SHARED_F32},
                                                         {"exact_keys_f64", EXACT_SHARED_F64},
                                                         {"exact_bias_f32", EXACT_SHARED_F32},
                                                         {"exact_bias_f64", EXACT_SHARED_F64},
                                                         {"exact_sinks_f32", 0},
                                                         {"exact_sinks_f64", 0}};

CUDA_IMAGE_DEFINE(exact, functions, 0);

static int64_t widths_of(int64_t columns)
{
    return cuda_tiles(columns, EXACT_WIDTH);
}

/* Blocks of each launch. */
static int64_t row_tiles(const fattn_problem *problem)
{
    return cuda_tiles(problem->group * problem->desc.seq_q, EXACT_TILE);
}

static int64_t forward_blocks(const fattn_problem *problem)
{
    const fattn_desc *d = &problem->desc;
    return cuda_blocks(cuda_blocks(row_tiles(problem), widths_of(d->dim_v)), cuda_blocks(d->heads_kv, d->batch));
}

static int64_t delta_blocks(const fattn_problem *problem)
{
    const fattn_desc *d = &problem->desc;
    return cuda_tiles(d->batch * d->heads_q * d->seq_q, EXACT_THREADS / 32);
}

static int64_t queries_blocks(const fattn_problem *problem)
{
    const fattn_desc *d = &problem->desc;
    return cuda_blocks(cuda_blocks(row_tiles(problem), widths_of(d->dim)), cuda_blocks(d->heads_kv, d->batch));
}

static int64_t keys_widths(const fattn_desc *d)
{
    return widths_of(d->dim > d->dim_v ? d->dim : d->dim_v);
}

static int64_t keys_blocks(const fattn_problem *problem)
{
    const fattn_desc *d = &problem->desc;
    return cuda_blocks(cuda_blocks(cuda_tiles(d->seq_k, EXACT_TILE), keys_widths(d)), cuda_blocks(d->heads_kv, d->batch));
}

/* As if dbias had all its dimensions. */
static int64_t bias_blocks_most(const fattn_problem *problem)
{
    const fattn_desc *d = &problem->desc;
    return cuda_blocks(cuda_blocks(d->batch, d->heads_q),
                       cuda_blocks(cuda_tiles(d->seq_q, EXACT_TILE), cuda_tiles(d->seq_k, EXACT_TILE)));
}

size_t cuda_exact_delta_bytes(const fattn_problem *problem)
{
    const fattn_desc *d = &problem->desc;
    return (size_t)(fattn_rows_q(d) * d->heads_q) * (d->dtype == FATTN_F64 ? 8 : 4);
}

bool cuda_exact_rest_fits(const fattn_problem *problem)
{
    return delta_blocks(problem) <= CUDA_BLOCKS_MOST &&
           (!(problem->desc.flags & FATTN_WITH_DBIAS) || bias_blocks_most(problem) <= CUDA_BLOCKS_MOST);
}

/* Launches a kernel in the problem's precision. */
static fattn_status launch(const fattn_problem *problem, const fattn_launch *at, int function, int64_t blocks, void **arguments)
{
    return cuda_launch(at, CUDA_IMAGE_EXACT, function + (problem->desc.dtype == FATTN_F64), (cuda_shape){blocks, EXACT_THREADS},
                       arguments);
}

static fattn_status forward(const fattn_problem *problem, const fattn_launch *at)
{
    int64_t tiles = row_tiles(problem), widths = widths_of(problem->desc.dim_v);
    void *arguments[] = {(void *)(uintptr_t)problem, (void *)(uintptr_t)at, &tiles, &widths};
    return launch(problem, at, EXACT_FORWARD, forward_blocks(problem), arguments);
}

fattn_status cuda_exact_delta(const fattn_problem *problem, const fattn_launch *at, void *delta)
{
    void *arguments[] = {(void *)(uintptr_t)problem, (void *)(uintptr_t)at, &delta};
    return launch(problem, at, EXACT_DELTA, delta_blocks(problem), arguments);
}

static fattn_status bias(const fattn_problem *problem, const fattn_launch *at, void *delta)
{
    const fattn_desc *d = &problem->desc;
    const fattn_dbias_shape shape = fattn_dbias_shape_of(d, &at->dbias);
    int64_t rows = cuda_tiles(shape.rows, EXACT_TILE), keys = cuda_tiles(d->seq_k, EXACT_TILE);
    void *arguments[] = {(void *)(uintptr_t)problem, (void *)(uintptr_t)at, &delta, &rows, &keys};
    return launch(problem, at, EXACT_BIAS, shape.batch * shape.heads * rows * keys, arguments);
}

fattn_status cuda_exact_rest(const fattn_problem *problem, const fattn_launch *at, void *delta)
{
    const fattn_desc *d = &problem->desc;
    void *arguments[] = {(void *)(uintptr_t)problem, (void *)(uintptr_t)at, &delta};
    fattn_status status = d->flags & FATTN_WITH_DBIAS ? bias(problem, at, delta) : FATTN_OK;
    if (status == FATTN_OK && (d->flags & FATTN_WITH_DSINKS))
        status = launch(problem, at, EXACT_SINKS, d->heads_q, arguments);
    return status;
}

static fattn_status backward(const fattn_problem *problem, const fattn_launch *at)
{
    const fattn_desc *d = &problem->desc;
    int64_t rows = row_tiles(problem), keys = cuda_tiles(d->seq_k, EXACT_TILE), rows_widths = widths_of(d->dim),
            both_widths = keys_widths(d);
    void *delta = at->workspace, *whole = (void *)(uintptr_t)problem, *where = (void *)(uintptr_t)at;
    void *of_rows[] = {whole, where, &delta, &rows, &rows_widths}, *of_keys[] = {whole, where, &delta, &keys, &both_widths};
    fattn_status status = cuda_exact_delta(problem, at, delta);
    if (status == FATTN_OK)
        status = launch(problem, at, EXACT_QUERIES, queries_blocks(problem), of_rows);
    if (status == FATTN_OK)
        status = launch(problem, at, EXACT_KEYS, keys_blocks(problem), of_keys);
    return status != FATTN_OK ? status : cuda_exact_rest(problem, at, delta);
}

static const char *refuse_forward(const fattn_problem *problem)
{
    return cuda_too_large(forward_blocks(problem) > CUDA_BLOCKS_MOST);
}

static const char *refuse_backward(const fattn_problem *problem)
{
    return cuda_too_large(queries_blocks(problem) > CUDA_BLOCKS_MOST || keys_blocks(problem) > CUDA_BLOCKS_MOST ||
                          !cuda_exact_rest_fits(problem));
}

/* Every type in one row each. */
FATTN_KERNEL_TABLE(fattn_cuda_exact,
                   {.name = "cuda_exact_forward",
                    .op = FATTN_OP_FORWARD,
                    .device = FATTN_DEVICE_CUDA,
                    .needs = FATTN_CUDA_SM80,
                    .refuse = refuse_forward,
                    .run = forward},
                   {.name = "cuda_exact_backward",
                    .op = FATTN_OP_BACKWARD,
                    .device = FATTN_DEVICE_CUDA,
                    .needs = FATTN_CUDA_SM80,
                    .refuse = refuse_backward,
                    .workspace = cuda_exact_delta_bytes,
                    .run = backward});
