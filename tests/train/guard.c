/*
 * The guard: what counts as a spike; runs whose gradient is spoiled skip the update, or stop and leave behind what goes on to
 * the same end once nothing is spoiled; and decisions are the same in a run that was interrupted.
 */
#include "train/guard.h"
#include "folder.h"
#include "support.h"
#include "train/error.h"
#include "train/loop.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void limits(void **state)
{
    (void)state;
    guard_window w = {0};
    for (int i = 0; i < GUARD_WINDOW - 1; i++)
        guard_note(&w, i % 2 ? 3 : 1);
    guard_note(&w, NAN);
    guard_note(&w, INFINITY);
    assert_true(isinf(guard_limit(&w, 4))); /* one is missing */
    guard_note(&w, 3);
    check_error("limit", fabs(guard_limit(&w, 4) - (2 + 4 * 1)), 1e-12);
    assert_true(isinf(guard_limit(&w, 0)));
    for (int i = 0; i < GUARD_WINDOW; i++)
        guard_note(&w, 5);
    assert_int_equal(w.count, GUARD_WINDOW);
    assert_true(isinf(guard_limit(&w, 4))); /* all the same */
    guard_note(&w, 6);
    assert_true(w.value[0] == 5 && w.value[GUARD_WINDOW - 1] == 6);
    assert_true(guard_accepts(3, 3) && !guard_accepts(3.1, 3) && !guard_accepts(NAN, INFINITY) &&
                !guard_accepts(INFINITY, INFINITY));
}

/* -------------------------------------------------------------------------------------------------- a spoiled gradient */

/* Update number `at`, and the ones after it, `count` in all, have this norm. */
static struct spoil {
    int64_t at, count, seen;
    double norm;
} spoil;

static bool spoiled_norm(device *d, const update_call *c)
{
    const int64_t number = ++spoil.seen;
    device_cpu()->run->grad_norm(d, c);
    if (number >= spoil.at && number < spoil.at + spoil.count)
        *c->norm = *c->shared_norm = spoil.norm;
    return true;
}

enum { BATCH = 2, SEQ = 8, STEPS_MOST = 160 };

static const model_config shape = {.vocab = 258,
                                   .hidden = 8,
                                   .layers = 1,
                                   .heads = 1,
                                   .heads_kv = 1,
                                   .head_dim = 8,
                                   .ffn = 12,
                                   .max_seq = SEQ,
                                   .rope_theta = 10000,
                                   .rms_eps = 1e-6,
                                   .tied = true};

typedef struct history {
    double loss[STEPS_MOST + 1], norm[STEPS_MOST + 1];
    bool skipped[STEPS_MOST + 1];
    int64_t last;
} history;

static void on_report(void *user, const train_report *report)
{
    history *h = user;
    h->loss[report->step] = report->loss;
    h->norm[report->step] = report->grad_norm;
    h->skipped[report->step] = report->skipped;
    h->last = report->step;
}

static train_options options_of(history *h, int64_t steps, const char *out)
{
    return (train_options){.batch = BATCH,
                           .seq = SEQ,
                           .accumulate = 2,
                           .seed = 5,
                           .dropout = 0.1,
                           .schedule = {.kind = SCHEDULE_CONSTANT, .lr = 1e-3, .steps = steps},
                           .attention = path_of("flash"),
                           .out = out,
                           .configuration = "{}",
                           .report = on_report,
                           .user = h};
}

/* A new model, or what `from` holds; *sum: of its parameters at the end, as something to compare. */
static train_result run(const char *from, const train_options *options, double *sum)
{
    const optimizer_options adam = optimizer_defaults();
    checkpoint_state saved = {0};
    runtime r = *test_runtime();
    device_table table = *r.device->run;
    device spoiled = *r.device;
    table.grad_norm = spoiled_norm;
    spoiled.run = &table;
    r.device = &spoiled;
    dataset *d = data_open(&(data_options){.source = "world", .world_seed = 1, .world_lines = 60});
    require(d && (!from || checkpoint_read_state(from, &saved)));
    model *m = from ? checkpoint_load_model(from, &saved) : model_create(&shape, options->seed);
    require(m && model_place(m, &r));
    optimizer *o = optimizer_create(m, &adam);
    require(o && (!from || checkpoint_load_optimizer(from, &saved, o)));
    spoil.seen = o->step;
    train_result result = train_run(m, o, &r, d, &saved.position, &saved.guard, options);
    *sum = 0;
    for (int64_t i = 0; i < m->size; i++)
        *sum += (double)m->data[i] * (double)(i % 97 + 1);
    optimizer_free(o);
    model_free(m);
    data_close(d);
    checkpoint_state_free(&saved);
    return result;
}

static void skips(void **state)
{
    (void)state;
    history h = {0};
    double sum, other;
    train_options options = options_of(&h, 8, NULL);
    options.guard = GUARD_SKIP;
    spoil = (struct spoil){.at = 4, .count = 2, .norm = NAN};
    assert_int_equal(run(NULL, &options, &sum), TRAIN_DONE);
    for (int64_t step = 1; step <= 8; step++)
        assert_int_equal(h.skipped[step], step == 4 || step == 5);
    assert_true(isfinite(sum));
    /* Nothing was changed: up to the first skipped update is where the model stays. */
    options.schedule.steps = 3;
    assert_int_equal(run(NULL, &options, &sum), TRAIN_DONE);
    options.schedule.steps = 5;
    assert_int_equal(run(NULL, &options, &other), TRAIN_DONE);
    assert_true(sum == other);
    /* Without end, it stops. */
    spoil.count = 1000;
    options.schedule.steps = 60;
    assert_int_equal(run(NULL, &options, &sum), TRAIN_DIVERGED);
    assert_int_equal(h.last, 3 + GUARD_SKIPS - 1);
}

static void off(void **state)
{
    (void)state;
    history h = {0};
    double sum;
    train_options options = options_of(&h, 6, NULL);
    options.guard = GUARD_OFF;
    spoil = (struct spoil){.at = 4, .count = 1, .norm = NAN};
    assert_int_equal(run(NULL, &options, &sum), TRAIN_DONE);
    assert_int_equal(h.last, 6);
    assert_false(h.skipped[4]);
}

/* A run that stopped goes on from what it left to the end of one that was never spoiled, and its batch gives the same loss. */
static void stops(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], out[FOLDER_PATH], stopped[FOLDER_PATH], batch[FOLDER_PATH];
    double whole_sum, sum;
    history whole = {0}, h = {0}, again = {0};
    folder_make(folder);
    folder_file(out, folder, "run");
    folder_file(stopped, out, TRAIN_STOPPED_FOLDER);
    folder_file(batch, stopped, TRAIN_STOPPED_BATCH);
    spoil = (struct spoil){0};
    train_options options = options_of(&whole, 10, NULL);
    assert_int_equal(run(NULL, &options, &whole_sum), TRAIN_DONE);

    spoil = (struct spoil){.at = 6, .count = 1, .norm = INFINITY};
    options = options_of(&h, 10, out);
    assert_int_equal(run(NULL, &options, &sum), TRAIN_DIVERGED);
    assert_non_null(strstr(train_error(), "the gradient's norm is inf in step 6"));
    assert_int_equal(h.last, 5);
    require(checkpoint_folder_usable(out)); /* there is no checkpoint in it yet */

    spoil = (struct spoil){0};
    options = options_of(&again, 10, NULL);
    assert_int_equal(run(stopped, &options, &sum), TRAIN_DONE);
    assert_true(sum == whole_sum);
    assert_memory_equal(again.loss + 6, whole.loss + 6, 5 * sizeof(double));

    options.replay = batch;
    options.schedule.steps = 7;
    assert_int_equal(run(stopped, &options, &sum), TRAIN_DONE);
    assert_true(again.loss[6] == whole.loss[6] && again.loss[7] != whole.loss[7]);
    options.accumulate = 1;
    assert_int_equal(run(stopped, &options, &sum), TRAIN_REFUSED);
    assert_non_null(strstr(train_error(), "2 micro-batches of 2 windows of 8 tokens, but the run has 1 of 2 of 8"));
    folder_remove(folder);
}

/* A spike after the window is full; the same in a run that was interrupted before it, for which the windows must have been
 * saved. */
static void spikes(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], out[FOLDER_PATH];
    double sum, whole_sum;
    history whole = {0}, h = {0};
    folder_make(folder);
    folder_file(out, folder, "run");
    spoil = (struct spoil){.at = 140, .count = 1, .norm = 1e3};
    train_options options = options_of(&whole, 150, NULL);
    options.guard = GUARD_SKIP;
    options.spike = 20;
    assert_int_equal(run(NULL, &options, &whole_sum), TRAIN_DONE);
    for (int64_t step = 1; step <= 150; step++)
        assert_int_equal(whole.skipped[step], step == 140);

    options.user = &h;
    options.out = out;
    options.schedule.steps = 135;
    assert_int_equal(run(NULL, &options, &sum), TRAIN_DONE);
    options.schedule.steps = 150;
    assert_int_equal(run(out, &options, &sum), TRAIN_DONE);
    assert_true(h.skipped[140]);
    assert_true(sum == whole_sum);
    options.guard = GUARD_STOP;
    options.out = NULL;
    assert_int_equal(run(NULL, &options, &sum), TRAIN_DIVERGED);
    assert_non_null(strstr(train_error(), "the gradient's norm is 1000 in step 140, more than "));
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(limits), cmocka_unit_test(skips), cmocka_unit_test(off),
                                       cmocka_unit_test(stops), cmocka_unit_test(spikes)};
    return cmocka_run_group_tests_name("guard", tests, NULL, NULL);
}
