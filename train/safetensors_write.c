/*
 * safetensors, the writer: sorts the tensors, composes the header, streams the data and syncs it to disk.
 */
#include "safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "text.h"

static int compare_written(const void *left, const void *right)
{
    const safetensors_tensor *a = left, *b = right;
    size_t size_a = safetensors_dtype_size(a->dtype), size_b = safetensors_dtype_size(b->dtype);
    if (size_a != size_b)
        return size_a > size_b ? -1 : 1;
    return strcmp(a->name, b->name);
}

static void write_metadata(text_buffer *header, const safetensors_pair *metadata, int count)
{
    text_format(header, "\"__metadata__\":{");
    for (int i = 0; i < count; ++i) {
        text_format(header, i ? "," : "");
        text_json_string(header, metadata[i].key, strlen(metadata[i].key));
        text_format(header, ":");
        text_json_string(header, metadata[i].value, strlen(metadata[i].value));
    }
    text_format(header, "}");
}

static void write_entry(text_buffer *header, const safetensors_tensor *tensor, size_t begin)
{
    text_json_string(header, tensor->name, strlen(tensor->name));
    text_format(header, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_dtype_name(tensor->dtype));
    for (int i = 0; i < tensor->rank; ++i)
        text_format(header, "%s%lld", i ? "," : "", (long long)tensor->shape[i]);
    text_format(header, "],\"data_offsets\":[%zu,%zu]}", begin, begin + tensor->bytes);
}

/* Sizes each tensor and composes the header, padded so that the data begins at a multiple of 8. */
static void compose_header(text_buffer *header, safetensors_tensor *sorted, int64_t count, const safetensors_pair *metadata,
                           int metadata_count)
{
    size_t begin = 0;
    text_format(header, "{");
    if (metadata_count)
        write_metadata(header, metadata, metadata_count);
    for (int64_t i = 0; i < count; ++i) {
        sorted[i].count = 1;
        for (int d = 0; d < sorted[i].rank; ++d)
            sorted[i].count *= sorted[i].shape[d];
        sorted[i].bytes = (size_t)sorted[i].count * safetensors_dtype_size(sorted[i].dtype);
        text_format(header, i || metadata_count ? "," : "");
        write_entry(header, &sorted[i], begin);
        begin += sorted[i].bytes;
    }
    text_format(header, "}");
    while (header->length % 8 != 0)
        text_bytes(header, " ", 1);
}

static bool write_tensor(FILE *stream, const safetensors_tensor *tensor)
{
    if (tensor->floats)
        return narrow_write((narrow_type)tensor->dtype, tensor->floats, tensor->count, stream);
    return tensor->bytes == 0 || fwrite(tensor->data, tensor->bytes, 1, stream) == 1;
}

static bool write_stream(FILE *stream, const text_buffer *header, const safetensors_tensor *sorted, int64_t count)
{
    uint64_t length = header->length;
    if (fwrite(&length, 8, 1, stream) != 1 || fwrite(header->bytes, header->length, 1, stream) != 1)
        return false;
    for (int64_t i = 0; i < count; ++i)
        if (!write_tensor(stream, &sorted[i]))
            return false;
    return fflush(stream) == 0 && fsync(fileno(stream)) == 0;
}

bool safetensors_write(const char *path, const safetensors_tensor *tensors, int64_t count, const safetensors_pair *metadata,
                       int metadata_count)
{
    FILE *stream = fopen(path, "wb");
    if (!stream)
        return train_fail("%s: %s", path, strerror(errno));
    text_buffer header = {0};
    safetensors_tensor *sorted = text_alloc((size_t)count * sizeof *sorted);
    if (count) {
        memcpy(sorted, tensors, (size_t)count * sizeof *sorted);
        qsort(sorted, (size_t)count, sizeof *sorted, compare_written);
    }
    compose_header(&header, sorted, count, metadata, metadata_count);
    bool written = write_stream(stream, &header, sorted, count);
    int reason = errno;
    if (fclose(stream) != 0 && written) {
        reason = errno;
        written = false;
    }
    text_free(&header);
    free(sorted);
    return written || train_fail_as(TRAIN_ERROR_WORK, "%s: %s", path, strerror(reason));
}
