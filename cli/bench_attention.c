/*
 * fattn bench attention: the command line, and the grid of cells that it spans. A cell is timed in bench_cell.c.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cli.h"
#include "options.h"

typedef struct bench_options {
    option_ints devices, dtypes, batch, heads, heads_kv, seq, seq_k, dim, dim_v, layouts, passes, threads;
    option_texts kernels;
    const char *masks;
    double seconds;
    int preset;
    int64_t seed;
    bool json;
} bench_options;

static const char *const device_words[] = {"cpu", "cuda", NULL};
static const char *const dtype_words[] = {"f32", "f64", "bf16", "f16", NULL};
static const char *const layout_words[] = {"bhsd", "bshd", NULL};
static const char *const pass_words[] = {"fwd", "bwd", "decode", NULL};
static const char *const preset_words[] = {"none", "fa", "cpu", "decode", "short", NULL};

enum { PRESET_NONE, PRESET_FA, PRESET_CPU, PRESET_DECODE, PRESET_SHORT };
enum { PASS_FORWARD, PASS_BACKWARD, PASS_DECODE };
enum { FA_TOKENS = 16384, FA_WIDTH = 2048, MASKS_MAX = 32 };

/* ------------------------------------------------------------------------------------------------------------- presets */

static option_ints ints(int count, const int64_t *item)
{
    option_ints list = {.count = count};
    for (int i = 0; i < count; i++)
        list.item[i] = item[i];
    return list;
}

#define INTS(...) ints((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})

static bench_options defaults(int preset)
{
    bench_options o = {.devices = INTS(0),
                       .dtypes = INTS(0),
                       .batch = INTS(1),
                       .heads = INTS(8),
                       .heads_kv = INTS(0),
                       .seq = INTS(2048),
                       .seq_k = INTS(0),
                       .dim = INTS(64),
                       .dim_v = INTS(0),
                       .layouts = INTS(0),
                       .passes = INTS(PASS_FORWARD),
                       .threads = INTS(0),
                       .kernels = {.count = 1, .item = {"auto"}},
                       .masks = "full",
                       .seconds = 1,
                       .preset = preset,
                       .seed = 1};
    switch (preset) {
    case PRESET_FA:
        o.batch = o.heads = INTS(0);
        o.seq = INTS(512, 1024, 2048, 4096, 8192, 16384);
        o.dim = INTS(64, 128);
        o.masks = "full,causal";
        o.passes = INTS(PASS_FORWARD, PASS_BACKWARD);
        break;
    case PRESET_CPU:
        o.seq = INTS(512, 2048);
        o.dim = INTS(32, 64, 128);
        o.masks = "full,causal";
        o.passes = INTS(PASS_FORWARD, PASS_BACKWARD);
        break;
    case PRESET_DECODE:
        o.batch = INTS(1, 8);
        o.heads = INTS(32);
        o.heads_kv = INTS(8, 32);
        o.seq = INTS(1);
        o.seq_k = INTS(1024, 8192);
        o.dim = INTS(128);
        o.passes = INTS(PASS_DECODE);
        break;
    case PRESET_SHORT:
        o.batch = INTS(16);
        o.seq = INTS(32, 64, 128, 256);
        o.dim = INTS(32, 64);
        o.masks = "full,causal";
        o.passes = INTS(PASS_FORWARD, PASS_BACKWARD);
        break;
    default:
        break;
    }
    return o;
}

/* --------------------------------------------------------------------------------------------------------- command line */

static bool parse(bench_options *o, int argc, char **argv, int *status)
{
    const double most = 1e9;
    const option_spec table[] = {
        {"preset", "NAME", OPTION_WORD, &o->preset, .words = preset_words, .help = "values for the options that are not given"},
        {"device", "cpu,cuda", OPTION_WORDS, &o->devices, .words = device_words, .help = "where"},
        {"dtype", "NAME,...", OPTION_WORDS, &o->dtypes, .words = dtype_words, .help = "types"},
        {"batch", "N,...", OPTION_INTS, &o->batch, .high = most, .help = "batch; 0: 16384 tokens in all"},
        {"heads", "N,...", OPTION_INTS, &o->heads, .high = most, .help = "query heads; 0: heads x dim = 2048"},
        {"heads-kv", "N,...", OPTION_INTS, &o->heads_kv, .high = most, .help = "key/value heads; 0: as heads"},
        {"seq", "N,...", OPTION_INTS, &o->seq, .low = 1, .high = most, .help = "queries (decode: always 1)"},
        {"seq-k", "N,...", OPTION_INTS, &o->seq_k, .high = most, .help = "keys; 0: as seq"},
        {"dim", "N,...", OPTION_INTS, &o->dim, .low = 1, .high = 512, .help = "length of queries and keys"},
        {"dim-v", "N,...", OPTION_INTS, &o->dim_v, .high = 512, .help = "length of values; 0: as dim"},
        {"mask", "NAME,...", OPTION_TEXT, &o->masks, .help = "full, causal, causal-br, window:L,R or window-br:L,R"},
        {"layout", "NAME,...", OPTION_WORDS, &o->layouts, .words = layout_words, .help = "order in memory"},
        {"pass", "NAME,...", OPTION_WORDS, &o->passes, .words = pass_words, .help = "what is timed"},
        {"kernel", "NAME,...", OPTION_TEXTS, &o->kernels, .help = "kernels, timed in turns; auto: the library's choice"},
        {"threads", "N,...", OPTION_INTS, &o->threads, .high = 1024, .help = "threads; 0: as many as the process may use"},
        {"seconds", "X", OPTION_DOUBLE, &o->seconds, .low = 0.001, .high = 1e6, .help = "per kernel and problem"},
        {"seed", "N", OPTION_INT, &o->seed, .help = "of the random inputs"},
        {"json", NULL, OPTION_FLAG, &o->json, .help = "JSON lines"},
        {0}};
    const option_set set = {
        .usage = "fattn bench attention [options]",
        .about =
            "Times attention. Lists make a grid. ms is the median of the runs and gflops follows from it; ms_min is the "
            "least.\n"
            "Operations: 4 b h sq sk d forward (d and d_v half each), 2.5 times that backward, and only the part of sq x sk\n"
            "that the mask keeps. peak_gflops is the multiply-add peak of the vector unit that the kernel uses, on as many\n"
            "threads at once; it is measured before, after and between the runs, and its best window counts. The machine may\n"
            "be shared, so fraction_of_peak compares best with best: operations / ms_min / peak_gflops. Only ratios mean\n"
            "anything on another machine. bytes is the size of all tensors that are read or written; for decode that of\n"
            "keys and values, and fraction_of_copy compares gbps with plain reading of as much memory by as many threads.\n"
            "max_error is the largest difference on sampled rows from a computation in double; a wrong kernel makes the exit\n"
            "code 1. In the table, speed compares with the first kernel of the list.",
        .table = table};
    return options_parse(&set, argc, argv, status);
}

/* Parses twice: the first time to see the preset, whose values the second time replaces. */
static bool read_options(bench_options *o, int argc, char **argv, int *status)
{
    *o = defaults(PRESET_NONE);
    if (!parse(o, argc, argv, status))
        return false;
    const int preset = o->preset;
    *o = defaults(preset);
    return parse(o, argc, argv, status);
}

static bool supported(const bench_options *o)
{
    for (int i = 0; i < o->devices.count; i++)
        if (o->devices.item[i] != 0) {
            cli_error("--device: cuda: this library has no kernels for it");
            return false;
        }
    for (int i = 0; i < o->dtypes.count; i++)
        if (o->dtypes.item[i] > 1) {
            cli_error("--dtype: %s: this library has no kernels for it", dtype_words[o->dtypes.item[i]]);
            return false;
        }
    if (o->kernels.count > BENCH_KERNELS_MAX) {
        cli_error("--kernel: %d names are more than %d", o->kernels.count, BENCH_KERNELS_MAX);
        return false;
    }
    return true;
}

/* One mask from the list: its numbers' comma belongs to it. Returns the rest behind it, or NULL after a mistake. */
static const char *read_mask(const char *text, problem *p)
{
    char name[PROBLEM_NAME_SIZE], item[80];
    const char *comma = strchr(text, ',');
    if (comma && !strncmp(text, "window", 6))
        comma = strchr(comma + 1, ',');
    const size_t length = comma ? (size_t)(comma - text) : strlen(text);
    snprintf(item, sizeof item, "%.*s", length < sizeof item ? (int)length : (int)sizeof item - 1, text);
    snprintf(name, sizeof name, "q1k1/d1/%s", item);
    problem parsed;
    const bool known = !strcmp(item, "full") || !strncmp(item, "causal", 6) || !strncmp(item, "window", 6);
    if (!known || !problem_parse(name, &parsed, NULL, 0)) {
        cli_error("--mask: '%s' is none of: full, causal, causal-br, window:L,R, window-br:L,R", item);
        return NULL;
    }
    p->mask = parsed.mask;
    p->align = parsed.align;
    p->left = parsed.left;
    p->right = parsed.right;
    return comma ? comma + 1 : text + length;
}

static bool read_masks(const char *rest, problem masks[MASKS_MAX], int *count)
{
    for (*count = 0; *rest || *count == 0; ++*count) {
        if (*count == MASKS_MAX) {
            cli_error("--mask: more than %d items", MASKS_MAX);
            return false;
        }
        masks[*count] = problem_of(1, 1, 1);
        rest = read_mask(rest, &masks[*count]);
        if (!rest)
            return false;
    }
    return true;
}

/* ---------------------------------------------------------------------------------------------------------------- grid */

/* The axes of the grid in the order in which they are walked, the last one fastest. */
typedef enum axis {
    AXIS_PASS,
    AXIS_DTYPE,
    AXIS_LAYOUT,
    AXIS_DIM,
    AXIS_DIM_V,
    AXIS_HEADS,
    AXIS_HEADS_KV,
    AXIS_BATCH,
    AXIS_MASK,
    AXIS_SEQ,
    AXIS_SEQ_K,
    AXIS_THREADS,
    AXES
} axis;

static bool make_cell(const bench_options *o, const problem *masks, const int64_t at[AXES], bench_cell *cell)
{
    const int64_t seq = o->seq.item[at[AXIS_SEQ]], seq_k = o->seq_k.item[at[AXIS_SEQ_K]], dim = o->dim.item[at[AXIS_DIM]];
    const int64_t heads = o->heads.item[at[AXIS_HEADS]], batch = o->batch.item[at[AXIS_BATCH]];
    const int64_t dim_v = o->dim_v.item[at[AXIS_DIM_V]], pass = o->passes.item[at[AXIS_PASS]];
    problem *p = &cell->p;
    *p = masks[at[AXIS_MASK]];
    p->op = pass == PASS_BACKWARD ? FATTN_OP_BACKWARD : FATTN_OP_FORWARD;
    p->dtype = o->dtypes.item[at[AXIS_DTYPE]] == 1 ? FATTN_F64 : FATTN_F32;
    p->layout = o->layouts.item[at[AXIS_LAYOUT]] == 1 ? LAYOUT_BSHD : LAYOUT_BHSD;
    p->seq_q = pass == PASS_DECODE ? 1 : seq;
    p->seq_k = seq_k ? seq_k : seq;
    p->dim = dim;
    p->dim_v = dim_v ? dim_v : dim;
    p->heads_q = heads ? heads : FA_WIDTH / dim > 0 ? FA_WIDTH / dim : 1;
    p->batch = batch ? batch : FA_TOKENS / seq > 0 ? FA_TOKENS / seq : 1;
    p->seed = (uint64_t)o->seed;
    const int64_t heads_kv = o->heads_kv.item[at[AXIS_HEADS_KV]] ? o->heads_kv.item[at[AXIS_HEADS_KV]] : p->heads_q;
    if (heads_kv > p->heads_q || p->heads_q % heads_kv != 0) {
        cli_error("--heads-kv: %" PRId64 " does not divide --heads %" PRId64, heads_kv, p->heads_q);
        return false;
    }
    p->group = p->heads_q / heads_kv;
    if (!problem_fits(p)) {
        cli_error("--batch %" PRId64 ", --heads %" PRId64 ", --seq %" PRId64 ", --dim %" PRId64
                  ": a tensor has more than 2^40 elements",
                  p->batch, p->heads_q, seq, dim);
        return false;
    }
    cell->decode = pass == PASS_DECODE;
    cell->threads = (int)o->threads.item[at[AXIS_THREADS]];
    cell->seconds = o->seconds;
    cell->json = o->json;
    cell->kernels = o->kernels.count;
    for (int i = 0; i < o->kernels.count; i++)
        cell->kernel[i] = o->kernels.item[i];
    return true;
}

/* Steps to the next cell; false behind the last. */
static bool advance(int64_t at[AXES], const int counts[AXES])
{
    for (int i = AXES - 1; i >= 0; i--) {
        if (++at[i] < counts[i])
            return true;
        at[i] = 0;
    }
    return false;
}

static int walk(const bench_options *o, const problem *masks, int masks_count)
{
    const int counts[AXES] = {
        [AXIS_PASS] = o->passes.count,       [AXIS_DTYPE] = o->dtypes.count, [AXIS_LAYOUT] = o->layouts.count,
        [AXIS_DIM] = o->dim.count,           [AXIS_DIM_V] = o->dim_v.count,  [AXIS_HEADS] = o->heads.count,
        [AXIS_HEADS_KV] = o->heads_kv.count, [AXIS_BATCH] = o->batch.count,  [AXIS_MASK] = masks_count,
        [AXIS_SEQ] = o->seq.count,           [AXIS_SEQ_K] = o->seq_k.count,  [AXIS_THREADS] = o->threads.count};
    int64_t at[AXES] = {0};
    int code = CLI_OK;
    bool first = true;
    do {
        bench_cell cell = {.first = first};
        if (!make_cell(o, masks, at, &cell))
            return CLI_WRONG;
        const int result = bench_run_cell(&cell);
        if (result == CLI_WRONG)
            return result;
        code = result != CLI_OK ? result : code;
        first = false;
    } while (advance(at, counts));
    return code;
}

int bench_attention(int argc, char **argv)
{
    bench_options *o = malloc(sizeof *o);
    problem masks[MASKS_MAX];
    int count = 0, status = CLI_FAILED;
    if (o && read_options(o, argc, argv, &status)) {
        status = supported(o) ? CLI_OK : CLI_WRONG;
        if (status == CLI_OK)
            status = read_masks(o->masks, masks, &count) ? walk(o, masks, count) : CLI_WRONG;
    }
    free(o);
    return status;
}
