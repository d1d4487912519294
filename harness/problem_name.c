/*
 * Names of problems; see problem.h. A name is cut at its slashes, and each part is tried as a word of one of the tables, then
 * as a word with something behind a colon, then as a letter with a number.
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "problem.h"

static const char *const type_words[] = {"f32", "f64", "f16", "bf16", NULL};
static const fattn_dtype types[] = {FATTN_F32, FATTN_F64, FATTN_F16, FATTN_BF16};

static const char *const mask_words[] = {"full", "causal", "window", "chunked", "prefix", "document", "intervals", NULL};

/* Parts that are a field being true. */
static const struct {
    const char *word;
    size_t offset;
} switches[] = {{"out-f32", offsetof(problem, out_f32)},    {"grad-f32", offsetof(problem, grad_f32)},
                {"kv-i8", offsetof(problem, kv_i8)},        {"alibi", offsetof(problem, alibi)},
                {"sinks", offsetof(problem, sinks)},        {"dsinks", offsetof(problem, dsinks)},
                {"dlse", offsetof(problem, dlse)},          {"part", offsetof(problem, part)},
                {"unordered", offsetof(problem, unordered)}};

enum { SWITCHES = sizeof switches / sizeof switches[0] };

static bool *switch_of(problem *p, int i)
{
    return (bool *)((char *)p + switches[i].offset);
}

/* ----------------------------------------------------------------------------------------------------------- printing */

static void append(char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void append(char *name, const char *format, ...)
{
    const size_t used = strlen(name);
    va_list list;
    va_start(list, format);
    vsnprintf(name + used, PROBLEM_NAME_SIZE - used, format, list);
    va_end(list);
}

/* With as few digits as bring the number back; nothing for 0. */
static void append_double(char *name, const char *word, double x)
{
    char text[40];
    if (x == 0)
        return;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    append(name, "/%s:%s", word, text);
}

static void append_number(char *name, const char *word, int64_t x, int64_t without)
{
    if (x != without)
        append(name, "/%s%" PRId64, word, x);
}

static void append_given(char *name, const length_list *l)
{
    for (int i = 0; l->kind == LENGTHS_GIVEN && i < l->count; i++)
        append(name, "%c%" PRId32, i == 0 ? ':' : ',', l->item[i]);
}

static bool same_lengths(const length_list *a, const length_list *b)
{
    bool same = a->kind == b->kind && a->count == b->count;
    for (int i = 0; same && i < a->count; i++)
        same = a->item[i] == b->item[i];
    return same;
}

static void append_lengths(char *name, const char *both, const char *q_word, const length_list *q, const char *k_word,
                           const length_list *k)
{
    if (q->kind && same_lengths(q, k)) {
        append(name, "/%s", both);
        append_given(name, q);
        return;
    }
    if (q->kind) {
        append(name, "/%s", q_word);
        append_given(name, q);
    }
    if (k->kind) {
        append(name, "/%s", k_word);
        append_given(name, k);
    }
}

static void append_mask(char *name, const problem *p)
{
    const bool br = p->align == FATTN_ALIGN_BOTTOM_RIGHT;
    if (p->mask == FATTN_MASK_FULL && !br)
        return;
    append(name, "/%s%s", mask_words[p->mask], br ? "-br" : "");
    if (p->mask == FATTN_MASK_WINDOW || (p->mask == FATTN_MASK_DOCUMENT && (p->left != -1 || p->right != -1)))
        append(name, ":%" PRId64 ",%" PRId64, p->left, p->right);
    if (p->mask == FATTN_MASK_CHUNKED || p->mask == FATTN_MASK_PREFIX)
        append(name, ":%" PRId64, p->mask_size);
    if (p->mask_shared)
        append(name, ":shared");
}

static void append_dims(char *name, const char *word, unsigned dims)
{
    append(name, "/%s:%s%s%sk", word, dims & HAS_BATCH ? "b" : "", dims & HAS_HEAD ? "h" : "", dims & HAS_ROW ? "q" : "");
}

void problem_print(const problem *p, char name[PROBLEM_NAME_SIZE])
{
    problem copy = *p;
    name[0] = '\0';
    append(name, "%s", p->op == FATTN_OP_FORWARD ? "forward" : "backward");
    for (int i = 0; type_words[i]; i++)
        if (types[i] == p->dtype)
            append(name, "/%s", type_words[i]);
    append_number(name, "b", p->batch, 1);
    append_number(name, "h", p->heads_q, 1);
    append_number(name, "gqa", p->group, 1);
    append(name, "/q%" PRId64 "k%" PRId64 "/d%" PRId64, p->seq_q, p->seq_k, p->dim);
    append_number(name, "v", p->dim_v, p->dim);
    append_lengths(name, "packed-seqs", "packed-q", &p->packed_q, "packed-k", &p->packed_k);
    append_lengths(name, "used", "used-q", &p->used_q, "used-k", &p->used_k);
    append_mask(name, p);
    if (p->bias)
        append_dims(name, "bias", p->bias_dims);
    if (p->dbias && p->dbias_dims == p->bias_dims)
        append(name, "/dbias");
    else if (p->dbias)
        append_dims(name, "dbias", p->dbias_dims);
    for (int i = 0; i < SWITCHES; i++)
        if (*switch_of(&copy, i))
            append(name, "/%s", switches[i].word);
    append_double(name, "softcap", p->softcap);
    append_double(name, "dropout", p->dropout);
    append_number(name, "paged:", p->page_size, 0);
    if (p->layout != LAYOUT_BHSD)
        append(name, "/%s", layout_names[p->layout]);
    if (p->fill != FILL_NORMAL)
        append(name, "/%s", fill_names[p->fill]);
    append_double(name, "scale", p->scale);
    append(name, "/seed%" PRIu64, p->seed);
}

/* ------------------------------------------------------------------------------------------------------------ parsing */

static int find_word(const char *const *words, const char *word)
{
    for (int i = 0; words[i]; i++)
        if (!strcmp(words[i], word))
            return i;
    return -1;
}

/* "<prefix><number>" and nothing behind it. */
static bool read_number(const char *part, const char *prefix, int64_t *number)
{
    const size_t length = strlen(prefix);
    int end = -1;
    return !strncmp(part, prefix, length) && sscanf(part + length, "%" SCNd64 "%n", number, &end) == 1 &&
           part[length + (size_t)end] == '\0' && *number >= 0;
}

static bool read_double(const char *part, const char *prefix, double *number)
{
    const size_t length = strlen(prefix);
    char *end;
    if (strncmp(part, prefix, length) != 0)
        return false;
    *number = strtod(part + length, &end);
    return end != part + length && *end == '\0' && isfinite(*number);
}

/* Two numbers with a comma; -1 or more. */
static bool read_window(const char *numbers, problem *p)
{
    int end = -1;
    return sscanf(numbers, "%" SCNd64 ",%" SCNd64 "%n", &p->left, &p->right, &end) == 2 && numbers[end] == '\0' &&
           p->left >= -1 && p->right >= -1;
}

/* What stands behind a mask's word. */
static bool read_mask_rest(const char *rest, problem *p)
{
    p->left = p->right = p->mask == FATTN_MASK_DOCUMENT ? -1 : 0;
    p->mask_size = 0;
    p->mask_shared = false;
    switch (p->mask) {
    case FATTN_MASK_WINDOW:
        return rest[0] == ':' && read_window(rest + 1, p);
    case FATTN_MASK_DOCUMENT:
        return rest[0] == '\0' || (rest[0] == ':' && read_window(rest + 1, p));
    case FATTN_MASK_CHUNKED:
    case FATTN_MASK_PREFIX:
        return read_number(rest, ":", &p->mask_size);
    case FATTN_MASK_INTERVALS:
        p->mask_shared = rest[0] != '\0';
        return rest[0] == '\0' || !strcmp(rest, ":shared");
    default:
        return rest[0] == '\0';
    }
}

static bool read_mask(const char *part, problem *p)
{
    for (int mask = 0; mask_words[mask]; mask++) {
        const size_t length = strlen(mask_words[mask]);
        if (strncmp(part, mask_words[mask], length) != 0)
            continue;
        const bool br = !strncmp(part + length, "-br", 3);
        p->mask = (fattn_mask)mask;
        p->align = br ? FATTN_ALIGN_BOTTOM_RIGHT : FATTN_ALIGN_TOP_LEFT;
        return read_mask_rest(part + length + (br ? 3 : 0), p);
    }
    return false;
}

/* "" or ":3,0,7". */
static bool read_given(const char *rest, length_list *l)
{
    *l = (length_list){.kind = LENGTHS_DRAWN};
    if (*rest == '\0')
        return true;
    l->kind = LENGTHS_GIVEN;
    for (; *rest == (l->count == 0 ? ':' : ','); l->count++) {
        int end = -1;
        if (l->count == LENGTHS_MAX || sscanf(rest + 1, "%" SCNd32 "%n", &l->item[l->count], &end) != 1)
            return false;
        rest += 1 + end;
    }
    return *rest == '\0';
}

static bool read_lengths(const char *part, problem *p)
{
    const struct {
        const char *word;
        length_list *q, *k;
    } all[] = {{"packed-seqs", &p->packed_q, &p->packed_k},
               {"packed-q", &p->packed_q, NULL},
               {"packed-k", &p->packed_k, NULL},
               {"used", &p->used_q, &p->used_k},
               {"used-q", &p->used_q, NULL},
               {"used-k", &p->used_k, NULL}};
    for (int i = 0; i < 6; i++) {
        const size_t length = strlen(all[i].word);
        if (strncmp(part, all[i].word, length) != 0 || (part[length] != '\0' && part[length] != ':'))
            continue;
        if (all[i].k) {
            const bool good = read_given(part + length, all[i].q);
            *all[i].k = *all[i].q;
            return good;
        }
        return read_given(part + length, all[i].q);
    }
    return false;
}

/* "bias:bhqk". */
static bool read_dims(const char *part, const char *word, unsigned *dims)
{
    const size_t length = strlen(word);
    if (strncmp(part, word, length) != 0 || part[length] != ':')
        return false;
    const char *at = part + length + 1;
    *dims = 0;
    for (int i = 0; i < 3; i++)
        if (*at == "bhq"[i]) {
            *dims |= 1u << i;
            at++;
        }
    return !strcmp(at, "k");
}

static bool read_bias(const char *part, problem *p)
{
    if (read_dims(part, "bias", &p->bias_dims))
        return p->bias = true;
    if (!strcmp(part, "dbias")) {
        p->dbias_dims = ~0u; /* as bias, wherever that stands */
        return p->dbias = true;
    }
    return read_dims(part, "dbias", &p->dbias_dims) && (p->dbias = true);
}

static bool read_sizes(const char *part, problem *p)
{
    int end = -1;
    return sscanf(part, "q%" SCNd64 "k%" SCNd64 "%n", &p->seq_q, &p->seq_k, &end) == 2 && part[end] == '\0' && p->seq_q >= 0 &&
           p->seq_k >= 0;
}

static bool read_word(const char *part, problem *p)
{
    static const char *const ops[] = {"forward", "backward", NULL};
    int word;
    for (int i = 0; i < SWITCHES; i++)
        if (!strcmp(part, switches[i].word))
            return *switch_of(p, i) = true;
    if ((word = find_word(ops, part)) >= 0)
        p->op = word == 0 ? FATTN_OP_FORWARD : FATTN_OP_BACKWARD;
    else if ((word = find_word(type_words, part)) >= 0)
        p->dtype = types[word];
    else if ((word = find_word(layout_names, part)) >= 0)
        p->layout = (layout_kind)word;
    else if ((word = find_word(fill_names, part)) >= 0)
        p->fill = (fill_kind)word;
    else
        return false;
    return true;
}

static bool read_part(const char *part, problem *p)
{
    int64_t seed;
    if (read_number(part, "seed", &seed)) {
        p->seed = (uint64_t)seed;
        return true;
    }
    return read_word(part, p) || read_mask(part, p) || read_lengths(part, p) || read_bias(part, p) || read_sizes(part, p) ||
           read_double(part, "scale:", &p->scale) || read_double(part, "softcap:", &p->softcap) ||
           read_double(part, "dropout:", &p->dropout) || read_number(part, "paged:", &p->page_size) ||
           read_number(part, "b", &p->batch) || read_number(part, "h", &p->heads_q) || read_number(part, "gqa", &p->group) ||
           read_number(part, "d", &p->dim) || read_number(part, "v", &p->dim_v);
}

/* Defaults that depend on other parts, and whether the whole makes sense. */
static bool finish(problem *p, char *complaint, size_t size)
{
    if (p->dim_v == 0)
        p->dim_v = p->dim;
    if (p->dbias_dims == ~0u)
        p->dbias_dims = p->bias_dims;
    const char *wrong = p->seq_q < 0 ? "q..k.. is missing" : p->dim < 1 ? "d.. is missing" : problem_wrong(p);
    if (wrong)
        snprintf(complaint, size, "%s", wrong);
    return !wrong;
}

bool problem_parse(const char *text, problem *p, char *complaint, size_t size)
{
    char copy[PROBLEM_NAME_SIZE];
    char ignored[8];
    if (!complaint) {
        complaint = ignored;
        size = sizeof ignored;
    }
    *p = problem_of(-1, -1, 0);
    p->dim_v = 0;
    if (strlen(text) >= sizeof copy) {
        snprintf(complaint, size, "longer than %zu characters", sizeof copy - 1);
        return false;
    }
    strcpy(copy, text);
    char *rest = NULL;
    for (char *part = strtok_r(copy, "/", &rest); part; part = strtok_r(NULL, "/", &rest))
        if (!read_part(part, p)) {
            snprintf(complaint, size, "'%s' is no part of a problem's name", part);
            return false;
        }
    return finish(p, complaint, size);
}
