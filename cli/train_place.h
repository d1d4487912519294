/*
 * --device and --dtype of the commands that run a model: train, eval, generate.
 */
#ifndef FATTN_CLI_TRAIN_PLACE_H
#define FATTN_CLI_TRAIN_PLACE_H

#include "train/runtime.h"

/* The words of the two options, NULL at the end; an option's value is an index. */
extern const char *const train_devices[], *const train_types[];

/* Opens what two such options ask for; a rank on a GPU has that of its number on the machine. rank NULL: the only process.
 * Returns CLI_OK, or another exit code when it has reported why not. */
int train_place_open(runtime *r, int place, int type, int64_t threads, const ranks_place *rank);

#endif
