/*
 * The mmap and munmap of the readers under test, by the linker's --wrap: a mapped file is a copy that ends at a page which
 * nobody may touch. A real mapping is filled up with zeros to the end of its last page, which hides reads beyond the file.
 */
#include "fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

void *__real_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset);
int __real_munmap(void *address, size_t size);
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset);
int __wrap_munmap(void *address, size_t size);

enum { COPIES_MOST = 64 };
static void *copies[COPIES_MOST];

/* The place of this address in the list; that of NULL is a free one. */
static void **find(const void *address)
{
    for (int i = 0; i < COPIES_MOST; i++)
        if (copies[i] == address)
            return &copies[i];
    return NULL;
}

void *__wrap_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset)
{
    if (file < 0)
        return __real_mmap(address, size, protection, flags, file, offset);
    char *bytes = malloc(size);
    FUZZ_CHECK(bytes && pread(file, bytes, size, offset) == (ssize_t)size);
    void **place = find(NULL);
    FUZZ_CHECK(place != NULL);
    *place = fuzz_guarded(bytes, size);
    free(bytes);
    return *place;
}

int __wrap_munmap(void *address, size_t size)
{
    void **place = find(address);
    if (!place)
        return __real_munmap(address, size);
    *place = NULL;
    fuzz_unguarded(address, size);
    return 0;
}
