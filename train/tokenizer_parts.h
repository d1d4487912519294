/*
 * What a tokenizer consists of; for tokenizer.c, tokenizer_json.c and tokenizer_files.c.
 */
#ifndef TRAIN_TOKENIZER_PARTS_H
#define TRAIN_TOKENIZER_PARTS_H

#include "added_tokens.h"
#include "tokenizer.h"
#include "word_split.h"

enum { TOKENIZER_STEPS = 8 };

/* A step of cutting text into words. */
typedef struct tokenizer_step {
    bool prefix; /* a space before what has none */
    bool splits; /* by the pattern */
    word_pattern pattern;
} tokenizer_step;

typedef struct tokenizer_entry {
    const char *bytes; /* NULL: no such token */
    size_t size;
    bool named;   /* among the added ones */
    bool special; /* not printed */
    bool plain;   /* the file has these bytes as they are, not in its alphabet */
} tokenizer_entry;

struct tokenizer {
    bpe *model; /* NULL: the bytes */
    tokenizer_entry *entries;
    int64_t vocab;
    char *pool; /* of bytes */
    bool normalises;
    tokenizer_step steps[TOKENIZER_STEPS];
    int step_count;
    added_tokens raw, normal; /* looked for before and after normalising */
    token_list before, after; /* of a framed text */
    int32_t end;
    tokenizer_merge *merges; /* [merge_count], by rank */
    int64_t merge_count;
    bool whole; /* words that are tokens are not merged: bpe.h */
    tokenizer_file files[TOKENIZER_FILES];
    int file_count;
};

/* A file's text; `path` begins what train_error() says where the result is false. */
bool tokenizer_read(tokenizer *t, const char *path, const char *json, size_t size);

/* The byte that a character of tokenizer.json stands for, or -1. */
int tokenizer_byte(uint32_t code);

/* The tokenizer.json of the bytes. */
void tokenizer_add_own_file(tokenizer *t);
/* Takes tokenizer.json and adds what lies beside it. False, with train_error() set, if something cannot be read. */
bool tokenizer_add_files(tokenizer *t, const char *path, char *json, size_t size);

#endif
