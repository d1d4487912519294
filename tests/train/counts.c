/*
 * Micro-batches with different numbers of targets: the update is that of one large batch, whose mean is over all targets. One
 * of them has none at all.
 */
#include <math.h>
#include <string.h>

#include "folder.h"
#include "support.h"
#include "train/error.h"
#include "train/loop.h"
#include "train/saved_batch.h"

enum { PARTS = 4, SEQ = 32, ROWS = PARTS * SEQ, END = 257, STEPS = 4, TARGETS = 30 + 0 + 6 + 20 };

static const model_config shape = {SHAPE_16, .vocab = 258, .layers = 2, .max_seq = SEQ, .tied = true};

/* Of the four windows one has a long document, one only ends of documents, one is padded, and one has short documents. */
static void make_batch(int32_t tokens[ROWS], int32_t targets[ROWS])
{
    random_tokens(tokens, ROWS, 250, 4);
    random_tokens(targets, ROWS, 250, 5);
    tokens[30] = tokens[31] = END;
    for (int i = SEQ; i < 2 * SEQ; i++)
        tokens[i] = END;
    for (int i = 2 * SEQ + 6; i < 3 * SEQ; i++)
        targets[i] = -1;
    for (int i = 3 * SEQ; i < 3 * SEQ + 24; i += 2)
        tokens[i] = END;
}

typedef struct history {
    double loss[STEPS], norm[STEPS];
} history;

static void on_report(void *user, const train_report *report)
{
    history *h = user;
    h->loss[report->step - 1] = report->loss;
    h->norm[report->step - 1] = report->grad_norm;
}

/* The same batch again and again, as `parts` micro-batches. */
static model *train(int64_t parts, const char *path, history *h)
{
    char folder[FOLDER_PATH], file[FOLDER_PATH];
    int32_t tokens[ROWS], targets[ROWS];
    const optimizer_options adam = optimizer_defaults();
    data_position position = {0, 0};
    guard_memory guard = {0};
    make_batch(tokens, targets);
    folder_make(folder);
    folder_file(file, folder, "batch.safetensors");
    const saved_batch batch = {.parts = parts, .batch = PARTS / parts, .seq = SEQ, .tokens = tokens, .targets = targets};
    require(saved_batch_write(file, &batch, 1, 0, 0));
    const train_options options = {.batch = batch.batch,
                                   .seq = SEQ,
                                   .accumulate = parts,
                                   .schedule = {.kind = SCHEDULE_CONSTANT, .lr = 1e-3, .steps = STEPS},
                                   .attention = path_of(path),
                                   .documents = {.on = true, .end = END},
                                   .replay = file,
                                   .report = on_report,
                                   .user = h};
    dataset *d = data_open(&(data_options){.source = "world", .world_seed = 1, .world_lines = 60});
    model *m = model_create(&shape, 3);
    optimizer *o = optimizer_create(m, &adam);
    require(d && m && o);
    assert_int_equal(train_run(m, o, test_runtime(), d, &position, &guard, &options), TRAIN_DONE);
    optimizer_free(o);
    data_close(d);
    folder_remove(folder);
    return m;
}

/* By one forward and backward of all, without the loop. */
static void first_step(const char *path, double *loss, double *norm)
{
    int32_t tokens[ROWS], targets[ROWS];
    model *m = model_create(&shape, 3);
    make_batch(tokens, targets);
    model_step *s = step_create(
        m, test_runtime(),
        &(step_options){
            .batch = PARTS, .seq = SEQ, .attention = path_of(path), .documents = {.on = true, .end = END}, .backward = true});
    require(s && step_forward(s, tokens, targets, loss));
    assert_int_equal(step_targets(s), TARGETS);
    require(step_backward(s, 1.0f / TARGETS));
    *norm = 0;
    for (int64_t i = 0; i < m->size; i++)
        *norm += (double)m->grad[i] * (double)m->grad[i];
    *norm = sqrt(*norm);
    step_free(s);
    model_free(m);
}

static void check_path(const char *path)
{
    history whole = {0}, parts = {0};
    double loss, norm;
    model *a = train(1, path, &whole), *b = train(PARTS, path, &parts);
    first_step(path, &loss, &norm);
    check_error("loss of the whole batch", fabs(whole.loss[0] / loss - 1), 1e-12);
    check_error("its gradient's norm", fabs(whole.norm[0] / norm - 1), 1e-6);
    for (int i = 0; i < STEPS; i++) {
        check_error("loss of its parts", fabs(parts.loss[i] / whole.loss[i] - 1), 1e-6);
        check_error("their gradient's norm", fabs(parts.norm[i] / whole.norm[i] - 1), 2e-6);
    }
    check_error("parameters", error_ff(b->data, a->data, a->size), 2e-5);
    model_free(a);
    model_free(b);
}

static void mean_over_all(void **state)
{
    (void)state;
    check_path("composed");
    check_path("flash");
}

/* Nothing to learn from: no NaN, and the weights only decay. */
static void no_targets(void **state)
{
    (void)state;
    int32_t tokens[ROWS], targets[ROWS];
    double loss = 1;
    model *m = model_create(&shape, 3);
    for (int i = 0; i < ROWS; i++)
        tokens[i] = targets[i] = END;
    model_step *s = step_create(m, test_runtime(),
                                &(step_options){.batch = PARTS,
                                                .seq = SEQ,
                                                .attention = path_of("flash"),
                                                .documents = {.on = true, .end = END},
                                                .backward = true});
    require(s && step_forward(s, tokens, targets, &loss) && step_backward(s, 1.0f / ROWS));
    assert_true(loss == 0 && step_targets(s) == 0);
    for (int64_t i = 0; i < m->size; i++)
        assert_true(m->grad[i] == 0);
    step_free(s);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mean_over_all), cmocka_unit_test(no_targets)};
    return cmocka_run_group_tests_name("counts", tests, NULL, NULL);
}
