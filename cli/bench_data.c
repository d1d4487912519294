/*
 * The tensors of a timed problem, the call, and the check of its results on sampled rows.
 *
 * Backward's check starts from the same out and lse as the kernel does; they were checked when forward made them.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench.h"
#include "random.h"

enum { ROWS = 16, HEADS = 4 }; /* sampled */

/* -------------------------------------------------------------------------------------------------------------- memory */

static int64_t heads_kv(const problem *p)
{
    return p->heads_q / p->group;
}

typedef struct plan {
    fattn_view *view;
    int64_t heads, rows, cols;
    bool random;
} plan;

enum { TENSORS = 8 };

static void make_plan(bench_data *data, const problem *p, plan plans[TENSORS])
{
    const int64_t kv = heads_kv(p);
    plans[0] = (plan){&data->q, p->heads_q, p->seq_q, p->dim, true};
    plans[1] = (plan){&data->k, kv, p->seq_k, p->dim, true};
    plans[2] = (plan){&data->v, kv, p->seq_k, p->dim_v, true};
    plans[3] = (plan){&data->out, p->heads_q, p->seq_q, p->dim_v, false};
    plans[4] = (plan){&data->dout, p->heads_q, p->seq_q, p->dim_v, true};
    plans[5] = (plan){&data->dq, p->heads_q, p->seq_q, p->dim, false};
    plans[6] = (plan){&data->dk, kv, p->seq_k, p->dim, false};
    plans[7] = (plan){&data->dv, kv, p->seq_k, p->dim_v, false};
}

static size_t round_up(size_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

static void fill_normal(const bench_data *data, unsigned char *to, int64_t count, random_state *r)
{
    for (int64_t i = 0; i < count; i++) {
        const double value = random_normal(r);
        if (data->size == 4)
            ((float *)to)[i] = (float)value;
        else
            ((double *)to)[i] = value;
    }
}

/* How many sets: for decode so many that together they are twice the last cache, so that each call reads memory. */
static int sets_for(const bench_cell *cell, size_t set_bytes)
{
    size_t cache = machine_cache(3);
    if (cache < (size_t)32 << 20)
        cache = (size_t)32 << 20;
    if (!cell->decode || set_bytes == 0)
        return 1;
    const size_t sets = 1 + 2 * cache / set_bytes;
    return sets > BENCH_SETS_MAX ? BENCH_SETS_MAX : (int)sets;
}

static bool map_memory(bench_data *data)
{
    data->memory_bytes = (size_t)data->sets * data->set_bytes + 4096;
    data->memory = mmap(NULL, data->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data->memory == MAP_FAILED) {
        data->memory = NULL;
        return false;
    }
#ifdef MADV_HUGEPAGE
    madvise(data->memory, data->memory_bytes, MADV_HUGEPAGE);
#endif
    memset(data->memory, 0, data->memory_bytes);
    return true;
}

/* A forward by the library's own choice, for backward to start from. */
static bool run_forward(const bench_cell *cell, const bench_data *data)
{
    fattn_context *context;
    bench_cell forward = *cell;
    forward.p.op = FATTN_OP_FORWARD;
    const fattn_desc desc = problem_desc(&forward.p);
    size_t bytes = 0;
    const fattn_context_options options = {.struct_size = sizeof options, .kernel = ""}; /* whatever FATTN_KERNEL says */
    if (fattn_context_create(&options, &context) != FATTN_OK)
        return false;
    bool ok = fattn_workspace_size(context, &desc, FATTN_OP_FORWARD, &bytes) == FATTN_OK;
    void *workspace = malloc(bytes + 1);
    for (int set = 0; ok && set < data->sets; set++)
        ok = workspace && bench_call(&forward, context, data, set, workspace, bytes, NULL) == FATTN_OK;
    free(workspace);
    fattn_context_destroy(context);
    return ok;
}

bool bench_data_make(bench_data *data, const bench_cell *cell)
{
    const problem *p = &cell->p;
    *data = (bench_data){.size = p->dtype == FATTN_F64 ? 8 : 4};
    plan plans[TENSORS];
    make_plan(data, p, plans);
    const int used = p->op == FATTN_OP_BACKWARD ? TENSORS : 4;
    size_t offsets[TENSORS], bytes = 0;
    for (int i = 0; i < used; i++) {
        offsets[i] = bytes;
        bytes += round_up((size_t)(p->batch * plans[i].heads * plans[i].rows * plans[i].cols) * data->size);
    }
    const size_t lse_offset = bytes;
    data->set_bytes = bytes + round_up((size_t)(p->batch * p->heads_q * p->seq_q) * data->size);
    data->sets = sets_for(cell, data->set_bytes);
    if (!map_memory(data))
        return false;
    unsigned char *memory = data->memory;
    for (int i = 0; i < used; i++) {
        const plan *t = &plans[i];
        random_state r = random_start(p->seed, (uint64_t)i);
        *t->view = p->layout == LAYOUT_BSHD ? fattn_view_bshd(memory + offsets[i], t->heads, t->rows, t->cols)
                                            : fattn_view_bhsd(memory + offsets[i], t->heads, t->rows, t->cols);
        for (int set = 0; t->random && set < data->sets; set++)
            fill_normal(data, memory + offsets[i] + (size_t)set * data->set_bytes, p->batch * t->heads * t->rows * t->cols, &r);
    }
    data->lse = memory + lse_offset;
    return p->op == FATTN_OP_FORWARD || run_forward(cell, data);
}

void bench_data_free(bench_data *data)
{
    if (data->memory)
        munmap(data->memory, data->memory_bytes);
    *data = (bench_data){0};
}

static fattn_view of_set(const bench_data *data, fattn_view view, int set)
{
    view.data = (unsigned char *)view.data + (size_t)set * data->set_bytes;
    return view;
}

fattn_status bench_call(const bench_cell *cell, const fattn_context *context, const bench_data *data, int set, void *workspace,
                        size_t bytes, const char **ran)
{
    const fattn_desc desc = problem_desc(&cell->p);
    void *lse = (unsigned char *)data->lse + (size_t)set * data->set_bytes;
    if (cell->p.op == FATTN_OP_FORWARD) {
        const fattn_forward_args args = {.struct_size = sizeof args,
                                         .q = of_set(data, data->q, set),
                                         .k = of_set(data, data->k, set),
                                         .v = of_set(data, data->v, set),
                                         .out = of_set(data, data->out, set),
                                         .lse = lse,
                                         .workspace = workspace,
                                         .workspace_size = bytes,
                                         .kernel = ran};
        return fattn_forward(context, &desc, &args);
    }
    const fattn_backward_args args = {.struct_size = sizeof args,
                                      .q = of_set(data, data->q, set),
                                      .k = of_set(data, data->k, set),
                                      .v = of_set(data, data->v, set),
                                      .out = of_set(data, data->out, set),
                                      .dout = of_set(data, data->dout, set),
                                      .dq = of_set(data, data->dq, set),
                                      .dk = of_set(data, data->dk, set),
                                      .dv = of_set(data, data->dv, set),
                                      .lse = lse,
                                      .workspace = workspace,
                                      .workspace_size = bytes,
                                      .kernel = ran};
    return fattn_backward(context, &desc, &args);
}

/* -------------------------------------------------------------------------------------------------------------- figures */

double bench_operations(const bench_cell *cell)
{
    const problem *p = &cell->p;
    double pairs = (double)p->seq_q * (double)p->seq_k;
    if (p->mask == FATTN_MASK_CAUSAL && p->seq_q == p->seq_k)
        pairs /= 2;
    else if (p->mask != FATTN_MASK_FULL) {
        const fattn_desc desc = problem_desc(p);
        pairs = 0;
        for (int64_t i = 0; i < p->seq_q; i++) {
            int64_t lo = 0, hi = 0;
            if (fattn_mask_interval(&desc, i, &lo, &hi) == FATTN_OK)
                pairs += (double)(hi - lo);
        }
    }
    const double forward = 2 * (double)(p->batch * p->heads_q) * pairs * (double)(p->dim + p->dim_v);
    return p->op == FATTN_OP_BACKWARD ? 2.5 * forward : forward;
}

double bench_bytes(const bench_cell *cell)
{
    const problem *p = &cell->p;
    const double size = p->dtype == FATTN_F64 ? 8 : 4, both = (double)(p->dim + p->dim_v);
    const double rows_q = (double)(p->batch * p->heads_q) * (double)p->seq_q;
    const double rows_k = (double)(p->batch * heads_kv(p)) * (double)p->seq_k;
    if (cell->decode)
        return size * rows_k * both;
    const double forward = rows_q * (both + 1) + rows_k * both;
    return size * (p->op == FATTN_OP_BACKWARD ? 2 * forward - rows_q : forward);
}

/* --------------------------------------------------------------------------------------------------------------- error */

static double get(const bench_data *data, const fattn_view *view, int64_t b, int64_t h, int64_t i, int64_t d)
{
    const int64_t at = b * view->stride_batch + h * view->stride_head + i * view->stride_row + d;
    return data->size == 4 ? (double)((const float *)view->data)[at] : ((const double *)view->data)[at];
}

static double dot(const bench_data *data, const fattn_view *x, int64_t hx, int64_t i, const fattn_view *y, int64_t hy,
                  int64_t j, int64_t b, int64_t n)
{
    double sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += get(data, x, b, hx, i, d) * get(data, y, b, hy, j, d);
    return sum;
}

static double get_lse(const bench_data *data, const problem *p, int64_t b, int64_t h, int64_t i)
{
    const int64_t at = (b * p->heads_q + h) * p->seq_q + i;
    return data->size == 4 ? (double)((const float *)data->lse)[at] : ((const double *)data->lse)[at];
}

typedef struct comparison {
    double error, largest;
} comparison;

static void compare(comparison *c, double value, double truth)
{
    const double error = fabs(value - truth);
    c->error = error > c->error || isnan(error) ? error : c->error; /* a NaN stays */
    c->largest = fmax(c->largest, fabs(truth));
}

/* Row i of out and lse. */
static void compare_forward(const bench_data *data, const problem *p, int64_t b, int64_t h, int64_t i, comparison *c)
{
    const int64_t kv = h / p->group;
    double *prob = calloc((size_t)p->seq_k + 1, sizeof *prob), *out = calloc((size_t)p->dim_v, sizeof *out);
    double max = -INFINITY, sum = 0;
    if (prob && out) {
        for (int64_t j = 0; j < p->seq_k; j++) {
            const bool kept = problem_keeps(p, i, j);
            prob[j] = kept ? problem_scale(p) * dot(data, &data->q, h, i, &data->k, kv, j, b, p->dim) : -INFINITY;
            max = fmax(max, prob[j]);
        }
        for (int64_t j = 0; j < p->seq_k; j++)
            sum += prob[j] = prob[j] == -INFINITY ? 0 : exp(prob[j] - max);
        for (int64_t j = 0; j < p->seq_k; j++)
            for (int64_t d = 0; d < p->dim_v && prob[j] > 0; d++)
                out[d] += prob[j] / sum * get(data, &data->v, b, kv, j, d);
        for (int64_t d = 0; d < p->dim_v; d++)
            compare(c, get(data, &data->out, b, h, i, d), out[d]);
        if (sum > 0)
            compare(c, get_lse(data, p, b, h, i), max + log(sum));
    }
    free(prob);
    free(out);
}

/* Probability and gradient of the score of pair (i, j). */
static double pair(const bench_data *data, const problem *p, int64_t b, int64_t h, int64_t i, int64_t j, double *ds)
{
    const int64_t kv = h / p->group;
    const double lse = get_lse(data, p, b, h, i);
    *ds = 0;
    if (!problem_keeps(p, i, j) || lse == -INFINITY)
        return 0;
    const double prob = exp(problem_scale(p) * dot(data, &data->q, h, i, &data->k, kv, j, b, p->dim) - lse);
    const double big_d = dot(data, &data->dout, h, i, &data->out, h, i, b, p->dim_v);
    const double dp = dot(data, &data->dout, h, i, &data->v, kv, j, b, p->dim_v);
    *ds = prob * (dp - big_d) * problem_scale(p);
    return prob;
}

static void compare_dq(const bench_data *data, const problem *p, int64_t b, int64_t h, int64_t i, comparison *c)
{
    double *dq = calloc((size_t)p->dim, sizeof *dq);
    for (int64_t j = 0; dq && j < p->seq_k; j++) {
        double ds;
        pair(data, p, b, h, i, j, &ds);
        for (int64_t d = 0; d < p->dim; d++)
            dq[d] += ds * get(data, &data->k, b, h / p->group, j, d);
    }
    for (int64_t d = 0; dq && d < p->dim; d++)
        compare(c, get(data, &data->dq, b, h, i, d), dq[d]);
    free(dq);
}

static void compare_dkv(const bench_data *data, const problem *p, int64_t b, int64_t kv, int64_t j, comparison *c)
{
    double *dk = calloc((size_t)p->dim, sizeof *dk), *dv = calloc((size_t)p->dim_v, sizeof *dv);
    if (dk && dv) {
        for (int64_t h = kv * p->group; h < (kv + 1) * p->group; h++)
            for (int64_t i = 0; i < p->seq_q; i++) {
                double ds;
                const double prob = pair(data, p, b, h, i, j, &ds);
                for (int64_t d = 0; d < p->dim; d++)
                    dk[d] += ds * get(data, &data->q, b, h, i, d);
                for (int64_t d = 0; d < p->dim_v; d++)
                    dv[d] += prob * get(data, &data->dout, b, h, i, d);
            }
        for (int64_t d = 0; d < p->dim; d++)
            compare(c, get(data, &data->dk, b, kv, j, d), dk[d]);
        for (int64_t d = 0; d < p->dim_v; d++)
            compare(c, get(data, &data->dv, b, kv, j, d), dv[d]);
    }
    free(dk);
    free(dv);
}

/* Sample number s of n things: the first, the last, and random ones. */
static int64_t sample(random_state *r, int s, int64_t n)
{
    return s == 0 ? n - 1 : s == 1 ? 0 : random_below(r, n);
}

double bench_error(const bench_cell *cell, const bench_data *data, double *allowed)
{
    const problem *p = &cell->p;
    random_state r = random_start(p->seed, 77);
    comparison c = {0};
    *allowed = 0;
    if (p->batch == 0 || p->seq_q == 0 || p->seq_k == 0)
        return 0;
    const bool backward = p->op == FATTN_OP_BACKWARD;
    const int most = backward ? ROWS / 2 : ROWS, rows = p->seq_q < most && !backward ? (int)p->seq_q : most;
    for (int s = 0; s < (backward ? HEADS / 2 : HEADS); s++) {
        const int64_t b = sample(&r, s, p->batch), h = sample(&r, s, p->heads_q);
        for (int row = 0; row < rows; row++) {
            if (!backward)
                compare_forward(data, p, b, h, sample(&r, row, p->seq_q), &c);
            else {
                compare_dq(data, p, b, h, sample(&r, row, p->seq_q), &c);
                compare_dkv(data, p, b, h / p->group, sample(&r, row, p->seq_k), &c);
            }
        }
    }
    *allowed = (p->dtype == FATTN_F64 ? 1e-11 : 2e-4) * (1 + c.largest);
    return c.error;
}
