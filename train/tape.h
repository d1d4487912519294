/*
 * The tape: automatic differentiation of a graph that stays the same from step to step.
 *
 *     record   every layer function (layers/layers.h) appends a node and returns the tensor it will write
 *     plan     writes down the order of work - forward of every node, then backward in reverse - works out how long every
 *              buffer is needed, and places all of them in one arena
 *     replay   tape_forward(), tape_finish() and tape_backward() run the nodes; nothing is allocated, but where a device notes
 *              down the work of the second time, and from then on does it as a whole
 *
 * Gradients: the first node to reach a tensor on the way back writes its gradient and the others add, which is settled
 * while planning, so nothing is cleared. Gradients of parameters are always added to; whoever owns them clears them.
 *
 * Recomputing: nodes recorded between tape_begin_segment() and tape_end_segment() may be run a second time, just before the
 * backward of their segment. Then only what enters and leaves a segment is kept in between. The second run does the same
 * arithmetic on the same numbers, so gradients are the same bits with and without it.
 */
#ifndef TRAIN_TAPE_H
#define TRAIN_TAPE_H

#include "device.h"
#include "memory_plan.h"
#include "tensor.h"
#include <stddef.h>

enum { NODE_INPUTS = 3, NODE_STATE = 256 };

typedef struct node node;
struct node {
    const char *name;
    device *device;           /* the tape's: what works on it */
    number_type type;         /* the tape's: of activations that go into products */
    bool (*forward)(node *n); /* false, with train_error() set, only for what the plan could not foresee */
    bool (*backward)(node *n);
    bool late;               /* backward does all that forward does, too; such nodes are recorded last */
    tensor *in[NODE_INPUTS]; /* NULL: none */
    tensor *out;             /* NULL: none (the loss) */
    void *state;             /* the layer's own numbers; freed with the tape */

    /* What backward reads besides the gradient of `out`. */
    bool reads_in[NODE_INPUTS];
    bool reads_out;
    /* The gradient of this input is that of `out`, in the same memory (a residual connection); -1: none. */
    int passes_gradient;
    size_t saved_bytes;                           /* written by forward, read by backward */
    size_t forward_workspace, backward_workspace; /* bytes, for the duration of one call */

    /* Set by the plan. */
    bool accumulate[NODE_INPUTS]; /* backward adds to the gradient of this input instead of writing it */
    void *saved, *workspace;      /* workspace: of the call being made */

    /* for the tape */
    int segment, saved_buffer;
    int tells;  /* what tape_tell() was given; -1: nothing */
    bool again; /* runs a second time when recomputing */
};

typedef struct tape tape;

/* On a device, whose memory the arena will be of; type: of activations that go into products. */
tape *tape_create(device *d, number_type type);
void tape_free(tape *t);

/* ---- record. These never give NULL: once memory has run out they give scrap, and tape_plan() then fails. */

/* A tensor [rows, cols] that the next node will write; its gradient has the same type, unless the caller sets another. */
tensor *tape_tensor(tape *t, int64_t rows, int64_t cols, number_type type);
/* Columns first .. first + cols - 1 of `whole`. A tensor is used either as a whole or through views that do not overlap. */
tensor *tape_columns(tape *t, tensor *whole, int64_t first, int64_t cols);
/* Appends a node with state_bytes <= NODE_STATE of zeroed state; the caller fills it in. */
node *tape_node(tape *t, const char *name, size_t state_bytes);
/* Lets tape_plan() fail: the recorder has set train_error(). */
void tape_fail(tape *t);
/* Keeps the values of this tensor until the end of forward and backward, for somebody outside to read. A tensor that no node
 * writes (an input that somebody outside fills in) is kept anyway, and so is its gradient. The gradient of a tensor that no
 * node reads is for somebody outside to write before tape_backward(). */
void tape_keep(tape *t, tensor *x);
void tape_begin_segment(tape *t);
void tape_end_segment(tape *t);
/* Lets tape_backward() tell `what` >= 0 when the backward of the node recorded last, and so of all after it, is on its way. */
void tape_tell(tape *t, int what);

/* ---- plan and replay */

typedef struct tape_options {
    bool backward;                      /* false: forward only, and buffers are reused as soon as forward has read them */
    bool recompute;                     /* run segments again in backward instead of keeping their inner tensors */
    bool (*told)(void *user, int what); /* whom tape_tell() means. False: it failed */
    void *user;
    bool one_by_one; /* never noted down: some node's work cannot be */
} tape_options;

bool tape_plan(tape *t, const tape_options *options);
bool tape_forward(tape *t); /* but for nodes that are late */
bool tape_finish(tape *t);  /* their forward; with backward to come, only if what they write is wanted before */
bool tape_backward(tape *t);

typedef enum tape_direction { TAPE_FORWARD, TAPE_BACKWARD, TAPE_DIRECTIONS } tape_direction;

/* What nodes are told in this direction, apart from the plan's addresses, has changed: what was noted holds no more. */
void tape_changed(tape *t, tape_direction way);
const memory_plan *tape_memory(const tape *t);

#endif
