/*
 * The table of `fattn train`'s options and the layers of their values; see train_settings.h.
 */
#include "train_settings.h"

#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "train/error.h"
#include "train_place.h"

static const char *const schedules[] = {"cosine", "linear", "constant", "wsd", NULL}; /* schedule.h, guard.h: in this order */
static const char *const guards[] = {"stop", "skip", "off", NULL};

/* What a checkpoint settles for good. */
static const char *const fixed[] = {"vocab",   "hidden",     "layers",  "heads", "heads-kv", "head-dim", "ffn",
                                    "max-seq", "rope-theta", "rms-eps", "tied",  "seq",      "seed"};
/* What may differ, with a note of what that means. */
static const char other_data[] = "training goes on with other data", other_tokens[] = "texts become other tokens",
                  other_rounding[] = "numbers are rounded otherwise from here on";
static const struct {
    const char *name, *meaning;
} noted[] = {{"data", other_data}, {"world-seed", other_data},   {"world-lines", other_data},
             {"val", other_data},  {"val-fraction", other_data}, {"tokenizer", other_tokens},
             {"eot", other_data},  {"device", other_rounding},   {"dtype", other_rounding}};
/* What is about this call, not about the run. */
static const char *const not_saved[] = {"preset", "config",      "print-config", "out",         "resume", "log",
                                        "json",   "untied",      "flash",        "peak",        "replay", "tensorboard",
                                        "zero",   "check-ranks", "context",      "rank-timeout"};

/* What decides which layers there are cannot come from one of them. */
static const char *const not_in_files[] = {"preset", "config", "print-config", "resume", "untied"};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static bool listed(const char *name, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; ++i)
        if (strcmp(name, list[i]) == 0)
            return true;
    return false;
}

static void make_table(train_settings *s)
{
    const double most = 9e15;
    const option_spec table[] = {
        {"data", "WHAT", OPTION_TEXT, &s->data,
         .help = "world, or a text, a *.bin or *.npy of tokens, a folder or pattern of them"},
        {"val", "WHAT", OPTION_TEXT, &s->val, .help = "validate on this; else on files named val, else on a part"},
        {"val-fraction", "X", OPTION_DOUBLE, &s->val_fraction, .low = 1e-9, .high = 0.9, .help = "how large a part"},
        {"tokenizer", "FILE", OPTION_TEXT, &s->tokenizer, .help = "of texts: a tokenizer.json of byte-level BPE, or bytes"},
        {"eot", "TOKEN", OPTION_TEXT, &s->eot, .help = "what ends a text, by name or number; else the tokenizer's own"},
        {"world-seed", "N", OPTION_INT, &s->world_seed, .high = most, .help = "which world (with --data world)"},
        {"world-lines", "N", OPTION_INT, &s->world_lines, .low = 10, .high = 1e8, .help = "lines of it to train on"},
        {"documents", NULL, OPTION_FLAG, &s->documents, .help = "attend within texts, which end with --eot"},
        {"document-positions", NULL, OPTION_FLAG, &s->document_positions, .help = "positions begin anew in each text"},
        {"document-targets", NULL, OPTION_FLAG, &s->document_targets, .help = "learn also what follows the end of a text"},
        {"preset", "NAME", OPTION_TEXT, &s->preset, .help = "tiny or small: sets the numbers below that have no option here"},
        {"config", "FILE", OPTION_TEXT, &s->config, .help = "options from a JSON object, as --print-config writes it"},
        {"print-config", NULL, OPTION_FLAG, &s->print_config, .help = "print the configuration and stop"},
        {"vocab", "N", OPTION_INT, &s->vocab, .high = 1e6, .help = "tokens; 0: as many as the data has"},
        {"hidden", "N", OPTION_INT, &s->hidden, .low = 1, .high = 65536, .help = "width of the model"},
        {"layers", "N", OPTION_INT, &s->layers, .low = 1, .high = 1024, .help = "blocks"},
        {"heads", "N", OPTION_INT, &s->heads, .low = 1, .high = 1024, .help = "query heads"},
        {"heads-kv", "N", OPTION_INT, &s->heads_kv, .low = 1, .high = 1024, .help = "key and value heads"},
        {"head-dim", "N", OPTION_INT, &s->head_dim, .low = 2, .high = 512, .help = "width of a head"},
        {"ffn", "N", OPTION_INT, &s->ffn, .low = 1, .high = 262144, .help = "width of the feed-forward layer"},
        {"max-seq", "N", OPTION_INT, &s->max_seq, .high = 1 << 24, .help = "longest sequence; 0: --seq"},
        {"rope-theta", "X", OPTION_DOUBLE, &s->rope_theta, .low = 1, .high = 1e12, .help = "base of the positions' angles"},
        {"rms-eps", "X", OPTION_DOUBLE, &s->rms_eps, .low = 1e-30, .high = 1, .help = "epsilon of the norms"},
        {"tied", NULL, OPTION_FLAG, &s->tied, .help = "the head is the embedding"},
        {"untied", NULL, OPTION_FLAG, &s->untied, .help = "it is not"},
        {"flash", NULL, OPTION_FLAG, &s->flash, .help = "short for --attention flash"},
        {"attention", "HOW", OPTION_TEXT, &s->attention, .help = "composed, flash or window:W (the last W keys)"},
        {"recompute", NULL, OPTION_FLAG, &s->recompute, .help = "compute blocks again in backward instead of keeping them"},
        {"device", "WHERE", OPTION_WORD, &s->device, .words = train_devices, .help = "where to train: cpu or cuda"},
        {"dtype", "TYPE", OPTION_WORD, &s->dtype, .words = train_types, .help = "of activations and products: f32 or bf16"},
        {"threads", "N", OPTION_INT, &s->threads, .high = 1024, .help = "on the CPU; 0: as many as the process may use"},
        {"steps", "N", OPTION_INT, &s->steps, .low = 1, .high = 1e12, .help = "updates"},
        {"batch", "N", OPTION_INT, &s->batch, .low = 1, .high = 1e6, .help = "windows in a micro-batch"},
        {"seq", "N", OPTION_INT, &s->seq, .low = 1, .high = 1 << 24, .help = "tokens in a window"},
        {"accumulate", "N", OPTION_INT, &s->accumulate, .low = 1, .high = 1e6, .help = "micro-batches in an update"},
        {"schedule", "NAME", OPTION_WORD, &s->schedule, .words = schedules, .help = "how the learning rate falls"},
        {"lr", "X", OPTION_DOUBLE, &s->lr, .high = 1e6, .help = "learning rate"},
        {"min-lr", "X", OPTION_DOUBLE, &s->min_lr, .high = 1e6, .help = "learning rate at the end"},
        {"warmup", "N", OPTION_INT, &s->warmup, .high = 1e12, .help = "steps in which it rises"},
        {"decay-steps", "N", OPTION_INT, &s->decay_steps, .high = 1e12,
         .help = "last steps, in which wsd falls; 0: a fraction"},
        {"decay-fraction", "X", OPTION_DOUBLE, &s->decay_fraction, .high = 1, .help = "of --steps, likewise"},
        {"weight-decay", "X", OPTION_DOUBLE, &s->weight_decay, .high = 1e3, .help = "AdamW's decay of matrices"},
        {"decay-embedding", NULL, OPTION_FLAG, &s->decay_embedding, .help = "of the embedding, too"},
        {"dropout", "P", OPTION_DOUBLE, &s->dropout, .high = 0.99,
         .help = "of what layers add, and of attention's probabilities"},
        {"guard", "HOW", OPTION_WORD, &s->guard, .words = guards,
         .help = "loss or gradient not finite: stop, skip the update, or off"},
        {"spike", "Z", OPTION_DOUBLE, &s->spike, .high = 1e6,
         .help = "nor so many deviations above the last 128; 0: any number"},
        {"beta1", "X", OPTION_DOUBLE, &s->beta1, .high = 0.9999999, .help = "AdamW's mean"},
        {"beta2", "X", OPTION_DOUBLE, &s->beta2, .high = 0.9999999, .help = "AdamW's mean of squares"},
        {"eps", "X", OPTION_DOUBLE, &s->eps, .low = 1e-30, .high = 1, .help = "AdamW's epsilon"},
        {"clip", "X", OPTION_DOUBLE, &s->clip, .high = 1e30, .help = "the most that the gradient's norm may be; 0: any"},
        {"seed", "N", OPTION_INT, &s->seed, .high = most, .help = "of the weights, the order of the data and the samples"},
        {"eval-every", "N", OPTION_INT, &s->eval_every, .high = 1e12, .help = "evaluate every N steps and at the end; 0: no"},
        {"eval-batches", "N", OPTION_INT, &s->eval_batches, .high = 1e9, .help = "batches in an evaluation; 0: all"},
        {"sample-every", "N", OPTION_INT, &s->sample_every, .high = 1e12, .help = "sample every N steps and at the end; 0: no"},
        {"sample-tokens", "N", OPTION_INT, &s->sample_tokens, .low = 1, .high = 1e6, .help = "length of a sample"},
        {"save-every", "N", OPTION_INT, &s->save_every, .high = 1e12, .help = "steps between checkpoints; 0: at the end"},
        {"zero", NULL, OPTION_FLAG, &s->zero, .help = "share AdamW's moments out among the ranks"},
        {"context", "N", OPTION_INT, &s->context, .low = 1, .high = 65536, .help = "ranks that share each sequence"},
        {"check-ranks", "N", OPTION_INT, &s->check_ranks, .high = 1e12,
         .help = "compare the ranks' parameters every N steps and at the end; 0: no"},
        {"rank-timeout", "SECONDS", OPTION_DOUBLE, &s->rank_timeout, .high = 1e9,
         .help = "how long ranks wait for one another before the run fails; 0: without end"},
        {"out", "DIR", OPTION_TEXT, &s->out, .help = "folder of the checkpoint"},
        {"init", "DIR", OPTION_TEXT, &s->init, .help = "begin with this model: a Hugging Face folder or a checkpoint"},
        {"resume", "DIR", OPTION_TEXT, &s->resume, .help = "continue a checkpoint (and write to it, without --out)"},
        {"log", "FILE", OPTION_TEXT, &s->log, .help = "one JSON object per step"},
        {"json", NULL, OPTION_FLAG, &s->json, .help = "the same on standard output"},
        {"tensorboard", "DIR", OPTION_TEXT, &s->tensorboard, .help = "folder for TensorBoard's event files"},
        {"peak", "TFLOPS", OPTION_DOUBLE, &s->peak, .high = 1e9, .help = "the device's, for MFU; 0: a product is timed"},
        {"replay", "FILE", OPTION_TEXT, &s->replay, .help = "train on a batch that --guard stop saved"},
        {"overfit-one-batch", NULL, OPTION_FLAG, &s->one_batch, .help = "train on the first batch only"},
        {0}};
    _Static_assert(COUNT(table) <= TRAIN_SETTINGS_MOST, "the table must fit");
    memcpy(s->table, table, sizeof table);
}

/* What no preset sets. */
static void set_defaults(train_settings *s)
{
    const optimizer_options adam = optimizer_defaults();
    s->data = "world";
    s->tokenizer = "bytes";
    s->val_fraction = 0.1;
    s->document_positions = true;
    s->preset = "tiny";
    s->attention = "composed";
    s->world_seed = 1;
    s->world_lines = 20000;
    s->rope_theta = 10000;
    s->rms_eps = 1e-6;
    s->accumulate = s->context = 1;
    s->weight_decay = adam.weight_decay;
    s->decay_embedding = !adam.spare_embedding;
    s->decay_fraction = 0.2;
    s->beta1 = adam.beta1;
    s->beta2 = adam.beta2;
    s->eps = adam.eps;
    s->clip = adam.clip;
    s->seed = 1;
    s->sample_tokens = 120;
    s->rank_timeout = 600;
}

static bool apply(train_settings *s, const char *label, const char *key, const char *value)
{
    const option_spec *spec = options_find(s->table, key);
    text_buffer where = {0};
    text_format(&where, "%s: %s", label, key);
    bool good = spec && !listed(key, not_in_files, COUNT(not_in_files));
    if (!good)
        cli_error("%s: no such option", where.bytes);
    good = good && option_assign(spec, where.bytes, value);
    text_free(&where);
    return good;
}

static bool apply_preset(train_settings *s, const char *name)
{
    int index;
    if (!option_parse_word("--preset", name, config_preset_names(), &index))
        return false;
    for (const config_pair *pair = config_preset(name); pair->key; ++pair)
        if (!apply(s, name, pair->key, pair->value))
            return false;
    return true;
}

static bool apply_set(train_settings *s, const char *label, const config_set *set)
{
    for (int i = 0; i < set->count; ++i)
        if (!apply(s, label, set->pairs[i].key, set->pairs[i].value))
            return false;
    return true;
}

static bool read_checkpoint(train_settings *s, const char *folder)
{
    text_buffer label = {0};
    text_format(&label, "%s/state.json", folder);
    bool good = checkpoint_read_state(folder, &s->state) &&
                config_parse(s->state.configuration, strlen(s->state.configuration), label.bytes, &s->from_checkpoint);
    if (!good)
        cli_error("%s", train_error());
    good = good && apply_set(s, label.bytes, &s->from_checkpoint);
    text_free(&label);
    return good;
}

/* What --init's folder says of its model, as options. */
static void list_numbers(const model_folder *source, text_buffer *json)
{
    const model_config *m = &source->model;
    char attention[40], *words = model_folder_tokenizer(source);
    text_format(json, "{\"vocab\":%lld,\"hidden\":%lld,\"layers\":%lld,\"heads\":%lld,", (long long)m->vocab,
                (long long)m->hidden, (long long)m->layers, (long long)m->heads);
    text_format(json,
                "\"heads-kv\":%lld,\"head-dim\":%lld,\"ffn\":%lld,\"max-seq\":%lld,\"rope-theta\":", (long long)m->heads_kv,
                (long long)m->head_dim, (long long)m->ffn, (long long)m->max_seq);
    text_json_number(json, m->rope_theta);
    text_format(json, ",\"rms-eps\":");
    text_json_number(json, m->rms_eps);
    text_format(json, ",\"tied\":%s,\"attention\":\"%s\"", m->tied ? "true" : "false",
                attention_path_print(model_folder_attention(source), attention, sizeof attention));
    if (words) {
        text_format(json, ",\"tokenizer\":");
        text_json_string(json, words, strlen(words));
    }
    text_format(json, "}");
    free(words);
}

static bool read_init(train_settings *s, const char *folder)
{
    text_buffer json = {0};
    bool good = model_folder_open(folder, &s->source);
    if (good) {
        list_numbers(&s->source, &json);
        good = config_parse(json.bytes, json.length, folder, &s->from_checkpoint);
    }
    if (!good)
        cli_error("%s", train_error());
    text_free(&json);
    return good && apply_set(s, folder, &s->from_checkpoint);
}

/* Compares with the checkpoint, or with the model to begin with, what was just read from all the other places. */
static bool check_given(const train_settings *s)
{
    const char *kind = s->resume ? "checkpoint" : "model";
    for (const option_spec *spec = s->table; spec->name; ++spec) {
        char value[512];
        const char *recorded = config_find(&s->from_checkpoint, spec->name);
        if (!recorded || !option_print(spec, value, sizeof value) || strcmp(value, recorded) == 0)
            continue;
        if (spec->kind == OPTION_DOUBLE && strtod(value, NULL) == strtod(recorded, NULL))
            continue;
        if (listed(spec->name, fixed, COUNT(fixed))) {
            cli_error("--%s %s contradicts the %s %s, which has %s", spec->name, value, kind, s->resume ? s->resume : s->init,
                      recorded);
            return false;
        }
        for (size_t i = 0; i < COUNT(noted); i++)
            if (strcmp(spec->name, noted[i].name) == 0)
                cli_note("--%s %s instead of the %s's %s: %s", spec->name, value, kind, recorded, noted[i].meaning);
    }
    return true;
}

/* Resolves what can be said in two ways. */
static bool settle(train_settings *s, const option_set *set)
{
    if (s->untied && options_given(set, "tied")) {
        cli_error("--tied and --untied contradict each other");
        return false;
    }
    if (s->untied)
        s->tied = false;
    s->untied = false;
    if (s->flash && options_given(set, "attention") && strcmp(s->attention, "flash") != 0) {
        cli_error("--flash and --attention %s contradict each other", s->attention);
        return false;
    }
    if (s->flash)
        s->attention = "flash";
    else if (options_given(set, "no-flash") && strcmp(s->attention, "flash") == 0)
        s->attention = "composed";
    s->flash = false;
    if (s->max_seq == 0)
        s->max_seq = s->seq;
    return true;
}

/* Can a JSON string hold it as it is? */
static bool is_utf8(const char *text)
{
    const size_t length = strlen(text);
    for (size_t i = 0, size; i < length; i += size)
        if (!(size = text_utf8(text + i, length - i)))
            return false;
    return true;
}

static bool check_utf8(const char *option, const char *text)
{
    if (!text || is_utf8(text))
        return true;
    cli_error("--%s: '%s' is not UTF-8, and state.json could not hold it", option, text);
    return false;
}

/* What ranks that share sequences cannot do: see train/ring.h. */
static bool check_context(const train_settings *s, attention_path path)
{
    const long long context = (long long)s->context, seq = (long long)s->seq;
    if (context == 1)
        return true;
    if (path.kind == ATTENTION_WINDOW)
        cli_error("--context %lld and --attention %s: attention over several ranks is exact and causal, composed or flash",
                  context, s->attention);
    else if (s->dropout > 0)
        cli_error("--context %lld and --dropout %g: ranks that share sequences have no dropout", context, s->dropout);
    else if (seq % (2 * context))
        cli_error("--context %lld and --seq %lld: %lld ranks need sequences of %lld chunks of equal length", context, seq,
                  context, 2 * context);
    else
        return true;
    return false;
}

/* Values that each option allows, but not together, or not yet. */
static bool check_settled(const train_settings *s)
{
    attention_path path;
    if (!attention_path_parse(s->attention, &path) || path.kind == ATTENTION_BLOCK) {
        cli_error("--attention: '%s' is none of: composed, flash, window:W, with W from 1 on", s->attention);
        return false;
    }
    if (!check_utf8("data", s->data) || !check_utf8("val", s->val) || !check_utf8("tokenizer", s->tokenizer) ||
        !check_utf8("eot", s->eot) || !check_utf8("init", s->init))
        return false;
    if (s->max_seq < s->seq) {
        cli_error("--seq %lld is longer than --max-seq %lld", (long long)s->seq, (long long)s->max_seq);
        return false;
    }
    const bool falls = schedules[s->schedule] == schedules[SCHEDULE_WSD];
    if (falls && s->decay_steps > s->steps - s->warmup) {
        cli_error("--decay-steps %lld and --warmup %lld are more than --steps %lld", (long long)s->decay_steps,
                  (long long)s->warmup, (long long)s->steps);
        return false;
    }
    if (s->replay && s->one_batch) {
        cli_error("--replay and --overfit-one-batch contradict each other");
        return false;
    }
    return check_context(s, path);
}

/* Unless another tokenizer is named, a run goes on with the copy that its checkpoint holds. */
static bool find_tokenizer(train_settings *s, bool said)
{
    const char *recorded = config_find(&s->from_checkpoint, "tokenizer");
    s->nameless = s->init && !s->resume && !recorded && !said;
    if (!s->resume || strcmp(s->tokenizer, recorded ? recorded : "bytes") != 0)
        return true;
    s->kept_tokenizer = checkpoint_tokenizer(s->resume, &s->state);
    if (!s->kept_tokenizer)
        cli_error("%s", train_error());
    return s->kept_tokenizer != NULL;
}

static bool layers(train_settings *s, const train_settings *said, bool preset_given, int argc, char **argv, int *status)
{
    const option_set set = {.usage = "fattn train [options]", .about = "", .table = s->table, .marks = &s->marks};
    if (said->init && said->resume) {
        cli_error("--init and --resume contradict each other");
        return false;
    }
    if (said->config && !config_read(said->config, &s->from_file)) {
        cli_error("%s", train_error());
        return false;
    }
    if (said->resume ? !read_checkpoint(s, said->resume) : !apply_preset(s, said->preset))
        return false;
    if (said->resume && preset_given && !apply_preset(s, said->preset))
        return false;
    const char *init = said->init ? said->init : config_find(&s->from_file, "init");
    if (init && !said->resume && !read_init(s, init))
        return false;
    if (said->config && !apply_set(s, said->config, &s->from_file))
        return false;
    if (!options_parse(&set, argc, argv, status))
        return false;
    *status = CLI_WRONG;
    const bool named = options_given(&set, "tokenizer") || config_find(&s->from_file, "tokenizer");
    return settle(s, &set) && check_given(s) && check_settled(s) && find_tokenizer(s, named);
}

bool train_settings_read(train_settings *s, int argc, char **argv, int *status)
{
    /* First what was said, to know preset, configuration file and checkpoint; then all layers from the bottom. */
    train_settings said = {0};
    const option_set set = {
        .usage = "fattn train [options]",
        .about = "Trains a language model, on the CPU or a GPU. Without options: a tiny one, on bytes of a generated\n"
                 "world, in some minutes. Interrupting it (Ctrl-C) saves a checkpoint first.",
        .table = said.table,
        .marks = &said.marks};
    *s = (train_settings){0};
    make_table(&said);
    set_defaults(&said);
    *status = CLI_WRONG;
    if (!apply_preset(&said, said.preset) || !options_parse(&set, argc, argv, status))
        return false;
    *status = CLI_WRONG;
    make_table(s);
    set_defaults(s);
    return layers(s, &said, options_given(&set, "preset"), argc, argv, status);
}

void train_settings_free(train_settings *s)
{
    config_free(&s->from_file);
    config_free(&s->from_checkpoint);
    checkpoint_state_free(&s->state);
    model_folder_close(&s->source);
    free(s->kept_tokenizer);
}

model_config train_settings_model(const train_settings *s)
{
    return (model_config){.vocab = s->vocab,
                          .hidden = s->hidden,
                          .layers = s->layers,
                          .heads = s->heads,
                          .heads_kv = s->heads_kv,
                          .head_dim = s->head_dim,
                          .ffn = s->ffn,
                          .max_seq = s->max_seq,
                          .rope_theta = s->rope_theta,
                          .rms_eps = s->rms_eps,
                          .tied = s->tied};
}

optimizer_options train_settings_optimizer(const train_settings *s)
{
    return (optimizer_options){.beta1 = s->beta1,
                               .beta2 = s->beta2,
                               .eps = s->eps,
                               .weight_decay = s->weight_decay,
                               .clip = s->clip,
                               .spare_embedding = !s->decay_embedding};
}

lr_schedule train_settings_schedule(const train_settings *s)
{
    const int64_t most = s->steps > s->warmup ? s->steps - s->warmup : 0;
    const int64_t part = (int64_t)(s->decay_fraction * (double)s->steps + 0.5);
    return (lr_schedule){.kind = (schedule_kind)s->schedule,
                         .lr = s->lr,
                         .min_lr = s->min_lr,
                         .warmup = s->warmup,
                         .steps = s->steps,
                         .decay = s->decay_steps ? s->decay_steps
                                  : part < most  ? part
                                                 : most};
}

void train_settings_json(const train_settings *s, text_buffer *json)
{
    bool comma = false;
    for (const option_spec *spec = s->table; spec->name; ++spec) {
        char value[4096];
        if (listed(spec->name, not_saved, COUNT(not_saved)) || !option_print(spec, value, sizeof value))
            continue;
        if (spec->kind == OPTION_TEXT && !*(const char **)spec->value) /* nothing was said */
            continue;
        if (comma)
            text_bytes(json, ",", 1);
        config_write_pair(json, spec->name, value, spec->kind == OPTION_TEXT || spec->kind == OPTION_WORD);
        comma = true;
    }
}
