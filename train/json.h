/*
 * The one JSON object that a file of others consists of.
 */
#ifndef TRAIN_JSON_H
#define TRAIN_JSON_H

#include <stddef.h>

#include <cjson/cJSON.h>

/* For cJSON_Delete(). NULL, with train_error() set, which `label` begins, for anything else, such as an object and something
 * behind it. */
cJSON *json_object(const char *json, size_t size, const char *label);

#endif
