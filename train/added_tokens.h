/*
 * Tokens that are looked for in the text itself, before anything else is done to it: at each place the longest one.
 */
#ifndef TRAIN_ADDED_TOKENS_H
#define TRAIN_ADDED_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct added_token {
    int32_t id;
    bool single_word;    /* only where no word character stands beside it */
    bool lstrip, rstrip; /* takes the spaces before it, after it */
} added_token;

typedef struct added_tokens {
    struct added_node *nodes;
    size_t count, room;
    added_token *tokens;
    size_t token_count, token_room;
    int32_t first[256]; /* the node of a token's first byte, 0: none */
} added_tokens;

enum { ADDED_TOKEN_MOST_BYTES = 1024 };

/* Two of the same content: the later one holds. size is 1 .. ADDED_TOKEN_MOST_BYTES. */
void added_tokens_add(added_tokens *all, const char *content, size_t size, added_token token);
void added_tokens_free(added_tokens *all);

typedef struct added_match {
    size_t begin, end; /* with the spaces that it takes */
    size_t next;       /* where its own bytes end: another token may begin with the spaces that it takes */
    int32_t id;
} added_match;

/* The first token at or after `at`; spaces before it are taken down to `from`. False if there is none. */
bool added_tokens_find(const added_tokens *all, const char *bytes, size_t count, size_t from, size_t at, added_match *match);

#endif
