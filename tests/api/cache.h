/*
 * A cache and what is to be appended to it: paged or not, in any type, poisoned before.
 */
#ifndef FATTN_TESTS_API_CACHE_H
#define FATTN_TESTS_API_CACHE_H

#include "numbers.h"

enum { B = 3, HQ = 4, HKV = 2, NEW = 5, CAP = 31, D = 8, DV = 6, SPARE = 3, POSITIONS = 64 };
enum { ROWS_MOST = 1024 }; /* of all heads and pages */

/* A cache, where it has got to, and what goes in next. */
typedef struct cache {
    fattn_context *context;
    fattn_desc desc;
    fattn_cache_args args;
    int32_t used_k[B], used_q[B], table[B * CAP];
    float k_scales[ROWS_MOST], v_scales[ROWS_MOST], cosine[POSITIONS * D / 2], sine[POSITIONS * D / 2];
    void *k, *v, *k_new, *v_new, *q;
    int64_t columns, rows; /* pages of a sequence; rows of one head in all of k */
    int32_t kv;            /* type of k and v */
} cache;

/* Each sequence has pages of its own, far from where one would look first. */
static inline void spread_pages(cache *c, int64_t page_size)
{
    c->columns = (CAP + page_size - 1) / page_size;
    c->desc.page_size = page_size;
    c->desc.pages = B * c->columns + SPARE;
    for (int64_t n = 0; n < B * c->columns; n++)
        c->table[n] = (int32_t)((n * 7 + 3) % (B * c->columns + SPARE)); /* 7 divides none of the counts of pages */
    c->args.page_table = c->table;
}

static inline fattn_view cache_view(const cache *c, void *data, int64_t dim)
{
    return fattn_view_bhsd(data, HKV, c->desc.page_size > 0 ? c->desc.page_size : CAP, dim);
}

static inline void cache_make(cache *c, int32_t dtype, int32_t kv_dtype, int64_t page_size, const char *kernel)
{
    memset(c, 0, sizeof *c);
    c->context = make_context(2, kernel);
    c->desc = (fattn_desc){.struct_size = sizeof c->desc,
                           .dtype = dtype,
                           .kv_dtype = kv_dtype,
                           .mask = FATTN_MASK_CAUSAL,
                           .align = FATTN_ALIGN_BOTTOM_RIGHT,
                           .batch = B,
                           .heads_q = HQ,
                           .heads_kv = HKV,
                           .seq_q = NEW,
                           .seq_k = CAP,
                           .dim = D,
                           .dim_v = DV};
    if (page_size > 0)
        spread_pages(c, page_size);
    const int32_t kv = c->kv = kv_dtype ? kv_dtype : dtype;
    c->rows = page_size > 0 ? c->desc.pages * page_size : B * CAP;
    c->k = make_numbers(kv, c->rows * HKV * D, 0, 0);
    c->v = make_numbers(kv, c->rows * HKV * DV, 0, 0);
    c->k_new = make_numbers(dtype, B * HKV * NEW * D, 1, 2);
    c->v_new = make_numbers(dtype, B * HKV * NEW * DV, 2, 2);
    c->q = make_numbers(dtype, B * HQ * NEW * D, 3, 2);
    memset(c->k_scales, POISON, sizeof c->k_scales);
    memset(c->v_scales, POISON, sizeof c->v_scales);
    c->args.struct_size = sizeof c->args;
    c->args.k_new = fattn_view_bhsd(c->k_new, HKV, NEW, D);
    c->args.v_new = fattn_view_bhsd(c->v_new, HKV, NEW, DV);
    c->args.k = cache_view(c, c->k, D);
    c->args.v = cache_view(c, c->v, DV);
    c->args.used_k = c->used_k;
    if (kv == FATTN_I8) {
        c->args.k_scales = c->k_scales;
        c->args.v_scales = c->v_scales;
    }
}

static inline void cache_free(cache *c)
{
    free(c->k), free(c->v), free(c->k_new), free(c->v_new), free(c->q);
    fattn_context_destroy(c->context);
}

static inline void use_rotary(cache *c, int64_t dim, uint32_t interleaved)
{
    for (int64_t n = 0; n < POSITIONS * dim / 2; n++) {
        const double angle = (double)(n / (dim / 2)) * pow(100, -(double)(n % (dim / 2)) / (double)dim);
        c->cosine[n] = (float)cos(angle);
        c->sine[n] = (float)sin(angle);
    }
    c->args.rotary_cos = c->cosine;
    c->args.rotary_sin = c->sine;
    c->args.rotary_dim = dim;
    c->args.rotary_rows = POSITIONS;
    c->args.interleaved = interleaved;
    c->args.q = fattn_view_bhsd(c->q, HQ, NEW, D);
}

static inline fattn_status append(cache *c)
{
    return fattn_cache_append(c->context, &c->desc, &c->args);
}

/* Which row of the cache, counted without its elements, holds key j of head h: also the index of its factor. */
static inline int64_t row_at(const cache *c, int64_t b, int64_t h, int64_t j)
{
    const int64_t p = c->desc.page_size;
    return p > 0 ? (c->table[b * c->columns + j / p] * HKV + h) * p + j % p : (b * HKV + h) * CAP + j;
}

/* Where element x of new row i lies in k_new or v_new, and in q. */
static inline int64_t new_at(int64_t heads, int64_t b, int64_t h, int64_t i, int64_t dim)
{
    return ((b * heads + h) * NEW + i) * dim;
}

static inline void all_poison(const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(((const unsigned char *)data)[i], POISON);
}

#endif
