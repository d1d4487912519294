/*
 * Documents in one sequence: each row has the logits that it has in its document alone, gradients are the sum of the
 * documents', and what stands in another document changes no bit.
 */
#include "support.h"
#include "train/error.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 40, BATCH = 2, ROWS = BATCH * SEQ, VOCAB = 50, END = 49 };

static const model_config shape = {SHAPE_32, .vocab = VOCAB, .layers = 2, .max_seq = SEQ};
/* The last rows of the documents of both sequences; the very last ones have no end token. */
static const int ends[] = {0, 12, 13, 30, 39, 46, 71, 79};
enum { DOCUMENTS = sizeof ends / sizeof *ends };

static void make_tokens(int32_t tokens[ROWS], int32_t targets[ROWS])
{
    random_tokens(tokens, ROWS, END, 5);
    for (int i = 0; i < DOCUMENTS; i++)
        if (ends[i] % SEQ != SEQ - 1)
            tokens[ends[i]] = END;
    for (int i = 0; i < ROWS; i++)
        targets[i] = i % SEQ == SEQ - 1 ? -1 : tokens[i + 1];
}

static model_step *open_step(model *m, const char *path, int64_t batch, int64_t seq, document_options documents)
{
    model_step *s = step_create(
        m, test_runtime(),
        &(step_options){
            .batch = batch, .seq = seq, .attention = path_of(path), .documents = documents, .backward = true, .logits = true});
    require(s);
    return s;
}

/* Each document by itself: its logits go to their rows, gradients add up as those of the sum of all losses. */
static double run_apart(model *m, const char *path, const int32_t *tokens, const int32_t *targets, float *logits)
{
    double sum = 0, loss;
    int64_t all = 0;
    require(model_zero_grad(m));
    for (int i = 0, first = 0; i < DOCUMENTS; first = ends[i++] + 1) {
        const int64_t length = ends[i] - first + 1;
        int32_t own[SEQ];
        memcpy(own, targets + first, (size_t)length * sizeof *own);
        own[length - 1] = -1;
        model_step *s = open_step(m, path, 1, length, (document_options){0});
        require(step_forward(s, tokens + first, own, &loss));
        require(step_backward(s, 1.0f));
        sum += loss * (double)step_targets(s);
        all += step_targets(s);
        memcpy(logits + first * VOCAB, step_logits(s), (size_t)length * VOCAB * sizeof *logits);
        step_free(s);
    }
    return sum / (double)all;
}

static void check_path(const char *path)
{
    model *m = random_model(&shape, 3);
    require(model_need_grad(m));
    int32_t tokens[ROWS], targets[ROWS];
    float *apart = malloc(ROWS * VOCAB * sizeof *apart), *grad = malloc((size_t)m->size * sizeof *grad);
    double loss;
    make_tokens(tokens, targets);
    const double expected = run_apart(m, path, tokens, targets, apart);
    memcpy(grad, m->grad, (size_t)m->size * sizeof *grad);
    model_step *s = open_step(m, path, BATCH, SEQ, (document_options){.on = true, .end = END});
    require(model_zero_grad(m));
    require(step_forward(s, tokens, targets, &loss));
    require(step_backward(s, 1.0f));
    assert_int_equal(step_targets(s), ROWS - DOCUMENTS);
    check_error(path, error_ff(step_logits(s), apart, ROWS * VOCAB), 2e-6);
    check_error("loss", fabs(loss - expected) / expected, 1e-6);
    check_error("gradient", error_ff(m->grad, grad, m->size), 5e-6);
    step_free(s);
    free(apart);
    free(grad);
    model_free(m);
}

static void test_packed_as_apart(void **state)
{
    (void)state;
    check_path("composed");
    check_path("flash");
    check_path("window:5");
}

/* Rows from `first` on have the same bits whatever the token at `changed` is. */
static void test_nothing_crosses(void **state)
{
    (void)state;
    static const char *const paths[] = {"composed", "flash"};
    model *m = random_model(&shape, 3);
    for (int i = 0; i < 2; i++) {
        int32_t tokens[ROWS], targets[ROWS];
        float before[ROWS * VOCAB];
        make_tokens(tokens, targets);
        model_step *s = open_step(m, paths[i], BATCH, SEQ, (document_options){.on = true, .end = END});
        require(step_forward(s, tokens, targets, NULL));
        memcpy(before, step_logits(s), sizeof before);
        tokens[20] = (tokens[20] + 1) % END; /* in rows 14 .. 30 */
        require(step_forward(s, tokens, targets, NULL));
        const float *after = step_logits(s);
        assert_memory_equal(before, after, 20 * VOCAB * sizeof *before);
        assert_memory_equal(before + 31 * VOCAB, after + 31 * VOCAB, (ROWS - 31) * VOCAB * sizeof *before);
        assert_true(memcmp(before + 21 * VOCAB, after + 21 * VOCAB, 10 * VOCAB * sizeof *before) != 0);
        step_free(s);
    }
    model_free(m);
}

/* The two options: targets behind an end count, and positions go on. */
static void test_options(void **state)
{
    (void)state;
    model *m = random_model(&shape, 3);
    int32_t tokens[ROWS], targets[ROWS];
    float restarted[ROWS * VOCAB];
    make_tokens(tokens, targets);
    model_step *s = open_step(m, "flash", BATCH, SEQ, (document_options){.on = true, .end = END, .targets_go_on = true});
    require(step_forward(s, tokens, targets, NULL));
    assert_int_equal(step_targets(s), ROWS - BATCH);
    memcpy(restarted, step_logits(s), sizeof restarted);
    step_free(s);
    s = open_step(m, "flash", BATCH, SEQ, (document_options){.on = true, .end = END, .positions_go_on = true});
    require(step_forward(s, tokens, targets, NULL));
    /* Turning queries and keys alike changes scores by rounding only, and rounding it does change. */
    check_error("positions", error_ff(step_logits(s), restarted, ROWS * VOCAB), 2e-5);
    assert_true(memcmp(step_logits(s) + 15 * VOCAB, restarted + 15 * VOCAB, 10 * VOCAB * sizeof *restarted) != 0);
    step_free(s);
    assert_null(
        step_create(m, test_runtime(),
                    &(step_options){.batch = 1, .seq = SEQ, .attention = path_of("block:8"), .documents = {.on = true}}));
    assert_non_null(strstr(train_error(), "documents"));
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_packed_as_apart), cmocka_unit_test(test_nothing_crosses),
                                       cmocka_unit_test(test_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
