/*
 * The loss over a run of tokens, batch by batch.
 */
#include "evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "error.h"
#include "text.h"

double loss_bits(double loss)
{
    return loss / 0.69314718055994530942;
}

double evaluation_bits_per_byte(const evaluation *e)
{
    return e->bytes ? loss_bits(e->loss) * (double)e->tokens / (double)e->bytes : 0;
}

double evaluate_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* What one batch came to, on one rank. */
typedef struct batch_loss {
    double loss, targets;
    double bytes; /* of whole windows, also where ranks share them */
} batch_loss;

/* The bytes that are predicted; 0 where nobody knows what tokens stand for. */
static double count_bytes(const model_step *s, const dataset *d, int64_t count, const int32_t *inputs, const int32_t *targets)
{
    const tokenizer *words = data_tokenizer(d);
    size_t sum = 0, size;
    if (!data_is_text(d) && tokenizer_is_bytes(words))
        return 0;
    for (int64_t i = 0; i < count; ++i)
        if (step_counts(s, inputs[i], targets[i])) {
            tokenizer_token(words, targets[i], &size);
            sum += size;
        }
    return (double)sum;
}

/* Its group's batches: every groups-th, from that of its number on. */
static bool measure(model_step *s, ranks *r, const data_tokens *part, int64_t batch, int64_t seq, batch_loss *own)
{
    const int64_t windows = data_windows(part, seq), step = batch * r->groups;
    int32_t *inputs = text_alloc(2 * (size_t)(batch * seq) * sizeof *inputs), *targets = inputs + batch * seq;
    bool good = true;
    for (int64_t first = r->group * batch; good && first < windows; first += step, own++) {
        data_window_batch(part, seq, first, batch, inputs, targets);
        good = step_forward(s, inputs, targets, &own->loss);
        own->targets = (double)step_targets(s);
        own->bytes = count_bytes(s, part->owner, batch * seq, inputs, targets);
        ranks_go_on(r);
    }
    free(inputs);
    return good;
}

bool evaluate(model_step *s, ranks *r, const data_tokens *tokens, int64_t batch, int64_t seq, int64_t max_tokens,
              evaluation *result)
{
    data_tokens part = *tokens;
    if (max_tokens > 0 && part.count > max_tokens + 1)
        part.count = max_tokens + 1;
    const int64_t windows = data_windows(&part, seq), batches = (windows + batch - 1) / batch;
    *result = (evaluation){0};
    if (windows == 0)
        return train_fail("evaluation: %lld tokens, at least 2 are needed", (long long)part.count);
    const int64_t turns = (batches + r->groups - 1) / r->groups; /* of each group */
    batch_loss *all = text_alloc((size_t)(r->size * turns) * sizeof *all);
    memset(all, 0, (size_t)(r->size * turns) * sizeof *all);
    const double start = evaluate_seconds();
    const bool good =
        measure(s, r, &part, batch, seq, all + r->rank * turns) && r->run->gather_host(r, all, (size_t)turns * sizeof *all);
    double sum = 0;
    for (int64_t i = 0; i < batches * r->shards; i++) {
        const int64_t b = i / r->shards, rank = b % r->groups * r->shards + i % r->shards;
        const batch_loss *x = &all[rank * turns + b / r->groups];
        sum += x->loss * x->targets;
        result->tokens += (int64_t)x->targets;
        result->bytes += i % r->shards == 0 ? (int64_t)x->bytes : 0;
    }
    free(all);
    result->seconds = evaluate_seconds() - start;
    result->loss = result->tokens ? sum / (double)result->tokens : 0;
    return good || train_fail_as(train_error_kind(), "evaluation: %.600s", train_error());
}
