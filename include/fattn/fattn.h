/*
 * fattn: exact attention for CPUs and GPUs, as a C library.
 *
 *     out = softmax(scale * q k^T, over the keys that the mask keeps) v
 *
 * and its gradient, computed tile by tile with an online softmax (Milakov and Gimelshein 2018; Dao et al. 2022,
 * "FlashAttention", algorithms 1 and 4; Dao 2023, "FlashAttention-2", algorithms 1 and 2). Nothing of size
 * seq_q x seq_k is ever stored, except by the kernels `composed` and `cuda_composed`, which exist to be compared with.
 *
 * This header is the manual.
 *
 * A whole program
 * ---------------
 *
 *     fattn_context *context;
 *     if (fattn_context_create(NULL, &context) != FATTN_OK)
 *         fail(fattn_last_error());
 *
 *     fattn_desc desc = {.struct_size = sizeof desc, .dtype = FATTN_F32, .mask = FATTN_MASK_CAUSAL,
 *                        .batch = 2, .heads_q = 8, .heads_kv = 2, .seq_q = 1024, .seq_k = 1024, .dim = 64, .dim_v = 64};
 *
 *     size_t bytes;
 *     if (fattn_workspace_size(context, &desc, FATTN_OP_FORWARD, &bytes) != FATTN_OK)
 *         fail(fattn_last_error());
 *
 *     fattn_forward_args args = {.struct_size = sizeof args,
 *                                .q = fattn_view_bhsd(q, 8, 1024, 64), .k = fattn_view_bhsd(k, 2, 1024, 64),
 *                                .v = fattn_view_bhsd(v, 2, 1024, 64), .out = fattn_view_bhsd(out, 8, 1024, 64),
 *                                .lse = lse, .workspace = malloc(bytes), .workspace_size = bytes};
 *     if (fattn_forward(context, &desc, &args) != FATTN_OK)
 *         fail(fattn_last_error());
 *
 * Conventions
 * -----------
 *
 *   Tensors    q, out, dout, dq: [batch, heads_q, seq_q, dim or dim_v];  k, v, dk, dv: [batch, heads_kv, seq_k, dim or
 *              dim_v]. Each is a view with its own strides, so any order of batch, heads and rows in memory works, and
 *              packed qkv does; only the last dimension must be contiguous.
 *   Heads      query head h reads key/value head h / (heads_q / heads_kv); heads_q must be a multiple of heads_kv.
 *   Scores     s_ij = softcap(scale * q_i . k_j) + bias_ij - slope_h * |i + off - j|, each part only where asked for, then the
 *              mask; softcap(x) = cap * tanh(x / cap); off is 0 or, aligned bottom-right, seq_k - seq_q. A sink is one more
 *              logit in a row's sum, without a value. Dropout multiplies a row's finished probabilities.
 *   lse        the natural logarithm of the softmax denominator, lse[b][h][i] = ln (sum_j exp(s_ij) + exp(sink_h)), over the
 *              kept keys j; contiguous [batch, heads_q, seq_q]; float, or double where dtype is FATTN_F64.
 *   No keys    a query row that keeps no key (or whose every score is -inf) gives out 0, lse -inf (the sink, if there is one),
 *              and zero gradients; where every score is -inf and there is a sink, gradients are so only if the row's keys and
 *              values are finite.
 *   Types      inputs of 16 or 8 bits are widened, all arithmetic is done in float or wider, and each result is rounded once;
 *              but for kernels of a GPU's tensor cores, see fattn_kernel_info.rounds.
 *   Range      subnormal numbers may count as 0. The kernels cpu_... compute in float (double for FATTN_F64), in log2 units and
 *              with the scale folded into q and k: where the size of a score exceeds the type's largest number / log2(e), or an
 *              element of scale * log2(e) * q (with softcap: scale / softcap * q), of scale * k, or softcap * log2(e) leaves
 *              its normal numbers, results are NaN, or as without the term. A bias below -FLT_MAX / log2(e) counts as -inf.
 *              Where all biases of a row exceed some 1e8 in size, lse in float cannot tell its scores apart: its gradients
 *              mean little, and overflow from some 1e9 on.
 *   Lengths    sequences of differing lengths are either packed, one behind the other without padding (cu_seqlens), or padded,
 *              with their lengths in used_q and used_k. Each sequence counts its rows and keys from 0: masks, alignment, bias
 *              and dropout know nothing of the others. Rows that belong to no sequence are neither read nor written, in any
 *              tensor.
 *   NaN        follows IEEE arithmetic: a NaN in a query row makes that row NaN and leaves the other rows alone. A sink that is
 *              NaN or +inf makes lse so; out then means nothing.
 *   Sizes      every size counts elements, never bytes, except struct_size and workspace_size. Zero is a valid batch,
 *              seq_q or seq_k. Offsets are 64-bit throughout.
 *   Structs    begin with struct_size, set by the caller to sizeof the struct it was compiled with. Fields are only ever
 *              appended, and zero keeps the older meaning, so programs compiled with an older header keep working. A
 *              struct that is larger than the library's own is accepted only if the tail it does not know is zero.
 *   Errors     every call that can fail returns a status, and fattn_last_error() then says what was wrong, mostly a field
 *              and the two values that disagree. The library never prints, aborts or exits. After an error no tensor was
 *              written, unless a GPU's driver or library failed (FATTN_ERROR_SYSTEM) when a part was on its way.
 *   Memory     calls allocate nothing but, the first time, the threads of the built-in pool; only the kernels `composed` and
 *              `cuda_composed` are different, as their matrix product libraries may allocate, cuBLAS the first time. Ask
 *              fattn_workspace_size(), pass that many bytes. The workspace holds nothing between calls; calls that run at the
 *              same time need one each.
 *   Threads    a context never changes after it was made, and any number of threads may use it at once.
 *   Signals    handlers may run during a call, but not one of the kernel `composed`: with oneDNN 2.6.3 they break the program's
 *              memory. Block them before its first call, so that OpenMP's threads inherit the mask.
 *   Determinism  results are the same bits for any number of threads and in every run with the same kernel, unless the
 *              descriptor says FATTN_UNORDERED, and a sequence's results do not depend on the other sequences of its batch; on
 *              x86 and aarch64 also whatever the caller's rounding mode is. Which kernel runs depends on the descriptor alone,
 *              seq_q included, and on a GPU batch and seq_k too: force one (fattn_context_options.kernel) where batches of
 *              different sizes must agree bit for bit. A NaN in one row may change how other rows are rounded.
 */
#ifndef FATTN_FATTN_H
#define FATTN_FATTN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FATTN_VERSION_MAJOR 0
#define FATTN_VERSION_MINOR 2
#define FATTN_VERSION_PATCH 0

/* Visibility and the must-check attribute; nothing to know about for callers. */
#if defined(_WIN32) && defined(FATTN_SHARED)
#if defined(FATTN_BUILDING)
#define FATTN_API __declspec(dllexport)
#else
#define FATTN_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define FATTN_API __attribute__((visibility("default")))
#else
#define FATTN_API
#endif
#if defined(__GNUC__)
#define FATTN_MUST_CHECK __attribute__((warn_unused_result))
#else
#define FATTN_MUST_CHECK
#endif

/* ------------------------------------------------------------------------------------------------------------ status */

/* What a call came to. The numbers are part of the ABI and do not change. */
typedef enum fattn_status {
    FATTN_OK = 0,
    FATTN_ERROR_ARGUMENT = -1,    /* a null pointer, a size, stride or enumerator that makes no sense */
    FATTN_ERROR_UNSUPPORTED = -2, /* makes sense, but neither this version nor the forced kernel can do it */
    FATTN_ERROR_WORKSPACE = -3,   /* the workspace is missing or too small */
    FATTN_ERROR_MEMORY = -4,      /* the system had no memory (only when a context is made) */
    FATTN_ERROR_SYSTEM = -5       /* the system refused something else: a GPU's driver; the message has the driver's words */
} fattn_status;

/* The name of a status, "FATTN_ERROR_ARGUMENT"; "unknown status" for a number that is none. Never NULL. */
FATTN_API const char *fattn_status_name(fattn_status status);

/* What was wrong with this thread's last call that failed: one line without newline, valid until its next failing call.
 * The empty string if none failed yet. */
FATTN_API const char *fattn_last_error(void);

/* The version of the library that is running, "0.2.0"; the macros above are those of the header. */
FATTN_API const char *fattn_version(void);

/* ----------------------------------------------------------------------------------------------------------- problems */

typedef enum fattn_dtype {
    FATTN_DTYPE_NONE = 0, /* not set: an error as dtype, "the same as dtype" as out_dtype */
    FATTN_F32 = 1,
    FATTN_F64 = 2,
    FATTN_F16 = 3,  /* IEEE 754 binary16 */
    FATTN_BF16 = 4, /* the upper half of a float */
    FATTN_I8 = 5    /* only as kv_dtype: signed bytes, with a float factor per row */
} fattn_dtype;

/* Which keys a query row keeps: always one interval of keys. With t = i + off, off = 0 (top-left) or seq_k - seq_q
 * (bottom-right), both lengths those of the sequence at hand: */
typedef enum fattn_mask {
    FATTN_MASK_FULL = 0,     /* every key */
    FATTN_MASK_CAUSAL = 1,   /* row i keeps keys 0 .. t */
    FATTN_MASK_WINDOW = 2,   /* row i keeps keys t-window_left .. t+window_right, both ends included; -1 = unbounded */
    FATTN_MASK_CHUNKED = 3,  /* causal, within chunks of mask_size keys: row i keeps floor(t / mask_size) * mask_size .. t */
    FATTN_MASK_PREFIX = 4,   /* causal, but every row sees the first mask_size keys: row i keeps 0 .. max(t, mask_size - 1) */
    FATTN_MASK_DOCUMENT = 5, /* row i keeps the keys of its window (as FATTN_MASK_WINDOW) whose document is its own:
                                document_k[j] == document_q[i]; ids do not decrease along a sequence */
    FATTN_MASK_INTERVALS = 6 /* row i keeps keys mask_lo[i] .. mask_hi[i]-1, as far as they exist */
} fattn_mask;

/* Where the diagonal of a causal or window mask lies when seq_q and seq_k differ. */
typedef enum fattn_align {
    FATTN_ALIGN_TOP_LEFT = 0,    /* row 0 stands at key 0 */
    FATTN_ALIGN_BOTTOM_RIGHT = 1 /* the last row stands at the last key: what decoding with a cache wants */
} fattn_align;

typedef enum fattn_op { FATTN_OP_FORWARD = 1, FATTN_OP_BACKWARD = 2 } fattn_op;

/* Bits of fattn_desc.flags. FATTN_WITH_...: which optional tensors a call brings. A bit without its pointer, and a pointer
 * without its bit, is an error; a bit that an operation does not look at is ignored by it. */
#define FATTN_WITH_BIAS   0x01u /* bias */
#define FATTN_WITH_SLOPES 0x02u /* slopes: ALiBi (Press et al. 2022), computed, never stored */
#define FATTN_WITH_SINKS  0x04u /* sinks */
#define FATTN_WITH_DLSE   0x08u /* backward: dlse */
#define FATTN_WITH_DBIAS  0x10u /* backward: dbias; needs FATTN_WITH_BIAS */
#define FATTN_WITH_DSINKS 0x20u /* backward: dsinks; needs FATTN_WITH_SINKS */
/* Backward: terms of a sum may be added in whatever order they come, so that every run may give other bits, within the same
 * error. Allows kernels that add gradients atomically; a kernel that does not need this is unchanged by it. */
#define FATTN_UNORDERED 0x40u

/* What is to be computed. No pointers and no padding, so it can be printed, compared and hashed byte by byte. */
typedef struct fattn_desc {
    uint32_t struct_size; /* sizeof(fattn_desc) */
    int32_t dtype;        /* fattn_dtype of q, k, v and of all gradients */
    int32_t out_dtype;    /* fattn_dtype of out and dout: 0 = dtype; FATTN_F32 where dtype has 16 bits */
    int32_t mask;         /* fattn_mask */
    int32_t align;        /* fattn_align */
    uint32_t flags;       /* FATTN_WITH_..., FATTN_UNORDERED */
    int64_t batch;        /* >= 0: sequences */
    int64_t heads_q;      /* >= 1, a multiple of heads_kv */
    int64_t heads_kv;     /* >= 1 */
    int64_t seq_q;        /* >= 0: query rows of a sequence; of the longest, or more, where they differ */
    int64_t seq_k;        /* >= 0: keys, likewise */
    int64_t dim;          /* 1 .. 512: length of a query and of a key */
    int64_t dim_v;        /* 1 .. 512: length of a value and of an output row */
    int64_t window_left;  /* FATTN_MASK_WINDOW and FATTN_MASK_DOCUMENT: >= -1; other masks: 0 */
    int64_t window_right; /* likewise */
    double scale;         /* factor on q . k before the softmax, any sign; 0 = 1/sqrt(dim) */
    double softcap;       /* cap > 0, a normal float (FATTN_F64: double); 0 = none */
    double dropout;       /* probability in [0, 1) with which an element is dropped; 0 = none. Others are divided by 1 - it */
    uint64_t seed;        /* of dropout; must be 0 without it */
    int64_t total_q;      /* rows of packed query tensors, needs cu_seqlens_q; 0 = not packed */
    int64_t total_k;      /* rows of packed k and v, needs cu_seqlens_k; 0 = not packed */
    int64_t mask_size;    /* FATTN_MASK_CHUNKED: >= 1; FATTN_MASK_PREFIX: >= 0; other masks: 0 */
    int64_t page_size;    /* forward, rows in a page of k and v, needs page_table; 0 = not paged */
    int64_t pages;        /* pages that k and v have; 0 if not paged */
    int32_t kv_dtype;     /* fattn_dtype of k and v: 0 = dtype; forward also FATTN_I8, needs k_scales and v_scales */
    int32_t grad_dtype;   /* fattn_dtype of dq, dk, dv, dbias: 0 = dtype; FATTN_F32 where dtype has 16 bits */
} fattn_desc;

/* Where a tensor lies: element (b, h, i, d) is data[b*stride_batch + h*stride_head + i*stride_row + d]. Packed tensors are
 * [heads, total, dim]: b is 0, i counts all rows. Paged k and v are [pages, heads_kv, page_size, dim]. Strides count elements.
 * Inputs may have any strides, zero (broadcast) and negative ones too; the elements of an output must not overlap: in the order
 * of their size, each of its strides must step over all that the smaller ones span, as those of every permuted or sliced
 * contiguous tensor do. data must be aligned to its type. It may be NULL only where the tensor has no elements. */
typedef struct fattn_view {
    void *data; /* not written through where the argument is an input */
    int64_t stride_batch;
    int64_t stride_head;
    int64_t stride_row;
} fattn_view;

/* A contiguous [batch, heads, seq, dim] tensor. */
static inline fattn_view fattn_view_bhsd(const void *data, int64_t heads, int64_t seq, int64_t dim)
{
    fattn_view view = {(void *)(uintptr_t)data, heads * seq * dim, seq * dim, dim};
    return view;
}

/* A contiguous [batch, seq, heads, dim] tensor. */
static inline fattn_view fattn_view_bshd(const void *data, int64_t heads, int64_t seq, int64_t dim)
{
    fattn_view view = {(void *)(uintptr_t)data, seq * heads * dim, dim, heads * dim};
    return view;
}

/* The keys that query row `row` keeps: [*lo, *hi), empty as lo == hi, of a sequence that has all seq_q rows and seq_k keys. The
 * one definition that every kernel uses. Errors: FATTN_ERROR_ARGUMENT for a bad desc, a null pointer, or a row outside
 * 0 .. seq_q-1; FATTN_ERROR_UNSUPPORTED for a document or intervals mask, whose keys stand in a call's arrays. */
FATTN_API FATTN_MUST_CHECK fattn_status fattn_mask_interval(const fattn_desc *desc, int64_t row, int64_t *lo, int64_t *hi);

/* Which elements of row `row` of head `head` of sequence `batch` dropout keeps: keep[j] = 1 or 0, for j < seq_k; all 1 without
 * dropout. Element (b, h, i, j) is kept where word j % 4 of Philox4x32-10 (Salmon et al. 2011) with key desc.seed and counter
 * (j / 4, i, b * heads_q + h, 0) is at least dropout * 2^32, rounded: p is exact to 2^-33, and forward and backward of every
 * kernel draw the same. Errors: FATTN_ERROR_ARGUMENT. */
FATTN_API FATTN_MUST_CHECK fattn_status fattn_dropout_keep(const fattn_desc *desc, int64_t batch, int64_t head, int64_t row,
                                                           uint8_t *keep);

/* ------------------------------------------------------------------------------------------------------------ context */

/* A caller's own way to run work: call body(arg, 0) .. body(arg, count - 1), each once, in any order and on any threads,
 * and return when all have returned. One after another on the calling thread is fine. count is at most the context's
 * threads. */
typedef void (*fattn_parallel_for)(void *user, int32_t count, void (*body)(void *arg, int32_t index), void *arg);

typedef struct fattn_context_options {
    uint32_t struct_size;            /* sizeof(fattn_context_options) */
    int32_t threads;                 /* 1 .. 1024; 0 = as many as the process may use (affinity mask and CPU quota) */
    fattn_parallel_for parallel_for; /* NULL = the built-in pool; its threads start at the first call that needs them */
    void *user;                      /* handed to parallel_for */
    const char *kernel;              /* force kernels by name, see fattn_kernel_query; NULL = what FATTN_KERNEL says in the
                                        environment when the context is made, else automatic; "" = automatic. A name
                                        that this build does not have is an error */
    int32_t device;                  /* fattn_device: where tensors lie and kernels run */
    int32_t device_index;            /* FATTN_DEVICE_CUDA: which GPU, as the driver counts them; else 0 */
} fattn_context_options;

/* With FATTN_DEVICE_CUDA every pointer of a call's arguments, but for struct pointers and lists of tensors (bias, dbias, outs,
 * lses, douts, dlses: the caller's own, read before the call returns, and what stands in them points to the GPU's memory), is
 * one to memory that the GPU reaches, of its primary context, which is the runtime's, cuBLAS's and PyTorch's. Calls launch
 * kernels on args.stream (a CUstream or cudaStream_t; NULL is the default stream) and return; they neither allocate nor wait,
 * so a graph may capture them, those of the kernel `cuda_composed` once a call like them has run. Errors of the GPU itself show
 * where the caller waits. What lists of lengths, pages and documents hold is not looked at beforehand: there wrong numbers are
 * undefined behaviour. */
typedef enum fattn_device {
    FATTN_DEVICE_CPU = 0,
    FATTN_DEVICE_CUDA = 1 /* NVIDIA GPUs of compute capability 8.0 or later */
} fattn_device;

typedef struct fattn_context fattn_context;

/* Makes a context. options may be NULL: every default. On error *context is NULL: FATTN_ERROR_ARGUMENT, FATTN_ERROR_MEMORY,
 * FATTN_ERROR_UNSUPPORTED (a device that this build has no kernels for), FATTN_ERROR_SYSTEM (a GPU that is not there or
 * refuses).
 */
FATTN_API FATTN_MUST_CHECK fattn_status fattn_context_create(const fattn_context_options *options, fattn_context **context);

/* Ends its threads and frees it. No call may be using it; of a GPU's, waits for the GPU, and graphs that captured its calls
 * must not be launched any more. NULL does nothing. */
FATTN_API void fattn_context_destroy(fattn_context *context);

/* CPU features that kernels ask for. */
#define FATTN_CPU_AVX2        0x1u /* AVX2 and FMA */
#define FATTN_CPU_AVX512      0x2u /* AVX-512 F, BW, DQ, VL */
#define FATTN_CPU_F16C        0x4u
#define FATTN_CPU_AVX512_BF16 0x8u
#define FATTN_CPU_AMX_BF16    0x10u
/* Likewise of GPUs. */
#define FATTN_CUDA_SM80 0x10000u /* compute capability 8.0 or later */
#define FATTN_CUDA_SM90 0x20000u /* 9.0, with wgmma and TMA */

typedef struct fattn_context_info {
    uint32_t struct_size;  /* in: sizeof(fattn_context_info) */
    int32_t threads;       /* the most threads that a call uses, the caller's included */
    uint32_t cpu_features; /* FATTN_CPU_... bits that this machine has and the system lets programs use; of a GPU,
                              FATTN_CUDA_... bits */
    int32_t builtin_pool;  /* 1 if the built-in pool runs the work, 0 if the caller's parallel_for does */
    const char *kernel;    /* the forced kernels, or NULL; valid as long as the context */
    const char *build;     /* compiler and options of the library, one line */
    int32_t device;        /* fattn_device */
    int32_t device_index;
    const char *device_name; /* "NVIDIA H200"; NULL for the CPU; valid as long as the context */
} fattn_context_info;

/* What a context found and was told. Fills as much of *info as info->struct_size covers. */
FATTN_API FATTN_MUST_CHECK fattn_status fattn_context_query(const fattn_context *context, fattn_context_info *info);

/* ------------------------------------------------------------------------------------------------------------ kernels */

typedef struct fattn_kernel_info {
    uint32_t struct_size; /* in: sizeof(fattn_kernel_info) */
    int32_t selected;     /* 1 if a call with this context and descriptor would run this kernel */
    const char *name;     /* "cpu_avx2_forward_f32"; static */
    const char *refusal;  /* why it cannot, should not, or was not asked to run here, "needs AVX2 and FMA"; else NULL; static */
    int32_t can_run;      /* 1 if forcing it would work */
    uint32_t needs;       /* FATTN_CPU_... or FATTN_CUDA_... bits */
    uint64_t workspace;   /* bytes it needs for this problem, if can_run */
    int32_t device;       /* fattn_device: where it runs */
    int32_t rounds;       /* fattn_dtype that it rounds probabilities and their gradients to before it multiplies with them, as
                             tensor cores do, or to a type of as many bits; FATTN_F32: it multiplies all numbers, inputs too,
                             in parts that hold 23 bits, fewer of such as are far below the largest of their rows or tile;
                             0: it computes in float or wider throughout */
    int32_t unordered;    /* 1 if it adds in no fixed order, and so runs only with FATTN_UNORDERED */
    int32_t reserved;     /* 0 */
} fattn_kernel_info;

/* Describes kernel number `index` (from 0, in the order of preference) of operation `op` for a problem: its name, whether
 * it can and would run, and the reason if not. The first that can and should run is taken; nothing falls back silently.
 * Past the last kernel the status is FATTN_ERROR_ARGUMENT and info->name is NULL.
 *
 * Names read <family>_<algorithm>_<type>, without the type where a kernel takes every one; the algorithm is forward, backward,
 * or decode, a forward for few rows. A context's `kernel` is a comma-separated
 * list of names, or of their beginnings up to an underscore: "ref", "composed", "cpu_avx2", "cpu_avx2_forward,ref_backward".
 * Forcing overrules what should run, never what can: a call for which no kernel of the list can run fails with
 * FATTN_ERROR_UNSUPPORTED. Where a beginning names several kernels of a family, "cpu_avx2", the one of these that should runs.
 */
FATTN_API FATTN_MUST_CHECK fattn_status fattn_kernel_query(const fattn_context *context, const fattn_desc *desc, fattn_op op,
                                                           int32_t index, fattn_kernel_info *info);

/* The bytes of workspace that `op` needs for this problem with this context: depends on desc and on the context's threads
 * and forced kernel, not on pointers or strides. May be 0. Errors: FATTN_ERROR_ARGUMENT, FATTN_ERROR_UNSUPPORTED. */
FATTN_API FATTN_MUST_CHECK fattn_status fattn_workspace_size(const fattn_context *context, const fattn_desc *desc, fattn_op op,
                                                             size_t *bytes);

/* ------------------------------------------------------------------------------------------------------------ forward */

typedef struct fattn_forward_args {
    uint32_t struct_size;  /* sizeof(fattn_forward_args) */
    uint32_t reserved;     /* 0 */
    fattn_view q;          /* [batch, heads_q, seq_q, dim] */
    fattn_view k;          /* [batch, heads_kv, seq_k, dim] */
    fattn_view v;          /* [batch, heads_kv, seq_k, dim_v] */
    fattn_view out;        /* [batch, heads_q, seq_q, dim_v], written; must not overlap an input */
    void *lse;             /* [batch, heads_q, seq_q], written; NULL = not wanted. backward needs it */
    void *workspace;       /* any alignment; NULL if 0 bytes are needed */
    size_t workspace_size; /* bytes */
    const char **kernel;   /* if not NULL, receives the name of the kernel that ran, static */
    /* Optional; NULL where the descriptor does not ask for them. */
    const int32_t *cu_seqlens_q, *cu_seqlens_k; /* [batch + 1]: sequence b has the packed rows cu[b] .. cu[b+1]-1; cu[0] is 0,
                                                   cu[batch] the total, no sequence longer than seq_q or seq_k */
    const int32_t *used_q, *used_k;             /* [batch]: the first rows and keys of each sequence that exist; NULL = all */
    const int32_t *mask_lo, *mask_hi;           /* [seq_q], for each sequence mask_stride further; packed: [total_q] */
    const fattn_view *bias;                     /* [batch, heads_q, seq_q, seq_k] of dtype, strides of 0 broadcast; packed
                                                   sequences too have their own batch entry each */
    const float *slopes;                        /* [heads_q] */
    const float *sinks;                         /* [heads_q] */
    void *stream;                               /* CUstream; NULL on the CPU */
    int64_t mask_stride;                        /* elements of mask_lo from one sequence to the next; 0 = the same for all */
    const int32_t *document_q, *document_k;     /* [batch, seq_q], [batch, seq_k]; packed: [total_q], [total_k] */
    const int32_t *page_table;                  /* [batch, ceil(seq_k / page_size)]: key j of sequence b is row j % page_size
                                                   of page page_table[b][j / page_size]; entries behind the used are ignored */
    const float *k_scales, *v_scales;           /* factors of rows of FATTN_I8: [batch, heads_kv, seq_k]; packed: [heads_kv,
                                                   total_k]; paged: [pages, heads_kv, page_size] */
} fattn_forward_args;

/* out and lse of a problem. With cu_seqlens_q, lse is [heads_q, total_q]. Errors: FATTN_ERROR_ARGUMENT (a field makes no
 * sense), FATTN_ERROR_UNSUPPORTED (no kernel can), FATTN_ERROR_WORKSPACE. Reads and writes nothing outside the tensors and the
 * workspace. */
FATTN_API FATTN_MUST_CHECK fattn_status fattn_forward(const fattn_context *context, const fattn_desc *desc,
                                                      const fattn_forward_args *args);

/* ----------------------------------------------------------------------------------------------------------- backward */

typedef struct fattn_backward_args {
    uint32_t struct_size;  /* sizeof(fattn_backward_args) */
    uint32_t reserved;     /* 0 */
    fattn_view q, k, v;    /* as in forward */
    fattn_view out;        /* what forward wrote; an input here */
    fattn_view dout;       /* [batch, heads_q, seq_q, dim_v]: gradient of the loss with respect to out */
    fattn_view dq, dk, dv; /* shapes of q, k, v; written, not added to. All three are required */
    const void *lse;       /* what forward wrote */
    void *workspace;
    size_t workspace_size; /* bytes */
    const char **kernel;   /* if not NULL, receives the name of the kernel that ran, static */
    /* Optional; NULL where the descriptor does not ask for them. */
    const void *dlse;                           /* like lse: gradient of the loss with respect to it */
    const int32_t *cu_seqlens_q, *cu_seqlens_k; /* as in forward, down to sinks */
    const int32_t *used_q, *used_k;
    const int32_t *mask_lo, *mask_hi;
    const fattn_view *bias;
    const float *slopes;
    const float *sinks;
    const fattn_view *dbias; /* [batch, heads_q, seq_q, seq_k]; where its stride is 0 the gradient is summed; written whole */
    float *dsinks;           /* [heads_q], written */
    void *stream;
    int64_t mask_stride;
    const int32_t *document_q, *document_k;
} fattn_backward_args;

/* dq, dk, dv from what forward read and wrote: the scores are computed again, nothing of size seq_q x seq_k was kept.
 * With D_i = sum_d dout_id out_id - dlse_i, p = exp(s - lse), m = dropout's factor (0 or 1 / (1 - dropout), or 1) and
 * ds = p (m dout.v - D), dx = ds scale (1 - tanh(x / cap)^2) with x = scale q.k (the last factor with softcap only):
 * dq = dx k, dk = dx^T q, dv = (m p)^T dout, dbias = ds, dsinks = - sum exp(sink - lse) D; dk and dv sum over the query heads
 * of their group. out and lse need not come from the same keys: parts of a sequence's keys, each with the out and lse of the
 * whole, give the parts' gradients exactly (ring attention). Errors as fattn_forward. */
FATTN_API FATTN_MUST_CHECK fattn_status fattn_backward(const fattn_context *context, const fattn_desc *desc,
                                                       const fattn_backward_args *args);

/* ---------------------------------------------------------------------------------------------------- partial results */

/* Joins `count` partial results of the same rows, computed with different keys (split over a cache, or over machines):
 *
 *     lse = ln sum_p exp(lse_p)      out = sum_p exp(lse_p - lse) out_p
 *
 * in double, so that the result has the error of a single pass if the partials were written as float (out_dtype). A partial
 * whose lse is -inf adds nothing, whatever its out holds; one whose lse is +inf is the result, and two such make it NaN.
 * Sinks belong to one of the partials only. Of desc, only dtype, out_dtype, batch, heads_q, seq_q, dim_v and total_q count, but
 * the rest must be valid too; total_q > 0: packed, lse [heads_q, total_q]; all rows are merged. A GPU joins at most 96
 * partials, whose places travel with the launch: more are FATTN_ERROR_UNSUPPORTED. */
typedef struct fattn_merge_args {
    uint32_t struct_size;    /* sizeof(fattn_merge_args) */
    int32_t count;           /* >= 1 */
    const fattn_view *outs;  /* [count] views [batch, heads_q, seq_q, dim_v], float (double for FATTN_F64) */
    const void *const *lses; /* [count] arrays like lse */
    fattn_view out;          /* of out_dtype; written, may be one of outs if it has its type */
    void *lse;               /* written, may be one of lses; NULL = not wanted */
    void *stream;            /* CUstream; NULL on the CPU */
} fattn_merge_args;

FATTN_API FATTN_MUST_CHECK fattn_status fattn_merge(const fattn_context *context, const fattn_desc *desc,
                                                    const fattn_merge_args *args);

/* The gradient of fattn_merge: with w_p = exp(lse_p - lse),
 *
 *     dout_p = w_p dout      dlse_p = w_p (dout . (out_p - out) + dlse)
 *
 * and zeros where lse_p is -inf. What comes out is what fattn_backward takes for each part. Any number of parts, on a GPU too.
 */
typedef struct fattn_merge_backward_args {
    uint32_t struct_size;    /* sizeof(fattn_merge_backward_args) */
    int32_t count;           /* >= 1 */
    const fattn_view *outs;  /* as in fattn_merge_args */
    const void *const *lses; /* likewise */
    fattn_view out;          /* what fattn_merge wrote */
    const void *lse;         /* likewise */
    fattn_view dout;         /* of out_dtype: gradient with respect to out */
    const void *dlse;        /* like lse: gradient with respect to lse; NULL = 0 */
    const fattn_view *douts; /* [count], written, like outs */
    void *const *dlses;      /* [count], written, like lses */
    void *stream;            /* CUstream; NULL on the CPU */
} fattn_merge_backward_args;

FATTN_API FATTN_MUST_CHECK fattn_status fattn_merge_backward(const fattn_context *context, const fattn_desc *desc,
                                                             const fattn_merge_backward_args *args);

/* ------------------------------------------------------------------------------------------------------------ the cache */

/* Appends the keys and values of seq_q new rows to a cache of seq_k rows, and turns keys and queries by their positions (RoPE,
 * Su et al. 2021): a pair (x, y) becomes (x cos - y sin, x sin + y cos). Row i of sequence b goes to cache row used_k[b] + i,
 * which is its position. A row of bytes stands for its numbers up to half its factor; its factor is 0 where the largest number
 * is below 127 times the smallest normal float, and NaN where a number is not finite. Packed rows (total_q, total_k) are not
 * taken: FATTN_ERROR_UNSUPPORTED; append them a sequence at a time, with batch 1 and pointers to what is the sequence's own. Of
 * desc, mask and numbers do not count. */
typedef struct fattn_cache_args {
    uint32_t struct_size;       /* sizeof(fattn_cache_args) */
    uint32_t interleaved;       /* 1: pairs are (2x, 2x + 1), as in GPT-J; 0: (x, x + rotary_dim / 2), as in GPT-NeoX */
    fattn_view k_new, v_new;    /* [batch, heads_kv, seq_q, dim and dim_v] of dtype */
    fattn_view q;               /* [batch, heads_q, seq_q, dim], turned in place; data NULL = none */
    fattn_view k, v;            /* the cache as fattn_forward reads it: of kv_dtype, [batch, heads_kv, seq_k, ..] or paged */
    const int32_t *used_k;      /* [batch]: rows in use before */
    const int32_t *used_q;      /* [batch]: new rows; NULL = seq_q each */
    const int32_t *page_table;  /* as in fattn_forward_args */
    float *k_scales, *v_scales; /* FATTN_I8: written, max |x| / 127 of each new row */
    const float *rotary_cos, *rotary_sin; /* [rotary_rows, rotary_dim / 2]; NULL = no turning, and the rest is 0 */
    int64_t rotary_dim;                   /* even, at most dim: the first elements of a head that turn */
    int64_t rotary_rows;                  /* positions that the tables have */
    void *stream;                         /* CUstream; NULL on the CPU */
} fattn_cache_args;

/* Errors: FATTN_ERROR_ARGUMENT, among others if a new row does not fit in the cache, its page or the tables. All is checked
 * before anything is written, but for one thing: pages that new rows go to must belong to one sequence only. On a GPU what
 * used_k, used_q and page_table hold is not looked at either, so that the caller answers for new rows that do not fit. */
FATTN_API FATTN_MUST_CHECK fattn_status fattn_cache_append(const fattn_context *context, const fattn_desc *desc,
                                                           const fattn_cache_args *args);

/* ---------------------------------------------------------------------------------------------------------- for looking */

/* What forward computes on its way for row `row` of head `head` of sequence `batch`, in double: scores[j] before the softmax,
 * -inf where the mask drops the key, and probabilities[j] before dropout, for j < seq_k (beyond the sequence's keys -inf and
 * 0). Either may be NULL. args is what fattn_forward takes; out, lse and the workspace are not looked at. On a GPU scores and
 * probabilities too are memory that it reaches, written on args.stream when its turn comes. Slow: for debugging, tests and
 * explanations. Errors: FATTN_ERROR_ARGUMENT. */
FATTN_API FATTN_MUST_CHECK fattn_status fattn_scores(const fattn_context *context, const fattn_desc *desc,
                                                     const fattn_forward_args *args, int64_t batch, int64_t head, int64_t row,
                                                     double *scores, double *probabilities);

#ifdef __cplusplus
}
#endif

#endif
