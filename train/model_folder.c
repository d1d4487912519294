#include "model_folder.h"

#include <stdlib.h>
#include <string.h>

#include "checksums.h"
#include "config.h"
#include "error.h"
#include "hf_weights.h"
#include "publish.h"

/* Has the folder a file of this name? */
static bool holds(const char *folder, const char *name)
{
    char *path = path_join(folder, name);
    const bool there = path_exists(path);
    free(path);
    return there;
}

/* An option of the training run; the caller frees it. NULL: it says nothing of it. */
static char *recorded(const model_folder *f, const char *option)
{
    config_set run;
    if (!config_parse(f->configuration, strlen(f->configuration), f->path, &run))
        return NULL;
    const char *value = config_find(&run, option);
    char *copy = value ? strdup(value) : NULL;
    config_free(&run);
    return copy;
}

static bool open_checkpoint(model_folder *f)
{
    if (!checkpoint_read_state(f->path, &f->state))
        return false;
    f->is_checkpoint = true;
    f->model = f->state.model;
    f->configuration = strdup(f->state.configuration);
    char *attention = recorded(f, "attention");
    attention_path path;
    if (attention && attention_path_parse(attention, &path) && path.kind == ATTENTION_WINDOW)
        f->window = path.size;
    free(attention);
    return true;
}

static bool open_hf(model_folder *f)
{
    char *path = path_join(f->path, "config.json");
    const bool good = checksums_verify(f->path) && hf_config_read(path, &f->config);
    free(path);
    f->model = f->config.model;
    f->window = f->config.window;
    f->configuration = strdup("{}");
    return good;
}

bool model_folder_open(const char *path, model_folder *f)
{
    *f = (model_folder){.path = strdup(path)};
    publish_recover(path);
    if (holds(path, "state.json"))
        return open_checkpoint(f);
    if (holds(path, "config.json"))
        return open_hf(f);
    return train_fail("%s: holds neither state.json (a checkpoint) nor config.json (a Hugging Face model)", path);
}

void model_folder_close(model_folder *f)
{
    checkpoint_state_free(&f->state);
    free(f->configuration);
    free(f->path);
    *f = (model_folder){0};
}

model *model_folder_load(const model_folder *f)
{
    return f->is_checkpoint ? checkpoint_load_model(f->path, &f->state) : hf_weights_load(f->path, &f->config);
}

attention_path model_folder_attention(const model_folder *f)
{
    return f->window ? (attention_path){ATTENTION_WINDOW, f->window} : (attention_path){.kind = ATTENTION_COMPOSED};
}

char *model_folder_tokenizer(const model_folder *f)
{
    if (f->is_checkpoint)
        return checkpoint_tokenizer(f->path, &f->state);
    if (holds(f->path, TOKENIZER_JSON))
        return path_join(f->path, TOKENIZER_JSON);
    train_fail("%s: has no " TOKENIZER_JSON " (--tokenizer names one)", f->path);
    return NULL;
}

static int64_t begin_of(const tokenizer *words)
{
    const token_list *before = tokenizer_before(words);
    return tokenizer_is_bytes(words) ? TOKEN_BOS : before->count ? before->ids[0] : -1;
}

static void generation_tokens(const tokenizer *words, int64_t *bos, token_list *eos)
{
    const tokenizer_file *generation = words ? tokenizer_file_named(words, GENERATION_JSON) : NULL;
    *bos = -1;
    if (generation)
        hf_config_tokens(generation->bytes, generation->size, bos, eos);
}

void model_folder_ends(const model_folder *f, const tokenizer *words, int64_t *bos, int64_t *eos)
{
    token_list said = {0};
    generation_tokens(words, bos, &said);
    *eos = said.count ? said.ids[0] : -1;
    token_list_free(&said);
    if (!f->is_checkpoint) {
        *bos = f->config.bos >= 0 ? f->config.bos : *bos;
        *eos = f->config.eos >= 0 ? f->config.eos : *eos;
    }
    if (words && *bos < 0)
        *bos = begin_of(words);
    if (words && *eos < 0)
        *eos = tokenizer_end(words);
    *bos = *bos < f->model.vocab ? *bos : -1;
    *eos = *eos < f->model.vocab ? *eos : -1;
}

void model_folder_stops(const model_folder *f, const tokenizer *words, token_list *stops)
{
    int64_t bos;
    generation_tokens(words, &bos, stops);
    if (!f->is_checkpoint && f->config.eos >= 0)
        token_list_add(stops, (int32_t)f->config.eos);
    if (words && tokenizer_end(words) >= 0)
        token_list_add(stops, tokenizer_end(words));
}
