/*
 * What holds for the status of every call.
 */
#ifndef FATTN_TESTS_FUZZ_STATUS_H
#define FATTN_TESTS_FUZZ_STATUS_H

#include <string.h>

#include "fattn/fattn.h"
#include "fuzz.h"

/* Sets the last error to something that no call below would say of itself. */
static inline void forget_error(void)
{
    size_t bytes;
    FUZZ_CHECK(fattn_workspace_size(NULL, NULL, FATTN_OP_FORWARD, &bytes) == FATTN_ERROR_ARGUMENT);
}

/* An error has a name and a message, one line, of its own. */
static inline fattn_status checked(fattn_status status)
{
    const char *text = fattn_last_error();
    if (status != FATTN_OK) {
        FUZZ_CHECK(strcmp(fattn_status_name(status), "unknown status") != 0, "%d", (int)status);
        FUZZ_CHECK(*text && !strchr(text, '\n') && strcmp(text, "context is NULL") != 0, "\"%s\"", text);
    }
    return status;
}

#endif
