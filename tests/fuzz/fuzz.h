/*
 * What the fuzz targets share. A target is one function that takes any bytes; libFuzzer (or replay.c, for the corpus alone)
 * calls it, and whatever it may not do ends the process.
 */
#ifndef FATTN_TESTS_FUZZ_FUZZ_H
#define FATTN_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the process, as a sanitizer would, if something that has to hold does not. */
#define FUZZ_CHECK(condition, ...)                                                                                             \
    do {                                                                                                                       \
        if (!(condition)) {                                                                                                    \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                                          \
            fprintf(stderr, " " __VA_ARGS__);                                                                                  \
            fputc('\n', stderr);                                                                                               \
            abort();                                                                                                           \
        }                                                                                                                      \
    } while (0)

/* A copy of the bytes that ends where a page ends that nobody may touch: a read beyond them ends the process even in code
 * that has no sanitizer, such as cJSON's. */
void *fuzz_guarded(const void *bytes, size_t size);
void fuzz_unguarded(void *copy, size_t size);

/* Files in memory, FUZZ_FILES of them: fuzz_file gives number `index` these bytes and returns its path. Targets that are
 * linked with fuzz_mapped (see CMakeLists.txt) map them with such a page behind the end. */
enum { FUZZ_FILES = 4 };
const char *fuzz_file(int index, const void *bytes, size_t size);

/* The folder of this process, which is removed when it ends; its entries are links to files in memory. */
const char *fuzz_folder(void);
/* Makes folder/name lead to file number `index`. */
void fuzz_link(const char *name, int index);

/* The input, taken piece by piece from its beginning. Behind its end everything is 0. */
typedef struct fuzz_input {
    const uint8_t *bytes;
    size_t left;
} fuzz_input;

static inline uint8_t fuzz_byte(fuzz_input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->bytes++;
}

/* A little-endian number of 1 to 8 bytes. */
static inline uint64_t fuzz_number(fuzz_input *in, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)fuzz_byte(in) << 8 * i;
    return value;
}

/* The next part: `size` bytes of it, or what is left. */
static inline fuzz_input fuzz_part(fuzz_input *in, size_t size)
{
    fuzz_input part = {in->bytes, size < in->left ? size : in->left};
    in->bytes += part.left;
    in->left -= part.left;
    return part;
}

#endif
