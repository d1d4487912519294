/*
 * fattn train: trains a language model; the loop is train/loop.c. Here: what it is told, and what it shows.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "fattn/fattn.h"
#include "interrupt.h"
#include "json_out.h"
#include "plot.h"
#include "train/evaluate.h"
#include "train/events.h"
#include "train/flops.h"
#include "train/sha256.h"
#include "train/tokenizer.h"
#include "train_exit.h"
#include "train_place.h"
#include "train_settings.h"

/* Everything that a run holds. */
typedef struct train_command {
    train_settings s;
    text_buffer configuration; /* a JSON object */
    ranks_place place;
    runtime r;
    dataset *d;
    model *m;
    optimizer *o;
    data_position position;
    guard_memory guard;
    int64_t skipped; /* updates, by the guard */
    double peak;     /* FLOP/s of all devices; 0: nobody knows */
    FILE *log;
    event_writer *events;
    bool events_failed;
    bool stepped; /* there was a report */
    bool quiet;   /* standard output belongs to JSON lines */
} train_command;

/* ----------------------------------------------------------------------------------------------------------- reporting */

static void write_step(const train_command *c, FILE *file, const train_report *report)
{
    const bool chars = data_is_bytes(c->d);
    json_out json = json_begin(file);
    json_int(&json, "step", report->step);
    json_double(&json, "loss", report->loss);
    json_double(&json, chars ? "bits_per_char" : "bits_per_token", loss_bits(report->loss));
    json_double(&json, "lr", report->lr);
    json_double(&json, "grad_norm", report->grad_norm);
    json_double(&json, "tokens_per_s", report->tokens_per_s);
    json_double(&json, "ms", report->ms);
    if (c->peak > 0)
        json_double(&json, "mfu", report->flops_per_s / c->peak);
    json_int(&json, "mem_bytes", (int64_t)report->mem_bytes);
    if (report->skipped)
        json_bool(&json, "skipped", true);
    if (report->has_val) {
        json_double(&json, "val_loss", report->val_loss);
        json_double(&json, chars ? "val_bits_per_char" : "val_bits_per_token", loss_bits(report->val_loss));
        if (!chars && report->val_bits_per_byte > 0)
            json_double(&json, "val_bits_per_byte", report->val_bits_per_byte);
    }
    json_end(&json);
}

/* Whoever waits for the run learns at once that it is not recorded; it goes on. */
static void write_events(train_command *c, const train_report *report)
{
    event_scalar scalars[] = {{"train/loss", report->loss},
                              {"train/learning_rate", report->lr},
                              {"train/gradient_norm", report->grad_norm},
                              {"speed/tokens_per_s", report->tokens_per_s},
                              {"speed/mfu", c->peak > 0 ? report->flops_per_s / c->peak : 0},
                              {"validation/loss", report->val_loss}};
    const int count = (int)(sizeof scalars / sizeof *scalars) - !report->has_val;
    if (!c->events || events_write(c->events, report->step, scalars, count))
        return;
    cli_error("--tensorboard: %s", train_error());
    c->events_failed = true;
    events_close(c->events);
    c->events = NULL;
}

static void on_report(void *user, const train_report *report)
{
    train_command *c = user;
    long long left = (long long)(report->seconds_left + 0.5);
    const char *unit = data_is_bytes(c->d) ? "char" : "token";
    if (c->log)
        write_step(c, c->log, report);
    if (c->quiet)
        write_step(c, stdout, report);
    if (report->skipped)
        cli_note("step %lld skipped: %s", (long long)report->step, train_error());
    c->skipped += report->skipped;
    c->stepped = true;
    write_events(c, report);
    char mfu[40] = "";
    if (c->peak > 0)
        snprintf(mfu, sizeof mfu, "  MFU %.1f%%", 100 * report->flops_per_s / c->peak);
    cli_progress(5, "step %lld/%lld  loss %.4f  bits/%s %.4f  lr %.2e  |grad| %.3f  %.0f tok/s%s  %.0f MB  %lld:%02lld left",
                 (long long)report->step, (long long)c->s.steps, report->loss, unit, loss_bits(report->loss), report->lr,
                 report->grad_norm, report->tokens_per_s, mfu, (double)report->mem_bytes * 1e-6, left / 60, left % 60);
    if (!report->has_val)
        return;
    char bytes[40] = "";
    if (report->val_bits_per_byte > 0 && !data_is_bytes(c->d))
        snprintf(bytes, sizeof bytes, ", bits/byte %.4f", report->val_bits_per_byte);
    cli_note("step %lld: validation loss %.4f, bits/%s %.4f%s", (long long)report->step, report->val_loss, unit,
             loss_bits(report->val_loss), bytes);
}

static void on_sample(void *user, int64_t at, const int32_t *tokens, int64_t count)
{
    train_command *c = user;
    FILE *file = c->quiet ? stderr : stdout;
    utf8_stream stream = {0};
    text_buffer out = {0};
    cli_progress_end();
    fprintf(file, "--- sample at step %lld\n", (long long)at);
    for (int64_t i = 0; i < count; ++i)
        utf8_stream_add(&stream, data_tokenizer(c->d), tokens[i], &out);
    utf8_stream_end(&stream, &out);
    fwrite(out.bytes, 1, out.length, file);
    text_free(&out);
    fprintf(file, "\n---\n");
    fflush(file);
}

/* The first object of the log. */
static void write_header(const train_command *c, FILE *file)
{
    fprintf(file, "{\"version\":\"%s\",\"parameters\":%lld,", fattn_version(), (long long)c->m->weights);
    if (c->r.device->name)
        fprintf(file, "\"device_name\":\"%s\",", c->r.device->name);
    else
        fprintf(file, "\"threads_used\":%d,", c->r.threads);
    if (c->peak > 0)
        fprintf(file, "\"peak_tflops\":%.6g,\"peak_from\":\"%s\",", c->peak * 1e-12, c->s.peak > 0 ? "given" : "measured");
    if (c->r.ranks->size > 1)
        fprintf(file, "\"ranks\":%d,", c->r.ranks->size);
    fprintf(file, "\"first_step\":%lld,%s\n", (long long)c->o->step + 1, c->configuration.bytes + 1);
    fflush(file);
}

static void on_started(void *user)
{
    const train_command *c = user;
    if (c->log)
        write_header(c, c->log);
    if (c->quiet)
        write_header(c, stdout);
    const long long tokens = (long long)(c->s.batch * c->s.seq * c->s.accumulate * c->r.ranks->groups);
    if (c->r.ranks->size > 1)
        cli_note("%d ranks, each with %s", c->r.ranks->size,
                 c->s.zero ? "a share of AdamW's moments" : "all of AdamW's moments");
    if (c->r.device->name)
        cli_note("%lld parameters, %s, %s, attention %s, %lld steps of %lld tokens", (long long)c->m->weights,
                 c->r.device->name, train_types[c->s.dtype], c->s.attention, (long long)c->s.steps, tokens);
    else
        cli_note("%lld parameters, %d threads, %s, attention %s, %lld steps of %lld tokens", (long long)c->m->weights,
                 c->r.threads, train_types[c->s.dtype], c->s.attention, (long long)c->s.steps, tokens);
    if (c->peak > 0)
        cli_note("MFU is the share of %.4g TFLOP/s, %s", c->peak * 1e-12,
                 c->s.peak > 0 ? "as --peak says" : "what a product reaches");
    if (c->o->step >= c->s.steps)
        cli_note("the checkpoint has %lld steps already, --steps is %lld", (long long)c->o->step, (long long)c->s.steps);
}

/* ------------------------------------------------------------------------------------------------------------- opening */

static int wrong(void)
{
    cli_error("%s", train_error());
    return train_exit_code();
}

static int open_data(train_command *c)
{
    const train_settings *s = &c->s;
    const data_options options = {.source = s->data,
                                  .world_seed = (uint64_t)s->world_seed,
                                  .world_lines = s->world_lines,
                                  .tokenizer = s->kept_tokenizer ? s->kept_tokenizer : s->tokenizer,
                                  .eot = s->eot,
                                  .validation = s->val,
                                  .val_fraction = s->val_fraction};
    c->d = data_open(&options);
    if (!c->d)
        return wrong();
    if (s->nameless && data_is_text(c->d)) {
        cli_error("--data is text, and %s has no " TOKENIZER_JSON " (--tokenizer names one)", s->init);
        return CLI_WRONG;
    }
    if (s->documents && data_end(c->d) < 0) {
        cli_error("--documents: no token is known that ends a text of %s: say it with --eot, or the --tokenizer", s->data);
        return CLI_WRONG;
    }
    if (c->s.vocab == 0)
        c->s.vocab = data_vocab(c->d);
    return CLI_OK;
}

static int open_model(train_command *c)
{
    const train_settings *s = &c->s;
    const model_config config = train_settings_model(s);
    optimizer_options adam = train_settings_optimizer(s);
    adam.among = s->zero ? c->r.ranks : NULL;
    if (!s->resume && !model_config_check(&config))
        return wrong();
    c->m = s->resume        ? checkpoint_load_model(s->resume, &s->state)
           : s->source.path ? model_folder_load(&s->source)
                            : model_create(&config, (uint64_t)s->seed);
    c->o = c->m && model_place(c->m, &c->r) ? optimizer_create(c->m, &adam) : NULL;
    if (!c->o || (s->resume && !checkpoint_load_optimizer(s->resume, &s->state, c->o)))
        return wrong();
    if (s->resume) {
        c->position = s->state.position;
        c->guard = s->state.guard;
    }
    return CLI_OK;
}

static int open_outputs(train_command *c)
{
    train_settings *s = &c->s;
    if (!s->out)
        s->out = s->resume;
    if (c->r.ranks->rank != 0)
        return CLI_OK;
    if (s->out && !checkpoint_folder_usable(s->out))
        return wrong();
    c->quiet = s->json;
    c->log = s->log ? fopen(s->log, s->resume ? "a" : "w") : NULL;
    if (s->log && !c->log) {
        cli_error("--log %s: %s", s->log, strerror(errno));
        return CLI_WRONG;
    }
    c->events = s->tensorboard ? events_open(s->tensorboard) : NULL;
    if (s->tensorboard && !c->events) {
        cli_error("--tensorboard: %s", train_error());
        return CLI_WRONG;
    }
    return CLI_OK;
}

/* Ranks that were given different options would wait for each other, or train something else. */
static int check_options(const train_command *c)
{
    text_buffer all = {0};
    sha256 hash;
    char digest[65];
    bool same;
    text_format(&all, "%s %d %lld %lld %lld %s", c->configuration.bytes, c->s.zero, (long long)c->s.check_ranks,
                (long long)c->s.context, (long long)c->o->step, c->s.out ? "saved" : "not saved");
    sha256_begin(&hash);
    sha256_add(&hash, all.bytes, all.length);
    sha256_end(&hash, digest);
    text_free(&all);
    if (!ranks_agree(c->r.ranks, digest, 64, &same))
        return wrong();
    if (same)
        return CLI_OK;
    cli_error("rank %d: the ranks were started with different options or checkpoints", c->r.ranks->rank);
    return CLI_WRONG;
}

static void close_all(train_command *c, int code)
{
    if (c->log)
        fclose(c->log);
    events_close(c->events);
    ranks_close(c->r.ranks, code);
    c->r.ranks = NULL;
    optimizer_free(c->o);
    model_free(c->m);
    data_close(c->d);
    runtime_close(&c->r);
    text_free(&c->configuration);
    train_settings_free(&c->s);
}

/* ------------------------------------------------------------------------------------------------------------- running */

static train_options loop_options(const train_command *c)
{
    const train_settings *s = &c->s;
    train_options options = {.batch = s->batch,
                             .seq = s->seq,
                             .accumulate = s->accumulate,
                             .schedule = train_settings_schedule(s),
                             .seed = (uint64_t)s->seed,
                             .documents = {.on = s->documents,
                                           .end = data_end(c->d),
                                           .positions_go_on = !s->document_positions,
                                           .targets_go_on = s->document_targets},
                             .recompute = s->recompute,
                             .dropout = s->dropout,
                             .guard = (guard_action)s->guard,
                             .spike = s->spike,
                             .replay = s->replay,
                             .one_batch = s->one_batch,
                             .eval_every = s->eval_every,
                             .eval_batches = s->eval_batches,
                             .sample_every = s->sample_every,
                             .sample_tokens = s->sample_tokens,
                             .save_every = s->save_every,
                             .check_every = s->check_ranks,
                             .out = s->out,
                             .configuration = c->configuration.bytes,
                             .stop = interrupt_flag(),
                             .started = on_started,
                             .report = on_report,
                             .sample = on_sample};
    attention_path_parse(s->attention, &options.attention);
    return options;
}

/* Whether a checkpoint is there, whoever wrote it. */
static bool have_checkpoint(const char *folder)
{
    checkpoint_state state;
    bool have = folder && checkpoint_read_state(folder, &state);
    if (have)
        checkpoint_state_free(&state);
    return have;
}

static int finish(const train_command *c, train_result result)
{
    const train_settings *s = &c->s;
    cli_progress_end();
    if (result == TRAIN_REFUSED)
        return wrong();
    if (result == TRAIN_FAILED || result == TRAIN_DIVERGED) {
        cli_error("%s", train_error());
        if (result == TRAIN_DIVERGED && s->out)
            cli_note("the state before the step and its batch are in %s/%s", s->out, TRAIN_STOPPED_FOLDER);
        if (have_checkpoint(s->out))
            cli_note("the last checkpoint stays in %s", s->out);
        return CLI_FAILED;
    }
    if (c->r.ranks->rank != 0)
        return CLI_OK;
    cli_note("%s step %lld%s%s", result == TRAIN_STOPPED ? "stopped after" : "done:", (long long)c->o->step,
             s->out ? ", saved in " : ", not saved (no --out)", s->out ? s->out : "");
    if (c->skipped)
        cli_note("%lld updates were skipped", (long long)c->skipped);
    if (c->log && ferror(c->log)) {
        cli_error("--log %s: not everything could be written", s->log);
        return CLI_FAILED;
    }
    return CLI_OK;
}

/* The losses so far, beside the log, if that is a file. */
static int draw(const train_command *c)
{
    struct stat info;
    if (!c->log || !c->stepped || fstat(fileno(c->log), &info) != 0 || !S_ISREG(info.st_mode))
        return CLI_OK;
    text_buffer path = {0};
    plot_path(c->s.log, &path);
    const int code = plot_log(c->s.log, path.bytes, false);
    text_free(&path);
    return code;
}

static int run_loop(train_command *c)
{
    train_options options = loop_options(c);
    options.user = c;
    if (c->r.ranks->rank == 0) /* of all ranks, which are taken to be alike */
        c->peak = (double)c->r.ranks->size * (c->s.peak > 0 ? 1e12 * c->s.peak : flops_peak(&c->r));
    const train_result result = train_run(c->m, c->o, &c->r, c->d, &c->position, &c->guard, &options);
    const int code = finish(c, result), drawn = result == TRAIN_REFUSED ? CLI_OK : draw(c);
    return code != CLI_OK ? code : c->events_failed ? CLI_FAILED : drawn;
}

/* No thread may wait for a GPU any more, whose work may wait for the rank that is gone. */
static void on_lost(const char *why)
{
    fprintf(stderr, "fattn: %s\n", why);
    _exit(CLI_FAILED);
}

static int run_command(train_command *c)
{
    int code = ranks_look(&c->place) ? open_data(c) : wrong();
    if (code != CLI_OK)
        return code;
    c->place.lost = on_lost;
    c->place.shards = (int)c->s.context;
    c->place.patience = c->s.rank_timeout;
    text_format(&c->configuration, "{");
    train_settings_json(&c->s, &c->configuration);
    text_format(&c->configuration, "}");
    if (c->s.print_config) {
        printf("%s\n", c->configuration.bytes);
        return CLI_OK;
    }
    if (!interrupt_watch())
        cli_note("no thread to wait for signals: an interrupt ends the run without a checkpoint");
    if ((code = train_place_open(&c->r, c->s.device, c->s.dtype, c->s.threads, &c->place)) != CLI_OK)
        return code;
    if ((code = open_model(c)) != CLI_OK || (code = open_outputs(c)) != CLI_OK || (code = check_options(c)) != CLI_OK)
        return code;
    return run_loop(c);
}

int cmd_train(int argc, char **argv)
{
    train_command c = {0};
    int code;
    if (train_settings_read(&c.s, argc, argv, &code))
        code = run_command(&c);
    close_all(&c, code);
    return code;
}
