/*
 * safetensors files: what is written reads back, and what is not as the format demands is refused, with the reason named.
 */
#include "train/safetensors.h"
#include "folder.h"
#include "support.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file from a header and a number of data bytes (zeros); length < 0: the header's true length. */
static char *compose(const char *header, size_t header_size, int64_t length, size_t data, size_t *size)
{
    *size = 8 + header_size + data;
    char *bytes = calloc(1, *size);
    uint64_t stated = length < 0 ? header_size : (uint64_t)length;
    memcpy(bytes, &stated, 8);
    memcpy(bytes + 8, header, header_size);
    return bytes;
}

static void refuse_bytes(const char *bytes, size_t size, const char *reason)
{
    safetensors_file *file;
    /* A copy of exactly this size, so that a sanitizer sees reads beyond it. */
    char *exact = malloc(size ? size : 1);
    if (size)
        memcpy(exact, bytes, size);
    assert_false(safetensors_parse(exact, size, "file", &file));
    assert_null(file);
    if (!strstr(train_error(), reason))
        fail_msg("expected '%s' in: %s", reason, train_error());
    free(exact);
}

static void refuse(const char *header, size_t data, const char *reason)
{
    size_t size;
    char *bytes = compose(header, strlen(header), -1, data, &size);
    refuse_bytes(bytes, size, reason);
    free(bytes);
}

static void accept(const char *header, size_t data)
{
    size_t size;
    safetensors_file *file;
    char *bytes = compose(header, strlen(header), -1, data, &size);
    require(safetensors_parse(bytes, size, "file", &file));
    safetensors_close(file);
    free(bytes);
}

#define T(name, dtype, shape, offsets) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_accepts(void **state)
{
    (void)state;
    accept("{}", 0);
    accept("{}      ", 0);
    accept("{\"__metadata__\":{\"format\":\"pt\"}}", 0);
    accept("{" T("a", "F32", "[2]", "[0,8]") "," T("b", "U8", "[3]", "[8,11]") "}", 11);
    accept("{" T("b", "U8", "[3]", "[8,11]") "," T("a", "F32", "[2]", "[0,8]") "}", 11); /* any order of names */
    accept("{" T("scalar", "F64", "[]", "[0,8]") "," T("empty", "I64", "[0,5]", "[8,8]") "}", 8);
    accept("{" T("empty", "I64", "[0]", "[0,0]") "," T("a", "I32", "[1]", "[0,4]") "}", 4);
    accept("{" T("\xc3\xa9\\u00e9", "U8", "[1]", "[0,1]") "}", 1);
}

static void test_bad_lengths(void **state)
{
    (void)state;
    size_t size;
    refuse_bytes("", 0, "too short");
    refuse_bytes("\x02\0\0\0\0\0\0", 7, "too short");
    const int64_t lengths[] = {3, 100000001, INT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; ++i) {
        char *bytes = compose("{}", 2, lengths[i], 0, &size);
        refuse_bytes(bytes, size, "header length");
        memset(bytes, 0xff, 8);
        refuse_bytes(bytes, size, "header length");
        free(bytes);
    }
    char *bytes = compose("{}", 2, 0, 0, &size);
    refuse_bytes(bytes, size, "does not begin");
    free(bytes);
}

static void test_bad_text(void **state)
{
    (void)state;
    size_t size;
    refuse(" {}", 0, "does not begin");
    refuse("[]", 0, "does not begin");
    refuse("{", 0, "not valid JSON");
    refuse("{\"a\":}", 0, "not valid JSON");
    refuse("{}x", 0, "after the header's closing brace");
    refuse("{}{}", 0, "after the header's closing brace");
    refuse("{\"a\xff\":{}}", 0, "not UTF-8");
    refuse("{\"a\xc0\x80\":{}}", 0, "not UTF-8");
    refuse("{\"a\\u0000b\":{}}", 0, "zero character");
    char *bytes = compose("{}\0", 3, -1, 0, &size);
    refuse_bytes(bytes, size, "not UTF-8");
    free(bytes);
    /* Deep nesting ends in an error, not in an overflow of the stack. */
    char *deep = calloc(1, 100001);
    memset(deep, '[', 100000);
    memcpy(deep, "{\"a\":", 5);
    refuse(deep, 0, "not valid JSON");
    free(deep);
}

static void test_bad_entries(void **state)
{
    (void)state;
    refuse("{\"a\":1}", 0, "'a': not an object");
    refuse("{\"a\":{}}", 0, "'a': 0 fields");
    refuse("{\"a\":{\"shape\":[],\"data_offsets\":[0,0],\"x\":1}}", 0, "no dtype");
    refuse("{" T("a", "F31", "[1]", "[0,4]") "}", 4, "dtype 'F31'");
    refuse("{\"a\\nb\\u001b[0m\":1}", 0, "'a?b?[0m': not an object"); /* the message stays one line and harmless */
    refuse("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4],\"x\":1}}", 4, "no shape");
    refuse("{" T("a", "F32", "[1.5]", "[0,4]") "}", 4, "shape[0]");
    refuse("{" T("a", "F32", "[1,-1]", "[0,4]") "}", 4, "shape[1]");
    refuse("{" T("a", "F32", "[1e300]", "[0,4]") "}", 4, "shape[0]");
    refuse("{" T("a", "F32", "[\"1\"]", "[0,4]") "}", 4, "shape[0]");
    refuse("{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "more than 8 dimensions");
    refuse("{" T("a", "F32", "[1]", "[0]") "}", 4, "data_offsets");
    refuse("{" T("a", "F32", "[1]", "[0,4,4]") "}", 4, "data_offsets");
    refuse("{" T("a", "F32", "[1]", "[0,null]") "}", 4, "data_offsets");
    refuse("{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", 8, "'a' occurs twice");
    refuse("{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[0,4]") "}", 4, "'a' occurs twice");
    refuse("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "4 fields");
    refuse("{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ 'a'");
    refuse("{\"__metadata__\":[]}", 0, "__metadata__ is not an object");
    refuse("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ occurs twice");
}

static void test_bad_layout(void **state)
{
    (void)state;
    refuse("{" T("a", "F32", "[2]", "[0,4]") "}", 4, "'a': 4 bytes in data_offsets, 8");
    refuse("{" T("a", "F32", "[1]", "[4,0]") "}", 4, "outside");
    refuse("{" T("a", "F32", "[1]", "[0,4]") "}", 3, "outside the 3 bytes");
    refuse("{" T("a", "F32", "[1]", "[0,4]") "}", 5, "the tensors end at 4, the file's data at 5");
    refuse("{}", 1, "the tensors end at 0");
    refuse("{" T("a", "U8", "[2]", "[1,3]") "}", 3, "'a' begins at 1, leaving a hole");
    refuse("{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[1,3]") "}", 3, "'b' begins at 1, overlapping");
    refuse("{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[3,5]") "}", 5, "'b' begins at 3, leaving a hole");
    refuse("{" T("a", "F32", "[4294967296,4294967296]", "[0,0]") "}", 0, "product of its shape overflows");
    refuse("{" T("a", "F32", "[0,4294967296,4294967296]", "[0,0]") "}", 0, "product of its shape overflows");
    refuse("{" T("a", "F64", "[4294967296,1073741824]", "[0,0]") "}", 0, "size in bytes overflows");
    refuse("{" T("a", "F64", "[9007199254740992,1024]", "[0,0]") "}", 0, "overflows");
}

/* Every cut of a good file is refused. */
static void test_truncation(void **state)
{
    (void)state;
    size_t size;
    const char *header = "{" T("a", "F32", "[2]", "[0,8]") "," T("b", "U8", "[3]", "[8,11]") "}";
    char *bytes = compose(header, strlen(header), -1, 11, &size);
    for (size_t cut = 0; cut < size; ++cut)
        refuse_bytes(bytes, cut, "file");
    free(bytes);
}

/* Any single altered byte of the header is either harmless or refused, never a crash. */
static void test_altered_header(void **state)
{
    (void)state;
    size_t size;
    safetensors_file *file;
    const char *header = "{" T("a", "F32", "[2]", "[0,8]") "," T("b", "U8", "[3]", "[8,11]") "}";
    char *bytes = compose(header, strlen(header), -1, 11, &size);
    for (size_t at = 0; at < 8 + strlen(header); ++at) {
        for (int value = 0; value < 256; value += 3) {
            char kept = bytes[at];
            bytes[at] = (char)value;
            if (safetensors_parse(bytes, size, "file", &file))
                safetensors_close(file);
            bytes[at] = kept;
        }
    }
    free(bytes);
}

static void test_round_trip(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], path[FOLDER_PATH];
    folder_make(folder);
    folder_file(path, folder, "t.safetensors");
    const float weights[6] = {1, 2, 3, 4, 5, -0.0f};
    const double scalar = 0.1;
    const unsigned char small[3] = {7, 8, 9};
    const int64_t wide[1] = {INT64_MIN};
    const int32_t narrow[2] = {INT32_MAX, -1};
    const safetensors_tensor tensors[] = {
        {.name = "small", .dtype = SAFETENSORS_U8, .rank = 1, .shape = {3}, .data = small},
        {.name = "weights", .dtype = SAFETENSORS_F32, .rank = 2, .shape = {2, 3}, .data = weights},
        {.name = "a \"name\"\n", .dtype = SAFETENSORS_F64, .rank = 0, .data = &scalar},
        {.name = "empty", .dtype = SAFETENSORS_F32, .rank = 2, .shape = {4, 0}},
        {.name = "wide", .dtype = SAFETENSORS_I64, .rank = 1, .shape = {1}, .data = wide},
        {.name = "narrow", .dtype = SAFETENSORS_I32, .rank = 1, .shape = {2}, .data = narrow},
    };
    const safetensors_pair metadata = {"format", "pt"};
    require(safetensors_write(path, tensors, 6, &metadata, 1));

    safetensors_file *file;
    float loaded[6];
    double loaded_scalar;
    require(safetensors_open(path, &file));
    assert_int_equal(safetensors_count(file), 6);
    assert_string_equal(safetensors_at(file, 0)->name, "a \"name\"\n"); /* largest type first, then by name */
    assert_string_equal(safetensors_at(file, 5)->name, "small");
    assert_string_equal(safetensors_metadata(file, "format"), "pt");
    assert_null(safetensors_metadata(file, "none"));
    require(safetensors_load(file, "weights", SAFETENSORS_F32, 2, (int64_t[]){2, 3}, loaded));
    assert_memory_equal(loaded, weights, sizeof weights);
    require(safetensors_load(file, "a \"name\"\n", SAFETENSORS_F64, 0, NULL, &loaded_scalar));
    assert_memory_equal(&loaded_scalar, &scalar, sizeof scalar);
    assert_memory_equal(safetensors_find(file, "narrow")->data, narrow, sizeof narrow);
    assert_int_equal(safetensors_find(file, "empty")->count, 0);
    assert_null(safetensors_find(file, "none"));

    assert_false(safetensors_load(file, "none", SAFETENSORS_F32, 1, (int64_t[]){1}, loaded));
    assert_non_null(strstr(train_error(), "no tensor 'none'"));
    assert_false(safetensors_load(file, "weights", SAFETENSORS_F64, 2, (int64_t[]){2, 3}, loaded));
    assert_non_null(strstr(train_error(), "is F32, expected F64"));
    assert_false(safetensors_load(file, "weights", SAFETENSORS_F32, 2, (int64_t[]){3, 2}, loaded));
    assert_non_null(strstr(train_error(), "[2, 3], expected [3, 2]"));
    safetensors_close(file);
    folder_remove(folder);
}

static void test_files(void **state)
{
    (void)state;
    safetensors_file *file;
    assert_false(safetensors_open("./no-such-file", &file));
    assert_non_null(strstr(train_error(), "no-such-file"));
    assert_false(safetensors_open(".", &file));
    assert_false(safetensors_write("./no-such-folder/file", NULL, 0, NULL, 0));
    assert_non_null(strstr(train_error(), "no-such-folder"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),        cmocka_unit_test(test_bad_lengths), cmocka_unit_test(test_bad_text),
        cmocka_unit_test(test_bad_entries),    cmocka_unit_test(test_bad_layout),  cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_altered_header), cmocka_unit_test(test_round_trip),  cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
