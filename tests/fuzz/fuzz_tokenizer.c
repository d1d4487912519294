/*
 * Bytes as a tokenizer.json and a text. Whatever is opened gives tokens of its vocabulary, and printing them gives UTF-8.
 *
 * The input: the text's length in a byte, the text, the file.
 */
#include "fuzz.h"
#include "train/error.h"
#include "train/tokenizer.h"

#include <string.h>

static void check_printed(const text_buffer *out)
{
    for (size_t at = 0, size; at < out->length; at += size)
        FUZZ_CHECK((size = text_utf8(out->bytes + at, out->length - at)) > 0);
}

static void check_text(tokenizer *t, const char *text, size_t size, bool framed)
{
    token_list list = {0}, again = {0};
    text_buffer out = {0};
    utf8_stream stream = {0};
    tokenizer_encode(t, text, size, framed, &list);
    tokenizer_encode(t, text, size, framed, &again); /* words are remembered now */
    FUZZ_CHECK(list.count == again.count && (!list.count || memcmp(list.ids, again.ids, list.count * sizeof *list.ids) == 0));
    for (size_t i = 0; i < list.count; i++) {
        FUZZ_CHECK(list.ids[i] >= 0 && list.ids[i] < tokenizer_vocab(t), "token %d", list.ids[i]);
        utf8_stream_add(&stream, t, list.ids[i], &out);
    }
    utf8_stream_end(&stream, &out);
    check_printed(&out);
    text_free(&out);
    token_list_free(&list);
    token_list_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    const fuzz_input text = fuzz_part(&in, fuzz_byte(&in));
    char *bytes = fuzz_guarded(text.bytes, text.left);
    tokenizer *t = tokenizer_open(fuzz_file(0, in.bytes, in.left));
    FUZZ_CHECK(t || *train_error());
    if (t) {
        FUZZ_CHECK(tokenizer_end(t) < tokenizer_vocab(t) && tokenizer_first(t) < tokenizer_vocab(t));
        check_text(t, bytes, text.left, true);
        check_text(t, bytes, text.left, false);
    }
    tokenizer_close(t);
    fuzz_unguarded(bytes, text.left);
    return 0;
}
