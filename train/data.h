/*
 * What a model learns from: a sequence of tokens for training and one for validation, and the order in which windows of it
 * are read.
 *
 *     "world"       the generated corpus (world.h), by seed and number of lines
 *     a file        text, or tokens (*.bin, *.npy: data_files.h)
 *     a folder      its files *.txt, or its files *.bin and *.npy, in the order of their names
 *     a pattern     the files that it matches, likewise
 *
 * Each text of a folder or a pattern is followed by the end token. Validation are the tokens of another source, else of those
 * files with the word val, valid or validation in their names, else the last tenth. Files are mapped, not read, so they may be
 * larger than memory; but a text that a tokenizer.json is to encode is encoded when it is opened.
 */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "tokenizer.h"
#include "world.h"

typedef struct data_options {
    const char *source; /* "world" or a path */
    uint64_t world_seed;
    int64_t world_lines;    /* of training; validation has a tenth of it */
    const char *tokenizer;  /* of texts: a tokenizer.json; NULL or "bytes": bytes */
    const char *eot;        /* the token that ends a text, by its name or its number; NULL: the tokenizer's, if there is one */
    const char *validation; /* a source; NULL: part of the other one */
    double val_fraction;    /* of that, where no file is for validation; 0: a tenth */
} data_options;

/* A run of tokens. */
typedef struct data_tokens {
    const struct dataset *owner;
    int64_t first; /* in the owner's sequence */
    int64_t count;
} data_tokens;

typedef struct dataset dataset;

/* NULL, with train_error() set, if the source is none or is empty. */
dataset *data_open(const data_options *options);
void data_close(dataset *d);
/* Both splits, one behind the other. */
data_tokens data_all(const dataset *d);
data_tokens data_split(const dataset *d, world_split split);
/* The vocabulary that covers every token: the tokenizer's for text. */
int64_t data_vocab(const dataset *d);
/* Whether every token is of a vocabulary; if not, train_error() names the file, the token's place and both numbers. */
bool data_check(const dataset *d, int64_t vocab, const char *whose);
const tokenizer *data_tokenizer(const dataset *d);
/* The token that ends a text; -1 if none is known. */
int32_t data_end(const dataset *d);
/* Whether the source is text; and whether each token is a byte of it. */
bool data_is_text(const dataset *d);
bool data_is_bytes(const dataset *d);

/* Copies `count` tokens from `first` on; the caller keeps within the run. */
void data_copy(const data_tokens *tokens, int64_t first, int64_t count, int32_t *out);

/* Where training stands. Windows of seq + 1 tokens, one after the other without overlap, are read in a random order, each
 * once; then the next epoch begins, with the windows shifted by a random number of tokens and in another order. The order is
 * a permutation computed from (seed, epoch), not stored, so these two numbers are the whole state. */
typedef struct data_position {
    int64_t epoch;
    int64_t window; /* windows of this epoch that were read */
} data_position;

typedef struct data_reader {
    data_tokens tokens;
    int64_t seq;
    uint64_t seed;
    data_position position;
} data_reader;

/* False, with train_error() set, if a window of seq + 1 does not fit. `name` is what the message calls the tokens. */
bool data_reader_init(data_reader *reader, const data_tokens *tokens, int64_t seq, uint64_t seed, const char *name);

/* Continues from a recorded position. False, with train_error() set, if these tokens have no such position. */
bool data_reader_seek(data_reader *reader, data_position position);

/* The next `batch` windows: tokens and targets [batch, seq], targets one to the right. */
void data_reader_next(data_reader *reader, int64_t batch, int32_t *tokens, int32_t *targets);

/* Leaves out the next `count` windows. */
void data_reader_skip(data_reader *reader, int64_t count);

/* For measuring: windows `first` to `first + batch - 1` of all the tokens in order, without overlap; tokens [batch, seq],
 * targets [batch, seq] with -1 beyond the end. Returns how many windows exist. */
int64_t data_windows(const data_tokens *tokens, int64_t seq);
void data_window_batch(const data_tokens *tokens, int64_t seq, int64_t first, int64_t batch, int32_t *inputs, int32_t *targets);

#endif
