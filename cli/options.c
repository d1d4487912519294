/*
 * Command line options from a table; see options.h. The table is turned into getopt's, so that abbreviations, `--a=b` and
 * `--` work as users expect; values, limits and messages are done here.
 */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "json_out.h"

/* ------------------------------------------------------------------------------------------------------------- values */

static int64_t suffix_factor(const char *end)
{
    if (*end && end[1])
        return 0;
    switch (*end) {
    case '\0':
        return 1;
    case 'k':
        return 1 << 10;
    case 'm':
        return 1 << 20;
    case 'g':
        return 1 << 30;
    default:
        return 0;
    }
}

bool option_parse_int(const char *where, const char *text, double low, double high, int64_t *value)
{
    char *end;
    errno = 0;
    const long long number = strtoll(text, &end, 10);
    const int64_t factor = suffix_factor(end);
    int64_t product = 0;
    if (end == text || factor == 0) { /* 1e6 is a whole number too */
        const double real = strtod(text, &end);
        if (end == text || *end || real != floor(real) || fabs(real) > 9e15) {
            cli_error("%s: '%s' is not a whole number", where, text);
            return false;
        }
        product = (int64_t)real;
    } else if (errno || __builtin_mul_overflow((int64_t)number, factor, &product)) {
        cli_error("%s: '%s' does not fit 64 bits", where, text);
        return false;
    }
    if (low <= high && ((double)product < low || (double)product > high)) {
        cli_error("%s: %" PRId64 " is not in %.0f .. %.0f", where, product, low, high);
        return false;
    }
    *value = product;
    return true;
}

bool option_parse_double(const char *where, const char *text, double low, double high, double *value)
{
    char *end;
    const double number = strtod(text, &end);
    if (end == text || *end || isnan(number)) {
        cli_error("%s: '%s' is not a number", where, text);
        return false;
    }
    if (low <= high && (number < low || number > high)) {
        cli_error("%s: %g is not in %g .. %g", where, number, low, high);
        return false;
    }
    *value = number;
    return true;
}

bool option_parse_word(const char *where, const char *text, const char *const *words, int *index)
{
    char list[512] = "";
    for (int i = 0; words[i]; i++) {
        if (!strcmp(words[i], text)) {
            *index = i;
            return true;
        }
        const size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", words[i]);
    }
    cli_error("%s: '%s' is none of: %s", where, text, list);
    return false;
}

static bool parse_flag(const char *where, const char *text, bool *value)
{
    if (!strcmp(text, "true") || !strcmp(text, "1"))
        *value = true;
    else if (!strcmp(text, "false") || !strcmp(text, "0"))
        *value = false;
    else {
        cli_error("%s: '%s' is neither true nor false", where, text);
        return false;
    }
    return true;
}

static void limits_of(const option_spec *spec, double *low, double *high)
{
    const bool none = spec->low == 0 && spec->high == 0;
    const bool whole = spec->kind == OPTION_INT || spec->kind == OPTION_INTS;
    *low = none && !whole ? -INFINITY : spec->low;
    *high = none ? (whole ? 9.2e18 : INFINITY) : spec->high;
}

/* Splits a list into spec->value, item by item. */
static bool assign_list(const option_spec *spec, const char *where, const char *text)
{
    double low, high;
    limits_of(spec, &low, &high);
    option_texts parts = {0};
    if (strlen(text) >= sizeof parts.storage) {
        cli_error("%s: a list of %zu characters is longer than %zu", where, strlen(text), sizeof parts.storage - 1);
        return false;
    }
    strcpy(parts.storage, text);
    for (char *item = parts.storage; item;) {
        char *comma = strchr(item, ',');
        if (comma)
            *comma = '\0';
        if (!*item || parts.count == OPTION_LIST_MAX) {
            cli_error("%s: '%s' %s", where, text, *item ? "has more than 64 items" : "has an empty item");
            return false;
        }
        parts.item[parts.count++] = item;
        item = comma ? comma + 1 : NULL;
    }
    if (spec->kind == OPTION_TEXTS) {
        option_texts *texts = spec->value;
        *texts = parts;
        for (int i = 0; i < parts.count; i++)
            texts->item[i] = texts->storage + (parts.item[i] - parts.storage);
        return true;
    }
    option_ints ints = {.count = parts.count};
    for (int i = 0; i < parts.count; i++) {
        int word = 0;
        if (spec->kind == OPTION_INTS ? !option_parse_int(where, parts.item[i], low, high, &ints.item[i])
                                      : !option_parse_word(where, parts.item[i], spec->words, &word))
            return false;
        if (spec->kind == OPTION_WORDS)
            ints.item[i] = word;
    }
    *(option_ints *)spec->value = ints;
    return true;
}

bool option_assign(const option_spec *spec, const char *where, const char *text)
{
    double low, high;
    limits_of(spec, &low, &high);
    switch (spec->kind) {
    case OPTION_FLAG:
        return parse_flag(where, text, spec->value);
    case OPTION_INT:
        return option_parse_int(where, text, low, high, spec->value);
    case OPTION_DOUBLE:
        return option_parse_double(where, text, low, high, spec->value);
    case OPTION_WORD:
        return option_parse_word(where, text, spec->words, spec->value);
    case OPTION_TEXT:
        *(const char **)spec->value = text;
        return true;
    default:
        return assign_list(spec, where, text);
    }
}

/* ----------------------------------------------------------------------------------------------------------- printing */

static bool append(char *text, size_t size, const char *comma, const char *item)
{
    const size_t used = strlen(text);
    return (size_t)snprintf(text + used, size - used, "%s%s", comma, item) < size - used;
}

static bool print_list(const option_spec *spec, char *text, size_t size)
{
    const option_texts *texts = spec->value;
    const option_ints *ints = spec->value;
    const int count = spec->kind == OPTION_TEXTS ? texts->count : ints->count;
    for (int i = 0; i < count; i++) {
        char number[32] = "";
        if (spec->kind == OPTION_INTS)
            snprintf(number, sizeof number, "%" PRId64, ints->item[i]);
        const char *item = spec->kind == OPTION_INTS    ? number
                           : spec->kind == OPTION_WORDS ? spec->words[ints->item[i]]
                                                        : texts->item[i];
        if (!append(text, size, i ? "," : "", item))
            return false;
    }
    return true;
}

bool option_print(const option_spec *spec, char *text, size_t size)
{
    char number[40];
    text[0] = '\0';
    switch (spec->kind) {
    case OPTION_FLAG:
        return append(text, size, "", *(bool *)spec->value ? "true" : "false");
    case OPTION_INT:
        snprintf(number, sizeof number, "%" PRId64, *(int64_t *)spec->value);
        return append(text, size, "", number);
    case OPTION_DOUBLE:
        shortest_double(*(double *)spec->value, number, sizeof number);
        return append(text, size, "", number);
    case OPTION_WORD:
        return append(text, size, "", spec->words[*(int *)spec->value]);
    case OPTION_TEXT: {
        const char *value = *(const char **)spec->value;
        return append(text, size, "", value ? value : "");
    }
    default:
        return print_list(spec, text, size);
    }
}

static void print_help(const option_set *set)
{
    printf("usage: %s\n\n%s\n\n", set->usage, set->about);
    for (const option_spec *spec = set->table; spec->name; spec++) {
        char left[96], value[256];
        snprintf(left, sizeof left, "--%s%s%s", spec->name, spec->argument ? " " : "", spec->argument ? spec->argument : "");
        printf("  %-24s %s", left, spec->help);
        const bool fits = option_print(spec, value, sizeof value);
        if (fits && spec->kind != OPTION_FLAG && *value)
            printf(" [%s]", value);
        else if (spec->kind == OPTION_FLAG && *(bool *)spec->value)
            printf(" [on; --no-%s]", spec->name);
        putchar('\n');
        if (spec->words) {
            printf("  %-24s one of:", "");
            for (int i = 0; spec->words[i]; i++)
                printf("%s %s", i ? "," : "", spec->words[i]);
            putchar('\n');
        }
    }
    printf("  %-24s %s\n", "--help", "this text");
}

/* ------------------------------------------------------------------------------------------------------------ parsing */

const option_spec *options_find(const option_spec *table, const char *name)
{
    for (const option_spec *spec = table; spec->name; spec++)
        if (!strcmp(spec->name, name))
            return spec;
    return NULL;
}

bool options_given(const option_set *set, const char *name)
{
    const option_spec *spec = options_find(set->table, name);
    if (spec)
        return set->marks->given[spec - set->table];
    spec = strncmp(name, "no-", 3) ? NULL : options_find(set->table, name + 3);
    return spec && set->marks->no[spec - set->table];
}

/* getopt's table: row i of ours has value 256 + 2i, and 257 + 2i for the `no-` form of a flag. */
static void make_getopt_table(const option_set *set, struct option *rows, char (*no_names)[40])
{
    int count = 0;
    for (int i = 0; set->table[i].name && i < OPTION_ROWS_MAX; i++) {
        const option_spec *spec = &set->table[i];
        const int has_arg = spec->kind == OPTION_FLAG ? no_argument : required_argument;
        rows[count++] = (struct option){spec->name, has_arg, NULL, 256 + 2 * i};
        if (spec->kind == OPTION_FLAG) {
            snprintf(no_names[i], sizeof no_names[i], "no-%s", spec->name);
            rows[count++] = (struct option){no_names[i], no_argument, NULL, 257 + 2 * i};
        }
    }
    rows[count++] = (struct option){"help", no_argument, NULL, 'h'};
    rows[count] = (struct option){0};
}

/* One option that getopt found. Returns false after a mistake. */
static bool take_option(const option_set *set, int code)
{
    const int row = (code - 256) / 2;
    const option_spec *spec = &set->table[row];
    if (set->marks)
        (code & 1 ? set->marks->no : set->marks->given)[row] = true;
    if (spec->kind == OPTION_FLAG) {
        *(bool *)spec->value = (code & 1) == 0;
        return true;
    }
    char where[64];
    snprintf(where, sizeof where, "--%s", spec->name);
    return option_assign(spec, where, optarg);
}

bool options_parse(const option_set *set, int argc, char **argv, int *status)
{
    struct option rows[2 * OPTION_ROWS_MAX + 2];
    char no_names[OPTION_ROWS_MAX][40];
    make_getopt_table(set, rows, no_names);
    opterr = 0;
    optind = 0; /* start anew: the GNU way, and the one that bench's two levels need */
    *status = CLI_WRONG;
    if (set->marks)
        *set->marks = (option_marks){0};
    for (int code; (code = getopt_long(argc, argv, ":h", rows, NULL)) != -1;) {
        if (code == 'h') {
            print_help(set);
            *status = CLI_OK;
            return false;
        }
        if (code == '?' || code == ':') {
            cli_error("%s: %s '%s' (fattn %s --help lists the options)", argv[0],
                      code == ':' ? "a value is missing after" : "unknown or ambiguous option, or one without value:",
                      optopt && optopt < 256 ? (char[]){'-', (char)optopt, 0} : argv[optind - 1], argv[0]);
            return false;
        }
        if (!take_option(set, code))
            return false;
    }
    if (argc - optind > set->positionals_max) {
        cli_error("%s: unexpected argument '%s'", argv[0], argv[optind + set->positionals_max]);
        return false;
    }
    *status = CLI_OK;
    return true;
}
