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
    const tokenizer *words;
    data_tokens val;
    data_reader reader;
    guard_memory *guard;
    model_step *train_step, *val_step; /* val_step: NULL if nothing is evaluated */
    saved_batch batch;                 /* of one update */
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
                                .documents = options->documents,
                                .backward = true,
                                .recompute = options->recompute,
                                .dropout = options->dropout,
                                .layer_done = t->ranks->size > 1 ? gradients_layer : NULL,
                                .user = t->gradients};
    const step_options forward = {
        .batch = options->batch, .seq = options->seq, .attention = options->attention, .documents = options->documents};
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
    t->words = data_tokenizer(d);
    t->val = data_split(d, WORLD_VAL);
    if (!data_check(d, t->m->config.vocab, "the model"))
        return false;
    if (options->eval_every > 0 && t->val.count < 2)
        return train_fail("validation data: %lld tokens, at least 2 are needed (or --eval-every 0)", (long long)t->val.count);
    if (!data_reader_init(&t->reader, &train, options->seq, options->seed, "training data") ||
        !data_reader_seek(&t->reader, *position))
        return false;
    t->ranks = t->r->ranks;
    if (options->replay && t->ranks->size > 1)
        return train_fail("a saved batch is replayed by one rank, not by %d", t->ranks->size);
    if (options->dropout > 0 && t->ranks->groups < t->ranks->size)
        return train_fail("dropout is %g, but ranks that share sequences have none", options->dropout);
    t->gradients = gradients_create(t->m, t->ranks, options->accumulate, t->o->cuts);
    if (!t->gradients)
        return false;
    t->losses = text_alloc((size_t)(t->ranks->size * options->accumulate) * sizeof *t->losses);
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
    gradients_free(t->gradients);
    free(t->losses);
}

/* Of an update, on all ranks. */
static int64_t all_tokens(const trainer *t)
{
    const train_options *o = t->options;
    return o->batch * o->seq * o->accumulate * t->ranks->groups;
}

/* A power of two near them: what is divided by it is rounded as it was. In bf16 the gradients of a row's logits are often
 * nearly equal numbers, which any other divisor would round all to the same side. */
static double divisor(const trainer *t)
{
    double power = 1;
    while (power < (double)all_tokens(t))
        power *= 2;
    return power;
}

/* What is dropped depends on these three alone. */
static uint64_t seed_of(const trainer *t, int64_t part)
{
    return random_with(random_with(t->options->seed, (uint64_t)t->o->step), (uint64_t)part);
}

/* Reads the next micro-batch into its place. */
static void read_part(trainer *t, saved_batch *to, int64_t part)
{
    const int64_t at = part * to->batch * to->seq;
    if (t->options->one_batch)
        t->reader.position = (data_position){0, 0};
    data_reader_next(&t->reader, to->batch, to->tokens + at, to->targets + at);
}

/* Forward and backward of one of this rank's micro-batches. The sum of the gradients is divided by a constant, as how many
 * targets there are is known only when all ranks have told: join_losses(). */
static bool run_part(trainer *t, int64_t part)
{
    const train_options *options = t->options;
    const int64_t at = part * options->batch * options->seq;
    const float scale = (float)(1 / divisor(t));
    part_loss *own = t->losses + t->ranks->rank * options->accumulate + part;
    if (!options->replay)
        read_part(t, &t->batch, part);
    step_seed(t->train_step, seed_of(t, t->ranks->group * options->accumulate + part));
    /* The loss is looked at once backward is on its way, so that a GPU has no pause. */
    if (!step_forward(t->train_step, t->batch.tokens + at, t->batch.targets + at, NULL) ||
        !step_backward(t->train_step, scale) || !gradients_end_part(t->gradients) || !step_loss(t->train_step, &own->loss))
        return false;
    own->targets = (double)step_targets(t->train_step);
    ranks_go_on(t->ranks);
    own->stop = options->stop && atomic_load(options->stop);
    return true;
}

/* Leaves out the windows of `count` other groups' parts of an update. */
static void pass_over(trainer *t, int64_t count)
{
    if (!t->options->one_batch && !t->options->replay)
        data_reader_skip(&t->reader, count * t->options->accumulate * t->options->batch);
}

/* This rank's micro-batches. */
static bool compute_gradient(trainer *t)
{
    if (!gradients_begin(t->gradients))
        return false;
    pass_over(t, t->ranks->group);
    for (int64_t part = 0; part < t->options->accumulate; ++part)
        if (!run_part(t, part))
            return false;
    pass_over(t, t->ranks->groups - 1 - t->ranks->group);
    return true;
}

/* The mean over all targets, added in the order of the micro-batches whichever rank they were on; what makes the gradient one
 * over the same targets; and whether a rank was asked to stop. Every rank gets the same. */
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
    for (int64_t i = 0; i < all && targets > 0; ++i)
        *mean += t->losses[i].loss * (t->losses[i].targets / targets);
    t->o->scale = targets > 0 ? divisor(t) / targets : 1;
    return true;
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

/* Norm, judgement and update: every rank has the same loss and norm, and judges alike. An update that is not to be made still
 * tells its norm. */
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
    const double start = evaluate_seconds();
    report->lr = schedule_lr(&t->options->schedule, t->o->step);
    atomic_store(&t->ranks->step, t->o->step + 1);
    if (!compute_gradient(t) || !join_losses(t, &report->loss))
        return UPDATE_FAILED;
    const update_end end = decide(t, report);
    report->skipped = end == UPDATE_SKIPPED;
    if (report->skipped)
        optimizer_skip(t->o);
    report->step = t->o->step;
    report->ms = 1e3 * (evaluate_seconds() - start);
    report->tokens_per_s = (double)all_tokens(t) * 1e3 / report->ms;
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
    if (!evaluate(t->val_step, t->ranks, &t->val, options->batch, options->seq, most, &result))
        return false;
    report->has_val = true;
    report->val_loss = result.loss;
    report->val_bits_per_byte = evaluation_bits_per_byte(&result);
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

static checkpoint_state state_at(const trainer *t, data_position position)
{
    return (checkpoint_state){.step = t->o->step,
                              .seed = t->options->seed,
                              .position = position,
                              .guard = *t->guard,
                              .model = t->m->config,
                              .words = t->words,
                              .configuration = (char *)(uintptr_t)t->options->configuration};
}

static bool save(trainer *t)
{
    checkpoint_state state = state_at(t, t->reader.position);
    return optimizer_gather(t->o) && (t->ranks->rank != 0 || checkpoint_save(t->options->out, t->m, t->o, &state));
}

/* The micro-batches of all ranks, from `position` on: as many as one rank that does all of them has. */
static saved_batch whole_batch(trainer *t, data_position position)
{
    const int64_t parts = t->options->accumulate * t->ranks->groups;
    saved_batch whole = saved_batch_room(parts, t->options->batch, t->options->seq);
    t->reader.position = position;
    for (int64_t part = 0; part < parts; ++part)
        read_part(t, &whole, part);
    return whole;
}

/* The guard stopped the update whose batch was at `position`. Keeps the reason as train_error(). */
static train_result stop_at(trainer *t, data_position position, const train_report *report)
{
    const train_options *options = t->options;
    checkpoint_state state = state_at(t, position);
    bool saved = true;
    if (options->out && !optimizer_gather(t->o))
        return TRAIN_FAILED;
    if (options->out && t->ranks->rank == 0) {
        saved_batch whole = options->replay ? t->batch : whole_batch(t, position);
        saved = loop_stop_save(options->out, t->m, t->o, &state, &whole, report->loss, report->grad_norm);
        if (!options->replay)
            saved_batch_free(&whole);
    }
    t->reader.position = position;
    return saved ? TRAIN_DIVERGED : TRAIN_FAILED;
}

typedef struct collected {
    ranks *ranks;
    int32_t *tokens;
    int64_t count;
} collected;

static bool collect(void *user, int32_t token)
{
    collected *c = user;
    c->tokens[c->count++] = token;
    ranks_go_on(c->ranks);
    return true;
}

/* A few lines in the model's own words, from the beginning of a line or of a text on. */
static bool sample(trainer *t)
{
    const train_options *options = t->options;
    const int32_t prompt = tokenizer_first(t->words);
    const int64_t longest = t->m->config.max_seq; /* a model of others may have 40960 */
    const int64_t count = options->sample_tokens < longest ? options->sample_tokens : longest;
    decoder *d = decoder_create(t->m, t->r, options->attention, count);
    if (!d)
        return false;
    sampler s;
    collected c = {t->ranks, text_alloc((size_t)count * sizeof(int32_t)), 0};
    sampler_init(&s,
                 &(sampler_options){.temperature = 0.7, .top_p = 1, .seed = random_with(options->seed, (uint64_t)t->o->step)},
                 t->m->config.vocab);
    token_list ends = {0};
    if (tokenizer_explains(t->words, t->m->config.vocab) && tokenizer_end(t->words) >= 0)
        token_list_add(&ends, tokenizer_end(t->words));
    generate_end end =
        generate(d, count, &s, &prompt, 1,
                 &(generate_options){.tokenizer = t->words, .tokens = count, .ends = &ends, .token = collect, .user = &c});
    if (end != GENERATE_FAILED && options->sample)
        options->sample(options->user, t->o->step, c.tokens, c.count);
    token_list_free(&ends);
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
