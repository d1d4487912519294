/*
 * Runs one problem with one kernel through the public API, and judges it.
 *
 * A kernel passes if
 *   - it reports success and its own name;
 *   - every element of every output was written, and nothing else: not the guard bands, not the gaps that strides leave,
 *     not the bytes around the workspace, not an input;
 *   - where the truth is NaN or infinite the result is too, where the truth must be exactly zero (a row without keys, a key
 *     that nobody keeps) it is exactly zero, and elsewhere
 *
 *         |result - truth| <= (factor * worst + floor) * eps * unit + tiny
 *
 *     with the row's unit (naive.h), the worst error of the naive computations in this result (in units of its row), factor
 *     2 forward and 3 backward, floor 2 forward and 3 backward (the naive computation of a small problem may be exact by
 *     luck), a quarter of seq_k more where all keys are equal, and tiny for subnormal numbers, which kernels flush to zero;
 *   - a second run, runs with other numbers of threads, a run without lse, and for a causal mask a run
 *     with window (-1, 0), give the same bits.
 */
#ifndef HARNESS_RUN_H
#define HARNESS_RUN_H

#include "naive.h"

enum { HARNESS_CONTEXTS_MAX = 128, HARNESS_THREADS_MAX = 8, VERDICT_TEXT = 400, KERNELS_MAX = 64 };

/* What runs the library, with contexts kept for later problems. The two functions may be replaced, which is how the
 * harness is tested: by kernels that are wrong. */
typedef struct harness {
    fattn_status (*forward)(const fattn_context *, const fattn_desc *, const fattn_forward_args *);
    fattn_status (*backward)(const fattn_context *, const fattn_desc *, const fattn_backward_args *);
    int threads[HARNESS_THREADS_MAX]; /* numbers of threads to run with; the results of the first are judged */
    int threads_count;
    struct {
        char *kernel; /* NULL: automatic */
        int threads;
        fattn_context *context;
    } cache[HARNESS_CONTEXTS_MAX];
    int cached;
} harness;

harness harness_make(void); /* 1, 2 and 7 threads */
void harness_free(harness *h);

/* A context that forces a kernel (NULL: none), from the cache; it stays valid while HARNESS_CONTEXTS_MAX - 1 others are made.
 * NULL on failure; fattn_last_error() says why. */
fattn_context *harness_context(harness *h, const char *kernel, int threads);

/* A kernel and what it says to a problem. */
typedef struct kernel_entry {
    const char *name;
    const char *refusal; /* NULL: can run it */
    uint32_t lacks;      /* CPU features that it needs and this machine lacks */
    bool of_type;        /* its name ends in no other type than the problem's */
    bool selected;       /* what an automatic call would run */
} kernel_entry;

/* Every kernel of the problem's operation, in the library's order. Returns how many. */
int harness_kernels(harness *h, const problem *p, kernel_entry entries[KERNELS_MAX]);

/* A problem with its numbers and the truth, ready to be run with any number of kernels. */
typedef struct test_case {
    problem p;
    fattn_desc desc;
    tensors t;
    arena inputs[6], outputs[3];
    int inputs_count, outputs_count;
    unsigned char *inputs_copy; /* what the inputs held */
    unsigned char *outputs_copy;
    results truth, got;
    double worst[RESULT_COUNT]; /* error of the naive computation, in units */
} test_case;

/* Returns false, with the reason, if the system has not enough memory. The case must stay where it is. */
bool case_make(test_case *c, const problem *p, char *reason, size_t size);
void case_free(test_case *c);

typedef struct verdict {
    bool passed;
    double worst;            /* the largest error, as a part of what is allowed */
    double units;            /* the largest error in units */
    char text[VERDICT_TEXT]; /* what is wrong */
} verdict;

verdict case_run(harness *h, test_case *c, const char *kernel);

/* An automatic call: runs the kernel that the query promised, with the same bits as when it is forced. */
verdict case_run_automatic(harness *h, test_case *c, const char *promised);

/* From here on a stray access to memory writes to fd which problem and kernel ran, and ends the process with exit code 1. */
void harness_catch_faults(int fd);

#endif
