/*
 * What tokenizers ask of Unicode 16: classes of characters, and the normal form C. Bytes that are not UTF-8 stand for
 * themselves: each is one character of no class, and normalising keeps it.
 */
#ifndef TRAIN_UNICODE_H
#define TRAIN_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text.h"

typedef enum unicode_class {
    UNICODE_OTHER,
    UNICODE_LETTER, /* \p{L} */
    UNICODE_NUMBER, /* \p{N} */
    UNICODE_SPACE   /* \s */
} unicode_class;

/* A character and the bytes that it has. */
typedef struct unicode_char {
    uint32_t code; /* UNICODE_BYTE + b: the byte b, which is no UTF-8 */
    uint32_t size;
} unicode_char;

enum { UNICODE_BYTE = 0x110000 };

/* The character at `bytes`; count is at least 1. */
unicode_char unicode_at(const char *bytes, size_t count);
/* The one that ends before `end`, which is above 0. */
unicode_char unicode_before(const char *bytes, size_t end);
unicode_class unicode_class_of(uint32_t code);
/* \w */
bool unicode_is_word(uint32_t code);

/* Appends the normal form C of the text. */
void unicode_nfc(const char *bytes, size_t count, text_buffer *out);

#endif
