/*
 * Bytes as the file of `fattn train --config`. Settings that are accepted can be printed, and what was printed gives the same
 * settings.
 */
#include "cli/cli.h"
#include "cli/train_settings.h"
#include "fuzz.h"

#include <stdarg.h>
#include <string.h>

/* The program's own would print a line for each of a million inputs. */
static char reported[2048];

void cli_error(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(reported, sizeof reported, format, list);
    va_end(list);
}

void cli_note(const char *format, ...)
{
    (void)format;
}

static bool read_settings(train_settings *s, const char *path)
{
    char name[] = "train", option[] = "--config", copy[64];
    char *argv[] = {name, option, copy, NULL};
    int status = -1;
    snprintf(copy, sizeof copy, "%s", path);
    *reported = 0;
    const bool good = train_settings_read(s, 3, argv, &status);
    FUZZ_CHECK(good || (status == CLI_WRONG && *reported), "status %d", status);
    return good;
}

static text_buffer print_settings(const train_settings *s)
{
    text_buffer json = {0};
    text_format(&json, "{");
    train_settings_json(s, &json);
    text_format(&json, "}");
    return json;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    train_settings first, second;
    if (read_settings(&first, fuzz_file(0, data, size))) {
        text_buffer json = print_settings(&first);
        FUZZ_CHECK(read_settings(&second, fuzz_file(1, json.bytes, json.length)), "%s in %s", reported, json.bytes);
        text_buffer again = print_settings(&second);
        FUZZ_CHECK(strcmp(json.bytes, again.bytes) == 0, "%s\n%s", json.bytes, again.bytes);
        text_free(&again);
        text_free(&json);
        train_settings_free(&second);
    }
    train_settings_free(&first);
    return 0;
}
