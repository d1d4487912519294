#include "hf_config.h"

#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "error.h"
#include "json.h"

enum { HF_CONFIG_MOST_BYTES = 1 << 24, FIELDS_MOST = 1000 };

static const char full_attention[] = "full_attention", sliding_attention[] = "sliding_attention";

/* ------------------------------------------------------------------------------------------------------------- reading */

/* The first thing wrong is reported, then nothing more is looked at. */
typedef struct reader {
    const char *label;
    const cJSON *object;
    bool good;
} reader;

/* A field; NULL if it is not there or null. */
static const cJSON *field(const reader *r, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(r->object, name);
    return !item || cJSON_IsNull(item) ? NULL : item;
}

static double get_number(reader *r, const char *name, double otherwise)
{
    const cJSON *item = field(r, name);
    if (r->good && item && !cJSON_IsNumber(item))
        r->good = train_fail("%s: '%s' is no number", r->label, name);
    return r->good && item ? item->valuedouble : otherwise;
}

/* otherwise < 0: it must be there. */
static int64_t get_whole(reader *r, const char *name, int64_t otherwise)
{
    const double number = get_number(r, name, (double)otherwise);
    if (r->good && !field(r, name) && otherwise < 0)
        r->good = train_fail("%s: no number '%s'", r->label, name);
    if (r->good && field(r, name) && !(number >= 0 && number <= 9007199254740992.0 && number == (double)(int64_t)number))
        r->good = train_fail("%s: '%s' is %g, not a whole number from 0 to 2^53", r->label, name, number);
    return r->good ? (int64_t)number : 0;
}

static bool get_truth(reader *r, const char *name, bool otherwise)
{
    const cJSON *item = field(r, name);
    if (r->good && item && !cJSON_IsBool(item))
        r->good = train_fail("%s: '%s' is neither true nor false", r->label, name);
    return r->good && item ? cJSON_IsTrue(item) : otherwise;
}

/* Must have this value, or be absent where `required` is false. */
static void demand_text(reader *r, const char *name, const char *value, bool required)
{
    const cJSON *item = field(r, name);
    if (!r->good || (!item && !required))
        return;
    if (!item || !cJSON_IsString(item))
        r->good = train_fail("%s: '%s' is not \"%s\"", r->label, name, value);
    else if (strcmp(item->valuestring, value) != 0)
        r->good = train_fail("%s: '%s' is \"%.60s\", but only \"%s\" is known here", r->label, name, item->valuestring, value);
}

/* Must be absent. */
static void demand_none(reader *r, const char *name)
{
    if (r->good && field(r, name))
        r->good = train_fail("%s: '%s' is not null, which is not known here", r->label, name);
}

static void check_architecture(reader *r)
{
    static const char wanted[] = "Qwen3ForCausalLM";
    const cJSON *list = field(r, "architectures"), *item = NULL;
    demand_text(r, "model_type", "qwen3", true);
    bool found = !list;
    cJSON_ArrayForEach(item, list) found = found || (cJSON_IsString(item) && strcmp(item->valuestring, wanted) == 0);
    if (r->good && !found)
        r->good = train_fail("%s: 'architectures' does not name %s, the only one known here", r->label, wanted);
    demand_text(r, "hidden_act", "silu", false);
    if (get_truth(r, "attention_bias", false) && r->good)
        r->good = train_fail("%s: 'attention_bias' is true, but this model has no biases", r->label);
    demand_none(r, "quantization_config");
    demand_none(r, "rope_scaling");
}

static void demand_whole_heads(reader *r)
{
    const double part = get_number(r, "partial_rotary_factor", 1);
    if (r->good && part != 1)
        r->good = train_fail("%s: 'partial_rotary_factor' is %g, but positions turn whole heads here", r->label, part);
}

/* What else there is would turn positions by other angles: a factor, or angles of each kind of layer. */
static void check_rope(reader *r)
{
    static const char *const known[] = {"rope_theta", "rope_type", "type", "partial_rotary_factor"};
    const cJSON *item;
    if (!cJSON_IsObject(r->object))
        r->good = train_fail("%s: 'rope_parameters' is no object", r->label);
    for (item = r->good ? r->object->child : NULL; item && r->good; item = item->next) {
        bool found = cJSON_IsNull(item);
        for (size_t i = 0; i < sizeof known / sizeof *known && !found; ++i)
            found = strcmp(item->string, known[i]) == 0;
        r->good = found || train_fail("%s: 'rope_parameters' has '%.60s', which is not known here", r->label, item->string);
    }
    demand_text(r, "rope_type", "default", false);
    demand_text(r, "type", "default", false); /* an older name */
    demand_whole_heads(r);
}

/* Version 5 has an object for it, version 4 a number. */
static double read_theta(reader *r)
{
    const double legacy = get_number(r, "rope_theta", 10000);
    const cJSON *object = field(r, "rope_parameters");
    demand_whole_heads(r);
    if (!r->good || !object)
        return legacy;
    reader rope = {r->label, object, true};
    check_rope(&rope);
    const double theta = get_number(&rope, "rope_theta", legacy);
    r->good = rope.good;
    return theta;
}

/* How many layers slide; what is not said follows from max_window_layers, where there is a window. */
static int64_t count_sliding(reader *r, int64_t layers, bool windowed)
{
    const cJSON *list = field(r, "layer_types"), *item = NULL;
    const int64_t whole = get_whole(r, "max_window_layers", 28);
    if (!r->good || !list)
        return windowed && layers > whole ? layers - whole : 0;
    int64_t sliding = 0;
    cJSON_ArrayForEach(item, list)
    {
        const char *type = cJSON_IsString(item) ? item->valuestring : "";
        if (strcmp(type, full_attention) != 0 && strcmp(type, sliding_attention) != 0)
            r->good = train_fail("%s: 'layer_types' has \"%.60s\", which is not known here", r->label, type);
        sliding += strcmp(type, sliding_attention) == 0;
    }
    if (r->good && cJSON_GetArraySize(list) != layers)
        r->good = train_fail("%s: 'layer_types' has %d layers, num_hidden_layers is %lld", r->label, cJSON_GetArraySize(list),
                             (long long)layers);
    return sliding;
}

static int64_t read_window(reader *r, int64_t layers)
{
    const bool used = get_truth(r, "use_sliding_window", false);
    const bool none = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(r->object, "sliding_window"));
    const int64_t window = none ? 0 : get_whole(r, "sliding_window", 4096), sliding = count_sliding(r, layers, !none);
    if (!r->good || !used || sliding == 0)
        return 0;
    if (window < 1 || window > INT32_MAX)
        r->good = train_fail("%s: 'sliding_window' is %lld, but must be 1 .. %d", r->label, (long long)window, INT32_MAX);
    else if (sliding != layers)
        r->good = train_fail("%s: %lld of %lld layers have a sliding window: here all have one or none", r->label,
                             (long long)sliding, (long long)layers);
    return window;
}

/* -1 if it is no token. */
static int64_t token_of(const cJSON *item)
{
    const double number = item && cJSON_IsNumber(item) ? item->valuedouble : -1;
    return number >= 0 && number <= INT32_MAX ? (int64_t)number : -1;
}

/* A token, or the first of a list. */
static int64_t read_token(const reader *r, const char *name)
{
    const cJSON *item = field(r, name);
    return token_of(cJSON_IsArray(item) ? item->child : item);
}

static bool check_unique(const cJSON *object, const char *label)
{
    const cJSON *item, *other;
    if (cJSON_GetArraySize(object) > FIELDS_MOST)
        return train_fail("%s: %d fields, more than %d", label, cJSON_GetArraySize(object), FIELDS_MOST);
    cJSON_ArrayForEach(item, object)
    {
        for (other = item->next; other; other = other->next)
            if (strcmp(item->string, other->string) == 0)
                return train_fail("%s: '%s' occurs twice", label, item->string);
    }
    return true;
}

static bool read_tree(reader *r, hf_config *c)
{
    model_config *m = &c->model;
    r->good = check_unique(r->object, r->label);
    check_architecture(r);
    m->vocab = get_whole(r, "vocab_size", -1);
    m->hidden = get_whole(r, "hidden_size", -1);
    m->ffn = get_whole(r, "intermediate_size", -1);
    m->layers = get_whole(r, "num_hidden_layers", -1);
    m->heads = get_whole(r, "num_attention_heads", -1);
    m->heads_kv = get_whole(r, "num_key_value_heads", m->heads);
    m->head_dim = get_whole(r, "head_dim", 128);
    m->max_seq = get_whole(r, "max_position_embeddings", 32768);
    m->rms_eps = get_number(r, "rms_norm_eps", 1e-6);
    m->tied = get_truth(r, "tie_word_embeddings", false);
    m->rope_theta = read_theta(r);
    c->window = read_window(r, m->layers);
    c->bos = read_token(r, "bos_token_id");
    c->eos = read_token(r, "eos_token_id");
    return r->good && (model_config_check(m) || train_fail("%s: %s", r->label, train_error()));
}

bool hf_config_parse(const char *json, size_t size, const char *label, hf_config *c)
{
    *c = (hf_config){0};
    cJSON *root = json_object(json, size, label);
    reader r = {label, root, true};
    const bool good = root && read_tree(&r, c);
    cJSON_Delete(root);
    return good;
}

void hf_config_tokens(const char *json, size_t size, int64_t *bos, token_list *eos)
{
    cJSON *root = cJSON_ParseWithLength(json, size);
    const reader r = {"", root, true};
    const cJSON *said = field(&r, "eos_token_id"), *item;
    *bos = read_token(&r, "bos_token_id");
    if (token_of(said) >= 0)
        token_list_add(eos, (int32_t)token_of(said));
    for (item = cJSON_IsArray(said) ? said->child : NULL; item; item = item->next)
        if (token_of(item) >= 0)
            token_list_add(eos, (int32_t)token_of(item));
    cJSON_Delete(root);
}

bool hf_config_read(const char *path, hf_config *c)
{
    size_t size;
    char *json = config_slurp(path, HF_CONFIG_MOST_BYTES, &size);
    const bool good = json && hf_config_parse(json, size, path, c);
    free(json);
    return good;
}

/* ------------------------------------------------------------------------------------------------------------- writing */

static void put_whole(text_buffer *json, const char *name, int64_t value)
{
    if (value >= 0)
        text_format(json, "  \"%s\": %lld,\n", name, (long long)value);
    else
        text_format(json, "  \"%s\": null,\n", name);
}

static void put_number(text_buffer *json, const char *name, double value)
{
    text_format(json, "  \"%s\": ", name);
    text_json_number(json, value);
    text_format(json, ",\n");
}

static void put_truth(text_buffer *json, const char *name, bool value)
{
    text_format(json, "  \"%s\": %s,\n", name, value ? "true" : "false");
}

static void put_layer_types(text_buffer *json, const hf_config *c)
{
    text_format(json, "  \"layer_types\": [");
    for (int64_t i = 0; i < c->model.layers; ++i)
        text_format(json, "%s\n    \"%s\"", i ? "," : "", c->window ? sliding_attention : full_attention);
    text_format(json, "\n  ],\n");
}

void hf_config_write(text_buffer *json, const hf_config *c, narrow_type type)
{
    static const char *const types[] = {[NARROW_F32] = "float32", [NARROW_F16] = "float16", [NARROW_BF16] = "bfloat16"};
    const model_config *m = &c->model;
    text_format(json, "{\n  \"architectures\": [\n    \"Qwen3ForCausalLM\"\n  ],\n");
    put_truth(json, "attention_bias", false);
    text_format(json, "  \"attention_dropout\": 0.0,\n");
    put_whole(json, "bos_token_id", c->bos);
    text_format(json, "  \"dtype\": \"%s\",\n", types[type]);
    put_whole(json, "eos_token_id", c->eos);
    put_whole(json, "head_dim", m->head_dim);
    text_format(json, "  \"hidden_act\": \"silu\",\n");
    put_whole(json, "hidden_size", m->hidden);
    text_format(json, "  \"initializer_range\": 0.02,\n");
    put_whole(json, "intermediate_size", m->ffn);
    put_layer_types(json, c);
    put_whole(json, "max_position_embeddings", m->max_seq);
    put_whole(json, "max_window_layers", c->window ? 0 : m->layers);
    text_format(json, "  \"model_type\": \"qwen3\",\n");
    put_whole(json, "num_attention_heads", m->heads);
    put_whole(json, "num_hidden_layers", m->layers);
    put_whole(json, "num_key_value_heads", m->heads_kv);
    put_number(json, "rms_norm_eps", m->rms_eps);
    text_format(json, "  \"rope_parameters\": {\n    \"rope_theta\": ");
    text_json_number(json, m->rope_theta);
    text_format(json, ",\n    \"rope_type\": \"default\"\n  },\n  \"rope_scaling\": null,\n");
    put_number(json, "rope_theta", m->rope_theta);
    put_whole(json, "sliding_window", c->window ? c->window : -1);
    put_truth(json, "tie_word_embeddings", m->tied);
    text_format(json, "  \"torch_dtype\": \"%s\",\n", types[type]);
    put_truth(json, "use_cache", true);
    put_truth(json, "use_sliding_window", c->window > 0);
    text_format(json, "  \"vocab_size\": %lld\n}\n", (long long)m->vocab);
}
