/*
 * A list of problems times every kernel: what `fattn check` and the tests run.
 */
#ifndef HARNESS_SUITE_H
#define HARNESS_SUITE_H

#include <stdio.h>

#include "run.h"

typedef struct suite_kernel {
    const char *name;
    uint32_t lacks; /* CPU features it misses here: it was never run */
    int passed, failed, refused;
    const char *refusal; /* the last reason it gave */
    double worst;        /* largest error, as a part of what is allowed */
    double units[2];     /* largest error in units, forward and backward */
} suite_kernel;

typedef struct suite {
    /* What to do. */
    list_level level;
    uint64_t seed;
    const char *pattern;        /* NULL, a problem's name (with @kernel at the end, or not), or see problem_list_filter */
    const char *const *kernels; /* run only these names, or what begins with them up to an underscore; NULL: all */
    int kernels_count;
    bool unordered; /* every backward problem with FATTN_UNORDERED */
    bool quiet;     /* do not print kernels and skips at the end, only failures and the last line */
    void (*progress)(int done, int total, const char *name); /* may be NULL */
    harness harness;

    /* What came of it. */
    suite_kernel kernel[2 * KERNELS_MAX];
    int kernel_count;
    int problems, passed, failed, skipped, unplaced; /* unplaced: skipped for want of memory */
    FILE *unplaced_lines;                            /* one for each, while running */
    char complaint[200];                             /* why suite_run returned false */
    double seconds;
} suite;

suite suite_make(void); /* the default level, seed 1 */
void suite_free(suite *s);

/* The problems that a suite would run, filtered. Returns false with s->complaint if the pattern fits none. */
bool suite_problems(suite *s, problem_list *list);

/* Runs. Failures are printed to `file` as they come, then each kernel with its counts, what was not reached and why, and
 * "N passed, N failed, N skipped". Returns false if nothing could be run, with s->complaint. */
bool suite_run(suite *s, FILE *file);

#endif
