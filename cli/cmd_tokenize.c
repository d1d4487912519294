/*
 * fattn tokenize: texts to a file of tokens.
 */
#include <stdio.h>

#include "cli.h"
#include "options.h"
#include "train/error.h"
#include "train/token_file.h"
#include "train_exit.h"

typedef struct tokenize_command {
    const char *tokenizer, *source, *out, *eot;
} tokenize_command;

/* The end token after the last text, unless it is there. */
static int32_t last_end(const dataset *d, const data_tokens *all)
{
    int32_t last;
    data_copy(all, all->count - 1, 1, &last);
    return last == data_end(d) ? -1 : data_end(d);
}

static int run_command(const tokenize_command *c)
{
    const data_options options = {.source = c->source, .tokenizer = c->tokenizer, .eot = c->eot};
    dataset *d = token_file_name(c->out) ? data_open(&options) : NULL;
    bool good = d != NULL;
    if (good && !data_is_text(d))
        good = train_fail("%s: holds tokens, not text", c->source);
    if (good && data_end(d) < 0)
        good = train_fail("--eot: %s names no token that ends a text, so say which one does", c->tokenizer);
    if (good) {
        const data_tokens all = data_all(d);
        const int32_t end = last_end(d, &all);
        good = token_file_write(c->out, &all, end, data_vocab(d));
        if (good)
            cli_note("%s: %lld tokens below %lld, texts end with %d", c->out, (long long)(all.count + (end >= 0)),
                     (long long)data_vocab(d), data_end(d));
    }
    data_close(d);
    if (good)
        return CLI_OK;
    cli_error("%s", train_error());
    return train_exit_code();
}

int cmd_tokenize(int argc, char **argv)
{
    tokenize_command c = {.tokenizer = "bytes"};
    const option_spec table[] = {
        {"data", "WHAT", OPTION_TEXT, &c.source, .help = "a text, or a folder or pattern of texts"},
        {"tokenizer", "FILE", OPTION_TEXT, &c.tokenizer, .help = "a tokenizer.json of byte-level BPE, or bytes"},
        {"eot", "TOKEN", OPTION_TEXT, &c.eot, .help = "what ends each text, by name or number; else the tokenizer's own"},
        {"out", "FILE", OPTION_TEXT, &c.out, .help = "*.bin as llm.c has it, or *.npy; of 16 or 32 bits"},
        {0}};
    const option_set set = {.usage = "fattn tokenize --data WHAT --out FILE [options]",
                            .about = "Encodes texts, in the order of their names, as one file of tokens for train --data.",
                            .table = table};
    int status;
    if (!options_parse(&set, argc, argv, &status))
        return status;
    if (!c.source || !c.out) {
        cli_error("tokenize: --%s is missing", c.source ? "out" : "data");
        return CLI_WRONG;
    }
    return run_command(&c);
}
