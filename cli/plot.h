/*
 * Drawing a log: what `fattn plot` and the end of `fattn train` share.
 */
#ifndef FATTN_CLI_PLOT_H
#define FATTN_CLI_PLOT_H

#include <stdbool.h>

#include "train/text.h"

/* run.jsonl, run.json, run.log: run.svg; any other name: with .svg behind it. */
void plot_path(const char *log, text_buffer *path);
/* Returns an exit code; what was wrong was reported. */
int plot_log(const char *log, const char *out, bool logarithmic);

#endif
