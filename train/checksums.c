#include "checksums.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "error.h"
#include "publish.h"
#include "sha256.h"
#include "text.h"

enum { CHECKSUMS_MOST_BYTES = 1 << 20, DIGITS = 64 };

bool checksums_write(const char *folder, const char *const *names,
                     void (*each)(void *user, const char *name, const char *sha256), void *user)
{
    text_buffer list = {0};
    bool good = true;
    text_bytes(&list, "", 0);
    for (int i = 0; names[i] && good; ++i) {
        char digest[DIGITS + 1], *path = path_join(folder, names[i]);
        good = sha256_file(path, digest);
        free(path);
        text_format(&list, "%s  %s\n", digest, names[i]);
        if (good && each)
            each(user, names[i], digest);
    }
    char *path = path_join(folder, CHECKSUMS_NAME);
    good = good && path_write(path, list.bytes, list.length);
    free(path);
    text_free(&list);
    return good;
}

/* Splits "digest  name" or "digest *name"; NULL if it is neither. */
static char *split_line(char *line)
{
    if (strspn(line, "0123456789abcdefABCDEF") != DIGITS || line[DIGITS] != ' ' ||
        (line[DIGITS + 1] != ' ' && line[DIGITS + 1] != '*'))
        return NULL;
    line[DIGITS] = 0;
    for (char *digit = line; *digit; ++digit)
        *digit |= 0x20; /* small letters; digits stay what they are */
    return path_is_name(line + DIGITS + 2) ? line + DIGITS + 2 : NULL;
}

bool checksums_parse(char *text, size_t size, const char *label, bool (*each)(void *user, const char *name, const char *sha256),
                     void *user)
{
    char *const end = text + size;
    for (int number = 1; text < end; ++number) {
        char *stop = memchr(text, '\n', (size_t)(end - text));
        const bool whole = stop && !memchr(text, 0, (size_t)(stop - text));
        if (whole)
            *stop = 0;
        char *name = whole ? split_line(text) : NULL;
        if (!name)
            return train_fail("%s: line %d is not a SHA-256, two spaces and the name of a file in this folder", label, number);
        if (!each(user, name, text))
            return false;
        text = stop + 1;
    }
    return true;
}

static bool verify(void *user, const char *name, const char *wanted)
{
    char digest[DIGITS + 1], *path = path_join(user, name);
    bool good = sha256_file(path, digest);
    if (good && strcmp(digest, wanted) != 0)
        good = train_fail("%s: its SHA-256 is %s, but " CHECKSUMS_NAME " says %s", path, digest, wanted);
    free(path);
    return good;
}

bool checksums_verify(const char *folder)
{
    char *path = path_join(folder, CHECKSUMS_NAME);
    size_t size;
    bool good = true;
    if (path_exists(path)) {
        char *text = config_slurp(path, CHECKSUMS_MOST_BYTES, &size);
        good = text && checksums_parse(text, size, path, verify, (void *)(uintptr_t)folder);
        free(text);
    }
    free(path);
    return good;
}
