/*
 * How text is cut into words before its pairs are merged: the regular expressions of byte-level tokenizers, each matched by a
 * function instead of an engine. The words of a text are all of it, one behind the other.
 */
#ifndef TRAIN_WORD_SPLIT_H
#define TRAIN_WORD_SPLIT_H

#include <stdbool.h>
#include <stddef.h>

typedef enum word_pattern {
    WORDS_GPT2,  /* GPT-2, and what "use_regex" of ByteLevel means */
    WORDS_QWEN,  /* Qwen2 and Qwen3: digits one by one */
    WORDS_LLAMA3 /* Llama 3 and cl100k: digits in threes */
} word_pattern;

/* False if the expression is none of these. */
bool word_pattern_of(const char *expression, word_pattern *pattern);

/* The bytes of the first word; count is above 0, and so is the result. */
size_t word_next(word_pattern pattern, const char *bytes, size_t count);

#endif
