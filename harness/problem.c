/*
 * Problems and their names; see problem.h. A name is cut at its slashes, and each part is tried as a word of one of the
 * tables, then as a letter with a number.
 */
#include "problem.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const layout_names[LAYOUT_COUNT + 1] = {
    [LAYOUT_BHSD] = "bhsd",
    [LAYOUT_BSHD] = "bshd",
    [LAYOUT_HSBD] = "hsbd",
    [LAYOUT_PACKED] = "packed",
    [LAYOUT_PADDED] = "padded",
    [LAYOUT_OFFSET] = "offset",
    [LAYOUT_NEGATIVE] = "negative",
    [LAYOUT_BROADCAST] = "broadcast",
    [LAYOUT_BROADCAST_ROW] = "broadcast-row",
    [LAYOUT_FENCE_HIGH] = "fence-high",
    [LAYOUT_FENCE_LOW] = "fence-low",
    [LAYOUT_FAR] = "far",
};

const char *const fill_names[FILL_COUNT + 1] = {
    [FILL_NORMAL] = "fill-normal",
    [FILL_SPIKY] = "fill-spiky",
    [FILL_EQUAL] = "fill-equal",
    [FILL_LARGE] = "fill-large",
    [FILL_RISING] = "fill-rising",
    [FILL_FALLING] = "fill-falling",
    [FILL_LOW] = "fill-low",
    [FILL_HIGH] = "fill-high",
    [FILL_ZERO] = "fill-zero",
    [FILL_SUBNORMAL] = "fill-subnormal",
    [FILL_ONES] = "fill-ones",
    [FILL_NAN_Q] = "fill-nan-q",
    [FILL_NAN_V] = "fill-nan-v",
    [FILL_NAN_UNUSED] = "fill-nan-unused",
    [FILL_INF_Q] = "fill-inf-q",
    [FILL_INF_K] = "fill-inf-k",
    [FILL_MINUS_INF] = "fill-minus-inf",
    [FILL_MINUS_INF_KEY] = "fill-minus-inf-key",
};

problem problem_of(int64_t seq_q, int64_t seq_k, int64_t dim)
{
    return (problem){.op = FATTN_OP_FORWARD,
                     .dtype = FATTN_F32,
                     .batch = 1,
                     .heads_q = 1,
                     .group = 1,
                     .seq_q = seq_q,
                     .seq_k = seq_k,
                     .dim = dim,
                     .dim_v = dim,
                     .seed = 1};
}

fattn_desc problem_desc(const problem *p)
{
    return (fattn_desc){.struct_size = sizeof(fattn_desc),
                        .dtype = p->dtype,
                        .mask = p->mask,
                        .align = p->align,
                        .batch = p->batch,
                        .heads_q = p->heads_q,
                        .heads_kv = p->heads_q / p->group,
                        .seq_q = p->seq_q,
                        .seq_k = p->seq_k,
                        .dim = p->dim,
                        .dim_v = p->dim_v,
                        .window_left = p->left,
                        .window_right = p->right,
                        .scale = p->scale};
}

bool problem_keeps(const problem *p, int64_t i, int64_t j)
{
    const int64_t diagonal = i + (p->align == FATTN_ALIGN_BOTTOM_RIGHT ? p->seq_k - p->seq_q : 0);
    if (p->mask == FATTN_MASK_CAUSAL)
        return j <= diagonal;
    if (p->mask == FATTN_MASK_WINDOW)
        return (p->left < 0 || diagonal - j <= p->left) && (p->right < 0 || j - diagonal <= p->right);
    return true;
}

double problem_scale(const problem *p)
{
    return p->scale != 0 ? p->scale : 1 / sqrt((double)p->dim);
}

bool problem_fits(const problem *p)
{
    const int64_t most = (int64_t)1 << 40;
    const int64_t heads_kv = p->heads_q / p->group;
    const int64_t tensors[4][4] = {{p->batch, p->heads_q, p->seq_q, p->dim},
                                   {p->batch, p->heads_q, p->seq_q, p->dim_v},
                                   {p->batch, heads_kv, p->seq_k, p->dim},
                                   {p->batch, heads_kv, p->seq_k, p->dim_v}};
    for (int t = 0; t < 4; t++) {
        int64_t count = 1;
        for (int i = 0; i < 4; i++)
            if (__builtin_mul_overflow(count, tensors[t][i] > 0 ? tensors[t][i] : 1, &count) || count > most)
                return false;
    }
    return true;
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

static void append_scale(char *name, double scale)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, scale);
        if (strtod(text, NULL) == scale)
            break;
    }
    append(name, "/scale:%s", text);
}

void problem_print(const problem *p, char name[PROBLEM_NAME_SIZE])
{
    const char *br = p->align == FATTN_ALIGN_BOTTOM_RIGHT ? "-br" : "";
    name[0] = '\0';
    append(name, "%s/%s", p->op == FATTN_OP_FORWARD ? "forward" : "backward", p->dtype == FATTN_F64 ? "f64" : "f32");
    if (p->batch != 1)
        append(name, "/b%" PRId64, p->batch);
    if (p->heads_q != 1)
        append(name, "/h%" PRId64, p->heads_q);
    if (p->group != 1)
        append(name, "/gqa%" PRId64, p->group);
    append(name, "/q%" PRId64 "k%" PRId64 "/d%" PRId64, p->seq_q, p->seq_k, p->dim);
    if (p->dim_v != p->dim)
        append(name, "/v%" PRId64, p->dim_v);
    if (p->mask == FATTN_MASK_CAUSAL)
        append(name, "/causal%s", br);
    if (p->mask == FATTN_MASK_WINDOW)
        append(name, "/window%s:%" PRId64 ",%" PRId64, br, p->left, p->right);
    if (p->layout != LAYOUT_BHSD)
        append(name, "/%s", layout_names[p->layout]);
    if (p->fill != FILL_NORMAL)
        append(name, "/%s", fill_names[p->fill]);
    if (p->scale != 0)
        append_scale(name, p->scale);
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

static bool read_mask(const char *part, problem *p)
{
    if (!strcmp(part, "full") || !strcmp(part, "causal") || !strcmp(part, "causal-br")) {
        p->mask = part[0] == 'f' ? FATTN_MASK_FULL : FATTN_MASK_CAUSAL;
        p->align = part[0] == 'c' && part[6] ? FATTN_ALIGN_BOTTOM_RIGHT : FATTN_ALIGN_TOP_LEFT;
        return true;
    }
    const bool br = !strncmp(part, "window-br:", 10);
    if (!br && strncmp(part, "window:", 7) != 0)
        return false;
    const char *numbers = part + (br ? 10 : 7);
    int end = -1;
    if (sscanf(numbers, "%" SCNd64 ",%" SCNd64 "%n", &p->left, &p->right, &end) != 2 || numbers[end] != '\0')
        return false;
    p->mask = FATTN_MASK_WINDOW;
    p->align = br ? FATTN_ALIGN_BOTTOM_RIGHT : FATTN_ALIGN_TOP_LEFT;
    return p->left >= -1 && p->right >= -1;
}

static bool read_lengths(const char *part, problem *p)
{
    int end = -1;
    return sscanf(part, "q%" SCNd64 "k%" SCNd64 "%n", &p->seq_q, &p->seq_k, &end) == 2 && part[end] == '\0' && p->seq_q >= 0 &&
           p->seq_k >= 0;
}

static bool read_scale(const char *part, problem *p)
{
    char *end;
    if (strncmp(part, "scale:", 6) != 0)
        return false;
    p->scale = strtod(part + 6, &end);
    return end != part + 6 && *end == '\0' && isfinite(p->scale);
}

static bool read_word(const char *part, problem *p)
{
    static const char *const ops[] = {"forward", "backward", NULL};
    static const char *const dtypes[] = {"f32", "f64", NULL};
    int word;
    if ((word = find_word(ops, part)) >= 0)
        p->op = word == 0 ? FATTN_OP_FORWARD : FATTN_OP_BACKWARD;
    else if ((word = find_word(dtypes, part)) >= 0)
        p->dtype = word == 0 ? FATTN_F32 : FATTN_F64;
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
    return read_word(part, p) || read_mask(part, p) || read_lengths(part, p) || read_scale(part, p) ||
           read_number(part, "b", &p->batch) || read_number(part, "h", &p->heads_q) || read_number(part, "gqa", &p->group) ||
           read_number(part, "d", &p->dim) || read_number(part, "v", &p->dim_v);
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
    if (p->dim_v == 0)
        p->dim_v = p->dim;
    const char *wrong = p->seq_q < 0                                 ? "q..k.. is missing"
                        : p->dim < 1                                 ? "d.. is missing"
                        : p->heads_q < 1                             ? "h must be 1 or more"
                        : p->group < 1 || p->heads_q % p->group != 0 ? "gqa does not divide h"
                        : !problem_fits(p)                           ? "a tensor has more than 2^40 elements"
                                                                     : NULL;
    if (wrong)
        snprintf(complaint, size, "%s", wrong);
    return !wrong;
}
