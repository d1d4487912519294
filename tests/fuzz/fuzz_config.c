/*
 * Bytes as a configuration file: a flat JSON object. What is accepted can be written and read again.
 */
#include "fuzz.h"
#include "train/config.h"
#include "train/error.h"

#include <string.h>

static bool is_utf8(const uint8_t *data, size_t size)
{
    for (size_t i = 0, step; i < size; i += step)
        if ((step = text_utf8(data + i, size - i)) == 0)
            return false;
    return true;
}

static void check_written(const config_set *c)
{
    text_buffer json = {0};
    config_set again;
    text_format(&json, "{");
    for (int i = 0; i < c->count; i++) {
        text_format(&json, i ? "," : "");
        config_write_pair(&json, c->pairs[i].key, c->pairs[i].value, true);
    }
    text_format(&json, "}");
    FUZZ_CHECK(config_parse(json.bytes, json.length, "written", &again), "%s in %s", train_error(), json.bytes);
    FUZZ_CHECK(again.count == c->count);
    for (int i = 0; i < c->count; i++) {
        const char *value = config_find(&again, c->pairs[i].key);
        FUZZ_CHECK(value && strcmp(value, c->pairs[i].value) == 0, "key '%s'", c->pairs[i].key);
    }
    config_free(&again);
    text_free(&json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    config_set c;
    char *bytes = fuzz_guarded(data, size);
    if (config_parse(bytes, size, "input", &c)) {
        for (int i = 0; i < c.count; i++)
            FUZZ_CHECK(config_find(&c, c.pairs[i].key) == c.pairs[i].value);
        /* Other bytes than UTF-8 are replaced when written. */
        if (is_utf8(data, size))
            check_written(&c);
        config_free(&c);
    } else {
        FUZZ_CHECK(c.count == 0 && !c.pairs && *train_error());
    }
    fuzz_unguarded(bytes, size);
    return 0;
}
