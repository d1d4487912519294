#include "json.h"

#include <string.h>

#include "error.h"

cJSON *json_object(const char *json, size_t size, const char *label)
{
    const char *end = NULL;
    cJSON *object = cJSON_ParseWithLengthOpts(json, size, &end, 0);
    const bool good = cJSON_IsObject(object);
    while (good && end < json + size && *end && strchr(" \t\r\n", *end))
        ++end;
    if (good && end == json + size)
        return object;
    cJSON_Delete(object);
    train_fail("%s: not one JSON object (near byte %zu)", label, end ? (size_t)(end - json) : 0);
    return NULL;
}
