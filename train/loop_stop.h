/*
 * What a run leaves behind that the guard stops; for loop.c.
 */
#ifndef TRAIN_LOOP_STOP_H
#define TRAIN_LOOP_STOP_H

#include "checkpoint.h"
#include "saved_batch.h"

/* Writes the state before the update that was not made, and its batch, to the folder TRAIN_STOPPED_FOLDER of `out`. False if
 * that cannot be done; else train_error() is what it was. */
bool loop_stop_save(const char *out, const model *m, const optimizer *o, checkpoint_state *state, const saved_batch *batch,
                    double loss, double norm);

#endif
