/*
 * The file is written beside its place and moved there.
 */
#include "token_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data_files.h"
#include "error.h"

enum { BLOCK = 1 << 16, NARROW = 65536, NPY_HEADER = 128 };

typedef struct output {
    FILE *file;
    bool narrow; /* 16 bits */
    int32_t tokens[BLOCK];
    uint16_t words[BLOCK];
} output;

static bool write_tokens(output *o, size_t count)
{
    for (size_t i = 0; o->narrow && i < count; ++i)
        o->words[i] = (uint16_t)o->tokens[i];
    return fwrite(o->narrow ? (void *)o->words : (void *)o->tokens, o->narrow ? 2 : 4, count, o->file) == count;
}

static bool write_bin_header(output *o, int64_t count)
{
    const bin_format *format = &bin_formats[!o->narrow];
    const int32_t header[BIN_NUMBERS] = {format->magic, format->version, (int32_t)count};
    return fwrite(header, sizeof header, 1, o->file) == 1;
}

/* Format 1: the magic, the header's length, and a dictionary padded with spaces up to a newline. */
static bool write_npy_header(output *o, int64_t count)
{
    char header[NPY_HEADER + 1];
    memcpy(header, "\x93NUMPY\x01\x00\x76\x00", 10);
    snprintf(header + 10, sizeof header - 10, "{'descr': '<%s', 'fortran_order': False, 'shape': (%lld,), }",
             o->narrow ? "u2" : "u4", (long long)count);
    const size_t length = strlen(header + 10) + 10;
    memset(header + length, ' ', NPY_HEADER - length);
    header[NPY_HEADER - 1] = '\n';
    return fwrite(header, NPY_HEADER, 1, o->file) == 1;
}

static bool write_all(output *o, const data_tokens *tokens, int32_t end)
{
    for (int64_t first = 0, count; first < tokens->count; first += count) {
        count = tokens->count - first < BLOCK ? tokens->count - first : BLOCK;
        data_copy(tokens, first, count, o->tokens);
        if (!write_tokens(o, (size_t)count))
            return false;
    }
    o->tokens[0] = end;
    return end < 0 || write_tokens(o, 1);
}

static bool write_beside(const char *path, const char *beside, output *o, bool bin, const data_tokens *tokens, int32_t end)
{
    const int64_t count = tokens->count + (end >= 0);
    o->file = fopen(beside, "wb");
    bool good = o->file && (bin ? write_bin_header(o, count) : write_npy_header(o, count)) && write_all(o, tokens, end) &&
                fflush(o->file) == 0 && fsync(fileno(o->file)) == 0;
    int reason = errno;
    if (o->file && fclose(o->file) != 0 && good) {
        good = false;
        reason = errno;
    }
    if (good && rename(beside, path) == 0)
        return true;
    reason = good ? errno : reason;
    if (o->file)
        unlink(beside);
    return train_fail_as(TRAIN_ERROR_WORK, "%s: %s", path, strerror(reason));
}

bool token_file_name(const char *path)
{
    return text_ends(path, ".bin") || text_ends(path, ".npy") || train_fail("%s: ends neither in .bin nor in .npy", path);
}

bool token_file_write(const char *path, const data_tokens *tokens, int32_t end, int64_t vocab)
{
    const bool bin = text_ends(path, ".bin");
    if (!token_file_name(path))
        return false;
    if (bin && tokens->count >= INT32_MAX)
        return train_fail("%s: a .bin holds less than %d tokens, but here are %lld: use .npy", path, INT32_MAX,
                          (long long)tokens->count);
    output *o = text_alloc(sizeof *o);
    text_buffer beside = {0};
    text_format(&beside, "%s.part", path);
    o->narrow = vocab <= NARROW;
    const bool good = write_beside(path, beside.bytes, o, bin, tokens, end);
    text_free(&beside);
    free(o);
    return good;
}
