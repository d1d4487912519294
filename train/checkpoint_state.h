/*
 * The file state.json of a checkpoint, and the checksums it records; for checkpoint.c.
 */
#ifndef TRAIN_CHECKPOINT_STATE_H
#define TRAIN_CHECKPOINT_STATE_H

#include "checkpoint.h"

bool checkpoint_file_size(const char *path, int64_t *bytes);
/* Size and SHA-256. */
bool checkpoint_file_measure(const char *path, checkpoint_file *file);

/* Writes and syncs it. */
bool checkpoint_state_write(const char *path, const checkpoint_state *state);

/* Reads it and verifies its own checksum. */
bool checkpoint_state_read(const char *path, checkpoint_state *state);

#endif
