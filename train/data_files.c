/*
 * Opening the files of data.
 */
#include "data_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"

enum { BIN_HEADER = BIN_NUMBERS * 4, NPY_HEADER_MOST = 1 << 16 };

/* GPT-2's and Llama 3's. Without a header a file would begin with token 55432 or 55713, which GPT-2's 50257 are below. */
const bin_format bin_formats[BIN_FORMATS] = {{20240520, 1, 2}, {20240801, 7, 4}};

/* Maps a regular file; an empty one has bytes NULL. */
static bool map_piece(const char *path, piece *p)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused, not waited for */
    bool opened = fd >= 0 && fstat(fd, &info) == 0;
    if (opened && S_ISREG(info.st_mode) && info.st_size > 0) {
        p->map_size = (size_t)info.st_size;
        p->map = mmap(NULL, p->map_size, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    int reason = errno;
    if (fd >= 0)
        close(fd);
    if (!opened || p->map == MAP_FAILED) {
        p->map = NULL;
        return train_fail("%s: %s", path, strerror(reason));
    }
    if (!S_ISREG(info.st_mode))
        return train_fail(S_ISDIR(info.st_mode) ? "%s: is a folder" : "%s: neither a file nor a folder", path);
    p->bytes = p->map;
    return true;
}

/* ------------------------------------------------------------------------------------------------------------------ tokens */

int64_t piece_token(const piece *p, int64_t index)
{
    const unsigned char *bytes = p->bytes + index * p->width;
    uint16_t two;
    uint32_t four;
    int64_t eight;
    switch (p->width) {
    case 1:
        return *bytes;
    case 2:
        memcpy(&two, bytes, 2);
        return two;
    case 4:
        memcpy(&four, bytes, 4);
        return p->is_signed ? (int32_t)four : (int64_t)four;
    default:
        memcpy(&eight, bytes, 8);
        return eight;
    }
}

static bool open_bin(piece *p)
{
    int32_t header[3] = {0};
    const size_t begins = p->map_size < sizeof header ? p->map_size : sizeof header;
    const bin_format *format = bin_formats;
    if (begins)
        memcpy(header, p->bytes, begins);
    while (format < bin_formats + BIN_FORMATS && format->magic != header[0])
        ++format;
    p->width = 2;
    p->tokens = (int64_t)p->map_size / 2;
    if (format == bin_formats + BIN_FORMATS)
        return p->map_size % 2 == 0 || train_fail("%s: %zu bytes are no whole number of 16-bit tokens", p->name, p->map_size);
    if (header[1] != format->version)
        return train_fail("%s: token file %d of version %d, only %d is known", p->name, format->magic, header[1],
                          format->version);
    if (header[2] < 0 || p->map_size != BIN_HEADER + (size_t)format->width * (size_t)header[2])
        return train_fail("%s: %zu bytes, but its header says %d tokens of %d bytes from byte %d on", p->name, p->map_size,
                          header[2], format->width, BIN_HEADER);
    p->bytes += BIN_HEADER;
    p->tokens = header[2];
    p->width = format->width;
    return true;
}

/* What follows 'key': in the header's dictionary. */
static const char *npy_value(const char *header, const char *key)
{
    const char *at = strstr(header, key);
    if (!at)
        return "not said";
    at += strlen(key);
    at += strspn(at, " ");
    return *at == ':' ? at + 1 + strspn(at + 1, " ") : "not said";
}

/* How much of a value a message shows: its text, or what its brackets hold. */
static int value_length(const char *value)
{
    const char *end = strpbrk(value, *value == '(' ? ")" : *value == '[' ? "]" : ",}");
    const size_t length = !end ? strlen(value) : (size_t)(end - value) + (*value == '(' || *value == '[');
    return length < 40 ? (int)length : 40;
}

static bool read_npy_type(piece *p, const char *type)
{
    static const struct {
        const char *name;
        int width;
        bool is_signed;
    } types[] = {{"'<u2'", 2, false}, {"'<u4'", 4, false}, {"'<i4'", 4, true}, {"'<i8'", 8, true}};
    for (int i = 0; i < 4; ++i)
        if (strncmp(type, types[i].name, strlen(types[i].name)) == 0) {
            p->width = types[i].width;
            p->is_signed = types[i].is_signed;
            return true;
        }
    return train_fail("%s: its type is %.*s, not '<u2', '<u4', '<i4' or '<i8'", p->name, value_length(type), type);
}

static bool read_npy_header(piece *p, const char *header, size_t data)
{
    const char *shape = npy_value(header, "'shape'");
    char *end = NULL;
    if (!read_npy_type(p, npy_value(header, "'descr'")))
        return false;
    errno = 0;
    const long long count = *shape == '(' && shape[1] >= '0' && shape[1] <= '9' ? strtoll(shape + 1, &end, 10) : -1;
    if (!end || errno || strncmp(end, ",)", 2) != 0)
        return train_fail("%s: its shape is %.*s, not one dimension", p->name, value_length(shape), shape);
    if (count > (long long)(p->map_size / (size_t)p->width) || p->map_size != data + (size_t)count * (size_t)p->width)
        return train_fail("%s: %zu bytes, but its header says %lld tokens of %d bytes from byte %zu on", p->name, p->map_size,
                          count, p->width, data);
    p->bytes += data;
    p->tokens = count;
    return true;
}

static bool open_npy(piece *p)
{
    const unsigned char *b = p->bytes;
    if (p->map_size < 12 || memcmp(b, "\x93NUMPY", 6) != 0)
        return train_fail("%s: no .npy file: it does not begin with \\x93NUMPY", p->name);
    if (b[6] < 1 || b[6] > 3)
        return train_fail("%s: .npy of version %d, only 1 to 3 are known", p->name, b[6]);
    const size_t first = b[6] == 1 ? 10 : 12;
    size_t size = (size_t)(b[8] | b[9] << 8);
    if (b[6] > 1)
        size |= (size_t)b[10] << 16 | (size_t)b[11] << 24;
    if (size > NPY_HEADER_MOST || size > p->map_size - first)
        return train_fail("%s: a header of %zu bytes in a file of %zu", p->name, size, p->map_size);
    char *header = text_alloc(size + 1);
    memcpy(header, b + first, size);
    const bool good = read_npy_header(p, header, first + size);
    free(header);
    return good;
}

/* The largest token, and that none is below 0 or beyond 31 bits. */
static bool measure(piece *p)
{
    p->most = -1;
    for (int64_t i = 0; i < p->tokens; ++i) {
        const int64_t token = piece_token(p, i);
        if (token < 0 || token > INT32_MAX)
            return train_fail("%s: token %lld is %lld, but must be 0 .. %d", p->name, (long long)i, (long long)token,
                              INT32_MAX);
        if (token > p->most) {
            p->most = token;
            p->most_at = i;
        }
    }
    return true;
}

/* -------------------------------------------------------------------------------------------------------------------- text */

static void unmap(piece *p)
{
    if (p->map)
        munmap(p->map, p->map_size);
    p->map = NULL;
}

/* Text of `size` bytes at p->bytes. */
static bool open_text(piece *p, size_t size, tokenizer *t)
{
    token_list list = {0};
    p->text = true;
    p->width = 1;
    p->tokens = (int64_t)size;
    p->most = TOKENIZER_VOCAB - 1;
    if (tokenizer_is_bytes(t))
        return true;
    tokenizer_encode(t, (const char *)p->bytes, size, true, &list);
    unmap(p);
    free(p->owned);
    p->owned = list.ids;
    p->bytes = (const unsigned char *)list.ids;
    p->tokens = (int64_t)list.count;
    p->width = 4;
    p->is_signed = true;
    return measure(p);
}

/* -------------------------------------------------------------------------------------------------------------------- lists */

static piece *add_piece(piece_list *list, const char *name)
{
    list->pieces = text_room(list->pieces, (size_t)list->count, &list->room, sizeof *list->pieces);
    piece *p = &list->pieces[list->count++];
    *p = (piece){.name = text_alloc(strlen(name) + 1), .end = -1};
    memcpy(p->name, name, strlen(name) + 1);
    return p;
}

static bool is_tokens(const char *name)
{
    return text_ends(name, ".bin") || text_ends(name, ".npy");
}

static bool open_file(piece_list *list, const char *path, tokenizer *t, int32_t end)
{
    piece *p = add_piece(list, path);
    if (!map_piece(path, p))
        return false;
    if (text_ends(path, ".bin"))
        return open_bin(p) && measure(p);
    if (text_ends(path, ".npy"))
        return open_npy(p) && measure(p);
    p->end = end;
    return open_text(p, p->map_size, t);
}

bool pieces_add_text(piece_list *list, const char *name, char *text, size_t size, tokenizer *t)
{
    piece *p = add_piece(list, name);
    p->owned = text;
    p->bytes = (const unsigned char *)text;
    return open_text(p, size, t);
}

static int only_data(const struct dirent *entry)
{
    return text_ends(entry->d_name, ".txt") || is_tokens(entry->d_name);
}

/* By bytes, not by the locale, so that the order is the same everywhere. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Opens files of one kind. */
static bool open_files(piece_list *list, const char *what, char **paths, size_t count, tokenizer *t, int32_t end)
{
    for (size_t i = 1; i < count; ++i)
        if (is_tokens(paths[i]) != is_tokens(paths[0]))
            return train_fail("%s: both texts and tokens: %s and %s", what, paths[0], paths[i]);
    for (size_t i = 0; i < count; ++i)
        if (!open_file(list, paths[i], t, end))
            return false;
    return true;
}

static bool open_folder(piece_list *list, const char *path, tokenizer *t, int32_t end)
{
    struct dirent **entries;
    const int count = scandir(path, &entries, only_data, by_name);
    if (count < 0)
        return train_fail("%s: %s", path, strerror(errno));
    char **paths = text_alloc((size_t)count * sizeof *paths);
    for (int i = 0; i < count; ++i) {
        text_buffer name = {0};
        text_format(&name, "%s/%s", path, entries[i]->d_name);
        paths[i] = name.bytes;
        free(entries[i]);
    }
    free(entries);
    const bool good = count > 0 ? open_files(list, path, paths, (size_t)count, t, end)
                                : train_fail("%s: no file *.txt, *.bin or *.npy in this folder", path);
    for (int i = 0; i < count; ++i)
        free(paths[i]);
    free(paths);
    return good;
}

static bool open_pattern(piece_list *list, const char *pattern, tokenizer *t, int32_t end)
{
    glob_t found;
    const int result = glob(pattern, GLOB_NOSORT, NULL, &found);
    if (result != 0)
        return train_fail("%s: %s", pattern, result == GLOB_NOMATCH ? "no file has such a name" : "cannot be looked for");
    qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, by_text);
    const bool good = open_files(list, pattern, found.gl_pathv, found.gl_pathc, t, end);
    globfree(&found);
    return good;
}

bool pieces_open(piece_list *list, const char *path, tokenizer *t, int32_t end)
{
    struct stat info;
    if (stat(path, &info) == 0)
        return S_ISDIR(info.st_mode) ? open_folder(list, path, t, end) : open_file(list, path, t, -1);
    const int reason = errno;
    return strpbrk(path, "*?[") ? open_pattern(list, path, t, end) : train_fail("%s: %s", path, strerror(reason));
}

void pieces_close(piece_list *list)
{
    for (int64_t i = 0; i < list->count; ++i) {
        unmap(&list->pieces[i]);
        free(list->pieces[i].owned);
        free(list->pieces[i].name);
    }
    free(list->pieces);
    *list = (piece_list){0};
}
