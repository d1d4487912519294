/*
 * The training loop. All that it draws is a function of (seed, step) and of the data position, so a checkpoint needs no
 * generator's state, and a run that continues from one makes the same updates, bit for bit.
 */
#include "loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "evaluate.h"
#include "flops.h"
#include "generate.h"
#include "loop_stop.h"
#include "text.h"
#include "tokenizer.h"

typedef struct trainer {
    model *m;
    optimizer *o;
    const runtime *r;
    const train_options *options;
    data_tokens val;
    data_reader reader;
    guard_memory *guard;
    model_step *train_step, *val_step; /* val_step: NULL if nothing is evaluated */
    saved_batch batch;                 /* of one update */
    size_t mem_bytes;
    int64_t first_step; /* of this run */
    double started;
} trainer;

static bool open_steps(trainer *t)
{
    const train_options *options = t->options;
    const step_options shape = {.batch = options->batch,
                                .seq = options->seq,
                                .attention = options->attention,
                                .backward = true,
                                .recompute = options->recompute,
                                .dropout = options->dropout};
    step_options forward = shape;
    forward.backward = forward.recompute = false;
    forward.dropout = 0;
    t->train_step = step_create(t->m, t->r, &shape);
    if (!t->train_step)
        return false;
    step_memory memory = step_memory_use(t->train_step);
    t->mem_bytes = memory.parameters + memory.gradients + memory.arena + optimizer_bytes(t->o) + t->m->device->own_bytes;
    if (options->eval_every > 0) {
        t->val_step = step_create(t->m, t->r, &forward);
        if (!t->val_step)
            return false;
        t->mem_bytes += step_memory_use(t->val_step).arena;
    }
    return true;
}

static bool open_trainer(trainer *t, const dataset *d, const data_position *position)
{
    const train_options *options = t->options;
    data_tokens train = data_split(d, WORLD_TRAIN);
    t->val = data_split(d, WORLD_VAL);
    if (data_vocab(d) > t->m->config.vocab)
        return train_fail("vocab: the model has %lld tokens, the data %lld", (long long)t->m->config.vocab,
                          (long long)data_vocab(d));
    if (options->eval_every > 0 && t->val.count < 2)
        return train_fail("validation data: %lld tokens, at least 2 are needed (or --eval-every 0)", (long long)t->val.count);
    if (!data_reader_init(&t->reader, &train, options->seq, options->seed, "training data") ||
        !data_reader_seek(&t->reader, *position))
        return false;
    if (!open_steps(t))
        return false;
    t->batch = saved_batch_room(options->accumulate, options->batch, options->seq);
    return !options->replay || saved_batch_read(options->replay, &t->batch);
}

static void close_trainer(trainer *t)
{
    step_free(t->train_step);
    step_free(t->val_step);
    saved_batch_free(&t->batch);
}

/* What is dropped depends on these three alone. */
static uint64_t seed_of(const trainer *t, int64_t part)
{
    return random_with(random_with(t->options->seed, (uint64_t)t->o->step), (uint64_t)part);
}

/* Reads the part's tokens into its place in the batch. */
static bool run_part(trainer *t, int64_t part, double *loss)
{
    const train_options *options = t->options;
    const int64_t at = part * options->batch * options->seq;
    if (options->one_batch)
        t->reader.position = (data_position){0, 0};
    if (!options->replay)
        data_reader_next(&t->reader, options->batch, t->batch.tokens + at, t->batch.targets + at);
    step_seed(t->train_step, seed_of(t, part));
    /* The loss is looked at once backward is on its way, so that a GPU has no pause. */
    return step_forward(t->train_step, t->batch.tokens + at, t->batch.targets + at, NULL) &&
           step_backward(t->train_step, 1.0f / (float)options->accumulate) && step_loss(t->train_step, loss);
}

typedef enum update_end { UPDATE_MADE, UPDATE_SKIPPED, UPDATE_STOPPED, UPDATE_FAILED } update_end;

/* What the guard makes of a loss or a norm that is not accepted. */
static update_end refuse(trainer *t, const char *what, double value, double limit)
{
    guard_memory *g = t->guard;
    const long long step = (long long)t->o->step + 1;
    if (isfinite(value))
        train_fail("the %s is %g in step %lld, more than %g, which is %g deviations above the last %d", what, value, step,
                   limit, t->options->spike, GUARD_WINDOW);
    else
        train_fail("the %s is %g in step %lld", what, value, step);
    return t->options->guard == GUARD_SKIP && ++g->skips < GUARD_SKIPS ? UPDATE_SKIPPED : UPDATE_STOPPED;
}

/* Norm, judgement and update. An update that is not to be made still tells its norm. */
static update_end decide(trainer *t, train_report *report)
{
    const train_options *options = t->options;
    guard_memory *g = t->guard;
    const double loss_limit = guard_limit(&g->loss, options->spike), norm_limit = guard_limit(&g->norm, options->spike);
    const bool off = options->guard == GUARD_OFF, loss_good = off || guard_accepts(report->loss, loss_limit);
    t->o->limit = off ? NAN : loss_good ? norm_limit : -1;
    update_end end = UPDATE_MADE;
    if (!optimizer_update(t->o, report->lr, &report->grad_norm)) {
        if (train_error_kind() == TRAIN_ERROR_WORK)
            return UPDATE_FAILED;
        end = loss_good ? refuse(t, "gradient's norm", report->grad_norm, norm_limit)
                        : refuse(t, "loss", report->loss, loss_limit);
    }
    if (end == UPDATE_MADE)
        g->skips = 0;
    if (options->spike > 0 && end != UPDATE_STOPPED) {
        guard_note(&g->loss, report->loss);
        guard_note(&g->norm, report->grad_norm);
    }
    return end;
}

/* One update. Skipped or stopped, model and optimizer are what they were. */
static update_end update(trainer *t, train_report *report)
{
    const int64_t parts = t->options->accumulate;
    const double start = evaluate_seconds();
    report->lr = schedule_lr(&t->options->schedule, t->o->step);
    report->loss = 0;
    if (!model_zero_grad(t->m))
        return UPDATE_FAILED;
    for (int64_t part = 0; part < parts; ++part) {
        double loss = NAN;
        if (!run_part(t, part, &loss))
            return UPDATE_FAILED;
        report->loss += loss / (double)parts;
    }
    const update_end end = decide(t, report);
    report->skipped = end == UPDATE_SKIPPED;
    if (report->skipped)
        optimizer_skip(t->o);
    report->step = t->o->step;
    report->ms = 1e3 * (evaluate_seconds() - start);
    report->tokens_per_s = (double)(t->options->batch * t->options->seq * parts) * 1e3 / report->ms;
    report->flops_per_s = report->tokens_per_s * flops_per_token(&t->m->config, t->options->seq, t->options->attention);
    report->mem_bytes = t->mem_bytes;
    return end;
}

/* True at every `interval` steps and, where wanted, after the last one. */
static bool due(const trainer *t, int64_t interval, bool at_end)
{
    return interval > 0 && (t->o->step % interval == 0 || (at_end && t->o->step == t->options->schedule.steps));
}

static bool measure(trainer *t, train_report *report)
{
    const train_options *options = t->options;
    evaluation result;
    int64_t most;
    if (__builtin_mul_overflow(options->batch * options->seq, options->eval_batches, &most))
        most = 0; /* all there are */
    if (!evaluate(t->val_step, &t->val, options->batch, options->seq, most, &result))
        return false;
    report->has_val = true;
    report->val_loss = result.loss;
    return true;
}

static checkpoint_state state_at(const trainer *t, data_position position)
{
    return (checkpoint_state){.step = t->o->step,
                              .seed = t->options->seed,
                              .position = position,
                              .guard = *t->guard,
                              .model = t->m->config,
                              .configuration = (char *)(uintptr_t)t->options->configuration};
}

static bool save(trainer *t)
{
    checkpoint_state state = state_at(t, t->reader.position);
    return checkpoint_save(t->options->out, t->m, t->o, &state);
}

/* The guard stopped the update whose batch was at `position`. Keeps the reason as train_error(). */
static train_result stop_at(trainer *t, data_position position, const train_report *report)
{
    checkpoint_state state = state_at(t, position);
    t->reader.position = position;
    return !t->options->out || loop_stop_save(t->options->out, t->m, t->o, &state, &t->batch, report->loss, report->grad_norm)
               ? TRAIN_DIVERGED
               : TRAIN_FAILED;
}

typedef struct collected {
    int32_t *tokens;
    int64_t count;
} collected;

static bool collect(void *user, int32_t token)
{
    collected *c = user;
    c->tokens[c->count++] = token;
    return true;
}

/* A few lines in the model's own words, from the beginning of a line on. */
static bool sample(trainer *t)
{
    const train_options *options = t->options;
    const int32_t newline = '\n';
    int64_t longest = t->m->config.max_seq;
    int64_t count = options->sample_tokens < longest ? options->sample_tokens : longest;
    decoder *d = decoder_create(t->m, t->r, options->attention, longest);
    if (!d)
        return false;
    sampler s;
    collected c = {text_alloc((size_t)count * sizeof(int32_t)), 0};
    sampler_init(&s,
                 &(sampler_options){.temperature = 0.7, .top_p = 1, .seed = random_with(options->seed, (uint64_t)t->o->step)},
                 t->m->config.vocab);
    generate_end end =
        generate(d, longest, &s, &newline, 1, &(generate_options){.tokens = count, .token = collect, .user = &c});
    if (end != GENERATE_FAILED && options->sample)
        options->sample(options->user, t->o->step, c.tokens, c.count);
    sampler_free(&s);
    decoder_free(d);
    free(c.tokens);
    return end != GENERATE_FAILED;
}

static void estimate(trainer *t, train_report *report)
{
    double pace = (evaluate_seconds() - t->started) / (double)(t->o->step - t->first_step);
    report->seconds_left = pace * (double)(t->options->schedule.steps - t->o->step);
}

static train_result run_steps(trainer *t)
{
    const train_options *options = t->options;
    bool stopped = false, saved = false; /* saved: the state at hand is in options->out */
    if (options->started)
        options->started(options->user);
    while (t->o->step < options->schedule.steps && !stopped) {
        train_report report = {0};
        const data_position before = t->reader.position;
        const update_end end = update(t, &report);
        if (end == UPDATE_FAILED)
            return TRAIN_FAILED;
        if (end == UPDATE_STOPPED)
            return stop_at(t, before, &report);
        saved = false;
        if (due(t, options->eval_every, true) && !measure(t, &report))
            return TRAIN_FAILED;
        estimate(t, &report);
        if (options->report)
            options->report(options->user, &report);
        if (due(t, options->sample_every, true) && !sample(t))
            return TRAIN_FAILED;
        if (options->out && due(t, options->save_every, false)) {
            if (!save(t))
                return TRAIN_FAILED;
            saved = true;
        }
        stopped = options->stop && atomic_load(options->stop);
    }
    if (options->out && !saved && !save(t))
        return TRAIN_FAILED;
    return stopped ? TRAIN_STOPPED : TRAIN_DONE;
}

train_result train_run(model *m, optimizer *o, const runtime *r, const dataset *d, data_position *position,
                       guard_memory *memory, const train_options *options)
{
    trainer t = {
        .m = m, .o = o, .r = r, .options = options, .guard = memory, .first_step = o->step, .started = evaluate_seconds()};
    train_result result = open_trainer(&t, d, position)            ? run_steps(&t)
                          : train_error_kind() == TRAIN_ERROR_WORK ? TRAIN_FAILED
                                                                   : TRAIN_REFUSED;
    *position = t.reader.position;
    close_trainer(&t);
    return result;
}
