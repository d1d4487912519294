/*
 * Hopper's kernels' host side: which problems, and what is launched. hopper_forward.cu has the kernels.
 *
 * TMA wants rows at multiples of 16 bytes and strides above 0. What a descriptor says of that, `refuse` looks at; views are
 * known at a call only, and those that TMA cannot express the same kernel loads and stores with ordinary instructions.
 */
#include "cuda/hopper.h"
#include "cuda/cuda.h"
#include "cuda/decode.h"
#include "cuda/maps.h"

#define FORWARD(size, dim, warpgroups, keys, tiles, stages)                                                                    \
    {"hopper_forward_f16_" #size, HOPPER_FORWARD_SHARED(dim, warpgroups, keys, tiles, stages)},                                \
        {"hopper_forward_bf16_" #size, HOPPER_FORWARD_SHARED(dim, warpgroups, keys, tiles, stages)},
static const cuda_function functions[] = {HOPPER_FORWARD_SIZES(FORWARD)};

CUDA_IMAGE_DEFINE(hopper_forward, functions, FATTN_CUDA_SM90);

/* Numbers of a size: the dims it is for, warpgroups, keys of a tile. */
typedef struct forward_size {
    int dim, warpgroups, keys;
} forward_size;

#define FORWARD_SIZE(size, dim, warpgroups, keys, tiles, stages) {dim, warpgroups, keys},
static const forward_size sizes[] = {HOPPER_FORWARD_SIZES(FORWARD_SIZE)};
enum { SIZES = sizeof sizes / sizeof *sizes, DIM_MOST = 256, ROWS_MOST = INT32_MAX - 4096 };

static const int64_t L2_BYTES = 32 << 20; /* of keys and values that are to stay in the L2 cache */

/* The least size for the problem's dims. */
static int size_of(const fattn_desc *d)
{
    int size = 0;
    while (size < SIZES - 1 && (sizes[size].dim < d->dim || sizes[size].dim < d->dim_v))
        size++;
    return size;
}

/* Fills in what a launch says; its number of tiles. */
static int64_t call_of(const fattn_problem *problem, hopper_call *call)
{
    const fattn_desc *d = &problem->desc;
    const int rows = HOPPER_ROWS * sizes[size_of(d)].warpgroups;
    *call = (hopper_call){.group = 1};
    while (call->group < HOPPER_ROWS && problem->group % (2 * call->group) == 0)
        call->group *= 2, call->group_log2++;
    const int64_t groups = cuda_blocks(d->heads_q / call->group, d->batch);
    call->heads = (int32_t)(d->heads_q / call->group);
    call->groups = (int32_t)(groups > INT32_MAX ? INT32_MAX : groups);
    call->tiles = (int32_t)cuda_tiles(call->group * d->seq_q, rows);
    return cuda_blocks(groups, call->tiles);
}

/* In which order `blocks` blocks take the tiles: with a mask these differ in length, without one those of a group follow each
 * other. Sections are of equal sizes. */
static void set_order(const fattn_problem *problem, int64_t blocks, hopper_call *call)
{
    const fattn_desc *d = &problem->desc;
    const int64_t bytes = d->seq_k * (d->dim + d->dim_v) * 2, kept = bytes < L2_BYTES ? L2_BYTES / bytes : 1;
    int64_t sections = 1;
    call->by_rows = d->mask != FATTN_MASK_FULL;
    if (call->by_rows)
        sections = cuda_tiles(call->groups, kept * (problem->group / call->group));
    call->section = (int32_t)cuda_tiles(call->groups, sections);
    const int64_t tiles = (int64_t)call->section * call->tiles;
    call->rounds = (int32_t)cuda_tiles(tiles, blocks);
    call->skew = (int32_t)((blocks - tiles % blocks) % blocks);
}

static fattn_status forward(const fattn_problem *problem, const fattn_launch *at)
{
    const fattn_desc *d = &problem->desc;
    const int size = size_of(d), warpgroups = sizes[size].warpgroups;
    const int64_t batch_q = at->cu_q ? 1 : d->batch, batch_k = at->cu_k ? 1 : d->batch;
    const int64_t rows_q = at->cu_q ? d->total_q : d->seq_q, rows_k = at->cu_k ? d->total_k : d->seq_k;
    hopper_call call;
    CUtensorMap q = {0}, k = {0}, v = {0}, out = {0};
    const int64_t tiles = call_of(problem, &call), most = ((const cuda_gpu *)at->context->gpu)->multiprocessors;
    if (tiles == 0)
        return FATTN_OK;
    const cuda_shape shape = {tiles < most ? tiles : most, HOPPER_THREADS(warpgroups)};
    set_order(problem, shape.blocks, &call);
    const cuda_map_shape keys = {d->dim, d->heads_kv, rows_k, batch_k, 1, sizes[size].keys};
    const cuda_map_shape values = {d->dim_v, d->heads_kv, rows_k, batch_k, 1, sizes[size].keys};
    const cuda_map_shape rows = {d->dim, d->heads_q, rows_q, batch_q, call.group, HOPPER_ROWS};
    const cuda_map_shape results = {d->dim_v, d->heads_q, rows_q, batch_q, call.group, HOPPER_ROWS};
    const int64_t out_strides = at->out.stride_batch | at->out.stride_head | at->out.stride_row;
    call.q_boxes = cuda_map_encode(&q, d->dtype, &at->q, rows);
    call.k_boxes = cuda_map_encode(&k, d->dtype, &at->k, keys);
    call.v_boxes = cuda_map_encode(&v, d->dtype, &at->v, values);
    call.out_boxes = d->out_dtype == d->dtype && cuda_map_encode(&out, d->dtype, &at->out, results);
    call.pairs = out_strides % 2 == 0 && (uintptr_t)at->out.data % (2 * fattn_dtype_size(d->out_dtype)) == 0;
    void *arguments[] = {(void *)(uintptr_t)problem, (void *)(uintptr_t)at, &call, &q, &k, &v, &out};
    return cuda_launch(at, CUDA_IMAGE_HOPPER_FORWARD, 2 * size + (d->dtype == FATTN_BF16), shape, arguments);
}

static const char *refuse_options(const fattn_desc *d)
{
    if (d->flags & FATTN_WITH_BIAS)
        return "takes no bias";
    if (d->flags & FATTN_WITH_SLOPES)
        return "takes no slopes";
    if (d->softcap != 0)
        return "takes no softcap";
    if (d->dropout != 0)
        return "takes no dropout";
    if (d->kv_dtype == FATTN_I8)
        return "takes no keys of bytes";
    return d->page_size > 0 ? "takes no pages" : NULL;
}

static const char *refuse(const fattn_problem *problem, int32_t dtype)
{
    const fattn_desc *d = &problem->desc;
    hopper_call call;
    if (d->dtype != dtype)
        return dtype == FATTN_F16 ? "takes f16 only" : "takes bf16 only";
    if (d->dim > DIM_MOST || d->dim_v > DIM_MOST)
        return "takes dims up to 256";
    if (d->dim % 8 != 0 || d->dim_v % 8 != 0)
        return "takes dims that are multiples of 8";
    if (fattn_rows_k(d) == 0 || d->seq_k == 0)
        return "takes no problem without keys";
    if (fattn_rows_q(d) > ROWS_MOST / problem->group || fattn_rows_k(d) > ROWS_MOST || d->seq_q > ROWS_MOST / problem->group)
        return "takes no problem of 2^31 rows times grouped heads";
    return refuse_options(d) ? refuse_options(d) : cuda_too_large(call_of(problem, &call) > CUDA_BLOCKS_MOST);
}

static const char *refuse_f16(const fattn_problem *problem)
{
    return refuse(problem, FATTN_F16);
}

static const char *refuse_bf16(const fattn_problem *problem)
{
    return refuse(problem, FATTN_BF16);
}

/* Few rows of few heads leave most of the GPU without work. */
static const char *unworthy(const fattn_problem *problem)
{
    return cuda_decode_divides(problem) ? "does not divide keys, which is faster for few query rows of few heads" : NULL;
}

#define ROW(type, dtype)                                                                                                       \
    {                                                                                                                          \
        .name = "cuda_hopper_forward_" #type, .family = "cuda_hopper", .op = FATTN_OP_FORWARD, .rounds = dtype,                \
        .device = FATTN_DEVICE_CUDA, .needs = FATTN_CUDA_SM90, .refuse = refuse_##type, .unworthy = unworthy, .run = forward   \
    }

FATTN_KERNEL_TABLE(fattn_cuda_hopper, ROW(f16, FATTN_F16), ROW(bf16, FATTN_BF16));
