/*
 * A batch in a file, to be trained on again: what a run that the guard stops leaves behind, and what --replay reads. A
 * safetensors file with `tokens` and `targets`, I32 [micro-batches, batch, seq], and in its metadata the step, loss and norm.
 */
#ifndef TRAIN_SAVED_BATCH_H
#define TRAIN_SAVED_BATCH_H

#include <stdbool.h>
#include <stdint.h>

typedef struct saved_batch {
    int64_t parts, batch, seq;
    int32_t *tokens, *targets; /* [parts, batch, seq]; targets lies behind tokens in one piece of memory */
} saved_batch;

/* Room for the numbers. */
saved_batch saved_batch_room(int64_t parts, int64_t batch, int64_t seq);
void saved_batch_free(saved_batch *b);

bool saved_batch_write(const char *path, const saved_batch *b, int64_t step, double loss, double norm);
/* False, with train_error() set, if the file is none, or one of other sizes than `b` has room for. */
bool saved_batch_read(const char *path, saved_batch *b);

#endif
