/*
 * Hopper's backward kernels' host side: which problems, what the workspace holds, and the three launches. hopper_passes.cu and
 * hopper_backward.cu have the kernels.
 */
#include "cuda/hopper_backward.h"
#include "core/mask.h"
#include "cuda/exact.h"
#include "cuda/maps.h"

#include <math.h>

/* Of each kernel that for dims up to 64, then up to 128; where sums are added in any order, then in order. */
static const cuda_function backward_functions[] = {{"hopper_backward_64", HOPPER_BACKWARD_SHARED(64, 0)},
                                                   {"hopper_backward_64_ordered", HOPPER_BACKWARD_SHARED(64, 1)},
                                                   {"hopper_backward_128", HOPPER_BACKWARD_SHARED(128, 0)},
                                                   {"hopper_backward_128_ordered", HOPPER_BACKWARD_SHARED(128, 1)}};
static const cuda_function passes[] = {{"hopper_before_64", 0},  {"hopper_before_64_ordered", 0},
                                       {"hopper_before_128", 0}, {"hopper_before_128_ordered", 0},
                                       {"hopper_after_64", 0},   {"hopper_after_128", 0}};
enum { AFTER = 4, DIM_MOST = 128, ROWS_MOST = INT32_MAX - 4096 }; /* with room to round up to tiles */

_Static_assert(HOPPER_BACKWARD_SHARED(64, 1) <= 227 * 1024 && HOPPER_BACKWARD_SHARED(128, 1) <= 227 * 1024,
               "a block of Hopper may have 227 KiB");

CUDA_IMAGE_DEFINE(hopper_backward, backward_functions, FATTN_CUDA_SM90);
CUDA_IMAGE_DEFINE(hopper_passes, passes, FATTN_CUDA_SM90);

/* ----------------------------------------------------------------------------------------------------------- workspace */

static int64_t padded_dim(const fattn_desc *d)
{
    return d->dim > 64 || d->dim_v > 64 ? 128 : 64;
}

static int64_t block_rows(const fattn_desc *d)
{
    return HOPPER_BACKWARD_ROWS(padded_dim(d));
}

static int64_t blocks_of(const fattn_desc *d)
{
    return d->total_q > 0 ? d->total_q / block_rows(d) + d->batch : d->batch * cuda_tiles(d->seq_q, block_rows(d));
}

static int64_t tiles_of(const fattn_desc *d)
{
    return cuda_blocks(cuda_tiles(d->seq_k, HOPPER_BACKWARD_KEYS), cuda_blocks(d->heads_kv, d->batch));
}

/* Sets the call's places in the workspace, which may be NULL. Returns how many bytes it takes. */
static size_t lay_out(const fattn_problem *problem, unsigned char *workspace, hopper_backward_call *call)
{
    const fattn_desc *d = &problem->desc;
    const int64_t all = d->heads_q * call->blocks, rows = block_rows(d);
    size_t used = 0;
    call->sums = cuda_place(workspace, &used, all * rows * padded_dim(d) * (int64_t)sizeof(float));
    call->numbers = cuda_place(workspace, &used, all * rows * HOPPER_ROW_NUMBERS * (int64_t)sizeof(float));
    call->delta = cuda_place(workspace, &used, (int64_t)cuda_exact_delta_bytes(problem));
    call->spans = cuda_place(workspace, &used, call->blocks * 4 * (int64_t)sizeof(int32_t));
    call->turns = cuda_place(workspace, &used, all * (int64_t)sizeof(int32_t));
    call->wrong = cuda_place(workspace, &used, (int64_t)call->tiles * HOPPER_TILE_WARPS * (int64_t)sizeof(uint32_t));
    call->next = cuda_place(workspace, &used, sizeof(int32_t));
    return used;
}

static hopper_backward_call call_of(const fattn_problem *problem)
{
    const fattn_desc *d = &problem->desc;
    return (hopper_backward_call){.blocks = blocks_of(d),
                                  .row_blocks = (int32_t)cuda_tiles(d->seq_q, block_rows(d)),
                                  .key_tiles = (int32_t)cuda_tiles(d->seq_k, HOPPER_BACKWARD_KEYS),
                                  .tiles = (int32_t)tiles_of(d)};
}

static size_t workspace(const fattn_problem *problem)
{
    hopper_backward_call call = call_of(problem);
    return lay_out(problem, NULL, &call);
}

/* ----------------------------------------------------------------------------------------------------------- launches */

/* As many key/value heads are worked on side by side as find their rows' Q, dO and sums of dQ in the GPU's cache; of few keys
 * each, half as many, since K, V, dK and dV then weigh as much. But where a mask makes a head's last tiles short and they add
 * in order, more, as such a tile takes less time than it waits for the one before. Measured on an H200. */
static int32_t heads_together(const fattn_problem *problem, bool ordered)
{
    enum { HEADS_IN_ORDER = 16 };
    const fattn_desc *d = &problem->desc;
    const int64_t heads = d->heads_kv * d->batch, bytes = problem->group * d->seq_q * padded_dim(d) * (2 + 2 + 4);
    int64_t fit = ((d->seq_k < 1024 ? 16 : 32) << 20) / (bytes > 0 ? bytes : 1);
    if (ordered && d->mask != FATTN_MASK_FULL)
        fit = fattn_larger(fit, HEADS_IN_ORDER);
    return (int32_t)(fit < 1 ? 1 : fit > heads ? heads : fit);
}

typedef struct tensor_maps {
    CUtensorMap q, k, v, dout;
} tensor_maps;

static void set_maps(const fattn_problem *problem, const fattn_launch *at, tensor_maps *maps, hopper_backward_call *call)
{
    const fattn_desc *d = &problem->desc;
    const int64_t q_batch = d->total_q > 0 ? 1 : d->batch, k_batch = d->total_k > 0 ? 1 : d->batch;
    cuda_map_shape q = {d->dim, d->heads_q, d->total_q > 0 ? d->total_q : d->seq_q, q_batch, 1, (int)block_rows(d)};
    cuda_map_shape k = {d->dim, d->heads_kv, d->total_k > 0 ? d->total_k : d->seq_k, k_batch, 1, HOPPER_BACKWARD_KEYS};
    call->q_map = cuda_map_encode(&maps->q, d->dtype, &at->q, q);
    call->k_map = cuda_map_encode(&maps->k, d->dtype, &at->k, k);
    q.columns = k.columns = d->dim_v;
    call->dout_map = cuda_map_encode(&maps->dout, d->dtype, &at->dout, q);
    call->v_map = cuda_map_encode(&maps->v, d->dtype, &at->v, k);
}

static void set_lines(const fattn_problem *problem, const fattn_launch *at, hopper_backward_call *call)
{
    const fattn_desc *d = &problem->desc;
    const bool narrow = d->grad_dtype != FATTN_F32;
    call->out_lines = cuda_in_lines(&at->out, 2, d->dim_v);
    call->dout_lines = cuda_in_lines(&at->dout, 2, d->dim_v);
    call->dq_lines = narrow && cuda_in_lines(&at->dq, 2, d->dim);
    call->dk_lines = narrow && cuda_in_lines(&at->dk, 2, d->dim);
    call->dv_lines = narrow && cuda_in_lines(&at->dv, 2, d->dim_v);
}

static fattn_status backward(const fattn_problem *problem, const fattn_launch *at, bool ordered)
{
    const fattn_desc *d = &problem->desc;
    const cuda_gpu *gpu = at->context->gpu;
    const int large = padded_dim(d) > 64;
    tensor_maps maps = {0};
    hopper_backward_call call = call_of(problem);
    call.together = heads_together(problem, ordered);
    lay_out(problem, at->workspace, &call);
    set_maps(problem, at, &maps, &call);
    set_lines(problem, at, &call);
    void *arguments[] = {(void *)(uintptr_t)problem, (void *)(uintptr_t)at, &call, &maps}; /* the passes take three */
    const int64_t blocks = d->heads_q * call.blocks;
    const cuda_shape before = {fattn_larger(blocks, 1), HOPPER_PASS_THREADS},
                     after = {fattn_larger(blocks, call.tiles), HOPPER_PASS_THREADS},
                     main = {call.tiles < gpu->multiprocessors ? call.tiles : gpu->multiprocessors, HOPPER_BACKWARD_THREADS};
    fattn_status status = cuda_launch(at, CUDA_IMAGE_HOPPER_PASSES, 2 * large + ordered, before, arguments);
    if (status == FATTN_OK)
        status = cuda_launch_early(at, CUDA_IMAGE_HOPPER_BACKWARD, 2 * large + ordered, main,
                                   backward_functions[2 * large + ordered].shared, arguments);
    if (status == FATTN_OK)
        status = cuda_launch_early(at, CUDA_IMAGE_HOPPER_PASSES, AFTER + large, after, 0, arguments);
    return status != FATTN_OK ? status : cuda_exact_rest(problem, at, call.delta);
}

static fattn_status backward_unordered(const fattn_problem *problem, const fattn_launch *at)
{
    return backward(problem, at, false);
}

static fattn_status backward_ordered(const fattn_problem *problem, const fattn_launch *at)
{
    return backward(problem, at, true);
}

static const char *refuse_scores(const fattn_desc *d)
{
    if (d->softcap != 0)
        return "takes no softcap";
    if (d->flags & FATTN_WITH_BIAS)
        return "takes no bias";
    if (d->flags & FATTN_WITH_SLOPES)
        return "takes no slopes";
    if (d->dropout != 0)
        return "takes no dropout";
    if (fabs(d->scale) < 0x1p-64 || fabs(d->scale) > 0x1p64)
        return "takes scales of 2^-64 to 2^64 in size only"; /* lse / scale is a float */
    return NULL;
}

static const char *refuse(const fattn_problem *problem)
{
    const fattn_desc *d = &problem->desc;
    if (d->dtype != FATTN_BF16)
        return "takes bf16 only";
    if (d->dim > DIM_MOST || d->dim_v > DIM_MOST)
        return "takes dims up to 128";
    if (d->out_dtype != d->dtype)
        return "takes out and dout of the inputs' type only";
    const char *reason = refuse_scores(d);
    if (reason)
        return reason;
    if (d->seq_q > ROWS_MOST || d->seq_k > ROWS_MOST || fattn_rows_q(d) > ROWS_MOST || fattn_rows_k(d) > ROWS_MOST)
        return "takes no problem of 2^31 rows";
    return cuda_too_large(cuda_blocks(d->heads_q, blocks_of(d)) > CUDA_BLOCKS_MOST || tiles_of(d) > CUDA_BLOCKS_MOST ||
                          !cuda_exact_rest_fits(problem));
}

/* With a full mask all tiles of a head come to a block of rows at once, and in order they queue for it; with a causal one they
 * come one after the other as long as all of them are at work. The more tiles follow, the less such waits count against the
 * zeros that adding in any order needs beforehand. Measured on an H200, 132 tiles at once (docs/decisions/0021). */
static const char *unworthy_unordered(const fattn_problem *problem)
{
    enum { AT_ONCE = 132 };
    static const int64_t rounds[2][2] = {{4, 4}, {8, 32}}; /* by dim, and mask: full or causal */
    const fattn_desc *d = &problem->desc;
    const bool causal = d->mask == FATTN_MASK_CAUSAL, queue = d->mask == FATTN_MASK_FULL || causal;
    const int64_t tiles = tiles_of(d), most = AT_ONCE * rounds[padded_dim(d) > 64][causal];
    return queue && tiles <= most && tiles > AT_ONCE * causal
               ? NULL
               : "is no faster than adding in order for this mask and these numbers of keys and heads";
}

#define ROW(which, any_order)                                                                                                  \
    {                                                                                                                          \
        .name = "cuda_hopper_backward_" which "bf16", .family = "cuda_hopper", .op = FATTN_OP_BACKWARD, .rounds = FATTN_BF16,  \
        .unordered = any_order, .device = FATTN_DEVICE_CUDA, .needs = FATTN_CUDA_SM90, .refuse = refuse,                       \
        .unworthy = any_order ? unworthy_unordered : NULL, .workspace = workspace,                                             \
        .run = any_order ? backward_unordered : backward_ordered                                                               \
    }

FATTN_KERNEL_TABLE(fattn_cuda_hopper_backward, ROW("unordered_", 1), ROW("", 0));
