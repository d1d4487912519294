/*
 * A growing string, with what writing JSON by hand needs. Running out of memory ends the program: there is no state worth
 * saving in the places that build text.
 */
#ifndef TRAIN_TEXT_H
#define TRAIN_TEXT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct text_buffer {
    char *bytes; /* always ends in a zero byte once anything was added */
    size_t length;
    size_t room;
} text_buffer;

void text_bytes(text_buffer *t, const void *bytes, size_t count);
__attribute__((format(printf, 2, 3))) void text_format(text_buffer *t, const char *format, ...);

/* A JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD, so the result is always valid JSON. */
void text_json_string(text_buffer *t, const char *bytes, size_t count);

/* A number as JSON: the shortest of %.9g and %.17g that reads back the same; null if not finite. */
void text_json_number(text_buffer *t, double value);

void text_free(text_buffer *t);

/* The bytes of the valid UTF-8 character that starts at `bytes`; 0 if none does, or if `count` ends inside it. */
size_t text_utf8(const void *bytes, size_t count);

/* Whether a text ends with another one, and is longer. */
bool text_ends(const char *text, const char *ending);

/* Memory or the end of the program, with a message. */
void *text_alloc(size_t size);
/* An array with room for one more item of `size` bytes: the same one, or a larger one in its place. */
void *text_room(void *items, size_t count, size_t *room, size_t size);

#endif
