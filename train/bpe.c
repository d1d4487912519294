/*
 * Merging with a heap of candidates over a list of symbols: a candidate whose symbols have changed meanwhile is dropped when
 * it comes up. In front of it a table of words that were seen, each in the one place that its hash gives it.
 */
#include "bpe.h"

#include <stdlib.h>
#include <string.h>

#include "text.h"

enum { CACHE_PLACES = 1 << 15, CACHED_BYTES = 26, CACHED_IDS = 8 };

typedef struct token {
    const char *bytes;
    size_t size;
    int32_t id;
} token;

typedef struct merge {
    uint64_t pair; /* left << 32 | right, plus 1: 0 is a free place */
    int32_t rank, whole;
} merge;

/* Sixty bytes. */
typedef struct cached_word {
    uint8_t size, ids; /* size 0: nothing */
    char bytes[CACHED_BYTES];
    int32_t id[CACHED_IDS];
} cached_word;

typedef struct symbol {
    int32_t id; /* -1: merged into the one before it */
    int32_t before, after;
} symbol;

/* rank << 32 | at: the order in which pairs are merged is that of the numbers. */
typedef uint64_t candidate;
enum { BRANCHES = 4 }; /* of the heap: for long words every level is a miss of the cache */

struct bpe {
    bool whole;
    token *tokens;
    merge *merges;
    size_t token_places, merge_places; /* powers of 2 */
    int32_t of_byte[256];
    cached_word *cache;
    symbol *symbols; /* [room] */
    candidate *heap; /* [3 room]: each merge adds two at most */
    size_t room, waiting;
};

void token_list_add(token_list *list, int32_t id)
{
    list->ids = text_room(list->ids, list->count, &list->room, sizeof *list->ids);
    list->ids[list->count++] = id;
}

void token_list_free(token_list *list)
{
    free(list->ids);
    *list = (token_list){0};
}

/* -------------------------------------------------------------------------------------------------------------- tables */

static size_t places_for(size_t count)
{
    size_t places = 16;
    while (places < 2 * count)
        places *= 2;
    return places;
}

bpe *bpe_create(size_t tokens, size_t merges, bool whole)
{
    bpe *b = text_alloc(sizeof *b);
    b->whole = whole;
    b->token_places = places_for(tokens);
    b->merge_places = places_for(merges);
    b->tokens = text_alloc(b->token_places * sizeof *b->tokens);
    b->merges = text_alloc(b->merge_places * sizeof *b->merges);
    b->cache = text_alloc(CACHE_PLACES * sizeof *b->cache);
    return b;
}

void bpe_free(bpe *b)
{
    if (!b)
        return;
    free(b->tokens);
    free(b->merges);
    free(b->cache);
    free(b->symbols);
    free(b->heap);
    free(b);
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

/* Eight bytes at a time. */
static uint64_t hash_bytes(const char *bytes, size_t size)
{
    uint64_t hash = size * 0x9e3779b97f4a7c15u, part;
    for (; size >= 8; bytes += 8, size -= 8) {
        memcpy(&part, bytes, 8);
        hash = mix(hash ^ part);
    }
    part = 0;
    memcpy(&part, bytes, size);
    return mix(hash ^ part);
}

/* Where these bytes are, or the free place for them. */
static token *token_place(const bpe *b, const char *bytes, size_t size)
{
    for (size_t i = hash_bytes(bytes, size);; ++i) {
        token *t = &b->tokens[i & (b->token_places - 1)];
        if (!t->bytes || (t->size == size && memcmp(t->bytes, bytes, size) == 0))
            return t;
    }
}

bool bpe_add_token(bpe *b, int32_t id, const char *bytes, size_t size)
{
    token *place = token_place(b, bytes, size);
    if (place->bytes)
        return false;
    *place = (token){bytes, size, id};
    return true;
}

int32_t bpe_find(const bpe *b, const char *bytes, size_t size)
{
    const token *place = token_place(b, bytes, size);
    return place->bytes ? place->id : -1;
}

static merge *merge_place(const bpe *b, uint64_t pair)
{
    for (size_t i = mix(pair * 0x9e3779b97f4a7c15u);; ++i) {
        merge *m = &b->merges[i & (b->merge_places - 1)];
        if (m->pair == 0 || m->pair == pair)
            return m;
    }
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1;
}

void bpe_add_merge(bpe *b, int32_t rank, int32_t left, int32_t right, int32_t whole)
{
    const uint64_t pair = pair_of(left, right);
    *merge_place(b, pair) = (merge){pair, rank, whole};
}

int bpe_missing_byte(bpe *b)
{
    for (int byte = 255; byte >= 0; --byte) {
        const char c = (char)byte;
        b->of_byte[byte] = bpe_find(b, &c, 1);
        if (b->of_byte[byte] < 0)
            return byte;
    }
    return -1;
}

/* ------------------------------------------------------------------------------------------------------------- merging */

static void push(bpe *b, candidate c)
{
    size_t i = b->waiting++;
    for (; i > 0 && c < b->heap[(i - 1) / BRANCHES]; i = (i - 1) / BRANCHES)
        b->heap[i] = b->heap[(i - 1) / BRANCHES];
    b->heap[i] = c;
}

static candidate pop(bpe *b)
{
    const candidate top = b->heap[0], last = b->heap[--b->waiting];
    size_t i = 0;
    for (size_t child; (child = BRANCHES * i + 1) < b->waiting; i = child) {
        const size_t end = child + BRANCHES < b->waiting ? child + BRANCHES : b->waiting;
        for (size_t other = child + 1; other < end; ++other)
            child = b->heap[other] < b->heap[child] ? other : child;
        if (b->heap[child] >= last)
            break;
        b->heap[i] = b->heap[child];
    }
    b->heap[i] = last;
    return top;
}

/* Pushes the merge of the symbol at `at` with the one after it, if there is one. */
static void consider(bpe *b, int32_t at)
{
    if (at < 0 || b->symbols[at].after < 0)
        return;
    const merge *m = merge_place(b, pair_of(b->symbols[at].id, b->symbols[b->symbols[at].after].id));
    if (m->pair)
        push(b, (uint64_t)m->rank << 32 | (uint32_t)at);
}

/* What a candidate's pair becomes; NULL if the symbols there are others by now. */
static const merge *merge_of(const bpe *b, candidate c)
{
    const symbol *s = &b->symbols[(uint32_t)c];
    if (s->id < 0 || s->after < 0)
        return NULL;
    const merge *m = merge_place(b, pair_of(s->id, b->symbols[s->after].id));
    return m->pair && (uint64_t)m->rank == c >> 32 ? m : NULL;
}

static void make_room(bpe *b, size_t size)
{
    if (size <= b->room)
        return;
    b->room = size > 2 * b->room ? size : 2 * b->room;
    free(b->symbols);
    free(b->heap);
    b->symbols = text_alloc(b->room * sizeof *b->symbols);
    b->heap = text_alloc(3 * b->room * sizeof *b->heap);
}

static void merge_word(bpe *b, const char *word, size_t size, token_list *out)
{
    make_room(b, size);
    const int32_t count = (int32_t)size;
    for (int32_t i = 0; i < count; ++i)
        b->symbols[i] = (symbol){b->of_byte[(unsigned char)word[i]], i - 1, i + 1 < count ? i + 1 : -1};
    b->waiting = 0;
    for (int32_t i = 0; i < count; ++i)
        consider(b, i);
    while (b->waiting) {
        const candidate c = pop(b);
        const int32_t at = (int32_t)(uint32_t)c;
        const merge *m = merge_of(b, c);
        if (!m)
            continue;
        symbol *left = &b->symbols[at], *right = &b->symbols[left->after];
        left->id = m->whole;
        left->after = right->after;
        right->id = -1;
        if (left->after >= 0)
            b->symbols[left->after].before = at;
        consider(b, left->before);
        consider(b, at);
    }
    for (int32_t i = 0; i >= 0; i = b->symbols[i].after)
        token_list_add(out, b->symbols[i].id);
}

static void encode_anew(bpe *b, const char *word, size_t size, token_list *out)
{
    const int32_t id = b->whole ? bpe_find(b, word, size) : -1;
    if (id >= 0)
        token_list_add(out, id);
    else
        merge_word(b, word, size, out);
}

/* Positions are 32-bit numbers, so a word of more than 2^30 bytes is merged in parts. */
static void encode_parts(bpe *b, const char *word, size_t size, token_list *out)
{
    const size_t most = (size_t)1 << 30;
    for (; size > most; word += most, size -= most)
        encode_anew(b, word, most, out);
    encode_anew(b, word, size, out);
}

void bpe_encode(bpe *b, const char *word, size_t size, token_list *out)
{
    if (size == 0)
        return;
    if (size > CACHED_BYTES) {
        encode_parts(b, word, size, out);
        return;
    }
    cached_word *place = &b->cache[hash_bytes(word, size) % CACHE_PLACES];
    if (place->size == size && memcmp(place->bytes, word, size) == 0) {
        for (int i = 0; i < place->ids; ++i)
            token_list_add(out, place->id[i]);
        return;
    }
    const size_t before = out->count;
    encode_anew(b, word, size, out);
    const size_t made = out->count - before;
    if (made > CACHED_IDS)
        return;
    place->size = (uint8_t)size;
    place->ids = (uint8_t)made;
    memcpy(place->bytes, word, size);
    memcpy(place->id, out->ids + before, made * sizeof *place->id);
}
