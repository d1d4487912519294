/*
 * Tokenizers: the tokens that Python's `tokenizers` gives (tests/golden/make_tokenizers.py), bytes that come back as they were,
 * and files that are refused.
 */
#include "train/tokenizer.h"
#include "folder.h"
#include "support.h"
#include "train/config.h"
#include "train/error.h"
#include "train/random.h"
#include "train/unicode.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const styles[] = {"gpt2", "qwen", "llama3"};
enum { STYLES = 3 };

static tokenizer *open_style(const char *style)
{
    char path[512];
    snprintf(path, sizeof path, GOLDEN_DIR "/tokenizer_%s.json", style);
    tokenizer *t = tokenizer_open(path);
    require(t);
    return t;
}

static size_t from_hex(const char *hex, char *bytes)
{
    size_t size = 0;
    for (unsigned value; hex[2 * size] != ' ' && sscanf(hex + 2 * size, "%2x", &value) == 1; ++size)
        bytes[size] = (char)value;
    return size;
}

static void append_tokens(const token_list *list, text_buffer *text)
{
    text_bytes(text, "", 0);
    for (size_t i = 0; i < list->count; ++i)
        text_format(text, "%s%d", i ? "," : "", list->ids[i]);
}

/* Twice each, since the second time words are remembered. */
static void check_line(tokenizer *t, const char *style, const char *line)
{
    char *bytes = text_alloc(strlen(line));
    const size_t size = from_hex(line, bytes);
    for (int turn = 0; turn < 2; ++turn) {
        token_list list = {0};
        text_buffer text = {0};
        tokenizer_encode(t, bytes, size, true, &list);
        append_tokens(&list, &text);
        if (strcmp(text.bytes, strchr(line, ' ') + 1) != 0)
            fail_msg("%s, turn %d: %s\n  here %s", style, turn, line, text.bytes);
        text_free(&text);
        token_list_free(&list);
    }
    free(bytes);
}

static void test_golden(void **state)
{
    (void)state;
    for (int i = 0; i < STYLES; ++i) {
        char path[512];
        size_t size;
        int lines = 0;
        snprintf(path, sizeof path, GOLDEN_DIR "/tokenizer_%s.txt", styles[i]);
        char *all = config_slurp(path, 1 << 24, &size);
        require(all);
        tokenizer *t = open_style(styles[i]);
        for (char *line = strtok(all, "\n"); line; line = strtok(NULL, "\n"), ++lines)
            check_line(t, styles[i], line);
        assert_true(lines > 200);
        tokenizer_close(t);
        free(all);
    }
}

static void decode(const tokenizer *t, const token_list *list, text_buffer *out)
{
    text_bytes(out, "", 0);
    for (size_t i = 0; i < list->count; ++i) {
        size_t size;
        const char *bytes = tokenizer_token(t, list->ids[i], &size);
        text_bytes(out, bytes, size);
    }
}

/* Any bytes come back, but for what NFC changes and the space that one style puts in front. */
static void check_back(tokenizer *t, int style, const char *bytes, size_t size)
{
    text_buffer back = {0}, normal = {0};
    token_list list = {0};
    tokenizer_encode(t, bytes, size, false, &list);
    decode(t, &list, &back);
    unicode_nfc(bytes, size, &normal);
    const bool qwen = style == 1;
    const size_t length = qwen ? normal.length : size, prefix = style == 0 && bytes[0] != ' ' ? 1 : 0;
    assert_int_equal(back.length, length + prefix);
    assert_memory_equal(back.bytes + prefix, qwen ? normal.bytes : bytes, length);
    text_free(&back);
    text_free(&normal);
    token_list_free(&list);
}

static void test_any_bytes(void **state)
{
    (void)state;
    random_state random = {7};
    for (int i = 0; i < STYLES; ++i) {
        tokenizer *t = open_style(styles[i]);
        for (int n = 0; n < 400; ++n) {
            char bytes[200];
            const size_t size = (size_t)random_below(&random, sizeof bytes) + 1;
            for (size_t k = 0; k < size; ++k)
                bytes[k] = (char)(n % 2 ? random_below(&random, 256) : 0x20 + random_below(&random, 0x60));
            check_back(t, i, bytes, size);
        }
        tokenizer_close(t);
    }
}

/* Special tokens are not printed, other added ones are; characters wait for their last byte. */
static void test_printing(void **state)
{
    (void)state;
    const char *text = "a<tool>\xf0\x9f\x98\x80<|endoftext|>\xe4\xb8\xad";
    tokenizer *t = open_style("qwen");
    token_list list = {0};
    text_buffer out = {0};
    utf8_stream stream = {0};
    tokenizer_encode(t, text, strlen(text), false, &list);
    assert_int_equal(tokenizer_end(t), 700);
    assert_int_equal(tokenizer_named(t, "<tools>"), 704);
    assert_int_equal(tokenizer_named(t, "<no such>"), -1);
    assert_int_equal(tokenizer_vocab(t), 709);
    for (size_t i = 0; i < list.count; ++i) {
        utf8_stream_add(&stream, t, list.ids[i], &out);
        for (size_t k = 0, size; k < out.length; k += size)
            assert_true((size = text_utf8(out.bytes + k, out.length - k)) > 0);
    }
    utf8_stream_end(&stream, &out);
    assert_string_equal(out.bytes, "a<tool>\xf0\x9f\x98\x80\xe4\xb8\xad");
    text_free(&out);
    token_list_free(&list);
    tokenizer_close(t);
}

/* A word of a million characters takes no time that grows with its square. */
static void test_long_word(void **state)
{
    (void)state;
    enum { LONG = 1 << 20 };
    char *bytes = text_alloc(LONG);
    random_state random = {3};
    tokenizer *t = open_style("llama3");
    for (int i = 0; i < LONG; ++i)
        bytes[i] = "etaoinsh"[random_below(&random, 8)];
    check_back(t, 2, bytes, LONG);
    tokenizer_close(t);
    free(bytes);
}

/* The file of a style with one text in it replaced by another. */
static tokenizer *open_changed(const char *style, const char *from, const char *to)
{
    char path[512], folder[FOLDER_PATH], name[FOLDER_PATH];
    size_t size;
    text_buffer json = {0};
    folder_make(folder);
    snprintf(path, sizeof path, GOLDEN_DIR "/tokenizer_%s.json", style);
    folder_file(name, folder, "tokenizer.json");
    char *all = config_slurp(path, 1 << 24, &size), *at = strstr(all, from);
    if (!at)
        fail_msg("no '%s' in the file of %s", from, style);
    text_bytes(&json, all, (size_t)(at - all));
    text_format(&json, "%s%s", to, at + strlen(from));
    file_write(name, json.bytes, json.length);
    tokenizer *t = tokenizer_open(name);
    text_free(&json);
    free(all);
    folder_remove(folder);
    return t;
}

static void check_refused(const char *style, const char *from, const char *to, const char *message)
{
    if (open_changed(style, from, to))
        fail_msg("'%s' instead of '%s' is not refused", to, from);
    if (!strstr(train_error(), message) || !strstr(train_error(), "tokenizer.json"))
        fail_msg("'%s' instead of '%s': %s", to, from, train_error());
}

/* A newline is a token, and stands in the spaces that other tokens take; the numbers are those of Python's package. */
static void test_taken_spaces(void **state)
{
    static const struct {
        const char *text, *tokens;
    } cases[] = {{"a<right>  \n \n b", "64,706,704,220,704,220,65"},
                 {"<right>\n\n<left>\n", "706,704,704,705,704"},
                 {" \n <left>\n<right> \n<right>\n", "220,704,705,704,706,704,706,704"}};
    (void)state;
    tokenizer *t = open_changed("qwen", "\"content\":\"<tools>\"", "\"content\":\"\\n\"");
    require(t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        token_list list = {0};
        text_buffer text = {0};
        tokenizer_encode(t, cases[i].text, strlen(cases[i].text), false, &list);
        append_tokens(&list, &text);
        assert_string_equal(text.bytes, cases[i].tokens);
        text_free(&text);
        token_list_free(&list);
    }
    tokenizer_close(t);
}

static void test_refused(void **state)
{
    static const struct {
        const char *style, *from, *to, *message;
    } cases[] = {
        {"gpt2", "{\"version\"", "[\"version\"", "not one JSON object"},
        {"gpt2", "\"BPE\"", "\"WordPiece\"", "model 'WordPiece'"},
        {"gpt2", "\"byte_fallback\":false", "\"byte_fallback\":true", "byte_fallback"},
        {"gpt2", "\"dropout\":null", "\"dropout\":0.1", "dropout"},
        {"gpt2", "\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", "end_of_word_suffix"},
        {"gpt2", "\"!\":0", "\"!\":-1", "'!'"},
        {"gpt2", "\"!\":0", "\"!\":1", "there twice"},
        {"gpt2", "\"!\":0", "\"\xe4\xb8\xad\":0", "byte 33"},
        {"gpt2", "\"merges\":[\"", "\"merges\":[\"\xe4\xb8\xad", "merge 0"},
        {"gpt2", "\"merges\":[\"", "\"merges\":[\"a b c\",\"", "merge 0 is no pair"},
        {"gpt2", "\"id\":700", "\"id\":699", "added token '<|endoftext|>'"},
        {"gpt2", "\"id\":708", "\"id\":710", "added token 'caf\xc3\xa9' is 710, but the next number is 708"},
        {"gpt2", "\"lstrip\":false", "\"lstrip\":1", "'lstrip' is neither true nor false"},
        {"gpt2", "\"ignore_merges\":false", "\"ignore_merges\":\"x\"", "'ignore_merges'"},
        {"gpt2", "\"use_regex\":true", "\"use_regex\":[]", "'use_regex'"},
        {"gpt2", "]}}\n", "]}} {}", "not one JSON object (near byte"},
        {"gpt2", "\"content\":\"<|endoftext|>\"", "\"content\":\"\"", "added token"},
        {"qwen", "{\"type\":\"NFC\"}", "{\"type\":\"NFKC\"}", "normalizer 'NFKC'"},
        {"qwen", "\\\\p{N}| ?", "\\\\p{N}{1,2}| ?", "expression"},
        {"qwen", "\"Isolated\"", "\"Removed\"", "behavior 'Removed'"},
        {"qwen", "\"invert\":false", "\"invert\":true", "invert"},
        {"qwen", "\"type\":\"ByteLevel\",\"add_prefix_space\":false", "\"type\":\"Digits\"", "'Digits'"},
        {"gpt2", "\"pre_tokenizer\":{\"type\":\"ByteLevel\"", "\"pre_tokenizer\":null,\"x\":{\"type\":\"\"", "byte-level"},
        {"gpt2", "\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"WordPiece\"", "decoder 'WordPiece'"},
        {"llama3", "\"ids\":[702]", "\"ids\":[99999]", "post_processor"},
        {"llama3", "\"TemplateProcessing\"", "\"BertProcessing\"", "'BertProcessing'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
        check_refused(cases[i].style, cases[i].from, cases[i].to, cases[i].message);
    assert_null(tokenizer_open("./no-such-file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),    cmocka_unit_test(test_any_bytes), cmocka_unit_test(test_printing),
        cmocka_unit_test(test_long_word), cmocka_unit_test(test_refused),   cmocka_unit_test(test_taken_spaces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
