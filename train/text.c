/*
 * The growing string: doubling buffer, printf into it, and JSON escapes.
 */
#include "text.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *text_alloc(size_t size)
{
    void *memory = calloc(1, size ? size : 1);
    if (!memory) {
        fprintf(stderr, "fattn: out of memory: %zu bytes\n", size);
        exit(1);
    }
    return memory;
}

void *text_room(void *items, size_t count, size_t *room, size_t size)
{
    if (count < *room)
        return items;
    *room = *room ? 2 * *room : 64;
    void *larger = text_alloc(*room * size);
    if (count)
        memcpy(larger, items, count * size);
    free(items);
    return larger;
}

static void reserve(text_buffer *t, size_t more)
{
    if (t->length + more + 1 <= t->room)
        return;
    size_t room = t->room ? t->room : 256;
    while (room < t->length + more + 1)
        room *= 2;
    char *bytes = realloc(t->bytes, room);
    if (!bytes) {
        fprintf(stderr, "fattn: out of memory: %zu bytes\n", room);
        exit(1);
    }
    t->bytes = bytes;
    t->room = room;
}

void text_bytes(text_buffer *t, const void *bytes, size_t count)
{
    reserve(t, count);
    if (count)
        memcpy(t->bytes + t->length, bytes, count);
    t->length += count;
    t->bytes[t->length] = 0;
}

void text_format(text_buffer *t, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int need = vsnprintf(NULL, 0, format, list);
    va_end(list);
    if (need < 0)
        return;
    reserve(t, (size_t)need);
    va_start(list, format);
    vsnprintf(t->bytes + t->length, (size_t)need + 1, format, list);
    va_end(list);
    t->length += (size_t)need;
}

size_t text_utf8(const void *bytes, size_t count)
{
    const unsigned char *p = bytes;
    if (count == 0)
        return 0;
    if (p[0] < 0x80)
        return 1;
    size_t size = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || size > count)
        return 0;
    for (size_t i = 1; i < size; ++i)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    /* Overlong forms, surrogates, and what lies above U+10FFFF. */
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return size;
}

void text_json_string(text_buffer *t, const char *bytes, size_t count)
{
    text_bytes(t, "\"", 1);
    for (size_t i = 0; i < count;) {
        unsigned char c = (unsigned char)bytes[i];
        size_t size = text_utf8(bytes + i, count - i);
        if (c == '"' || c == '\\')
            text_format(t, "\\%c", c);
        else if (c == '\n')
            text_bytes(t, "\\n", 2);
        else if (c < 0x20 || c == 0x7f)
            text_format(t, "\\u%04x", c);
        else if (size == 0)
            text_bytes(t, "\xef\xbf\xbd", 3);
        else
            text_bytes(t, bytes + i, size);
        i += size ? size : 1;
    }
    text_bytes(t, "\"", 1);
}

void text_json_number(text_buffer *t, double value)
{
    char digits[40];
    if (!isfinite(value)) {
        text_bytes(t, "null", 4);
        return;
    }
    snprintf(digits, sizeof digits, "%.9g", value);
    if (strtod(digits, NULL) < value || strtod(digits, NULL) > value)
        snprintf(digits, sizeof digits, "%.17g", value);
    text_bytes(t, digits, strlen(digits));
}

void text_free(text_buffer *t)
{
    free(t->bytes);
    *t = (text_buffer){0};
}

bool text_ends(const char *text, const char *ending)
{
    const size_t length = strlen(text), size = strlen(ending);
    return length > size && strcmp(text + length - size, ending) == 0;
}
