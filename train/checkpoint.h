/*
 * Checkpoints: a folder of three files, and those of the tokenizer.
 *
 *     model.safetensors       every parameter, F32, by its name
 *     optimizer.safetensors   AdamW's moments, F32: "m." and "v." before the parameter's name
 *     state.json              the step, the random state, the data position, the model's and the run's configuration, and
 *                             size and SHA-256 of the other files; its last member is the SHA-256 of the bytes before it
 *     tokenizer.json ...      the tokenizer's (tokenizer.h), unless it is the bytes
 *
 * A new checkpoint is written to FOLDER.fattn-new, synced, and exchanged with FOLDER in one atomic step, so whoever is killed
 * at any moment leaves a whole one behind. Files of other names in the folder are kept.
 */
#ifndef TRAIN_CHECKPOINT_H
#define TRAIN_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "data.h"
#include "guard.h"
#include "model.h"
#include "optimizer.h"
#include "tokenizer.h"

typedef struct checkpoint_file {
    int64_t bytes; /* -1: not part of this checkpoint */
    char sha256[65];
} checkpoint_file;

typedef struct checkpoint_state {
    int64_t step;  /* updates made */
    uint64_t seed; /* with step and position all of the random state: what is drawn is a function of these */
    data_position position;
    guard_memory guard;
    model_config model;
    char *configuration;                              /* JSON object: the options of the run */
    const tokenizer *words;                           /* saving: its files are kept; NULL or the bytes: there are none */
    checkpoint_file model_file, optimizer_file;       /* set by saving; what loading verifies */
    checkpoint_file tokenizer_files[TOKENIZER_FILES]; /* of tokenizer_file_names, likewise */
} checkpoint_state;

/* What may lie in a checkpoint's folder before there is a checkpoint: loop.h. */
#define TRAIN_STOPPED_FOLDER "stopped"

/* False, with train_error() set, if the folder exists and holds something but is no checkpoint: it would be replaced. */
bool checkpoint_folder_usable(const char *folder);

/* optimizer may be NULL: then the checkpoint can be used but not continued. One whose moments are shared out among ranks was
 * gathered before; rank 0 saves. */
bool checkpoint_save(const char *folder, const model *m, const optimizer *o, checkpoint_state *state);

/* Reads and verifies state.json. False, with train_error() set, if it is missing, altered, or of another version. */
bool checkpoint_read_state(const char *folder, checkpoint_state *state);
void checkpoint_state_free(checkpoint_state *state);

/* A model as recorded: verifies the checksum, then every name, type and shape. NULL, with train_error() set, if anything is
 * wrong. */
model *checkpoint_load_model(const char *folder, const checkpoint_state *state);
/* Fills in moments and step of an optimizer made for that model. */
bool checkpoint_load_optimizer(const char *folder, const checkpoint_state *state, optimizer *o);
/* Verifies the tokenizer's files. What tokenizer_open() takes, for the caller to free: the path of tokenizer.json, or "bytes"
 * where none is recorded. NULL, with train_error() set, if anything is wrong. */
char *checkpoint_tokenizer(const char *folder, const checkpoint_state *state);

#endif
