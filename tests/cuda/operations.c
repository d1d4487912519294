/*
 * Single operations of the trainer's table on a GPU against the CPU's, at sizes that models of tests do not have: more
 * rows and wider logits than a block looks at at a time.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/trainers_gpu.h"
#include "train/cpu/numbers.h"
#include "train/error.h"

/* Memory of the GPU with these bytes. */
static void *copy_there(const void *host, size_t bytes)
{
    device *d = gpu[0].device;
    void *there = d->run->allocate(d, bytes);
    require(there && d->run->put(d, there, host, bytes));
    return there;
}

static void compare_there(const char *name, void *there, const float *wanted, int64_t count, double bound)
{
    device *d = gpu[0].device;
    float *got = malloc((size_t)count * sizeof *got);
    assert_non_null(got);
    require(d->run->get(d, got, there, (size_t)count * sizeof *got));
    check_error(name, error_ff(got, wanted, count), bound);
    free(got);
    d->run->release(d, there);
}

/* More rows than a block looks at at a time, and a token in a third of them; tokens that begin anywhere. */
static void many_tokens(void **state)
{
    (void)state;
    need_gpu();
    enum { TOKENS = 5000, CASES = 4 };
    static const struct {
        int64_t vocab, hidden;
    } sizes[CASES] = {{70000, 132}, {11, 45}, {300, 1100}, {1, 1028}};
    device *d = gpu[0].device;
    int32_t *tokens = calloc(TOKENS + CASES, sizeof *tokens);
    assert_non_null(tokens);
    for (int i = 0; i < CASES; i++) {
        const size_t rows_bytes = (size_t)(TOKENS * sizes[i].hidden) * sizeof(float);
        const int64_t count = sizes[i].vocab * sizes[i].hidden;
        float *dout = malloc(rows_bytes), *dweight = malloc((size_t)count * sizeof *dweight);
        assert_true(dout && dweight);
        random_tokens(tokens, TOKENS, sizes[i].vocab, 3);
        for (int r = 0; r < TOKENS; r += 3)
            tokens[r] = (int32_t)sizes[i].vocab / 2;
        fill_normal(dout, TOKENS * sizes[i].hidden, 0, 1, 4);
        fill_normal(dweight, count, 0, 1, 5);
        embedding_call c = {.rows = TOKENS, .vocab = sizes[i].vocab, .hidden = sizes[i].hidden, .tokens = tokens, .dout = dout};
        embedding_call there = c;
        int32_t *begin = copy_there(tokens, (TOKENS + CASES) * sizeof *tokens); /* the last ones mean nothing */
        there.tokens = begin + i;
        require(d->run->put(d, begin + i, tokens, TOKENS * sizeof *tokens));
        there.dout = copy_there(dout, rows_bytes);
        there.dweight = copy_there(dweight, (size_t)count * sizeof *dweight);
        c.dweight = dweight;
        require(device_cpu()->run->embedding_backward(device_cpu(), &c) && d->run->embedding_backward(d, &there));
        compare_there("embedding's gradient", there.dweight, dweight, count, 1e-5);
        d->run->release(d, begin);
        d->run->release(d, (void *)(uintptr_t)there.dout);
        free(dout);
        free(dweight);
    }
    free(tokens);
}

/* What a gradient of logits holds, as floats. */
static void read_gradient(float *to, const void *from, number_type type, int64_t rows, int64_t vocab, int64_t stride)
{
    for (int64_t i = 0; i < rows * vocab; i++) {
        const int64_t at = i / vocab * stride + i % vocab;
        to[i] = type == NUMBER_F32 ? ((const float *)from)[at] : widen(((const uint16_t *)from)[at]);
    }
}

/* Logits far apart, of tokens that cannot be, and, where not_a_number, of one row that are no numbers in one place. The GPU's
 * gradient lies in their place. */
static void compare_logits(int64_t vocab, number_type type, bool not_a_number)
{
    enum { LOGIT_ROWS = 40 };
    device *d = gpu[0].device;
    const int64_t count = LOGIT_ROWS * vocab, stride = vocab * (int64_t)(sizeof(float) / number_bytes(type));
    const size_t bytes = (size_t)count * sizeof(float);
    int32_t targets[LOGIT_ROWS];
    float *x = malloc(bytes), *dx = malloc(bytes), *wanted = malloc(bytes), *got = malloc(bytes);
    double losses[LOGIT_ROWS], there_losses[LOGIT_ROWS], sum, *shared = d->run->allocate_shared(d, sizeof *shared);
    assert_true(x && dx && wanted && got && shared);
    fill_normal(x, count, 0, 6, 7);
    for (int64_t i = 0; i < vocab - 1; i++) {
        x[i] = i < 400 ? -INFINITY : x[i];
        x[vocab + i] = (float)i * 0.1f;
        x[2 * vocab + i] = (float)i * -0.1f;
    }
    random_tokens(targets, LOGIT_ROWS, vocab, 8);
    targets[0] = 401;
    targets[5] = -1;
    x[5 * vocab + 3] = NAN; /* which does not count */
    if (not_a_number)
        x[7 * vocab + 4321] = NAN;
    cross_entropy_call c = {.rows = LOGIT_ROWS,
                            .vocab = vocab,
                            .type = type,
                            .factor = 2,
                            .x = x,
                            .targets = targets,
                            .losses = losses,
                            .dx = dx,
                            .dx_stride = vocab};
    cross_entropy_call there = c;
    there.dx = copy_there(x, bytes);
    there.x = there.dx;
    there.dx_stride = stride;
    there.targets = copy_there(targets, sizeof targets);
    there.losses = copy_there(losses, sizeof losses);
    loss_sum_call add = {.rows = LOGIT_ROWS, .losses = losses, .sum = &sum}, add_there = add;
    add_there.losses = there.losses;
    add_there.sum = shared;
    require(device_cpu()->run->cross_entropy(device_cpu(), &c) && d->run->cross_entropy(d, &there));
    require(device_cpu()->run->loss_sum(device_cpu(), &add) && d->run->loss_sum(d, &add_there));
    read_gradient(wanted, dx, type, LOGIT_ROWS, vocab, vocab);
    require(d->run->get(d, dx, there.dx, bytes) && d->run->get(d, there_losses, there.losses, sizeof there_losses));
    read_gradient(got, dx, type, LOGIT_ROWS, vocab, stride);
    check_error("gradient of logits", error_ff(got, wanted, count), type == NUMBER_F32 ? 1e-5 : 4e-3);
    assert_int_equal(isnan(losses[7]), not_a_number);
    for (int r = 0; r < LOGIT_ROWS; r++)
        if (isnan(losses[r]))
            assert_true(isnan(there_losses[r]));
        else
            check_error("loss of a row", fabs(there_losses[r] - losses[r]), 1e-5 * fabs(losses[r]));
    if (not_a_number)
        assert_true(isnan(*shared) && isnan(sum));
    else
        check_error("loss", fabs(*shared - sum), 1e-6 * fabs(sum));
    d->run->release(d, there.dx);
    d->run->release(d, (void *)(uintptr_t)there.targets);
    d->run->release(d, there.losses);
    d->run->release_shared(d, shared);
    free(x);
    free(dx);
    free(wanted);
    free(got);
}

/* Vocabularies that come in fours and not, of a warp's rows and of a block's. */
static void many_logits(void **state)
{
    (void)state;
    need_gpu();
    const int64_t sizes[] = {5001, 5004, 8192, 9001, 50257, 50304};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int bad = 0; bad < 2; bad++) {
            compare_logits(sizes[i], NUMBER_F32, bad);
            compare_logits(sizes[i], NUMBER_BF16, bad);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_tokens), cmocka_unit_test(many_logits)};
    return cmocka_run_group_tests_name("the trainer's operations on a GPU", tests, open_gpu, close_gpu);
}
