/*
 * The calls for looking: fattn_dropout_keep against Philox written here again, which is held against its published vectors; and
 * fattn_scores against plain loops for every feature, alone and together. What forward returns follows from the two.
 */
#include <fenv.h>

#include "numbers.h"

/* --------------------------------------------------------------------------------------------------------------- Philox */

/* Salmon et al. 2011, section 3.3: ten rounds of multiplying, swapping and adding the key, which then moves on. */
static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t word[4])
{
    uint32_t k[2] = {key[0], key[1]};
    memcpy(word, counter, 4 * sizeof *word);
    for (int round = 0; round < 10; round++) {
        const uint64_t left = 0xD2511F53ull * word[0], right = 0xCD9E8D57ull * word[2];
        const uint32_t next[4] = {(uint32_t)(right >> 32) ^ word[1] ^ k[0], (uint32_t)right,
                                  (uint32_t)(left >> 32) ^ word[3] ^ k[1], (uint32_t)left};
        memcpy(word, next, sizeof next);
        k[0] += 0x9E3779B9u; /* the golden ratio */
        k[1] += 0xBB67AE85u; /* the root of 3, less 1 */
    }
}

/* Of the library Random123's file kat_vectors: counter, key, result of philox4x32 with 10 rounds. */
static const uint32_t vectors[][3][4] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

static void known_answers(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof vectors / sizeof *vectors; n++) {
        uint32_t word[4];
        philox(vectors[n][0], vectors[n][1], word);
        assert_memory_equal(word, vectors[n][2], sizeof word);
    }
}

static fattn_desc dropping(double dropout, uint64_t seed)
{
    return (fattn_desc){.struct_size = sizeof(fattn_desc),
                        .dtype = FATTN_F32,
                        .batch = 3,
                        .heads_q = 4,
                        .heads_kv = 2,
                        .seq_q = 5,
                        .seq_k = 11,
                        .dim = 1,
                        .dim_v = 1,
                        .dropout = dropout,
                        .seed = seed};
}

/* An element is kept where its word is at least p 2^32. So p tells the words apart: here those of the first vector, to the last
 * bit, as the library itself draws them. */
static void words_to_the_last_bit(void **state)
{
    (void)state;
    for (int j = 0; j < 4; j++) {
        uint8_t keep[11];
        fattn_desc desc = dropping((double)vectors[0][2][j] * 0x1p-32, 0);
        assert_ok(fattn_dropout_keep(&desc, 0, 0, 0, keep));
        assert_int_equal(keep[j], 1);
        desc.dropout = ((double)vectors[0][2][j] + 1) * 0x1p-32;
        assert_ok(fattn_dropout_keep(&desc, 0, 0, 0, keep));
        assert_int_equal(keep[j], 0);
        desc.dropout = ((double)vectors[0][2][j] + 0.25) * 0x1p-32; /* p 2^32 is rounded */
        assert_ok(fattn_dropout_keep(&desc, 0, 0, 0, keep));
        assert_int_equal(keep[j], 1);
        desc.dropout = ((double)vectors[0][2][j] + 0.5) * 0x1p-32;
        assert_ok(fattn_dropout_keep(&desc, 0, 0, 0, keep));
        assert_int_equal(keep[j], 0);
    }
}

static void every_place_and_seed(void **state)
{
    static const uint64_t seeds[] = {0, 1, 0x123456789abcdef0u, UINT64_MAX, (uint64_t)1 << 32};
    static const double rates[] = {0.5, 0.1, 0.999, 0x1p-33};
    (void)state;
    for (size_t s = 0; s < sizeof seeds / sizeof *seeds; s++)
        for (size_t r = 0; r < sizeof rates / sizeof *rates; r++) {
            const fattn_desc desc = dropping(rates[r], seeds[s]);
            const double threshold = floor(rates[r] * 4294967296.0 + 0.5);
            const uint32_t key[2] = {(uint32_t)seeds[s], (uint32_t)(seeds[s] >> 32)};
            for (uint32_t b = 0; b < 3; b++)
                for (uint32_t h = 0; h < 4; h++)
                    for (uint32_t i = 0; i < 5; i++) {
                        uint8_t keep[12];
                        memset(keep, POISON, sizeof keep);
                        assert_ok(fattn_dropout_keep(&desc, b, h, i, keep));
                        for (uint32_t j = 0; j < 11; j++) {
                            const uint32_t counter[4] = {j / 4, i, b * 4 + h, 0};
                            uint32_t word[4];
                            philox(counter, key, word);
                            assert_int_equal(keep[j], (double)word[j % 4] >= threshold);
                        }
                        assert_int_equal(keep[11], POISON);
                    }
        }
}

/* Of 6 million elements with p = 0.001 about 6000 are dropped, give or take 77; five times that is once in two million. */
static void frequency(void **state)
{
    enum { ROWS = 500, KEYS = 1000 };
    static uint8_t keep[KEYS];
    fattn_desc desc = dropping(0.001, 20240607);
    int64_t dropped = 0;
    (void)state;
    desc.seq_q = ROWS;
    desc.seq_k = KEYS;
    for (int64_t b = 0; b < 3; b++)
        for (int64_t h = 0; h < 4; h++)
            for (int64_t i = 0; i < ROWS; i++) {
                assert_ok(fattn_dropout_keep(&desc, b, h, i, keep));
                for (int j = 0; j < KEYS; j++)
                    dropped += keep[j] == 0;
            }
    if (llabs(dropped - 6000) > 5 * 77)
        fail_msg("%lld of 6000000 elements are dropped at p = 0.001", (long long)dropped);
}

static void keeping_errors(void **state)
{
    uint8_t keep[12] = {0};
    fattn_desc desc = dropping(0, 0);
    (void)state;
    memset(keep, POISON, sizeof keep);
    assert_fails(fattn_dropout_keep(NULL, 0, 0, 0, keep), FATTN_ERROR_ARGUMENT, "desc is NULL");
    assert_fails(fattn_dropout_keep(&desc, 0, 0, 0, NULL), FATTN_ERROR_ARGUMENT, "keep is NULL");
    assert_fails(fattn_dropout_keep(&desc, 3, 0, 0, keep), FATTN_ERROR_ARGUMENT, "batch is 3");
    assert_fails(fattn_dropout_keep(&desc, -1, 0, 0, keep), FATTN_ERROR_ARGUMENT, "batch is -1");
    assert_fails(fattn_dropout_keep(&desc, 0, 4, 0, keep), FATTN_ERROR_ARGUMENT, "head is 4");
    assert_fails(fattn_dropout_keep(&desc, 0, 0, 5, keep), FATTN_ERROR_ARGUMENT, "row is 5");
    for (int j = 0; j < 12; j++)
        assert_int_equal(keep[j], POISON);
    assert_ok(fattn_dropout_keep(&desc, 2, 3, 4, keep)); /* without dropout all are kept */
    for (int j = 0; j < 11; j++)
        assert_int_equal(keep[j], 1);
    desc.seq_k = 0;
    assert_ok(fattn_dropout_keep(&desc, 0, 0, 0, NULL));
}

/* -------------------------------------------------------------------------------------------------------------- scores */

enum { B = 3, HQ = 4, HKV = 2, SQ = 7, SK = 10, D = 5, DV = 3, TOTAL_Q = 12, TOTAL_K = 17, PAGE = 3, PAGES = 14 };
enum { ROOM_Q = B * HQ * SQ, ROOM_K = PAGES * HKV * PAGE };

/* What a case asks for besides flags and the mask. */
enum { PACKED_Q = 1, PACKED_K = 2, USED = 4, PAGED = 8, BYTES = 16, BROADCAST_BIAS = 32, STRIDED_MASK = 64 };

typedef struct looked {
    fattn_context *context;
    fattn_desc desc;
    fattn_forward_args args;
    int options;
    int32_t kv;
    void *q, *k, *v, *bias;
    fattn_view bias_view;
    float k_scales[ROOM_K], v_scales[ROOM_K], slopes[HQ], sinks[HQ];
    int32_t lo[B * SQ], hi[B * SQ], document_q[B * SQ], document_k[B * SK], table[B * 4];
} looked;

static const int32_t cu_q[B + 1] = {0, 7, 7, TOTAL_Q}, cu_k[B + 1] = {0, 3, 7, TOTAL_K};
static const int32_t used_q[B] = {6, 0, 4}, used_k[B] = {2, 4, 9};

static void fill_lists(looked *l)
{
    for (int n = 0; n < B * SQ; n++) {
        l->lo[n] = n * 5 % 13 - 3; /* some before the first key, some beyond the last, some after hi */
        l->hi[n] = n * 7 % 17 - 2;
        l->document_q[n] = n % SQ / 3;
    }
    for (int n = 0; n < B * SK; n++)
        l->document_k[n] = n % SK / 4;
    for (int b = 0; b < B; b++) { /* packed rows: ids ascend within each sequence */
        for (int n = cu_q[b]; l->options & PACKED_Q && n < cu_q[b + 1]; n++)
            l->document_q[n] = (n - cu_q[b]) / 2 - 1;
        for (int n = cu_k[b]; l->options & PACKED_K && n < cu_k[b + 1]; n++)
            l->document_k[n] = (n - cu_k[b]) / 3 - 1;
    }
    for (int n = 0; n < B * 4; n++)
        l->table[n] = (n * 5 + 2) % PAGES;
    for (int h = 0; h < HQ; h++) {
        l->slopes[h] = 0.25f * (float)(h + 1);
        l->sinks[h] = (float)h - 1.5f;
    }
    for (int n = 0; n < ROOM_K; n++) {
        l->k_scales[n] = 0.01f + 0.001f * (float)n;
        l->v_scales[n] = 0.02f;
    }
}

static void give_options(looked *l)
{
    fattn_forward_args *a = &l->args;
    const int o = l->options;
    l->desc.total_q = o & PACKED_Q ? TOTAL_Q : 0;
    l->desc.total_k = o & PACKED_K ? TOTAL_K : 0;
    a->q = o & PACKED_Q ? (fattn_view){l->q, 77, TOTAL_Q * D, D} : fattn_view_bhsd(l->q, HQ, SQ, D);
    a->k = o & PACKED_K ? (fattn_view){l->k, 77, TOTAL_K * D, D} : fattn_view_bhsd(l->k, HKV, o & PAGED ? PAGE : SK, D);
    a->v = o & PACKED_K ? (fattn_view){l->v, 77, TOTAL_K * DV, DV} : fattn_view_bhsd(l->v, HKV, o & PAGED ? PAGE : SK, DV);
    a->cu_seqlens_q = o & PACKED_Q ? cu_q : NULL;
    a->cu_seqlens_k = o & PACKED_K ? cu_k : NULL;
    a->used_q = o & USED ? used_q : NULL;
    a->used_k = o & USED ? used_k : NULL;
    if (o & PAGED) {
        l->desc.page_size = PAGE;
        l->desc.pages = PAGES;
        a->page_table = l->table;
    }
    if (o & BYTES) {
        l->desc.kv_dtype = FATTN_I8;
        a->k_scales = l->k_scales;
        a->v_scales = l->v_scales;
    }
}

static void give_lists(looked *l)
{
    fattn_forward_args *a = &l->args;
    if (l->desc.flags & FATTN_WITH_BIAS) {
        l->bias_view = (fattn_view){l->bias, HQ * SQ * SK, l->options & BROADCAST_BIAS ? 0 : SQ * SK, SK};
        a->bias = &l->bias_view;
    }
    a->slopes = l->desc.flags & FATTN_WITH_SLOPES ? l->slopes : NULL;
    a->sinks = l->desc.flags & FATTN_WITH_SINKS ? l->sinks : NULL;
    if (l->desc.mask == FATTN_MASK_INTERVALS) {
        a->mask_lo = l->lo;
        a->mask_hi = l->hi;
        a->mask_stride = l->options & STRIDED_MASK ? SQ : 0;
    }
    if (l->desc.mask == FATTN_MASK_DOCUMENT) {
        a->document_q = l->document_q;
        a->document_k = l->document_k;
    }
}

/* A case: dtype, mask, numbers that go with it, flags and options. */
typedef struct scored {
    int32_t dtype, mask, align;
    int64_t left, right, size;
    double softcap, dropout;
    uint32_t flags;
    int options;
} scored;

static void looked_make(looked *l, const scored *c)
{
    memset(l, 0, sizeof *l);
    l->context = make_context(2, NULL);
    l->options = c->options;
    l->kv = c->options & BYTES ? FATTN_I8 : c->dtype;
    l->desc = (fattn_desc){.struct_size = sizeof l->desc,
                           .dtype = c->dtype,
                           .mask = c->mask,
                           .align = c->align,
                           .flags = c->flags,
                           .batch = B,
                           .heads_q = HQ,
                           .heads_kv = HKV,
                           .seq_q = SQ,
                           .seq_k = SK,
                           .dim = D,
                           .dim_v = DV,
                           .window_left = c->left,
                           .window_right = c->right,
                           .mask_size = c->size,
                           .softcap = c->softcap,
                           .dropout = c->dropout,
                           .seed = c->dropout > 0 ? 99 : 0};
    l->q = make_numbers(c->dtype, ROOM_Q * D, 1, 2);
    l->k = make_numbers(l->kv, ROOM_K * D, 2, l->kv == FATTN_I8 ? 100 : 2);
    l->v = make_numbers(l->kv, ROOM_K * DV, 3, l->kv == FATTN_I8 ? 100 : 2);
    l->bias = make_numbers(c->dtype, ROOM_Q * SK, 4, 1);
    l->args.struct_size = sizeof l->args;
    fill_lists(l);
    give_options(l);
    give_lists(l);
}

static void looked_free(looked *l)
{
    free(l->q), free(l->k), free(l->v), free(l->bias);
    fattn_context_destroy(l->context);
}

static int64_t rows_of(const looked *l, int64_t b)
{
    return l->options & USED ? used_q[b] : l->options & PACKED_Q ? cu_q[b + 1] - cu_q[b] : SQ;
}

static int64_t keys_of(const looked *l, int64_t b)
{
    return l->options & USED ? used_k[b] : l->options & PACKED_K ? cu_k[b + 1] - cu_k[b] : SK;
}

/* Which row, of all of one tensor, and where its factor is. */
static int64_t query_at(const looked *l, int64_t b, int64_t h, int64_t i)
{
    return l->options & PACKED_Q ? h * TOTAL_Q + cu_q[b] + i : (b * HQ + h) * SQ + i;
}

static int64_t key_at(const looked *l, int64_t b, int64_t h, int64_t j)
{
    if (l->options & PAGED)
        return (l->table[b * 4 + j / PAGE] * HKV + h) * PAGE + j % PAGE;
    return l->options & PACKED_K ? h * TOTAL_K + cu_k[b] + j : (b * HKV + h) * SK + j;
}

/* The header's words for each mask, for a row and a key that exist. */
static bool keeps(const looked *l, int64_t b, int64_t i, int64_t j)
{
    const fattn_desc *d = &l->desc;
    const int64_t t = i + (d->align == FATTN_ALIGN_BOTTOM_RIGHT ? keys_of(l, b) - rows_of(l, b) : 0);
    const int64_t row = l->options & PACKED_Q ? cu_q[b] + i : b * SQ + i,
                  key = l->options & PACKED_K ? cu_k[b] + j : b * SK + j;
    const bool near = (d->window_left < 0 || j >= t - d->window_left) && (d->window_right < 0 || j <= t + d->window_right);
    const int64_t interval = l->options & PACKED_Q ? cu_q[b] + i : l->options & STRIDED_MASK ? b * SQ + i : i;
    switch (d->mask) {
    case FATTN_MASK_CAUSAL:
        return j <= t;
    case FATTN_MASK_WINDOW:
        return near;
    case FATTN_MASK_CHUNKED:
        return j <= t && j / d->mask_size == t / d->mask_size;
    case FATTN_MASK_PREFIX:
        return j <= t || j < d->mask_size;
    case FATTN_MASK_DOCUMENT:
        return near && l->document_q[row] == l->document_k[key];
    case FATTN_MASK_INTERVALS:
        return l->lo[interval] <= j && j < l->hi[interval];
    default:
        return true;
    }
}

static double score_of(const looked *l, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const fattn_desc *d = &l->desc;
    const int64_t q = query_at(l, b, h, i) * D, k = key_at(l, b, h / 2, j);
    if (i >= rows_of(l, b) || j >= keys_of(l, b) || !keeps(l, b, i, j))
        return -(double)INFINITY;
    double score = 0;
    for (int x = 0; x < D; x++)
        score += get(l->q, d->dtype, q + x) * get(l->k, l->kv, k * D + x);
    score *= (l->options & BYTES ? (double)l->k_scales[k] : 1) / sqrt(D);
    if (d->softcap > 0)
        score = d->softcap * tanh(score / d->softcap);
    if (d->flags & FATTN_WITH_BIAS)
        score += get(l->bias, d->dtype, ((b * HQ + (l->options & BROADCAST_BIAS ? 0 : h)) * SQ + i) * SK + j);
    const int64_t off = d->align == FATTN_ALIGN_BOTTOM_RIGHT ? keys_of(l, b) - rows_of(l, b) : 0;
    if (d->flags & FATTN_WITH_SLOPES)
        score -= (double)l->slopes[h] * (double)llabs((long long)(i + off - j));
    return score;
}

/* Scores and probabilities of a row; returns its lse. */
static double row_of(const looked *l, int64_t b, int64_t h, int64_t i, double score[SK], double p[SK])
{
    double sum = l->desc.flags & FATTN_WITH_SINKS ? exp((double)l->sinks[h]) : 0;
    for (int64_t j = 0; j < SK; j++) {
        score[j] = score_of(l, b, h, i, j);
        sum += exp(score[j]);
    }
    for (int64_t j = 0; j < SK; j++)
        p[j] = sum > 0 ? exp(score[j]) / sum : 0;
    return log(sum);
}

static void near(const char *name, double got, double wanted, double error)
{
    if (got != wanted && !(fabs(got - wanted) <= error))
        fail_msg("%s is %.17g, not %.17g", name, got, wanted);
}

static void check_scores(const looked *l)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < HQ; h++)
            for (int64_t i = 0; i < SQ; i++) {
                double score[SK], p[SK], got_score[SK + 1], got_p[SK + 1];
                row_of(l, b, h, i, score, p);
                got_score[SK] = got_p[SK] = 77;
                assert_ok(fattn_scores(l->context, &l->desc, &l->args, b, h, i, got_score, got_p));
                for (int64_t j = 0; j < SK; j++) {
                    near("score", got_score[j], score[j], 1e-13 * (1 + fabs(score[j])));
                    near("probability", got_p[j], p[j], 1e-13);
                }
                assert_true(got_score[SK] == 77 && got_p[SK] == 77);
            }
}

/* out and lse of forward are what scores, sinks and dropout say; rows of no sequence are left alone. */
static void check_forward(looked *l)
{
    const int32_t type = l->desc.dtype == FATTN_F64 ? FATTN_F64 : FATTN_F32;
    void *out = make_numbers(l->desc.dtype, ROOM_Q * DV, 0, 0), *lse = make_numbers(type, ROOM_Q, 0, 0);
    bool written[ROOM_Q] = {false};
    const double error = 64 * roundoff(l->desc.dtype); /* values are below 2, or 2 in bytes, and twice that with dropout */
    l->args.out = l->options & PACKED_Q ? (fattn_view){out, 0, TOTAL_Q * DV, DV} : fattn_view_bhsd(out, HQ, SQ, DV);
    l->args.lse = lse;
    run_forward(l->context, &l->desc, l->args);
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < HQ; h++)
            for (int64_t i = 0; i < rows_of(l, b); i++) {
                double score[SK], p[SK], wanted[DV] = {0};
                uint8_t keep[SK];
                const int64_t at = query_at(l, b, h, i);
                written[at] = true;
                near("lse", get(lse, type, at), row_of(l, b, h, i, score, p), error);
                assert_ok(fattn_dropout_keep(&l->desc, b, h, i, keep));
                for (int64_t j = 0; j < keys_of(l, b); j++)
                    for (int64_t x = 0; x < DV; x++) {
                        const int64_t v = key_at(l, b, h / 2, j);
                        wanted[x] += p[j] * keep[j] / (1 - l->desc.dropout) * get(l->v, l->kv, v * DV + x) *
                                     (l->options & BYTES ? (double)l->v_scales[v] : 1);
                    }
                for (int64_t x = 0; x < DV; x++)
                    near("out", get(out, l->desc.dtype, at * DV + x), wanted[x], error);
            }
    for (size_t n = 0; n < ROOM_Q; n++)
        for (size_t x = 0; !written[n] && x < DV * size_of(l->desc.dtype); x++)
            assert_int_equal(((unsigned char *)out)[n * DV * size_of(l->desc.dtype) + x], POISON);
    for (size_t n = 0; n < ROOM_Q; n++)
        for (size_t x = 0; !written[n] && x < size_of(type); x++)
            assert_int_equal(((unsigned char *)lse)[n * size_of(type) + x], POISON);
    free(out), free(lse);
}

enum { ALL_FLAGS = FATTN_WITH_BIAS | FATTN_WITH_SLOPES | FATTN_WITH_SINKS, BOTTOM = FATTN_ALIGN_BOTTOM_RIGHT };

static const scored cases[] = {
    {.dtype = FATTN_F64},
    {.dtype = FATTN_F64, .softcap = 0.7},
    {.dtype = FATTN_F64, .flags = FATTN_WITH_BIAS},
    {.dtype = FATTN_F64, .flags = FATTN_WITH_BIAS, .options = BROADCAST_BIAS},
    {.dtype = FATTN_F64, .flags = FATTN_WITH_SLOPES},
    {.dtype = FATTN_F64, .flags = FATTN_WITH_SLOPES, .align = BOTTOM},
    {.dtype = FATTN_F64, .flags = FATTN_WITH_SINKS, .mask = FATTN_MASK_CAUSAL},
    {.dtype = FATTN_F64, .flags = FATTN_WITH_SINKS, .mask = FATTN_MASK_INTERVALS},
    {.dtype = FATTN_F64, .dropout = 0.3},
    {.dtype = FATTN_F64, .mask = FATTN_MASK_WINDOW, .left = 2, .right = 1, .align = BOTTOM},
    {.dtype = FATTN_F64, .mask = FATTN_MASK_CHUNKED, .size = 3},
    {.dtype = FATTN_F64, .mask = FATTN_MASK_CHUNKED, .size = 4, .align = BOTTOM, .options = USED},
    {.dtype = FATTN_F64, .mask = FATTN_MASK_PREFIX, .size = 3},
    {.dtype = FATTN_F64, .mask = FATTN_MASK_PREFIX, .size = 20, .align = BOTTOM, .options = PACKED_Q | PACKED_K},
    {.dtype = FATTN_F64, .mask = FATTN_MASK_DOCUMENT, .left = -1, .right = -1},
    {.dtype = FATTN_F64, .mask = FATTN_MASK_DOCUMENT, .left = 1, .right = 0, .options = PACKED_Q | PACKED_K},
    {.dtype = FATTN_F64, .mask = FATTN_MASK_DOCUMENT, .left = -1, .right = 0, .options = PACKED_Q},
    {.dtype = FATTN_F64, .mask = FATTN_MASK_INTERVALS, .options = STRIDED_MASK},
    {.dtype = FATTN_F64, .mask = FATTN_MASK_INTERVALS, .options = PACKED_Q | PACKED_K | USED},
    {.dtype = FATTN_F64, .mask = FATTN_MASK_CAUSAL, .align = BOTTOM, .options = USED},
    {.dtype = FATTN_F64, .mask = FATTN_MASK_CAUSAL, .align = BOTTOM, .options = PACKED_K},
    {.dtype = FATTN_F64, .mask = FATTN_MASK_CAUSAL, .align = BOTTOM, .options = PAGED},
    {.dtype = FATTN_F64, .mask = FATTN_MASK_CAUSAL, .align = BOTTOM, .options = PAGED | PACKED_Q | USED},
    {.dtype = FATTN_F32, .options = BYTES},
    {.dtype = FATTN_F32, .options = BYTES | PACKED_K | PACKED_Q},
    {.dtype = FATTN_BF16, .mask = FATTN_MASK_CAUSAL, .align = BOTTOM, .options = BYTES | PAGED | USED},
    {.dtype = FATTN_F32, .flags = ALL_FLAGS, .mask = FATTN_MASK_WINDOW, .left = 5, .right = 2, .softcap = 2, .dropout = 0.5},
    {.dtype = FATTN_F16, .flags = ALL_FLAGS, .mask = FATTN_MASK_CAUSAL, .softcap = 2, .options = PACKED_Q | PACKED_K | USED},
    {.dtype = FATTN_BF16, .flags = ALL_FLAGS, .softcap = 2, .dropout = 0.1, .options = PAGED | USED | BROADCAST_BIAS},
    {.dtype = FATTN_F64, .flags = ALL_FLAGS, .mask = FATTN_MASK_INTERVALS, .softcap = 1, .dropout = 0.2, .options = USED},
    {.dtype = FATTN_F32, .flags = ALL_FLAGS, .mask = FATTN_MASK_DOCUMENT, .left = -1, .right = 1, .options = BYTES | PAGED},
};

static void every_feature(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const char *kernel[KERNELS_MOST];
        looked l;
        looked_make(&l, &cases[n]);
        check_scores(&l);
        const int count = kernels_of(&l.desc, FATTN_OP_FORWARD, kernel);
        for (int k = 0; k < count; k++) {
            fattn_context_destroy(l.context);
            l.context = make_context(2, kernel[k]);
            check_forward(&l);
        }
        looked_free(&l);
    }
}

/* A NaN reaches all probabilities of its row; without any finite score there are none; either result may be left out. */
static void special_rows(void **state)
{
    static const scored plain = {.dtype = FATTN_F32};
    looked l;
    double score[SK], p[SK];
    (void)state;
    looked_make(&l, &plain);
    ((float *)l.q)[0] = NAN;
    assert_ok(fattn_scores(l.context, &l.desc, &l.args, 0, 0, 0, score, NULL));
    assert_ok(fattn_scores(l.context, &l.desc, &l.args, 0, 0, 0, NULL, p));
    assert_ok(fattn_scores(l.context, &l.desc, &l.args, 0, 0, 0, NULL, NULL));
    for (int j = 0; j < SK; j++)
        assert_true(isnan(score[j]) && isnan(p[j]));
    l.desc.mask = FATTN_MASK_CAUSAL; /* row 0 keeps key 0, whose score is NaN, alone */
    assert_ok(fattn_scores(l.context, &l.desc, &l.args, 0, 0, 0, score, p));
    assert_true(isnan(score[0]) && isnan(p[0]) && score[1] == -(double)INFINITY);
    l.desc.mask = FATTN_MASK_FULL;
    for (int x = 0; x < D; x++)
        ((float *)l.q)[x] = x == 0 ? -INFINITY : 0;
    for (int n = 0; n < SK * D; n++)
        ((float *)l.k)[n] = 1;
    assert_ok(fattn_scores(l.context, &l.desc, &l.args, 0, 0, 0, score, p));
    for (int j = 0; j < SK; j++)
        assert_true(score[j] == -(double)INFINITY && p[j] == 0);
    looked_free(&l);
}

static void caller_rounds_otherwise(void **state)
{
#if (defined(__SSE__) || defined(__aarch64__)) && defined(FE_UPWARD)
    static const scored all = {.dtype = FATTN_F32, .flags = ALL_FLAGS, .softcap = 2, .dropout = 0.3};
    looked l;
    double score[2][SK], p[2][SK];
    uint8_t keep[2][SK];
    (void)state;
    looked_make(&l, &all);
    for (int n = 0; n < 2; n++) {
        assert_int_equal(fesetround(n == 0 ? FE_TONEAREST : FE_UPWARD), 0);
        const fattn_status scores = fattn_scores(l.context, &l.desc, &l.args, 1, 2, 3, score[n], p[n]);
        const fattn_status kept = fattn_dropout_keep(&l.desc, 1, 2, 3, keep[n]);
        const int after = fegetround();
        fesetround(FE_TONEAREST);
        assert_ok(scores);
        assert_ok(kept);
        assert_int_equal(after, n == 0 ? FE_TONEAREST : FE_UPWARD);
    }
    assert_memory_equal(score[0], score[1], sizeof score[0]);
    assert_memory_equal(p[0], p[1], sizeof p[0]);
    assert_memory_equal(keep[0], keep[1], sizeof keep[0]);
    looked_free(&l);
#else
    (void)state;
    skip(); /* src/core/flush.h leaves the mode alone here */
#endif
}

static void scoring_errors(void **state)
{
    static const scored plain = {.dtype = FATTN_F32};
    looked l;
    double score[SK];
    (void)state;
    looked_make(&l, &plain);
    for (int j = 0; j < SK; j++)
        score[j] = 7;
    assert_fails(fattn_scores(NULL, &l.desc, &l.args, 0, 0, 0, score, NULL), FATTN_ERROR_ARGUMENT, "context is NULL");
    assert_fails(fattn_scores(l.context, NULL, &l.args, 0, 0, 0, score, NULL), FATTN_ERROR_ARGUMENT, "desc is NULL");
    assert_fails(fattn_scores(l.context, &l.desc, NULL, 0, 0, 0, score, NULL), FATTN_ERROR_ARGUMENT, "args is NULL");
    assert_fails(fattn_scores(l.context, &l.desc, &l.args, B, 0, 0, score, NULL), FATTN_ERROR_ARGUMENT, "batch is 3");
    assert_fails(fattn_scores(l.context, &l.desc, &l.args, 0, -1, 0, score, NULL), FATTN_ERROR_ARGUMENT, "head is -1");
    assert_fails(fattn_scores(l.context, &l.desc, &l.args, 0, 0, SQ, score, NULL), FATTN_ERROR_ARGUMENT, "row is 7");
    l.desc.flags = FATTN_WITH_SINKS;
    assert_fails(fattn_scores(l.context, &l.desc, &l.args, 0, 0, 0, score, NULL), FATTN_ERROR_ARGUMENT, "args.sinks is NULL");
    l.desc.flags = 0;
    l.args.k.data = NULL;
    assert_fails(fattn_scores(l.context, &l.desc, &l.args, 0, 0, 0, score, NULL), FATTN_ERROR_ARGUMENT, "args.k.data is NULL");
    for (int j = 0; j < SK; j++)
        assert_true(score[j] == 7);
    l.args.k.data = l.k;
    l.args.workspace = score; /* not looked at, nor are out and lse */
    l.args.workspace_size = SIZE_MAX;
    l.args.out.data = (char *)l.q + 1;
    l.args.lse = (char *)l.q + 1;
    assert_ok(fattn_scores(l.context, &l.desc, &l.args, 0, 0, 0, score, NULL));
    looked_free(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers), cmocka_unit_test(words_to_the_last_bit),   cmocka_unit_test(every_place_and_seed),
        cmocka_unit_test(frequency),     cmocka_unit_test(keeping_errors),          cmocka_unit_test(every_feature),
        cmocka_unit_test(special_rows),  cmocka_unit_test(caller_rounds_otherwise), cmocka_unit_test(scoring_errors),
    };
    unsetenv("FATTN_KERNEL"); /* these tests force their own */
    return cmocka_run_group_tests_name("look", tests, NULL, NULL);
}
