/*
 * The line of the last failure, one per thread.
 */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char line[768];

const char *train_error(void)
{
    return line;
}

bool train_fail(const char *format, ...)
{
    /* Composed apart, since an argument may be the line itself. */
    char text[sizeof line];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    snprintf(line, sizeof line, "%s", text);
    return false;
}
