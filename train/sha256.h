/*
 * SHA-256 (FIPS 180-4): the checksum that state.json records for the files of a checkpoint.
 */
#ifndef TRAIN_SHA256_H
#define TRAIN_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sha256 {
    uint32_t state[8];
    uint64_t bytes;            /* added so far */
    unsigned char pending[64]; /* the bytes of an unfinished block: bytes % 64 of them */
} sha256;

void sha256_begin(sha256 *s);
void sha256_add(sha256 *s, const void *bytes, size_t count);
/* The digest as 64 hexadecimal digits and a zero byte. */
void sha256_end(sha256 *s, char hex[65]);

/* Of a whole file. False, with train_error() set, if it cannot be read. */
bool sha256_file(const char *path, char hex[65]);

#endif
