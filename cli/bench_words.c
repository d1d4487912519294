/*
 * fattn bench attention: the small languages of its options.
 *
 * A list of masks is cut at its commas, but an item that begins with a digit or a minus sign is a further number of the mask
 * before it: "full,window:255,0,causal" has three masks.
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "cli.h"
#include "options.h"

/* In the order of fattn_mask. */
static const char *const mask_words[] = {"full", "causal", "window", "chunked", "prefix", "document", "intervals", NULL};

static const char mask_forms[] =
    "full, causal, window:L,R, chunked:N, prefix:N, document:N, document:N,L,R, intervals, or one of these with -br before the "
    "colon";

const char *bench_type_name(fattn_dtype type)
{
    switch (type) {
    case FATTN_F32:
        return "f32";
    case FATTN_F64:
        return "f64";
    case FATTN_F16:
        return "f16";
    case FATTN_BF16:
        return "bf16";
    case FATTN_I8:
        return "i8";
    default:
        return "none";
    }
}

/* --------------------------------------------------------------------------------------------------------------- masks */

void bench_mask_name(const bench_mask *mask, char text[BENCH_TEXT])
{
    const char *br = mask->align == FATTN_ALIGN_BOTTOM_RIGHT ? "-br" : "", *word = mask_words[mask->kind];
    if (mask->kind == FATTN_MASK_WINDOW)
        snprintf(text, BENCH_TEXT, "%s%s:%" PRId64 ",%" PRId64, word, br, mask->left, mask->right);
    else if (mask->kind == FATTN_MASK_DOCUMENT && (mask->left != -1 || mask->right != -1))
        snprintf(text, BENCH_TEXT, "%s%s:%" PRId64 ",%" PRId64 ",%" PRId64, word, br, mask->size, mask->left, mask->right);
    else if (mask->kind == FATTN_MASK_CHUNKED || mask->kind == FATTN_MASK_PREFIX || mask->kind == FATTN_MASK_DOCUMENT)
        snprintf(text, BENCH_TEXT, "%s%s:%" PRId64, word, br, mask->size);
    else
        snprintf(text, BENCH_TEXT, "%s%s", word, br);
}

/* ":3,-1" into numbers; returns how many, or -1. */
static int read_mask_numbers(const char *rest, int64_t numbers[3])
{
    int count = 0;
    for (; *rest == (count == 0 ? ':' : ',') && count < 3; count++) {
        int end = -1;
        if (isspace((unsigned char)rest[1]) || sscanf(rest + 1, "%" SCNd64 "%n", &numbers[count], &end) != 1)
            return -1;
        rest += 1 + end;
    }
    return *rest == '\0' ? count : -1;
}

/* Whether a mask of this kind may have these numbers. Takes them. */
static bool take_mask_numbers(bench_mask *mask, int count, const int64_t n[3])
{
    switch (mask->kind) {
    case FATTN_MASK_WINDOW:
        mask->left = n[0];
        mask->right = n[1];
        return count == 2 && n[0] >= -1 && n[1] >= -1;
    case FATTN_MASK_DOCUMENT:
        mask->size = n[0];
        mask->left = count == 3 ? n[1] : -1;
        mask->right = count == 3 ? n[2] : -1;
        return (count == 1 || count == 3) && n[0] >= 1 && mask->left >= -1 && mask->right >= -1;
    case FATTN_MASK_CHUNKED:
    case FATTN_MASK_PREFIX:
        mask->size = n[0];
        return count == 1 && n[0] >= (mask->kind == FATTN_MASK_CHUNKED);
    default:
        return count == 0;
    }
}

static bool read_mask(const char *text, bench_mask *mask)
{
    for (int kind = 0; mask_words[kind]; kind++) {
        size_t length = strlen(mask_words[kind]);
        if (strncmp(text, mask_words[kind], length) != 0)
            continue;
        const bool br = !strncmp(text + length, "-br", 3);
        int64_t numbers[3] = {0};
        *mask = (bench_mask){.kind = (fattn_mask)kind, .align = br ? FATTN_ALIGN_BOTTOM_RIGHT : FATTN_ALIGN_TOP_LEFT};
        const int count = read_mask_numbers(text + length + (br ? 3 : 0), numbers);
        return count >= 0 && take_mask_numbers(mask, count, numbers);
    }
    return false;
}

/* The end of the item at text: a comma that no number follows, or the end. */
static const char *item_end(const char *text)
{
    for (text = strchr(text, ','); text; text = strchr(text + 1, ','))
        if (!isdigit((unsigned char)text[1]) && text[1] != '-')
            return text;
    return NULL;
}

int bench_read_masks(const char *text, bench_mask masks[BENCH_LIST_MAX])
{
    int count = 0;
    for (const char *comma; text; text = comma ? comma + 1 : NULL) {
        char item[BENCH_TEXT];
        comma = item_end(text);
        const size_t length = comma ? (size_t)(comma - text) : strlen(text);
        if (count == BENCH_LIST_MAX) {
            cli_error("--mask: more than %d items", BENCH_LIST_MAX);
            return 0;
        }
        snprintf(item, sizeof item, "%.*s", length < sizeof item ? (int)length : (int)sizeof item - 1, text);
        if (!read_mask(item, &masks[count++])) {
            cli_error("--mask: '%s' is none of: %s", item, mask_forms);
            return 0;
        }
    }
    return count;
}

/* --------------------------------------------------------------------------------------------------------------- lists */

/* Cuts a list at its commas. Returns how many items, or 0 after a mistake. */
static int split(const char *where, const char *text, option_texts *parts)
{
    const option_spec spec = {.name = where + 2, .kind = OPTION_TEXTS, .value = parts};
    return option_assign(&spec, where, text) ? parts->count : 0;
}

void bench_bias_name(unsigned bias, char text[BENCH_TEXT])
{
    if (bias & BIAS_NONE)
        snprintf(text, BENCH_TEXT, "none");
    else
        snprintf(text, BENCH_TEXT, "%s%s%s%s", bias & BIAS_BATCH ? "b" : "", bias & BIAS_HEAD ? "h" : "",
                 bias & BIAS_ROW ? "q" : "", bias == 0 ? "k" : "");
}

/* "none", or letters of bhqk in this order; k alone is a bias that every row shares. */
static bool read_bias(const char *text, int64_t *bias)
{
    *bias = BIAS_NONE;
    if (!strcmp(text, "none"))
        return true;
    const char *at = text;
    *bias = 0;
    for (int i = 0; i < 3; i++)
        if (*at == "bhq"[i]) {
            *bias |= 1 << i;
            at++;
        }
    at += *at == 'k';
    return *text && *at == '\0';
}

int bench_read_biases(const char *text, int64_t biases[BENCH_LIST_MAX])
{
    option_texts parts;
    const int count = split("--bias", text, &parts);
    for (int i = 0; i < count; i++)
        if (!read_bias(parts.item[i], &biases[i])) {
            cli_error("--bias: '%s' is neither none nor letters of bhqk (batch, head, row, key) in this order", parts.item[i]);
            return 0;
        }
    return count;
}

int bench_read_numbers(const char *where, const char *text, double low, double high, double numbers[BENCH_LIST_MAX])
{
    option_texts parts;
    const int count = split(where, text, &parts);
    for (int i = 0; i < count; i++)
        if (!option_parse_double(where, parts.item[i], low, high, &numbers[i]))
            return 0;
    return count;
}
