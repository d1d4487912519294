/*
 * Status names, the version, and the thread's last error message.
 */
#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>

#define TEXT(x)  #x
#define VALUE(x) TEXT(x)

static _Thread_local char last_error[512];

fattn_status fattn_fail(fattn_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(last_error, sizeof last_error, format, list);
    va_end(list);
    return status;
}

const char *fattn_last_error(void)
{
    return last_error;
}

const char *fattn_status_name(fattn_status status)
{
    switch (status) {
    case FATTN_OK:
        return "FATTN_OK";
    case FATTN_ERROR_ARGUMENT:
        return "FATTN_ERROR_ARGUMENT";
    case FATTN_ERROR_UNSUPPORTED:
        return "FATTN_ERROR_UNSUPPORTED";
    case FATTN_ERROR_WORKSPACE:
        return "FATTN_ERROR_WORKSPACE";
    case FATTN_ERROR_MEMORY:
        return "FATTN_ERROR_MEMORY";
    case FATTN_ERROR_SYSTEM:
        return "FATTN_ERROR_SYSTEM";
    }
    return "unknown status";
}

const char *fattn_version(void)
{
    return VALUE(FATTN_VERSION_MAJOR) "." VALUE(FATTN_VERSION_MINOR) "." VALUE(FATTN_VERSION_PATCH);
}
