/*
 * JSON lines: one flat object per line, written field by field.
 *
 *     json_out json = json_begin(stdout);
 *     json_string(&json, "op", "forward");
 *     json_int(&json, "batch", 4);
 *     json_double(&json, "ms", 12.25);
 *     json_end(&json);
 *
 * prints {"op":"forward","batch":4,"ms":12.25} and a newline, and flushes. Strings are escaped (and taken to be UTF-8). A
 * double is printed with as few digits as read back the same; NaN and infinities, which JSON lacks, become null.
 */
#ifndef FATTN_CLI_JSON_OUT_H
#define FATTN_CLI_JSON_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct json_out {
    FILE *file;
    bool comma; /* a field or an element went before */
} json_out;

json_out json_begin(FILE *file);
void json_end(json_out *json);

void json_string(json_out *json, const char *name, const char *value);              /* a NULL value is null */
void json_text(json_out *json, const char *name, const char *value, size_t length); /* may hold zero bytes */
void json_int(json_out *json, const char *name, int64_t value);
void json_double(json_out *json, const char *name, double value);
void json_bool(json_out *json, const char *name, bool value);

/* A double with as few digits, six or more, as read back the same. */
void shortest_double(double value, char *text, size_t size);

/* An array or an object as a value. Inside an array, fields are given a NULL name. */
void json_open(json_out *json, const char *name, char bracket); /* '[' or '{' */
void json_close(json_out *json, char bracket);                  /* ']' or '}' */

#endif
