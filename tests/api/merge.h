/*
 * Partial results of the same rows, of every type and in several layouts, and what is made of them.
 */
#ifndef FATTN_TESTS_API_MERGE_H
#define FATTN_TESTS_API_MERGE_H

#include "numbers.h"

enum { B = 2, H = 3, S = 7, DV = 5, ROWS = B * H * S, PARTS_MOST = 12 };

/* Partial results of the same rows, and room for what becomes of them; for numbers too as much as for tensors, so that a test
 * can lay one over the other and meet nothing else. */
typedef struct parts {
    fattn_context *context;
    fattn_desc desc;
    int32_t count, type; /* of partials */
    void *out[PARTS_MOST], *lse[PARTS_MOST], *dout_p[PARTS_MOST], *dlse_p[PARTS_MOST];
    fattn_view outs[PARTS_MOST], douts[PARTS_MOST];
    const void *lses[PARTS_MOST];
    void *dlses[PARTS_MOST];
    void *whole, *whole_lse, *dout, *dlse;
    fattn_merge_args forward;
    fattn_merge_backward_args backward;
} parts;

static inline void parts_make(parts *p, int32_t dtype, int32_t out_dtype, int32_t count)
{
    memset(p, 0, sizeof *p);
    p->context = make_context(2, NULL);
    p->count = count;
    p->type = dtype == FATTN_F64 ? FATTN_F64 : FATTN_F32;
    p->desc = (fattn_desc){.struct_size = sizeof p->desc,
                           .dtype = dtype,
                           .out_dtype = out_dtype,
                           .batch = B,
                           .heads_q = H,
                           .heads_kv = 1,
                           .seq_q = S,
                           .seq_k = 9,
                           .dim = 4,
                           .dim_v = DV};
    for (int32_t i = 0; i < count; i++) {
        p->out[i] = make_numbers(p->type, ROWS * DV, 10 + (uint64_t)i, 2);
        p->lses[i] = p->lse[i] = make_numbers(p->type, ROWS * DV, 20 + (uint64_t)i, 3);
        p->dout_p[i] = make_numbers(p->type, ROWS * DV, 0, 0);
        p->dlses[i] = p->dlse_p[i] = make_numbers(p->type, ROWS * DV, 0, 0);
        /* Layouts differ from part to part. */
        p->outs[i] = i % 2 ? fattn_view_bshd(p->out[i], H, S, DV) : fattn_view_bhsd(p->out[i], H, S, DV);
        p->douts[i] = i % 2 ? fattn_view_bhsd(p->dout_p[i], H, S, DV) : fattn_view_bshd(p->dout_p[i], H, S, DV);
    }
    const int32_t wide = out_dtype ? out_dtype : dtype;
    p->whole = make_numbers(wide, ROWS * DV, 0, 0);
    p->whole_lse = make_numbers(p->type, ROWS * DV, 0, 0);
    p->dout = make_numbers(wide, ROWS * DV, 30, 1);
    p->dlse = make_numbers(p->type, ROWS * DV, 31, 1);
    p->forward = (fattn_merge_args){.struct_size = sizeof p->forward,
                                    .count = count,
                                    .outs = p->outs,
                                    .lses = p->lses,
                                    .out = fattn_view_bshd(p->whole, H, S, DV),
                                    .lse = p->whole_lse};
    p->backward = (fattn_merge_backward_args){.struct_size = sizeof p->backward,
                                              .count = count,
                                              .outs = p->outs,
                                              .lses = p->lses,
                                              .out = p->forward.out,
                                              .lse = p->whole_lse,
                                              .dout = fattn_view_bhsd(p->dout, H, S, DV),
                                              .dlse = p->dlse,
                                              .douts = p->douts,
                                              .dlses = p->dlses};
}

static inline void parts_free(parts *p)
{
    for (int32_t i = 0; i < p->count; i++)
        free(p->out[i]), free(p->lse[i]), free(p->dout_p[i]), free(p->dlse_p[i]);
    free(p->whole), free(p->whole_lse), free(p->dout), free(p->dlse);
    fattn_context_destroy(p->context);
}

/* Element (b, h, i, x) of a view. */
static inline int64_t at(const fattn_view *view, int64_t n, int64_t x)
{
    return n / S / H * view->stride_batch + n / S % H * view->stride_head + n % S * view->stride_row + x;
}

#endif
