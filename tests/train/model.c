/*
 * The whole model: against PyTorch's numbers in double (tools/golden_model.py) and finite differences; its attention paths
 * against each other; recomputing; two runs; and the decoder against the full forward.
 */
#include "support.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const model_config small = {.vocab = 61,
                                   .hidden = 48,
                                   .layers = 2,
                                   .heads = 4,
                                   .heads_kv = 2,
                                   .head_dim = 16,
                                   .ffn = 80,
                                   .max_seq = 320,
                                   .rope_theta = 10000.0,
                                   .rms_eps = 1e-6,
                                   .tied = false};

static model_step *new_step(model *m, const char *path, int64_t batch, int64_t seq, bool backward, bool recompute)
{
    const step_options o = {
        .batch = batch, .seq = seq, .attention = path_of(path), .backward = backward, .recompute = recompute, .logits = true};
    model_step *s = step_create(m, test_runtime(), &o);
    require(s);
    return s;
}

/* -------------------------------------------------------------------------------------------------------------- golden */

static int32_t *tokens_of(const safetensors_file *f, const char *name)
{
    int64_t count, *wide = golden_integers(f, name, &count);
    int32_t *narrow = malloc((size_t)count * sizeof *narrow);
    assert_non_null(narrow);
    for (int64_t i = 0; i < count; i++)
        narrow[i] = (int32_t)wide[i];
    free(wide);
    return narrow;
}

/* Every gradient within 1e-5 of the largest one of its tensor; logits and loss too. */
static void check_golden(const char *file, bool tied, const char *path)
{
    enum { BATCH = 3, SEQ = 14 };
    safetensors_file *f = golden_open(file);
    model *m = golden_model(f, tied, "");
    model_step *s = new_step(m, path, BATCH, SEQ, true, false);
    int32_t *tokens = tokens_of(f, "tokens"), *targets = tokens_of(f, "targets");
    double *logits = golden_doubles(f, "logits", NULL), *wanted = golden_doubles(f, "loss", NULL), loss;
    require(step_forward(s, tokens, targets, &loss));
    model_zero_grad(m);
    require(step_backward(s, 1.0f / (float)step_targets(s)));
    check_error("logits", error_fd(step_logits(s), logits, BATCH * SEQ * m->config.vocab), 1e-5);
    check_error("loss", fabs(loss - *wanted) / *wanted, 1e-6);
    for (int i = 0; i < m->parameter_count; i++) {
        const parameter *p = &m->parameters[i];
        char name[PARAMETER_NAME_SIZE + 8];
        snprintf(name, sizeof name, "grad.%s", p->name);
        int64_t count;
        double *grad = golden_doubles(f, name, &count);
        assert_int_equal(count, p->size);
        check_error(name, error_fd(p->grad, grad, count), 1e-5);
        free(grad);
    }
    free(tokens);
    free(targets);
    free(logits);
    free(wanted);
    step_free(s);
    model_free(m);
    safetensors_close(f);
}

static void golden_composed(void **state)
{
    (void)state;
    check_golden("model_tied.safetensors", true, "composed");
    check_golden("model_untied.safetensors", false, "composed");
}

static void golden_flash(void **state)
{
    (void)state;
    check_golden("model_tied.safetensors", true, "flash");
    check_golden("model_untied.safetensors", false, "flash");
}

/* -------------------------------------------------------------------------------------------------- finite differences */

typedef struct problem {
    model *m;
    model_step *s;
    int32_t *tokens, *targets;
} problem;

static double loss_of(void *arg)
{
    problem *p = arg;
    double loss;
    require(step_forward(p->s, p->tokens, p->targets, &loss));
    return loss;
}

static problem new_problem(model *m, const char *path, int64_t batch, int64_t seq, bool recompute)
{
    problem p = {.m = m, .s = new_step(m, path, batch, seq, true, recompute)};
    int64_t n = batch * seq;
    p.tokens = malloc((size_t)n * sizeof *p.tokens);
    p.targets = malloc((size_t)n * sizeof *p.targets);
    assert_non_null(p.tokens);
    assert_non_null(p.targets);
    random_tokens(p.tokens, n, m->config.vocab, 1);
    random_tokens(p.targets, n, m->config.vocab, 2);
    p.targets[n / 2] = -1;
    return p;
}

static void free_problem(problem *p)
{
    step_free(p->s);
    free(p->tokens);
    free(p->targets);
}

static float *gradients_of(problem *p, double *loss)
{
    size_t bytes = (size_t)p->m->size * sizeof(float);
    model_zero_grad(p->m);
    *loss = loss_of(p);
    require(step_backward(p->s, 1.0f / (float)step_targets(p->s)));
    float *copy = malloc(bytes);
    assert_non_null(copy);
    return memcpy(copy, p->m->grad, bytes);
}

static void differences_on(const char *path)
{
    model *m = random_model(&small, 5);
    problem p = new_problem(m, path, 2, 9, false);
    double loss;
    float *grads = gradients_of(&p, &loss);
    for (int i = 0; i < m->parameter_count; i++) {
        parameter *q = &m->parameters[i];
        checked_array a = {q->name, q->data, grads + q->offset, q->size, 1, 1};
        check_error(q->name, gradient_error(a, loss_of, &p, q->ndim == 1 ? 2e-2 : 1e-2, 24), 2e-3);
    }
    free(grads);
    free_problem(&p);
    model_free(m);
}

static void differences(void **state)
{
    (void)state;
    differences_on("composed");
    differences_on("flash");
    differences_on("window:3");
}

/* ----------------------------------------------------------------------------------------------------- paths and modes */

/* Logits, loss and every gradient of two problems that differ in one thing only. */
static void compare_problems(problem *a, problem *b, int64_t logits, double bound)
{
    double loss_a, loss_b;
    float *grads_a = gradients_of(a, &loss_a), *grads_b = gradients_of(b, &loss_b);
    check_error("loss", fabs(loss_a - loss_b) / loss_b, bound / 10);
    check_error("logits", error_ff(step_logits(a->s), step_logits(b->s), logits), bound);
    for (int i = 0; i < a->m->parameter_count; i++) {
        const parameter *p = &a->m->parameters[i];
        check_error(p->name, error_ff(grads_a + p->offset, grads_b + p->offset, p->size), bound);
    }
    free(grads_a);
    free(grads_b);
}

static void flash_is_composed(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        model_config c = small;
        c.tied = tied;
        model *m = random_model(&c, 6);
        problem a = new_problem(m, "flash", 3, 130, false), b = new_problem(m, "composed", 3, 130, false);
        compare_problems(&a, &b, 3 * 130 * c.vocab, 1e-5);
        free_problem(&a);
        free_problem(&b);
        model_free(m);
    }
}

/* Bit for bit: recomputing layers, running twice, running in another step. */
static void same_bits(void **state)
{
    (void)state;
    const char *const paths[] = {"composed", "flash"};
    for (int i = 0; i < 2; i++) {
        model *m = random_model(&small, 7);
        problem a = new_problem(m, paths[i], 2, 70, false), b = new_problem(m, paths[i], 2, 70, true);
        assert_true(step_memory_use(b.s).arena < step_memory_use(a.s).arena);
        double first, again, recomputed;
        float *g1 = gradients_of(&a, &first), *g2 = gradients_of(&a, &again), *g3 = gradients_of(&b, &recomputed);
        assert_memory_equal(&first, &again, sizeof first);
        assert_memory_equal(&first, &recomputed, sizeof first);
        assert_memory_equal(g1, g2, (size_t)m->size * sizeof *g1);
        assert_memory_equal(g1, g3, (size_t)m->size * sizeof *g1);
        free(g1);
        free(g2);
        free(g3);
        free_problem(&a);
        free_problem(&b);
        model_free(m);
    }
}

/* Two backwards with half the scale add up to one. */
static void gradients_add_up(void **state)
{
    (void)state;
    model *m = random_model(&small, 8);
    problem p = new_problem(m, "flash", 2, 20, false);
    double loss;
    float *whole = gradients_of(&p, &loss);
    model_zero_grad(m);
    for (int i = 0; i < 2; i++) {
        loss_of(&p);
        require(step_backward(p.s, 0.5f / (float)step_targets(p.s)));
    }
    check_error("two halves", error_ff(m->grad, whole, m->size), 1e-6);
    free(whole);
    free_problem(&p);
    model_free(m);
}

static float *logits_on(model *m, const char *path, const int32_t *tokens, int64_t seq, double *loss)
{
    size_t bytes = (size_t)(2 * seq * m->config.vocab) * sizeof(float);
    model_step *s = new_step(m, path, 2, seq, false, false);
    require(step_forward(s, tokens, tokens, loss));
    float *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, step_logits(s), bytes);
    step_free(s);
    return copy;
}

/* Blocks of any size are exact; windows are not, and the less so the narrower they are, until they cover everything. */
static void blocks_and_windows(void **state)
{
    (void)state;
    enum { SEQ = 96 };
    const char *const exact[] = {"block:1", "block:8", "block:32", "block:33", "block:96", "block:1000", "window:96", "flash"};
    const char *const narrower[] = {"window:32", "window:16", "window:8", "window:4"};
    model *m = random_model(&small, 9);
    int32_t tokens[2 * SEQ];
    random_tokens(tokens, 2 * SEQ, small.vocab, 3);
    double loss, other;
    float *wanted = logits_on(m, "composed", tokens, SEQ, &loss);
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) {
        float *found = logits_on(m, exact[i], tokens, SEQ, &other);
        check_error(exact[i], error_ff(found, wanted, 2 * SEQ * small.vocab), 1e-5);
        check_error(exact[i], fabs(other - loss) / loss, 1e-6);
        free(found);
    }
    double before = 1e-3;
    for (size_t i = 0; i < sizeof narrower / sizeof *narrower; i++) {
        float *found = logits_on(m, narrower[i], tokens, SEQ, &other);
        double error = 0.0; /* squares, so that it is not one logit that decides */
        for (int64_t j = 0; j < 2 * SEQ * small.vocab; j++)
            error += pow((double)found[j] - (double)wanted[j], 2.0);
        assert_true(error > before);
        before = error;
        free(found);
    }
    free(wanted);
    model_free(m);
}

/* The recomputing model is refused nothing that the other is not; bad requests are refused with a reason. */
static void refusals(void **state)
{
    (void)state;
    model *m = random_model(&small, 10);
    attention_path path;
    step_options o = {.batch = 1, .seq = 8, .attention = path_of("block:4"), .backward = true};
    assert_null(step_create(m, test_runtime(), &o));
    assert_non_null(strstr(train_error(), "backward"));
    o = (step_options){.batch = 1, .seq = small.max_seq + 1};
    assert_null(step_create(m, test_runtime(), &o));
    const char *const bad[] = {"", "Flash", "block", "block:", "block:0", "window:-1", "window:4x", "flash:3", "flashy"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(attention_path_parse(bad[i], &path));
    char text[32];
    assert_string_equal(attention_path_print(path_of("window:12"), text, sizeof text), "window:12");
    model_step *s = new_step(m, "flash", 1, 4, false, false);
    const int32_t good[] = {0, 1, 2, 60}, large[] = {0, 1, 2, 61}, negative[] = {0, 1, -1, 2};
    assert_true(step_forward(s, good, negative, NULL));
    assert_int_equal(step_targets(s), 3);
    assert_false(step_forward(s, large, good, NULL));
    assert_false(step_forward(s, negative, good, NULL));
    assert_false(step_forward(s, good, large, NULL));
    assert_false(step_backward(s, 1.0f));
    step_free(s);
    model_config c = small;
    c.heads_kv = 3;
    assert_null(model_create(&c, 0));
    assert_non_null(strstr(train_error(), "heads_kv"));
    model_free(m);
}

static int allocations_left;

static void *allocate_some(device *d, size_t bytes)
{
    (void)d;
    return allocations_left-- > 0 ? device_cpu()->run->allocate(device_cpu(), bytes) : NULL;
}

/* A device with room for the parameters and rotations, but not for parameters in bf16: the model has moved, whole. */
static void place_without_room(void **state)
{
    (void)state;
    runtime r = *test_runtime();
    device_table table = *r.device->run;
    device narrow = *r.device;
    table.allocate = allocate_some;
    narrow.run = &table;
    r.device = &narrow;
    r.type = NUMBER_BF16;
    allocations_left = 3;
    model *m = random_model(&small, 13);
    assert_false(model_place(m, &r));
    assert_ptr_equal(m->device, &narrow);
    assert_ptr_equal(m->parameters[0].data, m->data);
    assert_ptr_equal(m->embed.data, m->data);
    model_free(m);
}

/* ------------------------------------------------------------------------------------------------------------- decoder */

/* Feeds the sequence in pieces and compares the logits after each piece with the full forward's row. */
static void decode_in(model *m, const char *path, const int64_t *pieces, int count)
{
    enum { SEQ = 300 };
    int32_t tokens[SEQ];
    const float *logits;
    random_tokens(tokens, SEQ, m->config.vocab, 11);
    model_step *s = new_step(m, path, 1, SEQ, false, false);
    require(step_forward(s, tokens, NULL, NULL));
    decoder *d = decoder_create(m, test_runtime(), path_of(path), SEQ);
    require(d);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < count && decoder_length(d) + pieces[i] <= SEQ; i++) {
            require(decoder_feed(d, tokens + decoder_length(d), pieces[i], &logits));
            const float *row = step_logits(s) + (decoder_length(d) - 1) * m->config.vocab;
            check_error(path, error_ff(logits, row, m->config.vocab), 2e-5);
        }
        decoder_rewind(d, 2); /* the first two tokens stay: the second round begins in another place */
    }
    assert_int_equal(decoder_length(d), 2);
    assert_false(decoder_feed(d, tokens, SEQ - 1, &logits));
    assert_int_equal(decoder_length(d), 2);
    decoder_free(d);
    step_free(s);
}

static void decode_is_forward(void **state)
{
    (void)state;
    const int64_t singly[] = {3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, mixed[] = {1, 40, 7, 1, 130, 2, 100}, whole[] = {290, 1, 2};
    const char *const paths[] = {"composed", "flash", "block:16", "window:9"};
    model *m = random_model(&small, 12);
    for (int i = 0; i < 4; i++) {
        decode_in(m, paths[i], singly, 12);
        decode_in(m, paths[i], mixed, 7);
        decode_in(m, paths[i], whole, 3);
    }
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_composed),    cmocka_unit_test(golden_flash),
                                       cmocka_unit_test(differences),        cmocka_unit_test(flash_is_composed),
                                       cmocka_unit_test(same_bits),          cmocka_unit_test(gradients_add_up),
                                       cmocka_unit_test(blocks_and_windows), cmocka_unit_test(refusals),
                                       cmocka_unit_test(place_without_room), cmocka_unit_test(decode_is_forward)};
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
