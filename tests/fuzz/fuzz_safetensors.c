/*
 * Bytes as a safetensors file. What is accepted lies inside the bytes, is found by its name, and can be written and read again.
 */
#include "fuzz.h"
#include "train/safetensors.h"

#include <string.h>

enum { WRITTEN_MOST = 64 };

static void check_tensor(const safetensors_file *file, const safetensors_tensor *t, const char *bytes, size_t size)
{
    const char *data = t->data;
    FUZZ_CHECK(data >= bytes && t->bytes <= (size_t)(bytes + size - data), "tensor '%s'", t->name);
    FUZZ_CHECK(t->bytes == (size_t)t->count * safetensors_dtype_size(t->dtype));
    FUZZ_CHECK(safetensors_find(file, t->name) == t);
    void *copy = malloc(t->bytes + 1);
    FUZZ_CHECK(copy && safetensors_load(file, t->name, t->dtype, t->rank, t->shape, copy));
    FUZZ_CHECK(memcmp(copy, data, t->bytes) == 0);
    free(copy);
}

/* The writer's file of the same tensors has the same tensors. */
static void check_written(const safetensors_file *file)
{
    const char *path = fuzz_file(0, "", 0);
    const int64_t count = safetensors_count(file);
    safetensors_tensor list[WRITTEN_MOST];
    safetensors_file *again;
    if (count > WRITTEN_MOST)
        return;
    for (int64_t i = 0; i < count; i++)
        list[i] = *safetensors_at(file, i);
    FUZZ_CHECK(safetensors_write(path, list, count, NULL, 0), "%s", train_error());
    FUZZ_CHECK(safetensors_open(path, &again), "%s", train_error());
    FUZZ_CHECK(safetensors_count(again) == count);
    for (int64_t i = 0; i < count; i++) {
        const safetensors_tensor *old = &list[i], *fresh = safetensors_find(again, old->name);
        FUZZ_CHECK(fresh && fresh->dtype == old->dtype && fresh->rank == old->rank && fresh->bytes == old->bytes);
        FUZZ_CHECK(memcmp(fresh->shape, old->shape, (size_t)old->rank * sizeof *old->shape) == 0);
        FUZZ_CHECK(memcmp(fresh->data, old->data, old->bytes) == 0);
    }
    safetensors_close(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    safetensors_file *file = (safetensors_file *)&file;
    char *bytes = fuzz_guarded(data, size);
    if (safetensors_parse(bytes, size, "input", &file)) {
        for (int64_t i = 0; i < safetensors_count(file); i++)
            check_tensor(file, safetensors_at(file, i), bytes, size);
        FUZZ_CHECK(safetensors_find(file, "") == NULL || safetensors_count(file) > 0);
        safetensors_metadata(file, "format");
        check_written(file);
        safetensors_close(file);
    } else {
        FUZZ_CHECK(!file && *train_error() && !strchr(train_error(), '\n'), "%s", train_error());
    }
    fuzz_unguarded(bytes, size);
    return 0;
}
