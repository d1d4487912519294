/*
 * Hugging Face folders that are not as they should be: each is refused by the name of what is wrong; and those of other
 * versions, in several files, which are read.
 */
#include "folder.h"
#include "support.h"
#include "train/checksums.h"
#include "train/export.h"
#include "train/hf_weights.h"
#include "train/model_folder.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const model_config shape = {SHAPE_8, .vocab = 13, .layers = 2, .max_seq = 16};

typedef struct fixture {
    char folder[FOLDER_PATH], hf[FOLDER_PATH], config[FOLDER_PATH], weights[FOLDER_PATH], sums[FOLDER_PATH];
    model *m;
} fixture;

static void write_export(fixture *f, bool tied)
{
    model_config config = shape;
    config.tied = tied;
    model_free(f->m);
    f->m = random_model(&config, 1);
    require(export_hf(&(export_job){.m = f->m, .config = {.model = config, .bos = -1, .eos = -1}}, f->hf));
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    folder_make(f->folder);
    folder_file(f->hf, f->folder, "hf");
    folder_file(f->config, f->hf, "config.json");
    folder_file(f->weights, f->hf, "model.safetensors");
    folder_file(f->sums, f->hf, CHECKSUMS_NAME);
    write_export(f, false);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    model_free(f->m);
    folder_remove(f->folder);
    free(f);
    return 0;
}

/* A model, or NULL. */
static model *load(const fixture *f)
{
    model_folder opened;
    model *m = model_folder_open(f->hf, &opened) ? model_folder_load(&opened) : NULL;
    model_folder_close(&opened);
    return m;
}

static void check_refused(const fixture *f, const char *word)
{
    model *m = load(f);
    model_free(m);
    assert_null(m);
    if (!strstr(train_error(), word))
        fail_msg("expected '%s' in: %s", word, train_error());
    if (strchr(train_error(), '\n'))
        fail_msg("more than a line: %s", train_error());
}

static void check_same(const fixture *f)
{
    model *m = load(f);
    require(m);
    for (int i = 0; i < m->parameter_count; ++i)
        assert_memory_equal(m->parameters[i].data, f->m->parameters[i].data, (size_t)m->parameters[i].size * sizeof(float));
    model_free(m);
}

/* ------------------------------------------------------------------------------------------------------------ checksums */

static void test_altered(void **state)
{
    fixture *f = *state;
    static const char *const names[] = {"config.json", "generation_config.json", "model.safetensors"};
    check_same(f);
    for (int i = 0; i < 3; ++i) {
        char path[FOLDER_PATH];
        size_t size;
        char *bytes = file_read(folder_file(path, f->hf, names[i]), &size);
        for (size_t at = 0; at < size; at += size / 10 + 1) {
            bytes[at] ^= 1;
            file_write(path, bytes, size);
            check_refused(f, names[i]);
            check_refused(f, "SHA256SUMS says");
            bytes[at] ^= 1;
        }
        file_write(path, bytes, size - 1);
        check_refused(f, names[i]);
        assert_int_equal(unlink(path), 0);
        check_refused(f, names[i]);
        file_write(path, bytes, size);
        free(bytes);
        check_same(f);
    }
}

static void test_sums(void **state)
{
    fixture *f = *state;
    static const char *const bad[] = {"x", "0123  config.json\n",
                                      "0000000000000000000000000000000000000000000000000000000000000000  ../config.json\n",
                                      "0000000000000000000000000000000000000000000000000000000000000000 config.json\n",
                                      "0000000000000000000000000000000000000000000000000000000000000000  config.json"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        file_write(f->sums, bad[i], strlen(bad[i]));
        check_refused(f, "line 1 is not a SHA-256");
    }
    file_write(f->sums, "", 0);
    check_same(f);
}

/* -------------------------------------------------------------------------------------------------------- configuration */

/* config.json with one piece of text instead of another. */
static void replace(const fixture *f, const char *original, const char *from, const char *to)
{
    const char *at = strstr(original, from);
    if (!at)
        fail_msg("no '%s' in %s", from, original);
    text_buffer text = {0};
    text_bytes(&text, original, (size_t)(at - original));
    text_format(&text, "%s%s", to, at + strlen(from));
    file_write(f->config, text.bytes, text.length);
    text_free(&text);
}

static void test_other_models(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *from, *to, *word;
    } cases[] = {
        {"\"Qwen3ForCausalLM\"", "\"LlamaForCausalLM\"", "does not name Qwen3ForCausalLM"},
        {"\"model_type\": \"qwen3\"", "\"model_type\": \"llama\"", "llama"},
        {"\"model_type\": \"qwen3\"", "\"model_type\": \"qwen3_moe\"", "qwen3_moe"},
        {"\"model_type\": \"qwen3\",", "", "model_type"},
        {"\"silu\"", "\"gelu\"", "gelu"},
        {"\"attention_bias\": false", "\"attention_bias\": true", "'attention_bias' is true"},
        {"\"rope_scaling\": null", "\"rope_scaling\": {\"factor\": 4}", "rope_scaling"},
        {"\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"", "yarn"},
        {"\"rope_type\": \"default\"", "\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5", "partial_rotary_factor"},
        {"\"use_cache\"", "\"quantization_config\": {\"bits\": 4}, \"use_cache\"", "quantization_config"},
        {"\"hidden_size\": 8,", "", "no number 'hidden_size'"},
        {"\"hidden_size\": 8", "\"hidden_size\": 8.5", "'hidden_size' is 8.5"},
        {"\"hidden_size\": 8", "\"hidden_size\": \"8\"", "'hidden_size' is no number"},
        {"\"hidden_size\": 8", "\"hidden_size\": 8, \"hidden_size\": 8", "'hidden_size' occurs twice"},
        {"\"hidden_size\": 8", "\"hidden_size\": -8", "'hidden_size' is -8"},
        {"\"vocab_size\": 13", "\"vocab_size\": 1e300", "'vocab_size' is 1e+300"},
        {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 3", "3"},
        {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 0", "'tie_word_embeddings' is neither true nor false"},
        {"\"full_attention\"", "\"linear_attention\"", "linear_attention"},
        {"\"full_attention\",", "", "'layer_types' has 1 layers, num_hidden_layers is 2"},
        {"\"rope_type\": \"default\"", "\"rope_type\": \"default\", \"factor\": 4", "'rope_parameters' has 'factor'"},
        {"\"rope_type\": \"default\"", "\"type\": \"yarn\"", "'type' is \"yarn\""},
        {"\"rope_theta\": 10000", "\"full_attention\": {\"rope_theta\": 5}", "'rope_parameters' has 'full_attention'"},
        {"\"use_cache\"", "\"partial_rotary_factor\": 0.5, \"use_cache\"", "'partial_rotary_factor' is 0.5"},
        {"\"vocab_size\": 13\n}", "\"vocab_size\": 13\n} x", "not one JSON object"},
        {"{", "[", "not one JSON object"},
    };
    size_t size;
    char *original = file_read(f->config, &size);
    assert_int_equal(unlink(f->sums), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        replace(f, original, cases[i].from, cases[i].to);
        check_refused(f, "config.json");
        check_refused(f, cases[i].word);
    }
    /* Windows: in all layers one, in some refused. */
    replace(f, original, "\"use_sliding_window\": false", "\"use_sliding_window\": true, \"x\": 1");
    check_same(f);
    free(original);
    original = file_read(f->config, &size);
    replace(f, original, "\"full_attention\"", "\"sliding_attention\"");
    check_refused(f, "'sliding_window' is 0, but must be 1");
    free(original);
    original = file_read(f->config, &size);
    replace(f, original, "\"sliding_window\": null", "\"sliding_window\": 5");
    check_refused(f, "1 of 2 layers have a sliding window");
    free(original);
}

/* As transformers 4 wrote it, with nothing that has a value of its own. */
static void test_older_config(void **state)
{
    fixture *f = *state;
    static const char old[] = "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"vocab_size\": 13, "
                              "\"hidden_size\": 8, \"intermediate_size\": 12, \"num_hidden_layers\": 2, "
                              "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 4, "
                              "\"max_position_embeddings\": 16, \"rope_theta\": 5000, \"bos_token_id\": [3, 4], "
                              "\"sliding_window\": null, \"eos_token_id\": 7}";
    hf_config c;
    file_write(f->config, old, sizeof old - 1);
    assert_int_equal(unlink(f->sums), 0);
    check_same(f);
    require(hf_config_read(f->config, &c));
    assert_true(c.model.rope_theta == 5000 && c.model.rms_eps == 1e-6 && !c.model.tied);
    assert_int_equal(c.window, 0);
    assert_int_equal(c.bos, 3);
    assert_int_equal(c.eos, 7);
    static const struct {
        const char *says;
        int64_t window;
    } cases[] = {{"null", 0}, {"6", 6}, {"0", -1}}; /* -1: refused */
    for (int i = 0; i < 3; ++i) {
        text_buffer json = {0};
        text_format(&json, "%.*s, \"sliding_window\": %s, \"use_sliding_window\": true, \"max_window_layers\": 0}",
                    (int)(strstr(old, ", \"sliding_window\"") - old), old, cases[i].says);
        assert_int_equal(hf_config_parse(json.bytes, json.length, "older", &c), cases[i].window >= 0);
        assert_true(cases[i].window < 0 || c.window == cases[i].window);
        text_free(&json);
    }
}

/* -------------------------------------------------------------------------------------------------------------- weights */

static safetensors_tensor tensor_of(const parameter *p)
{
    return (safetensors_tensor){
        .name = p->name, .dtype = SAFETENSORS_F32, .rank = p->ndim, .shape = {p->shape[0], p->shape[1]}, .data = p->data};
}

/* The model's tensors from `first` to `end` - 1 as one file of the folder. */
static void write_part(const fixture *f, const char *name, int first, int end)
{
    char path[FOLDER_PATH];
    safetensors_tensor tensors[64];
    for (int i = first; i < end; ++i)
        tensors[i - first] = tensor_of(&f->m->parameters[i]);
    require(safetensors_write(folder_file(path, f->hf, name), tensors, end - first, NULL, 0));
}

static void test_tensors(void **state)
{
    fixture *f = *state;
    safetensors_tensor tensors[64];
    const int count = f->m->parameter_count, at = 4;
    assert_int_equal(unlink(f->sums), 0);
    for (int i = 0; i < count; ++i)
        tensors[i] = tensor_of(&f->m->parameters[i]);
    write_part(f, "model.safetensors", 0, count - 1);
    check_refused(f, f->m->parameters[count - 1].name);

    tensors[at].shape[0] = f->m->parameters[at].shape[1];
    tensors[at].shape[1] = f->m->parameters[at].shape[0];
    require(safetensors_write(f->weights, tensors, count, NULL, 0));
    check_refused(f, f->m->parameters[at].name);
    check_refused(f, "expected [");
    tensors[at] = tensor_of(&f->m->parameters[at]);

    tensors[at].dtype = SAFETENSORS_I32;
    require(safetensors_write(f->weights, tensors, count, NULL, 0));
    check_refused(f, "is I32, expected F32, F16 or BF16");
    tensors[at].dtype = SAFETENSORS_F32;

    tensors[count] = tensors[at];
    tensors[count].name = "model.layers.7.mlp.up_proj.weight";
    require(safetensors_write(f->weights, tensors, count + 1, NULL, 0));
    check_refused(f, "tensor 'model.layers.7.mlp.up_proj.weight' is none of this model's");

    require(safetensors_write(f->weights, tensors, count, NULL, 0));
    check_same(f);
    size_t size;
    char *bytes = file_read(f->weights, &size);
    file_write(f->weights, bytes, size - 4);
    check_refused(f, "model.safetensors");
    file_write(f->weights, bytes, 4);
    check_refused(f, "model.safetensors");
    free(bytes);
    assert_int_equal(unlink(f->weights), 0);
    check_refused(f, "neither model.safetensors nor model.safetensors.index.json");
}

/* A tied model's head may be there, if it is the embedding. */
static void test_second_head(void **state)
{
    fixture *f = *state;
    safetensors_tensor tensors[64];
    write_export(f, true);
    assert_int_equal(unlink(f->sums), 0);
    const int count = f->m->parameter_count;
    for (int i = 0; i < count; ++i)
        tensors[i] = tensor_of(&f->m->parameters[i]);
    tensors[count] = tensors[0];
    tensors[count].name = "lm_head.weight";
    require(safetensors_write(f->weights, tensors, count + 1, NULL, 0));
    check_same(f);
    float *other = text_alloc((size_t)f->m->parameters[0].size * sizeof *other);
    memcpy(other, f->m->parameters[0].data, (size_t)f->m->parameters[0].size * sizeof *other);
    other[9] += 1;
    tensors[count].data = other;
    require(safetensors_write(f->weights, tensors, count + 1, NULL, 0));
    check_refused(f, "lm_head.weight is not the embedding");
    free(other);
}

/* ---------------------------------------------------------------------------------------------------------------- shards */

static void write_index(const fixture *f, int split, const char *first, const char *second)
{
    char path[FOLDER_PATH];
    text_buffer json = {0};
    text_format(&json, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int i = 0; i < f->m->parameter_count; ++i)
        text_format(&json, "%s\"%s\": \"%s\"", i ? ", " : "", f->m->parameters[i].name, i < split ? first : second);
    text_format(&json, "}}");
    file_write(folder_file(path, f->hf, "model.safetensors.index.json"), json.bytes, json.length);
    text_free(&json);
}

static void test_shards(void **state)
{
    fixture *f = *state;
    const int count = f->m->parameter_count, split = 9;
    char path[FOLDER_PATH];
    static const char one[] = "model-00001-of-00002.safetensors", two[] = "model-00002-of-00002.safetensors";
    assert_int_equal(unlink(f->sums), 0);
    assert_int_equal(unlink(f->weights), 0);
    write_part(f, one, 0, split);
    write_part(f, two, split, count);
    write_index(f, split, one, two);
    check_same(f);
    write_index(f, split + 1, one, two); /* a tensor that is in the other file */
    check_refused(f, f->m->parameters[split].name);
    write_index(f, split, one, "../two.safetensors");
    check_refused(f, "'../two.safetensors' is no name of a file in this folder");
    write_index(f, split, one, "three.safetensors");
    check_refused(f, "three.safetensors");
    folder_file(path, f->hf, "model.safetensors.index.json");
    file_write(path, "{}", 2);
    check_refused(f, "no object 'weight_map'");
    file_write(path, "{\"weight_map\": {}} {", 20);
    check_refused(f, "not one JSON object");
    file_write(path, "{\"weight_map\": {\"a\": 1}}", 24);
    check_refused(f, "'a' is in no file");
    file_write(path, "{\"weight_map\": {}}", 18);
    check_refused(f, f->m->parameters[0].name);
    write_index(f, split, one, two);
    assert_int_equal(unlink(folder_file(path, f->hf, two)), 0);
    check_refused(f, two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_altered, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(test_sums, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(test_other_models, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(test_older_config, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(test_tensors, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(test_second_head, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(test_shards, set_up, tear_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
