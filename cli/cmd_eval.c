/*
 * fattn eval: the loss of a model on validation tokens, once for each way to compute attention, over the same tokens.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "json_out.h"
#include "options.h"
#include "train/config.h"
#include "train/evaluate.h"
#include "train/model_folder.h"
#include "train_exit.h"
#include "train_place.h"

typedef struct eval_command {
    const char *folder, *source, *tokenizer;
    char *found; /* the model's tokenizer */
    int64_t world_seed, world_lines, batch, seq, max_tokens, threads;
    int split, device, dtype;
    option_texts attention;
    bool json;
    attention_path paths[OPTION_LIST_MAX];
    model_folder state; /* of the model */
    model *m;
    runtime r;
    dataset *d;
    document_options documents;
    double reference; /* bits per token of the first way */
} eval_command;

enum { SEQ_MOST = 1024 }; /* of a model whose training nobody knows */
static const char *const splits[] = {"train", "val", NULL};

static int read_options(eval_command *c, int argc, char **argv, bool *go_on)
{
    const option_spec table[] = {
        {"model", "DIR", OPTION_TEXT, &c->folder, .help = "checkpoint folder, or a Hugging Face one"},
        {"data", "WHAT", OPTION_TEXT, &c->source, .help = "as for train; without it, what the model was trained on"},
        {"tokenizer", "FILE", OPTION_TEXT, &c->tokenizer, .help = "a tokenizer.json, or bytes; else the model's"},
        {"world-seed", "N", OPTION_INT, &c->world_seed, .high = 9e15, .help = "else as the model was trained"},
        {"world-lines", "N", OPTION_INT, &c->world_lines, .high = 1e8, .help = "likewise"},
        {"split", "NAME", OPTION_WORD, &c->split, .words = splits, .help = "which part of the data"},
        {"attention", "HOW,...", OPTION_TEXTS, &c->attention,
         .help = "composed, flash, block:N, window:W (in keys); else as the model was made for"},
        {"batch", "N", OPTION_INT, &c->batch, .low = 1, .high = 1e6, .help = "windows at a time"},
        {"seq", "N", OPTION_INT, &c->seq, .high = 1 << 24, .help = "tokens in a window; 0: as the model was trained, or 1024"},
        {"max-tokens", "N", OPTION_INT, &c->max_tokens, .high = 9e15, .help = "stop after so many; 0: all"},
        {"threads", "N", OPTION_INT, &c->threads, .high = 1024, .help = "on the CPU; 0: as many as the process may use"},
        {"device", "WHERE", OPTION_WORD, &c->device, .words = train_devices, .help = "where to compute: cpu or cuda"},
        {"dtype", "TYPE", OPTION_WORD, &c->dtype, .words = train_types, .help = "of activations and products: f32 or bf16"},
        {"json", NULL, OPTION_FLAG, &c->json, .help = "one JSON object for each way"},
        {0}};
    const option_set set = {.usage = "fattn eval --model DIR [options]",
                            .about =
                                "Measures a model: bits per character (of UTF-8 text: per byte) or per token and byte, loss,\n"
                                "perplexity.",
                            .table = table};
    int status;
    *go_on = false;
    if (!options_parse(&set, argc, argv, &status))
        return status;
    if (!c->folder) {
        cli_error("eval: --model is missing");
        return CLI_WRONG;
    }
    for (int i = 0; i < c->attention.count; ++i)
        if (!attention_path_parse(c->attention.item[i], &c->paths[i])) {
            cli_error("--attention: %s", train_error());
            return CLI_WRONG;
        }
    *go_on = true;
    return CLI_OK;
}

/* A whole number of the run's configuration. */
static int64_t recorded_number(const config_set *run, const char *key, int64_t otherwise)
{
    const char *value = config_find(run, key);
    return value ? strtoll(value, NULL, 10) : otherwise;
}

static bool recorded_true(const config_set *run, const char *key)
{
    const char *value = config_find(run, key);
    return value && strcmp(value, "true") == 0;
}

/* What was not said is taken from the training run. */
static bool open_data(eval_command *c)
{
    config_set run;
    c->found = c->tokenizer ? NULL : model_folder_tokenizer(&c->state);
    if (!c->tokenizer && !c->found && c->state.is_checkpoint)
        return false;
    if (!config_parse(c->state.configuration, strlen(c->state.configuration), c->folder, &run))
        return false;
    const char *source = c->source ? c->source : config_find(&run, "data");
    if (!source && !c->state.is_checkpoint) {
        config_free(&run);
        return train_fail("--data is missing: %s does not say what its model was trained on", c->folder);
    }
    const char *fraction = config_find(&run, "val-fraction");
    data_options options = {.source = source ? source : "world",
                            .world_seed =
                                (uint64_t)(c->world_seed >= 0 ? c->world_seed : recorded_number(&run, "world-seed", 1)),
                            .world_lines = c->world_lines > 0 ? c->world_lines : recorded_number(&run, "world-lines", 20000),
                            .tokenizer = c->tokenizer ? c->tokenizer : c->found,
                            .eot = config_find(&run, "eot"),
                            .validation = c->source ? NULL : config_find(&run, "val"),
                            .val_fraction = fraction ? strtod(fraction, NULL) : 0};
    if (c->seq == 0)
        c->seq = recorded_number(&run, "seq", c->state.model.max_seq < SEQ_MOST ? c->state.model.max_seq : SEQ_MOST);
    c->d = data_open(&options);
    c->documents = (document_options){.on = c->d && recorded_true(&run, "documents"),
                                      .end = c->d ? data_end(c->d) : -1,
                                      .positions_go_on = !recorded_true(&run, "document-positions"),
                                      .targets_go_on = recorded_true(&run, "document-targets")};
    config_free(&run);
    if (!c->d && !c->source) {
        char why[512];
        snprintf(why, sizeof why, "%s", train_error());
        return train_fail_as(train_error_kind(), "%s (the data of the training run; --data names another)", why);
    }
    if (!c->d)
        return false;
    if (!c->tokenizer && !c->found && data_is_text(c->d))
        return train_fail("--data is text, and %s has no " TOKENIZER_JSON " (--tokenizer names one)", c->folder);
    return data_check(c->d, c->state.model.vocab, "the model");
}

/* Whether rows see other keys than those that the model was made for. */
static bool is_approximate(const eval_command *c, int index)
{
    const attention_path path = c->paths[index];
    return (path.kind == ATTENTION_WINDOW ? path.size : 0) != c->state.window;
}

static void print_json(const eval_command *c, int index, const evaluation *e)
{
    json_out json = json_begin(stdout);
    json_string(&json, "attention", c->attention.item[index]);
    json_bool(&json, "approximate", is_approximate(c, index));
    json_string(&json, "split", splits[c->split]);
    json_double(&json, data_is_bytes(c->d) ? "bits_per_char" : "bits_per_token", loss_bits(e->loss));
    if (e->bytes > 0)
        json_double(&json, "bits_per_byte", evaluation_bits_per_byte(e));
    json_double(&json, "loss", e->loss);
    json_double(&json, "perplexity", exp(e->loss));
    json_int(&json, "tokens", e->tokens);
    json_int(&json, "seq", c->seq);
    json_double(&json, "seconds", e->seconds);
    json_double(&json, "tokens_per_s", (double)e->tokens / e->seconds);
    json_end(&json);
}

static void print_row(eval_command *c, int index, const evaluation *e)
{
    const bool chars = data_is_bytes(c->d), known = e->bytes > 0 && !chars;
    const double bits = loss_bits(e->loss);
    if (index == 0) {
        c->reference = bits;
        printf("%-14s %12s ", "attention", chars ? "bits/char" : "bits/token");
        if (known)
            printf("%12s ", "bits/byte");
        printf("%12s %12s %14s %10s %10s\n", "loss", "perplexity", "to the first", "tokens", "tok/s");
    }
    printf("%-14s %12.8f ", c->attention.item[index], bits);
    if (known)
        printf("%12.8f ", evaluation_bits_per_byte(e));
    printf("%12.8f %12.6f %+14.2e %10lld %10.0f%s\n", e->loss, exp(e->loss), bits - c->reference, (long long)e->tokens,
           (double)e->tokens / e->seconds, is_approximate(c, index) ? "  (an approximation)" : "");
    fflush(stdout);
}

static int measure(eval_command *c)
{
    const data_tokens tokens = data_split(c->d, c->split == 0 ? WORLD_TRAIN : WORLD_VAL);
    for (int i = 0; i < c->attention.count; ++i) {
        evaluation result;
        const step_options options = {.batch = c->batch, .seq = c->seq, .attention = c->paths[i], .documents = c->documents};
        model_step *step = step_create(c->m, &c->r, &options);
        bool good = step && evaluate(step, c->r.ranks, &tokens, c->batch, c->seq, c->max_tokens, &result);
        if (good && result.tokens == 0)
            good = train_fail("nothing to predict: each token ends a document");
        step_free(step);
        if (!good) {
            cli_error("%s: %s", c->attention.item[i], train_error());
            return train_exit_code();
        }
        if (c->json && is_approximate(c, i))
            cli_note("%s is an approximation: the model was not made for it", c->attention.item[i]);
        if (c->json)
            print_json(c, i, &result);
        else
            print_row(c, i, &result);
    }
    return CLI_OK;
}

/* The attention that was asked for, else the model's own. */
static void choose_attention(eval_command *c)
{
    if (c->attention.count > 0)
        return;
    c->paths[0] = model_folder_attention(&c->state);
    c->attention.item[0] = attention_path_print(c->paths[0], c->attention.storage, sizeof c->attention.storage);
    c->attention.count = 1;
}

static int run_command(eval_command *c)
{
    bool good = model_folder_open(c->folder, &c->state) && (c->m = model_folder_load(&c->state)) && open_data(c);
    choose_attention(c);
    int code = good ? train_place_open(&c->r, c->device, c->dtype, c->threads, NULL) : CLI_OK;
    if (code != CLI_OK)
        return code;
    if (!good || !model_place(c->m, &c->r)) {
        cli_error("%s", train_error());
        return train_exit_code();
    }
    return measure(c);
}

int cmd_eval(int argc, char **argv)
{
    eval_command c = {.world_seed = -1, .split = 1, .batch = 16};
    bool go_on;
    int code = read_options(&c, argc, argv, &go_on);
    if (go_on)
        code = run_command(&c);
    data_close(c.d);
    model_free(c.m);
    runtime_close(&c.r);
    model_folder_close(&c.state);
    free(c.found);
    return code;
}
