/*
 * Measuring a model on tokens: the mean loss over consecutive windows, each predicted from its own beginning.
 */
#ifndef TRAIN_EVALUATE_H
#define TRAIN_EVALUATE_H

#include "data.h"
#include "model.h"

typedef struct evaluation {
    double loss;    /* mean over tokens, natural logarithm; 0 if there are none */
    int64_t tokens; /* that were predicted */
    int64_t bytes;  /* that these stand for; 0: not known */
    double seconds;
} evaluation;

/* Sums in double over batches, in order, so that two ways to compute attention can be compared to the last digits. The ranks
 * take turns with the batches, and the sum is the same bits for any number of them. `s` was made for [batch, seq]; max_tokens
 * 0: all. False, with train_error() set, if there is nothing to predict or a token is outside the vocabulary. */
bool evaluate(model_step *s, ranks *r, const data_tokens *tokens, int64_t batch, int64_t seq, int64_t max_tokens,
              evaluation *result);

/* loss / ln 2: bits per token. Of text that is read as bytes they are bits per byte, which is then called a character. */
double loss_bits(double loss);
/* 0: not known. */
double evaluation_bits_per_byte(const evaluation *e);

/* Seconds on a clock that never goes back. */
double evaluate_seconds(void);

#endif
