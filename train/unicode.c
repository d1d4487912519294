/*
 * Classes by binary search in ranges, and the normal form C (Unicode Standard Annex 15): characters are taken apart, marks are
 * put into the order of their combining classes, and what composes is put together again. That happens within stretches that
 * begin with a character that joins nothing before it, so text that is in the form already is only copied.
 */
#include "unicode.h"

#include <stdlib.h>

#include "unicode_tables.h"

enum { HANGUL = 0xac00, HANGUL_L = 0x1100, HANGUL_V = 0x1161, HANGUL_T = 0x11a7, VS = 21, TS = 28, HANGULS = 19 * VS * TS };
enum { FIRST_JOINING = 0x300 };

static uint32_t decode(const unsigned char *p, size_t size)
{
    switch (size) {
    case 1:
        return p[0];
    case 2:
        return (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    case 3:
        return (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    default:
        return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 | (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
    }
}

unicode_char unicode_at(const char *bytes, size_t count)
{
    const unsigned char *p = (const unsigned char *)bytes;
    if (p[0] < 0x80)
        return (unicode_char){p[0], 1};
    const size_t size = text_utf8(bytes, count);
    return size ? (unicode_char){decode(p, size), (uint32_t)size} : (unicode_char){UNICODE_BYTE + p[0], 1};
}

unicode_char unicode_before(const char *bytes, size_t end)
{
    for (size_t size = 1; size <= 4 && size <= end; ++size)
        if (text_utf8(bytes + end - size, size) == size)
            return unicode_at(bytes + end - size, size);
    return (unicode_char){UNICODE_BYTE + (unsigned char)bytes[end - 1], 1};
}

static uint32_t value_of(const unicode_range *ranges, int count, uint32_t code)
{
    int low = 0, high = count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (ranges[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ranges[low].first <= code ? ranges[low].value : 0;
}

unicode_class unicode_class_of(uint32_t code)
{
    if (code < 0x80) {
        if ((code | 0x20) >= 'a' && (code | 0x20) <= 'z')
            return UNICODE_LETTER;
        if (code >= '0' && code <= '9')
            return UNICODE_NUMBER;
        return code == ' ' || (code >= 9 && code <= 13) ? UNICODE_SPACE : UNICODE_OTHER;
    }
    return (unicode_class)value_of(unicode_classes, unicode_classes_count, code);
}

bool unicode_is_word(uint32_t code)
{
    return value_of(unicode_words, unicode_words_count, code) != 0;
}

/* --------------------------------------------------------------------------------------------------------- normalising */

static uint32_t joins(uint32_t code)
{
    return code < FIRST_JOINING ? 0 : value_of(unicode_joins, unicode_joins_count, code);
}

/* The first of the triples with a that is not below (a, b). */
static const unicode_triple *find(const unicode_triple *table, int count, uint32_t a, uint32_t b)
{
    int low = 0, high = count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (table[middle].a < a || (table[middle].a == a && table[middle].b < b))
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && table[low].a == a ? &table[low] : NULL;
}

/* A character of a stretch with what orders it. */
typedef struct mark {
    uint32_t code, combining;
    size_t at;
} mark;

typedef struct stretch {
    mark *marks;
    size_t count, room;
} stretch;

static void add(stretch *s, uint32_t code)
{
    const uint32_t joined = joins(code);
    s->marks = text_room(s->marks, s->count, &s->room, sizeof *s->marks);
    s->marks[s->count] = (mark){code, joined == 255 ? 0 : joined, s->count};
    ++s->count;
}

/* Adds a character's canonical decomposition; parts are at most a few deep. */
static void take_apart(stretch *s, uint32_t code)
{
    const uint32_t hangul = code - HANGUL;
    if (hangul < HANGULS) {
        add(s, HANGUL_L + hangul / (VS * TS));
        add(s, HANGUL_V + hangul / TS % VS);
        if (hangul % TS)
            add(s, HANGUL_T + hangul % TS);
        return;
    }
    const unicode_triple *split = find(unicode_splits, unicode_splits_count, code, 0);
    if (!split) {
        add(s, code);
        return;
    }
    take_apart(s, split->b);
    if (split->c)
        take_apart(s, split->c);
}

static int by_class(const void *left, const void *right)
{
    const mark *a = left, *b = right;
    if (a->combining != b->combining)
        return a->combining < b->combining ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* Sorts each run of characters whose class is not 0. */
static void put_in_order(stretch *s)
{
    for (size_t i = 0, end; i < s->count; i = end) {
        for (end = i; end < s->count && s->marks[end].combining; ++end)
            ;
        if (end - i > 1)
            qsort(s->marks + i, end - i, sizeof *s->marks, by_class);
        end += end == i;
    }
}

/* The character that two others make, or 0. */
static uint32_t composed(uint32_t a, uint32_t b)
{
    if (a - HANGUL_L < 19 && b - HANGUL_V < VS)
        return HANGUL + ((a - HANGUL_L) * VS + (b - HANGUL_V)) * TS;
    if (a - HANGUL < HANGULS && (a - HANGUL) % TS == 0 && b - HANGUL_T - 1 < TS - 1)
        return a + (b - HANGUL_T);
    const unicode_triple *pair = find(unicode_pairs, unicode_pairs_count, a, b);
    return pair && pair->b == b ? pair->c : 0;
}

/* A character joins the last starter before it unless one of its own class or above, or a starter, stands between them. */
static void compose(stretch *s)
{
    size_t kept = 0, starter = 0;
    bool has_starter = false;
    for (size_t i = 0; i < s->count; ++i) {
        const mark m = s->marks[i];
        const bool blocked = kept > 0 && kept - 1 != starter && s->marks[kept - 1].combining >= m.combining;
        const uint32_t whole = has_starter && !blocked ? composed(s->marks[starter].code, m.code) : 0;
        if (whole) {
            s->marks[starter].code = whole;
            continue;
        }
        if (m.combining == 0) {
            starter = kept;
            has_starter = true;
        }
        s->marks[kept++] = m;
    }
    s->count = kept;
}

static void encode(uint32_t code, text_buffer *out)
{
    const unsigned char c1 = (unsigned char)(0x80 | (code & 0x3f)), c2 = (unsigned char)(0x80 | (code >> 6 & 0x3f));
    const unsigned char c3 = (unsigned char)(0x80 | (code >> 12 & 0x3f));
    if (code >= UNICODE_BYTE)
        text_bytes(out, &(unsigned char){(unsigned char)(code - UNICODE_BYTE)}, 1);
    else if (code < 0x80)
        text_bytes(out, &(unsigned char){(unsigned char)code}, 1);
    else if (code < 0x800)
        text_bytes(out, (unsigned char[]){(unsigned char)(0xc0 | code >> 6), c1}, 2);
    else if (code < 0x10000)
        text_bytes(out, (unsigned char[]){(unsigned char)(0xe0 | code >> 12), c2, c1}, 3);
    else
        text_bytes(out, (unsigned char[]){(unsigned char)(0xf0 | code >> 18), c3, c2, c1}, 4);
}

/* Whether a character that nothing joins is its own normal form. */
static bool is_whole(uint32_t code)
{
    return code < FIRST_JOINING || code >= UNICODE_BYTE ||
           (!joins(code) && !find(unicode_splits, unicode_splits_count, code, 0));
}

void unicode_nfc(const char *bytes, size_t count, text_buffer *out)
{
    stretch s = {0};
    size_t copied = 0; /* bytes before it are in `out` */
    for (size_t i = 0; i < count;) {
        const size_t begin = i;
        unicode_char c = unicode_at(bytes + i, count - i);
        const uint32_t first = c.code;
        i += c.size;
        if (i < count && (unsigned char)bytes[i] < 0xcc && first < FIRST_JOINING)
            continue; /* nothing below U+0300 joins, and what lies there is whole */
        size_t next = i;
        while (next < count && (c = unicode_at(bytes + next, count - next), joins(c.code)))
            next += c.size;
        if (next == i && is_whole(first))
            continue;
        text_bytes(out, bytes + copied, begin - copied);
        s.count = 0;
        for (i = begin; i < next; i += c.size) {
            c = unicode_at(bytes + i, count - i);
            take_apart(&s, c.code);
        }
        put_in_order(&s);
        compose(&s);
        for (size_t k = 0; k < s.count; ++k)
            encode(s.marks[k].code, out);
        copied = next;
    }
    text_bytes(out, bytes + copied, count - copied);
    free(s.marks);
}
