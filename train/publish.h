/*
 * Folders and files that are replaced as a whole. The new files go to FOLDER.fattn-new and are synced; then renameat2 exchanges
 * the two names, so whoever is killed at any moment leaves a whole folder behind. Files of other names in the old folder are
 * kept. A single file is written to FILE.fattn-new, synced and renamed.
 *
 * Where the file system cannot exchange, FOLDER is first renamed to FOLDER.fattn-old; if the process dies just then,
 * publish_recover() renames it back. These names are the program's own: what somebody called FOLDER.tmp or FOLDER.old, a copy
 * of an earlier run perhaps, is not touched.
 */
#ifndef TRAIN_PUBLISH_H
#define TRAIN_PUBLISH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct publishing {
    char *folder, *fresh;     /* without links and trailing slashes; where the new files go */
    const char *const *names; /* of the files that are replaced, NULL at the end */
} publishing;

/* Better now than after the first hour: can a folder be made there, and does nothing get lost? False, with train_error() set,
 * if it exists and holds something else than a file `mark`, or an entry `spared` (NULL: none); `what` says what it is not. */
bool publish_possible(const char *folder, const char *mark, const char *spared, const char *what);
/* Makes an empty FOLDER.fattn-new. False, with train_error() set, if it cannot; publish_end() is due in any case. */
bool publish_begin(publishing *p, const char *folder, const char *const *names);
/* good: all files are written, and it becomes FOLDER; else it goes away. Returns whether FOLDER is the new one. */
bool publish_end(publishing *p, bool good);
/* Undoes what a process that died left half done. */
void publish_recover(const char *folder);

/* A file that `write` fills; errno says why it could not. False, with train_error() set: what stood there is as it was. */
bool publish_file(const char *path, bool (*write)(void *user, FILE *stream), void *user);

/* folder/name; the caller frees it. */
char *path_join(const char *folder, const char *name);
/* The folder of a path, "." if it has none; the caller frees it. */
char *path_folder(const char *path);
/* A name of a file within a folder: no separator, and neither "", "." nor "..". */
bool path_is_name(const char *name);
bool path_exists(const char *path);
/* Writes a whole file and syncs it. */
bool path_write(const char *path, const void *bytes, size_t size);

#endif
