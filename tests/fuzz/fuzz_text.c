/*
 * Bytes as text: characters, JSON strings, and a stream of tokens to be printed. Whatever comes in, what goes out is UTF-8.
 */
#include "fuzz.h"
#include "train/config.h"
#include "train/error.h"
#include "train/text.h"
#include "train/tokenizer.h"

#include <string.h>

/* How many bytes at the front are whole characters. */
static size_t valid_front(const char *bytes, size_t size)
{
    size_t at = 0;
    for (size_t step; at < size && (step = text_utf8(bytes + at, size - at)) > 0;)
        at += step;
    return at;
}

static void check_json(const char *bytes, size_t size)
{
    text_buffer json = {0};
    config_set c;
    text_bytes(&json, "{\"key\":", 7);
    text_json_string(&json, bytes, size);
    text_bytes(&json, "}", 1);
    FUZZ_CHECK(valid_front(json.bytes, json.length) == json.length);
    FUZZ_CHECK(config_parse(json.bytes, json.length, "text", &c), "%s", train_error());
    if (valid_front(bytes, size) == size && !memchr(bytes, 0, size)) {
        const char *value = config_find(&c, "key");
        FUZZ_CHECK(strlen(value) == size && memcmp(value, bytes, size) == 0);
    }
    config_free(&c);
    text_free(&json);
}

/* What was printed since is whole characters. */
static void check_printed(const text_buffer *all, size_t before)
{
    FUZZ_CHECK(valid_front(all->bytes + before, all->length - before) == all->length - before);
}

static void check_stream(const char *bytes, size_t size)
{
    utf8_stream stream = {0};
    text_buffer all = {0};
    token_list tokens = {0};
    tokenizer *words = tokenizer_open(NULL);
    tokenizer_encode(words, bytes, size, true, &tokens);
    FUZZ_CHECK(tokens.count == size);
    text_bytes(&all, "", 0);
    for (size_t i = 0; i < size; i++) {
        const size_t before = all.length;
        utf8_stream_add(&stream, words, tokens.ids[i], &all);
        check_printed(&all, before);
        const size_t now = all.length;
        utf8_stream_add(&stream, words, TOKEN_EOS, &all);
        FUZZ_CHECK(all.length == now);
    }
    const size_t before = all.length;
    utf8_stream_end(&stream, &all);
    check_printed(&all, before);
    const size_t front = valid_front(bytes, size);
    FUZZ_CHECK(all.length >= front && memcmp(all.bytes, bytes, front) == 0);
    FUZZ_CHECK(front < size || all.length == size);
    text_free(&all);
    token_list_free(&tokens);
    tokenizer_close(words);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *bytes = fuzz_guarded(data, size);
    check_json(bytes, size);
    check_stream(bytes, size < 256 ? size : 256);
    fuzz_unguarded(bytes, size);
    return 0;
}
