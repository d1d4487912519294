#define _GNU_SOURCE
#include "publish.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "text.h"

static const char fresh_suffix[] = "fattn-new", old_suffix[] = "fattn-old";

/* --------------------------------------------------------------------------------------------------------------- paths */

static char *with_suffix(const char *folder, const char *suffix)
{
    text_buffer path = {0};
    text_format(&path, "%s.%s", folder, suffix);
    return path.bytes;
}

char *path_join(const char *folder, const char *name)
{
    text_buffer path = {0};
    text_format(&path, "%s/%s", folder, name);
    return path.bytes;
}

char *path_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    return !slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

bool path_is_name(const char *name)
{
    return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

bool path_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

/* A file that cannot be opened was named wrongly; one that was opened and not written is nobody's mistake. */
static bool cannot_write(const char *path, const FILE *stream, int reason)
{
    return train_fail_as(stream ? TRAIN_ERROR_WORK : TRAIN_ERROR_GIVEN, "%s: %s", path, strerror(reason));
}

bool path_write(const char *path, const void *bytes, size_t size)
{
    FILE *stream = fopen(path, "wb");
    bool written =
        stream && (size == 0 || fwrite(bytes, size, 1, stream) == 1) && fflush(stream) == 0 && fsync(fileno(stream)) == 0;
    int reason = errno;
    if (stream)
        fclose(stream);
    return written || cannot_write(path, stream, reason);
}

/* Without links and trailing slashes, so that suffixes can be added. */
static char *plain_path(const char *folder)
{
    char *real = realpath(folder, NULL);
    if (real)
        return real;
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/')
        --length;
    return strndup(folder, length);
}

static bool sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool synced = fd >= 0 && fsync(fd) == 0;
    int reason = errno;
    if (fd >= 0)
        close(fd);
    return synced || train_fail("%s: %s", path, strerror(reason));
}

static void sync_parent(const char *path)
{
    char *parent = path_folder(path);
    sync_folder(parent);
    free(parent);
}

/* ----------------------------------------------------------------------------------------------------------- replacing */

static bool is_listed(const char *name, const char *const *names)
{
    for (; *names; ++names)
        if (strcmp(name, *names) == 0)
            return true;
    return false;
}

/* Removes an outdated folder; what is not among the names moves to `keep`, if that exists. */
static void retire(const char *path, const char *keep, const char *const *names)
{
    DIR *directory = opendir(path);
    if (!directory)
        return;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!path_is_name(entry->d_name))
            continue;
        char *from = path_join(path, entry->d_name), *to = path_join(keep, entry->d_name);
        if (is_listed(entry->d_name, names))
            unlink(from);
        else if (!path_exists(to))
            rename(from, to);
        free(from);
        free(to);
    }
    closedir(directory);
    rmdir(path);
}

void publish_recover(const char *folder)
{
    char *path = plain_path(folder), *old = with_suffix(path, old_suffix);
    if (!path_exists(path) && path_exists(old))
        rename(old, path);
    free(old);
    free(path);
}

static bool make_folder(const char *path)
{
    return mkdir(path, 0777) == 0 || train_fail("%s: %s", path, strerror(errno));
}

/* Whether the folder has entries but the spared one. */
static bool holds_something(const char *path, const char *spared)
{
    DIR *directory = opendir(path);
    int entries = directory ? 0 : 1;
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        entries += path_is_name(entry->d_name) && (!spared || strcmp(entry->d_name, spared) != 0);
    if (directory)
        closedir(directory);
    return entries > 0;
}

bool publish_possible(const char *folder, const char *mark, const char *spared, const char *what)
{
    char *path = plain_path(folder), *marked = path_join(path, mark), *fresh = with_suffix(path, fresh_suffix);
    bool possible = true;
    if (path_exists(path) && !path_exists(marked) && holds_something(path, spared))
        possible = train_fail("%s: exists and is no %s", folder, what);
    if (possible && !path_exists(fresh)) {
        possible = make_folder(fresh);
        rmdir(fresh);
    }
    free(fresh);
    free(marked);
    free(path);
    return possible;
}

bool publish_begin(publishing *p, const char *folder, const char *const *names)
{
    publish_recover(folder);
    *p = (publishing){.folder = plain_path(folder), .names = names};
    p->fresh = with_suffix(p->folder, fresh_suffix);
    retire(p->fresh, p->folder, names);
    return make_folder(p->fresh);
}

static bool exchange(const publishing *p)
{
    bool done = rename(p->fresh, p->folder) == 0; /* there is none yet, or an empty one */
    if (!done && renameat2(AT_FDCWD, p->fresh, AT_FDCWD, p->folder, RENAME_EXCHANGE) == 0) {
        sync_parent(p->folder);
        retire(p->fresh, p->folder, p->names);
        done = true;
    }
    if (!done) {
        char *old = with_suffix(p->folder, old_suffix);
        retire(old, p->folder, p->names);
        done = rename(p->folder, old) == 0 && rename(p->fresh, p->folder) == 0;
        if (done)
            retire(old, p->folder, p->names);
        free(old);
    }
    if (!done)
        return train_fail("%s: %s", p->folder, strerror(errno));
    sync_parent(p->folder);
    return true;
}

bool publish_end(publishing *p, bool good)
{
    good = good && sync_folder(p->fresh) && exchange(p);
    if (!good)
        retire(p->fresh, p->folder, p->names);
    free(p->fresh);
    free(p->folder);
    *p = (publishing){0};
    return good;
}

/* ---------------------------------------------------------------------------------------------------------------- files */

static bool write_fresh(const char *fresh, const char *place, bool (*write)(void *user, FILE *stream), void *user)
{
    FILE *stream = fopen(fresh, "wb");
    bool good = stream && write(user, stream) && fflush(stream) == 0 && fsync(fileno(stream)) == 0;
    int reason = errno;
    if (stream && fclose(stream) != 0 && good) {
        reason = errno;
        good = false;
    }
    if (good && rename(fresh, place) != 0) {
        reason = errno;
        good = false;
    }
    if (!good && stream)
        unlink(fresh);
    return good || cannot_write(place, stream, reason);
}

bool publish_file(const char *path, bool (*write)(void *user, FILE *stream), void *user)
{
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return train_fail("%s: exists and is no regular file", path);
    char *real = realpath(path, NULL), *place = real ? real : strdup(path), *fresh = with_suffix(place, fresh_suffix);
    const bool good = write_fresh(fresh, place, write, user);
    if (good)
        sync_parent(place);
    free(fresh);
    free(place);
    return good;
}
