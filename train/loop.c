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
#include "generate.h"
#include "sha256.h"
#include "text.h"
#include "tokenizer.h"

/* What one micro-batch came to. */
typedef struct part_loss {
    double loss, targets;
    double stop; /* 1: its rank was asked to stop */
} part_loss;

typedef struct trainer {
    model *m;
    optimizer *o;
    const runtime *r;
    ranks *ranks;
    gradients *gradients;
    part_loss *losses; /* [ranks, accumulate] of an update */
    const train_options *options;
    data_tokens val;
    data_reader reader;
    model_step *train_step, *val_step; /* val_step: NULL if nothing is evaluated */
    int32_t *tokens, *targets;         /* [batch, seq] each */
    size_t mem_bytes;
    int64_t first_step; /* of this run */
    bool stop;          /* after this step */
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
                                .layer_done = t->ranks->size > 1 ? gradients_layer : NULL,
                                .user = t->gradients};
    const step_options forward = {.batch = options->batch, .seq = options->seq, .attention = options->attention};
    t->train_step = step_create(t->m, t->r, &shape);
    if (!t->train_step)
        return false;
    step_memory memory = step_memory_use(t->train_step);
    t->mem_bytes = memory.parameters + memory.gradients + gradients_bytes(t->gradients) + memory.arena + optimizer_bytes(t->o) +
                   t->m->device->own_bytes;
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
    t->ranks = t->r->ranks;
    t->gradients = gradients_create(t->m, t->ranks, options->accumulate, t->o->cuts);
    if (!t->gradients)
        return false;
    t->losses = text_alloc((size_t)(t->ranks->size * options->accumulate) * sizeof *t->losses);
    size_t count = (size_t)(options->batch * options->seq);
    t->tokens = text_alloc(2 * count * sizeof *t->tokens);
    t->targets = t->tokens + count;
    return open_steps(t);
}

static void close_trainer(trainer *t)
{
    step_free(t->train_step);
    step_free(t->val_step);
    gradients_free(t->gradients);
    free(t->losses);
    free(t->tokens);
}

static void next_batch(trainer *t)
{
    if (t->options->one_batch)
        t->reader.position = (data_position){0, 0};
    data_reader_next(&t->reader, t->options->batch, t->tokens, t->targets);
}

/* Leaves out the windows of `count` other groups' parts of an update. */
static void pass_over(trainer *t, int64_t count)
{
    if (!t->options->one_batch)
        data_reader_skip(&t->reader, count * t->options->accumulate * t->options->batch);
}

/* This rank's micro-batches. */
static bool compute_gradient(trainer *t)
{
    const int64_t parts = t->options->accumulate;
    const float scale = 1.0f / (float)(parts * t->ranks->size);
    part_loss *own = t->losses + t->ranks->rank * parts;
    if (!gradients_begin(t->gradients))
        return false;
    pass_over(t, t->ranks->group);
    for (int64_t part = 0; part < parts; ++part) {
        next_batch(t);
        /* The loss is looked at once backward is on its way, so that a GPU has no pause. */
        if (!step_forward(t->train_step, t->tokens, t->targets, NULL) || !step_backward(t->train_step, scale) ||
            !gradients_end_part(t->gradients) || !step_loss(t->train_step, &own[part].loss))
            return false;
        own[part].targets = (double)step_targets(t->train_step);
        own[part].stop = t->options->stop && atomic_load(t->options->stop);
    }
    pass_over(t, t->ranks->groups - 1 - t->ranks->group);
    return true;
}

/* The mean over all targets, added in the order of the micro-batches whichever rank they were on; and whether a rank was asked
 * to stop. */
static bool join_losses(trainer *t, double *mean)
{
    const int64_t parts = t->options->accumulate, all = parts * t->ranks->size;
    double targets = 0;
    if (!t->ranks->run->gather_host(t->ranks, t->losses, (size_t)parts * sizeof *t->losses))
        return false;
    for (int64_t i = 0; i < all; ++i) {
        targets += t->losses[i].targets;
        t->stop = t->stop || t->losses[i].stop;
    }
    *mean = 0;
    for (int64_t i = 0; i < all; ++i)
        *mean += t->losses[i].loss * (t->losses[i].targets / targets);
    return isfinite(*mean) || train_fail("the loss is %g in step %lld", *mean, (long long)t->o->step + 1);
}

/* One update. False if loss or gradient is not finite: then model and optimizer are what they were; or, with
 * TRAIN_ERROR_WORK, if the device failed. */
static bool update(trainer *t, train_report *report)
{
    const double start = evaluate_seconds();
    report->lr = schedule_lr(&t->options->schedule, t->o->step);
    if (!compute_gradient(t) || !join_losses(t, &report->loss))
        return false;
    report->grad_norm = 0;
    if (!optimizer_update(t->o, report->lr, &report->grad_norm))
        return isfinite(report->grad_norm)
                   ? false
                   : train_fail("the gradient's norm is %g in step %lld", report->grad_norm, (long long)t->o->step + 1);
    report->step = t->o->step;
    report->ms = 1e3 * (evaluate_seconds() - start);
    report->tokens_per_s =
        (double)(t->options->batch * t->options->seq * t->options->accumulate * t->ranks->groups) * 1e3 / report->ms;
    report->mem_bytes = t->mem_bytes;
    return true;
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
    if (!evaluate(t->val_step, t->ranks, &t->val, options->batch, options->seq, most, &result))
        return false;
    report->has_val = true;
    report->val_loss = result.loss;
    return true;
}

/* Ranks that have come to differ would go on unnoticed: each trains well. */
static bool check_ranks(trainer *t)
{
    const size_t bytes = (size_t)t->m->size * sizeof(float);
    sha256 hash;
    char digest[65];
    bool same;
    const void *data = device_look(t->m->device, t->m->data, bytes);
    if (!data)
        return false;
    sha256_begin(&hash);
    sha256_add(&hash, data, bytes);
    sha256_end(&hash, digest);
    device_look_end(t->m->device, data);
    if (!ranks_agree(t->ranks, digest, 64, &same))
        return false;
    return same ||
           train_fail_as(TRAIN_ERROR_WORK, "rank %d: after step %lld the ranks' parameters differ: here their SHA-256 is %s",
                         t->ranks->rank, (long long)t->o->step, digest);
}

static bool save(trainer *t)
{
    const train_options *options = t->options;
    checkpoint_state state = {.step = t->o->step,
                              .seed = options->seed,
                              .position = t->reader.position,
                              .model = t->m->config,
                              .configuration = (char *)(uintptr_t)options->configuration};
    return optimizer_gather(t->o) && (t->ranks->rank != 0 || checkpoint_save(options->out, t->m, t->o, &state));
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
    const bool speaks = t->ranks->rank == 0;
    bool saved = false; /* the state at hand is in options->out */
    if (options->started && speaks)
        options->started(options->user);
    if (options->check_every > 0 && !check_ranks(t))
        return TRAIN_FAILED;
    while (t->o->step < options->schedule.steps && !t->stop) {
        train_report report = {0};
        if (!update(t, &report))
            return train_error_kind() == TRAIN_ERROR_WORK ? TRAIN_FAILED : TRAIN_DIVERGED;
        saved = false;
        if (due(t, options->eval_every, true) && !measure(t, &report))
            return TRAIN_FAILED;
        estimate(t, &report);
        if (options->report && speaks)
            options->report(options->user, &report);
        if (due(t, options->check_every, true) && !check_ranks(t))
            return TRAIN_FAILED;
        if (speaks && due(t, options->sample_every, true) && !sample(t))
            return TRAIN_FAILED;
        if (options->out && due(t, options->save_every, false)) {
            if (!save(t))
                return TRAIN_FAILED;
            saved = true;
        }
        if (t->ranks->size == 1)
            t->stop = options->stop && atomic_load(options->stop);
    }
    if (options->out && !saved && !save(t))
        return TRAIN_FAILED;
    return t->stop ? TRAIN_STOPPED : TRAIN_DONE;
}

train_result train_run(model *m, optimizer *o, const runtime *r, const dataset *d, data_position *position,
                       const train_options *options)
{
    trainer t = {.m = m, .o = o, .r = r, .options = options, .first_step = o->step, .started = evaluate_seconds()};
    train_result result = open_trainer(&t, d, position)            ? run_steps(&t)
                          : train_error_kind() == TRAIN_ERROR_WORK ? TRAIN_FAILED
                                                                   : TRAIN_REFUSED;
    *position = t.reader.position;
    close_trainer(&t);
    return result;
}
