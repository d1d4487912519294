/*
 * Presets, and reading and writing flat JSON objects. The nesting that other JSON allows is refused, by name.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "json.h"

enum { CONFIG_MOST_BYTES = 1 << 20 };

/* tiny learns the small world in about a minute on two cores; small wants a real text and some hours. */
static const config_pair tiny[] = {{"hidden", "128"},     {"layers", "4"},  {"heads", "4"},    {"heads-kv", "2"},
                                   {"head-dim", "32"},    {"ffn", "256"},   {"tied", "true"},  {"rope-theta", "10000"},
                                   {"seq", "256"},        {"batch", "8"},   {"steps", "1400"}, {"lr", "0.003"},
                                   {"min-lr", "1e-4"},    {"warmup", "40"}, {"beta2", "0.99"}, {"weight-decay", "0.02"},
                                   {"eval-every", "500"}, {NULL, NULL}};
static const config_pair small[] = {{"hidden", "384"},     {"layers", "6"},   {"heads", "6"},    {"heads-kv", "2"},
                                    {"head-dim", "64"},    {"ffn", "1024"},   {"tied", "true"},  {"rope-theta", "10000"},
                                    {"seq", "512"},        {"batch", "16"},   {"steps", "5000"}, {"lr", "0.001"},
                                    {"min-lr", "1e-4"},    {"warmup", "100"}, {"beta2", "0.95"}, {"weight-decay", "0.1"},
                                    {"eval-every", "250"}, {NULL, NULL}};

static const char *const names[] = {"tiny", "small", NULL};

const config_pair *config_preset(const char *name)
{
    return strcmp(name, "tiny") == 0 ? tiny : strcmp(name, "small") == 0 ? small : NULL;
}

const char *const *config_preset_names(void)
{
    return names;
}

/* A scalar as the text that an option would be given. */
static bool scalar_text(const cJSON *item, text_buffer *value)
{
    if (cJSON_IsBool(item))
        text_format(value, cJSON_IsTrue(item) ? "true" : "false");
    else if (cJSON_IsString(item))
        text_format(value, "%s", item->valuestring);
    else if (cJSON_IsNumber(item) && item->valuedouble >= -9007199254740992.0 && item->valuedouble <= 9007199254740992.0 &&
             item->valuedouble == (double)(long long)item->valuedouble)
        text_format(value, "%lld", (long long)item->valuedouble);
    else if (cJSON_IsNumber(item))
        text_json_number(value, item->valuedouble);
    else
        return false;
    return true;
}

static bool collect(const cJSON *object, const char *label, config_set *c)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        text_buffer value = {0};
        text_bytes(&value, "", 0);
        if (config_find(c, item->string)) {
            text_free(&value);
            return train_fail("%s: '%s' occurs twice", label, item->string);
        }
        if (!scalar_text(item, &value)) {
            text_free(&value);
            return train_fail("%s: '%s' is neither a number, a boolean nor a string", label, item->string);
        }
        c->pairs[c->count++] = (config_pair){strdup(item->string), value.bytes};
    }
    return true;
}

bool config_parse(const char *json, size_t size, const char *label, config_set *c)
{
    *c = (config_set){0};
    cJSON *object = json_object(json, size, label);
    if (!object)
        return false;
    c->pairs = text_alloc((size_t)cJSON_GetArraySize(object) * sizeof *c->pairs);
    const bool good = collect(object, label, c);
    cJSON_Delete(object);
    if (!good)
        config_free(c);
    return good;
}

char *config_slurp(const char *path, size_t most, size_t *size)
{
    FILE *stream = fopen(path, "rb");
    if (!stream) {
        train_fail("%s: %s", path, strerror(errno));
        return NULL;
    }
    text_buffer all = {0};
    char buffer[4096];
    text_bytes(&all, "", 0);
    for (size_t got; all.length <= most && (got = fread(buffer, 1, sizeof buffer, stream)) > 0;)
        text_bytes(&all, buffer, got);
    bool failed = ferror(stream);
    fclose(stream);
    if (failed || all.length > most) {
        train_fail(failed ? "%s: cannot be read" : "%s: larger than %zu bytes", path, most);
        text_free(&all);
        return NULL;
    }
    *size = all.length;
    return all.bytes;
}

bool config_read(const char *path, config_set *c)
{
    size_t size;
    *c = (config_set){0};
    char *json = config_slurp(path, CONFIG_MOST_BYTES, &size);
    if (!json)
        return false;
    bool good = config_parse(json, size, path, c);
    free(json);
    return good;
}

void config_free(config_set *c)
{
    for (int i = 0; i < c->count; ++i) {
        free((void *)c->pairs[i].key);
        free((void *)c->pairs[i].value);
    }
    free(c->pairs);
    *c = (config_set){0};
}

const char *config_find(const config_set *c, const char *key)
{
    for (int i = 0; i < c->count; ++i)
        if (strcmp(c->pairs[i].key, key) == 0)
            return c->pairs[i].value;
    return NULL;
}

void config_write_pair(text_buffer *json, const char *key, const char *value, bool is_text)
{
    text_json_string(json, key, strlen(key));
    text_bytes(json, ":", 1);
    if (is_text)
        text_json_string(json, value, strlen(value));
    else
        text_bytes(json, value, strlen(value));
}
