/*
 * A small problem with everything a call needs, for tests to spoil one thing of. Outputs are poisoned and lie between guards.
 */
#ifndef FATTN_TESTS_API_API_H
#define FATTN_TESTS_API_API_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h> /* after the headers it wants */

#include "fattn/fattn.h"

enum { BATCH = 2, HEADS_Q = 4, HEADS_KV = 2, SEQ_Q = 5, SEQ_K = 7, DIM = 3, DIM_V = 6 };
enum { Q_ROWS = BATCH * HEADS_Q * SEQ_Q, K_ROWS = BATCH * HEADS_KV * SEQ_K, GUARD = 64, ROOM = 4096 };

/* Bytes of an output and its guards. */
typedef struct output {
    _Alignas(64) unsigned char before[GUARD];
    _Alignas(64) unsigned char data[ROOM];
    unsigned char after[GUARD];
} output;

typedef struct fixture {
    fattn_context *context;
    fattn_desc desc;
    fattn_forward_args forward;
    fattn_backward_args backward;
    const char *kernel;
    _Alignas(64) double q[Q_ROWS * DIM], k[K_ROWS * DIM], v[K_ROWS * DIM_V], dout[Q_ROWS * DIM_V];
    output out, lse, dq, dk, dv; /* forward's and backward's */
    double saved_out[Q_ROWS * DIM_V], saved_lse[Q_ROWS];
} fixture;

enum { POISON = 0xa5 };

static inline void poison(fixture *f)
{
    output *all[] = {&f->out, &f->lse, &f->dq, &f->dk, &f->dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        memset(all[i], POISON, sizeof(output));
    f->kernel = "untouched";
}

/* Nothing was written since poison(). */
static inline void assert_untouched(const fixture *f)
{
    const output *all[] = {&f->out, &f->lse, &f->dq, &f->dk, &f->dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const unsigned char *bytes = (const unsigned char *)all[i];
        for (size_t b = 0; b < sizeof(output); b++)
            assert_int_equal(bytes[b], POISON);
    }
    assert_string_equal(f->kernel, "untouched");
}

static inline void assert_guarded(const output *o, size_t bytes)
{
    for (size_t b = 0; b < GUARD; b++)
        assert_true(o->before[b] == POISON && o->after[b] == POISON);
    for (size_t b = bytes; b < ROOM; b++)
        assert_int_equal(o->data[b], POISON);
}

static inline double random_number(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (1 << 23) - 1;
}

/* Numbers of dtype into memory that has room for doubles. */
static inline void fill(void *data, int32_t dtype, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        const double x = random_number(&seed);
        if (dtype == FATTN_F64)
            ((double *)data)[i] = x;
        else
            ((float *)data)[i] = (float)x;
    }
}

static inline fattn_context *make_context(int32_t threads, const char *kernel)
{
    fattn_context *context;
    const fattn_context_options options = {.struct_size = sizeof options, .threads = threads, .kernel = kernel};
    assert_int_equal(fattn_context_create(&options, &context), FATTN_OK);
    return context;
}

/* The problem; its workspace fits the kernels of its context, and backward has forward's real results. */
static inline void fixture_make(fixture *f, int32_t dtype, const char *kernel)
{
    size_t bytes[3];
    memset(f, 0, sizeof *f);
    f->context = make_context(2, kernel);
    f->desc = (fattn_desc){.struct_size = sizeof f->desc,
                           .dtype = dtype,
                           .mask = FATTN_MASK_CAUSAL,
                           .align = FATTN_ALIGN_BOTTOM_RIGHT,
                           .batch = BATCH,
                           .heads_q = HEADS_Q,
                           .heads_kv = HEADS_KV,
                           .seq_q = SEQ_Q,
                           .seq_k = SEQ_K,
                           .dim = DIM,
                           .dim_v = DIM_V};
    fill(f->q, dtype, Q_ROWS * DIM, 1);
    fill(f->k, dtype, K_ROWS * DIM, 2);
    fill(f->v, dtype, K_ROWS * DIM_V, 3);
    fill(f->dout, dtype, Q_ROWS * DIM_V, 4);
    const fattn_view q = fattn_view_bhsd(f->q, HEADS_Q, SEQ_Q, DIM), k = fattn_view_bhsd(f->k, HEADS_KV, SEQ_K, DIM);
    const fattn_view v = fattn_view_bhsd(f->v, HEADS_KV, SEQ_K, DIM_V);
    assert_int_equal(fattn_workspace_size(f->context, &f->desc, FATTN_OP_FORWARD, &bytes[FATTN_OP_FORWARD]), FATTN_OK);
    assert_int_equal(fattn_workspace_size(f->context, &f->desc, FATTN_OP_BACKWARD, &bytes[FATTN_OP_BACKWARD]), FATTN_OK);
    f->forward = (fattn_forward_args){.struct_size = sizeof f->forward,
                                      .q = q,
                                      .k = k,
                                      .v = v,
                                      .out = fattn_view_bhsd(f->out.data, HEADS_Q, SEQ_Q, DIM_V),
                                      .lse = f->lse.data,
                                      .workspace = malloc(bytes[FATTN_OP_FORWARD]),
                                      .workspace_size = bytes[FATTN_OP_FORWARD],
                                      .kernel = &f->kernel};
    assert_int_equal(fattn_forward(f->context, &f->desc, &f->forward), FATTN_OK);
    memcpy(f->saved_out, f->out.data, sizeof f->saved_out);
    memcpy(f->saved_lse, f->lse.data, sizeof f->saved_lse);
    f->backward = (fattn_backward_args){.struct_size = sizeof f->backward,
                                        .q = q,
                                        .k = k,
                                        .v = v,
                                        .out = fattn_view_bhsd(f->saved_out, HEADS_Q, SEQ_Q, DIM_V),
                                        .dout = fattn_view_bhsd(f->dout, HEADS_Q, SEQ_Q, DIM_V),
                                        .dq = fattn_view_bhsd(f->dq.data, HEADS_Q, SEQ_Q, DIM),
                                        .dk = fattn_view_bhsd(f->dk.data, HEADS_KV, SEQ_K, DIM),
                                        .dv = fattn_view_bhsd(f->dv.data, HEADS_KV, SEQ_K, DIM_V),
                                        .lse = f->saved_lse,
                                        .workspace = malloc(bytes[FATTN_OP_BACKWARD]),
                                        .workspace_size = bytes[FATTN_OP_BACKWARD],
                                        .kernel = &f->kernel};
    poison(f);
}

static inline void fixture_free(fixture *f)
{
    free(f->forward.workspace);
    free(f->backward.workspace);
    fattn_context_destroy(f->context);
}

/* The status is as wanted, and the message has these words; nothing was written. */
static inline void assert_refused(const fixture *f, fattn_status got, fattn_status wanted, const char *words)
{
    if (got != wanted || !strstr(fattn_last_error(), words))
        print_error("wanted %s about \"%s\", got %s: %s\n", fattn_status_name(wanted), words, fattn_status_name(got),
                    fattn_last_error());
    assert_int_equal(got, wanted);
    assert_non_null(strstr(fattn_last_error(), words));
    assert_null(strchr(fattn_last_error(), '\n'));
    assert_untouched(f);
}

#endif
