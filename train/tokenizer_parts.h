/*
 * What a tokenizer consists of; for tokenizer.c and tokenizer_json.c.
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
};

/* False, with train_error() set. */
bool tokenizer_read(tokenizer *t, const char *path);

#endif
