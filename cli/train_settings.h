/*
 * Everything that `fattn train` can be told, and where it comes from. Later ones win:
 *
 *     a new run      the preset, --config, the command line
 *     --init         the preset, the folder's numbers of the model, --config, the command line; the model's numbers must come
 *                    to the folder's
 *     --resume       the checkpoint's configuration, the preset if one is named, --config, the command line; the model's
 *                    numbers, the seed and --seq must come to the checkpoint's
 */
#ifndef FATTN_CLI_TRAIN_SETTINGS_H
#define FATTN_CLI_TRAIN_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "options.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/loop.h"
#include "train/model_folder.h"

enum { TRAIN_SETTINGS_MOST = 96 };

typedef struct train_settings {
    const char *data, *val, *tokenizer, *eot, *preset, *config, *out, *resume, *init, *log, *attention, *tensorboard, *replay;
    int64_t world_seed, world_lines;
    double val_fraction;
    int64_t vocab, hidden, layers, heads, heads_kv, head_dim, ffn, max_seq;
    double rope_theta, rms_eps;
    bool tied, untied;
    bool documents, document_positions, document_targets;
    bool flash, recompute, one_batch, print_config, json, decay_embedding;
    int device, dtype, schedule, guard;
    int64_t steps, batch, seq, accumulate, warmup, decay_steps, seed, threads;
    double lr, min_lr, decay_fraction, weight_decay, beta1, beta2, eps, clip, dropout, spike, peak;
    int64_t eval_every, eval_batches, sample_every, sample_tokens, save_every;
    bool zero;
    int64_t check_ranks, context;
    double rank_timeout;

    checkpoint_state state; /* of --resume */
    model_folder source;    /* of --init */
    char *kept_tokenizer;   /* the checkpoint's own copy, unless another one was named; NULL: as `tokenizer` says */
    bool nameless;          /* nobody says what the tokens of --init's model stand for */
    option_spec table[TRAIN_SETTINGS_MOST];
    option_marks marks;                    /* of the command line */
    config_set from_file, from_checkpoint; /* own the texts that the fields above may point to */
} train_settings;

/* Reads it all. Returns true if the command should go on, else *status is the exit code; mistakes were reported. */
bool train_settings_read(train_settings *s, int argc, char **argv, int *status);
void train_settings_free(train_settings *s);

model_config train_settings_model(const train_settings *s);
optimizer_options train_settings_optimizer(const train_settings *s);
lr_schedule train_settings_schedule(const train_settings *s);

/* The options of the run as pairs of a JSON object, without its braces: what --config reads. */
void train_settings_json(const train_settings *s, text_buffer *json);

#endif
