/*
 * The sequences of a timed problem: how long they are, which keys each row keeps, and in which pages the keys lie.
 *
 * All that is drawn follows from the cell's seed. Lengths of packed sequences are shares of the rows, the largest up to seven
 * times the smallest, and add up to as many rows as sequences of one length have, so that tensors are of the same size. Rows
 * that keep other keys than the mask's sentences say (documents, intervals) are drawn to be like what they are used for: texts
 * packed into a row of a batch, and rows of which 64 at a time keep the keys from somewhere up to themselves.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "numbers.h"
#include "random.h"

/* Streams of random numbers, apart from those of the tensors. */
enum { STREAM_LENGTHS = 40, STREAM_MASK, STREAM_PAGES };

enum { INTERVAL_ROWS = 64 };

enum { LIST_STEP = 64 }; /* numbers from one list's beginning to another's, a multiple of */

/* ---------------------------------------------------------------------------------------------------------- descriptor */

static uint32_t flags_of(const bench_cell *cell)
{
    const bool bias = !(cell->bias & BIAS_NONE), backward = cell->pass == BENCH_BACKWARD;
    return (bias ? FATTN_WITH_BIAS : 0) | (cell->alibi ? FATTN_WITH_SLOPES : 0) | (cell->sinks ? FATTN_WITH_SINKS : 0) |
           (bias && cell->dbias && backward ? FATTN_WITH_DBIAS : 0) | (cell->sinks && backward ? FATTN_WITH_DSINKS : 0) |
           (cell->unordered && backward ? FATTN_UNORDERED : 0);
}

static int64_t page_columns(const bench_cell *cell)
{
    return cell->page > 0 ? (cell->seq_k + cell->page - 1) / cell->page : 0;
}

fattn_desc bench_desc(const bench_cell *cell, const bench_sequences *s)
{
    const bench_mask *m = &cell->mask;
    const bool packed = bench_packed(cell), sized = m->kind == FATTN_MASK_CHUNKED || m->kind == FATTN_MASK_PREFIX;
    return (fattn_desc){.struct_size = sizeof(fattn_desc),
                        .dtype = cell->dtype,
                        .out_dtype = bench_out_type(cell),
                        .kv_dtype = bench_kv_type(cell),
                        .grad_dtype = bench_grad_type(cell),
                        .mask = m->kind,
                        .align = m->align,
                        .flags = flags_of(cell),
                        .batch = cell->batch,
                        .heads_q = cell->heads,
                        .heads_kv = cell->heads_kv,
                        .seq_q = s        ? s->longest_q
                                 : packed ? cell->batch * cell->seq_q
                                          : cell->seq_q,
                        .seq_k = s        ? s->longest_k
                                 : packed ? cell->batch * cell->seq_k
                                          : cell->seq_k,
                        .dim = cell->dim,
                        .dim_v = cell->dim_v,
                        .window_left = m->left,
                        .window_right = m->right,
                        .softcap = cell->softcap,
                        .dropout = cell->dropout,
                        .seed = cell->dropout > 0 ? cell->seed + 1 : 0,
                        .total_q = packed ? cell->batch * cell->seq_q : 0,
                        .total_k = packed ? cell->batch * cell->seq_k : 0,
                        .mask_size = sized ? m->size : 0,
                        .page_size = cell->page,
                        .pages = cell->batch * page_columns(cell)};
}

/* ------------------------------------------------------------------------------------------------------------- lengths */

/* Places of sequences that share `total` rows by their weights. */
static void share_rows(const double *weights, int64_t batch, int64_t total, int32_t *cu, int32_t *len)
{
    double sum = 0, before = 0;
    for (int64_t b = 0; b < batch; b++)
        sum += weights[b];
    for (int64_t b = 0; b < batch; b++) {
        cu[b] = (int32_t)floor((double)total * (before / sum));
        before += weights[b];
    }
    cu[batch] = (int32_t)total;
    for (int64_t b = 0; b < batch; b++)
        len[b] = cu[b + 1] - cu[b];
}

static bool draw_lengths(bench_sequences *s, const bench_cell *cell)
{
    random_state r = random_start(cell->seed, STREAM_LENGTHS);
    double *weights = calloc((size_t)cell->batch + 1, sizeof *weights);
    if (!weights)
        return false;
    for (int64_t b = 0; b < cell->batch; b++)
        weights[b] = bench_packed(cell) ? 0.25 + 1.5 * random_unit(&r) : 1;
    share_rows(weights, cell->batch, s->total_q, s->cu_q, s->len_q);
    share_rows(weights, cell->batch, s->total_k, s->cu_k, s->len_k);
    free(weights);
    for (int64_t b = 0; b < cell->batch && !bench_packed(cell); b++) { /* what rounding might have moved */
        s->cu_q[b] = (int32_t)(b * cell->seq_q);
        s->cu_k[b] = (int32_t)(b * cell->seq_k);
        s->len_q[b] = (int32_t)cell->seq_q;
        s->len_k[b] = cell->varlen ? (int32_t)ceil((double)cell->seq_k * (1 + random_unit(&r)) / 2) : (int32_t)cell->seq_k;
    }
    s->longest_q = bench_packed(cell) ? 0 : cell->seq_q;
    s->longest_k = bench_packed(cell) ? 0 : cell->seq_k;
    for (int64_t b = 0; b < cell->batch && bench_packed(cell); b++) {
        s->longest_q = s->len_q[b] > s->longest_q ? s->len_q[b] : s->longest_q;
        s->longest_k = s->len_k[b] > s->longest_k ? s->len_k[b] : s->longest_k;
    }
    return true;
}

int64_t bench_offset(const bench_cell *cell, const bench_sequences *s, int64_t b)
{
    return cell->mask.align == FATTN_ALIGN_BOTTOM_RIGHT ? s->len_k[b] - s->len_q[b] : 0;
}

/* --------------------------------------------------------------------------------------------------------------- masks */

/* Document ids of sequence b: a row has that of the key at which it stands. */
static void draw_documents(bench_sequences *s, const bench_cell *cell, int64_t b, random_state *r)
{
    int32_t *q = s->document_q + s->cu_q[b], *k = s->document_k + s->cu_k[b], id = 0;
    int64_t left = cell->mask.size / 2 + random_below(r, cell->mask.size + 1);
    for (int64_t j = 0; j < s->len_k[b]; j++, left--) {
        if (left <= 0 && j > 0) {
            left = cell->mask.size / 2 + random_below(r, cell->mask.size + 1);
            id++;
        }
        k[j] = id;
    }
    for (int64_t i = 0; i < s->len_q[b]; i++) {
        const int64_t at = i + bench_offset(cell, s, b);
        q[i] = at < 0 ? -1 : at < s->len_k[b] ? k[at] : id + 1;
    }
}

/* Narrows each row's keys to those of its document. Ids do not decrease, so neither end ever moves back. */
static void cut_documents(bench_sequences *s, int64_t b)
{
    const int32_t *q = s->document_q + s->cu_q[b], *k = s->document_k + s->cu_k[b];
    int32_t *lo = s->lo + s->cu_q[b], *hi = s->hi + s->cu_q[b], first = 0, end = 0;
    for (int64_t i = 0; i < s->len_q[b]; i++) {
        while (first < s->len_k[b] && k[first] < q[i])
            first++;
        while (end < s->len_k[b] && k[end] <= q[i])
            end++;
        lo[i] = lo[i] > first ? lo[i] : first;
        hi[i] = hi[i] < end ? hi[i] : end;
        hi[i] = hi[i] > lo[i] ? hi[i] : lo[i];
    }
}

static void draw_intervals(bench_sequences *s, const bench_cell *cell, int64_t b, random_state *r)
{
    int32_t *lo = s->lo + s->cu_q[b], *hi = s->hi + s->cu_q[b];
    int64_t from = 0;
    for (int64_t i = 0; i < s->len_q[b]; i++) {
        int64_t end = i + 1 + bench_offset(cell, s, b);
        end = end < 0 ? 0 : end > s->len_k[b] ? s->len_k[b] : end;
        if (i % INTERVAL_ROWS == 0)
            from = random_below(r, end + 1);
        lo[i] = (int32_t)from;
        hi[i] = (int32_t)end;
    }
}

/* What the library says about the rows of sequence b. A document mask starts from its window. */
static bool ask_intervals(bench_sequences *s, const bench_cell *cell, int64_t b)
{
    fattn_desc desc = bench_desc(cell, s);
    desc.mask = cell->mask.kind == FATTN_MASK_DOCUMENT ? FATTN_MASK_WINDOW : cell->mask.kind;
    desc.seq_q = s->len_q[b];
    desc.seq_k = s->len_k[b];
    desc.total_q = desc.total_k = desc.page_size = desc.pages = 0;
    for (int64_t i = 0; i < s->len_q[b]; i++) {
        int64_t lo = 0, hi = 0;
        if (fattn_mask_interval(&desc, i, &lo, &hi) != FATTN_OK)
            return false;
        s->lo[s->cu_q[b] + i] = (int32_t)lo;
        s->hi[s->cu_q[b] + i] = (int32_t)hi;
    }
    return true;
}

static bool make_masks(bench_sequences *s, const bench_cell *cell)
{
    random_state r = random_start(cell->seed, STREAM_MASK);
    for (int64_t b = 0; b < cell->batch; b++) {
        if (cell->mask.kind == FATTN_MASK_INTERVALS) {
            draw_intervals(s, cell, b, &r);
            continue;
        }
        if (!ask_intervals(s, cell, b))
            return false;
        if (cell->mask.kind == FATTN_MASK_DOCUMENT) {
            draw_documents(s, cell, b, &r);
            cut_documents(s, b);
        }
    }
    return true;
}

/* --------------------------------------------------------------------------------------------------------------- pages */

/* Pages in no order. */
static void shuffle_pages(bench_sequences *s, const bench_cell *cell)
{
    random_state r = random_start(cell->seed, STREAM_PAGES);
    for (int64_t i = 0; i < s->pages; i++) {
        const int64_t other = random_below(&r, i + 1);
        s->page_table[i] = s->page_table[other];
        s->page_table[other] = (int32_t)i;
    }
}

/* -------------------------------------------------------------------------------------------------------------- making */

static void count_scores(bench_sequences *s, const bench_cell *cell)
{
    for (int64_t b = 0; b < cell->batch; b++) {
        int32_t first = INT32_MAX, end = 0;
        for (int64_t i = s->cu_q[b]; i < s->cu_q[b] + s->len_q[b]; i++) {
            if (s->lo[i] >= s->hi[i])
                continue;
            s->scores += (double)cell->heads * (double)(s->hi[i] - s->lo[i]);
            first = s->lo[i] < first ? s->lo[i] : first;
            end = s->hi[i] > end ? s->hi[i] : end;
        }
        s->cache_rows += end > first ? (double)(end - first) : 0;
    }
}

/* All lists in one piece, so that one copy brings them elsewhere. */
static bool allocate(bench_sequences *s, const bench_cell *cell)
{
    const struct {
        int32_t **list;
        int64_t count;
    } lists[] = {{&s->len_q, cell->batch},     {&s->len_k, cell->batch},     {&s->cu_q, cell->batch + 1},
                 {&s->cu_k, cell->batch + 1},  {&s->lo, s->total_q},         {&s->hi, s->total_q},
                 {&s->document_q, s->total_q}, {&s->document_k, s->total_k}, {&s->page_table, s->pages}};
    size_t at[sizeof lists / sizeof lists[0]], all = 0;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        at[i] = all;
        all += (size_t)(lists[i].count + LIST_STEP) / LIST_STEP * LIST_STEP;
    }
    s->lists_bytes = all * sizeof(int32_t);
    s->lists = calloc(all, sizeof(int32_t));
    for (size_t i = 0; s->lists && i < sizeof lists / sizeof lists[0]; i++)
        *lists[i].list = s->lists + at[i];
    return s->lists != NULL;
}

bool bench_sequences_make(bench_sequences *s, const bench_cell *cell)
{
    *s = (bench_sequences){.total_q = cell->batch * cell->seq_q, .total_k = cell->batch * cell->seq_k};
    s->columns = page_columns(cell);
    s->pages = cell->batch * s->columns;
    if (!allocate(s, cell) || !draw_lengths(s, cell) || !make_masks(s, cell))
        return false;
    shuffle_pages(s, cell);
    count_scores(s, cell);
    return true;
}

void bench_sequences_free(bench_sequences *s)
{
    free(s->lists);
    *s = (bench_sequences){0};
}

/* ------------------------------------------------------------------------------------------------------------- figures */

double bench_operations(const bench_cell *cell, const bench_sequences *s)
{
    const double forward = 2 * s->scores * (double)(cell->dim + cell->dim_v);
    return cell->pass == BENCH_BACKWARD ? 2.5 * forward : forward;
}

static double bias_bytes(const bench_cell *cell, const bench_sequences *s)
{
    if (cell->bias & BIAS_NONE)
        return 0;
    const double elements = (cell->bias & BIAS_BATCH ? (double)cell->batch : 1) *
                            (cell->bias & BIAS_HEAD ? (double)cell->heads : 1) *
                            (cell->bias & BIAS_ROW ? (double)s->longest_q : 1) * (double)s->longest_k;
    const double gradient = cell->dbias && cell->pass == BENCH_BACKWARD ? (double)type_size(bench_grad_type(cell)) : 0;
    return elements * ((double)type_size(cell->dtype) + gradient);
}

double bench_bytes(const bench_cell *cell, const bench_sequences *s)
{
    const double in = (double)type_size(cell->dtype), out = (double)type_size(bench_out_type(cell));
    const double grad = (double)type_size(bench_grad_type(cell)), lse = (double)type_size(bench_lse_type(cell));
    const double dim = (double)cell->dim, dim_v = (double)cell->dim_v;
    const double rows_q = (double)cell->heads * (double)s->total_q, rows_k = (double)cell->heads_kv * (double)s->total_k;
    const double cache_row = (double)type_size(bench_kv_type(cell)) * (dim + dim_v) + (cell->kv_i8 ? 2 * sizeof(float) : 0);
    if (cell->pass == BENCH_DECODE)
        return (double)cell->heads_kv * s->cache_rows * cache_row;
    const double forward = rows_q * (in * dim + out * dim_v + lse) + rows_k * cache_row + bias_bytes(cell, s);
    if (cell->pass == BENCH_FORWARD)
        return forward;
    return forward + rows_q * (out * dim_v + grad * dim) + rows_k * grad * (dim + dim_v);
}
