/*
 * Encoding: added tokens are looked for in the text; what lies between them is normalised, added tokens of normalised text are
 * looked for, and what lies between these is cut into words, which are merged.
 */
#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "tokenizer_parts.h"
#include "unicode.h"

enum { MOST_BYTES = 1 << 28 };

#define FOUR(b)    (char)(b), (char)((b) + 1), (char)((b) + 2), (char)((b) + 3)
#define SIXTEEN(b) FOUR(b), FOUR((b) + 4), FOUR((b) + 8), FOUR((b) + 12)
static const char byte_values[256] = {SIXTEEN(0x00), SIXTEEN(0x10), SIXTEEN(0x20), SIXTEEN(0x30), SIXTEEN(0x40), SIXTEEN(0x50),
                                      SIXTEEN(0x60), SIXTEEN(0x70), SIXTEEN(0x80), SIXTEEN(0x90), SIXTEEN(0xa0), SIXTEEN(0xb0),
                                      SIXTEEN(0xc0), SIXTEEN(0xd0), SIXTEEN(0xe0), SIXTEEN(0xf0)};

static tokenizer *open_bytes(void)
{
    tokenizer *t = text_alloc(sizeof *t);
    *t = (tokenizer){.vocab = TOKENIZER_VOCAB, .end = TOKEN_EOS};
    tokenizer_add_own_file(t);
    return t;
}

/* Whether this is the tokenizer.json that is made for bytes. */
static bool says_bytes(const char *json, size_t size)
{
    tokenizer *t = open_bytes();
    const bool same = t->files[0].size == size && memcmp(t->files[0].bytes, json, size) == 0;
    tokenizer_close(t);
    return same;
}

tokenizer *tokenizer_open(const char *path)
{
    if (!path || !*path || strcmp(path, "bytes") == 0)
        return open_bytes();
    size_t size;
    char *json = config_slurp(path, MOST_BYTES, &size);
    if (!json)
        return NULL;
    if (says_bytes(json, size)) {
        free(json);
        return open_bytes();
    }
    tokenizer *t = text_alloc(sizeof *t);
    *t = (tokenizer){.vocab = 0};
    if (tokenizer_add_files(t, path, json, size) && tokenizer_read(t, path, json, size))
        return t;
    tokenizer_close(t);
    return NULL;
}

void tokenizer_close(tokenizer *t)
{
    if (!t)
        return;
    bpe_free(t->model);
    free(t->entries);
    free(t->pool);
    free(t->merges);
    added_tokens_free(&t->raw);
    added_tokens_free(&t->normal);
    token_list_free(&t->before);
    token_list_free(&t->after);
    for (int i = 0; i < t->file_count; ++i)
        free(t->files[i].bytes);
    free(t);
}

bool tokenizer_is_bytes(const tokenizer *t)
{
    return !t->model;
}

bool tokenizer_explains(const tokenizer *t, int64_t vocab)
{
    return t->model || vocab == TOKENIZER_VOCAB;
}

int64_t tokenizer_vocab(const tokenizer *t)
{
    return t->vocab;
}

int32_t tokenizer_end(const tokenizer *t)
{
    return t->end;
}

int32_t tokenizer_first(const tokenizer *t)
{
    if (!t->model)
        return '\n';
    if (t->before.count)
        return t->before.ids[0];
    return t->end >= 0 ? t->end : 0;
}

int32_t tokenizer_named(const tokenizer *t, const char *name)
{
    const size_t size = strlen(name);
    for (int64_t i = 0; t->model && i < t->vocab; ++i) {
        const tokenizer_entry *e = &t->entries[i];
        if (e->named && e->size == size && memcmp(e->bytes, name, size) == 0)
            return (int32_t)i;
    }
    return -1;
}

const char *tokenizer_token(const tokenizer *t, int32_t token, size_t *size)
{
    *size = 0;
    if (token < 0 || token >= t->vocab)
        return byte_values;
    if (!t->model) {
        *size = token < 256;
        return &byte_values[token < 256 ? token : 0];
    }
    const tokenizer_entry *e = &t->entries[token];
    *size = e->bytes && !e->special ? e->size : 0;
    return e->bytes ? e->bytes : byte_values;
}

/* ------------------------------------------------------------------------------------------------------------ encoding */

/* The steps from `step` on, then the words' tokens. */
static void cut(tokenizer *t, int step, const char *bytes, size_t size, token_list *out)
{
    if (step == t->step_count) {
        bpe_encode(t->model, bytes, size, out);
        return;
    }
    const tokenizer_step *s = &t->steps[step];
    text_buffer prefixed = {0};
    if (s->prefix && bytes[0] != ' ') {
        text_bytes(&prefixed, " ", 1);
        text_bytes(&prefixed, bytes, size);
        bytes = prefixed.bytes;
        size = prefixed.length;
    }
    for (size_t at = 0, length; at < size; at += length) {
        length = s->splits ? word_next(s->pattern, bytes + at, size - at) : size;
        cut(t, step + 1, bytes + at, length, out);
    }
    text_free(&prefixed);
}

/* Calls `between` for what lies between tokens, and appends these. Where a token stands in spaces that the one before it took,
 * it is there as well, and what follows goes on behind it, as in Hugging Face's code. */
static void look_for(tokenizer *t, const added_tokens *added, const char *bytes, size_t size,
                     void (*between)(tokenizer *t, const char *bytes, size_t size, token_list *out), token_list *out)
{
    added_match match;
    size_t from = 0;
    for (size_t at = 0; added->token_count && added_tokens_find(added, bytes, size, from, at, &match); at = match.next) {
        if (match.begin > from)
            between(t, bytes + from, match.begin - from, out);
        token_list_add(out, match.id);
        from = match.end;
    }
    if (from < size)
        between(t, bytes + from, size - from, out);
}

static void encode_words(tokenizer *t, const char *bytes, size_t size, token_list *out)
{
    cut(t, 0, bytes, size, out);
}

static void encode_part(tokenizer *t, const char *bytes, size_t size, token_list *out)
{
    if (!t->normalises) {
        look_for(t, &t->normal, bytes, size, encode_words, out);
        return;
    }
    text_buffer normal = {0};
    unicode_nfc(bytes, size, &normal);
    look_for(t, &t->normal, normal.bytes, normal.length, encode_words, out);
    text_free(&normal);
}

static void add_all(token_list *out, const token_list *list)
{
    for (size_t i = 0; i < list->count; ++i)
        token_list_add(out, list->ids[i]);
}

void tokenizer_encode(tokenizer *t, const char *bytes, size_t size, bool framed, token_list *out)
{
    if (framed)
        add_all(out, &t->before);
    if (t->model)
        look_for(t, &t->raw, bytes, size, encode_part, out);
    for (size_t i = 0; !t->model && i < size; ++i)
        token_list_add(out, (unsigned char)bytes[i]);
    if (framed)
        add_all(out, &t->after);
}

/* ------------------------------------------------------------------------------------------------------------ printing */

/* Whether the pending bytes may still become a character. */
static bool could_continue(const unsigned char *bytes, int count)
{
    int size = bytes[0] >= 0xf0 && bytes[0] <= 0xf4 ? 4 : bytes[0] >= 0xe0 ? 3 : bytes[0] >= 0xc2 ? 2 : 1;
    if (bytes[0] > 0xf4 || count >= size)
        return false;
    for (int i = 1; i < count; ++i)
        if ((bytes[i] & 0xc0) != 0x80)
            return false;
    return true;
}

/* Takes one character, or one wrong byte, off the front. */
static void take(utf8_stream *stream, text_buffer *out)
{
    size_t size = text_utf8(stream->pending, (size_t)stream->count), used = size ? size : 1;
    if (size)
        text_bytes(out, stream->pending, size);
    else
        text_bytes(out, "\xef\xbf\xbd", 3);
    stream->count -= (int)used;
    memmove(stream->pending, stream->pending + used, (size_t)stream->count);
}

void utf8_stream_add(utf8_stream *stream, const tokenizer *t, int32_t token, text_buffer *out)
{
    size_t size;
    const char *bytes = tokenizer_token(t, token, &size);
    for (size_t i = 0; i < size; ++i) {
        stream->pending[stream->count++] = (unsigned char)bytes[i];
        while (stream->count &&
               (text_utf8(stream->pending, (size_t)stream->count) || !could_continue(stream->pending, stream->count)))
            take(stream, out);
    }
}

void utf8_stream_end(utf8_stream *stream, text_buffer *out)
{
    while (stream->count)
        take(stream, out);
}
