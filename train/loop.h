/*
 * The training loop: batches in, updates out, with evaluation, samples and checkpoints at their intervals.
 *
 * Ranks (runtime.h) each run it, with the same options, and take their parts of every update (gradients.h) and evaluation. Rank
 * 0 reports, samples and saves.
 */
#ifndef TRAIN_LOOP_H
#define TRAIN_LOOP_H

#include <stdatomic.h>

#include "checkpoint.h"
#include "data.h"
#include "gradients.h"
#include "guard.h"
#include "model.h"
#include "optimizer.h"
#include "schedule.h"

/* What one step came to. */
typedef struct train_report {
    int64_t step; /* counted from 1: updates made, this one included */
    double loss, lr, grad_norm;
    double ms, tokens_per_s; /* of the update alone, without evaluation and saving */
    double seconds_left;     /* until the last step, at the pace so far */
    double flops_per_s;      /* the model's, likewise: flops.h */
    bool skipped;            /* by the guard: nothing was changed */
    size_t mem_bytes;        /* parameters, gradients, optimizer and the planned memory of the steps */
    bool has_val;
    double val_loss;
    double val_bits_per_byte; /* 0: nobody knows the bytes */
} train_report;

typedef struct train_options {
    int64_t batch, seq, accumulate; /* windows per micro-batch, their length, micro-batches per update on each rank */
    lr_schedule schedule;
    uint64_t seed;
    attention_path attention;
    document_options documents;
    bool recompute;
    double dropout;
    guard_action guard;
    double spike;                        /* deviations above the mean that loss and norm may have; 0: any number */
    bool one_batch;                      /* the first batch again and again */
    const char *replay;                  /* a saved_batch.h file: that batch again and again; NULL: none */
    int64_t eval_every, eval_batches;    /* 0: never; batches 0: all of the validation tokens */
    int64_t sample_every, sample_tokens; /* 0: never */
    int64_t save_every;                  /* 0: only at the end */
    int64_t check_every;                 /* the ranks' parameters are compared every so many steps and at the end; 0: never */
    const char *out;                     /* checkpoint folder; NULL: none */
    const char *configuration;           /* JSON object for state.json */
    const atomic_int *stop;              /* not 0: finish the step, save, return. May be NULL */
    void (*started)(void *user);         /* nothing was refused; before the first step */
    void (*report)(void *user, const train_report *report);
    void (*sample)(void *user, int64_t step, const int32_t *tokens, int64_t count);
    void *user;
} train_options;

typedef enum train_result {
    TRAIN_DONE,
    TRAIN_STOPPED,  /* by options->stop; a checkpoint was saved if there is a folder for it */
    TRAIN_DIVERGED, /* the guard stopped it; the checkpoint is the last one from before, the state at hand is beside it */
    TRAIN_REFUSED,  /* options or data make no sense together; train_error() says how */
    TRAIN_FAILED    /* likewise: no memory, no room on the disk, a GPU that failed */
} train_result;

/* Where a run that the guard stopped leaves the state before the update that was not made, and its batch: a checkpoint with one
 * file more, in the folder TRAIN_STOPPED_FOLDER of the checkpoint's. */
#define TRAIN_STOPPED_BATCH "batch.safetensors"

/* Trains from step o->step at `position` to schedule.steps. The model, its optimizer, *position and
 * *memory (zeroed at first) hold the final state. */
train_result train_run(model *m, optimizer *o, const runtime *r, const dataset *d, data_position *position,
                       guard_memory *memory, const train_options *options);

#endif
