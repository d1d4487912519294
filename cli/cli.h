/*
 * The program `fattn`: what its commands share.
 *
 * One file per command, cmd_<name>.c, with one function cmd_<name>(argc, argv) whose argv[0] is the command's name. It
 * returns the exit code. The table of commands is in main.c.
 */
#ifndef FATTN_CLI_H
#define FATTN_CLI_H

#include <stdbool.h>

/* Exit codes. */
enum {
    CLI_OK = 0,
    CLI_FAILED = 1, /* the work failed */
    CLI_WRONG = 2   /* the command line or an input file is wrong */
};

int cmd_info(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_gradcheck(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_plot(int argc, char **argv);
int cmd_world(int argc, char **argv);

/* Prints one line "fattn: ..." on standard error. The text names the option, file or field and both values. */
void cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints one line on standard error that is no error: a note, or something that was left out. */
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Shows how far the work is, on standard error: on a terminal one line that is drawn over, otherwise a line every
 * `interval` seconds. Cheap enough to be called in a loop. cli_progress_end wipes the line off a terminal. */
void cli_progress(double interval, const char *format, ...) __attribute__((format(printf, 2, 3)));
void cli_progress_end(void);

/* Seconds on a clock that never goes back. */
double cli_seconds(void);

#endif
