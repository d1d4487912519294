/*
 * Guard pages and files in memory.
 */
#define _GNU_SOURCE
#include "fuzz.h"

#include <dirent.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Pages for `size` bytes and one more that may not be touched; the bytes end where that one begins. */
static size_t guarded_pages(size_t size)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

static void *guarded(size_t size)
{
    const size_t pages = guarded_pages(size), page = (size_t)sysconf(_SC_PAGESIZE);
    char *all = mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FUZZ_CHECK(all != MAP_FAILED);
    FUZZ_CHECK(mprotect(all + pages, page, PROT_NONE) == 0);
    return all + pages - size;
}

void *fuzz_guarded(const void *bytes, size_t size)
{
    char *copy = guarded(size);
    if (size)
        memcpy(copy, bytes, size);
    return copy;
}

void fuzz_unguarded(void *copy, size_t size)
{
    const size_t pages = guarded_pages(size), page = (size_t)sysconf(_SC_PAGESIZE);
    FUZZ_CHECK(munmap((char *)copy + size - pages, pages + page) == 0);
}

/* -------------------------------------------------------------------------------------------------------------- files */

const char *fuzz_file(int index, const void *bytes, size_t size)
{
    static int files[FUZZ_FILES];
    static char paths[FUZZ_FILES][64];
    if (!*paths[index]) {
        files[index] = memfd_create("input", 0);
        FUZZ_CHECK(files[index] >= 0);
        snprintf(paths[index], sizeof paths[index], "/proc/self/fd/%d", files[index]);
    }
    FUZZ_CHECK(ftruncate(files[index], 0) == 0);
    FUZZ_CHECK(pwrite(files[index], bytes, size, 0) == (ssize_t)size);
    return paths[index];
}

static char folder[256];
static pid_t folder_owner;

static void remove_folder(void)
{
    if (folder_owner != getpid())
        return;
    DIR *directory = opendir(folder);
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        unlinkat(dirfd(directory), entry->d_name, 0);
    if (directory)
        closedir(directory);
    rmdir(folder);
}

const char *fuzz_folder(void)
{
    if (!*folder) {
        const char *above = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%s/fattn-fuzz-XXXXXX", above && strlen(above) < 200 ? above : P_tmpdir);
        FUZZ_CHECK(mkdtemp(folder) != NULL);
        folder_owner = getpid();
        atexit(remove_folder);
    }
    return folder;
}

void fuzz_link(const char *name, int index)
{
    char path[320];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    unlink(path);
    FUZZ_CHECK(symlink(fuzz_file(index, "", 0), path) == 0);
}
