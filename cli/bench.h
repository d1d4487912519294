/*
 * fattn bench: what its files share.
 *
 *     bench_attention.c   the command line, and the grid of cells that it spans
 *     bench_words.c       the small languages of its options: masks, biases, lists of numbers
 *     bench_place.c       where cells lie: the host, or a GPU
 *     bench_cell.c        times one cell
 *     bench_gpu.c         the clock of a GPU, and how fast its memory copies
 *     bench_report.c      prints what was measured
 *     bench_sequences.c   lengths, masks and pages of a cell; how many scores it has
 *     bench_data.c        the tensors of a cell, and the call
 *     bench_read.c        how fast that memory can be read
 *     bench_truth.c       results against a computation in double
 */
#ifndef FATTN_CLI_BENCH_H
#define FATTN_CLI_BENCH_H

#include "fattn/fattn.h"
#include "gpu/memory.h"
#include "machine.h"

int bench_attention(int argc, char **argv);
int bench_gemm(int argc, char **argv);
int bench_train(int argc, char **argv);

enum { BENCH_KERNELS_MAX = 16, BENCH_SETS_MAX = 4096, BENCH_LIST_MAX = 64, BENCH_TEXT = 96 };

typedef enum bench_pass { BENCH_FORWARD, BENCH_BACKWARD, BENCH_DECODE } bench_pass;

/* The library's masks; a document mask draws documents of about `size` rows. */
typedef struct bench_mask {
    fattn_mask kind;
    fattn_align align;
    int64_t left, right; /* window and document, else 0 */
    int64_t size;        /* chunked, prefix, document, else 0 */
} bench_mask;

/* Which of its dimensions, besides that of keys, a bias has. */
enum { BIAS_BATCH = 1, BIAS_HEAD = 2, BIAS_ROW = 4, BIAS_NONE = 8 };

/* Where tensors lie and calls run: the host, or a GPU. */
typedef struct bench_place {
    fattn_device device;
    const char *word; /* "cpu", "cuda" */
    char name[GPU_NAME];
    int multiprocessors; /* of a GPU */
    gpu_device *gpu;     /* NULL: the host */
} bench_place;

/* One problem and how to time it. Every field but the last group is a part of the problem. */
typedef struct bench_cell {
    bench_pass pass;
    fattn_dtype dtype;
    bool out_f32, grad_f32, kv_i8; /* other types of out, of the gradients, of the cache */
    bool bshd;                     /* heads lie side by side; else bhsd */
    int64_t batch, heads, heads_kv;
    int64_t seq_q, seq_k; /* varlen: on average */
    int64_t dim, dim_v;
    bench_mask mask;
    unsigned bias; /* BIAS_... */
    bool dbias, alibi, sinks, varlen, unordered;
    double softcap, dropout;
    int64_t page; /* rows of a page; 0: not paged */
    uint64_t seed;

    const bench_place *place;
    int threads; /* 0: as the library chooses */
    double seconds;
    int kernels;
    const char *kernel[BENCH_KERNELS_MAX]; /* "auto" or a name; timed in turns */
    bool json;
    bool first; /* print the heads of the columns */
} bench_cell;

static inline fattn_op bench_op(const bench_cell *cell)
{
    return cell->pass == BENCH_BACKWARD ? FATTN_OP_BACKWARD : FATTN_OP_FORWARD;
}

/* Sequences that lie one behind the other. Decoding has lengths of the cache instead, as its rows are few. */
static inline bool bench_packed(const bench_cell *cell)
{
    return cell->varlen && cell->pass != BENCH_DECODE;
}

static inline fattn_dtype bench_out_type(const bench_cell *cell)
{
    return cell->out_f32 ? FATTN_F32 : cell->dtype;
}

static inline fattn_dtype bench_grad_type(const bench_cell *cell)
{
    return cell->grad_f32 ? FATTN_F32 : cell->dtype;
}

static inline fattn_dtype bench_kv_type(const bench_cell *cell)
{
    return cell->kv_i8 ? FATTN_I8 : cell->dtype;
}

static inline fattn_dtype bench_lse_type(const bench_cell *cell)
{
    return cell->dtype == FATTN_F64 ? FATTN_F64 : FATTN_F32;
}

/* -------------------------------------------------------------------------------------------------------------- places */

/* Finds the device. False, with one line on standard error, where it is not. A place of zeros may be closed. */
bool bench_place_open(bench_place *place, fattn_device device);
void bench_place_close(bench_place *place);

/* A context's options for calls there. kernel: "auto", or names. */
fattn_context_options bench_context_options(const bench_place *place, const char *kernel, int threads);

/* Memory there; NULL if there is not enough. Nothing is in it. */
void *bench_place_allocate(const bench_place *place, size_t bytes);
void bench_place_free(const bench_place *place, void *memory);

/* Waits until all calls are done. False after an error of a GPU. */
bool bench_place_wait(const bench_place *place);

/* What went wrong: the GPU's error since the last bench_place_forget, else the library's last. */
const char *bench_place_error(const bench_place *place);
void bench_place_forget(const bench_place *place);

/* ---------------------------------------------------------------------------------------------------------- small words */

/* The name of a type: f32, f64, bf16, f16, i8. */
const char *bench_type_name(fattn_dtype type);

/* The library's name of a mask as an option gives it: "window-br:127,0"; of a bias: "none", "k", "bh". */
void bench_mask_name(const bench_mask *mask, char text[BENCH_TEXT]);
void bench_bias_name(unsigned bias, char text[BENCH_TEXT]);

/* Lists of them, and of real numbers. Return how many items, or 0 after a mistake, which was reported. */
int bench_read_masks(const char *text, bench_mask masks[BENCH_LIST_MAX]);
int bench_read_biases(const char *text, int64_t biases[BENCH_LIST_MAX]);
int bench_read_numbers(const char *where, const char *text, double low, double high, double numbers[BENCH_LIST_MAX]);

/* ------------------------------------------------------------------------------------------------------------ sequences */

/* How long the sequences of a cell are, where they lie, and which keys each row keeps. */
typedef struct bench_sequences {
    int64_t longest_q, longest_k;
    int64_t total_q, total_k; /* of all sequences */
    int32_t *lists;           /* all of the following, one behind the other */
    size_t lists_bytes;
    int32_t *len_q, *len_k; /* [batch] */
    int32_t *cu_q, *cu_k;   /* [batch + 1]: rows before a sequence, as the library wants them */
    int32_t *lo, *hi;       /* [total_q]: the keys lo .. hi-1 that a row keeps; also the arrays of an intervals mask */
    int32_t *document_q;    /* [total_q], document mask only */
    int32_t *document_k;    /* [total_k] */
    int64_t pages, columns; /* of all caches; of one */
    int32_t *page_table;    /* [batch, columns] */
    double scores;          /* pairs that are kept, over all heads */
    double cache_rows;      /* rows of the cache of one head that are read, over all sequences */
} bench_sequences;

bool bench_sequences_make(bench_sequences *s, const bench_cell *cell);
void bench_sequences_free(bench_sequences *s);

/* Where row i of sequence b stands at the keys: at key i + this. */
int64_t bench_offset(const bench_cell *cell, const bench_sequences *s, int64_t b);

/* The descriptor. s NULL: of lengths that are not drawn yet, to see whether the library accepts the rest. */
fattn_desc bench_desc(const bench_cell *cell, const bench_sequences *s);

/* Floating point operations of a call, and the bytes that it must move (decode: the cache's rows and their factors alone). */
double bench_operations(const bench_cell *cell, const bench_sequences *s);
double bench_bytes(const bench_cell *cell, const bench_sequences *s);

/* ----------------------------------------------------------------------------------------------------------------- data */

/* A tensor of set 0, on the host. The strides of dimensions that it lacks are 0. */
typedef struct bench_tensor {
    fattn_view view;
    fattn_dtype type;
    int64_t batch, heads, rows, cols; /* in memory */
} bench_tensor;

/* Tensors of a cell: `sets` copies of everything, used in turns. The host has set 0 and the lists, and calls use what stands at
 * the same distance from `base` and `base_lists`: on the host that is the same memory. */
typedef struct bench_data {
    const bench_place *place;
    int sets;
    bench_sequences sequences;
    fattn_desc desc;
    bench_tensor q, k, v, out, lse, k_scales, v_scales, bias, slopes, sinks, dout, dq, dk, dv, dbias, dsinks;
    size_t set_bytes; /* from one set to the next, for every tensor */
    void *memory;     /* the host's; on the CPU all sets, else set 0 */
    size_t memory_bytes;
    unsigned char *base;
    unsigned char *base_lists;
} bench_data;

/* Allocates and fills with random numbers. out and lse, which backward reads, come from an automatic forward. */
bool bench_data_make(bench_data *data, const bench_cell *cell);
void bench_data_free(bench_data *data);

/* Fills set 0's results with NaN, so that a kernel that writes nothing does not pass for the one before it. */
bool bench_data_poison(bench_data *data, const bench_cell *cell);

/* Waits for calls, and brings what they left in set 0 to the host. False after an error of a GPU. */
bool bench_data_fetch(bench_data *data);

/* Calls the library on one set. */
fattn_status bench_call(const bench_cell *cell, const fattn_context *context, const bench_data *data, int set, void *workspace,
                        size_t bytes, const char **ran);

/* Bytes per second, in 1e9, at which so many threads at once read set after set: the best one. */
double bench_read_bandwidth(const bench_data *data, int threads, double seconds);

/* The largest error of set 0's results on sampled rows, computed in double; *allowed is what a right kernel stays below. */
double bench_error(const bench_cell *cell, const bench_data *data, double *allowed);

/* --------------------------------------------------------------------------------------------------------------- timing */

enum { BENCH_RUNS_MAX = 20000 };

/* What one kernel needed. */
typedef struct bench_result {
    const char *name; /* of the kernel that ran; NULL: it refused */
    double ms, ms_min;
    int runs;
    double peak_gflops;
    size_t workspace;
    double max_error, allowed_error; /* absolute, on the sampled rows */
} bench_result;

/* A kernel at work. */
typedef struct bench_turn {
    const bench_cell *cell;
    const bench_data *data;
    const char *asked;
    fattn_context *context;
    void *workspace;
    size_t bytes;
    double *samples; /* seconds of each run */
    int runs, next_set;
    double spent;
    double call_seconds; /* GPU: about what a call takes, once warm */
    vector_unit unit;    /* CPU */
    bench_result result;
} bench_turn;

/* Calls the library on the turn's next set. */
bool bench_turn_call(bench_turn *t);

/* Calls over and over until the GPU's clock and temperature are those of such work. False after an error. */
bool bench_gpu_warm_up(bench_turn *t);

/* Takes samples for so many seconds. False after an error. */
bool bench_gpu_sample(bench_turn *t, double seconds);

/* Bytes read and written per second, in 1e9, by a copy within the GPU's memory; NaN after an error. */
double bench_gpu_copy_bandwidth(const bench_place *place);

/* Times a cell and prints it. Returns an exit code. */
int bench_run_cell(const bench_cell *cell);

/* What printing needs to know besides a result. */
typedef struct bench_setting {
    const bench_cell *cell;
    const bench_sequences *sequences;
    int threads;      /* that ran; 0 on a GPU */
    double read_gbps; /* decode: of plain reading; on a GPU, of a copy */
} bench_setting;

void bench_print_heads(void);
void bench_print_row(const bench_setting *s, const bench_result *r, double reference);
void bench_print_json(const bench_setting *s, const bench_result *r);

#endif
