/*
 * The program `fattn`: finds the command and runs it.
 */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "fattn/fattn.h"

typedef struct cli_command {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv);
} cli_command;

static const cli_command commands[] = {
    {"info", "version, CPU features, kernels and which of them run here", cmd_info},
    {"check", "run the kernels against the reference on a list of problems", cmd_check},
    {"bench", "time attention, or the machine itself", cmd_bench},
    {"gradcheck", "compare gradients with finite differences", cmd_gradcheck},
    {"train", "train a small language model", cmd_train},
    {"eval", "measure a model: bits per character, loss, perplexity", cmd_eval},
    {"generate", "continue a text with a model", cmd_generate},
    {"tokenize", "encode texts as a file of tokens", cmd_tokenize},
    {"export", "write a model for transformers or llama.cpp", cmd_export},
    {"plot", "draw the losses of a run's log", cmd_plot},
    {"world", "print the generated corpus", cmd_world},
};

static void print_help(FILE *file)
{
    fputs("usage: fattn COMMAND [options]\n\n", file);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(file, "  %-11s %s\n", commands[i].name, commands[i].summary);
    fputs("\nfattn COMMAND --help lists a command's options. Exit codes: 0 success, 1 the work failed,\n"
          "2 the command line or an input file is wrong.\n",
          file);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        print_help(stdout);
        return CLI_OK;
    }
    if (!strcmp(name, "--version")) {
        printf("fattn %s\n", fattn_version());
        return CLI_OK;
    }
    if (argc < 2) {
        cli_error("no command given (fattn --help lists them)");
        return CLI_WRONG;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (!strcmp(name, commands[i].name)) {
            const int code = commands[i].run(argc - 1, argv + 1);
            if (fflush(stdout) != 0 || ferror(stdout)) {
                cli_error("standard output cannot be written");
                return CLI_FAILED;
            }
            return code;
        }
    cli_error("unknown command '%s' (fattn --help lists them)", name);
    return CLI_WRONG;
}
