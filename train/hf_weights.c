#include "hf_weights.h"

#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "error.h"
#include "json.h"
#include "publish.h"
#include "safetensors.h"

enum { INDEX_MOST_BYTES = 1 << 26, SHARDS_MOST = 1000 };

static const char head_name[] = "lm_head.weight";

typedef struct shard {
    const char *name; /* of the file */
    safetensors_file *file;
} shard;

typedef struct weights {
    const char *folder;
    cJSON *index;     /* owns the names; NULL for a single file */
    const cJSON *map; /* tensor: file */
    shard shards[SHARDS_MOST];
    int count;
} weights;

/* ------------------------------------------------------------------------------------------------------------- opening */

static bool open_shard(weights *w, const char *name)
{
    for (int i = 0; i < w->count; ++i)
        if (strcmp(w->shards[i].name, name) == 0)
            return true;
    if (!path_is_name(name))
        return train_fail("%s/%s: '%.80s' is no name of a file in this folder", w->folder, HF_INDEX_NAME, name);
    if (w->count == SHARDS_MOST)
        return train_fail("%s/%s: more than %d files", w->folder, HF_INDEX_NAME, SHARDS_MOST);
    char *path = path_join(w->folder, name);
    w->shards[w->count].name = name;
    const bool opened = safetensors_open(path, &w->shards[w->count].file);
    w->count += opened;
    free(path);
    return opened;
}

static bool open_index(weights *w, const char *path)
{
    size_t size;
    char *json = config_slurp(path, INDEX_MOST_BYTES, &size);
    if (!json)
        return false;
    w->index = json_object(json, size, path);
    free(json);
    if (!w->index)
        return false;
    w->map = cJSON_GetObjectItemCaseSensitive(w->index, "weight_map");
    if (!cJSON_IsObject(w->map))
        return train_fail("%s: no object 'weight_map'", path);
    const cJSON *item;
    cJSON_ArrayForEach(item, w->map)
    {
        if (!cJSON_IsString(item))
            return train_fail("%s: '%.80s' is in no file", path, item->string);
        if (!open_shard(w, item->valuestring))
            return false;
    }
    return true;
}

static bool open_weights(weights *w)
{
    char *whole = path_join(w->folder, HF_WEIGHTS_NAME), *index = path_join(w->folder, HF_INDEX_NAME);
    bool good;
    if (path_exists(whole))
        good = open_shard(w, HF_WEIGHTS_NAME);
    else if (path_exists(index))
        good = open_index(w, index);
    else
        good = train_fail("%s: neither %s nor %s is there", w->folder, HF_WEIGHTS_NAME, HF_INDEX_NAME);
    free(whole);
    free(index);
    return good;
}

static void close_weights(weights *w)
{
    for (int i = 0; i < w->count; ++i)
        safetensors_close(w->shards[i].file);
    cJSON_Delete(w->index);
    free(w);
}

/* ------------------------------------------------------------------------------------------------------------- loading */

/* The file that should hold a tensor; NULL, with train_error() set, if the index does not name it. */
static const safetensors_file *file_of(const weights *w, const char *wanted)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(w->map, wanted);
    const char *name = w->map ? (item ? item->valuestring : NULL) : HF_WEIGHTS_NAME;
    for (int i = 0; name && i < w->count; ++i)
        if (strcmp(w->shards[i].name, name) == 0)
            return w->shards[i].file;
    train_fail("%s/%s: no tensor '%s'", w->folder, HF_INDEX_NAME, wanted);
    return NULL;
}

/* Of a tied model the head may be there once more; then it has to be the embedding. */
static bool check_second_head(const weights *w, const model *m)
{
    const parameter *embed = &m->parameters[0];
    for (int i = 0; i < w->count; ++i) {
        const safetensors_tensor *head = safetensors_find(w->shards[i].file, head_name);
        if (!head)
            continue;
        float *second = text_alloc((size_t)embed->size * sizeof *second);
        bool good = safetensors_load_floats(w->shards[i].file, head_name, embed->ndim, embed->shape, second);
        if (good && memcmp(second, embed->data, (size_t)embed->size * sizeof *second) != 0)
            good = train_fail("%s: 'tie_word_embeddings' is true, but %s is not the embedding", w->folder, head_name);
        free(second);
        if (!good)
            return false;
    }
    return true;
}

/* What the model has no place for would be lost without a word. */
static bool check_rest(const weights *w, const model *m)
{
    for (int i = 0; i < w->count; ++i)
        for (int64_t t = 0; t < safetensors_count(w->shards[i].file); ++t) {
            const char *name = safetensors_at(w->shards[i].file, t)->name;
            bool known = m->config.tied && strcmp(name, head_name) == 0;
            for (int p = 0; p < m->parameter_count && !known; ++p)
                known = strcmp(name, m->parameters[p].name) == 0;
            if (!known)
                return train_fail("%s/%s: tensor '%s' is none of this model's", w->folder, w->shards[i].name, name);
        }
    return !m->config.tied || check_second_head(w, m);
}

static bool fill(const weights *w, model *m)
{
    for (int i = 0; i < m->parameter_count; ++i) {
        const parameter *p = &m->parameters[i];
        const safetensors_file *file = file_of(w, p->name);
        if (!file || !safetensors_load_floats(file, p->name, p->ndim, p->shape, p->data))
            return false;
    }
    return check_rest(w, m);
}

model *hf_weights_load(const char *folder, const hf_config *c)
{
    weights *w = text_alloc(sizeof *w);
    *w = (weights){.folder = folder};
    model *m = open_weights(w) ? model_reserve(&c->model) : NULL;
    if (m && !fill(w, m)) {
        model_free(m);
        m = NULL;
    }
    close_weights(w);
    return m;
}
