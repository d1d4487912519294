/*
 * Runs one problem with one kernel through the public API, and judges it.
 *
 * A kernel passes if
 *   - it reports success and its own name;
 *   - every element of every output was written, and nothing else: not the guard bands, not the gaps that strides leave, not
 *     rows behind a sequence's used length or between packed sequences, not the bytes around the workspace, not an input;
 *   - where the truth is NaN or infinite the result is too, where the truth must be exactly zero (a row without keys, a key
 *     that nobody keeps, dbias of a pair that is not kept) it is exactly zero, and elsewhere
 *
 *         |result - truth| <= A + half an ulp of the result's type at |truth| + A
 *         A = (factor * worst + floor) * eps * unit + tiny
 *
 *     with the row's unit (naive.h), eps of the precision that kernels compute in, the worst error of the naive computations in
 *     this result (in units of its row, before rounding to the result's type), factor 2 forward and 3 backward, floor 2 forward
 *     and 3 backward (the naive computation of a small problem may be exact by luck), a quarter of seq_k more where all keys
 *     are equal, and tiny for subnormal numbers, which kernels flush to zero; the half ulp only where the result's type is
 *     coarser than eps (rounding to it is one of the unit's errors where it is not); for a kernel that rounds probabilities
 *     and their gradients (or in f32 any number) to a type before it multiplies, A is floor * that type's half ulp of 1 *
 *     unit larger, or for lse and dsinks floor * (4 + dim / 64) * eps * unit: what tensor cores and the GPU's powers of 2
 *     lose;
 *   - a second run, runs with other numbers of threads, a run without lse, and for a causal mask a run with window (-1, 0),
 *     give the same bits; and so does a run with one of several sequences alone (but for dbias and dsinks, which sum over
 *     sequences). The other runs of a kernel that adds in no fixed order are judged as the first is.
 */
#ifndef HARNESS_RUN_H
#define HARNESS_RUN_H

#include "naive.h"

enum { HARNESS_CONTEXTS_MAX = 256, HARNESS_THREADS_MAX = 8, VERDICT_TEXT = 400, KERNELS_MAX = 64 };

/* A GPU's memory, see mirror.h. */
typedef struct mirror mirror;

/* What runs the library, with contexts kept for later problems. The two functions may be replaced, which is how the
 * harness is tested: by kernels that are wrong. */
typedef struct harness {
    fattn_status (*forward)(const fattn_context *, const fattn_desc *, const fattn_forward_args *);
    fattn_status (*backward)(const fattn_context *, const fattn_desc *, const fattn_backward_args *);
    int threads[HARNESS_THREADS_MAX]; /* numbers of threads to run with; the results of the first are judged */
    int threads_count;
    mirror *gpu;     /* runs are on GPU 0; NULL: on the CPU */
    double patience; /* seconds that runs may still wait, in all, for memory that other programs have */
    struct {
        char *kernel; /* NULL: automatic */
        int threads;
        fattn_context *context;
    } cache[HARNESS_CONTEXTS_MAX];
    int cached;
} harness;

harness harness_make(void); /* 1, 2 and 7 threads */

/* From here on runs are on GPU 0. False, with the reason, if that cannot be. */
bool harness_use_gpu(harness *h, char *reason, size_t size);

void harness_free(harness *h);

/* A context that forces a kernel (NULL: none), from the cache; it stays valid while HARNESS_CONTEXTS_MAX - 1 others are made.
 * NULL on failure; fattn_last_error() says why. */
fattn_context *harness_context(harness *h, const char *kernel, int threads);

/* A kernel and what it says to a problem. */
typedef struct kernel_entry {
    const char *name;
    const char *refusal; /* NULL: can run it */
    uint32_t lacks;      /* features that it needs and this machine lacks */
    bool of_type;        /* its name ends in no other type than the problem's: _f32, _f64, _f16, _bf16 */
    bool selected;       /* what an automatic call would run */
    fattn_dtype rounds;  /* FATTN_DTYPE_NONE, or what it rounds probabilities to before they are multiplied */
    bool unordered;      /* adds in no fixed order */
} kernel_entry;

/* Every kernel of the problem's operation that runs on the harness's device, in the library's order. Returns how many. */
int harness_kernels(harness *h, const problem *p, kernel_entry entries[KERNELS_MAX]);
/* Those of any device; of another than the harness's, all refuse. */
int harness_kernels_of(harness *h, const problem *p, fattn_device device, kernel_entry entries[KERNELS_MAX]);

enum { CASE_INPUTS_MAX = 24, CASE_OUTPUTS_MAX = 5 };

/* A problem with its numbers and the truth, ready to be run with any number of kernels. */
typedef struct test_case {
    problem p;
    geometry g;
    fattn_desc desc;
    tensors t;
    unsigned char *real_q, *real_k, *real_bias; /* of tensors with rows of queries, of keys, and of bias */
    arena inputs[CASE_INPUTS_MAX], outputs[CASE_OUTPUTS_MAX];
    const char *output_name[CASE_OUTPUTS_MAX];
    int inputs_count, outputs_count;
    unsigned char *inputs_copy; /* what the inputs held */
    unsigned char *outputs_copy;
    results truth, got;
    double worst[RESULT_COUNT]; /* error of the naive computation, in units */
    struct test_case *single;   /* one of several sequences alone, without truth; NULL if there is none */
    int64_t single_b;           /* which */
} test_case;

/* Returns false, with the reason, if the system has not enough memory. The case must stay where it is. */
bool case_make(test_case *c, const problem *p, char *reason, size_t size);
void case_free(test_case *c);

/* For case.c: memory of all tensors of a case whose p and g are set, and its lists of integers. */
bool case_place(test_case *c);

/* args.mask_stride. */
int64_t case_mask_stride(const test_case *c);

/* Sets *single to sequence b of a case: its numbers, in memory of their own. False without memory. */
bool case_make_single(const test_case *c, int64_t b, test_case *single);

/* Whether the single sequence's results have the bits of the same rows of all. If not, `kind` is the first that differs. */
bool case_single_same(const test_case *c, result_kind *kind);

typedef struct verdict {
    bool passed;
    bool no_memory;          /* it was not run, or not as often as it should be: there was no memory for it */
    double worst;            /* the largest error, as a part of what is allowed */
    double units;            /* the largest error in units */
    char text[VERDICT_TEXT]; /* what is wrong */
} verdict;

verdict case_run(harness *h, test_case *c, const kernel_entry *kernel);

/* For judge.c: notes in the verdict what is wrong, and returns false. */
bool verdict_fail(verdict *v, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The arguments of a forward call, without workspace; and of the backward call behind one. */
fattn_forward_args case_forward_args(const test_case *c);
fattn_backward_args case_backward_args(const test_case *c, const fattn_forward_args *forward);

/* For judge.c: one call with fresh outputs and a workspace full of NaN. *ran gets the kernel's name. Waits for memory. */
bool case_call(harness *h, test_case *c, const char *kernel, int threads, bool with_lse, const char **ran, verdict *v);

/* An automatic call: runs the kernel that the query promised, with the same bits as when it is forced. */
verdict case_run_automatic(harness *h, test_case *c, const kernel_entry *promised);

/* What fattn_scores shows of some rows of a forward problem gives the truth's out and lse, weighted and summed. */
verdict case_look(harness *h, const test_case *c);

/* From here on a stray access to memory writes to fd which problem and kernel ran, and ends the process with exit code 1. */
void harness_catch_faults(int fd);

#endif
