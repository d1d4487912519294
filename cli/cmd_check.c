/*
 * fattn check: runs kernels on the list of problems, see harness/.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "json_out.h"
#include "options.h"
#include "suite.h"

typedef struct check_options {
    option_ints devices;
    option_texts kernels;
    int64_t seed;
    bool quick, full, unordered, list, json;
    option_ints threads;
} check_options;

static const char *const device_words[] = {"cpu", "cuda", NULL};

static bool parse(check_options *o, int argc, char **argv, int *status)
{
    const option_spec table[] = {
        {"device", "cpu,cuda", OPTION_WORDS, &o->devices, .words = device_words, .help = "where kernels run"},
        {"kernel", "NAME,...", OPTION_TEXTS, &o->kernels, .help = "only these: names, or their beginnings up to an underscore"},
        {"seed", "N", OPTION_INT, &o->seed, .help = "of the numbers, and of the random problems"},
        {"quick", NULL, OPTION_FLAG, &o->quick, .help = "some hundred small problems"},
        {"full", NULL, OPTION_FLAG, &o->full, .help = "more than twenty thousand problems"},
        {"unordered", NULL, OPTION_FLAG, &o->unordered, .help = "backward may add in any order: kernels that do run too"},
        {"threads", "N,...", OPTION_INTS, &o->threads, .low = 1, .high = 1024, .help = "every result must be the same bits"},
        {"list", NULL, OPTION_FLAG, &o->list, .help = "print the names of the problems and stop"},
        {"json", NULL, OPTION_FLAG, &o->json, .help = "one line per kernel; failures go to standard error"},
        {0}};
    const option_set set = {
        .usage = "fattn check [options] [PATTERN]",
        .about =
            "Runs every kernel on a list of problems and compares it with plain loops in a higher precision. A kernel may\n"
            "err twice (backward: three times) as much as plain loops in its own precision, and round once to its result's\n"
            "type; it must write every output and nothing else, and must give the same bits in every run, with every number\n"
            "of threads and for a sequence alone. The lists cover every feature and products of features; refused problems\n"
            "count as skipped, and by name those that there is no memory for, after up to two minutes of waiting.\n\n"
            "PATTERN is a problem's name, as failures print it; or a part of names; or a pattern with * and ?.",
        .table = table,
        .positionals_max = 1};
    return options_parse(&set, argc, argv, status);
}

static void show_progress(int done, int total, const char *name)
{
    cli_progress(10, "%d of %d: %s", done, total, name);
}

static int list_problems(suite *s, bool json)
{
    problem_list list;
    if (!suite_problems(s, &list)) {
        cli_error("check: %s", s->complaint);
        return CLI_WRONG;
    }
    for (int i = 0; i < list.count; i++) {
        char name[PROBLEM_NAME_SIZE];
        problem_print(&list.item[i], name);
        if (!json) {
            puts(name);
            continue;
        }
        json_out line = json_begin(stdout);
        json_string(&line, "problem", name);
        json_end(&line);
    }
    problem_list_free(&list);
    return CLI_OK;
}

static void print_json(const suite *s)
{
    for (int i = 0; i < s->kernel_count; i++) {
        const suite_kernel *k = &s->kernel[i];
        json_out json = json_begin(stdout);
        json_string(&json, "kernel", k->name);
        json_int(&json, "passed", k->passed);
        json_int(&json, "failed", k->failed);
        json_int(&json, "skipped", k->refused);
        json_double(&json, "error_units", k->units[0] > k->units[1] ? k->units[0] : k->units[1]);
        json_double(&json, "error_part_of_allowed", k->worst);
        json_string(&json, "refusal", k->refusal);
        json_end(&json);
    }
    json_out json = json_begin(stdout);
    json_int(&json, "problems", s->problems);
    json_int(&json, "passed", s->passed);
    json_int(&json, "failed", s->failed);
    json_int(&json, "skipped", s->skipped);
    json_int(&json, "no_memory", s->unplaced);
    json_double(&json, "seconds", s->seconds);
    json_end(&json);
}

/* What the command line says, put into the suite. Returns false after a mistake. */
static bool configure(suite *s, const check_options *o, int device, const char *pattern)
{
    if (o->quick && o->full) {
        cli_error("check: --quick and --full exclude each other");
        return false;
    }
    if (o->threads.count > HARNESS_THREADS_MAX) {
        cli_error("--threads: %d numbers are more than %d", o->threads.count, HARNESS_THREADS_MAX);
        return false;
    }
    s->level = o->quick ? LIST_QUICK : o->full ? LIST_FULL : LIST_DEFAULT;
    s->seed = (uint64_t)o->seed;
    s->pattern = pattern;
    s->unordered = o->unordered;
    s->kernels = o->kernels.item;
    s->kernels_count = o->kernels.count;
    s->progress = show_progress;
    s->harness.threads_count = o->threads.count;
    for (int i = 0; i < o->threads.count; i++)
        s->harness.threads[i] = (int)o->threads.item[i];
    char reason[300];
    if (device == 1 && !o->list && !harness_use_gpu(&s->harness, reason, sizeof reason)) {
        cli_error("--device: cuda: %s", reason);
        return false;
    }
    return true;
}

/* The checks of one device. */
static int check_device(const check_options *o, int device, const char *pattern)
{
    suite s = suite_make();
    int status = CLI_OK;
    if (!configure(&s, o, device, pattern))
        status = CLI_WRONG;
    else if (o->list)
        status = list_problems(&s, o->json);
    else {
        harness_catch_faults(o->json ? STDERR_FILENO : STDOUT_FILENO);
        if (!suite_run(&s, o->json ? stderr : stdout)) {
            cli_error("check: %s", s.complaint);
            status = CLI_WRONG;
        } else
            status = s.failed ? CLI_FAILED : CLI_OK;
        cli_progress_end();
        if (o->json && status != CLI_WRONG)
            print_json(&s);
    }
    suite_free(&s);
    return status;
}

int cmd_check(int argc, char **argv)
{
    check_options o = {.devices = option_ints_of(0), .seed = 1, .threads = {.count = 3, .item = {1, 2, 7}}};
    int status = CLI_OK;
    if (!parse(&o, argc, argv, &status))
        return status;
    for (int i = 0; i < o.devices.count; i++) {
        const int result = check_device(&o, (int)o.devices.item[i], optind < argc ? argv[optind] : NULL);
        status = result > status ? result : status;
    }
    return status;
}
