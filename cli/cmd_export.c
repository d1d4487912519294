/*
 * fattn export: a model as a Hugging Face folder or a GGUF file.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "options.h"
#include "train/error.h"
#include "train/export.h"
#include "train/model_folder.h"
#include "train/tokenizer.h"
#include "train_exit.h"

typedef struct export_command {
    const char *folder, *format_name, *out, *tokenizer;
    int format, type;
    model_folder source;
    model *m;
    tokenizer *words; /* NULL: none is known */
} export_command;

enum { FORMAT_HF, FORMAT_GGUF };
static const char *const formats[] = {"hf", "gguf", NULL};
static const char *const types[] = {[NARROW_F32] = "f32", [NARROW_F16] = "f16", [NARROW_BF16] = "bf16", NULL};

static void print_written(void *user, const char *path, const char *sha256)
{
    (void)user;
    printf("%s  %s\n", sha256, path);
}

/* The tokenizer that was named, else the model's. A checkpoint of another vocabulary without one was trained on numbers of
 * which nobody said what they stand for. */
static bool open_tokenizer(export_command *c)
{
    char *found = c->tokenizer ? NULL : model_folder_tokenizer(&c->source);
    if (!c->tokenizer && !found)
        return !c->source.is_checkpoint;
    c->words = tokenizer_open(c->tokenizer ? c->tokenizer : found);
    free(found);
    const bool opened = c->words != NULL;
    if (opened && !c->tokenizer && c->source.is_checkpoint && !tokenizer_explains(c->words, c->source.model.vocab)) {
        tokenizer_close(c->words);
        c->words = NULL;
    }
    return opened;
}

static bool run_export(export_command *c)
{
    export_job job = {.type = (narrow_type)c->type, .written = print_written};
    if (!model_folder_open(c->folder, &c->source) || !open_tokenizer(c) || !(c->m = model_folder_load(&c->source)))
        return false;
    job.m = c->m;
    job.words = c->words;
    job.config = c->source.config;
    job.config.model = c->source.model;
    job.config.window = c->source.window;
    model_folder_ends(&c->source, c->words, &job.config.bos, &job.config.eos);
    if (c->format == FORMAT_GGUF)
        return export_gguf(&job, c->out);
    if (!job.words)
        cli_note("no tokenizer is known for this model of %lld tokens: the export has none (--tokenizer names one)",
                 (long long)c->source.model.vocab);
    return export_hf(&job, c->out);
}

static bool check_options(export_command *c)
{
    const char *missing = !c->folder ? "model" : !c->format_name ? "format" : !c->out ? "out" : NULL;
    if (missing)
        cli_error("export: --%s is missing", missing);
    return !missing && option_parse_word("--format", c->format_name, formats, &c->format);
}

int cmd_export(int argc, char **argv)
{
    export_command c = {.type = NARROW_F32};
    const option_spec table[] = {
        {"model", "DIR", OPTION_TEXT, &c.folder, .help = "checkpoint folder, or a Hugging Face one"},
        {"format", "NAME", OPTION_TEXT, &c.format_name,
         .help = "hf (a folder, for transformers) or gguf (a file, for llama.cpp)"},
        {"out", "PATH", OPTION_TEXT, &c.out, .help = "the folder or file to write"},
        {"dtype", "TYPE", OPTION_WORD, &c.type, .words = types, .help = "of the weights: f32, f16 or bf16"},
        {"tokenizer", "FILE", OPTION_TEXT, &c.tokenizer, .help = "a tokenizer.json, or bytes; else what belongs to the model"},
        {0}};
    const option_set set = {.usage = "fattn export --model DIR --format NAME --out PATH [options]",
                            .about = "Writes a model for programs of others, and prints the SHA-256 of each file.",
                            .table = table};
    int code;
    if (!options_parse(&set, argc, argv, &code))
        return code;
    if (!check_options(&c))
        return CLI_WRONG;
    code = CLI_OK;
    if (!run_export(&c)) {
        cli_error("%s", train_error());
        code = train_exit_code();
    }
    model_free(c.m);
    model_folder_close(&c.source);
    tokenizer_close(c.words);
    return code;
}
