/*
 * SHA256SUMS, as sha256sum writes and checks it: a line of 64 hexadecimal digits, two spaces and a name for each file of the
 * folder.
 */
#ifndef TRAIN_CHECKSUMS_H
#define TRAIN_CHECKSUMS_H

#include <stdbool.h>
#include <stddef.h>

#define CHECKSUMS_NAME "SHA256SUMS"

/* Measures these files (NULL at the end) of the folder and writes the list beside them. `each` hears of every file; NULL:
 * nobody does. */
bool checksums_write(const char *folder, const char *const *names,
                     void (*each)(void *user, const char *name, const char *sha256), void *user);

/* Verifies every file that the folder's list names; a folder without a list is as good as it is. False, with train_error()
 * set, for a file that is missing or altered, and for a list that is none. */
bool checksums_verify(const char *folder);

/* A list: calls `each` for every line, until that returns false. False also for anything that is no list. */
bool checksums_parse(char *text, size_t size, const char *label, bool (*each)(void *user, const char *name, const char *sha256),
                     void *user);

#endif
