/*
 * The sequence of tokens: pieces (data_files.h), one behind the other, first those to learn from, then those to validate with.
 */
#include "data.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "data_files.h"
#include "error.h"

struct dataset {
    tokenizer *words;
    piece_list list;
    int32_t end;               /* of a text; -1: unknown */
    int64_t total, validation; /* tokens; validation begins there */
    int64_t vocab;
};

/* An empty text is what a configuration has for nothing. */
static bool is_said(const char *text)
{
    return text && *text;
}

static bool is_world(const char *source)
{
    return strcmp(source, "world") == 0;
}

/* Appends a source's pieces; of the world this part. */
static bool open_source(dataset *d, const data_options *options, const char *source, world_split split)
{
    size_t size;
    if (!is_world(source))
        return pieces_open(&d->list, source, d->words, d->end);
    char *text = world_text(options->world_seed, split,
                            split == WORLD_TRAIN ? options->world_lines : (options->world_lines + 9) / 10, &size);
    return pieces_add_text(&d->list, source, text, size, d->words);
}

static bool is_letter(char c)
{
    return ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (unsigned char)c >= 0x80;
}

/* Whether a word of a file's own name says that it is for validation. */
static bool is_validation(const piece *p)
{
    static const char *const words[] = {"val", "valid", "validation"};
    const char *slash = strrchr(p->name, '/');
    size_t length;
    for (const char *at = slash ? slash + 1 : p->name; *at; at += length + !length) {
        for (length = 0; is_letter(at[length]);)
            ++length;
        for (size_t i = 0; i < sizeof words / sizeof *words; ++i)
            if (length == strlen(words[i]) && strncasecmp(at, words[i], length) == 0)
                return true;
    }
    return false;
}

/* Puts the pieces for validation last, each kind in its order, and returns how many are to learn from. */
static int64_t sort_by_use(piece_list *list)
{
    piece *sorted = text_alloc((size_t)list->count * sizeof *sorted);
    int64_t count = 0;
    for (int64_t i = 0; i < list->count; ++i)
        if (!is_validation(&list->pieces[i]))
            sorted[count++] = list->pieces[i];
    const int64_t learned = count;
    for (int64_t i = 0; i < list->count; ++i)
        if (is_validation(&list->pieces[i]))
            sorted[count++] = list->pieces[i];
    memcpy(list->pieces, sorted, (size_t)count * sizeof *sorted);
    free(sorted);
    return learned;
}

/* The places of all pieces, and the vocabulary. */
static void lay_out(dataset *d)
{
    d->vocab = tokenizer_is_bytes(d->words) ? d->end + 1 : tokenizer_vocab(d->words);
    for (int64_t i = 0; i < d->list.count; ++i) {
        piece *p = &d->list.pieces[i];
        p->start = d->total;
        d->total += p->tokens + (p->end >= 0);
        d->vocab = p->most + 1 > d->vocab ? p->most + 1 : d->vocab;
    }
}

static int64_t last_part(int64_t total, double fraction)
{
    return (int64_t)floor((double)total * (fraction > 0 ? fraction : 0.1));
}

/* Opens what to validate with, or finds it in the source; how many of the pieces are to learn from, or -1. */
static int64_t open_validation(dataset *d, const data_options *options)
{
    const char *other = is_said(options->validation) ? options->validation : is_world(options->source) ? "world" : NULL;
    const int64_t learned = d->list.count;
    if (!other)
        return sort_by_use(&d->list);
    if (!open_source(d, options, other, WORLD_VAL))
        return -1;
    if (tokenizer_is_bytes(d->words) && d->list.pieces[0].text != d->list.pieces[learned].text) {
        train_fail("%s: tokens beside the text of %s, whose tokenizer is not named", data_is_text(d) ? other : options->source,
                   data_is_text(d) ? options->source : other);
        return -1;
    }
    return learned;
}

/* A tokenizer that was named says what tokens there are, also for files of tokens. */
static bool open_all(dataset *d, const data_options *options)
{
    if (!open_source(d, options, options->source, WORLD_TRAIN))
        return false;
    const int64_t learned = open_validation(d, options);
    if (learned < 0)
        return false;
    if (tokenizer_is_bytes(d->words) && !is_said(options->eot) && !data_is_text(d))
        d->end = -1; /* what the numbers of a file stand for nobody has said */
    lay_out(d);
    if (d->total == 0)
        return train_fail("%s: is empty", options->source);
    d->validation = learned > 0 && learned < d->list.count ? d->list.pieces[learned].start
                                                           : d->total - last_part(d->total, options->val_fraction);
    return tokenizer_is_bytes(d->words) || data_check(d, tokenizer_vocab(d->words), "the tokenizer");
}

/* The token that ends a text: as it was said, else the tokenizer's. */
static bool find_end(dataset *d, const char *said)
{
    char *rest;
    d->end = tokenizer_end(d->words);
    if (!is_said(said))
        return true;
    const int32_t named = tokenizer_named(d->words, said);
    const long number = strtol(said, &rest, 10);
    const int64_t vocab = tokenizer_is_bytes(d->words) ? INT_MAX : tokenizer_vocab(d->words);
    if (named < 0 && (rest == said || *rest))
        return train_fail("eot: '%s' is neither a token of the tokenizer nor the number of one", said);
    d->end = named >= 0 ? named : (int32_t)number;
    return named >= 0 || (number >= 0 && number < vocab) ||
           train_fail("eot: %s, but tokens are 0 .. %lld", said, (long long)vocab - 1);
}

dataset *data_open(const data_options *options)
{
    dataset *d = text_alloc(sizeof *d);
    d->words = tokenizer_open(options->tokenizer);
    if (d->words && find_end(d, options->eot) && open_all(d, options))
        return d;
    data_close(d);
    return NULL;
}

void data_close(dataset *d)
{
    if (!d)
        return;
    pieces_close(&d->list);
    tokenizer_close(d->words);
    free(d);
}

data_tokens data_all(const dataset *d)
{
    return (data_tokens){d, 0, d->total};
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

bool data_check(const dataset *d, int64_t vocab, const char *whose)
{
    int64_t most = -1;
    for (int64_t i = 0; i < d->list.count; ++i) {
        const piece *p = &d->list.pieces[i];
        most = p->most > most ? p->most : most;
        if (p->most >= vocab && !(p->text && tokenizer_is_bytes(d->words)))
            return train_fail("%s: token %lld is %lld, but the vocabulary of %s has %lld tokens", p->name,
                              (long long)p->most_at, (long long)p->most, whose, (long long)vocab);
    }
    if (d->end >= vocab && d->end > most)
        return train_fail("eot: texts end with token %d, but the vocabulary of %s has %lld tokens", d->end, whose,
                          (long long)vocab);
    return d->vocab <= vocab ||
           train_fail("vocab: %s has %lld tokens, the data %lld", whose, (long long)vocab, (long long)d->vocab);
}

bool data_is_text(const dataset *d)
{
    return d->list.pieces[0].text;
}

bool data_is_bytes(const dataset *d)
{
    return data_is_text(d) && tokenizer_is_bytes(d->words);
}

const tokenizer *data_tokenizer(const dataset *d)
{
    return d->words;
}

int32_t data_end(const dataset *d)
{
    return d->end;
}

/* The piece that holds token `index`: the last one that starts at or before it. */
static const piece *find_piece(const dataset *d, int64_t index)
{
    int64_t low = 0, high = d->list.count - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (d->list.pieces[middle].start <= index)
            low = middle;
        else
            high = middle - 1;
    }
    return &d->list.pieces[low];
}

void data_copy(const data_tokens *tokens, int64_t first, int64_t count, int32_t *out)
{
    const dataset *d = tokens->owner;
    while (count > 0) {
        int64_t index = tokens->first + first;
        const piece *p = find_piece(d, index);
        int64_t here = p->start + p->tokens + (p->end >= 0) - index;
        if (here > count)
            here = count;
        for (int64_t i = index - p->start; i < index - p->start + here; ++i)
            *out++ = i == p->tokens ? p->end : (int32_t)piece_token(p, i);
        first += here;
        count -= here;
    }
}
