/*
 * The loss over a run of tokens, batch by batch.
 */
#include "evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "error.h"
#include "text.h"

double bits_per_char(double loss)
{
    return loss / 0.69314718055994530942;
}

double evaluate_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

bool evaluate(model_step *s, const data_tokens *tokens, int64_t batch, int64_t seq, int64_t max_tokens, evaluation *result)
{
    data_tokens part = *tokens;
    if (max_tokens > 0 && part.count > max_tokens + 1)
        part.count = max_tokens + 1;
    const int64_t windows = data_windows(&part, seq);
    *result = (evaluation){0};
    if (windows == 0)
        return train_fail("evaluation: %lld tokens, at least 2 are needed", (long long)part.count);
    int32_t *inputs = text_alloc(2 * (size_t)(batch * seq) * sizeof *inputs), *targets = inputs + batch * seq;
    const double start = evaluate_seconds();
    bool good = true;
    double sum = 0;
    for (int64_t first = 0; good && first < windows; first += batch) {
        double loss = 0;
        data_window_batch(&part, seq, first, batch, inputs, targets);
        good = step_forward(s, inputs, targets, &loss);
        sum += loss * (double)step_targets(s);
        result->tokens += step_targets(s);
    }
    free(inputs);
    result->seconds = evaluate_seconds() - start;
    result->loss = sum / (double)result->tokens;
    return good || train_fail_as(train_error_kind(), "evaluation: %.600s", train_error());
}
