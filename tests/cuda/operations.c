/*
 * Single operations of the trainer's table on a GPU against the CPU's, at sizes that models of tests do not have: products
 * whose algorithm is tried out, more rows and wider logits than a block looks at at a time.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/trainers_gpu.h"
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

/* A product that is large enough for its algorithm to be tried out: the first call and the second give the same bits, the
 * trying adds nothing to what is added to, and what is beside stays. */
static void product_of(number_type type, bool transpose_a, float beta, bool elsewhere)
{
    enum { M = 2048, N = 1280, K = 1024 };
    const runtime *r = &gpu[type];
    device *d = r->device;
    const size_t size = number_bytes(type), bytes = (size_t)M * N * sizeof(float);
    const int64_t counts[] = {(int64_t)M * K, (int64_t)N * K, (int64_t)M * N};
    float *host[3], *out[2] = {malloc(bytes), malloc(bytes)};
    void *there[3];
    for (int i = 0; i < 3; i++) {
        assert_non_null(host[i] = malloc((size_t)counts[i] * sizeof(float)));
        fill_normal(host[i], counts[i], 0, 1, 20 + (uint64_t)i);
        for (int64_t n = 0; n < counts[i] && i < 2 && type == NUMBER_BF16; n++)
            memcpy((char *)host[i] + 2 * n, (char *)(host[i] + n) + 2, 2); /* the upper half of a float */
        there[i] = d->run->allocate(d, (size_t)counts[i] * sizeof(float));
        require(there[i] && d->run->put(d, there[i], host[i], (size_t)counts[i] * (i < 2 ? size : sizeof(float))));
    }
    product_call c = {.transpose_a = transpose_a,
                      .transpose_b = true,
                      .type = type,
                      .m = M,
                      .n = N,
                      .k = K,
                      .a = there[0],
                      .b = there[1],
                      .from = elsewhere ? there[2] : NULL,
                      .lda = transpose_a ? M : K,
                      .ldb = K,
                      .ldc = N,
                      .beta = beta};
    for (int i = 0; i < 2; i++) {
        assert_non_null(out[i]);
        c.c = elsewhere ? d->run->allocate(d, bytes) : there[2];
        require(c.c && d->run->put(d, there[2], host[2], bytes) && d->run->product(d, &c));
        require(d->run->get(d, out[i], c.c, bytes));
        if (elsewhere)
            d->run->release(d, c.c);
    }
    assert_memory_equal(out[0], out[1], bytes);
    if (type == NUMBER_F32) {
        c.a = host[0], c.b = host[1], c.c = host[2], c.from = NULL;
        require(device_cpu()->run->product(device_cpu(), &c));
        check_error("product", error_ff(out[0], host[2], counts[2]), 1e-5);
    }
    for (int i = 0; i < 3; i++) {
        d->run->release(d, there[i]);
        free(host[i]);
    }
    free(out[0]);
    free(out[1]);
}

static void large_products(void **state)
{
    (void)state;
    need_gpu();
    for (int type = 0; type < TYPES; type++) {
        product_of((number_type)type, false, 0, false);
        product_of((number_type)type, true, 1, false);
        product_of((number_type)type, false, 1, true);
    }
}

/* More rows than a block looks at at a time, and a token in a third of them. */
static void many_tokens(void **state)
{
    (void)state;
    need_gpu();
    enum { TOKENS = 5000, CASES = 4 };
    static const struct {
        int64_t vocab, hidden;
    } sizes[CASES] = {{70000, 132}, {11, 45}, {300, 1100}, {1, 1028}};
    device *d = gpu[0].device;
    int32_t *tokens = malloc(TOKENS * sizeof *tokens);
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
        there.tokens = copy_there(tokens, TOKENS * sizeof *tokens);
        there.dout = copy_there(dout, rows_bytes);
        there.dweight = copy_there(dweight, (size_t)count * sizeof *dweight);
        c.dweight = dweight;
        require(device_cpu()->run->embedding_backward(device_cpu(), &c) && d->run->embedding_backward(d, &there));
        compare_there("embedding's gradient", there.dweight, dweight, count, 1e-5);
        d->run->release(d, (void *)(uintptr_t)there.tokens);
        d->run->release(d, (void *)(uintptr_t)there.dout);
        free(dout);
        free(dweight);
    }
    free(tokens);
}

/* Logits that come in fours and not, far apart, and of tokens that cannot be. */
static void many_logits(void **state)
{
    (void)state;
    need_gpu();
    enum { LOGIT_ROWS = 40 };
    device *d = gpu[0].device;
    for (int64_t vocab = 5001; vocab <= 5004; vocab += 3) {
        const int64_t count = LOGIT_ROWS * vocab;
        const size_t bytes = (size_t)count * sizeof(float);
        int32_t targets[LOGIT_ROWS];
        float *x = malloc(bytes), *dx = malloc(bytes), lse[LOGIT_ROWS];
        double loss, *shared = d->run->allocate_shared(d, sizeof *shared);
        assert_true(x && dx && shared);
        fill_normal(x, count, 0, 6, 7);
        for (int64_t i = 0; i < vocab - 1; i++) {
            x[i] = i < 400 ? -INFINITY : x[i];
            x[vocab + i] = (float)i * 0.1f;
            x[2 * vocab + i] = (float)i * -0.1f;
        }
        random_tokens(targets, LOGIT_ROWS, vocab, 8);
        targets[0] = 401;
        targets[5] = -1;
        cross_entropy_call c = {
            .rows = LOGIT_ROWS, .vocab = vocab, .factor = 2, .x = x, .targets = targets, .lse = lse, .loss = &loss, .dx = dx};
        cross_entropy_call there = c;
        lse[5] = 0;
        there.x = copy_there(x, bytes);
        there.targets = copy_there(targets, sizeof targets);
        there.lse = copy_there(lse, sizeof lse);
        there.dx = copy_there(dx, bytes);
        there.loss = shared;
        require(device_cpu()->run->cross_entropy_forward(device_cpu(), &c) && d->run->cross_entropy_forward(d, &there));
        require(device_cpu()->run->cross_entropy_backward(device_cpu(), &c) && d->run->cross_entropy_backward(d, &there));
        compare_there("lse", there.lse, lse, LOGIT_ROWS, 1e-6);
        compare_there("gradient of logits", there.dx, dx, count, 1e-5);
        check_error("loss", fabs(*shared - loss), 1e-6 * fabs(loss));
        d->run->release(d, (void *)(uintptr_t)there.x);
        d->run->release(d, (void *)(uintptr_t)there.targets);
        d->run->release_shared(d, shared);
        free(x);
        free(dx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(large_products), cmocka_unit_test(many_tokens),
                                       cmocka_unit_test(many_logits)};
    return cmocka_run_group_tests_name("the trainer's operations on a GPU", tests, open_gpu, close_gpu);
}
