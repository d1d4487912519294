/*
 * A Hugging Face folder: config.json, generation_config.json, model.safetensors, SHA256SUMS, and where a tokenizer is known
 * its files.
 */
#include "export.h"

#include <stdlib.h>
#include <string.h>

#include "checksums.h"
#include "error.h"
#include "hf_weights.h"
#include "publish.h"
#include "safetensors.h"

enum { OWN_FILES = 4, FILES_MOST = OWN_FILES + TOKENIZER_FILES };

static const char config_name[] = "config.json";

/* What an export may consist of; that is replaced by the next one. */
static void list_names(const char *names[FILES_MOST + 1])
{
    static const char *const own[OWN_FILES] = {config_name, HF_WEIGHTS_NAME, HF_INDEX_NAME, CHECKSUMS_NAME};
    memcpy(names, own, sizeof own);
    memcpy(names + OWN_FILES, tokenizer_file_names, sizeof tokenizer_file_names);
}

typedef struct writer {
    const export_job *job;
    const char *folder, *place; /* where files are written, and where they will be */
    const char *names[FILES_MOST + 1];
    int count;
} writer;

static bool put(writer *w, const char *name, const char *bytes, size_t size)
{
    char *path = path_join(w->folder, name);
    const bool good = path_write(path, bytes, size);
    free(path);
    w->names[w->count++] = name;
    return good;
}

/* --------------------------------------------------------------------------------------------------------- small files */

static bool put_config(writer *w)
{
    text_buffer json = {0};
    hf_config_write(&json, &w->job->config, w->job->type);
    const bool good = put(w, config_name, json.bytes, json.length);
    text_free(&json);
    return good;
}

static void write_token(text_buffer *json, const char *name, int64_t token)
{
    if (token >= 0)
        text_format(json, "  \"%s\": %lld,\n", name, (long long)token);
}

/* Where the tokenizer's files have none. */
static bool put_generation(writer *w)
{
    text_buffer json = {0};
    if (w->job->words && tokenizer_file_named(w->job->words, GENERATION_JSON))
        return true;
    text_format(&json, "{\n");
    write_token(&json, "bos_token_id", w->job->config.bos);
    write_token(&json, "eos_token_id", w->job->config.eos);
    text_format(&json, "  \"use_cache\": true\n}\n");
    const bool good = put(w, GENERATION_JSON, json.bytes, json.length);
    text_free(&json);
    return good;
}

static void write_token_name(text_buffer *json, const char *key, const tokenizer *words, int64_t token)
{
    text_buffer name = {0};
    if (token >= 0 && tokenizer_written(words, (int32_t)token, &name) != TOKEN_UNUSED) {
        text_format(json, "  \"%s\": ", key);
        text_json_string(json, name.bytes, name.length);
        text_format(json, ",\n");
    }
    text_free(&name);
}

/* Where the tokenizer's files have none. Without the class transformers would take the one that belongs to Qwen3, which cuts
 * texts in its own way. */
static bool put_settings(writer *w)
{
    const tokenizer *words = w->job->words;
    text_buffer json = {0};
    if (!words || tokenizer_file_named(words, TOKENIZER_CONFIG_JSON))
        return true;
    text_format(&json, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n");
    write_token_name(&json, "bos_token", words, w->job->config.bos);
    write_token_name(&json, "eos_token", words, w->job->config.eos);
    text_format(&json, "  \"clean_up_tokenization_spaces\": false\n}\n");
    const bool good = put(w, TOKENIZER_CONFIG_JSON, json.bytes, json.length);
    text_free(&json);
    return good;
}

static bool put_tokenizer(writer *w)
{
    bool good = put_settings(w);
    for (int i = 0; w->job->words && i < tokenizer_file_count(w->job->words) && good; ++i) {
        const tokenizer_file *file = tokenizer_file_at(w->job->words, i);
        good = put(w, file->name, file->bytes, file->size);
    }
    return good;
}

/* ------------------------------------------------------------------------------------------------------------- weights */

static bool check_numbers(const export_job *job)
{
    static const char *const type_names[] = {[NARROW_F32] = "f32", [NARROW_F16] = "f16", [NARROW_BF16] = "bf16"};
    for (int i = 0; i < job->m->parameter_count; ++i) {
        const parameter *p = &job->m->parameters[i];
        const int64_t at = narrow_overflow(job->type, p->data, p->size);
        if (at >= 0)
            return train_fail("%s: element %lld is %g, too large for %s", p->name, (long long)at, (double)p->data[at],
                              type_names[job->type]);
    }
    return true;
}

bool export_check(const export_job *job)
{
    const int64_t tokens = job->words ? tokenizer_vocab(job->words) : 0, vocab = job->config.model.vocab;
    if (tokens > vocab)
        return train_fail("export: the tokenizer has %lld tokens, the model %lld", (long long)tokens, (long long)vocab);
    return check_numbers(job);
}

static bool put_weights(writer *w)
{
    const model *m = w->job->m;
    const safetensors_pair metadata = {"format", "pt"};
    char *path = path_join(w->folder, HF_WEIGHTS_NAME);
    safetensors_tensor *tensors = text_alloc((size_t)m->parameter_count * sizeof *tensors);
    for (int i = 0; i < m->parameter_count; ++i) {
        const parameter *p = &m->parameters[i];
        tensors[i] = (safetensors_tensor){.name = p->name,
                                          .dtype = safetensors_narrow(w->job->type),
                                          .rank = p->ndim,
                                          .shape = {p->shape[0], p->shape[1]},
                                          .floats = p->data};
    }
    const bool good = safetensors_write(path, tensors, m->parameter_count, &metadata, 1);
    w->names[w->count++] = HF_WEIGHTS_NAME;
    free(tensors);
    free(path);
    return good;
}

/* -------------------------------------------------------------------------------------------------------------- folder */

typedef struct digests {
    char hex[FILES_MOST][65];
    int count;
} digests;

static void note(void *user, const char *name, const char *digest)
{
    digests *d = user;
    (void)name;
    memcpy(d->hex[d->count++], digest, sizeof d->hex[0]);
}

static void report(const writer *w, const digests *d)
{
    for (int i = 0; i < w->count && w->job->written; ++i) {
        char *path = path_join(w->place, w->names[i]);
        w->job->written(w->job->user, path, d->hex[i]);
        free(path);
    }
}

bool export_hf(const export_job *job, const char *folder)
{
    writer w = {.job = job, .place = folder};
    digests d = {.count = 0};
    publishing p;
    const char *known[FILES_MOST + 1];
    list_names(known);
    if (!export_check(job) || !publish_possible(folder, CHECKSUMS_NAME, NULL, "export"))
        return false;
    bool good = publish_begin(&p, folder, known);
    w.folder = p.fresh;
    good = good && put_config(&w) && put_generation(&w) && put_weights(&w) && put_tokenizer(&w) &&
           checksums_write(w.folder, w.names, note, &d);
    good = publish_end(&p, good);
    if (good)
        report(&w, &d);
    return good;
}
