/*
 * Byte-pair merging: a word begins as its bytes, one token each, and of all neighbours that have a merge those with the lowest
 * rank, the leftmost among equals, become one token, until there are none.
 *
 * Tokens are given as the bytes that they stand for.
 */
#ifndef TRAIN_BPE_H
#define TRAIN_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct token_list {
    int32_t *ids;
    size_t count, room;
} token_list;

void token_list_add(token_list *list, int32_t id);
void token_list_free(token_list *list);

typedef struct bpe bpe;

/* For at most so many tokens and merges. `whole`: a word that is a token is that token, whatever the merges say. */
bpe *bpe_create(size_t tokens, size_t merges, bool whole);
void bpe_free(bpe *b);
/* False if these bytes are a token already. The bytes must live as long as b does. */
bool bpe_add_token(bpe *b, int32_t id, const char *bytes, size_t size);
/* The id of these bytes, or -1. */
int32_t bpe_find(const bpe *b, const char *bytes, size_t size);
/* Two tokens that become a third; ranks count from 0. Said twice, the later rank holds. */
void bpe_add_merge(bpe *b, int32_t rank, int32_t left, int32_t right, int32_t whole);
/* After all tokens: a byte that no token stands for, or -1 if each of the 256 has one. */
int bpe_missing_byte(bpe *b);

/* Appends a word's tokens. Remembers words, so only one thread may use b at a time. Time grows as n log n. */
void bpe_encode(bpe *b, const char *word, size_t size, token_list *out);

#endif
