/*
 * safetensors, the reader. bytes 0..7: N; bytes 8..8+N: the JSON header; then the data section.
 *
 * cJSON turns the header into a tree; every rule of the format is then checked on the tree. Three things cJSON would let
 * pass are refused before it sees the text: bytes that are not UTF-8, an escaped zero character (which would cut a name
 * short), and anything but spaces after the closing brace.
 */
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "text.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are copied as they lie in the file: little-endian");

struct safetensors_file {
    char *label;
    void *map; /* NULL if the bytes are the caller's */
    size_t map_size;
    cJSON *header; /* owns the names */
    const cJSON *metadata;
    safetensors_tensor *tensors; /* sorted by offset */
    safetensors_tensor **by_name;
    int64_t count;
};

_Static_assert((int)SAFETENSORS_F32 == (int)NARROW_F32 && (int)SAFETENSORS_F16 == (int)NARROW_F16 &&
                   (int)SAFETENSORS_BF16 == (int)NARROW_BF16,
               "types of floats have the same numbers");

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {[SAFETENSORS_F32] = {"F32", 4}, [SAFETENSORS_F16] = {"F16", 2}, [SAFETENSORS_BF16] = {"BF16", 2},
              [SAFETENSORS_F64] = {"F64", 8}, [SAFETENSORS_I64] = {"I64", 8}, [SAFETENSORS_I32] = {"I32", 4},
              [SAFETENSORS_U8] = {"U8", 1}};

size_t safetensors_dtype_size(safetensors_dtype dtype)
{
    return dtypes[dtype].size;
}

const char *safetensors_dtype_name(safetensors_dtype dtype)
{
    return dtypes[dtype].name;
}

/* A non-negative whole number that a double holds exactly. */
static bool json_size(const cJSON *item, int64_t *value)
{
    if (!cJSON_IsNumber(item))
        return false;
    double number = item->valuedouble;
    if (!(number >= 0 && number <= 9007199254740992.0) || number != (double)(int64_t)number)
        return false;
    *value = (int64_t)number;
    return true;
}

static bool read_dtype(safetensors_file *file, const cJSON *item, safetensors_tensor *tensor)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    if (!cJSON_IsString(dtype))
        return train_fail("%s: tensor '%s': no dtype", file->label, tensor->name);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; ++i) {
        if (strcmp(dtypes[i].name, dtype->valuestring) == 0) {
            tensor->dtype = (safetensors_dtype)i;
            return true;
        }
    }
    return train_fail("%s: tensor '%s': dtype '%.32s' is not one of F32, F16, BF16, F64, I64, I32, U8", file->label,
                      tensor->name, dtype->valuestring);
}

static bool read_shape(safetensors_file *file, const cJSON *item, safetensors_tensor *tensor)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
    if (!cJSON_IsArray(shape))
        return train_fail("%s: tensor '%s': no shape", file->label, tensor->name);
    bool empty = false;
    int64_t count = 1;
    const cJSON *extent;
    cJSON_ArrayForEach(extent, shape)
    {
        int64_t size;
        if (tensor->rank == SAFETENSORS_MAX_RANK)
            return train_fail("%s: tensor '%s': more than %d dimensions", file->label, tensor->name, SAFETENSORS_MAX_RANK);
        if (!json_size(extent, &size))
            return train_fail("%s: tensor '%s': shape[%d] is not a whole number from 0 to 2^53", file->label, tensor->name,
                              tensor->rank);
        tensor->shape[tensor->rank++] = size;
        empty = empty || size == 0;
        /* An extent of 0 makes the product 0, but must not hide an overflow of the others. */
        if (size != 0 && __builtin_mul_overflow(count, size, &count))
            return train_fail("%s: tensor '%s': the product of its shape overflows", file->label, tensor->name);
    }
    tensor->count = empty ? 0 : count;
    if (__builtin_mul_overflow((size_t)tensor->count, dtypes[tensor->dtype].size, &tensor->bytes))
        return train_fail("%s: tensor '%s': its size in bytes overflows", file->label, tensor->name);
    return true;
}

/* `data` is the start of the data section and `size` its bytes; contiguity is checked later, over all tensors. */
static bool read_offsets(safetensors_file *file, const cJSON *item, safetensors_tensor *tensor, const char *data, size_t size)
{
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    int64_t begin, end;
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 || !json_size(offsets->child, &begin) ||
        !json_size(offsets->child->next, &end))
        return train_fail("%s: tensor '%s': data_offsets is not two whole numbers", file->label, tensor->name);
    if (begin > end || (size_t)end > size)
        return train_fail("%s: tensor '%s': data_offsets [%lld, %lld] outside the %zu bytes of data", file->label, tensor->name,
                          (long long)begin, (long long)end, size);
    if ((size_t)(end - begin) != tensor->bytes)
        return train_fail("%s: tensor '%s': %lld bytes in data_offsets, %zu by its shape and dtype", file->label, tensor->name,
                          (long long)(end - begin), tensor->bytes);
    tensor->data = data + begin;
    return true;
}

static bool read_tensor(safetensors_file *file, const cJSON *item, const char *data, size_t size)
{
    safetensors_tensor *tensor = &file->tensors[file->count];
    tensor->name = item->string;
    if (!cJSON_IsObject(item))
        return train_fail("%s: tensor '%s': not an object", file->label, tensor->name);
    int fields = 0;
    const cJSON *field;
    cJSON_ArrayForEach(field, item)++ fields;
    if (fields != 3)
        return train_fail("%s: tensor '%s': %d fields, expected dtype, shape and data_offsets", file->label, tensor->name,
                          fields);
    if (!read_dtype(file, item, tensor) || !read_shape(file, item, tensor) || !read_offsets(file, item, tensor, data, size))
        return false;
    ++file->count;
    return true;
}

static bool read_metadata(safetensors_file *file, const cJSON *item)
{
    const cJSON *pair;
    if (file->metadata)
        return train_fail("%s: __metadata__ occurs twice", file->label);
    if (!cJSON_IsObject(item))
        return train_fail("%s: __metadata__ is not an object", file->label);
    cJSON_ArrayForEach(pair, item)
    {
        if (!cJSON_IsString(pair))
            return train_fail("%s: __metadata__ '%s' is not a string", file->label, pair->string);
    }
    file->metadata = item;
    return true;
}

static int compare_offset(const void *left, const void *right)
{
    const safetensors_tensor *a = left, *b = right;
    if (a->data != b->data)
        return (const char *)a->data < (const char *)b->data ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static int compare_name(const void *left, const void *right)
{
    const safetensors_tensor *const *a = left, *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

static bool check_layout(safetensors_file *file, const char *data, size_t size)
{
    size_t reached = 0;
    for (int64_t i = 0; i < file->count; ++i) {
        const safetensors_tensor *tensor = &file->tensors[i];
        size_t begin = (size_t)((const char *)tensor->data - data);
        if (begin != reached)
            return train_fail("%s: tensor '%s' begins at %zu, %s the tensor before it, which ends at %zu", file->label,
                              tensor->name, begin, begin < reached ? "overlapping" : "leaving a hole after", reached);
        reached = begin + tensor->bytes;
    }
    if (reached != size)
        return train_fail("%s: the tensors end at %zu, the file's data at %zu", file->label, reached, size);
    return true;
}

static bool check_names(safetensors_file *file)
{
    file->by_name = text_alloc((size_t)file->count * sizeof(safetensors_tensor *));
    for (int64_t i = 0; i < file->count; ++i)
        file->by_name[i] = &file->tensors[i];
    if (file->count)
        qsort(file->by_name, (size_t)file->count, sizeof *file->by_name, compare_name);
    for (int64_t i = 1; i < file->count; ++i)
        if (strcmp(file->by_name[i - 1]->name, file->by_name[i]->name) == 0)
            return train_fail("%s: tensor '%s' occurs twice", file->label, file->by_name[i]->name);
    return true;
}

static bool check_text(const safetensors_file *file, const char *json, size_t size)
{
    if (size == 0 || json[0] != '{')
        return train_fail("%s: the header does not begin with {", file->label);
    for (size_t i = 0; i < size;) {
        size_t step = json[i] ? text_utf8(json + i, size - i) : 0;
        if (step == 0)
            return train_fail("%s: the header is not UTF-8 text at byte %zu", file->label, i);
        if (size - i >= 6 && memcmp(json + i, "\\u0000", 6) == 0)
            return train_fail("%s: the header holds a zero character at byte %zu", file->label, i);
        i += step;
    }
    return true;
}

static bool parse_header(safetensors_file *file, const char *json, size_t size)
{
    const char *end = NULL;
    file->header = cJSON_ParseWithLengthOpts(json, size, &end, 0);
    if (!file->header)
        return train_fail("%s: the header is not valid JSON near byte %zu", file->label, end ? (size_t)(end - json) : 0);
    for (; end < json + size; ++end)
        if (*end != ' ')
            return train_fail("%s: text after the header's closing brace at byte %zu", file->label, (size_t)(end - json));
    return true;
}

static bool read_all(safetensors_file *file, const char *bytes, size_t size)
{
    uint64_t length;
    if (size < 8)
        return train_fail("%s: %zu bytes are too short for a safetensors file", file->label, size);
    memcpy(&length, bytes, 8);
    if (length > 100000000 || length > size - 8)
        return train_fail("%s: header length %llu, but the limit is 100000000 and the file has %zu bytes after it", file->label,
                          (unsigned long long)length, size - 8);
    if (!check_text(file, bytes + 8, (size_t)length) || !parse_header(file, bytes + 8, (size_t)length))
        return false;

    const char *data = bytes + 8 + length;
    size_t data_size = size - 8 - (size_t)length;
    size_t items = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, file->header)++ items;
    file->tensors = text_alloc(items * sizeof *file->tensors);
    cJSON_ArrayForEach(item, file->header)
    {
        bool is_metadata = strcmp(item->string, "__metadata__") == 0;
        if (is_metadata ? !read_metadata(file, item) : !read_tensor(file, item, data, data_size))
            return false;
    }
    if (file->count)
        qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_offset);
    return check_names(file) && check_layout(file, data, data_size);
}

bool safetensors_parse(const void *bytes, size_t size, const char *label, safetensors_file **file)
{
    *file = text_alloc(sizeof **file);
    (*file)->label = strdup(label);
    if (read_all(*file, bytes, size))
        return true;
    safetensors_close(*file);
    *file = NULL;
    return false;
}

static bool map_file(const char *path, void **map, size_t *size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused, not waited for */
    struct stat info;
    *map = NULL;
    if (fd < 0 || fstat(fd, &info) != 0) {
        int reason = errno;
        if (fd >= 0)
            close(fd);
        return train_fail("%s: %s", path, strerror(reason));
    }
    *size = (size_t)info.st_size;
    if (!S_ISREG(info.st_mode) || *size < 8) {
        close(fd);
        return train_fail("%s: not a safetensors file (%zu bytes)", path, *size);
    }
    *map = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
    int reason = errno;
    close(fd);
    if (*map == MAP_FAILED)
        return train_fail("%s: %s", path, strerror(reason));
    return true;
}

bool safetensors_open(const char *path, safetensors_file **file)
{
    void *map;
    size_t size = 0;
    *file = NULL;
    if (!map_file(path, &map, &size))
        return false;
    if (!safetensors_parse(map, size, path, file)) {
        munmap(map, size);
        return false;
    }
    (*file)->map = map;
    (*file)->map_size = size;
    return true;
}

void safetensors_close(safetensors_file *file)
{
    if (!file)
        return;
    cJSON_Delete(file->header);
    free(file->tensors);
    free(file->by_name);
    free(file->label);
    if (file->map)
        munmap(file->map, file->map_size);
    free(file);
}

int64_t safetensors_count(const safetensors_file *file)
{
    return file->count;
}

const safetensors_tensor *safetensors_at(const safetensors_file *file, int64_t index)
{
    return &file->tensors[index];
}

const safetensors_tensor *safetensors_find(const safetensors_file *file, const char *name)
{
    const safetensors_tensor wanted = {.name = name}, *key = &wanted;
    if (file->count == 0)
        return NULL;
    safetensors_tensor **found = bsearch(&key, file->by_name, (size_t)file->count, sizeof *file->by_name, compare_name);
    return found ? *found : NULL;
}

const char *safetensors_metadata(const safetensors_file *file, const char *key)
{
    const cJSON *pair = file->metadata ? cJSON_GetObjectItemCaseSensitive(file->metadata, key) : NULL;
    return pair ? pair->valuestring : NULL;
}

/* "[2, 3]" */
static void shape_text(char *out, size_t size, int rank, const int64_t *shape)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < rank && used < size; ++i)
        used += (size_t)snprintf(out + used, size - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < size)
        snprintf(out + used, size - used, "]");
}

/* A tensor by its name, of this shape; NULL, with train_error() set. */
static const safetensors_tensor *find_shaped(const safetensors_file *file, const char *name, int rank, const int64_t *shape)
{
    const safetensors_tensor *tensor = safetensors_find(file, name);
    if (!tensor) {
        train_fail("%s: no tensor '%s'", file->label, name);
        return NULL;
    }
    if (tensor->rank != rank || (rank && memcmp(tensor->shape, shape, (size_t)rank * sizeof *shape) != 0)) {
        char found[192], wanted[192];
        shape_text(found, sizeof found, tensor->rank, tensor->shape);
        shape_text(wanted, sizeof wanted, rank, shape);
        train_fail("%s: tensor '%s' has shape %s, expected %s", file->label, name, found, wanted);
        return NULL;
    }
    return tensor;
}

bool safetensors_load(const safetensors_file *file, const char *name, safetensors_dtype dtype, int rank, const int64_t *shape,
                      void *data)
{
    const safetensors_tensor *tensor = find_shaped(file, name, rank, shape);
    if (!tensor)
        return false;
    if (tensor->dtype != dtype)
        return train_fail("%s: tensor '%s' is %s, expected %s", file->label, name, dtypes[tensor->dtype].name,
                          dtypes[dtype].name);
    if (tensor->bytes)
        memcpy(data, tensor->data, tensor->bytes);
    return true;
}

bool safetensors_load_floats(const safetensors_file *file, const char *name, int rank, const int64_t *shape, float *data)
{
    const safetensors_tensor *tensor = find_shaped(file, name, rank, shape);
    if (!tensor)
        return false;
    if (tensor->dtype > SAFETENSORS_BF16)
        return train_fail("%s: tensor '%s' is %s, expected F32, F16 or BF16", file->label, name, dtypes[tensor->dtype].name);
    narrow_read((narrow_type)tensor->dtype, tensor->data, tensor->count, data);
    return true;
}

safetensors_dtype safetensors_narrow(narrow_type type)
{
    return (safetensors_dtype)type; /* both lists begin alike */
}
