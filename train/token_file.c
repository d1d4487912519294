#include "token_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data_files.h"
#include "error.h"
#include "publish.h"

enum { BLOCK = 1 << 16, NARROW = 65536, NPY_HEADER = 128 };

typedef struct output {
    const data_tokens *source;
    int64_t count; /* with the one at the end */
    int32_t end;   /* -1: none */
    bool narrow;   /* 16 bits */
    FILE *file;
    int32_t tokens[BLOCK];
    uint16_t words[BLOCK];
} output;

static bool write_tokens(output *o, size_t count)
{
    for (size_t i = 0; o->narrow && i < count; ++i)
        o->words[i] = (uint16_t)o->tokens[i];
    return fwrite(o->narrow ? (void *)o->words : (void *)o->tokens, o->narrow ? 2 : 4, count, o->file) == count;
}

static bool write_bin_header(output *o)
{
    const bin_format *format = &bin_formats[!o->narrow];
    const int32_t header[BIN_NUMBERS] = {format->magic, format->version, (int32_t)o->count};
    return fwrite(header, sizeof header, 1, o->file) == 1;
}

/* Format 1: the magic, the header's length, and a dictionary padded with spaces up to a newline. */
static bool write_npy_header(output *o)
{
    char header[NPY_HEADER + 1];
    memcpy(header, "\x93NUMPY\x01\x00\x76\x00", 10);
    snprintf(header + 10, sizeof header - 10, "{'descr': '<%s', 'fortran_order': False, 'shape': (%lld,), }",
             o->narrow ? "u2" : "u4", (long long)o->count);
    const size_t length = strlen(header + 10) + 10;
    memset(header + length, ' ', NPY_HEADER - length);
    header[NPY_HEADER - 1] = '\n';
    return fwrite(header, NPY_HEADER, 1, o->file) == 1;
}

static bool write_all(output *o)
{
    for (int64_t first = 0, count; first < o->source->count; first += count) {
        count = o->source->count - first < BLOCK ? o->source->count - first : BLOCK;
        data_copy(o->source, first, count, o->tokens);
        if (!write_tokens(o, (size_t)count))
            return false;
    }
    o->tokens[0] = o->end;
    return o->end < 0 || write_tokens(o, 1);
}

static bool write_bin(void *user, FILE *stream)
{
    output *o = user;
    o->file = stream;
    return write_bin_header(o) && write_all(o);
}

static bool write_npy(void *user, FILE *stream)
{
    output *o = user;
    o->file = stream;
    return write_npy_header(o) && write_all(o);
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
    o->source = tokens;
    o->count = tokens->count + (end >= 0);
    o->end = end;
    o->narrow = vocab <= NARROW;
    const bool good = publish_file(path, bin ? write_bin : write_npy, o);
    free(o);
    return good;
}
