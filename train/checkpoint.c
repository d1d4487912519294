/*
 * Writing and loading checkpoints.
 */
#include "checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint_state.h"
#include "error.h"
#include "publish.h"
#include "safetensors.h"
#include "text.h"

enum { MODEL_FILE, OPTIMIZER_FILE, STATE_FILE, OWN_FILES };
static const char *const file_names[] = {"model.safetensors", "optimizer.safetensors", "state.json"};

bool checkpoint_folder_usable(const char *folder)
{
    return publish_possible(folder, file_names[STATE_FILE], TRAIN_STOPPED_FOLDER, "checkpoint");
}

/* -------------------------------------------------------------------------------------------------------------- saving */

static safetensors_tensor describe(const parameter *p, const char *name, const float *data)
{
    return (safetensors_tensor){
        .name = name, .dtype = SAFETENSORS_F32, .rank = p->ndim, .shape = {p->shape[0], p->shape[1]}, .data = data};
}

static bool save_tensors(const char *path, const safetensors_tensor *tensors, int64_t count)
{
    const safetensors_pair metadata = {"format", "pt"};
    return safetensors_write(path, tensors, count, &metadata, 1);
}

static bool save_model(const char *path, const model *m)
{
    const float *data = device_look(m->device, m->data, (size_t)m->size * sizeof *data);
    if (!data)
        return false;
    safetensors_tensor *tensors = text_alloc((size_t)m->parameter_count * sizeof *tensors);
    for (int i = 0; i < m->parameter_count; ++i)
        tensors[i] = describe(&m->parameters[i], m->parameters[i].name, data + m->parameters[i].offset);
    bool saved = save_tensors(path, tensors, m->parameter_count);
    free(tensors);
    device_look_end(m->device, data);
    return saved;
}

/* The caller frees it. */
static char *joined(const char *prefix, const char *name)
{
    text_buffer text = {0};
    text_format(&text, "%s%s", prefix, name);
    return text.bytes;
}

static bool save_moments(const char *path, const model *m, const float *mean, const float *square)
{
    safetensors_tensor *tensors = text_alloc(2 * (size_t)m->parameter_count * sizeof *tensors);
    for (int i = 0; i < m->parameter_count; ++i) {
        const parameter *p = &m->parameters[i];
        tensors[2 * i] = describe(p, joined("m.", p->name), mean + p->offset);
        tensors[2 * i + 1] = describe(p, joined("v.", p->name), square + p->offset);
    }
    bool saved = save_tensors(path, tensors, 2 * (int64_t)m->parameter_count);
    for (int i = 0; i < 2 * m->parameter_count; ++i)
        free((void *)tensors[i].name);
    free(tensors);
    return saved;
}

static bool save_optimizer(const char *path, const optimizer *o)
{
    const float *mean = optimizer_look(o, 0), *square = mean ? optimizer_look(o, 1) : NULL;
    bool saved = mean && square && save_moments(path, o->target, mean, square);
    optimizer_look_end(o, mean);
    optimizer_look_end(o, square);
    return saved;
}

static bool save_tokenizer(const char *folder, checkpoint_state *state)
{
    bool saved = true;
    for (int i = 0; i < TOKENIZER_FILES && saved; ++i) {
        const bool kept = state->words && !tokenizer_is_bytes(state->words);
        const tokenizer_file *file = kept ? tokenizer_file_named(state->words, tokenizer_file_names[i]) : NULL;
        state->tokenizer_files[i].bytes = -1;
        if (!file)
            continue;
        char *path = path_join(folder, file->name);
        saved = path_write(path, file->bytes, file->size) && checkpoint_file_measure(path, &state->tokenizer_files[i]);
        free(path);
    }
    return saved;
}

static bool save_files(const char *folder, const model *m, const optimizer *o, checkpoint_state *state)
{
    char *paths[OWN_FILES];
    for (int i = 0; i < OWN_FILES; ++i)
        paths[i] = path_join(folder, file_names[i]);
    state->optimizer_file.bytes = -1;
    bool saved = save_model(paths[MODEL_FILE], m) && checkpoint_file_measure(paths[MODEL_FILE], &state->model_file) &&
                 (!o || (save_optimizer(paths[OPTIMIZER_FILE], o) &&
                         checkpoint_file_measure(paths[OPTIMIZER_FILE], &state->optimizer_file))) &&
                 save_tokenizer(folder, state) && checkpoint_state_write(paths[STATE_FILE], state);
    for (int i = 0; i < OWN_FILES; ++i)
        free(paths[i]);
    return saved;
}

bool checkpoint_save(const char *folder, const model *m, const optimizer *o, checkpoint_state *state)
{
    publishing p;
    const char *names[OWN_FILES + TOKENIZER_FILES + 1];
    memcpy(names, file_names, sizeof file_names);
    memcpy(names + OWN_FILES, tokenizer_file_names, sizeof tokenizer_file_names);
    return publish_end(&p, publish_begin(&p, folder, names) && save_files(p.fresh, m, o, state));
}

/* ------------------------------------------------------------------------------------------------------------- loading */

bool checkpoint_read_state(const char *folder, checkpoint_state *state)
{
    publish_recover(folder);
    char *path = path_join(folder, file_names[STATE_FILE]);
    bool good = checkpoint_state_read(path, state);
    free(path);
    return good;
}

/* Verifies a file against what state.json says of it. */
static bool verify(const char *path, const checkpoint_file *recorded)
{
    checkpoint_file found = {0};
    if (!checkpoint_file_size(path, &found.bytes))
        return false;
    if (found.bytes != recorded->bytes)
        return train_fail("%s: %lld bytes, but state.json says %lld", path, (long long)found.bytes, (long long)recorded->bytes);
    return checkpoint_file_measure(path, &found) &&
           (strcmp(found.sha256, recorded->sha256) == 0 ||
            train_fail("%s: its SHA-256 is %s, but state.json says %s", path, found.sha256, recorded->sha256));
}

static safetensors_file *open_verified(const char *folder, const char *name, const checkpoint_file *recorded)
{
    char *path = path_join(folder, name);
    safetensors_file *file = NULL;
    if (recorded->bytes < 0)
        train_fail("%s: the checkpoint has no %s", folder, name);
    else if (verify(path, recorded))
        safetensors_open(path, &file);
    free(path);
    return file;
}

char *checkpoint_tokenizer(const char *folder, const checkpoint_state *state)
{
    for (int i = 0; i < TOKENIZER_FILES; ++i) {
        char *path = path_join(folder, tokenizer_file_names[i]);
        const bool good = state->tokenizer_files[i].bytes < 0 || verify(path, &state->tokenizer_files[i]);
        free(path);
        if (!good)
            return NULL;
    }
    return state->tokenizer_files[0].bytes < 0 ? strdup("bytes") : path_join(folder, tokenizer_file_names[0]);
}

/* Fills [parameter_count] blocks of floats from tensors named prefix + parameter name. */
static bool load_tensors(const safetensors_file *file, const char *folder, const char *name, const model *m, int kinds,
                         const char *const *prefixes, float *const *blocks)
{
    for (int i = 0; i < m->parameter_count; ++i) {
        const parameter *p = &m->parameters[i];
        for (int kind = 0; kind < kinds; ++kind) {
            char *tensor_name = joined(prefixes[kind], p->name);
            bool loaded = safetensors_load(file, tensor_name, SAFETENSORS_F32, p->ndim, p->shape, blocks[kind] + p->offset);
            free(tensor_name);
            if (!loaded)
                return false;
        }
    }
    int64_t wanted = (int64_t)kinds * m->parameter_count;
    return safetensors_count(file) == wanted || train_fail("%s/%s: %lld tensors, expected %lld", folder, name,
                                                           (long long)safetensors_count(file), (long long)wanted);
}

model *checkpoint_load_model(const char *folder, const checkpoint_state *state)
{
    safetensors_file *file = open_verified(folder, file_names[MODEL_FILE], &state->model_file);
    model *m = file ? model_reserve(&state->model) : NULL;
    if (m && !load_tensors(file, folder, file_names[MODEL_FILE], m, 1, (const char *[]){""}, (float *[]){m->data})) {
        model_free(m);
        m = NULL;
    }
    safetensors_close(file);
    return m;
}

/* Fills in arrays of the host. */
static bool load_moments(const char *folder, const checkpoint_state *state, const model *m, float *mean, float *square)
{
    safetensors_file *file = open_verified(folder, file_names[OPTIMIZER_FILE], &state->optimizer_file);
    bool loaded = file && load_tensors(file, folder, file_names[OPTIMIZER_FILE], m, 2, (const char *[]){"m.", "v."},
                                       (float *[]){mean, square});
    safetensors_close(file);
    return loaded;
}

/* Fills in the device's arrays, or a rank's share of them, by way of the host. */
static bool stage_moments(const char *folder, const checkpoint_state *state, optimizer *o)
{
    const size_t count = (size_t)o->target->size;
    float *both = calloc(2 * count, sizeof *both);
    if (!both)
        return train_fail_as(TRAIN_ERROR_WORK, "no memory for the optimiser's %zu bytes", 2 * count * sizeof *both);
    bool loaded = load_moments(folder, state, o->target, both, both + count) && optimizer_put(o, both, both + count);
    free(both);
    return loaded;
}

bool checkpoint_load_optimizer(const char *folder, const checkpoint_state *state, optimizer *o)
{
    o->step = state->step;
    return o->target->device->kind == FATTN_DEVICE_CPU && !o->cuts ? load_moments(folder, state, o->target, o->m, o->v)
                                                                   : stage_moments(folder, state, o);
}
