/*
 * fattn plot: draws the losses of a run's log as an SVG; fattn train does so beside its --log when it ends.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "options.h"
#include "plot.h"
#include "train/error.h"
#include "train/loss_curve.h"

/* Without its folder. */
static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

void plot_path(const char *log, text_buffer *path)
{
    static const char *const endings[] = {".jsonl", ".json", ".log"};
    size_t length = strlen(log);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t end = strlen(endings[i]);
        if (strlen(last_part(log)) > end && strcmp(log + strlen(log) - end, endings[i]) == 0) {
            length -= end;
            break;
        }
    }
    text_bytes(path, log, length);
    text_format(path, ".svg");
}

static bool write_text(const char *path, const text_buffer *text)
{
    FILE *file = strcmp(path, "-") ? fopen(path, "w") : stdout;
    bool written = file && fwrite(text->bytes, text->length, 1, file) == 1 && fflush(file) == 0;
    const int reason = errno;
    if (file && file != stdout && fclose(file) != 0)
        written = false;
    if (!written)
        cli_error("%s: %s", path, strerror(reason));
    return written;
}

int plot_log(const char *log, const char *out, bool logarithmic)
{
    loss_curve curve;
    text_buffer svg = {0};
    int code = CLI_WRONG;
    if (!loss_curve_read(log, &curve))
        cli_error("%s", train_error());
    else {
        loss_curve_draw(&curve, logarithmic, last_part(log), &svg);
        code = write_text(out, &svg) ? CLI_OK : CLI_FAILED;
    }
    loss_curve_free(&curve);
    text_free(&svg);
    return code;
}

int cmd_plot(int argc, char **argv)
{
    const char *out = NULL;
    bool logarithmic = false;
    const option_spec table[] = {
        {"out", "FILE", OPTION_TEXT, &out, .help = "where to; '-': standard output; by default beside LOG, as .svg"},
        {"log-scale", NULL, OPTION_FLAG, &logarithmic, .help = "a logarithmic axis for the loss"},
        {0}};
    const option_set set = {.usage = "fattn plot LOG [options]",
                            .about = "Draws training and validation loss of a log that fattn train --log wrote, as an SVG.",
                            .table = table,
                            .positionals_max = 1};
    int status;
    if (!options_parse(&set, argc, argv, &status))
        return status;
    if (optind >= argc) {
        cli_error("LOG is missing (see fattn plot --help)");
        return CLI_WRONG;
    }
    text_buffer beside = {0};
    plot_path(argv[optind], &beside);
    status = plot_log(argv[optind], out ? out : beside.bytes, logarithmic);
    text_free(&beside);
    return status;
}
