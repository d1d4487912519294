/*
 * The host side of the tensor-core kernels for f32: which problems, how much workspace, what is launched. split.cu,
 * split_forward.cu and split_backward.cu have the kernels.
 */
#include "cuda/split.h"
#include "cuda/cuda.h"
#include "cuda/exact.h"

/* For each size a function, then the one where scores are adjusted. */
#define FORWARD(dim, m, keys, blocks, m_adjusted, keys_adjusted, blocks_adjusted)                                              \
    {"split_forward_" #dim, SPLIT_FORWARD_SHARED(dim, m, keys)},                                                               \
        {"split_forward_" #dim "_adjusted", SPLIT_FORWARD_SHARED(dim, m_adjusted, keys_adjusted)},
#define BACKWARD(dim, m_keys, rows, m_rows, keys, blocks)                                                                      \
    {"split_backward_" #dim, BACKWARD_SHARED(dim, m_keys, rows, m_rows, keys)},                                                \
        {"split_backward_" #dim "_adjusted", BACKWARD_SHARED(dim, m_keys, rows, m_rows, keys)},
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define BACKWARD_SHARED(dim, m_keys, rows, m_rows, keys)                                                                       \
    LARGER(SPLIT_BACKWARD_SHARED(dim, m_keys, rows), SPLIT_BACKWARD_SHARED(dim, m_rows, keys))

static const cuda_function list_functions[] = {{"split_lists", 0}};
static const cuda_function forward_functions[] = {SPLIT_FORWARD_SIZES(FORWARD)};
static const cuda_function backward_functions[] = {SPLIT_BACKWARD_SIZES(BACKWARD)};

CUDA_IMAGE_DEFINE(split, list_functions, 0);
CUDA_IMAGE_DEFINE(split_forward, forward_functions, 0);
CUDA_IMAGE_DEFINE(split_backward, backward_functions, 0);

/* Numbers of a size: the dims it is for; rows of a unit, in forward by adjusted; keys of a unit that owns keys; rows of its
 * tiles. */
typedef struct split_size {
    int64_t dim, rows[2], keys;
    int32_t tile[2][2]; /* rows of a scale's tiles, see split_call, by adjusted */
} split_size;

#define FORWARD_SIZE(dim, m, keys, blocks, m_adjusted, keys_adjusted, blocks_adjusted)                                         \
    {dim, {TENSOR_ROWS(m), TENSOR_ROWS(m_adjusted)}, 0, {{keys, keys}, {keys_adjusted, keys_adjusted}}},
#define BACKWARD_SIZE(dim, m_keys, tile_rows, m_rows, keys, blocks)                                                            \
    {dim, {TENSOR_ROWS(m_rows), TENSOR_ROWS(m_rows)}, TENSOR_ROWS(m_keys), {{tile_rows, keys}, {tile_rows, keys}}},
static const split_size forward_sizes[] = {SPLIT_FORWARD_SIZES(FORWARD_SIZE)};
static const split_size backward_sizes[] = {SPLIT_BACKWARD_SIZES(BACKWARD_SIZE)};
enum {
    FORWARD_SIZES = sizeof forward_sizes / sizeof *forward_sizes,
    BACKWARD_SIZES = sizeof backward_sizes / sizeof *backward_sizes
};

#define FORWARD_TILES(dim, m, keys, blocks, m_adjusted, keys_adjusted, blocks_adjusted)                                        \
    &&(keys) <= SPLIT_TILE_MOST && (keys_adjusted) <= SPLIT_TILE_MOST
#define BACKWARD_TILES(dim, m_keys, rows, m_rows, keys, blocks) &&(rows) <= SPLIT_TILE_MOST && (keys) <= SPLIT_TILE_MOST
_Static_assert(1 SPLIT_FORWARD_SIZES(FORWARD_TILES) SPLIT_BACKWARD_SIZES(BACKWARD_TILES),
               "a warp has a lane for each row of a tile");

/* The least size for the problem's dims. */
static int size_of(const split_size *sizes, int count, const fattn_desc *d)
{
    const int64_t dim = d->dim > d->dim_v ? d->dim : d->dim_v;
    int size = 0;
    while (size < count - 1 && sizes[size].dim < dim)
        size++;
    return size;
}

static const split_size *forward_size(const fattn_desc *d)
{
    return &forward_sizes[size_of(forward_sizes, FORWARD_SIZES, d)];
}

static const split_size *backward_size(const fattn_desc *d)
{
    return &backward_sizes[size_of(backward_sizes, BACKWARD_SIZES, d)];
}

/* Adds the blocks of a list: of each `of_block` of the `rows` of a sequence's key/value head. */
static void add_blocks(const fattn_desc *d, split_call *call, int list, int64_t rows, int64_t of_block)
{
    call->first[list + 1] = call->first[list] + cuda_blocks(cuda_tiles(rows, of_block), cuda_blocks(d->heads_kv, d->batch));
}

/* The lists of a call, their places in a workspace, and the blocks that make them. Returns the bytes of workspace. */
static size_t plan(const fattn_problem *problem, const split_size *size, bool backward, unsigned char *workspace,
                   split_call *call)
{
    const fattn_desc *d = &problem->desc;
    const int64_t rows = fattn_rows_q(d) * d->heads_q;
    const int64_t rows_head = problem->group * d->seq_q; /* at most, of a sequence */
    const int32_t *tile = size->tile[cuda_adjusts(d)];
    size_t used = 0;
    *call = (split_call){.dim = (int32_t)size->dim, .tile = {tile[0], tile[1]}};
    for (int i = 0; i < SPLIT_TENSORS; i++) {
        const bool keys = i == 1 || i == 2, there = backward || i < 3;
        const int64_t count = keys ? fattn_rows_k(d) * d->heads_kv : rows;
        call->parts[i] = cuda_place(workspace, &used, there ? count * SPLIT_PITCH(size->dim) : 0);
        add_blocks(d, call, i, there ? (keys ? d->seq_k : rows_head) : 0, SPLIT_LIST_ROWS(size->dim));
    }
    if (backward) {
        call->lanes = cuda_place(workspace, &used, rows * SPLIT_LANE_BYTES);
        call->spans = cuda_place(workspace, &used,
                                 (SPLIT_SPANS(rows, tile[0], d->batch * d->heads_kv) + 1) * (int64_t)sizeof(split_span));
        call->delta = cuda_place(workspace, &used, (int64_t)cuda_exact_delta_bytes(problem));
    }
    add_blocks(d, call, SPLIT_TENSORS, backward ? rows_head : 0, TENSOR_THREADS);
    call->tiles[0] = cuda_tiles(rows_head, size->rows[cuda_adjusts(d)]);
    call->tiles[1] = backward ? cuda_tiles(d->seq_k, size->keys) : 0;
    call->rows_blocks = cuda_blocks(call->tiles[0], cuda_blocks(d->heads_kv, d->batch));
    return used;
}

/* Blocks of the main kernel. */
static int64_t blocks_of(const fattn_desc *d, const split_call *call)
{
    return call->rows_blocks + cuda_blocks(call->tiles[1], cuda_blocks(d->heads_kv, d->batch));
}

static size_t forward_workspace(const fattn_problem *problem)
{
    split_call call;
    return plan(problem, forward_size(&problem->desc), false, NULL, &call);
}

static size_t backward_workspace(const fattn_problem *problem)
{
    split_call call;
    return plan(problem, backward_size(&problem->desc), true, NULL, &call);
}

/* In an image. */
static int function_of(int size, const fattn_desc *d)
{
    return 2 * size + cuda_adjusts(d);
}

static size_t forward_shared(const fattn_problem *problem)
{
    const fattn_desc *d = &problem->desc;
    return forward_functions[function_of((int)(forward_size(d) - forward_sizes), d)].shared;
}

static size_t backward_shared(const fattn_problem *problem)
{
    const fattn_desc *d = &problem->desc;
    return backward_functions[function_of((int)(backward_size(d) - backward_sizes), d)].shared;
}

/* Makes the lists, and runs a function of an image on them. */
static fattn_status run(const fattn_problem *problem, const fattn_launch *at, split_call *call, cuda_image_id image,
                        const cuda_function *functions, int size)
{
    const fattn_desc *d = &problem->desc;
    const int function = function_of(size, d);
    const cuda_shape lists = {call->first[SPLIT_TENSORS + 1], TENSOR_THREADS}, units = {blocks_of(d, call), TENSOR_THREADS};
    void *arguments[] = {(void *)(uintptr_t)problem, (void *)(uintptr_t)at, call};
    const fattn_status status = cuda_launch_early(at, CUDA_IMAGE_SPLIT, 0, lists, 0, arguments);
    return status != FATTN_OK ? status : cuda_launch_early(at, image, function, units, functions[function].shared, arguments);
}

static fattn_status forward(const fattn_problem *problem, const fattn_launch *at)
{
    const split_size *size = forward_size(&problem->desc);
    split_call call;
    plan(problem, size, false, at->workspace, &call);
    return run(problem, at, &call, CUDA_IMAGE_SPLIT_FORWARD, forward_functions, (int)(size - forward_sizes));
}

static fattn_status backward(const fattn_problem *problem, const fattn_launch *at)
{
    const split_size *size = backward_size(&problem->desc);
    split_call call;
    plan(problem, size, true, at->workspace, &call);
    const fattn_status status =
        run(problem, at, &call, CUDA_IMAGE_SPLIT_BACKWARD, backward_functions, (int)(size - backward_sizes));
    return status != FATTN_OK ? status : cuda_exact_rest(problem, at, call.delta);
}

static bool too_large(const fattn_problem *problem, const split_size *size, bool backward)
{
    const fattn_desc *d = &problem->desc;
    const int64_t most = INT64_C(1) << 40; /* rows, so that bytes of workspace can be counted */
    split_call call;
    if (fattn_rows_q(d) * d->heads_q > most || fattn_rows_k(d) * d->heads_kv > most)
        return true;
    plan(problem, size, backward, NULL, &call);
    return call.first[SPLIT_TENSORS + 1] > CUDA_BLOCKS_MOST || blocks_of(d, &call) > CUDA_BLOCKS_MOST;
}

static const char *refuse(const fattn_problem *problem, int64_t dim_most, const char *too_wide)
{
    const fattn_desc *d = &problem->desc;
    if (d->dtype != FATTN_F32)
        return "takes f32 only";
    return d->dim > dim_most || d->dim_v > dim_most ? too_wide : NULL;
}

static const char *refuse_forward(const fattn_problem *problem)
{
    const char *reason = refuse(problem, SPLIT_DIM_MOST, "takes dims up to 256");
    return reason ? reason : cuda_too_large(too_large(problem, forward_size(&problem->desc), false));
}

static const char *refuse_backward(const fattn_problem *problem)
{
    const char *reason = refuse(problem, SPLIT_DIM_MOST_BACKWARD, "takes dims up to 128");
    return reason ? reason
                  : cuda_too_large(too_large(problem, backward_size(&problem->desc), true) || !cuda_exact_rest_fits(problem));
}

/* A number's parts have 23 of its bits, unless it is tiny beside others (split.h): each may be rounded once. */
FATTN_KERNEL_TABLE(fattn_cuda_split,
                   {.name = "cuda_split_forward_f32",
                    .op = FATTN_OP_FORWARD,
                    .rounds = FATTN_F32,
                    .device = FATTN_DEVICE_CUDA,
                    .needs = FATTN_CUDA_SM80,
                    .refuse = refuse_forward,
                    .shared = forward_shared,
                    .workspace = forward_workspace,
                    .run = forward},
                   {.name = "cuda_split_backward_f32",
                    .op = FATTN_OP_BACKWARD,
                    .rounds = FATTN_F32,
                    .device = FATTN_DEVICE_CUDA,
                    .needs = FATTN_CUDA_SM80,
                    .refuse = refuse_backward,
                    .shared = backward_shared,
                    .workspace = backward_workspace,
                    .run = backward});
