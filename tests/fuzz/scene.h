/*
 * A call of the library made from bytes: a descriptor, the tensors that it asks for, and perhaps something wrong with them.
 */
#ifndef FATTN_TESTS_FUZZ_SCENE_H
#define FATTN_TESTS_FUZZ_SCENE_H

#include "arena.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* clang-format off */
typedef enum tensor_id {
    Q, K, V, OUT, LSE, DOUT, DQ, DK, DV, FORWARD_SPACE, BACKWARD_SPACE,
    CU_Q, CU_K, USED_Q, USED_K, MASK_LO, MASK_HI, DOCUMENT_Q, DOCUMENT_K, PAGE_TABLE,
    BIAS, SLOPES, SINKS, K_SCALES, V_SCALES, DLSE, DBIAS, DSINKS,
    TENSORS
} tensor_id;
/* clang-format on */

enum { BATCH_MOST = 8, ROWS_MOST = 4096, WORK_MOST = 400000 };

/* A problem and its memory. */
typedef struct scene {
    fattn_desc desc;
    size_t desc_claims; /* its struct_size; what lies behind it is 0 in desc */
    bool desc_tail;     /* something is set behind what the library knows */
    bool numbers_wild;  /* some numbers are infinite, or results may be */
    bool loose;         /* some list of lengths may be wrong, or something overlap: who owns what is uncertain */
    bool refused;       /* a list says what is to be refused */
    bool no_lse;        /* forward is not asked for it */
    tensor tensor[TENSORS];
    bool packed_q, packed_k;
    int32_t lengths_q[BATCH_MOST], lengths_k[BATCH_MOST]; /* of the sequences: rows that exist */
    int32_t rooms_q[BATCH_MOST], rooms_k[BATCH_MOST];     /* and the rows that they have room for */
    int64_t mask_stride;
    uint8_t used_q[ROWS_MOST], used_k[ROWS_MOST], used_lse[ROWS_MOST];
} scene;

/* ------------------------------------------------------------------------------------------------------ drawn: scene.c */

/* The descriptor: small numbers mostly, now and then a field that is anything. */
void scene_describe(scene *s, fuzz_input *in);

/* Whether the problem is small enough to be run. */
bool scene_fits(const fattn_desc *d);

/* What a struct says of its own size: mostly the truth. *tail: something is set behind what the library knows. */
size_t scene_claim(size_t own_size, fuzz_input *in, bool *tail);

/* Now and then makes something wrong with the memory: a tensor moved onto another one, off its alignment, or missing. */
void scene_spoil(scene *s, fuzz_input *in);

/* ------------------------------------------------------------------------------------------------ built: scene_build.c */

/* Gives every tensor that the descriptor asks for its place and its elements. False if they need too much memory. */
bool scene_place(scene *s, fuzz_input *in, size_t forward_space, size_t backward_space);

/* Notes which rows of queries, or of keys that are not paged, exist, as the lengths say. */
void scene_use(scene *s, bool keys);

/* Gives `count` tensors, but for lists, numbers of their types that `numbers` says. Returns whether these are wild: one in
 * eight is any bits at all. */
bool scene_fill(tensor *all, int count, uint8_t numbers);

/* Who may touch what in a forward or a backward call. */
void scene_roles(scene *s, fattn_op op);

/* Structs, each alone in memory of exactly the size that it claims; the caller frees them. */
fattn_desc *scene_desc(const scene *s);
fattn_forward_args *scene_forward_args(scene *s, fuzz_input *in, const char **kernel);
fattn_backward_args *scene_backward_args(const scene *s, fuzz_input *in, const char **kernel);

#endif
