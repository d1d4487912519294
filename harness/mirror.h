/*
 * A GPU's memory that stands in for the arenas of a case during a call: what they hold goes there, the call works on it, and
 * all of it comes back, inputs, guard bands and gaps too, so that judging need not know where the call ran.
 */
#ifndef HARNESS_MIRROR_H
#define HARNESS_MIRROR_H

#include "fattn/fattn.h"
#include "run.h"

/* Opens GPU `index`. NULL, with the reason, where there is none or the build has no CUDA. */
mirror *mirror_open(int index, char *reason, size_t size);
void mirror_close(mirror *m);

/* Whether the GPU has memory for a case's arenas. */
bool mirror_has_room(const mirror *m, const test_case *c);

/* Copies a case's arenas and `bytes` at `workspace` to the GPU. False, with the reason, after an error; *no_memory: it was that
 * the GPU has not enough memory now, as other programs have it. */
bool mirror_push(mirror *m, const test_case *c, void *workspace, size_t bytes, bool *no_memory, char *reason, size_t size);

/* Gives back memory that only the largest cases need. */
void mirror_shrink(mirror *m);

/* Makes every pointer to what was pushed, and struct pointers' data, point to the GPU. bias, dbias: room for the views. */
void mirror_move_forward(const mirror *m, fattn_forward_args *args, fattn_view *bias);
void mirror_move_backward(const mirror *m, fattn_backward_args *args, fattn_view *bias, fattn_view *dbias);

/* Waits for the GPU and copies all back. False, with the reason, after an error of the GPU, which is then of no more use. */
bool mirror_pull(mirror *m, const test_case *c, char *reason, size_t size);

#endif
