/*
 * A folder for one test's files, and whole files as bytes. Everything here fails the test if the system refuses.
 */
#ifndef TESTS_TRAIN_FOLDER_H
#define TESTS_TRAIN_FOLDER_H

#include <stddef.h>

enum { FOLDER_PATH = 512 };

/* Makes a new folder under the current one; its path is in `path`. */
void folder_make(char path[FOLDER_PATH]);
/* Removes it with everything inside. */
void folder_remove(const char *path);

/* path = folder/name; returns path. */
const char *folder_file(char path[FOLDER_PATH], const char *folder, const char *name);

/* The caller frees it; a zero byte follows. */
char *file_read(const char *path, size_t *size);
void file_write(const char *path, const void *bytes, size_t size);
/* Whether both hold the same bytes. */
int file_same(const char *left, const char *right);

#endif
