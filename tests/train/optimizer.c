/*
 * AdamW against torch.optim.AdamW in double (tools/golden_adamw.py), the schedule's corners, and training itself: one batch
 * is learned by heart, and greedy decoding replays it.
 */
#include "train/optimizer.h"
#include "support.h"
#include "train/schedule.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------------------------- AdamW */

static optimizer_options golden_options(const safetensors_file *f)
{
    double *n = golden_doubles(f, "options", NULL);
    optimizer_options o = {.beta1 = n[0], .beta2 = n[1], .eps = n[2], .weight_decay = n[3], .clip = n[4]};
    free(n);
    return o;
}

/* So many times what stands in the file. */
static void load_gradients(model *m, const safetensors_file *f, int64_t step, float times)
{
    for (int i = 0; i < m->parameter_count; i++) {
        parameter *p = &m->parameters[i];
        char name[PARAMETER_NAME_SIZE + 8];
        snprintf(name, sizeof name, "grad.%s", p->name);
        float *all = golden_floats(f, name, NULL);
        for (int64_t j = 0; j < p->size; j++)
            p->grad[j] = times * all[step * p->size + j];
        free(all);
    }
}

static void check_parameters(const model *m, const safetensors_file *f, int64_t step)
{
    for (int i = 0; i < m->parameter_count; i++) {
        const parameter *p = &m->parameters[i];
        char name[PARAMETER_NAME_SIZE + 8];
        snprintf(name, sizeof name, "after.%s", p->name);
        double *all = golden_doubles(f, name, NULL);
        check_error(name, error_fd(p->data, all + step * p->size, p->size), 2e-6);
        free(all);
    }
}

static void adamw(void **state)
{
    (void)state;
    safetensors_file *f = golden_open("adamw.safetensors");
    model *m = golden_model(f, true, "start.");
    optimizer_options options = golden_options(f);
    optimizer *o = optimizer_create(m, &options);
    require(o);
    int64_t steps;
    double *lr = golden_doubles(f, "lr", &steps), *norms = golden_doubles(f, "norm", NULL);
    for (int64_t step = 0; step < steps; step++) {
        const float times = 1 << step % 3;
        double norm;
        load_gradients(m, f, step, times);
        o->scale = 1 / times;
        require(optimizer_update(o, lr[step], &norm));
        check_error("norm", fabs(norm - norms[step]) / norms[step], 1e-6);
        check_parameters(m, f, step);
    }
    assert_int_equal(o->step, steps);
    free(lr);
    free(norms);
    optimizer_free(o);
    model_free(m);
    safetensors_close(f);
}

/* With gradients of nothing, only decay moves parameters: matrices, the embedding if it is not spared, and no norm. */
static void decay_groups(void **state)
{
    (void)state;
    const model_config c = {.vocab = 9,
                            .hidden = 8,
                            .layers = 1,
                            .heads = 1,
                            .heads_kv = 1,
                            .head_dim = 8,
                            .ffn = 8,
                            .max_seq = 8,
                            .rope_theta = 10000,
                            .rms_eps = 1e-6};
    for (int spare = 0; spare < 2; spare++) {
        optimizer_options options = optimizer_defaults();
        options.weight_decay = 0.5;
        options.spare_embedding = spare;
        model *m = random_model(&c, 2), *before = random_model(&c, 2);
        optimizer *o = optimizer_create(m, &options);
        double norm;
        require(o && optimizer_update(o, 0.1, &norm));
        for (int i = 0; i < m->parameter_count; i++) {
            const parameter *p = &m->parameters[i];
            const bool decays = p->ndim == 2 && !(spare && i == 0);
            for (int64_t j = 0; j < p->size; j++)
                assert_true(p->data[j] == before->parameters[i].data[j] * (decays ? 0.95f : 1.0f));
        }
        optimizer_free(o);
        model_free(m);
        model_free(before);
    }
}

/* A norm that is no number changes nothing. */
static void not_finite(void **state)
{
    (void)state;
    model_config c = {.vocab = 8,
                      .hidden = 8,
                      .layers = 1,
                      .heads = 1,
                      .heads_kv = 1,
                      .head_dim = 8,
                      .ffn = 8,
                      .max_seq = 8,
                      .rope_theta = 1e4,
                      .rms_eps = 1e-6};
    model *m = model_create(&c, 1);
    require(m);
    optimizer_options options = optimizer_defaults();
    optimizer *o = optimizer_create(m, &options);
    require(o);
    float before = m->data[3];
    double norm;
    m->grad[3] = INFINITY;
    assert_false(optimizer_update(o, 0.1, &norm));
    m->grad[3] = NAN;
    assert_false(optimizer_update(o, 0.1, &norm));
    assert_int_equal(o->step, 0);
    assert_true(m->data[3] == before);
    optimizer_free(o);
    model_free(m);
}

static void schedules(void **state)
{
    (void)state;
    lr_schedule s = {.kind = SCHEDULE_COSINE, .lr = 1.0, .min_lr = 0.1, .warmup = 10, .steps = 110};
    assert_true(fabs(schedule_lr(&s, 0) - (0.1)) < 1e-12);
    assert_true(fabs(schedule_lr(&s, 9) - (1.0)) < 1e-12);
    assert_true(fabs(schedule_lr(&s, 10) - (1.0)) < 1e-12);
    assert_true(fabs(schedule_lr(&s, 60) - (0.55)) < 1e-12);
    assert_true(fabs(schedule_lr(&s, 35) - (0.1 + 0.45 * (1 + sqrt(0.5)))) < 1e-12);
    assert_true(fabs(schedule_lr(&s, 110) - (0.1)) < 1e-12);
    s.kind = SCHEDULE_CONSTANT;
    assert_true(fabs(schedule_lr(&s, 4) - (0.5)) < 1e-12);
    assert_true(fabs(schedule_lr(&s, 109) - (1.0)) < 1e-12);
    s.kind = SCHEDULE_LINEAR;
    assert_true(fabs(schedule_lr(&s, 10) - 1.0) < 1e-12);
    assert_true(fabs(schedule_lr(&s, 35) - (0.1 + 0.9 * 0.75)) < 1e-12);
    assert_true(fabs(schedule_lr(&s, 109) - (0.1 + 0.9 * 0.01)) < 1e-12);
    s.kind = SCHEDULE_WSD;
    s.decay = 20;
    assert_true(fabs(schedule_lr(&s, 4) - 0.5) < 1e-12);
    assert_true(fabs(schedule_lr(&s, 89) - 1.0) < 1e-12);
    assert_true(fabs(schedule_lr(&s, 90) - 1.0) < 1e-12);
    assert_true(fabs(schedule_lr(&s, 95) - (0.1 + 0.9 * 0.5)) < 1e-12); /* a quarter of the way, and its root */
    assert_true(fabs(schedule_lr(&s, 110) - 0.1) < 1e-12);
    s.decay = 0;
    assert_true(fabs(schedule_lr(&s, 109) - 1.0) < 1e-12);
    s = (lr_schedule){.kind = SCHEDULE_COSINE, .lr = 1.0, .steps = 0};
    assert_true(fabs(schedule_lr(&s, 0) - (0.0)) < 1e-12);
}

/* ------------------------------------------------------------------------------------------------------------- overfit */

enum { BATCH = 4, SEQ = 33 };

static int32_t greatest(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return (int32_t)best;
}

/* Continues from the first token of a sequence and counts the tokens that come out as learned. */
static int replay(const model *m, const char *path, const int32_t *sequence)
{
    decoder *d = decoder_create(m, test_runtime(), path_of(path), SEQ);
    const float *logits;
    int32_t token = sequence[0];
    int right = 0;
    require(d);
    for (int i = 1; i < SEQ; i++) {
        require(decoder_feed(d, &token, 1, &logits));
        token = greatest(logits, m->config.vocab);
        right += token == sequence[i];
    }
    decoder_free(d);
    return right;
}

static void overfit_on(const char *path, bool recompute)
{
    model_config c = {.vocab = 50,
                      .hidden = 64,
                      .layers = 2,
                      .heads = 2,
                      .heads_kv = 1,
                      .head_dim = 32,
                      .ffn = 128,
                      .max_seq = 64,
                      .rope_theta = 1e4,
                      .rms_eps = 1e-6,
                      .tied = false};
    int32_t sequences[BATCH][SEQ], tokens[BATCH * (SEQ - 1)], targets[BATCH * (SEQ - 1)];
    random_tokens(sequences[0], BATCH * SEQ, c.vocab, 21);
    for (int b = 0; b < BATCH; b++) {
        sequences[b][0] = b; /* so that the first token tells which sequence it is */
        memcpy(tokens + b * (SEQ - 1), sequences[b], (SEQ - 1) * sizeof *tokens);
        memcpy(targets + b * (SEQ - 1), sequences[b] + 1, (SEQ - 1) * sizeof *targets);
    }
    model *m = model_create(&c, 1);
    require(m);
    optimizer_options options = optimizer_defaults();
    optimizer *o = optimizer_create(m, &options);
    model_step *s = step_create(
        m, test_runtime(),
        &(step_options){.batch = BATCH, .seq = SEQ - 1, .attention = path_of(path), .backward = true, .recompute = recompute});
    double loss = 0.0, norm;
    require(o && s);
    for (int step = 0; step < 200; step++) {
        require(step_forward(s, tokens, targets, &loss));
        model_zero_grad(m);
        require(step_backward(s, 1.0f / (float)step_targets(s)));
        require(optimizer_update(o, 3e-3, &norm));
    }
    check_error("loss of a batch learned by heart", loss, 1e-2);
    for (int b = 0; b < BATCH; b++)
        assert_int_equal(replay(m, path, sequences[b]), SEQ - 1);
    step_free(s);
    optimizer_free(o);
    model_free(m);
}

static void overfit_composed(void **state)
{
    (void)state;
    overfit_on("composed", false);
}

static void overfit_flash(void **state)
{
    (void)state;
    overfit_on("flash", false);
    overfit_on("flash", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw),     cmocka_unit_test(not_finite),       cmocka_unit_test(decay_groups),
        cmocka_unit_test(schedules), cmocka_unit_test(overfit_composed), cmocka_unit_test(overfit_flash)};
    return cmocka_run_group_tests_name("optimizer", tests, NULL, NULL);
}
