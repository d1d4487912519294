/*
 * Many files of tokens: the same sequence whatever their number and type, validation by name, positions that continue exactly
 * across files, with any batch size and any number of ranks, and files that are refused.
 */
#include "folder.h"
#include "support.h"
#include "train/data.h"
#include "train/error.h"
#include "train/token_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 1000, SEQ = 9 };

static int32_t token_at(int64_t i)
{
    return (int32_t)(i * 8 % 301);
}

/* A .npy file of format `version` with `count` tokens from `first` on, as numbers of this type. */
static void write_npy(const char *path, int version, const char *type, int64_t first, int64_t count)
{
    const int width = type[2] - '0';
    unsigned char bytes[128 + 8 * COUNT];
    memset(bytes, ' ', 128);
    memcpy(bytes, "\x93NUMPY", 6);
    bytes[6] = (unsigned char)version;
    bytes[7] = 0;
    const int head = version == 1 ? 10 : 12;
    memset(bytes + 8, 0, 4);
    bytes[8] = (unsigned char)(128 - head);
    const int length = snprintf((char *)bytes + head, 128 - (size_t)head,
                                "{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }", type, (int)count);
    bytes[head + length] = ' ';
    bytes[127] = '\n';
    for (int64_t i = 0; i < count; ++i) {
        const int64_t token = token_at(first + i);
        memcpy(bytes + 128 + i * width, &token, (size_t)width);
    }
    file_write(path, bytes, 128 + (size_t)(count * width));
}

static void write_bin(const char *path, int64_t first, int64_t count)
{
    uint16_t tokens[COUNT];
    for (int64_t i = 0; i < count; ++i)
        tokens[i] = (uint16_t)token_at(first + i);
    file_write(path, tokens, (size_t)count * 2);
}

/* The sequence in five files of different types. */
static void write_shards(const char *folder)
{
    char path[FOLDER_PATH];
    write_bin(folder_file(path, folder, "s0.bin"), 0, 100);
    write_npy(folder_file(path, folder, "s1.npy"), 1, "<u2", 100, 333);
    write_npy(folder_file(path, folder, "s2.npy"), 2, "<u4", 433, 67);
    write_npy(folder_file(path, folder, "s3.npy"), 3, "<i4", 500, 1);
    write_npy(folder_file(path, folder, "s4.npy"), 1, "<i8", 501, 499);
}

static dataset *open_source(const char *source)
{
    dataset *d = data_open(&(data_options){.source = source});
    require(d);
    return d;
}

static void test_types(void **state)
{
    (void)state;
    char folder[FOLDER_PATH];
    int32_t tokens[COUNT];
    folder_make(folder);
    write_shards(folder);
    dataset *d = open_source(folder);
    const data_tokens all = data_all(d);
    assert_int_equal(all.count, COUNT);
    assert_int_equal(data_vocab(d), 301);
    assert_int_equal(data_split(d, WORLD_VAL).count, COUNT / 10);
    data_copy(&all, 0, COUNT, tokens);
    for (int i = 0; i < COUNT; ++i)
        assert_int_equal(tokens[i], token_at(i));
    data_close(d);
    folder_remove(folder);
}

static void test_validation(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], path[FOLDER_PATH], pattern[FOLDER_PATH];
    int32_t first[2];
    folder_make(folder);
    write_bin(folder_file(path, folder, "a_val_0.bin"), 700, 50);
    write_bin(folder_file(path, folder, "b_train_1.bin"), 10, 40);
    write_bin(folder_file(path, folder, "b_train_0.bin"), 0, 10);
    folder_file(pattern, folder, "*_*.bin");
    dataset *d = open_source(pattern);
    const data_tokens train = data_split(d, WORLD_TRAIN), val = data_split(d, WORLD_VAL);
    assert_int_equal(train.count, 50);
    assert_int_equal(val.count, 50);
    data_copy(&train, 10, 1, first);
    data_copy(&val, 0, 1, first + 1);
    assert_int_equal(first[0], token_at(10));
    assert_int_equal(first[1], token_at(700));
    data_close(d);
    folder_file(pattern, folder, "b_*");
    d = data_open(&(data_options){.source = pattern, .validation = path});
    require(d);
    assert_int_equal(data_split(d, WORLD_TRAIN).count, 50);
    assert_int_equal(data_split(d, WORLD_VAL).count, 10);
    data_close(d);
    d = data_open(&(data_options){.source = pattern, .val_fraction = 0.5});
    require(d);
    assert_int_equal(data_split(d, WORLD_VAL).count, 25);
    data_close(d);
    folder_remove(folder);
}

/* Words of a name say it, not letters within them. */
static void test_names(void **state)
{
    static const struct {
        const char *name;
        int64_t validation; /* its 20 tokens, or a tenth of all 100 */
    } cases[] = {{"interval.bin", 10},     {"eval_1.bin", 10}, {"caval\xc3\xa9.bin", 10}, {"zz.val.bin", 20},
                 {"x-Validation.bin", 20}, {"valid1.bin", 20}, {"invalid.bin", 10}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        char folder[FOLDER_PATH], path[FOLDER_PATH];
        folder_make(folder);
        write_bin(folder_file(path, folder, "a.bin"), 0, 80);
        write_bin(folder_file(path, folder, cases[i].name), 0, 20);
        dataset *d = open_source(folder);
        if (data_split(d, WORLD_VAL).count != cases[i].validation)
            fail_msg("%s: %d tokens to validate with", cases[i].name, (int)data_split(d, WORLD_VAL).count);
        data_close(d);
        folder_remove(folder);
    }
}

/* The world validates other texts, and others the world. */
static void test_world(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], path[FOLDER_PATH];
    folder_make(folder);
    file_write(folder_file(path, folder, "a.txt"), "abcdefgh", 8);
    data_options options = {.source = "world", .world_seed = 1, .world_lines = 100};
    dataset *d = data_open(&options);
    require(d);
    const int64_t learned = data_split(d, WORLD_TRAIN).count, other = data_split(d, WORLD_VAL).count;
    data_close(d);
    options.validation = path;
    d = data_open(&options);
    require(d);
    assert_int_equal(data_split(d, WORLD_TRAIN).count, learned);
    assert_int_equal(data_split(d, WORLD_VAL).count, 8);
    data_close(d);
    options.source = path;
    options.validation = "world";
    d = data_open(&options);
    require(d);
    assert_int_equal(data_split(d, WORLD_TRAIN).count, 8);
    assert_int_equal(data_split(d, WORLD_VAL).count, other);
    data_close(d);
    write_bin(folder_file(path, folder, "b.bin"), 0, 100);
    assert_null(data_open(&options));
    assert_non_null(strstr(train_error(), "b.bin: tokens beside the text of world"));
    options.tokenizer = GOLDEN_DIR "/tokenizer_qwen.json";
    d = data_open(&options);
    require(d);
    data_close(d);
    folder_remove(folder);
}

/* What ends a text of tokens is known from the tokenizer or from what is said, which is within the vocabulary. */
static void test_end(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], path[FOLDER_PATH];
    folder_make(folder);
    write_bin(folder_file(path, folder, "x.bin"), 0, COUNT);
    data_options options = {.source = path};
    dataset *d = data_open(&options);
    require(d);
    assert_int_equal(data_end(d), -1);
    assert_int_equal(data_vocab(d), 301);
    data_close(d);
    options.eot = "50256";
    d = data_open(&options);
    require(d);
    assert_int_equal(data_end(d), 50256);
    assert_int_equal(data_vocab(d), 50257);
    assert_false(data_check(d, 301, "the model"));
    assert_non_null(strstr(train_error(), "eot: texts end with token 50256, but the vocabulary of the model has 301 tokens"));
    data_close(d);
    options.tokenizer = GOLDEN_DIR "/tokenizer_qwen.json";
    assert_null(data_open(&options));
    assert_non_null(strstr(train_error(), "eot: 50256, but tokens are 0 .. 708"));
    options.eot = NULL;
    d = data_open(&options);
    require(d);
    assert_int_equal(data_end(d), 700);
    data_close(d);
    folder_remove(folder);
}

static void read_windows(data_reader *reader, int64_t batch, int64_t windows, int32_t *out)
{
    int32_t targets[8 * SEQ];
    for (int64_t i = 0; i < windows; i += batch)
        data_reader_next(reader, batch, out + i * SEQ, targets);
}

/* Stopped after a few windows and continued by another process with another batch size; and what each of three ranks reads. */
static void test_continues(void **state)
{
    (void)state;
    enum { WINDOWS = 240, STOP = 36, RANKS = 3, PART = 4 };
    char folder[FOLDER_PATH];
    int32_t whole[WINDOWS * SEQ], parts[WINDOWS * SEQ], shared[WINDOWS * SEQ];
    folder_make(folder);
    write_shards(folder);
    dataset *d = open_source(folder);
    data_tokens all = data_all(d);
    data_reader reader;
    require(data_reader_init(&reader, &all, SEQ, 11, "data"));
    read_windows(&reader, 1, WINDOWS, whole); /* more than two epochs of 110 */
    require(data_reader_init(&reader, &all, SEQ, 11, "data"));
    read_windows(&reader, 2, STOP, parts);
    const data_position at = reader.position;
    data_close(d);
    d = open_source(folder);
    all = data_all(d);
    require(data_reader_init(&reader, &all, SEQ, 11, "data"));
    require(data_reader_seek(&reader, at));
    read_windows(&reader, 4, WINDOWS - STOP, parts + STOP * SEQ);
    assert_memory_equal(whole, parts, sizeof whole);
    for (int rank = 0; rank < RANKS; ++rank) {
        require(data_reader_init(&reader, &all, SEQ, 11, "data"));
        for (int64_t i = 0; i < WINDOWS; i += RANKS * PART) {
            data_reader_skip(&reader, rank * PART);
            read_windows(&reader, PART, PART, shared + (i + rank * PART) * SEQ);
            data_reader_skip(&reader, (RANKS - 1 - rank) * PART);
        }
    }
    assert_memory_equal(whole, shared, sizeof whole);
    data_close(d);
    folder_remove(folder);
}

/* What tokenize writes is read again, in both formats and for both widths. */
static void test_written(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], from[FOLDER_PATH], to[FOLDER_PATH];
    static const struct {
        const char *name;
        int64_t vocab;
    } cases[] = {{"x.bin", 65536}, {"x.bin", 65537}, {"x.npy", 65536}, {"x.npy", 65537}};
    folder_make(folder);
    write_bin(folder_file(from, folder, "from.bin"), 0, COUNT);
    dataset *d = open_source(from);
    const data_tokens all = data_all(d);
    for (int i = 0; i < 4; ++i) {
        int32_t tokens[COUNT + 1];
        require(token_file_write(folder_file(to, folder, cases[i].name), &all, 300, cases[i].vocab));
        dataset *again = open_source(to);
        const data_tokens read = data_all(again);
        assert_int_equal(read.count, COUNT + 1);
        data_copy(&read, 0, COUNT + 1, tokens);
        for (int k = 0; k < COUNT; ++k)
            assert_int_equal(tokens[k], token_at(k));
        assert_int_equal(tokens[COUNT], 300);
        data_close(again);
    }
    assert_false(token_file_write(folder_file(to, folder, "y.txt"), &all, -1, 300));
    data_close(d);
    folder_remove(folder);
}

static void check_refused(const char *source, const char *message)
{
    if (data_open(&(data_options){.source = source}))
        fail_msg("%s is not refused", message);
    if (!strstr(train_error(), message))
        fail_msg("'%s' is not in: %s", message, train_error());
}

/* Changes a byte of a good .npy file. */
static void check_changed(const char *path, size_t at, unsigned char byte, const char *message)
{
    size_t size;
    write_npy(path, 1, "<i4", 0, 10);
    char *bytes = file_read(path, &size);
    bytes[at] = (char)byte;
    file_write(path, bytes, size);
    free(bytes);
    check_refused(path, message);
}

/* A .bin of this size with a header of llm.c, or as much of it as there is room for: refused with a message, or read. */
static void check_header(const char *path, int32_t magic, int32_t version, int32_t count, size_t size, const char *message)
{
    int32_t bytes[300] = {magic, version, count};
    file_write(path, bytes, size);
    if (message)
        check_refused(path, message);
    else {
        dataset *d = open_source(path);
        assert_int_equal(data_all(d).count, count);
        data_close(d);
    }
}

static void test_refused(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], path[FOLDER_PATH];
    folder_make(folder);
    folder_file(path, folder, "x.npy");
    check_changed(path, 0, 'x', "no .npy file");
    check_changed(path, 6, 4, "version 4");
    check_changed(path, 9, 1, "a header of 374 bytes");
    check_changed(path, 21, '>', "type is '>i4', not");
    check_changed(path, 61, '2', "says 20 tokens");
    check_changed(path, 63, '3', "shape is (103), not one dimension");
    check_changed(path, 131, 0xff, "token 0 is -16777216");
    file_write(path, "\x93NUMPY", 6);
    check_refused(path, "no .npy file");
    folder_file(path, folder, "h.bin");
    check_header(path, 20240520, 1, 3, 1030, NULL);
    check_header(path, 20240801, 7, 3, 1036, NULL);
    check_header(path, 20240801, 7, 3, 1030, "1030 bytes, but its header says 3 tokens of 4 bytes");
    check_header(path, 20240520, 1, 3, 12, "12 bytes, but its header says 3 tokens of 2 bytes");
    check_header(path, 20240520, 1, 3, 4, "20240520 of version 0, only 1 is known");
    check_header(path, 20240801, 1, 3, 1036, "20240801 of version 1, only 7 is known");
    remove(path);
    file_write(folder_file(path, folder, "x.txt"), "a", 1);
    check_refused(folder, "both texts and tokens");
    folder_file(path, folder, "*.none");
    check_refused(path, "no file has such a name");
    write_bin(folder_file(path, folder, "big.bin"), 0, COUNT);
    dataset *d = open_source(path);
    assert_false(data_check(d, 300, "the model"));
    assert_non_null(strstr(train_error(), "big.bin: token 188 is 300, but the vocabulary of the model has 300 tokens"));
    assert_true(data_check(d, 301, "the model"));
    data_close(d);
    assert_null(data_open(&(data_options){.source = path, .tokenizer = GOLDEN_DIR "/tokenizer_gpt2.json", .eot = "<none>"}));
    assert_non_null(strstr(train_error(), "<none>"));
    folder_remove(folder);
}

/* Texts of a folder, encoded, each with its frame and the end token; and a model's vocabulary is the tokenizer's. */
static void test_texts(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], path[FOLDER_PATH];
    int32_t tokens[8];
    folder_make(folder);
    file_write(folder_file(path, folder, "a.txt"), "a", 1);
    file_write(folder_file(path, folder, "b.txt"), "<tool>", 6);
    dataset *d = data_open(&(data_options){.source = folder, .tokenizer = GOLDEN_DIR "/tokenizer_llama3.json"});
    require(d);
    const data_tokens all = data_all(d);
    assert_int_equal(data_vocab(d), 710);
    assert_int_equal(data_end(d), 701);
    assert_int_equal(all.count, 6);
    data_copy(&all, 0, 6, tokens);
    assert_memory_equal(tokens + 2, ((int32_t[]){701, 702, 704, 701}), 4 * sizeof *tokens);
    assert_int_equal(tokens[0], 702);
    data_close(d);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),   cmocka_unit_test(test_validation), cmocka_unit_test(test_continues),
        cmocka_unit_test(test_names),   cmocka_unit_test(test_world),      cmocka_unit_test(test_end),
        cmocka_unit_test(test_written), cmocka_unit_test(test_refused),    cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
