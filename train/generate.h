/*
 * Continuing a sequence: choosing the next token from logits, and the loop around a decoder with its cache.
 */
#ifndef TRAIN_GENERATE_H
#define TRAIN_GENERATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model.h"
#include "random.h"
#include "tokenizer.h"

typedef struct sampler_options {
    bool greedy;        /* always the most probable token; the lower number among equals */
    double temperature; /* logits are divided by it; above 0 */
    int64_t top_k;      /* only the k most probable tokens; 0: all */
    double top_p;       /* of these, only the fewest most probable ones that have this much probability together; 1: all */
    uint64_t seed;
} sampler_options;

typedef struct sampler {
    sampler_options options;
    random_state random;
    int64_t vocab;
    struct sampler_candidate *candidates; /* [vocab] */
} sampler;

void sampler_init(sampler *s, const sampler_options *options, int64_t vocab);
void sampler_free(sampler *s);
/* A token; -1, with train_error() set, if no choice makes sense: a logit is NaN or infinite, or all are -infinity. */
int32_t sampler_pick(sampler *s, const float *logits);

typedef enum generate_end {
    GENERATE_LENGTH, /* as many tokens as asked for */
    GENERATE_STOP,   /* the stop text was produced; it is part of the output */
    GENERATE_EOS,    /* the end token was chosen; it is not part of the output */
    GENERATE_FULL,   /* the model's longest sequence is reached */
    GENERATE_FAILED  /* train_error() says why */
} generate_end;

typedef struct generate_options {
    const tokenizer *tokenizer; /* what tokens are; may be NULL without `stop` */
    int64_t tokens;             /* how many at most */
    const token_list *ends;     /* tokens that end the output; NULL: none */
    const char *stop;           /* end once the output has this; NULL: never */
    /* Called for each token as it is chosen; NULL: nobody. Returning false ends the output as a stop text does. */
    bool (*token)(void *user, int32_t token);
    /* Called with the logits that a token is about to be chosen from; NULL: nobody. */
    void (*logits)(void *user, const float *logits, int64_t vocab);
    void *user;
} generate_options;

/* Feeds the prompt (at least one token) to an empty or rewound decoder of `capacity` tokens and continues it. */
generate_end generate(decoder *d, int64_t capacity, sampler *s, const int32_t *prompt, int64_t prompt_tokens,
                      const generate_options *options);

#endif
