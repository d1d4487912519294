/*
 * JSON lines, field by field; see json_out.h.
 */
#include "json_out.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void put_text(FILE *file, const char *text, size_t length)
{
    fputc('"', file);
    for (const unsigned char *c = (const unsigned char *)text, *end = c + length; c < end; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(file, "\\%c", *c);
        else if (*c == '\n')
            fputs("\\n", file);
        else if (*c == '\t')
            fputs("\\t", file);
        else if (*c < 0x20 || *c == 0x7f)
            fprintf(file, "\\u%04x", *c);
        else
            fputc(*c, file);
    }
    fputc('"', file);
}

static void put_name(json_out *json, const char *name)
{
    if (json->comma)
        fputc(',', json->file);
    json->comma = true;
    if (!name)
        return;
    put_text(json->file, name, strlen(name));
    fputc(':', json->file);
}

json_out json_begin(FILE *file)
{
    fputc('{', file);
    return (json_out){.file = file};
}

void json_end(json_out *json)
{
    fputs("}\n", json->file);
    fflush(json->file);
}

void json_string(json_out *json, const char *name, const char *value)
{
    if (value) {
        json_text(json, name, value, strlen(value));
        return;
    }
    put_name(json, name);
    fputs("null", json->file);
}

void json_text(json_out *json, const char *name, const char *value, size_t length)
{
    put_name(json, name);
    put_text(json->file, value, length);
}

void json_int(json_out *json, const char *name, int64_t value)
{
    put_name(json, name);
    fprintf(json->file, "%" PRId64, value);
}

void shortest_double(double value, char *text, size_t size)
{
    for (int digits = 6; digits <= 17; digits++) { /* few digits are enough for most */
        snprintf(text, size, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
}

void json_double(json_out *json, const char *name, double value)
{
    put_name(json, name);
    if (!isfinite(value)) {
        fputs("null", json->file);
        return;
    }
    char text[40];
    shortest_double(value, text, sizeof text);
    fputs(text, json->file);
}

void json_bool(json_out *json, const char *name, bool value)
{
    put_name(json, name);
    fputs(value ? "true" : "false", json->file);
}

void json_open(json_out *json, const char *name, char bracket)
{
    put_name(json, name);
    fputc(bracket, json->file);
    json->comma = false;
}

void json_close(json_out *json, char bracket)
{
    fputc(bracket, json->file);
    json->comma = true;
}
