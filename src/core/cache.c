/*
 * Appending to a cache of keys and values: positions are turned (RoPE), rows are narrowed or quantised, and go to where forward
 * reads them. Arithmetic is in double, whatever the types, and each result is rounded once.
 */
#include <inttypes.h>
#include <string.h>

#include "core/cache.h"
#include "core/context.h"
#include "core/error.h"
#include "core/pool.h"
#include "core/regions.h"
#include "core/sequence.h"
#include "core/validate.h"

enum { UNIT_ELEMENTS = 1 << 14 }; /* that a unit moves: some microseconds, so that handing it out costs little beside it */

/* -------------------------------------------------------------------------------------------------------------- checks */

static fattn_status check_given(const char *name, bool given, bool wanted, const char *asker)
{
    if (wanted && !given)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s is NULL, but %s asks for it", name, asker);
    if (!wanted && given)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.%s is given, but %s does not ask for it", name, asker);
    return FATTN_OK;
}

static fattn_status check_rotary(const fattn_appending *a)
{
    const fattn_cache_args *args = &a->args;
    const fattn_status status = check_given("rotary_sin", args->rotary_sin, args->rotary_cos, "args.rotary_cos");
    if (status != FATTN_OK)
        return status;
    if (args->interleaved > 1)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.interleaved is %" PRIu32 ", neither 0 nor 1", args->interleaved);
    if (!args->rotary_cos) {
        if (args->rotary_dim != 0 || args->rotary_rows != 0 || args->interleaved != 0)
            return fattn_fail(FATTN_ERROR_ARGUMENT,
                              "args.rotary_dim, rotary_rows and interleaved are %" PRId64 ", %" PRId64 " and %" PRIu32
                              ", but args.rotary_cos is NULL",
                              args->rotary_dim, args->rotary_rows, args->interleaved);
        return FATTN_OK;
    }
    if (args->rotary_dim < 2 || args->rotary_dim > a->problem.desc.dim || args->rotary_dim % 2 != 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.rotary_dim is %" PRId64 ", not an even number in 2 .. desc.dim, %" PRId64,
                          args->rotary_dim, a->problem.desc.dim);
    if (args->rotary_rows < 0 || args->rotary_rows > (int64_t)1 << 40)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.rotary_rows is %" PRId64 ", outside 0 .. 2^40", args->rotary_rows);
    return FATTN_OK;
}

static fattn_status check_presence(const fattn_appending *a)
{
    const fattn_desc *d = &a->problem.desc;
    const fattn_cache_args *args = &a->args;
    const bool bytes = d->kv_dtype == FATTN_I8, some = d->batch > 0;
    fattn_status status;
    if (d->total_q > 0 || d->total_k > 0)
        return fattn_fail(FATTN_ERROR_UNSUPPORTED,
                          "desc.total_q and total_k are %" PRId64 " and %" PRId64 ", but a cache takes no packed rows",
                          d->total_q, d->total_k);
    if ((status = check_given("used_k", args->used_k, some || args->used_k, "desc.batch")) ||
        (status = check_given("page_table", args->page_table, d->page_size > 0 && ((some && d->seq_k > 0) || args->page_table),
                              "desc.page_size")) ||
        (status = check_given("k_scales", args->k_scales, bytes, "desc.kv_dtype")) ||
        (status = check_given("v_scales", args->v_scales, bytes, "desc.kv_dtype")))
        return status;
    return check_rotary(a);
}

enum { INPUTS = 7, OUTPUTS = 5 };

static fattn_status read_arrays(const fattn_appending *a, fattn_region input[INPUTS], fattn_region output[OUTPUTS])
{
    const fattn_desc *d = &a->problem.desc;
    const fattn_cache_args *args = &a->args;
    const bool paged = d->page_size > 0;
    const int64_t pages = paged ? d->batch * ((d->seq_k + d->page_size - 1) / d->page_size) : 0;
    const int64_t scales = d->heads_kv * (paged ? d->pages * d->page_size : d->batch * d->seq_k);
    const int64_t turns = args->rotary_rows * (args->rotary_dim / 2);
    const struct {
        fattn_region *region;
        const char *name;
        const void *data;
        int64_t elements;
    } all[] = {{&input[2], "used_k", args->used_k, d->batch},      {&input[3], "used_q", args->used_q, d->batch},
               {&input[4], "page_table", args->page_table, pages}, {&input[5], "rotary_cos", args->rotary_cos, turns},
               {&input[6], "rotary_sin", args->rotary_sin, turns}, {&output[3], "k_scales", args->k_scales, scales},
               {&output[4], "v_scales", args->v_scales, scales}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const fattn_status status = fattn_region_array(all[i].region, all[i].name, all[i].data, 4, all[i].elements);
        if (status != FATTN_OK)
            return status;
    }
    return FATTN_OK;
}

/* Everything lies within the address space, and what is written apart from all else. */
static fattn_status check_regions(const fattn_appending *a)
{
    const fattn_desc *d = &a->problem.desc;
    const fattn_cache_args *args = &a->args;
    const size_t size = fattn_dtype_size(d->dtype), kv_size = fattn_dtype_size(d->kv_dtype);
    const int64_t outer = d->page_size > 0 ? d->pages : d->batch, rows = d->page_size > 0 ? d->page_size : d->seq_k;
    const int64_t queries = args->q.data ? d->seq_q : 0;
    fattn_region input[INPUTS], output[OUTPUTS];
    fattn_status status;
    if ((status = fattn_region_view(&input[0], "k_new", &args->k_new, size, d->batch, d->heads_kv, d->seq_q, d->dim)) ||
        (status = fattn_region_view(&input[1], "v_new", &args->v_new, size, d->batch, d->heads_kv, d->seq_q, d->dim_v)) ||
        (status = fattn_region_output(&output[0], "k", &args->k, kv_size, outer, d->heads_kv, rows, d->dim)) ||
        (status = fattn_region_output(&output[1], "v", &args->v, kv_size, outer, d->heads_kv, rows, d->dim_v)) ||
        (status = fattn_region_output(&output[2], "q", &args->q, size, d->batch, d->heads_q, queries, d->dim)) ||
        (status = read_arrays(a, input, output)))
        return status;
    for (int i = 0; i < OUTPUTS; i++)
        if ((status = fattn_region_apart(&output[i], input, INPUTS)) || (status = fattn_region_apart(&output[i], output, i)))
            return status;
    return FATTN_OK;
}

/* The new rows of sequence b fit: in the tensors, the cache, the tables and the pages. */
static fattn_status check_sequence(const fattn_appending *a, int64_t b)
{
    const fattn_desc *d = &a->problem.desc;
    const int64_t from = a->args.used_k[b], rows = fattn_appending_rows(a, b), to = from + rows;
    if (rows < 0 || rows > d->seq_q)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "args.used_q[%" PRId64 "] is %" PRId64 ", outside 0 .. desc.seq_q, %" PRId64, b,
                          rows, d->seq_q);
    if (from < 0 || to > d->seq_k)
        return fattn_fail(FATTN_ERROR_ARGUMENT,
                          "args.used_k[%" PRId64 "] is %" PRId64 ", from where %" PRId64 " new rows do not fit in desc.seq_k, "
                          "%" PRId64,
                          b, from, rows, d->seq_k);
    if (rows == 0)
        return FATTN_OK;
    if (a->args.rotary_cos && to > a->args.rotary_rows)
        return fattn_fail(FATTN_ERROR_ARGUMENT,
                          "args.used_k[%" PRId64 "] is %" PRId64 ", from where %" PRId64 " new rows leave the %" PRId64
                          " of args.rotary_rows",
                          b, from, rows, a->args.rotary_rows);
    return d->page_size > 0 ? fattn_pages_check(d, a->args.page_table, b, from, to) : FATTN_OK;
}

static fattn_status check(const fattn_appending *a)
{
    fattn_status status = fattn_stream_check(&a->problem, a->args.stream);
    if (status == FATTN_OK)
        status = check_presence(a);
    if (status == FATTN_OK)
        status = check_regions(a); /* before any array is read: it may be misaligned */
    if (a->problem.device != FATTN_DEVICE_CPU)
        return status; /* the lists lie in the device's memory */
    for (int64_t b = 0; b < a->problem.desc.batch && status == FATTN_OK; b++)
        status = check_sequence(a, b);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------------- rows */

/* A loop for each type, which compilers can make vectors of. */
static void load(const void *from, int32_t dtype, int64_t n, double *row)
{
    if (dtype == FATTN_F64)
        memcpy(row, from, (size_t)n * sizeof *row);
    else if (dtype == FATTN_F32)
        for (int64_t x = 0; x < n; x++)
            row[x] = (double)((const float *)from)[x];
    else if (dtype == FATTN_F16)
        for (int64_t x = 0; x < n; x++)
            row[x] = (double)fattn_from_f16(((const uint16_t *)from)[x]);
    else
        for (int64_t x = 0; x < n; x++)
            row[x] = (double)fattn_from_bf16(((const uint16_t *)from)[x]);
}

static void store(void *to, int32_t dtype, int64_t n, const double *row)
{
    if (dtype == FATTN_F64)
        memcpy(to, row, (size_t)n * sizeof *row);
    else if (dtype == FATTN_F32)
        for (int64_t x = 0; x < n; x++)
            ((float *)to)[x] = (float)row[x];
    else
        for (int64_t x = 0; x < n; x++)
            fattn_set_element(to, dtype, x, row[x]);
}

/* Turns the pairs (x, y) of a row by the angles of its position. */
static inline void turn_pairs(double *x, double *y, int64_t step, int64_t pairs, const float *cosine, const float *sine)
{
    for (int64_t n = 0; n < pairs; n++)
        fattn_turn(&x[n * step], &y[n * step], (double)cosine[n], (double)sine[n]);
}

/* Two calls, so that each becomes a loop with a constant step. */
static void turn(const fattn_cache_args *args, int64_t position, double *row)
{
    const int64_t pairs = args->rotary_dim / 2;
    const float *cosine = args->rotary_cos + position * pairs, *sine = args->rotary_sin + position * pairs;
    if (args->interleaved)
        turn_pairs(row, row + 1, 2, pairs, cosine, sine);
    else
        turn_pairs(row, row + pairs, 1, pairs, cosine, sine);
}

/* A row of n elements, of which `turned` turn, without a change of type. from may be to. */
static void copy_row(const fattn_appending *a, const void *from, void *to, int64_t n, int64_t turned, int64_t position)
{
    const int32_t dtype = a->problem.desc.dtype;
    const size_t size = fattn_dtype_size(dtype);
    double row[FATTN_DIM_MOST];
    if (turned > 0) {
        load(from, dtype, turned, row);
        turn(&a->args, position, row);
        store(to, dtype, turned, row);
    }
    if (from != to)
        memcpy((char *)to + (size_t)turned * size, (const char *)from + (size_t)turned * size, (size_t)(n - turned) * size);
}

static void quantise_row(const fattn_appending *a, const void *from, int8_t *to, float *scale, int64_t n, int64_t turned,
                         int64_t position)
{
    double row[FATTN_DIM_MOST], most = 0;
    load(from, a->problem.desc.dtype, n, row);
    if (turned > 0)
        turn(&a->args, position, row);
    for (int64_t x = 0; x < n; x++)
        most = fattn_larger_size(most, row[x]);
    *scale = fattn_byte_factor(most);
    if (!(*scale > 0)) {
        memset(to, 0, (size_t)n);
        return;
    }
    for (int64_t x = 0; x < n; x++)
        to[x] = fattn_byte(row[x], (double)*scale);
}

/* New row i of sequence b to its place in one half of the cache. */
static void append_row(const fattn_appending *a, const fattn_view *new, const fattn_view *cache, float *scales, int64_t n,
                       int64_t turned, int64_t b, int64_t i)
{
    const fattn_desc *d = &a->problem.desc;
    const fattn_sequence s = {.b = b};
    const int64_t j = a->args.used_k[b] + i;
    for (int64_t h = 0; h < d->heads_kv; h++) {
        const void *from = fattn_row(new, fattn_dtype_size(d->dtype), b, h, i);
        void *to = fattn_key_row(&a->problem, &a->at, cache, fattn_dtype_size(d->kv_dtype), &s, h, j);
        if (d->kv_dtype == FATTN_I8)
            quantise_row(a, from, to, &scales[fattn_scale_index(&a->problem, &a->at, &s, h, j)], n, turned, j);
        else
            copy_row(a, from, to, n, turned, j);
    }
}

static void append_unit(void *arg, int32_t lane, int64_t unit)
{
    const fattn_appending *a = arg;
    const fattn_desc *d = &a->problem.desc;
    const fattn_cache_args *args = &a->args;
    const int64_t blocks = (d->seq_q + a->block - 1) / a->block, b = unit / blocks, from = unit % blocks * a->block;
    const int64_t to = from + a->block < fattn_appending_rows(a, b) ? from + a->block : fattn_appending_rows(a, b);
    const int64_t turned = fattn_appending_turned(a);
    (void)lane;
    for (int64_t i = from; i < to; i++) {
        append_row(a, &args->k_new, &args->k, args->k_scales, d->dim, turned, b, i);
        append_row(a, &args->v_new, &args->v, args->v_scales, d->dim_v, 0, b, i);
        for (int64_t h = 0; args->q.data && turned > 0 && h < d->heads_q; h++) {
            void *q = fattn_row(&args->q, fattn_dtype_size(d->dtype), b, h, i);
            copy_row(a, q, q, d->dim, turned, args->used_k[b] + i);
        }
    }
}

fattn_status fattn_cache_append(const fattn_context *context, const fattn_desc *desc, const fattn_cache_args *args)
{
    fattn_appending a = {.block = 1};
    fattn_status status = fattn_context_problem(context, desc, &a.problem);
    if (status != FATTN_OK || (status = fattn_struct_read(&a.args, sizeof a.args, FATTN_CACHE_ARGS_FIRST_SIZE, args, "args")) ||
        (status = check(&a)))
        return status;
    const fattn_desc *d = &a.problem.desc;
    const int64_t elements = d->heads_kv * (d->dim + d->dim_v) + d->heads_q * d->dim;
    if (elements < UNIT_ELEMENTS)
        a.block = UNIT_ELEMENTS / elements;
    a.at = (fattn_launch){.context = context, .page_table = a.args.page_table, .stream = a.args.stream};
    if (context->backend)
        return context->backend->append(context, &a);
    fattn_run_units(context, INT32_MAX, d->batch * ((d->seq_q + a.block - 1) / a.block), append_unit, &a);
    return FATTN_OK;
}
