/*
 * The line of the last failure and its kind, one per thread.
 */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

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
