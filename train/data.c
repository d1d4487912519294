/*
 * Sources of tokens. A source is a list of mapped pieces; piece p holds tokens start[p] .. start[p + 1] - 1, and in a folder
 * the last of them is the end token.
 */
#include "data.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "text.h"
#include "tokenizer.h"

typedef struct piece {
    void *map; /* NULL if owned by malloc */
    size_t map_size;
    const unsigned char *bytes;
    int64_t start;  /* of its first token in the sequence */
    int64_t tokens; /* without the end token */
} piece;

struct dataset {
    char *world; /* the generated text, or NULL */
    piece *pieces;
    int64_t piece_count;
    int token_bytes;           /* 1: text, 2: 16-bit tokens */
    bool separated;            /* an end token after each piece */
    int64_t total, validation; /* tokens; validation begins there */
    int64_t vocab;
};

/* Maps a regular file; an empty one has bytes NULL. */
static bool map_piece(const char *path, piece *p)
{
    struct stat info;
    *p = (piece){0};
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
        return train_fail("%s: neither a file nor a folder", path);
    p->bytes = p->map;
    p->tokens = (int64_t)p->map_size;
    return true;
}

static bool open_text(dataset *d, const char *path)
{
    d->pieces = text_alloc(sizeof *d->pieces);
    d->piece_count = 1;
    d->vocab = TOKENIZER_VOCAB;
    return map_piece(path, d->pieces);
}

static int only_text(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return length > 4 && strcmp(entry->d_name + length - 4, ".txt") == 0;
}

/* By bytes, not by the locale, so that the order is the same everywhere. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static bool open_folder(dataset *d, const char *path)
{
    struct dirent **entries;
    int count = scandir(path, &entries, only_text, by_name);
    if (count < 0)
        return train_fail("%s: %s", path, strerror(errno));
    d->pieces = text_alloc((size_t)count * sizeof *d->pieces);
    d->separated = true;
    d->vocab = TOKENIZER_VOCAB;
    bool good = true;
    for (int i = 0; i < count; ++i) {
        text_buffer name = {0};
        text_format(&name, "%s/%s", path, entries[i]->d_name);
        if (good && (good = map_piece(name.bytes, &d->pieces[d->piece_count])))
            ++d->piece_count;
        text_free(&name);
        free(entries[i]);
    }
    free(entries);
    return good && (count > 0 || train_fail("%s: no file *.txt in this folder", path));
}

static bool open_tokens(dataset *d, const char *path)
{
    int32_t header[3] = {0};
    if (!open_text(d, path))
        return false;
    piece *p = d->pieces;
    if (p->map_size >= 1024)
        memcpy(header, p->bytes, sizeof header);
    if (header[0] == 20240520) {
        if (header[1] != 1)
            return train_fail("%s: token file of version %d, only 1 is known", path, header[1]);
        if (header[2] < 0 || p->map_size != 1024 + 2 * (size_t)header[2])
            return train_fail("%s: %zu bytes, but its header says %d tokens", path, p->map_size, header[2]);
        p->bytes += 1024;
        p->tokens = header[2];
    } else {
        if (p->map_size % 2)
            return train_fail("%s: %zu bytes are no whole number of 16-bit tokens", path, p->map_size);
        p->tokens = (int64_t)p->map_size / 2;
    }
    d->token_bytes = 2;
    d->vocab = 1;
    for (int64_t i = 0; i < p->tokens; ++i) {
        uint16_t token;
        memcpy(&token, p->bytes + 2 * i, 2);
        d->vocab = token + 1 > d->vocab ? token + 1 : d->vocab;
    }
    return true;
}

static void open_world(dataset *d, const data_options *options)
{
    size_t train_size, val_size;
    int64_t val_lines = (options->world_lines + 9) / 10;
    char *train = world_text(options->world_seed, WORLD_TRAIN, options->world_lines, &train_size);
    char *val = world_text(options->world_seed, WORLD_VAL, val_lines, &val_size);
    d->world = text_alloc(train_size + val_size);
    memcpy(d->world, train, train_size);
    memcpy(d->world + train_size, val, val_size);
    free(train);
    free(val);
    d->vocab = TOKENIZER_VOCAB;
    d->pieces = text_alloc(sizeof *d->pieces);
    d->piece_count = 1;
    d->pieces[0] = (piece){.bytes = (unsigned char *)d->world, .tokens = (int64_t)(train_size + val_size)};
    d->validation = (int64_t)train_size;
}

static bool open_path(dataset *d, const char *path)
{
    struct stat info;
    size_t length = strlen(path);
    if (stat(path, &info) != 0)
        return train_fail("%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return open_folder(d, path);
    return length > 4 && strcmp(path + length - 4, ".bin") == 0 ? open_tokens(d, path) : open_text(d, path);
}

dataset *data_open(const data_options *options)
{
    dataset *d = text_alloc(sizeof *d);
    d->token_bytes = 1;
    bool generated = strcmp(options->source, "world") == 0;
    if (generated)
        open_world(d, options);
    else if (!open_path(d, options->source)) {
        data_close(d);
        return NULL;
    }
    for (int64_t i = 0; i < d->piece_count; ++i) {
        d->pieces[i].start = d->total;
        d->total += d->pieces[i].tokens + d->separated;
    }
    if (d->total == 0) {
        train_fail("%s: is empty", options->source);
        data_close(d);
        return NULL;
    }
    if (!generated)
        d->validation = d->total - d->total / 10;
    return d;
}

void data_close(dataset *d)
{
    if (!d)
        return;
    for (int64_t i = 0; i < d->piece_count; ++i)
        if (d->pieces[i].map)
            munmap(d->pieces[i].map, d->pieces[i].map_size);
    free(d->pieces);
    free(d->world);
    free(d);
}

data_tokens data_split(const dataset *d, world_split split)
{
    if (split == WORLD_TRAIN)
        return (data_tokens){d, 0, d->validation};
    return (data_tokens){d, d->validation, d->total - d->validation};
}

int64_t data_vocab(const dataset *d)
{
    return d->vocab;
}

bool data_is_text(const dataset *d)
{
    return d->token_bytes == 1;
}

/* The piece that holds token `index`: the last one that starts at or before it. */
static const piece *find_piece(const dataset *d, int64_t index)
{
    int64_t low = 0, high = d->piece_count - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (d->pieces[middle].start <= index)
            low = middle;
        else
            high = middle - 1;
    }
    return &d->pieces[low];
}

static int32_t token_at(const dataset *d, const piece *p, int64_t index)
{
    uint16_t token;
    if (index == p->tokens)
        return TOKEN_EOS;
    if (d->token_bytes == 1)
        return p->bytes[index];
    memcpy(&token, p->bytes + 2 * index, 2);
    return token;
}

void data_copy(const data_tokens *tokens, int64_t first, int64_t count, int32_t *out)
{
    const dataset *d = tokens->owner;
    while (count > 0) {
        int64_t index = tokens->first + first;
        const piece *p = find_piece(d, index);
        int64_t here = p->start + p->tokens + d->separated - index;
        if (here > count)
            here = count;
        for (int64_t i = 0; i < here; ++i)
            *out++ = token_at(d, p, index - p->start + i);
        first += here;
        count -= here;
    }
}
