/*
 * Bytes to tokens and back to printable text.
 */
#include "tokenizer.h"

#include <string.h>

#include "text.h"

void tokenizer_encode(const char *bytes, size_t size, int32_t *tokens)
{
    for (size_t i = 0; i < size; ++i)
        tokens[i] = (unsigned char)bytes[i];
}

/* Whether the pending bytes may still become a character. */
static int could_continue(const unsigned char *bytes, int count)
{
    int size = bytes[0] >= 0xf0 && bytes[0] <= 0xf4 ? 4 : bytes[0] >= 0xe0 ? 3 : bytes[0] >= 0xc2 ? 2 : 1;
    if (bytes[0] > 0xf4 || count >= size)
        return 0;
    for (int i = 1; i < count; ++i)
        if ((bytes[i] & 0xc0) != 0x80)
            return 0;
    return 1;
}

/* Takes one character, or one wrong byte, off the front. */
static size_t take(utf8_stream *stream, char *out)
{
    size_t size = text_utf8(stream->pending, (size_t)stream->count), used = size ? size : 1;
    if (size)
        memcpy(out, stream->pending, size);
    else
        memcpy(out, "\xef\xbf\xbd", 3);
    stream->count -= (int)used;
    memmove(stream->pending, stream->pending + used, (size_t)stream->count);
    return size ? size : 3;
}

size_t utf8_stream_add(utf8_stream *stream, int32_t token, char out[UTF8_STREAM_MAX])
{
    size_t length = 0;
    if (token < 0 || token > 255)
        return 0;
    stream->pending[stream->count++] = (unsigned char)token;
    while (stream->count &&
           (text_utf8(stream->pending, (size_t)stream->count) || !could_continue(stream->pending, stream->count)))
        length += take(stream, out + length);
    return length;
}

size_t utf8_stream_end(utf8_stream *stream, char out[UTF8_STREAM_MAX])
{
    size_t length = 0;
    while (stream->count)
        length += take(stream, out + length);
    return length;
}
