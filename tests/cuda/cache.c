/*
 * fattn_cache_append on a GPU against the CPU's: the same bits, but for NaN's and where doubles turn; contiguous and paged,
 * every type, bytes too, both layouts of RoPE.
 */
#include "arena.h"

enum { B = 3, HQ = 4, HKV = 2, NEW = 5, CAP = 31, SPARE = 3 };

typedef struct sizes {
    int64_t dim, dim_v, page;
} sizes;

typedef struct appending {
    fattn_desc desc;
    fattn_cache_args args;
    int64_t k_count, v_count, scales;
    int32_t dtype, kv;
} appending;

/* Each sequence has pages of its own, far from where one would look first. */
static void spread_pages(appending *c, int64_t page)
{
    const int64_t columns = (CAP + page - 1) / page;
    int32_t *table = take((size_t)(B * columns) * sizeof *table);
    c->desc.page_size = page;
    c->desc.pages = B * columns + SPARE;
    for (int64_t n = 0; n < B * columns; n++)
        table[n] = (int32_t)((n * 7 + 3) % c->desc.pages); /* 7 divides none of the counts of pages */
    c->args.page_table = table;
}

/* Rows with a NaN, an infinity, zeros, and values too small for bytes. */
static void make_special(const appending *c, void *data, int64_t dim, bool tiny)
{
    set_any(data, c->dtype, 0 * dim + dim / 2, NAN);
    set_any(data, c->dtype, 1 * dim + dim - 1, -(double)INFINITY);
    for (int64_t x = 0; x < dim; x++) {
        set_any(data, c->dtype, 2 * dim + x, 0);
        if (tiny)
            set_any(data, c->dtype, 3 * dim + x, c->dtype == FATTN_F16 ? 0x1p-24 : 0x1p-125);
    }
}

static void make_new(appending *c, const sizes *s, bool special)
{
    void *k_new = take_numbers(c->dtype, B * HKV * NEW * s->dim, 1, 2),
         *v_new = take_numbers(c->dtype, B * HKV * NEW * s->dim_v, 2, 2);
    if (special) {
        make_special(c, k_new, s->dim, false); /* what turns may count as 0 on the CPU if it is subnormal */
        make_special(c, v_new, s->dim_v, true);
    }
    c->args.k_new = fattn_view_bshd(k_new, HKV, NEW, s->dim);
    c->args.v_new = fattn_view_bhsd(v_new, HKV, NEW, s->dim_v);
}

static void make_cache(appending *c, const sizes *s)
{
    const int64_t outer = s->page > 0 ? c->desc.pages : B, rows = s->page > 0 ? s->page : CAP;
    c->k_count = outer * HKV * rows * s->dim;
    c->v_count = outer * HKV * rows * s->dim_v;
    c->scales = c->kv == FATTN_I8 ? outer * HKV * rows : 0;
    c->args.k = fattn_view_bhsd(take_numbers(c->kv, c->k_count, 0, 0), HKV, rows, s->dim);
    c->args.v = fattn_view_bshd(take_numbers(c->kv, c->v_count, 0, 0), HKV, rows, s->dim_v);
    if (c->kv == FATTN_I8) {
        c->args.k_scales = take_numbers(FATTN_F32, c->scales, 0, 0);
        c->args.v_scales = take_numbers(FATTN_F32, c->scales, 0, 0);
    }
}

static void make(appending *c, int32_t dtype, bool bytes, const sizes *s, bool special)
{
    static const int32_t used_k[B] = {5, 0, CAP - NEW};
    arena_clear();
    *c = (appending){.dtype = dtype, .kv = bytes ? FATTN_I8 : dtype};
    c->args.struct_size = sizeof c->args;
    c->desc = (fattn_desc){.struct_size = sizeof c->desc,
                           .dtype = dtype,
                           .kv_dtype = c->kv,
                           .batch = B,
                           .heads_q = HQ,
                           .heads_kv = HKV,
                           .seq_q = NEW,
                           .seq_k = CAP,
                           .dim = s->dim,
                           .dim_v = s->dim_v};
    if (s->page > 0)
        spread_pages(c, s->page);
    make_new(c, s, special);
    make_cache(c, s);
    c->args.used_k = memcpy(take(sizeof used_k), used_k, sizeof used_k);
}

static void use_rotary(appending *c, int64_t dim, uint32_t interleaved)
{
    float *cosine = take((size_t)(CAP * dim / 2) * sizeof *cosine), *sine = take((size_t)(CAP * dim / 2) * sizeof *sine);
    for (int64_t n = 0; n < CAP * dim / 2; n++) {
        const double angle = (double)(n / (dim / 2)) * pow(100, -(double)(n % (dim / 2)) / (double)dim);
        cosine[n] = (float)cos(angle);
        sine[n] = (float)sin(angle);
    }
    c->args.rotary_cos = cosine;
    c->args.rotary_sin = sine;
    c->args.rotary_dim = dim;
    c->args.rotary_rows = CAP;
    c->args.interleaved = interleaved;
}

static void use_lengths(appending *c)
{
    static const int32_t used_q[B] = {1, 0, NEW};
    c->args.used_q = memcpy(take(sizeof used_q), used_q, sizeof used_q);
}

static void use_queries(appending *c)
{
    c->args.q = fattn_view_bshd(take_numbers(c->dtype, B * HQ * NEW * c->desc.dim, 3, 2), HQ, NEW, c->desc.dim);
}

static fattn_cache_args args_there(const fattn_cache_args *host)
{
    fattn_cache_args args = *host;
    args.k_new = view_there(host->k_new), args.v_new = view_there(host->v_new);
    args.k = view_there(host->k), args.v = view_there(host->v), args.q = view_there(host->q);
    args.used_k = there(host->used_k), args.used_q = there(host->used_q), args.page_table = there(host->page_table);
    args.k_scales = there(host->k_scales), args.v_scales = there(host->v_scales);
    args.rotary_cos = there(host->rotary_cos), args.rotary_sin = there(host->rotary_sin);
    args.stream = a.stream;
    return args;
}

static fattn_status append_there(const void *what)
{
    const appending *c = what;
    const fattn_cache_args on_gpu = args_there(&c->args);
    return fattn_cache_append(a.gpu_context, &c->desc, &on_gpu);
}

/* apart: the GPU's in a thread of its own. */
static void compare_called(const appending *c, bool apart)
{
    /* Products of narrower numbers are exact in double, so that it does not matter whether a sum is fused with one. */
    const bool rounds = c->dtype == FATTN_F64 && c->args.rotary_cos;
    const double relative = rounds ? 0x1p-51 : 0, absolute = rounds ? 1e-15 : 0;
    push();
    assert_ok(fattn_cache_append(a.cpu_context, &c->desc, &c->args));
    if (apart)
        assert_ok_apart(append_there, c);
    else
        assert_ok(append_there(c));
    pull();
    assert_alike("k", c->args.k.data, c->kv, c->k_count, relative, absolute);
    assert_alike("v", c->args.v.data, c->kv, c->v_count, 0, 0);
    assert_alike("k_scales", c->args.k_scales ? c->args.k_scales : c->args.k.data, FATTN_F32, c->scales, 0, 0);
    assert_alike("v_scales", c->args.v_scales ? c->args.v_scales : c->args.v.data, FATTN_F32, c->scales, 0, 0);
    if (c->args.q.data)
        assert_alike("q", c->args.q.data, c->dtype, B * HQ * NEW * c->desc.dim, relative, absolute);
    assert_rest();
}

static void compare(const appending *c)
{
    compare_called(c, false);
}

static const sizes all_sizes[] = {{8, 6, 0}, {64, 128, 16}, {512, 130, 0}, {33, 5, 3}, {128, 512, 1}, {2, 1, 64}};
enum { SIZES = sizeof all_sizes / sizeof *all_sizes };

/* Every type, and bytes beside all but double. */
static void for_all(bool special, void (*test)(appending *c))
{
    for (int32_t dtype = FATTN_F32; dtype <= FATTN_BF16; dtype++)
        for (int bytes = 0; bytes < (dtype == FATTN_F64 ? 1 : 2); bytes++)
            for (int s = 0; s < SIZES; s++) {
                appending c;
                make(&c, dtype, bytes, &all_sizes[s], special);
                test(&c);
            }
}

static void plain_then_short(appending *c)
{
    compare(c);
    use_lengths(c);
    compare(c);
}

static void without_turning(void **state)
{
    (void)state;
    needs_gpu();
    for_all(false, plain_then_short);
    for_all(true, plain_then_short);
}

/* All of a row turns or part of it, in either layout, without queries and with them. */
static void each_way_round(appending *c)
{
    const int64_t whole = c->desc.dim / 2 * 2, part = c->desc.dim >= 4 ? c->desc.dim / 4 * 2 : whole;
    use_rotary(c, whole, 0);
    compare(c);
    use_rotary(c, part, 1);
    compare(c);
    use_queries(c);
    compare(c);
    use_lengths(c);
    use_rotary(c, part, 0);
    compare(c);
    use_rotary(c, whole, 1);
    compare(c);
}

static void turning(void **state)
{
    (void)state;
    needs_gpu();
    for_all(false, each_way_round);
    for_all(true, each_way_round);
}

/* Shapes and pointers are checked as on the CPU; lists are not, as they lie on the GPU. */
static void refusals(void **state)
{
    appending c;
    (void)state;
    needs_gpu();
    make(&c, FATTN_F32, true, &all_sizes[1], false);
    push();
    fattn_cache_args args = args_there(&c.args);
    args.k_scales = NULL;
    assert_fails(fattn_cache_append(a.gpu_context, &c.desc, &args), FATTN_ERROR_ARGUMENT, "args.k_scales is NULL");
    args = args_there(&c.args);
    args.page_table = NULL;
    assert_fails(fattn_cache_append(a.gpu_context, &c.desc, &args), FATTN_ERROR_ARGUMENT, "args.page_table is NULL");
    args = args_there(&c.args);
    args.v = args.k;
    assert_fails(fattn_cache_append(a.gpu_context, &c.desc, &args), FATTN_ERROR_ARGUMENT, "args.v");
    pull();
    assert_rest();
}

static void without_a_context(void **state)
{
    appending c;
    (void)state;
    needs_gpu();
    make(&c, FATTN_BF16, true, &all_sizes[1], false);
    compare_called(&c, true);
}

static void no_rows(void **state)
{
    appending c;
    (void)state;
    needs_gpu();
    make(&c, FATTN_BF16, false, &all_sizes[0], false);
    c.desc.seq_q = 0;
    compare(&c);
    c.desc.batch = 0;
    compare(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(without_turning), cmocka_unit_test(turning), cmocka_unit_test(refusals),
                                       cmocka_unit_test(no_rows), cmocka_unit_test(without_a_context)};
    return cmocka_run_group_tests_name("cuda_cache", tests, arena_open, arena_close);
}
