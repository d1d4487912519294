/*
 * fattn_cache_append: a cache filled in steps reads like the tensors it was filled from, wherever its rows lie; RoPE against
 * the formula in double; bytes within half a step of what they stand for. cache_errors.c has what is refused.
 */
#include "cache.h"

/* --------------------------------------------------------------------------------------- the cache against the tensors */

/* The sequences as whole tensors [B, heads, CAP, dim], and how long they become. */
typedef struct stream {
    void *q, *k, *v;
    int32_t length[B];
} stream;

/* The next rows of each sequence, another number for each, among them none. */
static void next_rows(cache *c, const stream *s, int32_t dtype, int step)
{
    const size_t size = size_of(dtype);
    for (int64_t b = 0; b < B; b++) {
        const int32_t left = s->length[b] - c->used_k[b], want = (int32_t)((step * 2 + b * 3) % (NEW + 1));
        c->used_q[b] = want < left ? want : left;
        for (int64_t h = 0; h < HKV; h++)
            for (int64_t i = 0; i < c->used_q[b]; i++) {
                const int64_t from = (b * HKV + h) * CAP + c->used_k[b] + i;
                memcpy((char *)c->k_new + (size_t)new_at(HKV, b, h, i, D) * size, (char *)s->k + (size_t)(from * D) * size,
                       D * size);
                memcpy((char *)c->v_new + (size_t)new_at(HKV, b, h, i, DV) * size, (char *)s->v + (size_t)(from * DV) * size,
                       DV * size);
            }
    }
}

/* Fills the cache in steps. used_q then holds the rows of the last step, of which used_k counts all. */
static void fill_cache(cache *c, const stream *s, int32_t dtype)
{
    c->args.used_q = c->used_q;
    for (int step = 1; memcmp(c->used_k, s->length, sizeof c->used_k) != 0; step++) {
        next_rows(c, s, dtype, step);
        assert_ok(append(c));
        for (int64_t b = 0; b < B; b++)
            c->used_k[b] += c->used_q[b];
    }
}

/* Every row of the cache that was appended has the bits of its origin, and nothing else was written. */
static void check_bits(const cache *c, const stream *s, int32_t dtype)
{
    const size_t size = size_of(dtype);
    bool *written = calloc((size_t)(c->rows * HKV), sizeof *written);
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < HKV; h++)
            for (int64_t j = 0; j < s->length[b]; j++) {
                const size_t to = (size_t)row_at(c, b, h, j), from = (size_t)((b * HKV + h) * CAP + j);
                written[to] = true;
                assert_memory_equal((char *)c->k + to * D * size, (char *)s->k + from * D * size, D * size);
                assert_memory_equal((char *)c->v + to * DV * size, (char *)s->v + from * DV * size, DV * size);
            }
    for (size_t row = 0; row < (size_t)(c->rows * HKV); row++)
        if (!written[row]) {
            all_poison((char *)c->k + row * D * size, D * size);
            all_poison((char *)c->v + row * DV * size, DV * size);
        }
    free(written);
}

/* Attention over the cache and over whole tensors of the same lengths, to the last bit. */
static void check_attention(const cache *c, const stream *s, int32_t dtype)
{
    enum { N = B * HQ * CAP };
    void *out[2] = {make_numbers(dtype, N * DV, 0, 0), make_numbers(dtype, N * DV, 0, 0)};
    const int32_t type = dtype == FATTN_F64 ? FATTN_F64 : FATTN_F32;
    void *lse[2] = {make_numbers(type, N, 0, 0), make_numbers(type, N, 0, 0)};
    fattn_desc desc = c->desc, plain = c->desc;
    plain.page_size = plain.pages = 0;
    desc.seq_q = plain.seq_q = CAP;
    fattn_forward_args args = {.q = fattn_view_bhsd(s->q, HQ, CAP, D), .used_q = s->length, .used_k = s->length};
    args.k = c->args.k, args.v = c->args.v, args.page_table = c->args.page_table;
    args.out = fattn_view_bhsd(out[0], HQ, CAP, DV), args.lse = lse[0];
    run_forward(c->context, &desc, args);
    args.k = fattn_view_bhsd(s->k, HKV, CAP, D), args.v = fattn_view_bhsd(s->v, HKV, CAP, DV), args.page_table = NULL;
    args.out = fattn_view_bhsd(out[1], HQ, CAP, DV), args.lse = lse[1];
    run_forward(c->context, &plain, args);
    assert_memory_equal(out[0], out[1], N * DV * size_of(dtype));
    assert_memory_equal(lse[0], lse[1], N * size_of(type));
    free(out[0]), free(out[1]), free(lse[0]), free(lse[1]);
}

static void check_attention_of_all(cache *c, const stream *s, int32_t dtype)
{
    const char *kernel[KERNELS_MOST];
    fattn_desc desc = c->desc;
    desc.seq_q = CAP;
    const int count = kernels_of(&desc, FATTN_OP_FORWARD, kernel);
    for (int k = 0; k < count; k++) {
        fattn_context_destroy(c->context);
        c->context = make_context(2, kernel[k]);
        check_attention(c, s, dtype);
    }
}

static const int64_t page_sizes[] = {0, 1, 3, 16, 64};
enum { PAGE_SIZES = sizeof page_sizes / sizeof *page_sizes };

static void cache_reads_like_the_tensors(void **state)
{
    (void)state;
    for (int32_t dtype = FATTN_F32; dtype <= FATTN_BF16; dtype++)
        for (int p = 0; p < PAGE_SIZES; p++) {
            cache c;
            stream s = {make_numbers(dtype, B * HQ * CAP * D, 7, 2),
                        make_numbers(dtype, B * HKV * CAP * D, 8, 2),
                        make_numbers(dtype, B * HKV * CAP * DV, 9, 2),
                        {CAP, 0, 20}};
            cache_make(&c, dtype, 0, page_sizes[p], NULL);
            fill_cache(&c, &s, dtype);
            check_bits(&c, &s, dtype);
            check_attention_of_all(&c, &s, dtype);
            free(s.q), free(s.k), free(s.v);
            cache_free(&c);
        }
}

/* Without used_q every sequence gets all seq_q rows; k, v and the new rows may have any order of dimensions. */
static void all_rows_and_any_strides(void **state)
{
    cache c;
    (void)state;
    cache_make(&c, FATTN_F32, 0, 0, "");
    c.args.k_new = fattn_view_bshd(c.k_new, HKV, NEW, D);
    c.args.k = fattn_view_bshd(c.k, HKV, CAP, D);
    c.used_k[0] = CAP - NEW, c.used_k[1] = 0, c.used_k[2] = 9;
    assert_ok(append(&c));
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < HKV; h++)
            for (int64_t i = 0; i < NEW; i++) {
                const float *to = (float *)c.k + ((b * CAP + c.used_k[b] + i) * HKV + h) * D;
                assert_memory_equal(to, (float *)c.k_new + ((b * NEW + i) * HKV + h) * D, D * sizeof *to);
            }
    cache_free(&c);
}

/* ---------------------------------------------------------------------------------------------------------- packed rows */

enum { FIRST = 2, LAST = NEW, TOTAL = FIRST + LAST };
static const int32_t cu[B + 1] = {0, FIRST, FIRST, TOTAL};

/* Element [h][cu[b] + i] is new row i of sequence b. */
static void pack(const cache *c, float packed[HKV][TOTAL][D])
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < HKV; h++)
            for (int64_t i = 0; i < cu[b + 1] - cu[b]; i++)
                memcpy(packed[h][cu[b] + i], (float *)c->k_new + new_at(HKV, b, h, i, D), D * sizeof(float));
}

/* A call for sequence b alone; values are the first DV elements of keys. */
static void append_one(cache *c, float packed[HKV][TOTAL][D], int64_t b)
{
    const int64_t before = c->desc.page_size > 0 ? 0 : b * HKV * CAP; /* rows of other sequences in the cache */
    c->desc.batch = 1;
    c->desc.seq_q = cu[b + 1] - cu[b];
    c->args.k_new = c->args.v_new = (fattn_view){packed[0][cu[b]], 0, TOTAL * D, D};
    c->args.k.data = (int8_t *)c->k + before * D, c->args.v.data = (int8_t *)c->v + before * DV;
    c->args.k_scales = c->k_scales + before, c->args.v_scales = c->v_scales + before;
    c->args.used_k = c->used_k + b;
    if (c->desc.page_size > 0)
        c->args.page_table = c->table + b * c->columns;
    assert_ok(append(c));
}

/* New rows that lie packed go in one sequence at a time, with batch 1 and pointers to what is the sequence's own, as the header
 * says: the cache is that of one call for padded rows. */
static void packed_rows(void **state)
{
    (void)state;
    for (int p = 0; p < PAGE_SIZES; p++) {
        cache padded, c;
        float packed[HKV][TOTAL][D];
        cache_make(&padded, FATTN_F32, FATTN_I8, page_sizes[p], "");
        cache_make(&c, FATTN_F32, FATTN_I8, page_sizes[p], "");
        for (int64_t b = 0; b < B; b++) {
            padded.used_k[b] = c.used_k[b] = (int32_t)(4 * b + 1);
            padded.used_q[b] = cu[b + 1] - cu[b];
        }
        padded.args.used_q = padded.used_q;
        padded.args.v_new = padded.args.k_new;
        assert_ok(append(&padded));
        pack(&c, packed);
        for (int64_t b = 0; b < B; b++)
            append_one(&c, packed, b);
        assert_memory_equal(c.k, padded.k, (size_t)(c.rows * HKV * D));
        assert_memory_equal(c.v, padded.v, (size_t)(c.rows * HKV * DV));
        assert_memory_equal(c.k_scales, padded.k_scales, sizeof c.k_scales);
        assert_memory_equal(c.v_scales, padded.v_scales, sizeof c.v_scales);
        cache_free(&padded);
        cache_free(&c);
    }
}

/* --------------------------------------------------------------------------------------------------------------- rotary */

/* Element x of a row of D turned at a position, from the formula. */
static double turned(const cache *c, const double *row, int64_t position, int64_t x)
{
    const int64_t dim = c->args.rotary_dim, pairs = dim / 2;
    if (x >= dim)
        return row[x];
    const bool adjacent = c->args.interleaved == 1;
    const int64_t pair = adjacent ? x / 2 : x % pairs;
    const bool second = adjacent ? x % 2 == 1 : x >= pairs;
    const double angle_cos = (double)c->cosine[position * pairs + pair], angle_sin = (double)c->sine[position * pairs + pair];
    const double a = row[adjacent ? 2 * pair : pair], b = row[adjacent ? 2 * pair + 1 : pair + pairs];
    return second ? a * angle_sin + b * angle_cos : a * angle_cos - b * angle_sin;
}

static void check_turned(const cache *c, int32_t dtype, const void *got, int64_t at, const void *before, int64_t from,
                         int64_t position)
{
    double row[D];
    for (int64_t x = 0; x < D; x++)
        row[x] = get(before, dtype, from + x);
    for (int64_t x = 0; x < D; x++) {
        const double wanted = turned(c, row, position, x), is = get(got, dtype, at + x);
        if (!(fabs(is - wanted) <= roundoff(dtype) * fabs(wanted) + (dtype == FATTN_F16 ? 0x1p-25 : 1e-15)))
            fail_msg("dtype %d position %lld element %lld is %.17g, not %.17g", (int)dtype, (long long)position, (long long)x,
                     is, wanted);
        if (x >= c->args.rotary_dim)
            assert_true(is == row[x]);
    }
}

static void check_rotary(int32_t dtype, int64_t page_size, int64_t dim, uint32_t interleaved)
{
    cache c;
    cache_make(&c, dtype, 0, page_size, "");
    use_rotary(&c, dim, interleaved);
    void *q = make_numbers(dtype, B * HQ * NEW * D, 3, 2); /* as it was */
    c.used_k[0] = 0, c.used_k[1] = 11, c.used_k[2] = CAP - NEW;
    c.used_q[0] = NEW, c.used_q[1] = 2, c.used_q[2] = NEW;
    c.args.used_q = c.used_q;
    assert_ok(append(&c));
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < NEW; i++) {
            const int64_t position = c.used_k[b] + i;
            for (int64_t h = 0; h < HKV && i < c.used_q[b]; h++) {
                const int64_t row = row_at(&c, b, h, position), from = new_at(HKV, b, h, i, D);
                check_turned(&c, dtype, c.k, row * D, c.k_new, from, position);
                for (int64_t x = 0; x < DV; x++) /* values do not turn */
                    assert_true(get(c.v, dtype, row * DV + x) == get(c.v_new, dtype, new_at(HKV, b, h, i, DV) + x));
            }
            for (int64_t h = 0; h < HQ; h++) {
                const int64_t at = new_at(HQ, b, h, i, D);
                if (i < c.used_q[b])
                    check_turned(&c, dtype, c.q, at, q, at, position);
                else
                    assert_memory_equal((char *)c.q + (size_t)at * size_of(dtype), (char *)q + (size_t)at * size_of(dtype),
                                        D * size_of(dtype));
            }
        }
    free(q);
    cache_free(&c);
}

static void rotary(void **state)
{
    static const int64_t dims[] = {D, 4, 2};
    (void)state;
    for (int32_t dtype = FATTN_F32; dtype <= FATTN_BF16; dtype++)
        for (int p = 0; p < 3; p++)
            for (int d = 0; d < 3; d++)
                for (uint32_t interleaved = 0; interleaved < 2; interleaved++)
                    check_rotary(dtype, page_sizes[p], dims[d], interleaved);
}

/* A quarter turn takes (a, b) to (-b, a), and q is optional. */
static void quarter_turn(void **state)
{
    cache c;
    (void)state;
    cache_make(&c, FATTN_F32, 0, 0, "");
    use_rotary(&c, 4, 0);
    for (int n = 0; n < POSITIONS * 2; n++)
        c.cosine[n] = 0, c.sine[n] = 1;
    c.args.q.data = NULL;
    assert_ok(append(&c));
    const float *was = c.k_new, *is = c.k;
    assert_true(is[0] == -was[2] && is[1] == -was[3] && is[2] == was[0] && is[3] == was[1] && is[4] == was[4]);
    c.args.interleaved = 1;
    assert_ok(append(&c));
    assert_true(is[0] == -was[1] && is[1] == was[0] && is[2] == -was[3] && is[3] == was[2] && is[4] == was[4]);
    cache_free(&c);
}

/* --------------------------------------------------------------------------------------------------------------- bytes */

/* Rounding to the nearest of 255 steps is off by half a step; the division before it, in double, by far less than 1e-9 of one.
 */
static void check_bytes(const int8_t *bytes, float scale, const double *row, int64_t n)
{
    double most = 0;
    for (int64_t x = 0; x < n; x++)
        most = fabs(row[x]) > most ? fabs(row[x]) : most;
    assert_true(scale == (float)(most / 127));
    for (int64_t x = 0; x < n; x++) {
        assert_in_range(bytes[x] + 128, 1, 255);
        assert_true(fabs(row[x] - (double)scale * bytes[x]) <= (double)scale * (0.5 + 1e-9));
    }
}

static void check_quantised(int32_t dtype, int64_t page_size, bool with_rotary)
{
    cache c;
    cache_make(&c, dtype, FATTN_I8, page_size, "");
    if (with_rotary)
        use_rotary(&c, D, 0);
    c.used_k[1] = 8, c.used_k[2] = CAP - NEW;
    assert_ok(append(&c));
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < HKV; h++)
            for (int64_t i = 0; i < NEW; i++) {
                const int64_t at = row_at(&c, b, h, c.used_k[b] + i);
                double row[D], as_is[D];
                for (int64_t x = 0; x < D; x++)
                    as_is[x] = get(c.k_new, dtype, new_at(HKV, b, h, i, D) + x);
                for (int64_t x = 0; x < D; x++)
                    row[x] = with_rotary ? turned(&c, as_is, c.used_k[b] + i, x) : as_is[x];
                check_bytes((int8_t *)c.k + at * D, c.k_scales[at], row, D);
                for (int64_t x = 0; x < DV; x++)
                    row[x] = get(c.v_new, dtype, new_at(HKV, b, h, i, DV) + x);
                check_bytes((int8_t *)c.v + at * DV, c.v_scales[at], row, DV);
            }
    cache_free(&c);
}

static void bytes_are_within_half_a_step(void **state)
{
    static const int32_t dtypes[] = {FATTN_F32, FATTN_F16, FATTN_BF16};
    (void)state;
    for (int t = 0; t < 3; t++)
        for (int p = 0; p < PAGE_SIZES; p++)
            for (int turn = 0; turn < 2; turn++)
                check_quantised(dtypes[t], page_sizes[p], turn == 1);
}

/* Row by row: ties go to even; nothing but zeros; subnormals; a NaN; an infinity. */
static void odd_rows_of_bytes(void **state)
{
    static const float rows[NEW][DV] = {{127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f},
                                        {0, -0.0f, 0, 0, 0, 0},
                                        {1e-40f, -1e-41f, 0, 1e-37f, 0, 0},
                                        {1, 2, NAN, 3, 4, 5},
                                        {1, -INFINITY, 2, 3, 4, 5}};
    static const int8_t ties[DV] = {127, 0, 2, 2, 0, -2}, zeros[DV] = {0};
    cache c;
    (void)state;
    cache_make(&c, FATTN_F32, FATTN_I8, 0, "");
    memcpy(c.v_new, rows, sizeof rows);
    assert_ok(append(&c));
    const int8_t *v = c.v;
    assert_memory_equal(v, ties, DV);
    assert_true(c.v_scales[0] == 1 && c.v_scales[1] == 0 && c.v_scales[2] == 0);
    assert_true(isnan(c.v_scales[3]) && isnan(c.v_scales[4]));
    for (int i = 1; i < NEW; i++)
        assert_memory_equal(v + i * DV, zeros, DV);
    cache_free(&c);
}

/* Attention over bytes is attention over what they stand for. */
static void attention_over_bytes(void **state)
{
    enum { N = B * HQ * NEW };
    (void)state;
    for (int p = 0; p < PAGE_SIZES; p++) {
        static float k[B * HKV * CAP * D], v[B * HKV * CAP * DV], out[2][N * DV], lse[2][N];
        cache c;
        cache_make(&c, FATTN_F32, FATTN_I8, page_sizes[p], "");
        assert_ok(append(&c));
        for (int64_t b = 0; b < B; b++)
            for (int64_t h = 0; h < HKV; h++)
                for (int64_t j = 0; j < NEW; j++) {
                    const int64_t from = row_at(&c, b, h, j), to = (b * HKV + h) * CAP + j;
                    for (int64_t x = 0; x < D; x++)
                        k[to * D + x] = c.k_scales[from] * ((int8_t *)c.k)[from * D + x];
                    for (int64_t x = 0; x < DV; x++)
                        v[to * DV + x] = c.v_scales[from] * ((int8_t *)c.v)[from * DV + x];
                }
        fattn_desc plain = c.desc;
        plain.page_size = plain.pages = 0, plain.kv_dtype = 0;
        for (int64_t b = 0; b < B; b++)
            c.used_k[b] = NEW;
        fattn_forward_args args = {.q = fattn_view_bhsd(c.q, HQ, NEW, D), .used_k = c.used_k};
        args.k = c.args.k, args.v = c.args.v, args.page_table = c.args.page_table;
        args.k_scales = c.k_scales, args.v_scales = c.v_scales;
        args.out = fattn_view_bhsd(out[0], HQ, NEW, DV), args.lse = lse[0];
        run_forward(c.context, &c.desc, args);
        args.k = fattn_view_bhsd(k, HKV, CAP, D), args.v = fattn_view_bhsd(v, HKV, CAP, DV);
        args.page_table = NULL, args.k_scales = args.v_scales = NULL;
        args.out = fattn_view_bhsd(out[1], HQ, NEW, DV), args.lse = lse[1];
        run_forward(c.context, &plain, args);
        for (int n = 0; n < N * DV; n++)
            assert_true(fabsf(out[0][n] - out[1][n]) <= 4e-6f);
        for (int n = 0; n < N; n++)
            assert_true(fabsf(lse[0][n] - lse[1][n]) <= 4e-6f);
        cache_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cache_reads_like_the_tensors),
        cmocka_unit_test(all_rows_and_any_strides),
        cmocka_unit_test(packed_rows),
        cmocka_unit_test(rotary),
        cmocka_unit_test(quarter_turn),
        cmocka_unit_test(bytes_are_within_half_a_step),
        cmocka_unit_test(odd_rows_of_bytes),
        cmocka_unit_test(attention_over_bytes),
    };
    unsetenv("FATTN_KERNEL"); /* these tests force their own */
    return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
