/*
 * The parser of options and the JSON writer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "json_out.h"
#include "options.h"

static void whole_numbers(void **state)
{
    (void)state;
    int64_t n = 0;
    assert_true(option_parse_int("--n", "12", 0, 100, &n) && n == 12);
    assert_true(option_parse_int("--n", "-3", -5, 100, &n) && n == -3);
    assert_true(option_parse_int("--n", "4k", 0, 1e9, &n) && n == 4096);
    assert_true(option_parse_int("--n", "2m", 0, 1e9, &n) && n == 2097152);
    assert_true(option_parse_int("--n", "1g", 0, 1e12, &n) && n == 1073741824);
    assert_true(option_parse_int("--n", "1e6", 0, 1e9, &n) && n == 1000000);
    assert_true(option_parse_int("--n", "9223372036854775807", 1, 0, &n) && n == INT64_MAX);
    n = 7;
    const char *const wrong[] = {"",    "x",  "12x", "1.5", "4kk", "9223372036854775808", "9223372036854775807k",
                                 "101", "-1", "nan"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(option_parse_int("--n", wrong[i], 0, 100, &n));
    assert_int_equal(n, 7); /* untouched */
}

static void real_numbers_and_words(void **state)
{
    (void)state;
    const char *const words[] = {"full", "causal", NULL};
    double x = 0;
    int word = -1;
    assert_true(option_parse_double("--x", "1e-3", 0, 1, &x) && x == 1e-3);
    assert_false(option_parse_double("--x", "2", 0, 1, &x));
    assert_false(option_parse_double("--x", "nan", 1, 0, &x));
    assert_false(option_parse_double("--x", "1,5", 1, 0, &x));
    assert_true(option_parse_word("--mask", "causal", words, &word) && word == 1);
    assert_false(option_parse_word("--mask", "caus", words, &word));
}

typedef struct values {
    bool flag, other;
    int64_t n;
    double x;
    const char *text;
    int word;
    option_ints list, choice;
    option_texts names;
} values;

static const char *const words[] = {"red", "green", "blue", NULL};

static bool parse(values *v, int argc, char **argv, int *status)
{
    *v = (values){.other = true, .n = 5, .x = 0.5, .text = "none", .list = {.count = 1, .item = {1}}};
    const option_spec table[] = {{"flag", NULL, OPTION_FLAG, &v->flag, .help = "a"},
                                 {"other", NULL, OPTION_FLAG, &v->other, .help = "b"},
                                 {"n", "N", OPTION_INT, &v->n, .low = 1, .high = 10, .help = "c"},
                                 {"x", "X", OPTION_DOUBLE, &v->x, .help = "d"},
                                 {"text", "T", OPTION_TEXT, &v->text, .help = "e"},
                                 {"word", "W", OPTION_WORD, &v->word, .words = words, .help = "f"},
                                 {"list", "N,...", OPTION_INTS, &v->list, .help = "g"},
                                 {"choice", "W,...", OPTION_WORDS, &v->choice, .words = words, .help = "h"},
                                 {"names", "T,...", OPTION_TEXTS, &v->names, .help = "i"},
                                 {0}};
    const option_set set = {.usage = "test", .about = "Tests.", .table = table, .positionals_max = 1};
    const bool go_on = options_parse(&set, argc, argv, status);
    for (const option_spec *spec = table; go_on && spec->name; spec++) { /* what is printed reads back the same */
        char text[256], again[256];
        assert_true(option_print(spec, text, sizeof text));
        if (*text && spec->kind != OPTION_TEXT) /* a text stays where it is */
            assert_true(option_assign(spec, spec->name, text));
        assert_true(option_print(spec, again, sizeof again));
        assert_string_equal(text, again);
    }
    return go_on;
}

static bool parse_line(values *v, const char *line, int *status)
{
    static char copy[256];
    char *argv[32], *rest = NULL;
    int argc = 0;
    snprintf(copy, sizeof copy, "test %s", line);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    argv[argc] = NULL;
    return parse(v, argc, argv, status);
}

static void tables(void **state)
{
    (void)state;
    values v;
    int status;
    assert_true(parse_line(&v, "--flag --no-other --n=7 --x -2.5 --text hello --word blue", &status));
    assert_true(v.flag && !v.other && v.n == 7 && v.x == -2.5 && v.word == 2);
    assert_string_equal(v.text, "hello");
    assert_true(parse_line(&v, "--list 1,2k,3 --choice green,red --names a,bc thing", &status));
    assert_true(v.list.count == 3 && v.list.item[1] == 2048 && v.choice.count == 2 && v.choice.item[0] == 1);
    assert_true(v.names.count == 2 && !strcmp(v.names.item[1], "bc"));
    assert_true(parse_line(&v, "", &status) && v.n == 5 && v.other);
    const char *const wrong[] = {"--n 11", "--n", "--flag=1", "--nonsense", "--word pink", "--list 1,,2", "--list ,", "a b"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        status = 0;
        assert_false(parse_line(&v, wrong[i], &status));
        assert_int_equal(status, CLI_WRONG);
    }
    assert_false(parse_line(&v, "--help", &status));
    assert_int_equal(status, CLI_OK);
}

/* What was said counts, however it was abbreviated, and not what stands where a value does. */
static void given(void **state)
{
    (void)state;
    bool flag = false, flat = false;
    int64_t seed = 1;
    const char *text = NULL;
    option_marks marks;
    const option_spec table[] = {{"flag", NULL, OPTION_FLAG, &flag, .help = "a"},
                                 {"flat", NULL, OPTION_FLAG, &flat, .help = "b"},
                                 {"seed", "N", OPTION_INT, &seed, .help = "c"},
                                 {"text", "T", OPTION_TEXT, &text, .help = "d"},
                                 {0}};
    const option_set set = {.usage = "test", .about = "", .table = table, .positionals_max = 1, .marks = &marks};
    int status;
    assert_true(options_parse(&set, 4, (char *[]){"test", "--see=2", "--no-flag", "--flat", NULL}, &status));
    assert_true(options_given(&set, "seed") && options_given(&set, "no-flag") && options_given(&set, "flat"));
    assert_false(options_given(&set, "flag") || options_given(&set, "no-flat") || options_given(&set, "text"));
    assert_false(options_given(&set, "nonsense") || options_given(&set, "no-nonsense"));
    assert_true(options_parse(&set, 5, (char *[]){"test", "--tex", "--seed", "--", "--flag", NULL}, &status));
    assert_true(options_given(&set, "text"));
    assert_false(options_given(&set, "seed") || options_given(&set, "flag") || options_given(&set, "flat"));
}

static void json_lines(void **state)
{
    (void)state;
    char text[512] = "";
    FILE *file = fmemopen(text, sizeof text, "w");
    assert_non_null(file);
    json_out json = json_begin(file);
    json_string(&json, "s", "a\"b\\c\n\x01");
    json_text(&json, "zero", "a\0b", 3);
    json_string(&json, "none", NULL);
    json_int(&json, "i", -5);
    json_double(&json, "d", 0.1);
    json_double(&json, "nan", NAN);
    json_bool(&json, "b", true);
    json_open(&json, "list", '[');
    json_int(&json, NULL, 1);
    json_int(&json, NULL, 2);
    json_close(&json, ']');
    json_open(&json, "o", '{');
    json_close(&json, '}');
    json_end(&json);
    fclose(file);
    assert_string_equal(
        text,
        "{\"s\":\"a\\\"b\\\\c\\n\\u0001\",\"zero\":\"a\\u0000b\",\"none\":null,\"i\":-5,\"d\":0.1,\"nan\":null,\"b\":true,"
        "\"list\":[1,2],\"o\":{}}\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole_numbers), cmocka_unit_test(real_numbers_and_words),
                                       cmocka_unit_test(tables), cmocka_unit_test(given), cmocka_unit_test(json_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
