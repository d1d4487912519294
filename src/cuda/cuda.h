/*
 * The CUDA backend's own: what a context holds of a GPU, and how kernels are launched.
 *
 * Kernels are compiled to images that the library carries (images.S); a context loads those for its GPU when it is made, all of
 * them, so that calls neither allocate nor wait. A launch pushes the GPU's primary context for its duration: callers need not
 * have made it current.
 */
#ifndef FATTN_CUDA_CUDA_H
#define FATTN_CUDA_CUDA_H

#include "core/context.h"
#include "core/error.h"
#include "gpu/driver.h"

/* A kernel of an image. */
typedef struct cuda_function {
    const char *name; /* of the extern "C" function */
    size_t shared;    /* bytes of shared memory that its launches ask for */
} cuda_function;

/* What nvcc made of one .cu file, and its kernels; the file of its launches defines it. */
typedef struct cuda_image {
    const unsigned char *bytes;
    const cuda_function *functions;
    int count;      /* at most CUDA_FUNCTIONS_MOST */
    uint32_t needs; /* FATTN_CUDA_... bits: on a GPU that lacks one it is not loaded */
} cuda_image;

/* Defines what an image is, in the file of its launches; functions: the array of its kernels. */
#define CUDA_IMAGE_DEFINE(name, functions, bits)                                                                               \
    extern const unsigned char fattn_cuda_bytes_##name[];                                                                      \
    _Static_assert(sizeof(functions) / sizeof *(functions) <= CUDA_FUNCTIONS_MOST, "a context has room for them");             \
    const cuda_image fattn_cuda_##name##_image = {fattn_cuda_bytes_##name, functions, sizeof(functions) / sizeof *(functions), \
                                                  bits}

/* Every image: X(name in CUDA_IMAGE_..., name of its .cu file). */
#define CUDA_IMAGE_LIST(X)                                                                                                     \
    X(EXACT, exact)                                                                                                            \
    X(TENSOR_FORWARD, tensor_forward)                                                                                          \
    X(TENSOR_BACKWARD_F16, tensor_backward_f16)                                                                                \
    X(TENSOR_BACKWARD_BF16, tensor_backward_bf16)                                                                              \
    X(SPLIT, split)                                                                                                            \
    X(SPLIT_FORWARD, split_forward)                                                                                            \
    X(SPLIT_BACKWARD, split_backward)                                                                                          \
    X(DECODE, decode)                                                                                                          \
    X(HOPPER_FORWARD, hopper_forward)                                                                                          \
    X(HOPPER_BACKWARD, hopper_backward)                                                                                        \
    X(HOPPER_PASSES, hopper_passes)                                                                                            \
    X(CALLS, calls)                                                                                                            \
    X(COMPOSED, composed)

#define CUDA_IMAGE_ID(id, name) CUDA_IMAGE_##id,
typedef enum cuda_image_id { CUDA_IMAGE_LIST(CUDA_IMAGE_ID) CUDA_IMAGES } cuda_image_id;
#undef CUDA_IMAGE_ID

enum { CUDA_FUNCTIONS_MOST = 32 };

#define CUDA_IMAGE_DECLARED(id, name) extern const cuda_image fattn_cuda_##name##_image;
CUDA_IMAGE_LIST(CUDA_IMAGE_DECLARED)
#undef CUDA_IMAGE_DECLARED

/* A GPU that a context runs on. */
typedef struct cuda_gpu {
    CUdevice device;
    CUcontext context; /* the primary one */
    char name[100];
    uint32_t features;   /* FATTN_CUDA_... bits */
    int capability;      /* 90 for 9.0 */
    int shared_most;     /* bytes of shared memory that a block may ask for */
    int multiprocessors; /* as many blocks run at once if each takes a whole one */
    void *products;      /* the library's of products.h, NULL where no kernel that calls it was forced */
    CUmodule module[CUDA_IMAGES];
    CUfunction function[CUDA_IMAGES][CUDA_FUNCTIONS_MOST];
} cuda_gpu;

/* Blocks and threads of a launch. */
typedef struct cuda_shape {
    int64_t blocks;
    int threads;
} cuda_shape;

enum { CUDA_BLOCKS_MOST = 0x7fffffff };

static inline int64_t cuda_tiles(int64_t n, int64_t tile)
{
    return (n + tile - 1) / tile;
}

/* a * b tiles, or more than any grid has: not for what is still to be divided into tiles. */
static inline int64_t cuda_blocks(int64_t a, int64_t b)
{
    int64_t n;
    return __builtin_mul_overflow(a, b, &n) || n > CUDA_BLOCKS_MOST ? (int64_t)CUDA_BLOCKS_MOST + 1 : n;
}

static inline const char *cuda_too_large(bool large)
{
    return large ? "takes no problem of more than 2^31 - 1 blocks" : NULL;
}

/* Whether all rows of a tensor, of `columns` numbers of `size` bytes, may be read in pieces of 16 bytes. */
static inline bool cuda_in_lines(const fattn_view *view, int64_t size, int64_t columns)
{
    const int64_t strides = view->stride_batch | view->stride_head | view->stride_row;
    return (uintptr_t)view->data % 16 == 0 && strides % (16 / size) == 0 && columns % (16 / size) == 0;
}

/* Whether scores or probabilities are more than products and powers. */
static inline bool cuda_adjusts(const fattn_desc *d)
{
    return fattn_scores_change(d) || d->dropout != 0;
}

/* The next `bytes` of a workspace, which may be NULL: then only *used counts. */
static inline void *cuda_place(unsigned char *workspace, size_t *used, int64_t bytes)
{
    unsigned char *at = workspace ? workspace + *used : NULL;
    *used += fattn_round_up((size_t)bytes, FATTN_ALIGNMENT);
    return at;
}

/* Launches kernel number `function` of an image on the call's stream, in the current context, which is the GPU's. arguments:
 * addresses of its parameters. Nothing to do if there are no blocks. */
fattn_status cuda_launch(const fattn_launch *at, cuda_image_id image, int function, cuda_shape shape, void **arguments);

/* The same of a kernel that may begin before those before it in the stream end, for which it waits (ptx.cuh), with `shared`
 * bytes of shared memory, at most as many as the function has. */
fattn_status cuda_launch_early(const fattn_launch *at, cuda_image_id image, int function, cuda_shape shape, size_t shared,
                               void **arguments);

/* The calls that need no kernel of the registry: fattn_backend's operations. */
fattn_status cuda_merge(const fattn_context *context, const fattn_merging *m);
fattn_status cuda_append(const fattn_context *context, const fattn_appending *a);
fattn_status cuda_look(const fattn_context *context, const fattn_looking *looking);

#endif
