/*
 * A tree of the tokens' bytes.
 */
#include "added_tokens.h"

#include <stdlib.h>

#include "unicode.h"

/* Numbers of nodes and tokens are from 1 on; 0 is none. */
typedef struct added_node {
    int32_t child, sibling, token;
    unsigned char byte;
} node;

static int32_t new_node(added_tokens *all, unsigned char byte, int32_t sibling)
{
    all->nodes = text_room(all->nodes, all->count, &all->room, sizeof *all->nodes);
    all->nodes[all->count++] = (node){.byte = byte, .sibling = sibling};
    return (int32_t)all->count;
}

/* The child of a node for a byte, or 0. */
static int32_t child_of(const added_tokens *all, int32_t parent, unsigned char byte)
{
    int32_t child = all->nodes[parent - 1].child;
    while (child && all->nodes[child - 1].byte != byte)
        child = all->nodes[child - 1].sibling;
    return child;
}

static int32_t make_child(added_tokens *all, int32_t parent, unsigned char byte)
{
    int32_t child = child_of(all, parent, byte);
    if (!child) {
        child = new_node(all, byte, all->nodes[parent - 1].child);
        all->nodes[parent - 1].child = child;
    }
    return child;
}

void added_tokens_add(added_tokens *all, const char *content, size_t size, added_token token)
{
    const unsigned char *bytes = (const unsigned char *)content;
    if (!all->first[bytes[0]])
        all->first[bytes[0]] = new_node(all, bytes[0], 0);
    int32_t at = all->first[bytes[0]];
    for (size_t i = 1; i < size; ++i)
        at = make_child(all, at, bytes[i]);
    all->tokens = text_room(all->tokens, all->token_count, &all->token_room, sizeof *all->tokens);
    all->tokens[all->token_count++] = token;
    all->nodes[at - 1].token = (int32_t)all->token_count;
}

void added_tokens_free(added_tokens *all)
{
    free(all->nodes);
    free(all->tokens);
    *all = (added_tokens){0};
}

/* The longest token at `at`: its number, and where it ends. */
static int32_t longest(const added_tokens *all, const char *bytes, size_t count, size_t at, size_t *end)
{
    int32_t found = 0, n = all->first[(unsigned char)bytes[at]];
    for (size_t i = at + 1; n; ++i) {
        if (all->nodes[n - 1].token) {
            found = all->nodes[n - 1].token;
            *end = i;
        }
        n = i < count ? child_of(all, n, (unsigned char)bytes[i]) : 0;
    }
    return found;
}

static bool stands_alone(const char *bytes, size_t count, size_t begin, size_t end)
{
    return (begin == 0 || !unicode_is_word(unicode_before(bytes, begin).code)) &&
           (end == count || !unicode_is_word(unicode_at(bytes + end, count - end).code));
}

static bool is_space(unicode_char c)
{
    return c.code < UNICODE_BYTE && unicode_class_of(c.code) == UNICODE_SPACE;
}

static size_t spaces_before(const char *bytes, size_t from, size_t at)
{
    unicode_char c;
    while (at > from && is_space(c = unicode_before(bytes, at)) && at - c.size >= from)
        at -= c.size;
    return at;
}

static size_t spaces_after(const char *bytes, size_t count, size_t at)
{
    unicode_char c;
    while (at < count && is_space(c = unicode_at(bytes + at, count - at)))
        at += c.size;
    return at;
}

bool added_tokens_find(const added_tokens *all, const char *bytes, size_t count, size_t from, size_t at, added_match *match)
{
    for (size_t end; at < count; ++at) {
        const int32_t found = longest(all, bytes, count, at, &end);
        if (!found)
            continue;
        const added_token *token = &all->tokens[found - 1];
        if (token->single_word && !stands_alone(bytes, count, at, end)) {
            at = end - 1;
            continue;
        }
        *match = (added_match){token->lstrip ? spaces_before(bytes, from, at) : at,
                               token->rstrip ? spaces_after(bytes, count, end) : end, end, token->id};
        return true;
    }
    return false;
}
