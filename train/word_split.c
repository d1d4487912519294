/*
 * The matchers. An alternative of the expressions is a line of the functions below, in their order; where an engine would go
 * back, it is for one reason only: a run of spaces leaves its last one to the word that follows it.
 */
#include "word_split.h"

#include <string.h>

#include "unicode.h"

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define NEWER(digits)                                                                                                          \
    "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                                              \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const char *const expressions[] = {[WORDS_GPT2] =
                                              CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
                                          [WORDS_QWEN] = NEWER("\\p{N}"),
                                          [WORDS_LLAMA3] = NEWER("\\p{N}{1,3}")};

bool word_pattern_of(const char *expression, word_pattern *pattern)
{
    for (int i = 0; i < (int)(sizeof expressions / sizeof *expressions); ++i)
        if (strcmp(expression, expressions[i]) == 0) {
            *pattern = (word_pattern)i;
            return true;
        }
    return false;
}

/* The class of the character at `at`, and where it ends; at the end of the text nothing has a class. */
static int class_at(const char *bytes, size_t count, size_t at, size_t *end)
{
    if (at >= count)
        return -1;
    const unicode_char c = unicode_at(bytes + at, count - at);
    *end = at + c.size;
    return c.code >= UNICODE_BYTE ? UNICODE_OTHER : (int)unicode_class_of(c.code);
}

/* Where a run of at most `most` characters of a class ends. */
static size_t run_end(const char *bytes, size_t count, size_t at, int class, size_t most)
{
    size_t end = at;
    for (size_t i = 0; i < most && class_at(bytes, count, at, &end) == class; ++i)
        at = end;
    return at;
}

static bool is_newline(char c)
{
    return c == '\r' || c == '\n';
}

/* The bytes of 's, 't, 're, 've, 'm, 'll or 'd, or 0. Without regard to case an s may also be U+017F. */
static size_t contraction(const char *bytes, size_t count, bool any_case)
{
    if (count < 2 || bytes[0] != '\'')
        return 0;
    const char fold = any_case ? 0x20 : 0;
    const char a = (char)(bytes[1] | fold), b = count > 2 ? (char)(bytes[2] | fold) : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return any_case && count > 2 && memcmp(bytes + 1, "\xc5\xbf", 2) == 0 ? 3 : 0;
}

/* A run of spaces; where a word follows, all but the last one, if there are two. */
static size_t spaces(const char *bytes, size_t count)
{
    size_t end = 0, last = 0, next;
    while (class_at(bytes, count, end, &next) == UNICODE_SPACE) {
        last = end;
        end = next;
    }
    return end < count && last > 0 ? last : end;
}

static size_t next_gpt2(const char *bytes, size_t count)
{
    size_t end = contraction(bytes, count, false);
    if (end)
        return end;
    const size_t start = bytes[0] == ' ' ? 1 : 0;
    const int class = class_at(bytes, count, start, &end);
    if (class >= 0 && class != UNICODE_SPACE)
        return run_end(bytes, count, start, class, count);
    return spaces(bytes, count);
}

/* Where the last newline of a run of spaces ends, or 0. */
static size_t newlines(const char *bytes, size_t count)
{
    size_t found = 0;
    for (size_t at = 0, next; class_at(bytes, count, at, &next) == UNICODE_SPACE; at = next)
        found = is_newline(bytes[at]) ? next : found;
    return found;
}

static size_t next_newer(const char *bytes, size_t count, size_t digits)
{
    size_t first_end = 0, end = contraction(bytes, count, true);
    if (end)
        return end;
    const int first = class_at(bytes, count, 0, &first_end);
    const int second = class_at(bytes, count, first_end, &end);
    if (first == UNICODE_LETTER)
        return run_end(bytes, count, 0, UNICODE_LETTER, count);
    if (second == UNICODE_LETTER && first != UNICODE_NUMBER && !is_newline(bytes[0]))
        return run_end(bytes, count, first_end, UNICODE_LETTER, count);
    if (first == UNICODE_NUMBER)
        return run_end(bytes, count, 0, UNICODE_NUMBER, digits);
    if (first == UNICODE_OTHER || (bytes[0] == ' ' && second == UNICODE_OTHER)) {
        end = run_end(bytes, count, first == UNICODE_OTHER ? 0 : 1, UNICODE_OTHER, count);
        while (end < count && is_newline(bytes[end]))
            ++end;
        return end;
    }
    end = newlines(bytes, count);
    return end ? end : spaces(bytes, count);
}

size_t word_next(word_pattern pattern, const char *bytes, size_t count)
{
    return pattern == WORDS_GPT2 ? next_gpt2(bytes, count) : next_newer(bytes, count, pattern == WORDS_QWEN ? 1 : 3);
}
