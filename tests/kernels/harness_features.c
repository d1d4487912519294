/*
 * The harness against kernels that do one feature wrong. Each wrong kernel is the library's, called with something changed, or
 * its results computed again from the scores that the library shows. A right kernel passes the same problems.
 */
#include <math.h>

#include "judged.h"
#include "numbers.h"

enum { ROW_MAX = 512 };

/* ------------------------------------------------------------------------------------------------- descriptors and lists */

/* Calls with a descriptor that is off. */
#define WRONG_DESC(name, ...)                                                                                                  \
    static fattn_status name##_forward(const fattn_context *context, const fattn_desc *desc, const fattn_forward_args *args)   \
    {                                                                                                                          \
        fattn_desc d = *desc;                                                                                                  \
        __VA_ARGS__;                                                                                                           \
        return fattn_forward(context, &d, args);                                                                               \
    }                                                                                                                          \
    static fattn_status name##_backward(const fattn_context *context, const fattn_desc *desc, const fattn_backward_args *args) \
    {                                                                                                                          \
        fattn_desc d = *desc;                                                                                                  \
        __VA_ARGS__;                                                                                                           \
        return fattn_backward(context, &d, args);                                                                              \
    }

WRONG_DESC(dropout_of_8_bits, d.dropout = round(d.dropout * 256) / 256; d.seed = d.dropout > 0 ? d.seed : 0)
WRONG_DESC(dropout_low_seed, d.seed = (uint32_t)d.seed)
WRONG_DESC(chunk_too_long, d.mask_size += 1)
WRONG_DESC(window_too_wide, d.window_left += 1)
WRONG_DESC(cap_off, d.softcap *= 1.00001)
WRONG_DESC(cap_forgotten, d.softcap = 0)
WRONG_DESC(window_forgotten, d.window_left = d.window_right = -1)

/* Bottom-right by the lengths of the batch instead of those of each sequence. */
WRONG_DESC(common_diagonal, d.mask = FATTN_MASK_WINDOW; d.align = FATTN_ALIGN_TOP_LEFT; d.window_left = -1;
           d.window_right = d.seq_k - d.seq_q)

/* Calls with a list that is changed in a copy: `list` of `count` elements of `type` gets `change` for each index i. */
#define WRONG_LIST(name, type, list, count, ...)                                                                               \
    static fattn_status name##_forward(const fattn_context *context, const fattn_desc *desc, const fattn_forward_args *args)   \
    {                                                                                                                          \
        static type x[100000];                                                                                                 \
        fattn_forward_args a = *args;                                                                                          \
        for (int64_t i = 0; i < (count); i++)                                                                                  \
            x[i] = a.list[i];                                                                                                  \
        for (int64_t i = 0; i < (count); i++)                                                                                  \
            __VA_ARGS__;                                                                                                       \
        a.list = x;                                                                                                            \
        return fattn_forward(context, desc, &a);                                                                               \
    }

WRONG_LIST(alibi_sign, float, slopes, desc->heads_q, x[i] = -x[i])
WRONG_LIST(heads_of_slopes, float, slopes, desc->heads_q, x[i] = a.slopes[desc->heads_q - 1 - i])
WRONG_LIST(interval_with_end, int32_t, mask_hi, desc->seq_q, x[i] += x[i] < desc->seq_k)
WRONG_LIST(first_page_always, int32_t, page_table, desc->batch *((desc->seq_k + desc->page_size - 1) / desc->page_size),
           x[i] = x[i] < 0 ? -1 : x[0])
WRONG_LIST(used_off_by_one, int32_t, used_k, desc->batch, x[i] -= x[i] > 1)
WRONG_LIST(factor_of_neighbour, float, k_scales, desc->batch * desc->heads_kv * desc->seq_k, x[i] = a.k_scales[i / 2 * 2])

/* -------------------------------------------------------------------------------------------------------------- forward */

static double *row_at(const fattn_view *view, int32_t type, int64_t b, int64_t h, int64_t i)
{
    const int64_t offset = b * view->stride_batch + h * view->stride_head + i * view->stride_row;
    return (double *)(void *)((char *)view->data + offset * (int64_t)type_size((fattn_dtype)type));
}

static double get(const void *row, int32_t type, int64_t d)
{
    return number_get((fattn_dtype)type, row, d);
}

static void put(void *row, int32_t type, int64_t d, double x)
{
    number_put((fattn_dtype)type, row, d, x);
}

static int32_t out_type(const fattn_desc *d)
{
    return d->out_dtype ? d->out_dtype : d->dtype;
}

/* Softcap behind the mask: what is dropped has the score -cap, not -inf. */
static double cap_last(double score, bool kept, const fattn_desc *d)
{
    return kept ? score : -d->softcap;
}

/* What is dropped has a finite number. */
static double finite_minus_infinity(double score, bool kept, const fattn_desc *d)
{
    (void)d;
    return kept && score > -1e4 ? score : -1e4;
}

/* Row by row from the library's scores without the mask, through `change`, with probabilities rounded to `type`. */
static fattn_status by_rows(const fattn_context *context, const fattn_desc *desc, const fattn_forward_args *args,
                            double (*change)(double, bool, const fattn_desc *), fattn_dtype rounded)
{
    double all[ROW_MAX], kept[ROW_MAX];
    const char *name;
    fattn_desc full = *desc;
    const fattn_status status = fattn_forward(context, desc, args);
    full.mask = FATTN_MASK_FULL;
    full.window_left = full.window_right = 0;
    name = args->kernel ? *args->kernel : NULL;
    for (int64_t x = 0; status == FATTN_OK && x < desc->batch * desc->heads_q * desc->seq_q; x++) {
        const int64_t b = x / desc->seq_q / desc->heads_q, h = x / desc->seq_q % desc->heads_q, i = x % desc->seq_q;
        const int64_t g = h / (desc->heads_q / desc->heads_kv);
        double max = -INFINITY, sum = 0, out[ROW_MAX] = {0};
        if (fattn_scores(context, &full, args, b, h, i, all, NULL) || fattn_scores(context, desc, args, b, h, i, kept, NULL))
            return FATTN_ERROR_ARGUMENT;
        for (int64_t j = 0; j < desc->seq_k; j++) {
            all[j] = change ? change(all[j], kept[j] == all[j], desc) : kept[j];
            max = fmax(max, all[j]);
        }
        for (int64_t j = 0; j < desc->seq_k; j++)
            sum += exp(all[j] - max);
        for (int64_t j = 0; j < desc->seq_k; j++)
            for (int64_t d = 0; d < desc->dim_v; d++)
                out[d] += type_round(rounded, exp(all[j] - max)) * get(row_at(&args->v, desc->dtype, b, g, j), desc->dtype, d);
        for (int64_t d = 0; d < desc->dim_v; d++)
            put(row_at(&args->out, out_type(desc), b, h, i), out_type(desc), d, out[d] / sum);
        if (args->lse)
            ((float *)args->lse)[x] = (float)(max + log(sum));
    }
    if (args->kernel)
        *args->kernel = name;
    return status;
}

static fattn_status by_rows_forward(const fattn_context *c, const fattn_desc *d, const fattn_forward_args *a)
{
    return by_rows(c, d, a, NULL, FATTN_F64);
}

static fattn_status cap_last_forward(const fattn_context *c, const fattn_desc *d, const fattn_forward_args *a)
{
    return by_rows(c, d, a, cap_last, FATTN_F64);
}

static fattn_status finite_forward(const fattn_context *c, const fattn_desc *d, const fattn_forward_args *a)
{
    return by_rows(c, d, a, finite_minus_infinity, FATTN_F64);
}

static fattn_status bf16_weights_forward(const fattn_context *c, const fattn_desc *d, const fattn_forward_args *a)
{
    return by_rows(c, d, a, NULL, FATTN_BF16);
}

/* lse without the sink, which out has. */
static fattn_status sink_not_in_lse_forward(const fattn_context *context, const fattn_desc *desc,
                                            const fattn_forward_args *args)
{
    const fattn_status status = fattn_forward(context, desc, args);
    for (int64_t x = 0; status == FATTN_OK && args->lse && x < desc->batch * desc->heads_q * desc->seq_q; x++) {
        float *lse = (float *)args->lse + x;
        *lse = (float)log(exp((double)*lse) - exp((double)args->sinks[x / desc->seq_q % desc->heads_q]));
    }
    return status;
}

/* Query head h reads key/value head h % heads_kv; a batch of 1. */
static fattn_status heads_in_turns_forward(const fattn_context *context, const fattn_desc *desc, const fattn_forward_args *args)
{
    fattn_desc one = *desc;
    fattn_status status = FATTN_OK;
    one.heads_q = one.heads_kv = 1;
    for (int64_t h = 0; h < desc->heads_q && status == FATTN_OK; h++) {
        fattn_forward_args a = *args;
        const int64_t g = h % desc->heads_kv;
        a.q.data = row_at(&args->q, desc->dtype, 0, h, 0);
        a.k.data = row_at(&args->k, desc->dtype, 0, g, 0);
        a.v.data = row_at(&args->v, desc->dtype, 0, g, 0);
        a.out.data = row_at(&args->out, desc->dtype, 0, h, 0);
        a.lse = args->lse ? (float *)args->lse + h * desc->seq_q : NULL;
        status = fattn_forward(context, &one, &a);
    }
    return status;
}

/* What happens to each element of out after a right call: its value in float, and where it stands. */
static fattn_status after_forward(const fattn_context *context, const fattn_desc *desc, const fattn_forward_args *args,
                                  double (*change)(double))
{
    static float wide[100000];
    fattn_desc d = *desc;
    fattn_forward_args a = *args;
    d.out_dtype = FATTN_F32;
    a.out = fattn_view_bhsd(wide, desc->heads_q, desc->seq_q, desc->dim_v);
    const fattn_status status = fattn_forward(context, &d, &a);
    for (int64_t x = 0; status == FATTN_OK && x < desc->batch * desc->heads_q * desc->seq_q; x++)
        for (int64_t e = 0; e < desc->dim_v; e++)
            put(row_at(&args->out, out_type(desc), x / desc->seq_q / desc->heads_q, x / desc->seq_q % desc->heads_q,
                       x % desc->seq_q),
                out_type(desc), e, change((double)wide[x * desc->dim_v + e]));
    return status;
}

static double unchanged(double x)
{
    return x;
}

static double through_f16(double x)
{
    return type_round(FATTN_F16, x);
}

static double through_bf16(double x)
{
    return type_round(FATTN_BF16, x);
}

/* To bf16 by cutting off. */
static double cut(double x)
{
    float y = (float)x;
    uint32_t bits;
    memcpy(&bits, &y, 4);
    bits &= 0xffff0000u;
    memcpy(&y, &bits, 4);
    return (double)y;
}

static fattn_status rounded_once_forward(const fattn_context *c, const fattn_desc *d, const fattn_forward_args *a)
{
    return after_forward(c, d, a, unchanged);
}

static fattn_status rounded_twice_forward(const fattn_context *c, const fattn_desc *d, const fattn_forward_args *a)
{
    return after_forward(c, d, a, through_f16);
}

static fattn_status partly_rounded_forward(const fattn_context *c, const fattn_desc *d, const fattn_forward_args *a)
{
    return after_forward(c, d, a, through_bf16);
}

static fattn_status cut_forward(const fattn_context *c, const fattn_desc *d, const fattn_forward_args *a)
{
    return after_forward(c, d, a, cut);
}

/* Zeros behind the used rows, of out. */
static fattn_status tail_forward(const fattn_context *context, const fattn_desc *desc, const fattn_forward_args *args)
{
    const fattn_status status = fattn_forward(context, desc, args);
    for (int64_t b = 0; b < desc->batch; b++)
        for (int64_t i = args->used_q[b]; i < desc->seq_q; i++)
            put(row_at(&args->out, desc->dtype, b, 0, i), desc->dtype, 0, 0);
    return status;
}

/* -inf behind the used rows, of lse. */
static fattn_status lse_tail_forward(const fattn_context *context, const fattn_desc *desc, const fattn_forward_args *args)
{
    const fattn_status status = fattn_forward(context, desc, args);
    for (int64_t b = 0; b < desc->batch && args->lse; b++)
        for (int64_t i = args->used_q[b]; i < desc->seq_q; i++)
            ((float *)args->lse)[b * desc->heads_q * desc->seq_q + i] = -INFINITY;
    return status;
}

/* A weight of 0 for dropped values instead of none: a NaN behind the mask comes through. */
static fattn_status zero_weights_forward(const fattn_context *context, const fattn_desc *desc, const fattn_forward_args *args)
{
    const fattn_status status = fattn_forward(context, desc, args);
    for (int64_t x = 0; x < desc->batch * desc->seq_q * desc->seq_k; x++) {
        const int64_t b = x / desc->seq_k / desc->seq_q, i = x / desc->seq_k % desc->seq_q, j = x % desc->seq_k;
        void *out = row_at(&args->out, desc->dtype, b, 0, i);
        put(out, desc->dtype, 0, get(out, desc->dtype, 0) + 0 * get(row_at(&args->v, desc->dtype, b, 0, j), desc->dtype, 0));
    }
    return status;
}

/* The last bit of sequence 0 depends on whether it is alone. */
static fattn_status batch_forward(const fattn_context *context, const fattn_desc *desc, const fattn_forward_args *args)
{
    const fattn_status status = fattn_forward(context, desc, args);
    for (int64_t b = 0; b < desc->batch && desc->batch > 1; b++)
        *(uint32_t *)(void *)row_at(&args->out, desc->dtype, b, 0, 0) ^= 1;
    return status;
}

/* ------------------------------------------------------------------------------------------------------------- backward */

static fattn_status batch_backward(const fattn_context *context, const fattn_desc *desc, const fattn_backward_args *args)
{
    const fattn_status status = fattn_backward(context, desc, args);
    for (int64_t b = 0; b < desc->batch && desc->batch > 1; b++)
        *(uint32_t *)(void *)row_at(&args->dv, desc->dtype, b, 0, 0) ^= 1;
    return status;
}

static fattn_status dlse_ignored_backward(const fattn_context *context, const fattn_desc *desc, const fattn_backward_args *args)
{
    fattn_desc d = *desc;
    fattn_backward_args a = *args;
    d.flags &= ~FATTN_WITH_DLSE;
    a.dlse = NULL;
    return fattn_backward(context, &d, &a);
}

static fattn_status dsinks_sign_backward(const fattn_context *context, const fattn_desc *desc, const fattn_backward_args *args)
{
    const fattn_status status = fattn_backward(context, desc, args);
    for (int64_t h = 0; h < desc->heads_q; h++)
        args->dsinks[h] = -args->dsinks[h];
    return status;
}

/* dbias of the last of what is broadcast, instead of the sum; a bias [1, 1, seq_q, seq_k]. */
static fattn_status dbias_of_last_backward(const fattn_context *context, const fattn_desc *desc,
                                           const fattn_backward_args *args)
{
    static float all[100000];
    fattn_backward_args a = *args;
    const fattn_view whole = fattn_view_bhsd(all, desc->heads_q, desc->seq_q, desc->seq_k);
    a.dbias = &whole;
    const fattn_status status = fattn_backward(context, desc, &a);
    for (int64_t x = 0; x < desc->seq_q * desc->seq_k; x++)
        put(row_at(args->dbias, desc->dtype, 0, 0, x / desc->seq_k), desc->dtype, x % desc->seq_k,
            get(row_at(&whole, FATTN_F32, desc->batch - 1, desc->heads_q - 1, x / desc->seq_k), FATTN_F32, x % desc->seq_k));
    return status;
}

/* A tiny number in dbias where causal keeps nothing. */
static fattn_status dbias_not_zero_backward(const fattn_context *context, const fattn_desc *desc,
                                            const fattn_backward_args *args)
{
    const fattn_status status = fattn_backward(context, desc, args);
    put(row_at(args->dbias, desc->dtype, 0, 0, 0), desc->dtype, desc->seq_k - 1, 1e-30);
    return status;
}

/* dk and dv as sums that are rounded to bf16 after each row; a batch and heads of 1, a full mask. */
static fattn_status bf16_sums_backward(const fattn_context *context, const fattn_desc *desc, const fattn_backward_args *args)
{
    static double sum[2][100000];
    static float part[2][100000];
    fattn_desc d = *desc;
    fattn_status status = fattn_backward(context, desc, args);
    d.seq_q = 1;
    d.grad_dtype = FATTN_F32;
    memset(sum, 0, sizeof sum);
    for (int64_t i = 0; i < desc->seq_q && status == FATTN_OK; i++) {
        fattn_backward_args a = *args;
        float dq[ROW_MAX];
        a.q.data = row_at(&args->q, desc->dtype, 0, 0, i);
        a.out.data = row_at(&args->out, desc->dtype, 0, 0, i);
        a.dout.data = row_at(&args->dout, desc->dtype, 0, 0, i);
        a.dq = fattn_view_bhsd(dq, 1, 1, desc->dim);
        a.dk = fattn_view_bhsd(part[0], 1, desc->seq_k, desc->dim);
        a.dv = fattn_view_bhsd(part[1], 1, desc->seq_k, desc->dim_v);
        a.lse = (const float *)args->lse + i;
        status = fattn_backward(context, &d, &a);
        for (int64_t x = 0; x < desc->seq_k * desc->dim; x++)
            for (int t = 0; t < 2; t++)
                sum[t][x] = type_round(FATTN_BF16, sum[t][x] + (double)part[t][x]);
    }
    for (int64_t x = 0; x < desc->seq_k * desc->dim; x++) {
        put(row_at(&args->dk, desc->dtype, 0, 0, x / desc->dim), desc->dtype, x % desc->dim, sum[0][x]);
        put(row_at(&args->dv, desc->dtype, 0, 0, x / desc->dim), desc->dtype, x % desc->dim, sum[1][x]);
    }
    return status;
}

/* Softcap in the scores, but its slope taken for 1: as if cap tanh(x / cap) - x were a bias. One head, seq_q and seq_k below
 * ROW_MAX. */
static fattn_status cap_without_slope_backward(const fattn_context *context, const fattn_desc *desc,
                                               const fattn_backward_args *args)
{
    static float bias[100000];
    double capped[ROW_MAX], plain[ROW_MAX];
    fattn_desc d = *desc;
    fattn_backward_args a = *args;
    const fattn_view view = fattn_view_bhsd(bias, 1, desc->seq_q, desc->seq_k);
    const fattn_forward_args look = {
        .struct_size = sizeof look, .q = args->q, .k = args->k, .v = args->v, .out = args->out, .bias = NULL};
    d.softcap = 0;
    for (int64_t i = 0; i < desc->seq_q; i++) {
        if (fattn_scores(context, desc, &look, 0, 0, i, capped, NULL) || fattn_scores(context, &d, &look, 0, 0, i, plain, NULL))
            return FATTN_ERROR_ARGUMENT;
        for (int64_t j = 0; j < desc->seq_k; j++)
            bias[i * desc->seq_k + j] = (float)(capped[j] - plain[j]);
    }
    d.flags |= FATTN_WITH_BIAS;
    a.bias = &view;
    return fattn_backward(context, &d, &a);
}

/* Zeros behind the used keys, of dk. */
static fattn_status tail_backward(const fattn_context *context, const fattn_desc *desc, const fattn_backward_args *args)
{
    const fattn_status status = fattn_backward(context, desc, args);
    for (int64_t b = 0; b < desc->batch; b++)
        for (int64_t j = args->used_k[b]; j < desc->seq_k; j++)
            put(row_at(&args->dk, desc->dtype, b, 0, j), desc->dtype, 0, 0);
    return status;
}

/* --------------------------------------------------------------------------------------------------------------- tests */

typedef struct wrong {
    const char *problem;
    forward_call forward;
    backward_call backward;
    const char *word; /* in what the harness says; NULL: it passes */
} wrong;

static const wrong list[] = {
    {"q20k30/d8/causal/softcap:5", by_rows_forward, NULL, NULL},
    {"bf16/h2/q20k30/d8", rounded_once_forward, NULL, NULL},
    {"q60k100/d4/dropout:0.001", dropout_of_8_bits_forward, NULL, "out"},
    {"backward/q60k100/d4/dropout:0.001", NULL, dropout_of_8_bits_backward, "instead"},
    {"h2/q20k30/d8/dropout:0.3", dropout_low_seed_forward, NULL, "out"},
    {"backward/h2/q20k30/d8/dropout:0.3", NULL, dropout_low_seed_backward, "instead"},
    {"q40k40/d8/chunked:7", chunk_too_long_forward, NULL, "out"},
    {"backward/q40k40/d8/chunked-br:7", NULL, chunk_too_long_backward, "instead"},
    {"q40k40/d8/prefix:7", chunk_too_long_forward, NULL, "out"},
    {"backward/q40k40/d8/prefix:7", NULL, chunk_too_long_backward, "instead"},
    {"q40k40/d8/window-br:7,3", window_too_wide_forward, NULL, "out"},
    {"backward/q40k40/d8/document:3,3", NULL, window_too_wide_backward, "instead"},
    {"b3/q20k30/d8/document:4,0", window_forgotten_forward, NULL, "out"},
    {"backward/b3/q20k30/d8/document:4,0", NULL, window_forgotten_backward, "instead"},
    {"b2/q10k30/d8/causal-br/used-k:30,20", common_diagonal_forward, NULL, "out[b1"},
    {"backward/b2/q10k30/d8/causal-br/used-k:30,20", NULL, common_diagonal_backward, "b1"},
    {"q20k30/d8/softcap:2", cap_off_forward, NULL, "units"},
    {"backward/q20k30/d8/softcap:2", NULL, cap_off_backward, "units"},
    {"q20k30/d8/softcap:2", cap_forgotten_forward, NULL, "units"},
    {"backward/q20k30/d8/softcap:2", NULL, cap_forgotten_backward, "units"},
    {"backward/q20k30/d8/softcap:2", NULL, cap_without_slope_backward, "dq"},
    {"backward/q20k30/d8/softcap:1000", NULL, cap_without_slope_backward, "units"},
    {"q20k30/d8/softcap:15/causal", cap_last_forward, NULL, "out"},
    {"q20k30/d8/softcap:15/causal/fill-nan-unused", cap_last_forward, NULL, "nan"},
    {"q20k30/d8/fill-low", finite_forward, NULL, "out"},
    {"q20k30/d8/causal-br/bias:qk/fill-bias-inf", finite_forward, NULL, "instead of"},
    {"h2/q20k30/d8/alibi", alibi_sign_forward, NULL, "out"},
    {"h4/q20k30/d8/alibi", heads_of_slopes_forward, NULL, "out"},
    {"q40k30/d8/intervals", interval_with_end_forward, NULL, "out"},
    {"b2/q3k50/d8/paged:16", first_page_always_forward, NULL, "out"},
    {"b2/h2/q3k50/d8/used-k:50,31", used_off_by_one_forward, NULL, "out"},
    {"b2/h2/q3k50/d8/kv-i8", factor_of_neighbour_forward, NULL, "out"},
    {"b2/h2/q9k20/d8/sinks", sink_not_in_lse_forward, NULL, "lse"},
    {"h4/gqa2/q9k20/d8", heads_in_turns_forward, NULL, "out[b0 h1"},
    {"bf16/out-f32/h2/q9k200/d8", bf16_weights_forward, NULL, "out"},
    {"bf16/h2/q9k200/d16", bf16_weights_forward, NULL, "out"},
    {"f16/out-f32/q9k300/d8/fill-ones", bf16_weights_forward, NULL, "out"},
    {"bf16/h2/q40k30/d16", rounded_twice_forward, NULL, "out"},
    {"bf16/h2/q20k30/d16", cut_forward, NULL, "out"},
    {"bf16/out-f32/h2/q20k30/d8", partly_rounded_forward, NULL, "out"},
    {"b3/q9k20/d8/used-q:9,0,5", tail_forward, NULL, "outside the tensor"},
    {"b3/q9k20/d8/used-q:9,0,5", lse_tail_forward, NULL, "outside the tensor"},
    {"b2/q9k20/d8/used-k:20,7", zero_weights_forward, NULL, "instead"},
    {"b2/q9k20/d8/causal/fill-nan-unused", zero_weights_forward, NULL, "instead"},
    {"b2/q9k20/d8", batch_forward, NULL, "alone"},
    {"b3/q9k20/d8/packed-k:20,3,9", batch_forward, NULL, "alone"},
    {"backward/b2/q9k20/d8", NULL, batch_backward, "alone"},
    {"backward/b2/h2/q9k20/d8/dlse", NULL, dlse_ignored_backward, "units"},
    {"backward/b2/h2/q9k20/d8/sinks/dsinks", NULL, dsinks_sign_backward, "dsinks"},
    {"backward/b2/h2/q9k20/d8/bias:qk/dbias", NULL, dbias_of_last_backward, "dbias"},
    {"backward/b2/h2/q9k20/d8/bias:qk/dbias/causal", NULL, dbias_not_zero_backward, "instead of 0"},
    {"backward/bf16/q60k9/d8", NULL, bf16_sums_backward, "units"},
    {"backward/b2/q9k20/d8/used-k:20,7", NULL, tail_backward, "outside the tensor"},
};

static void each_is_judged(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        char text[VERDICT_TEXT], before[VERDICT_TEXT];
        if (!judged(list[i].problem, NULL, NULL, before))
            fail_msg("%s fails with the right kernel: %s", list[i].problem, before);
        const bool passed = judged(list[i].problem, list[i].forward, list[i].backward, text);
        if (passed != !list[i].word)
            fail_msg("%zu: %s %s: %s", i, list[i].problem, passed ? "passed" : "was caught", text);
        if (list[i].word && !strstr(text, list[i].word))
            fail_msg("%zu: %s was caught for another reason than '%s': %s", i, list[i].problem, list[i].word, text);
    }
}

/* 16-bit numbers: every one of them there and back, and rounding in the middle of two. */
static void narrow_numbers(void **state)
{
    (void)state;
    for (int type = FATTN_F16; type <= FATTN_BF16; type++)
        for (uint32_t bits = 0; bits < 0x10000; bits++) {
            const double x = narrow_decode((fattn_dtype)type, (uint16_t)bits);
            if (!isnan(x))
                assert_int_equal(narrow_encode((fattn_dtype)type, x), bits);
        }
    assert_true(narrow_decode(FATTN_F16, 0x3c01) == 1 + 0x1p-10 && narrow_decode(FATTN_BF16, 0x3f81) == 1 + 0x1p-7);
    assert_true(narrow_decode(FATTN_F16, 0x0001) == 0x1p-24 && narrow_decode(FATTN_F16, 0x7bff) == 65504);
    assert_int_equal(narrow_encode(FATTN_F16, 1 + 0x1p-11), 0x3c00);           /* the even one of two */
    assert_int_equal(narrow_encode(FATTN_F16, 1 + 0x1p-11 + 0x1p-40), 0x3c01); /* no second rounding */
    assert_int_equal(narrow_encode(FATTN_F16, 65520), 0x7c00);
    assert_int_equal(narrow_encode(FATTN_F16, 65519.99), 0x7bff);
    assert_int_equal(narrow_encode(FATTN_F16, -0x1p-25), 0x8000);
    assert_int_equal(narrow_encode(FATTN_BF16, 0x1.fffp127), 0x7f80);
    assert_true(type_half_ulp(FATTN_F16, 1) == 0x1p-11 && type_half_ulp(FATTN_F16, 0) == 0x1p-25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_is_judged), cmocka_unit_test(narrow_numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
