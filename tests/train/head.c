/*
 * The head by chunks of rows against the head of all rows at once: the loss bit for bit, gradients but for the order in which
 * a matrix's gradient is added up. In f32 and bf16, tied and untied, with rows and chunks without targets, dropout, recomputing
 * and documents; and when the loss is known.
 */
#include "support.h"
#include "train/error.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 3, SEQ = 37, ROWS = BATCH * SEQ, VOCAB = 301 };

static model_config config_of(bool tied)
{
    return (model_config){.vocab = VOCAB,
                          .hidden = 48,
                          .layers = 2,
                          .heads = 3,
                          .heads_kv = 1,
                          .head_dim = 16,
                          .ffn = 72,
                          .max_seq = SEQ,
                          .rope_theta = 1e4,
                          .rms_eps = 1e-6,
                          .tied = tied};
}

static void fill_tokens(int32_t tokens[ROWS], int32_t targets[ROWS])
{
    random_tokens(tokens, ROWS, VOCAB, 1);
    random_tokens(targets, ROWS, VOCAB, 2);
    for (int r = 0; r < ROWS; r++)
        if (r == 3 || (r >= 40 && r < 60) || r == ROWS - 1)
            targets[r] = -1;
}

/* Loss and gradients of two micro-batches. */
static float *gradients_of(const runtime *r, bool tied, step_options o, double *loss, size_t *count)
{
    const model_config c = config_of(tied);
    int32_t tokens[ROWS], targets[ROWS];
    model *m = random_model(&c, 5);
    require(model_place(m, r));
    o.batch = BATCH;
    o.seq = SEQ;
    o.backward = true;
    model_step *s = step_create(m, r, &o);
    require(s);
    fill_tokens(tokens, targets);
    for (int part = 0; part < 2; part++) {
        step_seed(s, 10 + (uint64_t)part);
        require(step_forward(s, tokens, targets, NULL) && step_backward(s, 0.5f) && step_loss(s, loss));
    }
    *count = (size_t)m->size;
    float *grad = malloc(*count * sizeof *grad);
    assert_non_null(grad);
    memcpy(grad, m->grad, *count * sizeof *grad);
    step_free(s);
    model_free(m);
    return grad;
}

static void compare(const runtime *r, bool tied, const step_options *o, double bound)
{
    const int64_t chunks[] = {1, 7, 16, ROWS - 1, ROWS, 5 * ROWS};
    double whole_loss, loss;
    size_t count;
    float *whole = gradients_of(r, tied, *o, &whole_loss, &count);
    assert_true(isfinite(whole_loss) && whole_loss > 1);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        step_options chunked = *o;
        char name[80];
        chunked.head_rows = chunks[i];
        float *grad = gradients_of(r, tied, chunked, &loss, &count);
        snprintf(name, sizeof name, "chunks of %d%s", (int)chunks[i], tied ? ", tied" : "");
        check_error(name, fabs(loss - whole_loss), o->dropout > 0 || r->type == NUMBER_BF16 ? 1e-6 : 1e-7);
        if (chunks[i] >= ROWS)
            assert_memory_equal(grad, whole, count * sizeof *grad);
        check_error(name, error_ff(grad, whole, (int64_t)count), bound);
        free(grad);
    }
    free(whole);
}

static void compare_all(const runtime *r, double bound)
{
    const step_options options[] = {{.attention = path_of("flash")},
                                    {.attention = path_of("composed"), .recompute = true},
                                    {.attention = path_of("flash"), .dropout = 0.2, .recompute = true},
                                    {.attention = path_of("flash"), .documents = {.on = true, .end = 17}}};
    for (int tied = 0; tied < 2; tied++)
        for (size_t i = 0; i < sizeof options / sizeof *options; i++)
            compare(r, tied, &options[i], bound);
}

static void chunks_f32(void **state)
{
    (void)state;
    compare_all(test_runtime(), 1e-6);
}

static void chunks_bf16(void **state)
{
    (void)state;
    runtime narrow;
    require(runtime_open(&narrow, &(runtime_options){.device = FATTN_DEVICE_CPU, .type = NUMBER_BF16}));
    compare_all(&narrow, 5e-3); /* a bit of bf16 */
    runtime_close(&narrow);
}

/* Asked for in forward, after it, or after backward, with and without gradients or logits, it is the same number; and forward
 * leaves gradients alone. */
static void when_the_loss_is_known(void **state)
{
    (void)state;
    const model_config c = config_of(true);
    int32_t tokens[ROWS], targets[ROWS];
    double losses[6];
    model *m = random_model(&c, 5);
    fill_tokens(tokens, targets);
    for (int i = 0; i < 6; i++) {
        const step_options o = {
            .batch = BATCH, .seq = SEQ, .attention = path_of("flash"), .backward = i < 4, .logits = i == 3, .head_rows = 10};
        model_step *s = step_create(m, test_runtime(), &o);
        require(s);
        require(model_zero_grad(m) && step_forward(s, tokens, targets, i % 2 ? &losses[i] : NULL));
        for (int64_t n = 0; n < m->size; n++)
            assert_true(m->grad[n] == 0);
        if (i == 2)
            require(step_backward(s, 1));
        require(step_loss(s, &losses[i]));
        assert_true(losses[i] == losses[0]);
        assert_true((step_logits(s) != NULL) == o.logits);
        require(i > 3 || i == 2 || step_backward(s, 1));
        step_free(s);
    }
    assert_true(losses[0] > 1);
    model_free(m);
}

/* Nothing counts: no loss, no gradient. */
static void no_targets(void **state)
{
    (void)state;
    const model_config c = config_of(false);
    int32_t tokens[ROWS], targets[ROWS];
    double loss = 1;
    model *m = random_model(&c, 5);
    model_step *s = step_create(
        m, test_runtime(),
        &(step_options){.batch = BATCH, .seq = SEQ, .attention = path_of("flash"), .backward = true, .head_rows = 10});
    require(s);
    fill_tokens(tokens, targets);
    memset(targets, 0xff, sizeof targets);
    require(step_forward(s, tokens, targets, NULL) && step_backward(s, 1) && step_loss(s, &loss));
    assert_true(loss == 0);
    for (int64_t n = 0; n < m->size; n++)
        assert_true(m->grad[n] == 0);
    step_free(s);
    model_free(m);
}

enum { MANY = 4001 }; /* words, so that logits are the largest activation */

static size_t arena_of(int64_t head_rows, bool backward)
{
    model_config c = config_of(true);
    c.vocab = MANY;
    model *m = random_model(&c, 5);
    model_step *s = step_create(
        m, test_runtime(),
        &(step_options){
            .batch = BATCH, .seq = SEQ, .attention = path_of("flash"), .backward = backward, .head_rows = head_rows});
    require(s);
    const size_t arena = step_memory_use(s).arena;
    step_free(s);
    model_free(m);
    return arena;
}

/* A step holds one chunk's logits, and their gradient takes no memory; few are left in one piece. */
static void what_it_needs(void **state)
{
    (void)state;
    const size_t logits = (size_t)ROWS * MANY * sizeof(float);
    for (int backward = 0; backward < 2; backward++) {
        const size_t whole = arena_of(0, backward), chunked = arena_of(8, backward);
        assert_true(whole > logits && whole < logits * 3 / 2);
        assert_true(chunked < whole - logits / 2);
    }
    assert_int_equal(layer_head_rows(65536, 258), 65536);
    assert_int_equal(layer_head_rows(32768, 50304), 4096);
    assert_int_equal(layer_head_rows(5000, 50304), 5000);
    assert_int_equal(layer_head_rows(32768, 151936), 2048);
    assert_int_equal(layer_head_rows(32768, 1 << 24), 2048);
    model *m = random_model(&(model_config){.vocab = 9,
                                            .hidden = 8,
                                            .heads = 1,
                                            .heads_kv = 1,
                                            .head_dim = 8,
                                            .ffn = 8,
                                            .max_seq = 8,
                                            .rope_theta = 1e4,
                                            .tied = true},
                            1);
    assert_null(step_create(m, test_runtime(), &(step_options){.batch = 1, .seq = 8, .head_rows = -1}));
    assert_non_null(strstr(train_error(), "head_rows"));
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(chunks_f32), cmocka_unit_test(chunks_bf16),
                                       cmocka_unit_test(when_the_loss_is_known), cmocka_unit_test(no_targets),
                                       cmocka_unit_test(what_it_needs)};
    return cmocka_run_group_tests_name("head", tests, NULL, NULL);
}
