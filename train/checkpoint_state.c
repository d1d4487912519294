/*
 * state.json. Its last member is
 *
 *     ,
 *     "sha256":"<digest of every byte before the comma>"}
 *
 * so that an altered state is noticed as well.
 */
#include "checkpoint_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cjson/cJSON.h>
#include <fattn/fattn.h>

#include "config.h"
#include "error.h"
#include "publish.h"
#include "sha256.h"
#include "text.h"

enum { STATE_MOST_BYTES = 1 << 24, STATE_VERSION = 1 };

static const char checksum_key[] = ",\n\"sha256\":\"";

bool checkpoint_file_size(const char *path, int64_t *bytes)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return train_fail("%s: %s", path, strerror(errno));
    *bytes = info.st_size;
    return true;
}

bool checkpoint_file_measure(const char *path, checkpoint_file *file)
{
    return checkpoint_file_size(path, &file->bytes) && sha256_file(path, file->sha256);
}

/* ------------------------------------------------------------------------------------------------------------- writing */

static void write_model(text_buffer *json, const model_config *c)
{
    text_format(json, "\"model\":{\"vocab\":%lld,\"hidden\":%lld,\"layers\":%lld,\"heads\":%lld,\"heads_kv\":%lld,",
                (long long)c->vocab, (long long)c->hidden, (long long)c->layers, (long long)c->heads, (long long)c->heads_kv);
    text_format(json, "\"head_dim\":%lld,\"ffn\":%lld,\"max_seq\":%lld,\"rope_theta\":", (long long)c->head_dim,
                (long long)c->ffn, (long long)c->max_seq);
    text_json_number(json, c->rope_theta);
    text_format(json, ",\"rms_eps\":");
    text_json_number(json, c->rms_eps);
    text_format(json, ",\"tied\":%s}", c->tied ? "true" : "false");
}

static void write_window(text_buffer *json, const char *name, const guard_window *w)
{
    text_format(json, ",\"%s\":[", name);
    for (int i = 0; i < w->count; ++i) {
        text_format(json, "%s", i ? "," : "");
        text_json_number(json, w->value[i]);
    }
    text_format(json, "]");
}

static void write_guard(text_buffer *json, const guard_memory *g)
{
    text_format(json, "\"guard\":{\"skips\":%d", g->skips);
    write_window(json, "loss", &g->loss);
    write_window(json, "norm", &g->norm);
    text_format(json, "},\n");
}

static void write_file(text_buffer *json, const char *comma, const char *name, const checkpoint_file *file)
{
    text_format(json, "%s\"%s\":{\"bytes\":%lld,\"sha256\":\"%s\"}", comma, name, (long long)file->bytes, file->sha256);
}

bool checkpoint_state_write(const char *path, const checkpoint_state *state)
{
    text_buffer json = {0};
    char digest[65];
    sha256 hash;
    text_format(&json, "{\"format\":\"fattn checkpoint\",\"format_version\":%d,\"fattn_version\":\"%s\",\n", STATE_VERSION,
                fattn_version());
    text_format(&json, "\"step\":%lld,\n\"random\":{\"seed\":%llu},\n", (long long)state->step,
                (unsigned long long)state->seed);
    text_format(&json, "\"data\":{\"epoch\":%lld,\"window\":%lld},\n", (long long)state->position.epoch,
                (long long)state->position.window);
    write_guard(&json, &state->guard);
    write_model(&json, &state->model);
    text_format(&json, ",\n\"configuration\":%s,\n\"files\":{", state->configuration ? state->configuration : "{}");
    write_file(&json, "", "model.safetensors", &state->model_file);
    if (state->optimizer_file.bytes >= 0)
        write_file(&json, ",", "optimizer.safetensors", &state->optimizer_file);
    for (int i = 0; i < TOKENIZER_FILES; ++i)
        if (state->tokenizer_files[i].bytes >= 0)
            write_file(&json, ",", tokenizer_file_names[i], &state->tokenizer_files[i]);
    text_format(&json, "}");
    sha256_begin(&hash);
    sha256_add(&hash, json.bytes, json.length);
    sha256_end(&hash, digest);
    text_format(&json, "%s%s\"}\n", checksum_key, digest);
    bool written = path_write(path, json.bytes, json.length);
    text_free(&json);
    return written;
}

/* ------------------------------------------------------------------------------------------------------------- reading */

/* Where an object is being read: the first thing wrong is reported, then nothing more is looked at. */
typedef struct reader {
    const char *path;
    const cJSON *object;
    bool good;
} reader;

static reader enter(const reader *outer, const char *name)
{
    reader inner = {outer->path, cJSON_GetObjectItemCaseSensitive(outer->object, name), outer->good};
    if (inner.good && !cJSON_IsObject(inner.object))
        inner.good = train_fail("%s: no object '%s'", outer->path, name);
    return inner;
}

static double get_number(reader *r, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(r->object, name);
    if (r->good && !cJSON_IsNumber(item))
        r->good = train_fail("%s: no number '%s'", r->path, name);
    return r->good ? item->valuedouble : 0;
}

static int64_t get_whole(reader *r, const char *name)
{
    double number = get_number(r, name);
    if (r->good && !(number >= 0 && number <= 9007199254740992.0 && number == (double)(int64_t)number))
        r->good = train_fail("%s: '%s' is %g, not a whole number", r->path, name, number);
    return r->good ? (int64_t)number : 0;
}

static model_config read_model(reader *r)
{
    model_config c = {.vocab = get_whole(r, "vocab"),
                      .hidden = get_whole(r, "hidden"),
                      .layers = get_whole(r, "layers"),
                      .heads = get_whole(r, "heads"),
                      .heads_kv = get_whole(r, "heads_kv"),
                      .head_dim = get_whole(r, "head_dim"),
                      .ffn = get_whole(r, "ffn"),
                      .max_seq = get_whole(r, "max_seq"),
                      .rope_theta = get_number(r, "rope_theta"),
                      .rms_eps = get_number(r, "rms_eps")};
    const cJSON *tied = cJSON_GetObjectItemCaseSensitive(r->object, "tied");
    if (r->good && !cJSON_IsBool(tied))
        r->good = train_fail("%s: no boolean 'tied'", r->path);
    c.tied = cJSON_IsTrue(tied);
    return c;
}

static void read_window(reader *r, const char *name, guard_window *w)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(r->object, name);
    const int count = cJSON_GetArraySize(list);
    if (r->good && (!cJSON_IsArray(list) || count > GUARD_WINDOW))
        r->good = train_fail("%s: '%s' is no list of at most %d numbers", r->path, name, GUARD_WINDOW);
    for (const cJSON *item = r->good ? list->child : NULL; item && r->good; item = item->next) {
        if (!cJSON_IsNumber(item))
            r->good = train_fail("%s: '%s' is no list of at most %d numbers", r->path, name, GUARD_WINDOW);
        guard_note(w, item->valuedouble);
    }
}

/* Checkpoints from before there was a guard have none. */
static bool read_guard(reader *top, guard_memory *g)
{
    if (!cJSON_GetObjectItemCaseSensitive(top->object, "guard"))
        return top->good;
    reader r = enter(top, "guard");
    const int64_t skips = get_whole(&r, "skips");
    if (r.good && skips > GUARD_SKIPS)
        r.good = train_fail("%s: 'skips' is %lld, more than %d", r.path, (long long)skips, GUARD_SKIPS);
    g->skips = r.good ? (int)skips : 0;
    read_window(&r, "loss", &g->loss);
    read_window(&r, "norm", &g->norm);
    return r.good;
}

static checkpoint_file read_file(reader *files, const char *name, bool required)
{
    checkpoint_file file = {.bytes = -1};
    if (!required && !cJSON_GetObjectItemCaseSensitive(files->object, name))
        return file;
    reader entry = enter(files, name);
    file.bytes = get_whole(&entry, "bytes");
    const cJSON *digest = cJSON_GetObjectItemCaseSensitive(entry.object, "sha256");
    if (entry.good && (!cJSON_IsString(digest) || strlen(digest->valuestring) != 64))
        entry.good = train_fail("%s: no SHA-256 of %s", entry.path, name);
    if (entry.good)
        memcpy(file.sha256, digest->valuestring, 65);
    files->good = entry.good;
    return file;
}

static bool read_tree(const char *path, const cJSON *root, checkpoint_state *state)
{
    reader top = {path, root, true};
    if (get_whole(&top, "format_version") != STATE_VERSION && top.good)
        return train_fail("%s: format_version is not %d, the only one this program reads", path, STATE_VERSION);
    state->step = get_whole(&top, "step");
    reader random = enter(&top, "random");
    state->seed = (uint64_t)get_whole(&random, "seed");
    reader position = enter(&(reader){path, root, random.good}, "data");
    state->position.epoch = get_whole(&position, "epoch");
    state->position.window = get_whole(&position, "window");
    reader guarded = {path, root, position.good};
    reader shape = enter(&(reader){path, root, read_guard(&guarded, &state->guard)}, "model");
    state->model = read_model(&shape);
    reader files = enter(&(reader){path, root, shape.good}, "files");
    state->model_file = read_file(&files, "model.safetensors", true);
    state->optimizer_file = read_file(&files, "optimizer.safetensors", false);
    for (int i = 0; i < TOKENIZER_FILES; ++i)
        state->tokenizer_files[i] = read_file(&files, tokenizer_file_names[i], false);
    if (!files.good)
        return false;
    state->configuration = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(root, "configuration"));
    return state->configuration || train_fail("%s: no 'configuration'", path);
}

/* Splits off the last member and checks it. */
static bool verify_own(const char *path, const char *json, size_t size)
{
    const size_t key = sizeof checksum_key - 1, tail = key + 64 + 3; /* "} and the newline */
    char digest[65];
    sha256 hash;
    if (size < tail || memcmp(json + size - tail, checksum_key, key) != 0 || memcmp(json + size - 3, "\"}\n", 3) != 0)
        return train_fail("%s: truncated or altered: it does not end with its SHA-256", path);
    sha256_begin(&hash);
    sha256_add(&hash, json, size - tail);
    sha256_end(&hash, digest);
    if (memcmp(digest, json + size - tail + key, 64) != 0)
        return train_fail("%s: altered: its SHA-256 is %s, but it says %.64s", path, digest, json + size - tail + key);
    return true;
}

bool checkpoint_state_read(const char *path, checkpoint_state *state)
{
    size_t size;
    *state = (checkpoint_state){0};
    char *json = config_slurp(path, STATE_MOST_BYTES, &size);
    if (!json)
        return false;
    bool good = verify_own(path, json, size);
    cJSON *root = good ? cJSON_ParseWithLength(json, size) : NULL;
    if (good && !cJSON_IsObject(root))
        good = train_fail("%s: not a JSON object", path);
    good = good && read_tree(path, root, state);
    cJSON_Delete(root);
    free(json);
    return good;
}

void checkpoint_state_free(checkpoint_state *state)
{
    free(state->configuration);
    state->configuration = NULL;
}
