/*
 * Settings as pairs of texts: presets, and flat JSON objects of numbers, booleans and strings. The program's table of options
 * gives them their meaning, so that a preset, a configuration file, a checkpoint and the command line all say the same thing
 * in the same words.
 */
#ifndef TRAIN_CONFIG_H
#define TRAIN_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "text.h"

typedef struct config_pair {
    const char *key, *value;
} config_pair;

typedef struct config_set {
    config_pair *pairs;
    int count;
} config_set;

/* The settings of a preset, ended by a pair without key; NULL if there is none of that name. */
const config_pair *config_preset(const char *name);
/* The names of the presets, NULL at the end. */
const char *const *config_preset_names(void);

/* Reads a flat JSON object; `label` begins the messages. False, with train_error() set, for anything else: nested values, a
 * key that occurs twice. */
bool config_parse(const char *json, size_t size, const char *label, config_set *c);
bool config_read(const char *path, config_set *c);
void config_free(config_set *c);
/* NULL if there is no such key. */
const char *config_find(const config_set *c, const char *key);

/* Appends "key":value to an object under construction; the value goes in as a number or true or false if it is one, else as a
 * string. */
void config_write_pair(text_buffer *json, const char *key, const char *value, bool is_text);

/* A whole file. NULL, with train_error() set, if it cannot be read or is larger than `most`; else the caller frees it. One
 * zero byte follows the *size bytes. */
char *config_slurp(const char *path, size_t most, size_t *size);

#endif
