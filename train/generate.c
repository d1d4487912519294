/*
 * Sampling. Candidates are sorted by logit, cut to the top k, turned into probabilities in double, cut to the top p, and one
 * is drawn.
 */
#include "generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "text.h"

typedef struct sampler_candidate {
    float logit;
    int32_t token;
    double probability;
} candidate;

void sampler_init(sampler *s, const sampler_options *options, int64_t vocab)
{
    *s = (sampler){.options = *options, .random = {random_with(options->seed, 3)}, .vocab = vocab};
    s->candidates = text_alloc((size_t)vocab * sizeof *s->candidates);
}

void sampler_free(sampler *s)
{
    free(s->candidates);
    s->candidates = NULL;
}

static int compare_candidates(const void *left, const void *right)
{
    const candidate *a = left, *b = right;
    if (a->logit > b->logit || a->logit < b->logit)
        return a->logit > b->logit ? -1 : 1;
    return a->token < b->token ? -1 : a->token > b->token;
}

/* A single -infinity is a token that cannot come. */
static bool check_logits(const float *logits, int64_t vocab)
{
    float largest = -INFINITY;
    for (int64_t i = 0; i < vocab; ++i) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return train_fail_as(TRAIN_ERROR_WORK, "the model gives token %lld the logit %g: no token can be chosen",
                                 (long long)i, (double)logits[i]);
        largest = fmaxf(largest, logits[i]);
    }
    return largest > -INFINITY ||
           train_fail_as(TRAIN_ERROR_WORK, "the model gives all tokens the logit -inf: no token can be chosen");
}

static int32_t pick_greedy(const float *logits, int64_t vocab)
{
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; ++i)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

/* Probabilities of the first `count` candidates, then how many of them top_p keeps; *sum is what these have together. */
static int64_t keep_top_p(const sampler *s, int64_t count, double *sum)
{
    double total = 0;
    for (int64_t i = 0; i < count; ++i) {
        candidate *c = &s->candidates[i];
        c->probability = exp(((double)c->logit - (double)s->candidates[0].logit) / s->options.temperature);
        total += c->probability;
    }
    *sum = 0;
    for (int64_t i = 0; i < count; ++i) {
        *sum += s->candidates[i].probability;
        if (*sum >= s->options.top_p * total)
            return i + 1;
    }
    return count;
}

int32_t sampler_pick(sampler *s, const float *logits)
{
    if (!check_logits(logits, s->vocab))
        return -1;
    if (s->options.greedy)
        return pick_greedy(logits, s->vocab);
    for (int64_t i = 0; i < s->vocab; ++i)
        s->candidates[i] = (candidate){.logit = logits[i], .token = (int32_t)i};
    qsort(s->candidates, (size_t)s->vocab, sizeof *s->candidates, compare_candidates);
    double sum;
    int64_t top_k = s->options.top_k;
    int64_t count = keep_top_p(s, top_k > 0 && top_k < s->vocab ? top_k : s->vocab, &sum);
    double left = random_unit(&s->random) * sum;
    for (int64_t i = 0; i < count - 1; ++i) {
        left -= s->candidates[i].probability;
        if (left < 0)
            return s->candidates[i].token;
    }
    return s->candidates[count - 1].token;
}

/* The last bytes of the output, as far as the stop text is long. */
typedef struct tail {
    const char *stop;
    char *bytes;
    size_t length, count;
} tail;

/* Whether the output now has the stop text, which may end within the token. */
static bool tail_add(tail *t, const tokenizer *words, int32_t token)
{
    size_t size = 0;
    const char *bytes = t->length > 0 ? tokenizer_token(words, token, &size) : NULL;
    for (size_t i = 0; i < size; ++i) {
        if (t->count == t->length)
            memmove(t->bytes, t->bytes + 1, --t->count);
        t->bytes[t->count++] = bytes[i];
        if (t->count == t->length && memcmp(t->bytes, t->stop, t->length) == 0)
            return true;
    }
    return false;
}

static bool is_end(const token_list *ends, int32_t token)
{
    for (size_t i = 0; ends && i < ends->count; ++i)
        if (ends->ids[i] == token)
            return true;
    return false;
}

static generate_end continue_from(decoder *d, int64_t capacity, sampler *s, const float *logits, tail *t,
                                  const generate_options *options)
{
    for (int64_t made = 0; made < options->tokens; ++made) {
        if (options->logits)
            options->logits(options->user, logits, s->vocab);
        int32_t token = sampler_pick(s, logits);
        if (token < 0)
            return GENERATE_FAILED;
        if (is_end(options->ends, token))
            return GENERATE_EOS;
        if ((options->token && !options->token(options->user, token)) || tail_add(t, options->tokenizer, token))
            return GENERATE_STOP;
        if (made + 1 == options->tokens)
            break;
        if (decoder_length(d) == capacity)
            return GENERATE_FULL;
        if (!decoder_feed(d, &token, 1, &logits))
            return GENERATE_FAILED;
    }
    return GENERATE_LENGTH;
}

generate_end generate(decoder *d, int64_t capacity, sampler *s, const int32_t *prompt, int64_t prompt_tokens,
                      const generate_options *options)
{
    const float *logits;
    if (prompt_tokens < 1 || prompt_tokens > capacity) {
        train_fail("the prompt has %lld tokens, the model takes 1 to %lld", (long long)prompt_tokens, (long long)capacity);
        return GENERATE_FAILED;
    }
    if (!decoder_feed(d, prompt, prompt_tokens, &logits))
        return GENERATE_FAILED;
    tail t = {.stop = options->stop, .length = options->stop ? strlen(options->stop) : 0};
    t.bytes = text_alloc(t.length);
    generate_end end = continue_from(d, capacity, s, logits, &t, options);
    free(t.bytes);
    return end;
}
