/*
 * The training loop: a continued run makes the same updates as an uninterrupted one, bit for bit, with either attention.
 */
#include "train/loop.h"
#include "folder.h"
#include "support.h"
#include "train/error.h"
#include "train/evaluate.h"
#include "train/generate.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 12, BATCH = 2, SEQ = 24 };

static const model_config shape = {SHAPE_16, .vocab = 258, .layers = 2, .max_seq = SEQ, .tied = true};

typedef struct history {
    double loss[128], val[128];
    int count, samples;
    int stop_at; /* raise the flag after this step */
    atomic_int stop;
} history;

static void on_report(void *user, const train_report *report)
{
    history *h = user;
    h->loss[report->step - 1] = report->loss;
    h->val[report->step - 1] = report->has_val ? report->val_loss : 0;
    h->count++;
    if (report->step == h->stop_at)
        h->stop = 1;
}

static void on_sample(void *user, int64_t step, const int32_t *tokens, int64_t count)
{
    (void)step;
    history *h = user;
    assert_true(count > 0 && tokens[0] >= 0 && tokens[0] < 258);
    h->samples++;
}

static train_options options_of(history *h, const char *path, const char *out)
{
    return (train_options){.batch = BATCH,
                           .seq = SEQ,
                           .accumulate = 2,
                           .schedule = {.kind = SCHEDULE_COSINE, .lr = 1e-2, .min_lr = 1e-3, .warmup = 3, .steps = STEPS},
                           .seed = 5,
                           .attention = path_of(path),
                           .eval_every = 4,
                           .eval_batches = 2,
                           .out = out,
                           .configuration = "{}",
                           .stop = &h->stop,
                           .report = on_report,
                           .sample = on_sample,
                           .user = h};
}

static dataset *small_world(void)
{
    dataset *d = data_open(&(data_options){.source = "world", .world_seed = 1, .world_lines = 60});
    require(d);
    return d;
}

/* A new model, or what `from` holds. */
static train_result run(const char *from, const train_options *options)
{
    const optimizer_options adam = optimizer_defaults();
    checkpoint_state state = {0};
    data_position position = {0, 0};
    guard_memory guard = {0};
    dataset *d = small_world();
    if (from)
        require(checkpoint_read_state(from, &state));
    model *m = from ? checkpoint_load_model(from, &state) : model_create(&shape, options->seed);
    require(m);
    optimizer *o = optimizer_create(m, &adam);
    if (from) {
        require(checkpoint_load_optimizer(from, &state, o));
        position = state.position;
        guard = state.guard;
    }
    train_result result = train_run(m, o, test_runtime(), d, &position, &guard, options);
    optimizer_free(o);
    model_free(m);
    data_close(d);
    checkpoint_state_free(&state);
    return result;
}

static void check_resume(const char *path, const char *resumed_path, bool recompute)
{
    char folder[FOLDER_PATH], whole[FOLDER_PATH], parts[FOLDER_PATH], left[FOLDER_PATH], right[FOLDER_PATH];
    folder_make(folder);
    folder_file(whole, folder, "whole");
    folder_file(parts, folder, "parts");
    history one = {0}, two = {.stop_at = 5}, again = {0};
    train_options options = options_of(&one, path, whole);
    assert_int_equal(run(NULL, &options), TRAIN_DONE);
    assert_int_equal(one.count, STEPS);

    options = options_of(&two, path, parts);
    assert_int_equal(run(NULL, &options), TRAIN_STOPPED);
    assert_int_equal(two.count, 5);
    options = options_of(&again, resumed_path, parts);
    options.recompute = recompute;
    assert_int_equal(run(parts, &options), TRAIN_DONE);
    assert_int_equal(again.count, STEPS - 5);

    if (strcmp(path, resumed_path) == 0) {
        assert_memory_equal(two.loss, one.loss, 5 * sizeof *one.loss);
        assert_memory_equal(again.loss + 5, one.loss + 5, (STEPS - 5) * sizeof *one.loss);
        assert_memory_equal(again.val + 5, one.val + 5, (STEPS - 5) * sizeof *one.val);
        assert_true(one.val[STEPS - 1] > 0);
        for (int i = 0; i < 2; ++i) {
            const char *name = i ? "optimizer.safetensors" : "model.safetensors";
            assert_true(file_same(folder_file(left, whole, name), folder_file(right, parts, name)));
        }
    } else {
        for (int i = 5; i < STEPS; ++i)
            assert_true(fabs(again.loss[i] - one.loss[i]) < 1e-4);
    }
    folder_remove(folder);
}

static void test_resume_composed(void **state)
{
    (void)state;
    check_resume("composed", "composed", false);
}

static void test_resume_flash(void **state)
{
    (void)state;
    check_resume("flash", "flash", false);
}

/* Both are switches of the run: the checkpoint does not know of them. */
static void test_resume_with_other_switches(void **state)
{
    (void)state;
    check_resume("flash", "flash", true);
    check_resume("composed", "flash", false);
}

static void test_save_every(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], out[FOLDER_PATH];
    folder_make(folder);
    folder_file(out, folder, "run");
    history h = {0};
    train_options options = options_of(&h, "flash", out);
    checkpoint_state saved;
    options.save_every = 5;
    options.sample_every = 6;
    options.sample_tokens = 100; /* more than the model's longest sequence */
    assert_int_equal(run(NULL, &options), TRAIN_DONE);
    require(checkpoint_read_state(out, &saved));
    assert_int_equal(saved.step, STEPS);
    assert_int_equal(h.samples, 2);
    checkpoint_state_free(&saved);
    folder_remove(folder);
}

/* A learning rate that ruins the model: the run ends with the reason, and what was saved before stays. */
static void test_divergence(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], out[FOLDER_PATH];
    folder_make(folder);
    folder_file(out, folder, "run");
    history h = {0};
    train_options options = options_of(&h, "flash", out);
    options.schedule.steps = 3;
    options.eval_every = 0;
    assert_int_equal(run(NULL, &options), TRAIN_DONE);
    options.schedule = (lr_schedule){.kind = SCHEDULE_CONSTANT, .lr = 1e30, .steps = 100};
    assert_int_equal(run(out, &options), TRAIN_DIVERGED);
    assert_non_null(strstr(train_error(), " in step "));
    checkpoint_state saved;
    require(checkpoint_read_state(out, &saved));
    assert_int_equal(saved.step, 3);
    model *m = checkpoint_load_model(out, &saved);
    require(m);
    model_free(m);
    checkpoint_state_free(&saved);
    folder_remove(folder);
}

static bool fail_to_work(device *d, const update_call *c)
{
    (void)d, (void)c;
    return train_fail_as(TRAIN_ERROR_WORK, "the device failed");
}

/* A device that fails in an update is no divergence. */
static void test_failing_device(void **state)
{
    (void)state;
    history h = {0};
    const train_options options = options_of(&h, "flash", NULL);
    const optimizer_options adam = optimizer_defaults();
    data_position position = {0, 0};
    guard_memory guard = {0};
    runtime r = *test_runtime();
    device_table table = *r.device->run;
    device failing = *r.device;
    table.grad_norm = fail_to_work;
    failing.run = &table;
    r.device = &failing;
    dataset *d = small_world();
    model *m = model_create(&shape, 1);
    require(m && model_place(m, &r));
    optimizer *o = optimizer_create(m, &adam);
    assert_int_equal(train_run(m, o, &r, d, &position, &guard, &options), TRAIN_FAILED);
    assert_string_equal(train_error(), "the device failed");
    assert_int_equal(h.count, 0);
    optimizer_free(o);
    model_free(m);
    data_close(d);
}

static void test_refusals(void **state)
{
    (void)state;
    history h = {0};
    train_options options = options_of(&h, "flash", NULL);
    options.seq = SEQ + 1;
    assert_int_equal(run(NULL, &options), TRAIN_REFUSED);
    assert_non_null(strstr(train_error(), "seq"));
    options = options_of(&h, "block:4", NULL);
    assert_int_equal(run(NULL, &options), TRAIN_REFUSED);

    const optimizer_options adam = optimizer_defaults();
    data_position position = {0, 0};
    guard_memory guard = {0};
    model_config narrow = shape;
    narrow.vocab = 100;
    dataset *d = small_world();
    model *m = model_create(&narrow, 1);
    optimizer *o = optimizer_create(m, &adam);
    options = options_of(&h, "flash", NULL);
    assert_int_equal(train_run(m, o, test_runtime(), d, &position, &guard, &options), TRAIN_REFUSED);
    assert_non_null(strstr(train_error(), "vocab: the model has 100 tokens, the data 258"));
    position.window = 1000000;
    assert_int_equal(h.count, 0);
    optimizer_free(o);
    model_free(m);
    data_close(d);
}

/* One batch is learned by heart, and its text comes back greedily. */
static void test_overfit(void **state)
{
    (void)state;
    const char *const paths[] = {"composed", "flash"};
    for (int i = 0; i < 2; ++i) {
        const optimizer_options adam = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0, .clip = 1};
        history h = {0};
        train_options options = options_of(&h, paths[i], NULL);
        options.one_batch = true;
        options.accumulate = options.batch = 1;
        options.eval_every = 0;
        options.schedule = (lr_schedule){.kind = SCHEDULE_CONSTANT, .lr = 1e-2, .warmup = 5, .steps = 120};
        data_position position = {0, 0};
        guard_memory guard = {0};
        dataset *d = small_world();
        model *m = model_create(&shape, 3);
        optimizer *o = optimizer_create(m, &adam);
        assert_int_equal(train_run(m, o, test_runtime(), d, &position, &guard, &options), TRAIN_DONE);
        check_error("loss of a batch learned by heart", h.loss[119], 0.02);

        data_tokens train = data_split(d, WORLD_TRAIN);
        data_reader reader;
        int32_t tokens[SEQ], targets[SEQ];
        const float *logits;
        require(data_reader_init(&reader, &train, SEQ, options.seed, "data"));
        data_reader_next(&reader, 1, tokens, targets);
        decoder *cache = decoder_create(m, test_runtime(), options.attention, SEQ);
        sampler greedy;
        sampler_init(&greedy, &(sampler_options){.greedy = true}, 258);
        for (int at = 0; at < SEQ; ++at) {
            require(decoder_feed(cache, tokens + at, 1, &logits));
            assert_int_equal(sampler_pick(&greedy, logits), targets[at]);
        }
        sampler_free(&greedy);
        decoder_free(cache);
        optimizer_free(o);
        model_free(m);
        data_close(d);
    }
}

/* The same loss with every exact attention and with any batch; the window of the whole sequence is exact, too. */
static void test_evaluate(void **state)
{
    (void)state;
    const char *const paths[] = {"composed", "flash", "block:5", "window:24"};
    dataset *d = small_world();
    data_tokens val = data_split(d, WORLD_VAL);
    model *m = random_model(&shape, 8);
    evaluation first = {0};
    for (int i = 0; i < 8; ++i) {
        evaluation result;
        const int64_t batch = i < 4 ? 3 : 1;
        model_step *step =
            step_create(m, test_runtime(), &(step_options){.batch = batch, .seq = SEQ, .attention = path_of(paths[i % 4])});
        require(step);
        require(evaluate(step, test_runtime()->ranks, &val, batch, SEQ, 0, &result));
        assert_int_equal(result.tokens, val.count - 1);
        if (i == 0)
            first = result;
        check_error(paths[i % 4], fabs(result.loss - first.loss), 1e-6);
        require(evaluate(step, test_runtime()->ranks, &val, batch, SEQ, 50, &result));
        assert_int_equal(result.tokens, 50);
        step_free(step);
    }
    model_free(m);
    data_close(d);
}

/* Where each token that is looked at ends a document. */
static void test_evaluate_nothing(void **state)
{
    (void)state;
    dataset *d = small_world();
    data_tokens val = data_split(d, WORLD_VAL);
    model *m = random_model(&shape, 8);
    evaluation result;
    int32_t tokens[SEQ], targets[SEQ];
    data_window_batch(&val, SEQ, 0, 1, tokens, targets);
    model_step *step = step_create(
        m, test_runtime(),
        &(step_options){.batch = 1, .seq = SEQ, .attention = path_of("flash"), .documents = {.on = true, .end = tokens[0]}});
    require(step && evaluate(step, test_runtime()->ranks, &val, 1, SEQ, 1, &result));
    assert_int_equal(result.tokens, 0);
    assert_true(result.loss == 0);
    step_free(step);
    model_free(m);
    data_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume_composed),
        cmocka_unit_test(test_resume_flash),
        cmocka_unit_test(test_resume_with_other_switches),
        cmocka_unit_test(test_save_every),
        cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_failing_device),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_overfit),
        cmocka_unit_test(test_evaluate),
        cmocka_unit_test(test_evaluate_nothing),
    };
    return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}
