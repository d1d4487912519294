/*
 * fattn generate: continues a text with a model, token by token over a cache of keys and values.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "json_out.h"
#include "options.h"
#include "train/evaluate.h"
#include "train/generate.h"
#include "train/model_folder.h"
#include "train/text.h"
#include "train/tokenizer.h"
#include "train_exit.h"
#include "train_place.h"

typedef struct top_logit {
    int32_t token;
    float logit;
} top_logit;

typedef struct generate_command {
    const char *folder, *tokenizer, *prompt, *prompt_ids, *stop, *attention;
    int64_t tokens, threads, seed;
    int device, dtype;
    bool ids, json, greedy, ignore_end;
    sampler_options sampling;
    attention_path path;
    model_folder state; /* of the model */
    model *m;
    runtime r;
    decoder *d;
    token_list input; /* the prompt */
    token_list ends;  /* of the output */
    int64_t capacity;
    text_buffer stop_text;
    tokenizer *words;

    utf8_stream stream; /* the output */
    text_buffer output;
    int32_t *made;
    int64_t made_count;
    int64_t top_wanted;
    top_logit *top; /* [made_count, top_count]: what each token was chosen from */
    int64_t top_count, top_rows;
} generate_command;

static const option_spec *make_table(generate_command *c, option_spec table[24])
{
    const option_spec rows[] = {
        {"model", "DIR", OPTION_TEXT, &c->folder, .help = "checkpoint folder, or a Hugging Face one"},
        {"tokenizer", "FILE", OPTION_TEXT, &c->tokenizer, .help = "a tokenizer.json, or bytes; else the model's"},
        {"prompt", "TEXT", OPTION_TEXT, &c->prompt, .help = "what to continue; without it, the beginning of a line"},
        {"prompt-ids", "N,...", OPTION_TEXT, &c->prompt_ids, .help = "the same as token ids"},
        {"tokens", "N", OPTION_INT, &c->tokens, .low = 1, .high = 1e9, .help = "how many tokens at most"},
        {"stop", "TEXT", OPTION_TEXT, &c->stop, .help = "end once this was produced; \\n is a newline"},
        {"ignore-eos", NULL, OPTION_FLAG, &c->ignore_end, .help = "go on where a text ends"},
        {"greedy", NULL, OPTION_FLAG, &c->greedy, .help = "always the most probable token"},
        {"temperature", "X", OPTION_DOUBLE, &c->sampling.temperature, .low = 1e-3, .high = 1e3,
         .help = "above 1: more surprising"},
        {"top-k", "N", OPTION_INT, &c->sampling.top_k, .high = 1e9, .help = "only the N most probable tokens; 0: all"},
        {"top-p", "X", OPTION_DOUBLE, &c->sampling.top_p, .low = 1e-9, .high = 1,
         .help = "only the most probable ones, X in sum"},
        {"seed", "N", OPTION_INT, &c->seed, .high = 9e15, .help = "of the choice"},
        {"attention", "HOW", OPTION_TEXT, &c->attention,
         .help = "composed, flash, block:N or window:W; else as the model was made for"},
        {"ids", NULL, OPTION_FLAG, &c->ids, .help = "print the token ids instead of the text"},
        {"threads", "N", OPTION_INT, &c->threads, .high = 1024, .help = "on the CPU; 0: as many as the process may use"},
        {"device", "WHERE", OPTION_WORD, &c->device, .words = train_devices, .help = "where to compute: cpu or cuda"},
        {"dtype", "TYPE", OPTION_WORD, &c->dtype, .words = train_types, .help = "of activations and products: f32 or bf16"},
        {"json", NULL, OPTION_FLAG, &c->json, .help = "one JSON object at the end, nothing before"},
        {"top-logits", "N", OPTION_INT, &c->top_wanted, .high = 1e6, .help = "with --json: the N largest for each token"},
        {0}};
    memcpy(table, rows, sizeof rows);
    return table;
}

/* \n, \t and \\ as they are meant. */
static void unescape(const char *text, text_buffer *out)
{
    for (; *text; ++text) {
        char c = *text;
        if (c == '\\' && (text[1] == 'n' || text[1] == 't' || text[1] == '\\')) {
            ++text;
            c = *text == 'n' ? '\n' : *text == 't' ? '\t' : '\\';
        }
        text_bytes(out, &c, 1);
    }
}

static bool check_options(generate_command *c, const option_set *set)
{
    static const char *const sampling_options[] = {"temperature", "top-k", "top-p", "seed"};
    if (!c->folder) {
        cli_error("generate: --model is missing");
        return false;
    }
    if (c->prompt && c->prompt_ids) {
        cli_error("--prompt and --prompt-ids contradict each other");
        return false;
    }
    if (c->json && c->ids) {
        cli_error("--ids and --json contradict each other (the object has the ids)");
        return false;
    }
    if (c->top_wanted && !c->json) {
        cli_error("--top-logits needs --json");
        return false;
    }
    for (size_t i = 0; c->greedy && i < sizeof sampling_options / sizeof *sampling_options; ++i)
        if (options_given(set, sampling_options[i])) {
            cli_error("--greedy and --%s contradict each other", sampling_options[i]);
            return false;
        }
    if (c->attention && !attention_path_parse(c->attention, &c->path)) {
        cli_error("--attention: %s", train_error());
        return false;
    }
    if (c->stop && !*c->stop) {
        cli_error("--stop: the text is empty");
        return false;
    }
    if (c->stop)
        unescape(c->stop, &c->stop_text);
    return true;
}

/* -------------------------------------------------------------------------------------------------------------- prompt */

static bool parse_ids(generate_command *c)
{
    for (const char *p = c->prompt_ids;; ++p) {
        char *end;
        errno = 0;
        long id = strtol(p, &end, 10);
        if (end == p || errno || id < 0 || id >= c->state.model.vocab || (*end && *end != ','))
            return train_fail("--prompt-ids: '%.40s' is not a token id from 0 to %lld", p, (long long)c->state.model.vocab - 1);
        token_list_add(&c->input, (int32_t)id);
        if (!*end)
            return true;
        p = end;
    }
}

/* The one that was named, else the model's. Without any there are numbers, but no text. A model of another vocabulary than
 * that of bytes has no end token that is known, if bytes are what was recorded. */
static bool open_tokenizer(generate_command *c)
{
    const bool numbers = c->prompt_ids && (c->ids || c->json) && !c->stop;
    char *found = c->tokenizer ? NULL : model_folder_tokenizer(&c->state);
    if (!c->tokenizer && !found)
        return numbers && !c->state.is_checkpoint;
    c->words = tokenizer_open(c->tokenizer ? c->tokenizer : found);
    free(found);
    return c->words != NULL;
}

static bool make_prompt(generate_command *c)
{
    if (c->prompt_ids)
        return parse_ids(c);
    const char *prompt = c->prompt ? c->prompt : "";
    if (tokenizer_is_bytes(c->words) && c->state.model.vocab < 256)
        return train_fail("--prompt: the model's vocabulary of %lld tokens does not hold all bytes (use --prompt-ids)",
                          (long long)c->state.model.vocab);
    tokenizer_encode(c->words, prompt, strlen(prompt), true, &c->input);
    if (c->input.count == 0)
        token_list_add(&c->input, tokenizer_first(c->words));
    for (size_t i = 0; i < c->input.count; ++i)
        if (c->input.ids[i] >= c->state.model.vocab)
            return train_fail("--prompt: the tokenizer gives token %d, but the model has %lld", c->input.ids[i],
                              (long long)c->state.model.vocab);
    return true;
}

static bool check_length(generate_command *c)
{
    const int64_t most = c->state.model.max_seq, count = (int64_t)c->input.count;
    if (count > most)
        return train_fail("--prompt has %lld tokens, but the model's longest sequence is %lld", (long long)count,
                          (long long)most);
    c->capacity = c->tokens < most - count ? count + c->tokens : most;
    return true;
}

/* -------------------------------------------------------------------------------------------------------------- output */

static bool on_token(void *user, int32_t token)
{
    generate_command *c = user;
    const size_t before = c->output.length;
    if (c->words)
        utf8_stream_add(&c->stream, c->words, token, &c->output);
    if (c->made_count < c->capacity + 1)
        c->made[c->made_count++] = token;
    if (c->ids)
        printf("%s%d", c->made_count > 1 ? " " : "", token);
    else if (!c->json)
        fwrite(c->output.bytes + before, 1, c->output.length - before, stdout);
    if (!c->json)
        fflush(stdout);
    return true;
}

static int compare_top(const void *left, const void *right)
{
    const top_logit *a = left, *b = right;
    if (a->logit > b->logit || a->logit < b->logit)
        return a->logit > b->logit ? -1 : 1;
    return a->token < b->token ? -1 : a->token > b->token;
}

static void on_logits(void *user, const float *logits, int64_t vocab)
{
    generate_command *c = user;
    top_logit *all = text_alloc((size_t)vocab * sizeof *all);
    for (int64_t i = 0; i < vocab; ++i)
        all[i] = (top_logit){(int32_t)i, logits[i]};
    qsort(all, (size_t)vocab, sizeof *all, compare_top);
    memcpy(c->top + c->top_rows++ * c->top_count, all, (size_t)c->top_count * sizeof *all);
    free(all);
}

static void print_top(const generate_command *c, json_out *json)
{
    json_open(json, "top_logits", '[');
    for (int64_t i = 0; i < c->top_rows; ++i) {
        json_open(json, NULL, '[');
        for (const top_logit *t = c->top + i * c->top_count, *end = t + c->top_count; t < end; ++t) {
            json_open(json, NULL, '[');
            json_int(json, NULL, t->token);
            json_double(json, NULL, (double)t->logit);
            json_close(json, ']');
        }
        json_close(json, ']');
    }
    json_close(json, ']');
}

static void print_json(const generate_command *c, generate_end end, double seconds)
{
    static const char *const ends[] = {
        [GENERATE_LENGTH] = "length", [GENERATE_STOP] = "stop", [GENERATE_EOS] = "eos", [GENERATE_FULL] = "full"};
    json_out json = json_begin(stdout);
    json_text(&json, "text", c->output.bytes, c->output.length);
    json_open(&json, "tokens", '[');
    for (int64_t i = 0; i < c->made_count; ++i)
        json_int(&json, NULL, c->made[i]);
    json_close(&json, ']');
    json_open(&json, "prompt_ids", '[');
    for (size_t i = 0; i < c->input.count; ++i)
        json_int(&json, NULL, c->input.ids[i]);
    json_close(&json, ']');
    if (c->top_count)
        print_top(c, &json);
    json_int(&json, "prompt_tokens", (int64_t)c->input.count);
    json_string(&json, "end", ends[end]);
    json_double(&json, "seconds", seconds);
    json_double(&json, "tokens_per_s", (double)c->made_count / seconds);
    json_end(&json);
}

static void finish_output(generate_command *c, generate_end end, double seconds)
{
    const size_t before = c->output.length;
    utf8_stream_end(&c->stream, &c->output);
    if (c->json)
        print_json(c, end, seconds);
    else if (c->ids)
        putchar('\n');
    else {
        fwrite(c->output.bytes + before, 1, c->output.length - before, stdout);
        if (c->output.length == 0 || c->output.bytes[c->output.length - 1] != '\n')
            putchar('\n');
    }
    if (end == GENERATE_FULL)
        cli_note("ended after %lld tokens: the model's longest sequence is %lld", (long long)c->made_count,
                 (long long)c->state.model.max_seq);
}

static int run_command(generate_command *c)
{
    bool good = model_folder_open(c->folder, &c->state) && open_tokenizer(c) && make_prompt(c) && check_length(c) &&
                (c->m = model_folder_load(&c->state));
    int code = good ? train_place_open(&c->r, c->device, c->dtype, c->threads, NULL) : CLI_OK;
    if (code != CLI_OK)
        return code;
    if (!good || !model_place(c->m, &c->r)) {
        cli_error("%s", train_error());
        return train_exit_code();
    }
    c->d = decoder_create(c->m, &c->r, c->attention ? c->path : model_folder_attention(&c->state), c->capacity);
    if (!c->d) {
        cli_error("%s", train_error());
        return CLI_FAILED;
    }
    sampler s;
    c->sampling.greedy = c->greedy;
    c->sampling.seed = (uint64_t)c->seed;
    c->made = text_alloc((size_t)(c->capacity + 1) * sizeof *c->made);
    c->top_count = c->top_wanted < c->state.model.vocab ? c->top_wanted : c->state.model.vocab;
    c->top = text_alloc((size_t)((c->capacity + 1) * c->top_count) * sizeof *c->top);
    sampler_init(&s, &c->sampling, c->state.model.vocab);
    if (!c->ids && !c->json && c->prompt)
        fputs(c->prompt, stdout);
    if (!c->ignore_end)
        model_folder_stops(&c->state, c->words && tokenizer_explains(c->words, c->state.model.vocab) ? c->words : NULL,
                           &c->ends);
    const double start = evaluate_seconds();
    generate_end end = generate(c->d, c->capacity, &s, c->input.ids, (int64_t)c->input.count,
                                &(generate_options){.tokenizer = c->words,
                                                    .tokens = c->tokens,
                                                    .stop = c->stop_text.bytes,
                                                    .ends = &c->ends,
                                                    .token = on_token,
                                                    .logits = c->top_count ? on_logits : NULL,
                                                    .user = c});
    const double seconds = evaluate_seconds() - start;
    sampler_free(&s);
    if (end == GENERATE_FAILED) {
        cli_error("%s", train_error());
        return CLI_FAILED;
    }
    finish_output(c, end, seconds);
    return CLI_OK;
}

int cmd_generate(int argc, char **argv)
{
    generate_command c = {.tokens = 100, .seed = 1, .sampling = {.temperature = 0.8, .top_p = 1}};
    option_spec table[24];
    option_marks marks;
    const option_set set = {.usage = "fattn generate --model DIR [options]",
                            .about = "Continues a text. Prints the prompt and what follows, as it is produced.",
                            .table = make_table(&c, table),
                            .marks = &marks};
    int code;
    text_bytes(&c.output, "", 0);
    if (options_parse(&set, argc, argv, &code))
        code = check_options(&c, &set) ? run_command(&c) : CLI_WRONG;
    decoder_free(c.d);
    model_free(c.m);
    runtime_close(&c.r);
    model_folder_close(&c.state);
    text_free(&c.stop_text);
    text_free(&c.output);
    token_list_free(&c.input);
    token_list_free(&c.ends);
    tokenizer_close(c.words);
    free(c.made);
    free(c.top);
    return code;
}
