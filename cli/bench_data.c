/*
 * The tensors of a timed problem, and the call.
 *
 * Filling takes numbers from a table of normal ones, as drawing, say, a gigabyte of halves anew would take longer than what is
 * timed. All sets hold the same numbers: what counts is that they lie elsewhere. Everything is made on the host; a GPU gets a
 * copy, and calls get pointers into it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench.h"
#include "call.h"
#include "numbers.h"
#include "random.h"

enum { TABLE = 1 << 14 };

/* -------------------------------------------------------------------------------------------------------------- memory */

typedef enum filling { FILL_NOT, FILL_NORMAL, FILL_FACTORS, FILL_SLOPES } filling;

typedef struct plan {
    bench_tensor *tensor;
    filling fill;
    bool wanted;
    bool plain; /* contiguous by contract, whatever the layout */
} plan;

enum { TENSORS = 16 };

static bench_tensor shape(fattn_dtype type, int64_t batch, int64_t heads, int64_t rows, int64_t cols)
{
    return (bench_tensor){.type = type, .batch = batch, .heads = heads, .rows = rows, .cols = cols};
}

static bench_tensor query_shape(const bench_cell *cell, fattn_dtype type, int64_t cols)
{
    const bool packed = bench_packed(cell);
    return shape(type, packed ? 1 : cell->batch, cell->heads, packed ? cell->batch * cell->seq_q : cell->seq_q, cols);
}

static bench_tensor key_shape(const bench_cell *cell, const bench_sequences *s, fattn_dtype type, int64_t cols)
{
    if (cell->page > 0)
        return shape(type, s->pages, cell->heads_kv, cell->page, cols);
    const bool packed = bench_packed(cell);
    return shape(type, packed ? 1 : cell->batch, cell->heads_kv, packed ? cell->batch * cell->seq_k : cell->seq_k, cols);
}

static bench_tensor pair_shape(const bench_cell *cell, const bench_sequences *s, fattn_dtype type)
{
    return shape(type, cell->bias & BIAS_BATCH ? cell->batch : 1, cell->bias & BIAS_HEAD ? cell->heads : 1,
                 cell->bias & BIAS_ROW ? s->longest_q : 1, s->longest_k);
}

static void set_shapes(bench_data *data, const bench_cell *cell)
{
    const bench_sequences *s = &data->sequences;
    const fattn_dtype in = cell->dtype, kv = bench_kv_type(cell), out = bench_out_type(cell), grad = bench_grad_type(cell);
    data->q = query_shape(cell, in, cell->dim);
    data->k = key_shape(cell, s, kv, cell->dim);
    data->v = key_shape(cell, s, kv, cell->dim_v);
    data->out = data->dout = query_shape(cell, out, cell->dim_v);
    data->lse = query_shape(cell, bench_lse_type(cell), 1);
    data->k_scales = data->v_scales = key_shape(cell, s, FATTN_F32, 1);
    data->bias = pair_shape(cell, s, in);
    data->slopes = data->sinks = data->dsinks = shape(FATTN_F32, 1, 1, 1, cell->heads);
    data->dq = query_shape(cell, grad, cell->dim);
    data->dk = key_shape(cell, s, grad, cell->dim);
    data->dv = key_shape(cell, s, grad, cell->dim_v);
    data->dbias = pair_shape(cell, s, grad);
}

static void make_plan(bench_data *data, const bench_cell *cell, plan plans[TENSORS])
{
    const uint32_t flags = data->desc.flags;
    const bool backward = cell->pass == BENCH_BACKWARD;
    const plan all[TENSORS] = {{&data->q, FILL_NORMAL, true, false},
                               {&data->k, FILL_NORMAL, true, false},
                               {&data->v, FILL_NORMAL, true, false},
                               {&data->out, FILL_NOT, true, false},
                               {&data->lse, FILL_NOT, true, true},
                               {&data->k_scales, FILL_FACTORS, cell->kv_i8, true},
                               {&data->v_scales, FILL_FACTORS, cell->kv_i8, true},
                               {&data->bias, FILL_NORMAL, flags & FATTN_WITH_BIAS, true},
                               {&data->slopes, FILL_SLOPES, flags & FATTN_WITH_SLOPES, true},
                               {&data->sinks, FILL_NORMAL, flags & FATTN_WITH_SINKS, true},
                               {&data->dout, FILL_NORMAL, backward, false},
                               {&data->dq, FILL_NOT, backward, false},
                               {&data->dk, FILL_NOT, backward, false},
                               {&data->dv, FILL_NOT, backward, false},
                               {&data->dbias, FILL_NOT, flags & FATTN_WITH_DBIAS, true},
                               {&data->dsinks, FILL_NOT, flags & FATTN_WITH_DSINKS, true}};
    memcpy(plans, all, sizeof all);
}

static int64_t count_of(const bench_tensor *t)
{
    return t->batch * t->heads * t->rows * t->cols;
}

static size_t round_up(size_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

static void place(bench_tensor *t, void *memory, bool bshd)
{
    t->view = bshd ? fattn_view_bshd(memory, t->heads, t->rows, t->cols) : fattn_view_bhsd(memory, t->heads, t->rows, t->cols);
}

/* Dimensions that a bias lacks have a length of 1 and no stride. */
static void broadcast(bench_tensor *t)
{
    t->view.stride_batch = t->batch == 1 ? 0 : t->view.stride_batch;
    t->view.stride_head = t->heads == 1 ? 0 : t->view.stride_head;
    t->view.stride_row = t->rows == 1 ? 0 : t->view.stride_row;
}

/* The last cache of a place, or more. 128 MiB: GPUs have 40 (A100) to 126 (B200) of it. */
static size_t last_cache(const bench_place *place)
{
    const size_t least = (size_t)(place->gpu ? 128 : 32) << 20, cache = place->gpu ? 0 : machine_cache(3);
    return cache < least ? least : cache;
}

/* How many sets: for decode so many that together they are twice the last cache, so that each call reads memory. */
static int sets_for(const bench_cell *cell, size_t set_bytes)
{
    const size_t cache = last_cache(cell->place);
    if (cell->pass != BENCH_DECODE || set_bytes == 0)
        return 1;
    const size_t sets = 1 + 2 * cache / set_bytes;
    return sets > BENCH_SETS_MAX ? BENCH_SETS_MAX : (int)sets;
}

static bool map_memory(bench_data *data)
{
    data->memory_bytes = (size_t)(data->place->gpu ? 1 : data->sets) * data->set_bytes + 4096;
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

/* ------------------------------------------------------------------------------------------------------------- filling */

/* Normal numbers of the type; of bytes, whose row's factor is about 1/32, that many times as large. */
static void *make_table(fattn_dtype type, random_state *r)
{
    void *table = malloc(TABLE * type_size(type));
    for (int64_t i = 0; table && i < TABLE; i++) {
        const double x = random_normal(r);
        number_put(type, table, i, type == FATTN_I8 ? fmin(fmax(32 * x, -127), 127) : x);
    }
    return table;
}

/* Four numbers of the table for each word of random bits. */
static inline void draw(unsigned char *to, const unsigned char *table, size_t size, int64_t count, random_state *r)
{
    uint64_t bits = 0;
    for (int64_t i = 0; i < count; i++) {
        bits = i % 4 == 0 ? random_bits(r) : bits >> 14;
        memcpy(to + (size_t)i * size, table + (bits % TABLE) * size, size);
    }
}

/* A loop for each size: copies whose size the compiler does not know take several times as long. */
static bool fill_normal(const bench_tensor *t, random_state *r)
{
    const int64_t count = count_of(t);
    unsigned char *to = t->view.data, *table = make_table(t->type, r);
    if (!table)
        return false;
    switch (type_size(t->type)) {
    case 1:
        draw(to, table, 1, count, r);
        break;
    case 2:
        draw(to, table, 2, count, r);
        break;
    case 4:
        draw(to, table, 4, count, r);
        break;
    default:
        draw(to, table, 8, count, r);
    }
    free(table);
    return true;
}

static bool fill(const bench_tensor *t, filling kind, random_state *r)
{
    if (kind == FILL_NORMAL)
        return fill_normal(t, r);
    float *to = t->view.data;
    for (int64_t i = 0; i < count_of(t); i++)
        to[i] = kind == FILL_FACTORS ? (float)((0.5 + random_unit(r)) / 32)
                                     : (float)exp2(-8 * (double)(i + 1) / (double)t->cols); /* as the paper has slopes */
    return true;
}

/* ------------------------------------------------------------------------------------------------------------- calling */

static fattn_view of_set(const bench_data *data, const bench_tensor *t, int set)
{
    fattn_view view = t->view;
    if (view.data)
        view.data = data->base + ((unsigned char *)view.data - (unsigned char *)data->memory) + (size_t)set * data->set_bytes;
    return view;
}

/* A list where calls use it, or NULL where they do not. */
static const int32_t *of_list(const bench_data *data, const int32_t *list, bool wanted)
{
    return wanted ? (const int32_t *)(data->base_lists + ((const char *)list - (const char *)data->sequences.lists)) : NULL;
}

/* The arguments of a forward call, without workspace. `bias` is the set's, and must live as long as the call. */
static fattn_forward_args forward_args(const bench_cell *cell, const bench_data *data, int set, const fattn_view *bias)
{
    const bench_sequences *s = &data->sequences;
    const bool packed = bench_packed(cell), intervals = cell->mask.kind == FATTN_MASK_INTERVALS;
    const bool documents = cell->mask.kind == FATTN_MASK_DOCUMENT;
    return (fattn_forward_args){.struct_size = sizeof(fattn_forward_args),
                                .q = of_set(data, &data->q, set),
                                .k = of_set(data, &data->k, set),
                                .v = of_set(data, &data->v, set),
                                .out = of_set(data, &data->out, set),
                                .lse = of_set(data, &data->lse, set).data,
                                .cu_seqlens_q = of_list(data, s->cu_q, packed),
                                .cu_seqlens_k = of_list(data, s->cu_k, packed),
                                .used_k = of_list(data, s->len_k, cell->varlen && !packed),
                                .mask_lo = of_list(data, s->lo, intervals),
                                .mask_hi = of_list(data, s->hi, intervals),
                                .mask_stride = intervals && !packed ? cell->seq_q : 0,
                                .bias = bias->data ? bias : NULL,
                                .slopes = of_set(data, &data->slopes, set).data,
                                .sinks = of_set(data, &data->sinks, set).data,
                                .document_q = of_list(data, s->document_q, documents),
                                .document_k = of_list(data, s->document_k, documents),
                                .page_table = of_list(data, s->page_table, cell->page > 0),
                                .k_scales = of_set(data, &data->k_scales, set).data,
                                .v_scales = of_set(data, &data->v_scales, set).data,
                                .stream = data->place->gpu ? gpu_stream(data->place->gpu) : NULL};
}

static fattn_status call_forward(const bench_cell *cell, const fattn_context *context, const bench_data *data, int set,
                                 void *workspace, size_t bytes, const char **ran)
{
    const fattn_view bias = of_set(data, &data->bias, set);
    fattn_forward_args args = forward_args(cell, data, set, &bias);
    args.workspace = workspace;
    args.workspace_size = bytes;
    args.kernel = ran;
    return fattn_forward(context, &data->desc, &args);
}

static fattn_status call_backward(const bench_cell *cell, const fattn_context *context, const bench_data *data, int set,
                                  void *workspace, size_t bytes, const char **ran)
{
    const fattn_view bias = of_set(data, &data->bias, set), dbias = of_set(data, &data->dbias, set);
    const fattn_forward_args forward = forward_args(cell, data, set, &bias);
    fattn_backward_args args = call_backward_of(&forward);
    args.dout = of_set(data, &data->dout, set);
    args.dq = of_set(data, &data->dq, set);
    args.dk = of_set(data, &data->dk, set);
    args.dv = of_set(data, &data->dv, set);
    args.dbias = dbias.data ? &dbias : NULL;
    args.dsinks = of_set(data, &data->dsinks, set).data;
    args.workspace = workspace;
    args.workspace_size = bytes;
    args.kernel = ran;
    return fattn_backward(context, &data->desc, &args);
}

fattn_status bench_call(const bench_cell *cell, const fattn_context *context, const bench_data *data, int set, void *workspace,
                        size_t bytes, const char **ran)
{
    return cell->pass == BENCH_BACKWARD ? call_backward(cell, context, data, set, workspace, bytes, ran)
                                        : call_forward(cell, context, data, set, workspace, bytes, ran);
}

/* -------------------------------------------------------------------------------------------------------------- making */

/* A forward by the library's own choice, for backward to start from. */
static bool run_forward(const bench_cell *cell, const bench_data *data)
{
    fattn_context *context;
    size_t bytes = 0;
    const fattn_context_options options = bench_context_options(data->place, "", 0); /* whatever FATTN_KERNEL says */
    if (fattn_context_create(&options, &context) != FATTN_OK)
        return false;
    bool ok = fattn_workspace_size(context, &data->desc, FATTN_OP_FORWARD, &bytes) == FATTN_OK;
    void *workspace = bench_place_allocate(data->place, bytes);
    for (int set = 0; ok && set < data->sets; set++)
        ok = workspace && call_forward(cell, context, data, set, workspace, bytes, NULL) == FATTN_OK;
    ok = ok && bench_place_wait(data->place);
    bench_place_free(data->place, workspace);
    fattn_context_destroy(context);
    return ok;
}

static bool fill_all(const bench_cell *cell, const plan plans[TENSORS])
{
    for (int i = 0; i < TENSORS; i++) {
        random_state r = random_start(cell->seed, (uint64_t)i);
        if (plans[i].wanted && plans[i].fill != FILL_NOT && !fill(plans[i].tensor, plans[i].fill, &r))
            return false;
    }
    return true;
}

/* What calls use, made of the host's set 0 and lists. */
static bool spread_host(bench_data *data)
{
    data->base = data->memory;
    data->base_lists = (unsigned char *)data->sequences.lists;
    for (int set = 1; set < data->sets; set++)
        memcpy(data->base + (size_t)set * data->set_bytes, data->base, data->set_bytes);
    return true;
}

static bool spread_gpu(bench_data *data, gpu_device *g)
{
    data->base = gpu_allocate(g, (size_t)data->sets * data->set_bytes);
    data->base_lists = data->base ? gpu_allocate(g, data->sequences.lists_bytes) : NULL;
    bool ok = data->base_lists && gpu_put(g, data->base, data->memory, data->set_bytes) &&
              gpu_put(g, data->base_lists, data->sequences.lists, data->sequences.lists_bytes);
    for (int set = 1; ok && set < data->sets; set++)
        ok = gpu_copy(g, data->base + (size_t)set * data->set_bytes, data->base, data->set_bytes);
    return ok && gpu_wait(g);
}

bool bench_data_make(bench_data *data, const bench_cell *cell)
{
    plan plans[TENSORS];
    size_t offsets[TENSORS] = {0};
    *data = (bench_data){.place = cell->place};
    if (!bench_sequences_make(&data->sequences, cell))
        return false;
    data->desc = bench_desc(cell, &data->sequences);
    set_shapes(data, cell);
    make_plan(data, cell, plans);
    for (int i = 0; i < TENSORS; i++) {
        offsets[i] = data->set_bytes;
        data->set_bytes += plans[i].wanted ? round_up((size_t)count_of(plans[i].tensor) * type_size(plans[i].tensor->type)) : 0;
    }
    data->sets = sets_for(cell, data->set_bytes);
    if (!map_memory(data))
        return false;
    for (int i = 0; i < TENSORS; i++)
        if (plans[i].wanted)
            place(plans[i].tensor, (unsigned char *)data->memory + offsets[i], cell->bshd && !plans[i].plain);
    broadcast(&data->bias);
    broadcast(&data->dbias);
    return fill_all(cell, plans) && (cell->place->gpu ? spread_gpu(data, cell->place->gpu) : spread_host(data)) &&
           (cell->pass != BENCH_BACKWARD || run_forward(cell, data));
}

bool bench_data_poison(bench_data *data, const bench_cell *cell)
{
    const bench_tensor *const forward[] = {&data->out, &data->lse, NULL};
    const bench_tensor *const backward[] = {&data->dq, &data->dk, &data->dv, &data->dbias, &data->dsinks, NULL};
    bool ok = true;
    for (const bench_tensor *const *t = cell->pass == BENCH_BACKWARD ? backward : forward; *t; t++) {
        const size_t bytes = (*t)->view.data ? (size_t)count_of(*t) * type_size((*t)->type) : 0;
        if (data->place->gpu)
            ok = ok && gpu_fill(data->place->gpu, of_set(data, *t, 0).data, 0xff, bytes);
        else if (bytes > 0)
            memset((*t)->view.data, 0xff, bytes);
    }
    return ok;
}

bool bench_data_fetch(bench_data *data)
{
    return !data->place->gpu || gpu_get(data->place->gpu, data->memory, data->base, data->set_bytes);
}

void bench_data_free(bench_data *data)
{
    if (data->place && data->place->gpu) {
        gpu_release(data->place->gpu, data->base);
        gpu_release(data->place->gpu, data->base_lists);
    }
    if (data->memory)
        munmap(data->memory, data->memory_bytes);
    bench_sequences_free(&data->sequences);
    *data = (bench_data){0};
}
