/*
 * Command line options from a table: parsing, limits, messages and --help.
 *
 *     int64_t steps = 1000;
 *     double lr = 3e-4;
 *     bool flash = false;
 *     option_ints seqs = option_ints_of(128);
 *     const option_spec table[] = {
 *         {"steps", "N", OPTION_INT, &steps, .low = 1, .high = 1e9, .help = "optimiser steps"},
 *         {"lr", "X", OPTION_DOUBLE, &lr, .low = 0, .high = 1, .help = "learning rate"},
 *         {"flash", NULL, OPTION_FLAG, &flash, .help = "attend with the library"},
 *         {"seq", "N,...", OPTION_INTS, &seqs, .low = 1, .high = 1e6, .help = "sequence lengths"},
 *         {0}};
 *     const option_set set = {.usage = "fattn train [options]", .about = "Trains a model.", .table = table};
 *     int status;
 *     if (!options_parse(&set, argc, argv, &status))
 *         return status; // 0 after --help, 2 after a mistake, which was reported
 *
 * The initial values are the defaults, and --help prints them. Every option is long (`--name value` or `--name=value`);
 * a flag also has `--no-name`. Whole numbers may end in k (1024), m or g.
 */
#ifndef FATTN_CLI_OPTIONS_H
#define FATTN_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum option_kind {
    OPTION_FLAG,   /* bool *: takes no argument */
    OPTION_INT,    /* int64_t * */
    OPTION_DOUBLE, /* double * */
    OPTION_TEXT,   /* const char **: points into argv */
    OPTION_WORD,   /* int *: index of the word in .words */
    OPTION_INTS,   /* option_ints *: whole numbers separated by commas */
    OPTION_WORDS,  /* option_ints *: indices of words separated by commas */
    OPTION_TEXTS   /* option_texts *: texts separated by commas */
} option_kind;

enum { OPTION_LIST_MAX = 64, OPTION_ROWS_MAX = 128 };

typedef struct option_ints {
    int count;
    int64_t item[OPTION_LIST_MAX];
} option_ints;

typedef struct option_texts {
    int count;
    const char *item[OPTION_LIST_MAX];
    char storage[2048];
} option_texts;

typedef struct option_spec {
    const char *name;     /* without the dashes */
    const char *argument; /* how --help calls the argument; NULL for flags */
    option_kind kind;
    void *value;
    double low, high;         /* numbers: limits, both allowed; both 0: none (whole numbers: 0 and up) */
    const char *const *words; /* OPTION_WORD, OPTION_WORDS: the words, NULL at the end */
    const char *help;
} option_spec;

/* What a command line said, row by row of the table. */
typedef struct option_marks {
    bool given[OPTION_ROWS_MAX]; /* --name */
    bool no[OPTION_ROWS_MAX];    /* --no-name */
} option_marks;

typedef struct option_set {
    const char *usage;        /* "fattn check [options] [PATTERN]" */
    const char *about;        /* what the command does; lines of up to 100 characters, no newline at the end */
    const option_spec *table; /* ends with a row without name */
    int positionals_max;      /* how many arguments without dashes are allowed */
    option_marks *marks;      /* filled by options_parse, for options_given; NULL: nobody asks */
} option_set;

/* Parses argv (argv[0] is the command's name). Returns true if the command should go on. Otherwise *status is what it
 * should return: 0 after --help, 2 after a mistake, reported as one line on standard error. Arguments without dashes are
 * moved behind the options: argv[optind] .. argv[argc-1] (see getopt). */
bool options_parse(const option_set *set, int argc, char **argv, int *status);

/* Whether options_parse met --name, abbreviated or not. Of a flag, "no-name" is its other form. */
bool options_given(const option_set *set, const char *name);

/* The row of this name, or NULL. */
const option_spec *options_find(const option_spec *table, const char *name);

/* Sets one option from text, as `--name text` would. `where` starts the message if it is wrong: "--lr", or
 * "model.json: lr". Flags take true, false, 1 and 0. Returns false after a mistake, which was reported. */
bool option_assign(const option_spec *spec, const char *where, const char *text);

/* Writes an option's present value as the text that option_assign would read. Returns false if it does not fit. */
bool option_print(const option_spec *spec, char *text, size_t size);

/* The same parsers for arguments with a form of their own. All report a mistake as "fattn: <where>: ..." and return
 * false. low > high: no limits. */
bool option_parse_int(const char *where, const char *text, double low, double high, int64_t *value);
bool option_parse_double(const char *where, const char *text, double low, double high, double *value);
bool option_parse_word(const char *where, const char *text, const char *const *words, int *index);

static inline option_ints option_ints_of(int64_t item)
{
    return (option_ints){.count = 1, .item = {item}};
}

#endif
