/*
 * Files of tests; see folder.h.
 */
#define _XOPEN_SOURCE 700
#include "folder.h"
#include "support.h"
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void folder_make(char path[FOLDER_PATH])
{
    snprintf(path, FOLDER_PATH, "./scratch-XXXXXX");
    assert_non_null(mkdtemp(path));
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

void folder_remove(const char *path)
{
    assert_int_equal(nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

const char *folder_file(char path[FOLDER_PATH], const char *folder, const char *name)
{
    assert_true(snprintf(path, FOLDER_PATH, "%s/%s", folder, name) < FOLDER_PATH);
    return path;
}

char *file_read(const char *path, size_t *size)
{
    FILE *stream = fopen(path, "rb");
    if (!stream)
        fail_msg("%s: cannot be opened", path);
    assert_int_equal(fseek(stream, 0, SEEK_END), 0);
    *size = (size_t)ftell(stream);
    rewind(stream);
    char *bytes = calloc(1, *size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, stream), *size);
    fclose(stream);
    return bytes;
}

void file_write(const char *path, const void *bytes, size_t size)
{
    FILE *stream = fopen(path, "wb");
    if (!stream)
        fail_msg("%s: cannot be created", path);
    assert_int_equal(fwrite(bytes, 1, size, stream), size);
    assert_int_equal(fclose(stream), 0);
}

int file_same(const char *left, const char *right)
{
    size_t size_left, size_right;
    char *a = file_read(left, &size_left), *b = file_read(right, &size_right);
    int same = size_left == size_right && memcmp(a, b, size_left) == 0;
    free(a);
    free(b);
    return same;
}
