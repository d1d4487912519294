/*
 * Exports: what was written to a Hugging Face folder is read again, bit for bit or rounded once; a GGUF file has the same
 * tensors and the tokenizer; nothing that stood there is lost.
 */
#include "train/export.h"
#include "folder.h"
#include "support.h"
#include "train/hf_weights.h"
#include "train/model_folder.h"
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const model_config shape = {.vocab = 300,
                                   .hidden = 24,
                                   .layers = 2,
                                   .heads = 6,
                                   .heads_kv = 2,
                                   .head_dim = 8,
                                   .ffn = 20,
                                   .max_seq = 64,
                                   .rope_theta = 123456,
                                   .rms_eps = 1e-5};

typedef struct fixture {
    char folder[FOLDER_PATH], hf[FOLDER_PATH], gguf[FOLDER_PATH];
    model *m;
    tokenizer *words;
    export_job job;
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    folder_make(f->folder);
    folder_file(f->hf, f->folder, "hf");
    folder_file(f->gguf, f->folder, "m.gguf");
    f->m = random_model(&shape, 1);
    f->words = tokenizer_open("bytes");
    f->job = (export_job){.m = f->m, .config = {.model = shape, .bos = 256, .eos = 257}, .words = f->words};
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    model_free(f->m);
    tokenizer_close(f->words);
    folder_remove(f->folder);
    free(f);
    return 0;
}

static void refused(bool good, const char *word)
{
    assert_false(good);
    if (!strstr(train_error(), word))
        fail_msg("expected '%s' in: %s", word, train_error());
}

/* -------------------------------------------------------------------------------------------------------------- folders */

/* To the nearest number of so many bits behind the point, halves to even. The multiples of 2^-24 are all of binary16. */
static float rounded(float x, int fraction)
{
    int exponent;
    frexp((double)x, &exponent);
    const int last = exponent - fraction - 1, unit = fraction == 10 && last < -24 ? -24 : last;
    return (float)ldexp(nearbyint(ldexp((double)x, -unit)), unit);
}

static void check_read(const fixture *f, int fraction)
{
    model_folder opened;
    require(model_folder_open(f->hf, &opened));
    assert_false(opened.is_checkpoint);
    assert_int_equal(opened.model.vocab, shape.vocab);
    assert_int_equal(opened.model.heads_kv, shape.heads_kv);
    assert_int_equal(opened.model.head_dim, shape.head_dim);
    assert_int_equal(opened.model.max_seq, shape.max_seq);
    assert_true(opened.model.rope_theta == shape.rope_theta && opened.model.rms_eps == shape.rms_eps);
    assert_true(opened.model.tied == f->m->config.tied);
    assert_int_equal(opened.window, f->job.config.window);
    assert_int_equal(opened.config.bos, 256);
    assert_int_equal(opened.config.eos, 257);
    model *m = model_folder_load(&opened);
    require(m);
    assert_int_equal(m->parameter_count, f->m->parameter_count);
    for (int i = 0; i < m->parameter_count; ++i)
        for (int64_t j = 0; j < m->parameters[i].size; ++j) {
            const float x = f->m->parameters[i].data[j], y = fraction ? rounded(x, fraction) : x;
            if (memcmp(&y, &m->parameters[i].data[j], sizeof y) != 0)
                fail_msg("%s, element %lld: %.9g became %.9g", m->parameters[i].name, (long long)j, (double)x,
                         (double)m->parameters[i].data[j]);
        }
    model_free(m);
    model_folder_close(&opened);
}

static void test_round_trip(void **state)
{
    fixture *f = *state;
    static const int fraction[] = {[NARROW_F32] = 0, [NARROW_F16] = 10, [NARROW_BF16] = 7};
    for (int i = 0; i < 6; ++i) {
        model_config config = shape;
        config.tied = i % 2;
        model_free(f->m);
        f->m = random_model(&config, 7 + (uint64_t)i);
        f->job.m = f->m;
        f->job.config.model = config;
        f->job.config.window = i == 3 ? 12 : 0;
        f->job.type = (narrow_type)(i / 2);
        require(export_hf(&f->job, f->hf));
        check_read(f, fraction[f->job.type]);
    }
}

/* Every number of 16 bits, and halves between two of them. */
static void test_narrow(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 0x7c00; ++bits) {
        const uint16_t pair[2] = {(uint16_t)bits, (uint16_t)(bits + 1)};
        float wide[2];
        narrow_read(NARROW_F16, pair, 2, wide);
        const double exact = bits < 0x400 ? ldexp(bits, -24) : ldexp(0x400 | (bits & 0x3ff), (int)(bits >> 10) - 25);
        assert_true((double)wide[0] == exact);
        assert_int_equal(narrow_f16(wide[0]), bits);
        assert_int_equal(narrow_f16(-wide[0]), bits | 0x8000);
        if (bits == 0x7bff)
            break;
        const float middle = (float)(((double)wide[0] + (double)wide[1]) / 2);
        assert_int_equal(narrow_f16(middle), bits + (bits & 1));
        assert_int_equal(narrow_f16(nextafterf(middle, 1e9f)), bits + 1);
        assert_int_equal(narrow_f16(nextafterf(middle, 0)), bits);
    }
    assert_int_equal(narrow_f16(65520), 0x7c00);
    assert_int_equal(narrow_f16(nextafterf(65520, 0)), 0x7bff);
    assert_true((narrow_f16(NAN) & 0x7fff) > 0x7c00);
}

/* ---------------------------------------------------------------------------------------------------- what was there */

static void test_published(void **state)
{
    fixture *f = *state;
    char path[FOLDER_PATH], kept[FOLDER_PATH], other[FOLDER_PATH], old[FOLDER_PATH];
    require(export_hf(&f->job, f->hf));
    file_write(folder_file(kept, f->hf, "README.md"), "mine", 4);
    folder_file(path, f->hf, "model.safetensors");
    size_t size;
    char *before = file_read(path, &size);
    file_write(folder_file(old, f->folder, "before"), before, size);
    free(before);

    /* A number too large for the type: the older export stays. */
    const float was = f->m->data[5];
    f->m->data[5] = 1e6f;
    f->job.type = NARROW_F16;
    refused(export_hf(&f->job, f->hf), "too large for f16");
    refused(export_gguf(&f->job, f->gguf), "too large for f16");
    assert_true(file_same(path, old));
    assert_int_not_equal(access(f->gguf, F_OK), 0);
    f->m->data[5] = was;
    f->job.type = NARROW_F32;

    /* A newer one replaces its own files and leaves those of others. */
    f->m->data[5] += 1;
    f->job.words = NULL;
    require(export_hf(&f->job, f->hf));
    assert_false(file_same(path, old));
    assert_int_equal(access(kept, F_OK), 0);
    assert_int_not_equal(access(folder_file(other, f->hf, "tokenizer.json"), F_OK), 0);

    /* What is none is not touched. */
    folder_file(other, f->folder, "other");
    assert_int_equal(mkdir(other, 0777), 0);
    file_write(folder_file(path, other, "thesis.txt"), "text", 4);
    refused(export_hf(&f->job, other), "exists and is no export");
    f->job.words = f->words;
    refused(export_gguf(&f->job, path), "exists and is no GGUF file");
    char *text = file_read(path, &size);
    assert_string_equal(text, "text");
    free(text);
    refused(export_gguf(&f->job, "/nowhere/m.gguf"), "/nowhere/m.gguf");
    refused(export_hf(&f->job, "/nowhere/hf"), "/nowhere/hf");
}

/* Copies of earlier results, called as somebody would call them, are not what the program put beside its folders. */
static void test_neighbours(void **state)
{
    fixture *f = *state;
    static const char *const suffixes[] = {"old", "tmp"};
    char path[FOLDER_PATH], file[FOLDER_PATH];
    model_folder opened;
    for (int i = 0; i < 2; ++i) {
        char name[20];
        snprintf(name, sizeof name, "hf.%s", suffixes[i]);
        require(export_hf(&f->job, folder_file(path, f->folder, name)));
        snprintf(name, sizeof name, "m.gguf.%s", suffixes[i]);
        file_write(folder_file(path, f->folder, name), "mine", 4);
    }
    assert_false(model_folder_open(f->hf, &opened));
    model_folder_close(&opened);
    for (int times = 0; times < 2; ++times) {
        require(export_hf(&f->job, f->hf));
        require(export_gguf(&f->job, f->gguf));
    }
    for (int i = 0; i < 2; ++i) {
        char name[40];
        snprintf(name, sizeof name, "hf.%s/model.safetensors", suffixes[i]);
        assert_int_equal(access(folder_file(file, f->folder, name), F_OK), 0);
        snprintf(name, sizeof name, "m.gguf.%s", suffixes[i]);
        assert_int_equal(access(folder_file(file, f->folder, name), F_OK), 0);
    }
    folder_file(path, f->folder, "pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    refused(export_gguf(&f->job, path), "exists and is no GGUF file");
}

/* ----------------------------------------------------------------------------------------------------------------- GGUF */

typedef struct gguf {
    char *bytes;
    size_t size, at;
} gguf;

static void take(gguf *g, void *out, size_t size)
{
    assert_true(size <= g->size - g->at);
    memcpy(out, g->bytes + g->at, size);
    g->at += size;
}

static uint64_t take_number(gguf *g, size_t size)
{
    uint64_t value = 0;
    take(g, &value, size);
    return value;
}

/* The caller frees it. */
static char *take_text(gguf *g)
{
    const uint64_t length = take_number(g, 8);
    char *text = text_alloc(length + 1);
    take(g, text, length);
    text[length] = 0;
    return text;
}

static const size_t value_size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* Prints a value: "text", "number" or "[count: first, second, ... last]"; the caller frees it. */
static void print_value(gguf *g, uint64_t type, text_buffer *out)
{
    if (type == 8) {
        char *text = take_text(g);
        text_format(out, "%s", text);
        free(text);
    } else if (type == 9) {
        const uint64_t of = take_number(g, 4), count = take_number(g, 8);
        text_format(out, "[%llu:", (unsigned long long)count);
        for (uint64_t i = 0; i < count; ++i) {
            text_format(out, i ? "," : "");
            print_value(g, of, out);
        }
        text_format(out, "]");
    } else if (type == 6) {
        float number;
        take(g, &number, sizeof number);
        text_format(out, "%.9g", (double)number);
    } else {
        assert_true(type < sizeof value_size / sizeof *value_size);
        text_format(out, "%llu", (unsigned long long)take_number(g, value_size[type]));
    }
}

/* The metadata as lines "key=value"; then the tensors follow. */
static void open_gguf(const char *path, gguf *g, text_buffer *lines, uint64_t *tensors)
{
    size_t size;
    char magic[4], *bytes = file_read(path, &size);
    *g = (gguf){bytes, size, 0};
    take(g, magic, 4);
    assert_memory_equal(magic, "GGUF", 4);
    assert_int_equal(take_number(g, 4), 3);
    *tensors = take_number(g, 8);
    const uint64_t pairs = take_number(g, 8);
    for (uint64_t i = 0; i < pairs; ++i) {
        char *key = take_text(g);
        text_format(lines, "%s=", key);
        print_value(g, take_number(g, 4), lines);
        text_format(lines, "\n");
        free(key);
    }
}

static void has_line(const text_buffer *lines, const char *line)
{
    if (!strstr(lines->bytes, line))
        fail_msg("no '%s' in\n%.3000s", line, lines->bytes);
}

typedef struct described {
    char *name;
    uint64_t count, type, offset;
} described;

/* The tensors begin at multiples of 32 and end with the file; the numbers are the model's. */
static void check_tensors(const fixture *f, gguf *g, uint64_t count)
{
    described *all = text_alloc(count * sizeof *all);
    for (uint64_t i = 0; i < count; ++i) {
        all[i].name = take_text(g);
        const uint64_t rank = take_number(g, 4);
        assert_int_equal(rank, f->m->parameters[i].ndim);
        all[i].count = 1;
        for (uint64_t d = 0; d < rank; ++d) {
            const uint64_t extent = take_number(g, 8);
            assert_int_equal(extent, f->m->parameters[i].shape[rank - 1 - d]); /* the fastest first */
            all[i].count *= extent;
        }
        all[i].type = take_number(g, 4);
        all[i].offset = take_number(g, 8);
        assert_int_equal(all[i].offset % 32, 0);
        assert_int_equal(all[i].type, rank == 1 || f->job.type == NARROW_F32 ? 0 : f->job.type == NARROW_F16 ? 1 : 30);
    }
    const size_t data = (g->at + 31) / 32 * 32;
    for (uint64_t i = 0; i < count; ++i) {
        const parameter *p = &f->m->parameters[i]; /* in the same order */
        const narrow_type type = all[i].type == 0 ? NARROW_F32 : f->job.type;
        assert_int_equal(all[i].count, p->size);
        assert_true(data + all[i].offset + all[i].count * narrow_size(type) <= g->size);
        float *numbers = text_alloc((size_t)p->size * sizeof *numbers);
        narrow_read(type, g->bytes + data + all[i].offset, p->size, numbers);
        for (int64_t j = 0; j < p->size; ++j)
            assert_true(numbers[j] == (type == NARROW_F32 ? p->data[j] : rounded(p->data[j], type == NARROW_F16 ? 10 : 7)));
        free(numbers);
    }
    assert_string_equal(all[0].name, "token_embd.weight");
    assert_string_equal(all[count - 1].name, f->m->config.tied ? "output_norm.weight" : "output.weight");
    for (uint64_t i = 0; i < count; ++i)
        free(all[i].name);
    free(all);
}

static void test_gguf(void **state)
{
    fixture *f = *state;
    for (int type = 0; type < 3; ++type) {
        gguf g = {0};
        text_buffer lines = {0};
        uint64_t count;
        f->job.type = (narrow_type)type;
        require(export_gguf(&f->job, f->gguf));
        open_gguf(f->gguf, &g, &lines, &count);
        assert_int_equal(count, f->m->parameter_count);
        has_line(&lines, "general.architecture=qwen3\n");
        has_line(&lines, "qwen3.attention.head_count_kv=2\n");
        has_line(&lines, "qwen3.attention.key_length=8\n");
        has_line(&lines, "qwen3.context_length=64\n");
        has_line(&lines, "qwen3.rope.freq_base=123456\n");
        has_line(&lines, "qwen3.attention.layer_norm_rms_epsilon=9.99999975e-06\n");
        has_line(&lines, "tokenizer.ggml.pre=gpt-2\n");
        has_line(&lines, "tokenizer.ggml.tokens=[300:\xc4\x80,");
        has_line(&lines, "<|startoftext|>,<|endoftext|>,[PAD258],");
        has_line(&lines, "1,3,3,5,5,");
        has_line(&lines, "tokenizer.ggml.merges=[0:]\n");
        has_line(&lines, "tokenizer.ggml.bos_token_id=256\n");
        has_line(&lines, "tokenizer.ggml.eos_token_id=257\n");
        has_line(&lines, "tokenizer.ggml.add_bos_token=0\n");
        check_tensors(f, &g, count);
        text_free(&lines);
        free(g.bytes);
    }
}

/* Of a file of its own, else of tokenizer_config.json. */
static void test_chat_template(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *name, *text, *line;
    } files[] = {{"tokenizer_config.json", "{\"chat_template\": \"{{ old }}\"}", "tokenizer.chat_template={{ old }}\n"},
                 {"chat_template.jinja", "{{ own }}", "tokenizer.chat_template={{ own }}\n"}};
    char path[FOLDER_PATH], words[FOLDER_PATH];
    size_t size;
    char *json = file_read(GOLDEN_DIR "/tokenizer_qwen.json", &size);
    file_write(folder_file(words, f->folder, "tokenizer.json"), json, size);
    free(json);
    model_config config = shape;
    config.vocab = f->job.config.model.vocab = 709;
    model_free(f->m);
    f->job.m = f->m = random_model(&config, 3);
    for (int i = 0; i < 2; ++i) {
        gguf g = {0};
        text_buffer lines = {0};
        uint64_t count;
        file_write(folder_file(path, f->folder, files[i].name), files[i].text, strlen(files[i].text));
        tokenizer *t = tokenizer_open(words);
        require(t);
        f->job.words = t;
        require(export_gguf(&f->job, f->gguf));
        open_gguf(f->gguf, &g, &lines, &count);
        has_line(&lines, files[i].line);
        free(g.bytes);
        text_free(&lines);
        tokenizer_close(t);
    }
}

static void test_gguf_refused(void **state)
{
    fixture *f = *state;
    f->job.config.window = 12;
    refused(export_gguf(&f->job, f->gguf), "window of 12 keys");
    f->job.config.window = 0;
    f->job.words = NULL;
    refused(export_gguf(&f->job, f->gguf), "none is known for this model of 300 tokens");
    tokenizer *words = tokenizer_open(GOLDEN_DIR "/tokenizer_qwen.json");
    f->job.words = words;
    refused(export_gguf(&f->job, f->gguf), "the tokenizer has 709 tokens, the model 300");
    refused(export_hf(&f->job, f->hf), "the tokenizer has 709 tokens, the model 300");
    assert_int_not_equal(access(f->hf, F_OK), 0);
    tokenizer_close(words);
    /* GPT-2's with a space before the text, which llama.cpp does not put there. */
    words = tokenizer_open(GOLDEN_DIR "/tokenizer_gpt2.json");
    f->job.words = words;
    f->job.config.model.vocab = 709;
    refused(export_gguf(&f->job, f->gguf), "no name for how this tokenizer cuts");
    tokenizer_close(words);
    f->job.config.model.vocab = 300;
    assert_int_not_equal(access(f->gguf, F_OK), 0);
}

/* ------------------------------------------------------------------------------------------------------------ tokenizer */

/* Tokens and merges are written as the file has them. */
static void check_written(const char *style)
{
    char path[FOLDER_PATH];
    size_t size;
    snprintf(path, sizeof path, GOLDEN_DIR "/tokenizer_%s.json", style);
    tokenizer *t = tokenizer_open(path);
    require(t);
    char *json = file_read(path, &size);
    cJSON *root = cJSON_Parse(json), *merging = cJSON_GetObjectItem(root, "model"), *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(merging, "vocab"))
    {
        text_buffer text = {0};
        assert_int_not_equal(tokenizer_written(t, item->valueint, &text), TOKEN_UNUSED);
        assert_string_equal(text.bytes, item->string);
        text_free(&text);
    }
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(root, "added_tokens"))
    {
        text_buffer text = {0};
        const bool special = cJSON_IsTrue(cJSON_GetObjectItem(item, "special"));
        const int id = cJSON_GetObjectItem(item, "id")->valueint;
        assert_int_equal(tokenizer_written(t, id, &text), special ? TOKEN_SPECIAL : TOKEN_ADDED);
        assert_string_equal(text.bytes, cJSON_GetObjectItem(item, "content")->valuestring);
        text_free(&text);
    }
    int64_t count;
    const tokenizer_merge *merges = tokenizer_merges(t, &count);
    const cJSON *list = cJSON_GetObjectItem(merging, "merges");
    assert_int_equal(count, cJSON_GetArraySize(list));
    for (int64_t i = 0; i < count; i += 17) {
        text_buffer text = {0};
        const cJSON *pair = cJSON_GetArrayItem(list, (int)i);
        tokenizer_written(t, merges[i].left, &text);
        text_bytes(&text, " ", 1);
        tokenizer_written(t, merges[i].right, &text);
        if (cJSON_IsArray(pair)) {
            text_buffer both = {0};
            text_format(&both, "%s %s", pair->child->valuestring, pair->child->next->valuestring);
            assert_string_equal(text.bytes, both.bytes);
            text_free(&both);
        } else {
            assert_string_equal(text.bytes, pair->valuestring);
        }
        text_free(&text);
    }
    cJSON_Delete(root);
    free(json);
    tokenizer_close(t);
}

static void test_tokenizer_written(void **state)
{
    (void)state;
    check_written("gpt2");
    check_written("qwen");
    check_written("llama3");
}

/* The bytes come back as the bytes; as somebody else writes the same file they are tokens of the same numbers. */
static void test_bytes(void **state)
{
    fixture *f = *state;
    char path[FOLDER_PATH], text[256];
    require(export_hf(&f->job, f->hf));
    tokenizer *t = tokenizer_open(folder_file(path, f->hf, "tokenizer.json"));
    require(t);
    assert_true(tokenizer_is_bytes(t));
    tokenizer_close(t);
    size_t size;
    char *json = file_read(path, &size);
    json[size - 1] = ' '; /* instead of the newline */
    file_write(path, json, size);
    free(json);
    t = tokenizer_open(path);
    require(t);
    assert_false(tokenizer_is_bytes(t));
    assert_int_equal(tokenizer_vocab(t), 258);
    token_list list = {0};
    for (int i = 0; i < 256; ++i)
        text[i] = (char)i;
    tokenizer_encode(t, text, 256, false, &list);
    assert_int_equal(list.count, 256);
    for (int i = 0; i < 256; ++i)
        assert_int_equal(list.ids[i], i);
    token_list_free(&list);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_round_trip, set_up, tear_down),
                                       cmocka_unit_test(test_narrow),
                                       cmocka_unit_test_setup_teardown(test_published, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(test_neighbours, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(test_gguf, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(test_chat_template, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(test_gguf_refused, set_up, tear_down),
                                       cmocka_unit_test(test_tokenizer_written),
                                       cmocka_unit_test_setup_teardown(test_bytes, set_up, tear_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
