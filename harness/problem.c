/*
 * Problems; see problem.h. Their names are in problem_name.c.
 */
#include "problem.h"

#include <math.h>

#include "geometry.h"

const char *const layout_names[LAYOUT_COUNT + 1] = {
    [LAYOUT_BHSD] = "bhsd",
    [LAYOUT_BSHD] = "bshd",
    [LAYOUT_HSBD] = "hsbd",
    [LAYOUT_PACKED] = "packed",
    [LAYOUT_PADDED] = "padded",
    [LAYOUT_OFFSET] = "offset",
    [LAYOUT_NEGATIVE] = "negative",
    [LAYOUT_BROADCAST] = "broadcast",
    [LAYOUT_BROADCAST_ROW] = "broadcast-row",
    [LAYOUT_FENCE_HIGH] = "fence-high",
    [LAYOUT_FENCE_LOW] = "fence-low",
    [LAYOUT_FAR] = "far",
};

const char *const fill_names[FILL_COUNT + 1] = {
    [FILL_NORMAL] = "fill-normal",
    [FILL_SPIKY] = "fill-spiky",
    [FILL_EQUAL] = "fill-equal",
    [FILL_LARGE] = "fill-large",
    [FILL_RISING] = "fill-rising",
    [FILL_FALLING] = "fill-falling",
    [FILL_LOW] = "fill-low",
    [FILL_HIGH] = "fill-high",
    [FILL_ZERO] = "fill-zero",
    [FILL_SUBNORMAL] = "fill-subnormal",
    [FILL_ONES] = "fill-ones",
    [FILL_APART] = "fill-apart",
    [FILL_SPARSE] = "fill-sparse",
    [FILL_COUNTER] = "fill-counter",
    [FILL_OUTLIER] = "fill-outlier",
    [FILL_TINY] = "fill-tiny",
    [FILL_NAN_Q] = "fill-nan-q",
    [FILL_NAN_V] = "fill-nan-v",
    [FILL_NAN_UNUSED] = "fill-nan-unused",
    [FILL_INF_Q] = "fill-inf-q",
    [FILL_INF_K] = "fill-inf-k",
    [FILL_MINUS_INF] = "fill-minus-inf",
    [FILL_MINUS_INF_KEY] = "fill-minus-inf-key",
    [FILL_BIAS_INF] = "fill-bias-inf",
};

problem problem_of(int64_t seq_q, int64_t seq_k, int64_t dim)
{
    return (problem){.op = FATTN_OP_FORWARD,
                     .dtype = FATTN_F32,
                     .batch = 1,
                     .heads_q = 1,
                     .group = 1,
                     .seq_q = seq_q,
                     .seq_k = seq_k,
                     .dim = dim,
                     .dim_v = dim,
                     .seed = 1};
}

static uint32_t flags_of(const problem *p)
{
    return (p->bias ? FATTN_WITH_BIAS : 0) | (p->alibi ? FATTN_WITH_SLOPES : 0) | (p->sinks ? FATTN_WITH_SINKS : 0) |
           (p->dlse ? FATTN_WITH_DLSE : 0) | (p->dbias ? FATTN_WITH_DBIAS : 0) | (p->dsinks ? FATTN_WITH_DSINKS : 0) |
           (p->unordered ? FATTN_UNORDERED : 0);
}

uint64_t problem_dropout_seed(const problem *p)
{
    return p->dropout > 0 ? (p->seed + 1) * 0x9e3779b97f4a7c15u | 1 : 0;
}

fattn_desc problem_desc(const problem *p)
{
    fattn_desc desc = {.struct_size = sizeof(fattn_desc),
                       .dtype = p->dtype,
                       .out_dtype = p->out_f32 ? FATTN_F32 : FATTN_DTYPE_NONE,
                       .kv_dtype = p->kv_i8 ? FATTN_I8 : FATTN_DTYPE_NONE,
                       .grad_dtype = p->grad_f32 ? FATTN_F32 : FATTN_DTYPE_NONE,
                       .mask = p->mask,
                       .align = p->align,
                       .flags = flags_of(p),
                       .batch = p->batch,
                       .heads_q = p->heads_q,
                       .heads_kv = p->heads_q / p->group,
                       .seq_q = p->seq_q,
                       .seq_k = p->seq_k,
                       .dim = p->dim,
                       .dim_v = p->dim_v,
                       .window_left = p->left,
                       .window_right = p->right,
                       .mask_size = p->mask_size,
                       .scale = p->scale,
                       .softcap = p->softcap,
                       .dropout = p->dropout,
                       .seed = problem_dropout_seed(p),
                       .page_size = p->page_size};
    geometry_totals(p, &desc.total_q, &desc.total_k, &desc.pages);
    return desc;
}

bool problem_keeps(const problem *p, int64_t i, int64_t j)
{
    return mask_keeps(p, p->seq_q, p->seq_k, i, j);
}

fattn_dtype problem_out_type(const problem *p)
{
    return p->out_f32 ? FATTN_F32 : p->dtype;
}

fattn_dtype problem_grad_type(const problem *p)
{
    return p->grad_f32 ? FATTN_F32 : p->dtype;
}

fattn_dtype problem_lse_type(const problem *p)
{
    return p->dtype == FATTN_F64 ? FATTN_F64 : FATTN_F32;
}

double problem_scale(const problem *p)
{
    return p->scale != 0 ? p->scale : 1 / sqrt((double)p->dim);
}

bool problem_fits(const problem *p)
{
    const int64_t most = (int64_t)1 << 40;
    const int64_t heads_kv = p->heads_q / p->group;
    const int64_t tensors[4][4] = {{p->batch, p->heads_q, p->seq_q, p->dim},
                                   {p->batch, p->heads_q, p->seq_q, p->dim_v},
                                   {p->batch, heads_kv, p->seq_k, p->dim},
                                   {p->batch, heads_kv, p->seq_k, p->dim_v}};
    for (int t = 0; t < 4; t++) {
        int64_t count = 1;
        for (int i = 0; i < 4; i++)
            if (__builtin_mul_overflow(count, tensors[t][i] > 0 ? tensors[t][i] : 1, &count) || count > most)
                return false;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------------ what makes sense */

static const char *wrong_sizes(const problem *p)
{
    if (p->heads_q < 1)
        return "h must be 1 or more";
    if (p->group < 1 || p->heads_q % p->group != 0)
        return "gqa does not divide h";
    if (p->dim > 512 || p->dim_v > 512)
        return "d and v are at most 512";
    if (p->mask == FATTN_MASK_CHUNKED && p->mask_size < 1)
        return "chunks must have 1 key or more";
    if (p->bias && (double)p->batch * (double)p->heads_q * (double)p->seq_q * (double)p->seq_k > 0x1p28)
        return "a bias has more than 2^28 elements";
    return problem_fits(p) ? NULL : "a tensor has more than 2^40 elements";
}

static const char *wrong_lengths(const problem *p)
{
    const length_list *const all[] = {&p->packed_q, &p->packed_k, &p->used_q, &p->used_k};
    for (int i = 0; i < 4; i++) {
        const length_list *room = i == 2 && p->packed_q.kind == LENGTHS_GIVEN   ? &p->packed_q
                                  : i == 3 && p->packed_k.kind == LENGTHS_GIVEN ? &p->packed_k
                                                                                : NULL;
        if (all[i]->kind == LENGTHS_GIVEN && all[i]->count != p->batch)
            return "there must be as many lengths as sequences";
        for (int b = 0; all[i]->kind == LENGTHS_GIVEN && b < all[i]->count; b++)
            if (all[i]->item[b] < 0 || all[i]->item[b] > (i % 2 ? p->seq_k : p->seq_q) ||
                (room && all[i]->item[b] > room->item[b]))
                return "a length is more than there is room for";
        if (i >= 2 && all[i]->kind == LENGTHS_GIVEN && all[i - 2]->kind == LENGTHS_DRAWN)
            return "used lengths are given, but the room for them is drawn";
    }
    return NULL;
}

static const char *wrong_types(const problem *p)
{
    const bool narrow = p->dtype == FATTN_F16 || p->dtype == FATTN_BF16, forward = p->op == FATTN_OP_FORWARD;
    if ((p->out_f32 || p->grad_f32) && !narrow)
        return "out-f32 and grad-f32 go with f16 and bf16";
    if (p->grad_f32 && forward)
        return "grad-f32 goes with backward";
    if (p->kv_i8 && (!forward || p->dtype == FATTN_F64))
        return "kv-i8 goes with forward and not with f64";
    return NULL;
}

static const char *wrong_options(const problem *p)
{
    const bool forward = p->op == FATTN_OP_FORWARD;
    if (p->page_size > 0 && (!forward || p->packed_k.kind || p->layout == LAYOUT_FAR))
        return "paged goes with forward, not with packed keys, not with far";
    if (forward && (p->dbias || p->dsinks || p->dlse || p->part || p->unordered))
        return "dbias, dsinks, dlse, part and unordered go with backward";
    if ((p->dbias && !p->bias) || (p->dsinks && !p->sinks))
        return "dbias needs bias, dsinks needs sinks";
    if (p->mask_shared && (p->mask != FATTN_MASK_INTERVALS || p->packed_q.kind))
        return "packed rows share no intervals";
    if (p->dropout < 0 || p->dropout >= 1 || p->softcap < 0)
        return "dropout is in [0, 1), softcap at least 0";
    return NULL;
}

/* Infinities and NaN where the formulas leave open what comes out, or where bytes cannot hold them. */
static const char *wrong_fill(const problem *p)
{
    const bool infinite_k = p->fill == FILL_INF_K || p->fill == FILL_MINUS_INF || p->fill == FILL_MINUS_INF_KEY;
    const bool infinite = infinite_k || p->fill == FILL_INF_Q;
    if (p->fill == FILL_BIAS_INF && !p->bias)
        return "fill-bias-inf goes with bias";
    if (p->kv_i8 && (infinite_k || p->fill == FILL_SUBNORMAL))
        return "bytes hold no infinities and nothing subnormal";
    if (infinite && (p->softcap > 0 || p->dropout > 0 || p->part || p->sinks))
        return "infinite scores go without softcap, dropout, sinks and part";
    if (p->fill == FILL_NAN_V && p->dropout > 0)
        return "a NaN that is dropped is no clear case";
    if (p->fill == FILL_HIGH && p->op == FATTN_OP_BACKWARD)
        return "rounding lse alone makes the gradients of fill-high meaningless";
    return NULL;
}

const char *problem_wrong(const problem *p)
{
    const char *(*const checks[])(const problem *) = {wrong_sizes, wrong_lengths, wrong_types, wrong_options, wrong_fill};
    for (int i = 0; i < 5; i++) {
        const char *wrong = checks[i](p);
        if (wrong)
            return wrong;
    }
    return NULL;
}
