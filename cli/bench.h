/*
 * fattn bench: what its files share.
 *
 *     bench_attention.c   the command line, and the grid of cells that it spans
 *     bench_words.c       the small languages of its options: masks, biases, lists of numbers
 *     bench_cell.c        times one cell
 *     bench_report.c      prints what was measured
 *     bench_sequences.c   lengths, masks and pages of a cell; how many scores it has
 *     bench_data.c        the tensors of a cell, and the call
 *     bench_read.c        how fast that memory can be read
 *     bench_truth.c       results against a computation in double
 */
#ifndef FATTN_CLI_BENCH_H
#define FATTN_CLI_BENCH_H

#include "fattn/fattn.h"
#include "machine.h"

int bench_attention(int argc, char **argv);
int bench_gemm(int argc, char **argv);

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
    bool dbias, alibi, sinks, varlen;
    double softcap, dropout;
    int64_t page; /* rows of a page; 0: not paged */
    uint64_t seed;

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
    int32_t *len_q, *len_k;   /* [batch] */
    int32_t *cu_q, *cu_k;     /* [batch + 1]: rows before a sequence, as the library wants them */
    int32_t *lo, *hi;         /* [total_q]: the keys lo .. hi-1 that a row keeps; also the arrays of an intervals mask */
    int32_t *document_q;      /* [total_q], document mask only */
    int32_t *document_k;      /* [total_k] */
    int64_t pages, columns;   /* of all caches; of one */
    int32_t *page_table;      /* [batch, columns] */
    double scores;            /* pairs that are kept, over all heads */
    double cache_rows;        /* rows of the cache of one head that are read, over all sequences */
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

/* A tensor of set 0. The strides of dimensions that it lacks are 0. */
typedef struct bench_tensor {
    fattn_view view;
    fattn_dtype type;
    int64_t batch, heads, rows, cols; /* in memory */
} bench_tensor;

/* Tensors of a cell: `sets` copies of everything, used in turns. */
typedef struct bench_data {
    int sets;
    bench_sequences sequences;
    fattn_desc desc;
    bench_tensor q, k, v, out, lse, k_scales, v_scales, bias, slopes, sinks, dout, dq, dk, dv, dbias, dsinks;
    size_t set_bytes; /* from one set to the next, for every tensor */
    void *memory;
    size_t memory_bytes;
} bench_data;

/* Allocates and fills with random numbers. out and lse, which backward reads, come from an automatic forward. */
bool bench_data_make(bench_data *data, const bench_cell *cell);
void bench_data_free(bench_data *data);

/* Calls the library on one set. */
fattn_status bench_call(const bench_cell *cell, const fattn_context *context, const bench_data *data, int set, void *workspace,
                        size_t bytes, const char **ran);

/* Bytes per second, in 1e9, at which so many threads at once read set after set: the best one. */
double bench_read_bandwidth(const bench_data *data, int threads, double seconds);

/* The largest error of set 0's results on sampled rows, computed in double; *allowed is what a right kernel stays below. */
double bench_error(const bench_cell *cell, const bench_data *data, double *allowed);

/* --------------------------------------------------------------------------------------------------------------- timing */

/* What one kernel needed. */
typedef struct bench_result {
    const char *name; /* of the kernel that ran; NULL: it refused */
    double ms, ms_min;
    int runs;
    double peak_gflops;
    size_t workspace;
    double max_error, allowed_error; /* absolute, on the sampled rows */
} bench_result;

/* Times a cell and prints it. Returns an exit code. */
int bench_run_cell(const bench_cell *cell);

/* What printing needs to know besides a result. */
typedef struct bench_setting {
    const bench_cell *cell;
    const bench_sequences *sequences;
    int threads;      /* that ran */
    double read_gbps; /* decode: of plain reading */
} bench_setting;

void bench_print_heads(void);
void bench_print_row(const bench_setting *s, const bench_result *r, double reference);
void bench_print_json(const bench_setting *s, const bench_result *r);

#endif
