/*
 * fattn gradcheck: what its files share.
 */
#ifndef FATTN_CLI_GRADCHECK_H
#define FATTN_CLI_GRADCHECK_H

#include "run.h"

enum { GRAD_PARTS_MAX = 8 };

/* How a problem with its keys in parts is put together again. */
typedef enum grad_join {
    GRAD_WHOLE, /* it is not cut */
    GRAD_MERGE, /* fattn_merge and fattn_merge_backward, then every part by itself */
    GRAD_RING   /* fattn_merge, then every part with the out and lse of the whole */
} grad_join;

/* One part of the keys: its own out, lse and dq, and what the library takes for it. */
typedef struct grad_part {
    fattn_desc desc;
    int64_t first; /* its first key */
    void *out, *lse, *dout, *dlse, *dq;
    int32_t *lo, *hi; /* of the keys that each row keeps, counted from its first */
} grad_part;

/* A problem with its numbers. c.t has all tensors; out and lse are those of the last forward. */
typedef struct grad_state {
    test_case c;
    grad_join join;
    int parts;
    grad_part part[GRAD_PARTS_MAX];
} grad_state;

/* What about this problem finite differences cannot check; NULL if nothing. */
const char *grad_wrong(const problem *p, grad_join join, int parts);

bool grad_open(grad_state *g, const problem *p, grad_join join, int parts);
void grad_close(grad_state *g);

/* Run the library; false after an error, which fattn_last_error has. */
bool grad_forward(grad_state *g, const fattn_context *context);
bool grad_backward(grad_state *g, const fattn_context *context);

/* sum(dout * out) of the rows that exist, and sum(dlse * lse) if the problem has dlse. */
double grad_loss(const grad_state *g);

#endif
