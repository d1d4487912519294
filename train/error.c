/*
 * The line of the last failure and its kind, one per thread.
 */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static _Thread_local char line[768];
static _Thread_local train_error_class line_kind;

const char *train_error(void)
{
    return line;
}

train_error_class train_error_kind(void)
{
    return line_kind;
}

/* Names out of files may hold anything; a newline would end the line, and an escape would command the terminal. */
static void defuse(char *text)
{
    for (; *text; ++text)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

static void set_line(train_error_class kind, const char *format, va_list list)
{
    /* Composed apart, since an argument may be the line itself. */
    char text[sizeof line];
    vsnprintf(text, sizeof text, format, list);
    defuse(text);
    snprintf(line, sizeof line, "%s", text);
    line_kind = kind;
}

bool train_fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    set_line(TRAIN_ERROR_GIVEN, format, list);
    va_end(list);
    return false;
}

bool train_fail_as(train_error_class kind, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    set_line(kind, format, list);
    va_end(list);
    return false;
}

bool train_fail_for(const char *format, ...)
{
    char what[sizeof line / 2];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    return line_kind == TRAIN_ERROR_WORK && train_fail_as(line_kind, "%s, for %s", line, what);
}

void *train_calloc(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory)
        train_fail_as(TRAIN_ERROR_WORK, "no memory: %zu times %zu bytes are needed", count, size);
    return memory;
}
