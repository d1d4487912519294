/*
 * Context parallel: attention over a sequence whose rows lie on several ranks (ring attention: Liu, Zaharia and Abbeel 2023).
 *
 * A sequence is cut into 2 N chunks of equal length; shard c of N has chunks c and 2 N - 1 - c, its two halves, one behind the
 * other
 * ("zig-zag": with a causal mask every shard then has the same work in every round). Keys and values go round the ring of
 * shards, and each shard computes its queries with those at hand:
 *
 *     its own            half 0 with the keys of half 0, causal; half 1 with all, causal
 *     of a lower shard   both halves with the keys of half 0, which are all before them; those of half 1 are behind
 *     of a higher shard  half 1 with all keys, which are all before it; half 0 is before them
 *
 * Documents (model.h) bound what a row sees in each of these. Every shard knows those of whole sequences, so that they need not
 * travel. A row whose document has no keys in a block gets nothing from it.
 *
 * Forward joins the partial results, which are float, by fattn_merge. Backward gives fattn_backward for each part of the keys
 * the out and lse of the whole; the sums of dk and dv, float too, travel with their keys and come home in the last round.
 */
#ifndef TRAIN_RING_H
#define TRAIN_RING_H

#include "attention.h"

/* Rows that each shard has of sequences of `seq`; 0 with train_error() set if they cannot be cut up. */
int64_t ring_rows(const ranks *r, int64_t seq);
/* The position of this shard's row i of `rows`. */
int64_t ring_position(const ranks *r, int64_t rows, int64_t i);
/* Documents as attention->documents has them where rows are shared: from those of all rows [batch, seq] to `placed` [2 batch
 * seq], which holds each chunk's rows together, and after them each shard's. */
void ring_place_documents(const ranks *r, int64_t batch, int64_t seq, const int32_t *documents, int32_t *placed);

/* As attention_workspace, attention_forward and attention_backward, which call these where a->ring is set; q, k, v and the
 * others are this shard's rows, seq_q = seq_k of them in a sequence. lse [2, batch, heads, rows / 2], by halves. */
bool ring_workspace(const attention *a, fattn_op op, size_t *bytes);
bool ring_forward(const attention *a, attention_rows q, attention_rows k, attention_rows v, attention_rows out, float *lse,
                  void *workspace, size_t bytes);
bool ring_backward(const attention *a, attention_rows q, attention_rows k, attention_rows v, attention_rows out,
                   attention_rows dout, const float *lse, attention_rows dq, attention_rows dk, attention_rows dv,
                   void *workspace, size_t bytes);

#endif
