/*
 * The generated world and the reading of data: the same text for a seed, splits that share nothing, every window once in an
 * epoch, and positions that continue exactly.
 */
#include "train/data.h"
#include "folder.h"
#include "support.h"
#include "train/sha256.h"
#include "train/tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The digest of a world; the text is a promise to every machine, so changing the generator changes this number. */
static void test_world_is_fixed(void **state)
{
    (void)state;
    size_t size;
    char hex[65];
    sha256 s;
    char *text = world_text(1, WORLD_TRAIN, 1000, &size);
    sha256_begin(&s);
    sha256_add(&s, text, size);
    sha256_end(&s, hex);
    assert_string_equal(hex, "c3bc9c91068bbdbff66f2d3a4f95c439ad17c286ebba25d162127050f6a704c9");
    free(text);
}

static void test_world_seeds(void **state)
{
    (void)state;
    size_t size, again_size, other_size, longer_size;
    char *text = world_text(5, WORLD_TRAIN, 100, &size), *again = world_text(5, WORLD_TRAIN, 100, &again_size);
    char *other = world_text(6, WORLD_TRAIN, 100, &other_size), *longer = world_text(5, WORLD_TRAIN, 200, &longer_size);
    assert_int_equal(size, again_size);
    assert_memory_equal(text, again, size);
    assert_memory_equal(text, longer, size); /* a longer text begins with the shorter one */
    assert_true(size != other_size || memcmp(text, other, size) != 0);
    free(text);
    free(again);
    free(other);
    free(longer);
}

static int compare_lines(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The lines of a text, sorted, cut in place. */
static char **sorted_lines(char *text, int64_t count)
{
    char **lines = calloc((size_t)count, sizeof *lines);
    int64_t found = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        lines[found++] = line;
    assert_int_equal(found, count);
    qsort(lines, (size_t)count, sizeof *lines, compare_lines);
    return lines;
}

static int sum_pair(const char *line)
{
    int a, b, c;
    if (sscanf(line, "%d+%d=%d", &a, &b, &c) != 3)
        return -1;
    assert_int_equal(a + b, c);
    return a < b ? a * 100 + b : b * 100 + a;
}

/* No line of validation occurs in training, and no sum of it does with its numbers swapped. */
static void test_world_splits(void **state)
{
    (void)state;
    enum { TRAIN = 30000, VAL = 3000 };
    size_t size;
    bool trained[10000] = {false};
    char *train = world_text(1, WORLD_TRAIN, TRAIN, &size), *val = world_text(1, WORLD_VAL, VAL, &size);
    char **train_lines = sorted_lines(train, TRAIN), **val_lines = sorted_lines(val, VAL);
    for (int i = 0; i < TRAIN; ++i)
        if (sum_pair(train_lines[i]) >= 0)
            trained[sum_pair(train_lines[i])] = true;
    int sums = 0;
    for (int i = 0; i < VAL; ++i) {
        if (bsearch(&val_lines[i], train_lines, TRAIN, sizeof *train_lines, compare_lines))
            fail_msg("in both splits: %s", val_lines[i]);
        int pair = sum_pair(val_lines[i]);
        sums += pair >= 0;
        if (pair >= 0 && trained[pair])
            fail_msg("its sum is in both splits: %s", val_lines[i]);
    }
    assert_true(sums > VAL / 10);
    free(train_lines);
    free(val_lines);
    free(train);
    free(val);
}

static dataset *world_data(int64_t lines)
{
    dataset *d = data_open(&(data_options){.source = "world", .world_seed = 1, .world_lines = lines});
    require(d);
    return d;
}

/* Each epoch reads each of its windows once, and epochs differ in order and shift. */
static void test_reader_covers(void **state)
{
    (void)state;
    enum { SEQ = 7, WINDOWS = 143, COUNT = SEQ * WINDOWS + SEQ };
    char folder[FOLDER_PATH], path[FOLDER_PATH];
    unsigned char bytes[2 * COUNT];
    folder_make(folder);
    for (int i = 0; i < 2 * COUNT; ++i)
        bytes[i] = (unsigned char)(i % 2 ? i / 2 / 256 : i / 2 % 256); /* tokens 0, 1, 2, ... */
    file_write(folder_file(path, folder, "count.bin"), bytes, sizeof bytes);
    dataset *d = data_open(&(data_options){.source = path});
    require(d);
    data_tokens all = {d, 0, COUNT};
    data_reader reader;
    require(data_reader_init(&reader, &all, SEQ, 3, "data"));
    int32_t orders[2][WINDOWS];
    for (int epoch = 0; epoch < 2; ++epoch) {
        bool seen[WINDOWS + 1] = {false};
        int count = 0;
        for (; reader.position.epoch == epoch; ++count) {
            int32_t tokens[SEQ], targets[SEQ];
            data_reader_next(&reader, 1, tokens, targets);
            for (int i = 0; i < SEQ; ++i) {
                assert_int_equal(tokens[i], tokens[0] + i);
                assert_int_equal(targets[i], tokens[i] + 1);
            }
            assert_false(seen[tokens[0] / SEQ]);
            seen[tokens[0] / SEQ] = true;
            orders[epoch][count % WINDOWS] = tokens[0];
        }
        assert_int_equal(count, WINDOWS);
    }
    assert_memory_not_equal(orders[0], orders[1], sizeof orders[0]);
    data_close(d);
    folder_remove(folder);
}

static void test_reader_continues(void **state)
{
    (void)state;
    enum { SEQ = 32, BATCH = 3, BATCHES = 60 };
    dataset *d = world_data(40);
    data_tokens train = data_split(d, WORLD_TRAIN);
    data_reader first, second;
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ], other_tokens[BATCH * SEQ], other_targets[BATCH * SEQ];
    require(data_reader_init(&first, &train, SEQ, 9, "data"));
    for (int i = 0; i < BATCHES; ++i) { /* from any point, over the ends of epochs */
        data_reader copy = first;
        require(data_reader_init(&second, &train, SEQ, 9, "data"));
        require(data_reader_seek(&second, copy.position));
        data_reader_next(&first, BATCH, tokens, targets);
        data_reader_next(&second, BATCH, other_tokens, other_targets);
        assert_memory_equal(tokens, other_tokens, sizeof tokens);
        assert_memory_equal(targets, other_targets, sizeof targets);
    }
    assert_true(first.position.epoch > 1);
    assert_false(data_reader_seek(&second, (data_position){0, 100000}));
    assert_false(data_reader_seek(&second, (data_position){-1, 0}));
    data_close(d);
}

/* Leaving windows out comes to where reading them does, over the ends of epochs too. */
static void test_reader_skips(void **state)
{
    (void)state;
    enum { SEQ = 32, MOST = 100 };
    dataset *d = world_data(40);
    data_tokens train = data_split(d, WORLD_TRAIN);
    int32_t tokens[SEQ], targets[SEQ];
    for (int count = 0; count <= MOST; ++count) {
        data_reader reads, skips;
        require(data_reader_init(&reads, &train, SEQ, 9, "data"));
        require(data_reader_init(&skips, &train, SEQ, 9, "data"));
        for (int i = 0; i < count; ++i)
            data_reader_next(&reads, 1, tokens, targets);
        data_reader_skip(&skips, count);
        assert_int_equal(skips.position.epoch, reads.position.epoch);
        assert_int_equal(skips.position.window, reads.position.window);
        assert_true(count < MOST || reads.position.epoch > 1);
    }
    data_close(d);
}

/* The windows for measuring predict every token but the first, once. */
static void test_measuring_windows(void **state)
{
    (void)state;
    enum { SEQ = 10, BATCH = 4 };
    dataset *d = world_data(10);
    data_tokens val = data_split(d, WORLD_VAL);
    int32_t inputs[BATCH * SEQ], targets[BATCH * SEQ], expected[2];
    for (int64_t count = 1; count <= 45 && count <= val.count; ++count) {
        data_tokens part = {val.owner, val.first, count};
        int64_t windows = data_windows(&part, SEQ), predicted = 0;
        for (int64_t first = 0; first < windows; first += BATCH) {
            data_window_batch(&part, SEQ, first, BATCH, inputs, targets);
            for (int i = 0; i < BATCH * SEQ; ++i) {
                if (targets[i] < 0)
                    continue;
                data_copy(&part, first * SEQ + i, 2, expected);
                assert_int_equal(inputs[i], expected[0]);
                assert_int_equal(targets[i], expected[1]);
                ++predicted;
            }
        }
        assert_int_equal(predicted, count - 1);
    }
    data_close(d);
}

static void test_text_file(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], path[FOLDER_PATH];
    folder_make(folder);
    folder_file(path, folder, "text");
    const char bytes[20] = "ab\xff\0\xc3\xa9gh ijklmnopqrs"; /* a zero and bad UTF-8 are bytes like others */
    int32_t tokens[20];
    file_write(path, bytes, sizeof bytes);
    dataset *d = data_open(&(data_options){.source = path});
    require(d);
    assert_int_equal(data_vocab(d), TOKENIZER_VOCAB);
    data_tokens train = data_split(d, WORLD_TRAIN), val = data_split(d, WORLD_VAL);
    assert_int_equal(train.count, 18);
    assert_int_equal(val.count, 2);
    data_copy(&train, 0, 18, tokens);
    data_copy(&val, 0, 2, tokens + 18);
    for (int i = 0; i < 20; ++i)
        assert_int_equal(tokens[i], (unsigned char)bytes[i]);
    data_reader reader;
    assert_false(data_reader_init(&reader, &train, 18, 1, "data"));
    assert_non_null(strstr(train_error(), "18 tokens are fewer than a window of --seq 18 + 1"));
    require(data_reader_init(&reader, &train, 17, 1, "data"));
    data_close(d);
    folder_remove(folder);
}

static void test_folder(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], path[FOLDER_PATH];
    folder_make(folder);
    file_write(folder_file(path, folder, "b.txt"), "22", 2);
    file_write(folder_file(path, folder, "a.txt"), "1", 1);
    file_write(folder_file(path, folder, "c.txt"), "", 0);
    file_write(folder_file(path, folder, "ignored.md"), "x", 1);
    dataset *d = data_open(&(data_options){.source = folder});
    require(d);
    const int32_t expected[6] = {'1', TOKEN_EOS, '2', '2', TOKEN_EOS, TOKEN_EOS};
    int32_t tokens[6];
    data_tokens train = data_split(d, WORLD_TRAIN);
    assert_int_equal(train.count, 6);
    data_copy(&train, 0, 6, tokens);
    assert_memory_equal(tokens, expected, sizeof tokens);
    data_copy(&train, 3, 3, tokens); /* from inside a file */
    assert_memory_equal(tokens, expected + 3, 3 * sizeof *tokens);
    data_close(d);
    folder_remove(folder);
}

static void test_token_files(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], path[FOLDER_PATH];
    folder_make(folder);
    folder_file(path, folder, "tokens.bin");
    const uint16_t raw[] = {5, 500, 7};
    file_write(path, raw, sizeof raw);
    dataset *d = data_open(&(data_options){.source = path});
    require(d);
    assert_int_equal(data_vocab(d), 501);
    assert_false(data_is_text(d));
    data_close(d);

    unsigned char bytes[1024 + 6] = {0};
    memcpy(bytes, (const int32_t[]){20240520, 1, 3}, 12);
    memcpy(bytes + 1024, raw, 6);
    file_write(path, bytes, sizeof bytes);
    d = data_open(&(data_options){.source = path});
    require(d);
    assert_int_equal(data_split(d, WORLD_TRAIN).count, 3);
    data_close(d);
    file_write(path, bytes, sizeof bytes - 2);
    assert_null(data_open(&(data_options){.source = path}));
    assert_non_null(strstr(train_error(), "its header says 3 tokens"));
    bytes[4] = 2;
    file_write(path, bytes, sizeof bytes);
    assert_null(data_open(&(data_options){.source = path}));
    assert_non_null(strstr(train_error(), "version 2"));
    file_write(path, raw, 3);
    assert_null(data_open(&(data_options){.source = path}));
    folder_remove(folder);
}

static void test_bad_sources(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], path[FOLDER_PATH];
    folder_make(folder);
    assert_null(data_open(&(data_options){.source = "./no-such-file"}));
    assert_non_null(strstr(train_error(), "no-such-file"));
    assert_null(data_open(&(data_options){.source = folder}));
    assert_non_null(strstr(train_error(), "no file *.txt"));
    file_write(folder_file(path, folder, "empty"), "", 0);
    assert_null(data_open(&(data_options){.source = path}));
    assert_non_null(strstr(train_error(), "empty"));
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_world_is_fixed),    cmocka_unit_test(test_world_seeds),      cmocka_unit_test(test_world_splits),
        cmocka_unit_test(test_reader_covers),     cmocka_unit_test(test_reader_continues), cmocka_unit_test(test_reader_skips),
        cmocka_unit_test(test_measuring_windows), cmocka_unit_test(test_text_file),        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_token_files),       cmocka_unit_test(test_bad_sources),
    };
    return cmocka_run_group_tests_name("data", tests, NULL, NULL);
}
