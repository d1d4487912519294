/*
 * A test problem: what is computed, on which numbers, lying how in memory; and its name, which says all of it:
 *
 *     forward/bf16/out-f32/b3/h4/gqa2/q129k257/d64/v48/packed-seqs/causal-br/bias:bhqk/softcap:15/sinks/seed7
 *
 * Parts may stand in any order and be left out, except q..k.. and d..; printing leaves out the defaults. Printing and
 * parsing are each other's inverse.
 *
 *     forward, backward            operation
 *     f32, f64, f16, bf16          type
 *     out-f32, grad-f32, kv-i8     float for out and dout; for the gradients; bytes for k and v
 *     b2 h4 gqa2                   batch 2, 4 query heads, 2 of them per key/value head (each 1 if left out)
 *     q129k257 d64 v48             seq_q, seq_k, dim, dim_v (dim if left out)
 *     packed-seqs, packed-q, packed-k
 *                                  sequences one behind the other, of lengths drawn from the seed; packed-q:0,7,3 gives them
 *     used, used-q, used-k         used lengths, drawn or given likewise
 *     full, causal, window:5,0, chunked:16, prefix:9, document, document:5,-1, intervals, intervals:shared
 *                                  mask; -br behind the first word aligns bottom-right; intervals and documents are drawn
 *     bias:bhqk                    with the dimensions that it has: of batch, head and row any may be missing
 *     dbias, dbias:hk              wanted, of the same dimensions or of others
 *     alibi softcap:X sinks dropout:P paged:16
 *     dlse dsinks                  given and wanted
 *     unordered                    backward with FATTN_UNORDERED
 *     part                         backward of a part of the keys: out and lse are those of more keys
 *     bhsd ... (see below)         layout
 *     fill-...                     kind of numbers
 *     scale:X                      desc.scale, if not 0
 *     seed7                        of the random numbers (1 if left out)
 */
#ifndef HARNESS_PROBLEM_H
#define HARNESS_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>

#include "fattn/fattn.h"

typedef enum layout_kind {
    LAYOUT_BHSD,          /* contiguous */
    LAYOUT_BSHD,          /* contiguous, heads interleaved */
    LAYOUT_HSBD,          /* contiguous, heads outermost, batch innermost */
    LAYOUT_PACKED,        /* q, k and v (k and v only if seq_q != seq_k) side by side in one tensor */
    LAYOUT_PADDED,        /* row stride dim + 1, gaps between heads and batches */
    LAYOUT_OFFSET,        /* bhsd, one element off alignment */
    LAYOUT_NEGATIVE,      /* bhsd with every stride negative */
    LAYOUT_BROADCAST,     /* inputs: every batch and head is the same memory (stride 0) */
    LAYOUT_BROADCAST_ROW, /* k and v: every row is the same memory */
    LAYOUT_FENCE_HIGH,    /* bhsd, the last element stands right before an unreadable page */
    LAYOUT_FENCE_LOW,     /* bhsd, the first element stands right behind an unreadable page */
    LAYOUT_FAR,           /* batch stride 2^30 + 1 */
    LAYOUT_COUNT
} layout_kind;

typedef enum fill_kind {
    FILL_NORMAL,        /* normal random numbers */
    FILL_SPIKY,         /* some keys and values are 30 times larger */
    FILL_EQUAL,         /* every key the same: every score of a row too */
    FILL_LARGE,         /* scores of standard deviation 130 */
    FILL_RISING,        /* each key's score is larger than the one before: the running maximum always moves */
    FILL_FALLING,       /* the first key has the largest score */
    FILL_LOW,           /* every score below -5e4 */
    FILL_HIGH,          /* every element 133120 */
    FILL_ZERO,          /* everything 0 */
    FILL_SUBNORMAL,     /* k and v (and dout) too small to be normal numbers */
    FILL_ONES,          /* v = 1: out is 1 */
    FILL_APART,         /* rows differ by powers of 2: forward, q and k by 2^24, v 2^42; backward, dout by 2^36 */
    FILL_SPARSE,        /* likewise, v and dout 2^-40 to 2^44; most columns are 0, but for some of q where k is 0 */
    FILL_COUNTER,       /* weights fall from key to key as v rises; rows of dout are large where weights are small */
    FILL_OUTLIER,       /* in some rows of q, v and dout one element is 1e6 times, of v even 1e15 times as large; k is small */
    FILL_TINY,          /* q and k about 2^-61, whose products floats hardly hold, v and dout 1e-15 */
    FILL_NAN_Q,         /* one NaN in one row of q */
    FILL_NAN_V,         /* one NaN in v at the last key */
    FILL_NAN_UNUSED,    /* NaN in k and v at every key that no query keeps */
    FILL_INF_Q,         /* one infinity in one row of q */
    FILL_INF_K,         /* one infinity in one row of k */
    FILL_MINUS_INF,     /* q > 0, k = -inf: every score -inf, every row as if empty */
    FILL_MINUS_INF_KEY, /* q > 0, key 0 is -inf, other keys are finite: a weight of exactly 0 beside an infinity */
    FILL_BIAS_INF,      /* some rows and some elements of bias are -inf */
    FILL_COUNT
} fill_kind;

enum { LENGTHS_MAX = 6 };

/* Lengths of the sequences of a batch. */
typedef enum lengths_kind { LENGTHS_NONE, LENGTHS_DRAWN, LENGTHS_GIVEN } lengths_kind;

typedef struct length_list {
    lengths_kind kind;
    int32_t count; /* LENGTHS_GIVEN: batch */
    int32_t item[LENGTHS_MAX];
} length_list;

/* Dimensions of bias and dbias, besides that of keys. */
enum { HAS_BATCH = 1, HAS_HEAD = 2, HAS_ROW = 4, HAS_ALL = 7 };

typedef struct problem {
    fattn_op op;
    fattn_dtype dtype;
    bool out_f32, grad_f32, kv_i8;
    int64_t batch, heads_q, group, seq_q, seq_k, dim, dim_v; /* group = heads_q / heads_kv */
    length_list packed_q, packed_k, used_q, used_k;
    fattn_mask mask;
    fattn_align align;
    int64_t left, right; /* window and document only, else 0 */
    int64_t mask_size;   /* chunked and prefix only, else 0 */
    bool mask_shared;    /* intervals: the same for every sequence */
    bool bias, dbias, alibi, sinks, dsinks, dlse, part, unordered;
    unsigned bias_dims, dbias_dims; /* HAS_... */
    double softcap, dropout;
    int64_t page_size;
    layout_kind layout;
    fill_kind fill;
    double scale; /* 0: default */
    uint64_t seed;
} problem;

enum { PROBLEM_NAME_SIZE = 400 };

extern const char *const layout_names[LAYOUT_COUNT + 1]; /* NULL at the end */
extern const char *const fill_names[FILL_COUNT + 1];     /* "fill-normal" ... */

/* A forward f32 problem of one head with seed 1. */
problem problem_of(int64_t seq_q, int64_t seq_k, int64_t dim);

void problem_print(const problem *p, char name[PROBLEM_NAME_SIZE]);

/* Reads a name. Returns false if text is none; then, if complaint is not NULL, it says which part is wrong. */
bool problem_parse(const char *text, problem *p, char *complaint, size_t size);

/* What makes no sense about a problem; NULL if all does. Whoever draws problems draws again. */
const char *problem_wrong(const problem *p);

fattn_desc problem_desc(const problem *p);

/* Whether query row i keeps key j, of a sequence of all rows and keys and a mask without arrays: the definition of the header,
 * pair by pair, on purpose not by intervals. */
bool problem_keeps(const problem *p, int64_t i, int64_t j);

/* The descriptor's seed: 0 without dropout, else one that uses both its halves. */
uint64_t problem_dropout_seed(const problem *p);

/* The types of results. */
fattn_dtype problem_out_type(const problem *p);
fattn_dtype problem_grad_type(const problem *p);
fattn_dtype problem_lse_type(const problem *p);

/* Whether every tensor has at most 2^40 elements, so that products of sizes do not overflow. */
bool problem_fits(const problem *p);

/* The factor on the scores: scale, or its default. */
double problem_scale(const problem *p);

/* -------------------------------------------------------------------------------------------------------------- lists */

typedef enum list_level { LIST_QUICK, LIST_DEFAULT, LIST_FULL } list_level;

typedef struct problem_list {
    problem *item;
    int count, capacity;
} problem_list;

/* The problems of a level: the fixed ones with seed `seed`, and random ones drawn from it. Free with problem_list_free. */
problem_list problem_list_make(list_level level, uint64_t seed);
void problem_list_free(problem_list *list);

/* Keeps the problems whose name contains `pattern`, or matches it if it has * or ? (the whole name, as file names do). */
void problem_list_filter(problem_list *list, const char *pattern);

#endif
