/*
 * fattn bench: what its files share.
 */
#ifndef FATTN_CLI_BENCH_H
#define FATTN_CLI_BENCH_H

#include "machine.h"
#include "problem.h"

int bench_attention(int argc, char **argv);
int bench_gemm(int argc, char **argv);

enum { BENCH_KERNELS_MAX = 16, BENCH_SETS_MAX = 64 };

/* One problem and how to time it. p.op is backward or forward; decode is a forward with one query. */
typedef struct bench_cell {
    problem p; /* layout bhsd or bshd */
    bool decode;
    int threads; /* 0: as the library chooses */
    double seconds;
    int kernels;
    const char *kernel[BENCH_KERNELS_MAX]; /* "auto" or a name; timed in turns */
    bool json;
    bool first; /* print the heads of the columns */
} bench_cell;

/* What one kernel needed. */
typedef struct bench_result {
    const char *name; /* of the kernel that ran; NULL: it refused */
    double ms, ms_min;
    int runs;
    double peak_gflops;
    size_t workspace;
    double max_error, allowed_error; /* absolute, on the sampled rows */
} bench_result;

/* Tensors of a cell: `sets` copies of everything, used in turns. */
typedef struct bench_data {
    int sets;
    size_t size;                               /* bytes of an element */
    fattn_view q, k, v, out, dout, dq, dk, dv; /* of set 0 */
    void *lse;
    size_t set_bytes; /* from one set to the next, for every tensor */
    void *memory;
    size_t memory_bytes;
} bench_data;

/* Times a cell and prints it. Returns an exit code. */
int bench_run_cell(const bench_cell *cell);

/* Allocates and fills with normal random numbers. out and lse, which backward reads, come from an automatic forward. */
bool bench_data_make(bench_data *data, const bench_cell *cell);
void bench_data_free(bench_data *data);

/* Calls the library on one set. */
fattn_status bench_call(const bench_cell *cell, const fattn_context *context, const bench_data *data, int set, void *workspace,
                        size_t bytes, const char **ran);

/* The largest error of set 0's results on sampled rows, computed in double; *allowed is what a right kernel stays below. */
double bench_error(const bench_cell *cell, const bench_data *data, double *allowed);

/* Floating point operations of a call, and the bytes that it must move (decode: the keys and values alone). */
double bench_operations(const bench_cell *cell);
double bench_bytes(const bench_cell *cell);

#endif
