/*
 * The small parts under the trainer: SHA-256, UTF-8, JSON texts, configurations.
 */
#include "folder.h"
#include "support.h"
#include "train/config.h"
#include "train/sha256.h"
#include "train/text.h"
#include "train/tokenizer.h"
#include <stdlib.h>
#include <string.h>

static void check_digest(const char *bytes, size_t count, const char *expected)
{
    /* At once, and in pieces that do not fit the blocks. */
    for (size_t piece = count ? count : 1;; piece = 13) {
        sha256 s;
        char hex[65];
        sha256_begin(&s);
        for (size_t done = 0; done < count; done += piece)
            sha256_add(&s, bytes + done, count - done < piece ? count - done : piece);
        sha256_end(&s, hex);
        assert_string_equal(hex, expected);
        if (piece == 13)
            return;
    }
}

/* The examples of FIPS 180-4 and of its test vectors. */
static void test_sha256(void **state)
{
    (void)state;
    check_digest("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_digest("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56,
                 "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    char *million = malloc(1000000);
    memset(million, 'a', 1000000);
    check_digest(million, 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
    char hex[65];
    assert_false(sha256_file("./no-such-file", hex));
}

static void test_utf8(void **state)
{
    (void)state;
    const struct {
        const char *bytes;
        size_t size;
    } cases[] = {{"a", 1},        {"\xc3\xa9", 2},         {"\xe2\x82\xac", 3},     {"\xf0\x9f\x98\x80", 4}, {"\x80", 0},
                 {"\xc0\x80", 0}, {"\xe0\x80\x80", 0},     {"\xed\xa0\x80", 0},     {"\xf4\x90\x80\x80", 0}, {"\xc3", 0},
                 {"\xff", 0},     {"\xf0\x80\x80\x80", 0}, {"\xf5\x80\x80\x80", 0}, {"\xc3\x28", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
        assert_int_equal(text_utf8(cases[i].bytes, strlen(cases[i].bytes)), cases[i].size);
}

/* What a stream of single bytes prints, and when. */
static void test_utf8_stream(void **state)
{
    (void)state;
    const char *input = "a\xc3\xa9\xe2\x82\xac\xff\xe2\x28\xf0\x9f\x98\x80\xf0\x9f";
    const char *expected = "a\xc3\xa9\xe2\x82\xac\xef\xbf\xbd\xef\xbf\xbd(\xf0\x9f\x98\x80\xef\xbf\xbd\xef\xbf\xbd";
    utf8_stream stream = {0};
    text_buffer printed = {0};
    tokenizer *bytes = tokenizer_open(NULL);
    for (const char *p = input; *p; ++p)
        utf8_stream_add(&stream, bytes, (unsigned char)*p, &printed);
    const size_t before = printed.length;
    utf8_stream_add(&stream, bytes, TOKEN_EOS, &printed);
    assert_int_equal(printed.length, before);
    utf8_stream_end(&stream, &printed);
    assert_string_equal(printed.bytes, expected);
    tokenizer_close(bytes);
    text_free(&printed);
}

static void test_json_text(void **state)
{
    (void)state;
    text_buffer json = {0};
    text_json_string(&json, "a\"\\\n\x01\xc3\xa9\xff", 8);
    assert_string_equal(json.bytes, "\"a\\\"\\\\\\n\\u0001\xc3\xa9\xef\xbf\xbd\"");
    text_free(&json);
    const double numbers[] = {0.1, 1e-8, 3, 1.0 / 3.0, 1e300};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
        text_json_number(&json, numbers[i]);
        assert_true(strtod(json.bytes, NULL) == numbers[i]);
        text_free(&json);
    }
}

static void refuse_config(const char *json, const char *reason)
{
    config_set set;
    assert_false(config_parse(json, strlen(json), "file", &set));
    if (!strstr(train_error(), reason))
        fail_msg("expected '%s' in: %s", reason, train_error());
}

static void test_config(void **state)
{
    (void)state;
    config_set set;
    const char *json = "{\"hidden\": 128, \"lr\": 0.1, \"tied\": true, \"data\": \"a \\\"b\\\"\"}\n";
    require(config_parse(json, strlen(json), "file", &set));
    assert_int_equal(set.count, 4);
    assert_string_equal(config_find(&set, "hidden"), "128");
    assert_string_equal(config_find(&set, "lr"), "0.1");
    assert_string_equal(config_find(&set, "tied"), "true");
    assert_string_equal(config_find(&set, "data"), "a \"b\"");
    assert_null(config_find(&set, "none"));
    config_free(&set);
    refuse_config("", "not one JSON object");
    refuse_config("[]", "not one JSON object");
    refuse_config("{\"a\":1} x", "not one JSON object");
    refuse_config("{\"a\":[1]}", "'a' is neither");
    refuse_config("{\"a\":null}", "'a' is neither");
    refuse_config("{\"a\":1,\"a\":2}", "'a' occurs twice");
    assert_false(config_read("./no-such-file", &set));
}

static void test_presets(void **state)
{
    (void)state;
    for (const char *const *name = config_preset_names(); *name; ++name)
        assert_non_null(config_preset(*name));
    assert_null(config_preset("enormous"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256),    cmocka_unit_test(test_utf8),   cmocka_unit_test(test_utf8_stream),
        cmocka_unit_test(test_json_text), cmocka_unit_test(test_config), cmocka_unit_test(test_presets),
    };
    return cmocka_run_group_tests_name("basics", tests, NULL, NULL);
}
