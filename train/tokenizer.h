/*
 * Text to tokens and back. A tokenizer is one of two:
 *
 *     the bytes      token 0..255 is that byte, 256 begins a text and 257 ends one; nobody has to make it
 *     tokenizer.json byte-level byte-pair encoding as Hugging Face's files describe it (tokenizer_json.c says which of them)
 *
 * With both any file can be encoded, whatever its encoding, and every sequence of tokens decodes to bytes; whether these are
 * UTF-8 is for whoever prints them.
 */
#ifndef TRAIN_TOKENIZER_H
#define TRAIN_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpe.h"
#include "text.h"
#include "word_split.h"

enum { TOKEN_BOS = 256, TOKEN_EOS = 257, TOKENIZER_VOCAB = 258 };

/* Used by one thread at a time. */
typedef struct tokenizer tokenizer;

/* The bytes for "bytes", "" or NULL, else a file. NULL, with train_error() set, if it cannot be read or asks for what is not
 * known here. */
tokenizer *tokenizer_open(const char *path);
void tokenizer_close(tokenizer *t);

bool tokenizer_is_bytes(const tokenizer *t);
/* Whether it says what the tokens of a model with this vocabulary stand for. A checkpoint's are the bytes also where nobody
 * said what its numbers are. */
bool tokenizer_explains(const tokenizer *t, int64_t vocab);
/* Every token is below it. */
int64_t tokenizer_vocab(const tokenizer *t);
/* What ends a text: for a file the first of <|endoftext|>, <|end_of_text|>, </s>, <eos>, <|im_end|> that it has; -1: none. */
int32_t tokenizer_end(const tokenizer *t);
/* What a text may begin with: a newline for bytes; the first of what the file puts before a text, else the token that ends the
 * one before it, else 0. */
int32_t tokenizer_first(const tokenizer *t);
/* The special or added token of this name; -1 if there is none. */
int32_t tokenizer_named(const tokenizer *t, const char *name);
/* The bytes that a token stands for; none for special ones and for those that do not exist. */
const char *tokenizer_token(const tokenizer *t, int32_t token, size_t *size);

/* What makes up a tokenizer on a disk, to be kept with a model: first tokenizer.json, then those that lay beside it of
 * tokenizer_config.json, special_tokens_map.json, chat_template.jinja and generation_config.json. A file of another name is
 * kept alone. For bytes a tokenizer.json is made; one that is the same, byte by byte, is opened as the bytes. */
enum { TOKENIZER_FILES = 5 };
#define TOKENIZER_JSON        "tokenizer.json"
#define TOKENIZER_CONFIG_JSON "tokenizer_config.json"
#define CHAT_TEMPLATE         "chat_template.jinja"
#define GENERATION_JSON       "generation_config.json"
extern const char *const tokenizer_file_names[TOKENIZER_FILES + 1]; /* NULL at the end */

typedef struct tokenizer_file {
    const char *name;
    char *bytes;
    size_t size;
} tokenizer_file;

int tokenizer_file_count(const tokenizer *t);
const tokenizer_file *tokenizer_file_at(const tokenizer *t, int index);
/* The one of this name, or NULL. */
const tokenizer_file *tokenizer_file_named(const tokenizer *t, const char *name);

/* What it consists of, for files of other forms. */
typedef enum tokenizer_kind { TOKEN_UNUSED, TOKEN_NORMAL, TOKEN_ADDED, TOKEN_SPECIAL } tokenizer_kind;
typedef struct tokenizer_merge {
    int32_t left, right;
} tokenizer_merge;

/* Appends a token as tokenizer.json writes it; nothing for an unused one. */
tokenizer_kind tokenizer_written(const tokenizer *t, int32_t token, text_buffer *out);
/* By rank. */
const tokenizer_merge *tokenizer_merges(const tokenizer *t, int64_t *count);
/* Whether text is cut into words by this pattern alone, and merged accordingly; `whole` as in bpe.h. Where nothing is merged,
 * words mean nothing, and every pattern will do. */
bool tokenizer_cuts(const tokenizer *t, word_pattern pattern, bool whole);
/* The tokens that are put before a text and after it. */
const token_list *tokenizer_before(const tokenizer *t);
const token_list *tokenizer_after(const tokenizer *t);

/* Appends the tokens of a text; `framed`: with what the file puts before and after a text. */
void tokenizer_encode(tokenizer *t, const char *bytes, size_t size, bool framed, token_list *out);

/* Tokens that come one at a time, to be printed as UTF-8: holds back a character until it is complete. */
typedef struct utf8_stream {
    unsigned char pending[4];
    int count;
} utf8_stream;

/* Adds a token and appends what can be printed now. Bytes that are not UTF-8 become U+FFFD, special tokens give nothing. */
void utf8_stream_add(utf8_stream *stream, const tokenizer *t, int32_t token, text_buffer *out);

/* What was held back at the end. */
void utf8_stream_end(utf8_stream *stream, text_buffer *out);

#endif
