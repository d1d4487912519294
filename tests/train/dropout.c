/*
 * Dropout: Philox's published numbers, the share that is dropped, gradients against finite differences, and masks that depend
 * on the seed alone. And gradients added up over micro-batches against those of one larger batch.
 */
#include "support.h"
#include "train/error.h"
#include "train/philox.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The three known answers of Random123 (kat_vectors). */
static void known_answers(void **state)
{
    (void)state;
    const struct {
        uint64_t key;
        uint32_t counter[4], answer[4];
    } cases[] = {
        {0, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
    for (int i = 0; i < 3; i++) {
        const uint32_t *c = cases[i].counter;
        const philox_words w = philox(cases[i].key, c[0], c[1], c[2], c[3]);
        assert_memory_equal(w.word, cases[i].answer, sizeof w.word);
    }
}

enum { WIDE = 1030, HIGH = 64 };

/* Odd widths, and more columns than are worked on at once. */
static void share(void **state)
{
    static float x[HIGH * WIDE], sum[HIGH * WIDE], out[HIGH * WIDE], grad[HIGH * WIDE];
    device *d = device_cpu();
    (void)state;
    for (int64_t cols = WIDE - 3; cols <= WIDE; cols++) {
        int64_t dropped = 0, all = HIGH * cols;
        for (int64_t i = 0; i < all; i++)
            x[i] = 1, sum[i] = 0.5f;
        dropout_call c = {
            .rows = HIGH, .cols = cols, .key = 77, .least = 1u << 30, .factor = 4.0f / 3, .from = x, .add = sum, .to = out};
        require(d->run->dropout(d, &c));
        c.add = NULL;
        c.to = grad;
        require(d->run->dropout(d, &c));
        for (int64_t i = 0; i < all; i++) {
            assert_true(out[i] == 0.5f || out[i] == 0.5f + 4.0f / 3);
            assert_true(grad[i] == (out[i] == 0.5f ? 0.0f : 4.0f / 3));
            dropped += out[i] == 0.5f;
        }
        check_error("share", fabs((double)dropped / (double)all - 0.25), 0.01);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- steps */

enum { BATCH = 2, SEQ = 12, ROWS = BATCH * SEQ };

static const model_config config = {.vocab = 20,
                                    .hidden = 24,
                                    .layers = 2,
                                    .heads = 2,
                                    .heads_kv = 1,
                                    .head_dim = 8,
                                    .ffn = 20,
                                    .max_seq = SEQ,
                                    .rope_theta = 1e4,
                                    .rms_eps = 1e-6};

typedef struct problem {
    model *m;
    model_step *s;
    int32_t tokens[ROWS];
} problem;

static problem open_problem(const char *path, bool recompute)
{
    problem p = {.m = random_model(&config, 5)};
    p.s = step_create(
        p.m, test_runtime(),
        &(step_options){
            .batch = BATCH, .seq = SEQ, .attention = path_of(path), .backward = true, .recompute = recompute, .dropout = 0.3});
    require(p.s);
    random_tokens(p.tokens, ROWS, config.vocab, 1);
    return p;
}

static void close_problem(problem *p)
{
    step_free(p->s);
    model_free(p->m);
}

static double loss_of(void *arg)
{
    problem *p = arg;
    double loss;
    require(step_forward(p->s, p->tokens, p->tokens, &loss));
    return loss;
}

static void differences(void **state)
{
    const char *const paths[] = {"composed", "flash"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        problem p = open_problem(paths[i], false);
        step_seed(p.s, 9);
        loss_of(&p);
        require(step_backward(p.s, 1.0f / (float)step_targets(p.s)));
        for (int j = 0; j < p.m->parameter_count; j++) {
            parameter *q = &p.m->parameters[j];
            float *grad = malloc((size_t)q->size * sizeof *grad);
            memcpy(grad, q->grad, (size_t)q->size * sizeof *grad);
            const int64_t cols = q->ndim == 2 ? q->shape[1] : 1;
            const checked_array a = {q->name, q->data, grad, q->shape[0], cols, cols};
            check_error(q->name, gradient_error(a, loss_of, &p, 1e-2, 12), 1e-2);
            free(grad);
        }
        close_problem(&p);
    }
}

/* The same seed again, another one, and the first once more with recomputing: whatever was drawn in between. */
static void seeds(void **state)
{
    (void)state;
    problem p = open_problem("flash", false), again = open_problem("flash", true);
    const size_t bytes = (size_t)p.m->size * sizeof(float);
    step_seed(p.s, 9);
    const double first = loss_of(&p);
    step_seed(p.s, 10);
    assert_true(loss_of(&p) != first);
    step_seed(p.s, 9);
    assert_true(loss_of(&p) == first);
    require(step_backward(p.s, 1.0f / (float)step_targets(p.s)));
    step_seed(again.s, 9);
    assert_true(loss_of(&again) == first);
    require(step_backward(again.s, 1.0f / (float)step_targets(again.s)));
    assert_memory_equal(p.m->grad, again.m->grad, bytes);
    close_problem(&p);
    close_problem(&again);
}

static void refusals(void **state)
{
    (void)state;
    model *m = random_model(&config, 5);
    assert_null(step_create(m, test_runtime(), &(step_options){.batch = 1, .seq = SEQ, .dropout = 1}));
    assert_non_null(strstr(train_error(), "dropout is 1"));
    model_free(m);
}

/* --------------------------------------------------------------------------------------------------------- micro-batches */

static model *added_up(int parts, double *loss)
{
    enum { ALL = 4 };
    int32_t tokens[ALL * SEQ];
    model *m = random_model(&config, 5);
    const int64_t batch = ALL / parts;
    model_step *s = step_create(m, test_runtime(),
                                &(step_options){.batch = batch, .seq = SEQ, .attention = path_of("flash"), .backward = true});
    require(s);
    random_tokens(tokens, ALL * SEQ, config.vocab, 1);
    *loss = 0;
    for (int part = 0; part < parts; part++) {
        double one;
        const int32_t *at = tokens + part * batch * SEQ;
        require(step_forward(s, at, at, &one));
        require(step_backward(s, 1.0f / (float)(parts * step_targets(s))));
        *loss += one / parts;
    }
    step_free(s);
    return m;
}

/* What a row's gradient is does not depend on its batch, and the embedding's table adds up rows in order: the same bits.
 * Matrices and norms add up a batch's rows in an order that depends on how many there are. */
static void micro_batches(void **state)
{
    double loss, parts_loss;
    (void)state;
    model *whole = added_up(1, &loss), *parts = added_up(2, &parts_loss);
    check_error("loss", fabs(loss - parts_loss) / loss, 1e-14);
    for (int i = 0; i < whole->parameter_count; i++) {
        const parameter *p = &whole->parameters[i], *q = &parts->parameters[i];
        check_error(p->name, error_ff(q->grad, p->grad, p->size), 1e-6);
    }
    assert_memory_equal(whole->parameters[0].grad, parts->parameters[0].grad,
                        (size_t)whole->parameters[0].size * sizeof(float));
    model_free(whole);
    model_free(parts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_answers), cmocka_unit_test(share),
                                       cmocka_unit_test(differences),   cmocka_unit_test(seeds),
                                       cmocka_unit_test(refusals),      cmocka_unit_test(micro_batches)};
    return cmocka_run_group_tests_name("dropout", tests, NULL, NULL);
}
