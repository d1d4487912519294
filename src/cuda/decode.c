/*
 * The decode kernels' host side: which problems, and what is launched. decode.cu has the kernels.
 */
#include "cuda/decode.h"
#include "cuda/cuda.h"

/* For each size f16, bf16, and bf16 against bytes, each followed by the one where scores are adjusted; then what joins chunks.
 */
#define BOTH(name, bytes_shared) {name, bytes_shared}, {name "_adjusted", bytes_shared},
#define FUNCTIONS(size, dim, width, keys, stages, keys_of_bytes, stages_of_bytes)                                              \
    BOTH("decode_f16_" #size, DECODE_SHARED(dim, width, keys, stages, 2, DECODE_WARPS))                                        \
    BOTH("decode_bf16_" #size, DECODE_SHARED(dim, width, keys, stages, 2, DECODE_WARPS))                                       \
    BOTH("decode_bf16_" #size "_bytes", DECODE_SHARED(dim, width, keys_of_bytes, stages_of_bytes, 1, DECODE_WARPS))

static const cuda_function functions[] = {DECODE_SIZES(FUNCTIONS){"decode_join_128", 0}, {"decode_join_512", 0}};
enum { FUNCTIONS_OF_SIZE = 6, JOIN = FUNCTIONS_OF_SIZE * DECODE_SIZES_COUNT };

CUDA_IMAGE_DEFINE(decode, functions, 0);

/* What GPUs of compute capability 8.0 and 9.0 have, and those of 8.6 and 8.9. */
#define FITS(size, dim, width, keys, stages, keys_of_bytes, stages_of_bytes)                                                   \
    _Static_assert(DECODE_SHARED(dim, width, keys, stages, 2, DECODE_WARPS) <= ((dim) > 256 ? 163 : 99) * 1024 &&              \
                       DECODE_SHARED(dim, width, keys_of_bytes, stages_of_bytes, 1, DECODE_WARPS) <=                           \
                           ((dim) > 256 ? 163 : 99) * 1024,                                                                    \
                   "docs/features.md says that it fits");
DECODE_SIZES(FITS)

/* Numbers of a size: the dims it is for, columns of a unit; then keys of a tile and stages, by whether K and V are bytes. */
typedef struct decode_size {
    int64_t dim, width, keys[2], stages[2];
} decode_size;

#define SIZE(size, dim, width, keys, stages, keys_of_bytes, stages_of_bytes)                                                   \
    {dim, width, {keys, keys_of_bytes}, {stages, stages_of_bytes}},
static const decode_size sizes[DECODE_SIZES_COUNT] = {DECODE_SIZES(SIZE)};

/* The least size for the problem's dims. */
static int size_of(const fattn_desc *d)
{
    int size = 0;
    while (sizes[size].dim < (d->dim > d->dim_v ? d->dim : d->dim_v))
        size++;
    return size;
}

/* Rows of the queries of a key/value head, at most one more than are taken. */
static int64_t rows_of(const fattn_problem *problem)
{
    int64_t rows;
    const bool large = __builtin_mul_overflow(problem->group, problem->desc.seq_q, &rows);
    return large || rows > DECODE_ROWS_MOST ? DECODE_ROWS_MOST + 1 : rows;
}

/* Blocks of the main launch: units, or more than any grid has. */
static int64_t units_of(const fattn_problem *problem, decode_call *call)
{
    const fattn_desc *d = &problem->desc;
    const decode_size *size = &sizes[size_of(d)];
    const int64_t rows = rows_of(problem);
    call->chunks = cuda_tiles(d->seq_k, DECODE_CHUNK);
    call->widths = cuda_tiles(d->dim_v, size->width);
    call->pages = d->page_size > 0 ? cuda_tiles(d->seq_k, d->page_size) : 0;
    call->row_tiles = rows <= 16 ? 1 : rows <= 32 ? 2 : 4;
    return rows == 0 ? 0 : cuda_blocks(cuda_blocks(call->chunks, call->widths), cuda_blocks(d->heads_kv, d->batch));
}

/* Blocks of the second launch: rows. */
static int64_t joins_of(const fattn_desc *d)
{
    return cuda_blocks(d->batch, cuda_blocks(d->heads_q, d->seq_q));
}

/* Partial sums of all rows, and two numbers each. */
static size_t workspace(const fattn_problem *problem)
{
    decode_call call;
    const fattn_desc *d = &problem->desc;
    units_of(problem, &call);
    return (size_t)(joins_of(d) * call.chunks * (d->dim_v + 2)) * sizeof(float);
}

static int function_of(const fattn_desc *d)
{
    return FUNCTIONS_OF_SIZE * size_of(d) + 2 * ((d->dtype == FATTN_BF16) + (d->kv_dtype == FATTN_I8)) + cuda_adjusts(d);
}

static size_t shared(const fattn_problem *problem)
{
    return functions[function_of(&problem->desc)].shared;
}

static fattn_status decode(const fattn_problem *problem, const fattn_launch *at)
{
    const fattn_desc *d = &problem->desc;
    const bool bytes = d->kv_dtype == FATTN_I8;
    const int size = size_of(d);
    const int64_t kv_size = bytes ? 1 : 2;
    decode_call call = {.adjusted = cuda_adjusts(d),
                        .q_lines = cuda_in_lines(&at->q, 2, d->dim),
                        .k_lines = cuda_in_lines(&at->k, kv_size, d->dim),
                        .v_lines = cuda_in_lines(&at->v, kv_size, d->dim_v)};
    const int64_t units = units_of(problem, &call), joins = joins_of(d);
    call.ends = (float *)(void *)at->workspace;
    call.sums = call.ends + 2 * joins * call.chunks;
    const size_t room = (size_t)DECODE_SHARED(sizes[size].dim, sizes[size].width, sizes[size].keys[bytes],
                                              sizes[size].stages[bytes], kv_size, call.row_tiles);
    void *arguments[] = {(void *)(uintptr_t)problem, (void *)(uintptr_t)at, &call};
    fattn_status status =
        cuda_launch_early(at, CUDA_IMAGE_DECODE, function_of(d), (cuda_shape){units, DECODE_THREADS}, room, arguments);
    const int join = JOIN + (d->dim_v > 128);
    const cuda_shape shape = {joins, DECODE_JOIN_THREADS};
    if (status != FATTN_OK)
        return status;
    /* It reads lists before it waits, and so may begin early only behind the other, which has waited for who wrote them. */
    return units > 0 ? cuda_launch_early(at, CUDA_IMAGE_DECODE, join, shape, 0, arguments)
                     : cuda_launch(at, CUDA_IMAGE_DECODE, join, shape, arguments);
}

/* Rows in whole tiles, of all key/value heads of all sequences. */
static int64_t work_of(const fattn_problem *problem)
{
    return cuda_blocks(16 * cuda_tiles(rows_of(problem), 16), cuda_blocks(problem->desc.heads_kv, problem->desc.batch));
}

/* Measured on an H200 against cuda_hopper, with seq_k 64 to 8192, 1 to 64 rows, 8 and 128 key/value heads in all. */
bool cuda_decode_divides(const fattn_problem *problem)
{
    const int64_t rows = rows_of(problem);
    return rows <= DECODE_ROWS_MOST && work_of(problem) <= 1024 && problem->desc.seq_k > (rows <= 16 ? 512 : 4096);
}

/* The same against cuda_tensor. */
static const char *unworthy(const fattn_problem *problem)
{
    const int64_t rows = rows_of(problem), seq_k = problem->desc.seq_k;
    const bool worthy = rows <= 16 || (seq_k >= 1024 && (rows <= 32 || work_of(problem) <= 1024));
    return worthy ? NULL : "is for few query rows for each key/value head; more are faster in tiles";
}

static const char *refuse(const fattn_problem *problem, int32_t dtype)
{
    decode_call call;
    const fattn_desc *d = &problem->desc;
    if (d->dtype != dtype)
        return dtype == FATTN_F16 ? "takes f16 only" : "takes bf16 only";
    if (d->kv_dtype == FATTN_I8 && dtype == FATTN_F16)
        return "takes no keys of bytes in f16, whose range their factors may leave";
    if (rows_of(problem) > DECODE_ROWS_MOST)
        return "takes at most 64 query rows for each key/value head";
    return cuda_too_large(units_of(problem, &call) > CUDA_BLOCKS_MOST || joins_of(d) > CUDA_BLOCKS_MOST);
}

static const char *refuse_f16(const fattn_problem *problem)
{
    return refuse(problem, FATTN_F16);
}

static const char *refuse_bf16(const fattn_problem *problem)
{
    return refuse(problem, FATTN_BF16);
}

#define ROW(type, number)                                                                                                      \
    {                                                                                                                          \
        .name = "cuda_decode_" #type, .op = FATTN_OP_FORWARD, .rounds = number, .device = FATTN_DEVICE_CUDA,                   \
        .needs = FATTN_CUDA_SM80, .refuse = refuse_##type, .unworthy = unworthy, .shared = shared, .workspace = workspace,     \
        .run = decode                                                                                                          \
    }

FATTN_KERNEL_TABLE(fattn_cuda_decode, ROW(f16, FATTN_F16), ROW(bf16, FATTN_BF16));
