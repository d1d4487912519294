/*
 * Reads and writes safetensors files: a u64 little-endian header length N, N bytes of JSON, then the tensors' bytes.
 *
 * The reader is strict, because such files come from elsewhere: the header is bounded by 100,000,000 bytes and by the
 * file; offsets are contiguous from 0, without hole or overlap, and end exactly at the end of the file; every tensor's
 * bytes are the product of its shape and its type's size, computed without overflow; a name occurs once; the text is
 * UTF-8. Every refusal names the tensor and both values.
 */
#ifndef TRAIN_SAFETENSORS_H
#define TRAIN_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"
#include "narrow.h"

enum { SAFETENSORS_MAX_RANK = 8 };

typedef enum safetensors_dtype {
    SAFETENSORS_F32,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_F64,
    SAFETENSORS_I64,
    SAFETENSORS_I32,
    SAFETENSORS_U8
} safetensors_dtype;

typedef struct safetensors_tensor {
    const char *name;
    safetensors_dtype dtype;
    int rank;                            /* 0: a scalar, one element */
    int64_t shape[SAFETENSORS_MAX_RANK]; /* [0, rank); an extent may be 0 */
    int64_t count;                       /* elements. The writer computes it itself */
    const void *data;                    /* reading: points into the file, of no particular alignment: memcpy from it */
    size_t bytes;                        /* count * size of dtype. The writer computes it itself */
    const float *floats;                 /* writing: in place of `data`, for F32, F16 or BF16: rounded on the way */
} safetensors_tensor;

/* One pair of the header's "__metadata__". */
typedef struct safetensors_pair {
    const char *key;
    const char *value;
} safetensors_pair;

typedef struct safetensors_file safetensors_file;

/* Maps the file and checks its header. False, with train_error() set and *file NULL, if it is no such file. */
bool safetensors_open(const char *path, safetensors_file **file);

/* The same for bytes in memory, which must stay as long as *file does; `label` stands for the path in errors. */
bool safetensors_parse(const void *bytes, size_t size, const char *label, safetensors_file **file);

void safetensors_close(safetensors_file *file); /* NULL does nothing */

/* The tensors in the order of their offsets; names are valid until close. */
int64_t safetensors_count(const safetensors_file *file);
const safetensors_tensor *safetensors_at(const safetensors_file *file, int64_t index);

/* By name; NULL if there is none. */
const safetensors_tensor *safetensors_find(const safetensors_file *file, const char *name);

/* By name, type and shape, copied to `data` (which holds exactly that). False if anything differs. */
bool safetensors_load(const safetensors_file *file, const char *name, safetensors_dtype dtype, int rank, const int64_t *shape,
                      void *data);

/* The same for F32, F16 and BF16, as floats. */
bool safetensors_load_floats(const safetensors_file *file, const char *name, int rank, const int64_t *shape, float *data);

/* A value of "__metadata__", or NULL. */
const char *safetensors_metadata(const safetensors_file *file, const char *key);

/* Writes a file, tensors sorted by the size of their type (largest first), then by name, as the format's own writer does;
 * the same input gives the same bytes. Synced to disk before it returns. False if it cannot. */
bool safetensors_write(const char *path, const safetensors_tensor *tensors, int64_t count, const safetensors_pair *metadata,
                       int metadata_count);

safetensors_dtype safetensors_narrow(narrow_type type);
size_t safetensors_dtype_size(safetensors_dtype dtype);
const char *safetensors_dtype_name(safetensors_dtype dtype); /* "F32" */

#endif
