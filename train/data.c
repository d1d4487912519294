/*
 * The sequence of tokens: pieces (data_files.h), one behind the other, first those to learn from, then those to validate with.
 */
#include "data.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static bool open_world(dataset *d, const data_options *options)
{
    size_t size;
    char *text = world_text(options->world_seed, WORLD_TRAIN, options->world_lines, &size);
    if (!pieces_add_text(&d->list, "world", text, size, d->words))
        return false;
    text = world_text(options->world_seed, WORLD_VAL, (options->world_lines + 9) / 10, &size);
    return pieces_add_text(&d->list, "world", text, size, d->words);
}

/* Whether a file's own name says that it is for validation. */
static bool is_validation(const piece *p)
{
    const char *slash = strrchr(p->name, '/');
    return strstr(slash ? slash + 1 : p->name, "val") != NULL;
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
    d->vocab = tokenizer_is_bytes(d->words) ? 1 : tokenizer_vocab(d->words);
    for (int64_t i = 0; i < d->list.count; ++i) {
        piece *p = &d->list.pieces[i];
        const int64_t most = p->most > p->end ? p->most : p->end;
        p->start = d->total;
        d->total += p->tokens + (p->end >= 0);
        d->vocab = most + 1 > d->vocab ? most + 1 : d->vocab;
    }
}

static int64_t last_part(int64_t total, double fraction)
{
    return (int64_t)floor((double)total * (fraction > 0 ? fraction : 0.1));
}

/* A tokenizer that was named says what tokens there are, also for files of tokens. */
static bool open_all(dataset *d, const data_options *options)
{
    const bool generated = strcmp(options->source, "world") == 0;
    if (generated ? !open_world(d, options) : !pieces_open(&d->list, options->source, d->words, d->end))
        return false;
    int64_t learned = generated ? 1 : d->list.count;
    if (is_said(options->validation)) {
        learned = d->list.count;
        if (!pieces_open(&d->list, options->validation, d->words, d->end))
            return false;
    } else if (!generated)
        learned = sort_by_use(&d->list);
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
    d->end = named >= 0 ? named : (int32_t)number;
    return named >= 0 || (rest != said && !*rest && number >= 0 && number < INT_MAX) ||
           train_fail("eot: '%s' is neither a token of the tokenizer nor the number of one", said);
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
    for (int64_t i = 0; i < d->list.count; ++i) {
        const piece *p = &d->list.pieces[i];
        if (p->most >= vocab && !(p->text && tokenizer_is_bytes(d->words)))
            return train_fail("%s: token %lld is %lld, but the vocabulary of %s has %lld tokens", p->name,
                              (long long)p->most_at, (long long)p->most, whose, (long long)vocab);
    }
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
