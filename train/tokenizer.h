/*
 * The byte tokenizer: token 0..255 is that byte, 256 begins a text and 257 ends one. Any file can be encoded, whatever its
 * encoding, and every token sequence decodes to bytes; whether these are UTF-8 is for whoever prints them.
 */
#ifndef TRAIN_TOKENIZER_H
#define TRAIN_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

enum { TOKEN_BOS = 256, TOKEN_EOS = 257, TOKENIZER_VOCAB = 258 };

/* tokens: [size] */
void tokenizer_encode(const char *bytes, size_t size, int32_t *tokens);

/* Bytes that come one at a time, to be printed as UTF-8: holds back a character until it is complete. */
typedef struct utf8_stream {
    unsigned char pending[4];
    int count;
} utf8_stream;

enum { UTF8_STREAM_MAX = 16 };

/* Adds a token and writes what can be printed now; returns its bytes. Bytes that are not UTF-8 become U+FFFD, special tokens
 * give nothing. */
size_t utf8_stream_add(utf8_stream *stream, int32_t token, char out[UTF8_STREAM_MAX]);

/* What was held back at the end. */
size_t utf8_stream_end(utf8_stream *stream, char out[UTF8_STREAM_MAX]);

#endif
