/*
 * One block of memory with all the tensors of a call, for fuzz_api.c. Bytes that belong to no tensor, between them and between
 * their rows, may neither be read nor written: with AddressSanitizer either ends the process at once, without it writes show
 * afterwards.
 */
#ifndef FATTN_TESTS_FUZZ_ARENA_H
#define FATTN_TESTS_FUZZ_ARENA_H

#include "fattn/fattn.h"
#include "fuzz.h"

enum { ARENA_BYTES = 8 << 20, ARENA_MOST = 3 << 20 };

/* What the call at hand may do with a tensor's bytes: nothing, read them, write them, change them in place, or anything, so
 * that they hold nothing afterwards. */
typedef enum tensor_role { ROLE_NONE, ROLE_INPUT, ROLE_OUTPUT, ROLE_CHANGED, ROLE_SCRATCH } tensor_role;

/* A tensor [batch, heads, rows, cols]: what it is like, and where it lies. */
typedef struct tensor {
    int64_t batch, heads, rows, cols;
    int32_t dtype;            /* a fattn_dtype, or TENSOR_I32 */
    bool plain;               /* contiguous; else strides are chosen */
    bool distinct;            /* no two elements may share a place: it is an output of some call */
    const uint8_t *rows_used; /* [batch * rows]: which rows exist; NULL = all */
    tensor_role role;
    fattn_view view;   /* where it truly is */
    fattn_view given;  /* where the call is told that it is: the same, unless that is to be refused */
    int64_t low, high; /* bytes from view.data: the first one and the one past the last */
} tensor;

enum { TENSOR_I32 = 101 };

size_t tensor_size(const tensor *t); /* bytes of an element */
bool tensor_empty(const tensor *t);
/* Bytes of the row at (b, h, i). */
unsigned char *tensor_row(const tensor *t, int64_t b, int64_t h, int64_t i);

/* Forgets all tensors. */
void arena_begin(void);
/* Gives a tensor strides, padding, an order of its dimensions and a place, all of it as `in` says. False if there is no room.
 */
bool arena_place(tensor *t, fuzz_input *in);
/* Moves a tensor to `delta` elements behind the beginning of another; false, and nothing happens, if it would not fit there. */
bool arena_move(tensor *t, const tensor *onto, int64_t delta);

/* What belongs to whom is settled: from arena_close to arena_open the other bytes are out of bounds. arena_close sets outputs
 * and scratch to this byte, and remembers all. `loose`: nothing is out of bounds. */
void arena_close(const tensor *all, int count, int poison, bool loose);
void arena_open(void);

/* After arena_open: has anything changed since arena_close that belongs to no output? */
bool arena_outside_same(void);
/* Has anything changed at all? */
bool arena_same(void);
/* The bytes of what was written or changed, to compare them: a hash. */
uint64_t arena_outputs(void);

#endif
