/*
 * fattn bench attention: the command line, and the grid of cells that it spans. A cell is timed in bench_cell.c.
 *
 * Every cell of the grid is looked at before the first is timed, so that a combination that makes no sense is said at once.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cli.h"
#include "options.h"

enum { DEVICES = FATTN_DEVICE_CUDA + 1 };

/* A list of real numbers: its text, and what it says. */
typedef struct number_list {
    const char *text;
    int count;
    double item[BENCH_LIST_MAX];
} number_list;

typedef struct bench_options {
    option_ints devices, dtypes, out_dtypes, kvs, batch, heads, heads_kv, seq, seq_q, seq_k, dim, dim_v, layouts, passes, pages,
        threads;
    option_texts kernels;
    const char *mask_text, *bias_text;
    number_list softcaps, dropouts;
    bool dbias, alibi, sinks, varlen, unordered;
    double seconds;
    int preset, grad_dtype;
    int64_t seed;
    bool json;
    int masks_count; /* what the texts say */
    bench_mask masks[BENCH_LIST_MAX];
    option_ints biases;
    bench_place places[DEVICES]; /* open, if the list of devices has them */
} bench_options;

static const char *const device_words[] = {"cpu", "cuda", NULL};
static const char *const dtype_words[] = {"f32", "f64", "bf16", "f16", NULL};
static const fattn_dtype dtypes[] = {FATTN_F32, FATTN_F64, FATTN_BF16, FATTN_F16};
static const char *const wide_words[] = {"same", "f32", NULL};
static const char *const kv_words[] = {"same", "i8", NULL};
static const char *const layout_words[] = {"bhsd", "bshd", NULL};
static const char *const pass_words[] = {"fwd", "bwd", "decode", NULL};
static const char *const preset_words[] = {"none", "fa", "cpu", "decode", "short", NULL};

enum { PRESET_NONE, PRESET_FA, PRESET_CPU, PRESET_DECODE, PRESET_SHORT };
enum { FA_TOKENS = 16384, FA_WIDTH = 2048 };

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
                       .out_dtypes = INTS(0),
                       .kvs = INTS(0),
                       .batch = INTS(1),
                       .heads = INTS(8),
                       .heads_kv = INTS(0),
                       .seq = INTS(2048),
                       .seq_q = INTS(0),
                       .seq_k = INTS(0),
                       .dim = INTS(64),
                       .dim_v = INTS(0),
                       .layouts = INTS(0),
                       .passes = INTS(BENCH_FORWARD),
                       .pages = INTS(0),
                       .threads = INTS(0),
                       .kernels = {.count = 1, .item = {"auto"}},
                       .mask_text = "full",
                       .bias_text = "none",
                       .softcaps = {.text = "0"},
                       .dropouts = {.text = "0"},
                       .seconds = 1,
                       .preset = preset,
                       .seed = 1};
    switch (preset) {
    case PRESET_FA:
        o.batch = o.heads = INTS(0);
        o.seq = INTS(512, 1024, 2048, 4096, 8192, 16384);
        o.dim = INTS(64, 128);
        o.mask_text = "full,causal";
        o.passes = INTS(BENCH_FORWARD, BENCH_BACKWARD);
        break;
    case PRESET_CPU:
        o.seq = INTS(512, 2048);
        o.dim = INTS(32, 64, 128);
        o.mask_text = "full,causal";
        o.passes = INTS(BENCH_FORWARD, BENCH_BACKWARD);
        break;
    case PRESET_DECODE:
        o.dtypes = INTS(0, 2);
        o.batch = INTS(1, 8);
        o.heads = INTS(32);
        o.heads_kv = INTS(8, 32);
        o.seq = INTS(1024, 8192);
        o.dim = INTS(128);
        o.passes = INTS(BENCH_DECODE);
        break;
    case PRESET_SHORT:
        o.batch = INTS(16);
        o.seq = INTS(32, 64, 128, 256);
        o.dim = INTS(32, 64);
        o.mask_text = "full,causal";
        o.passes = INTS(BENCH_FORWARD, BENCH_BACKWARD);
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
        {"pass", "NAME,...", OPTION_WORDS, &o->passes, .words = pass_words, .help = "what is timed"},
        {"dtype", "NAME,...", OPTION_WORDS, &o->dtypes, .words = dtype_words, .help = "types"},
        {"out-dtype", "NAME,...", OPTION_WORDS, &o->out_dtypes, .words = wide_words, .help = "type of out and its gradient"},
        {"grad-dtype", "NAME", OPTION_WORD, &o->grad_dtype, .words = wide_words, .help = "type of the other gradients"},
        {"kv", "NAME,...", OPTION_WORDS, &o->kvs, .words = kv_words, .help = "keys and values: bytes with a factor per row"},
        {"batch", "N,...", OPTION_INTS, &o->batch, .high = most, .help = "batch; 0: 16384 tokens in all"},
        {"heads", "N,...", OPTION_INTS, &o->heads, .high = most, .help = "query heads; 0: heads x dim = 2048"},
        {"heads-kv", "N,...", OPTION_INTS, &o->heads_kv, .high = most, .help = "key/value heads; 0: as heads"},
        {"seq", "N,...", OPTION_INTS, &o->seq, .low = 1, .high = most, .help = "queries and keys (decode: keys)"},
        {"seq-q", "N,...", OPTION_INTS, &o->seq_q, .high = most, .help = "queries; 0: as seq (decode: 1)"},
        {"seq-k", "N,...", OPTION_INTS, &o->seq_k, .high = most, .help = "keys; 0: as seq"},
        {"dim", "N,...", OPTION_INTS, &o->dim, .low = 1, .high = 512, .help = "length of queries and keys"},
        {"dim-v", "N,...", OPTION_INTS, &o->dim_v, .high = 512, .help = "length of values; 0: as dim"},
        {"mask", "NAME,...", OPTION_TEXT, &o->mask_text, .help = "see above"},
        {"bias", "DIMS,...", OPTION_TEXT, &o->bias_text, .help = "dimensions besides keys: none, k, b, h, q, bh, ... bhq"},
        {"dbias", NULL, OPTION_FLAG, &o->dbias, .help = "backward: its gradient too, of the same dimensions"},
        {"alibi", NULL, OPTION_FLAG, &o->alibi, .help = "ALiBi with the paper's slopes"},
        {"softcap", "X,...", OPTION_TEXT, &o->softcaps.text, .help = "cap on the scores; 0: none"},
        {"sinks", NULL, OPTION_FLAG, &o->sinks, .help = "a sink per head, and backward its gradient"},
        {"dropout", "P,...", OPTION_TEXT, &o->dropouts.text, .help = "probability; 0: none"},
        {"varlen", NULL, OPTION_FLAG, &o->varlen, .help = "sequences of drawn lengths, see above"},
        {"unordered", NULL, OPTION_FLAG, &o->unordered, .help = "backward may add in any order"},
        {"page", "N,...", OPTION_INTS, &o->pages, .high = most, .help = "keys and values in shuffled pages of N rows; 0: no"},
        {"layout", "NAME,...", OPTION_WORDS, &o->layouts, .words = layout_words, .help = "order in memory"},
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
            "Operations: 2 (dim + dim_v) for each score that the mask keeps, 2.5 times that backward; scores is their number.\n"
            "peak_gflops is the multiply-add peak of the vector unit that the kernel uses, on as many\n"
            "threads at once; it is measured before, after and between the runs, and its best window counts. The machine may\n"
            "be shared, so fraction_of_peak compares best with best: operations / ms_min / peak_gflops. Only ratios mean\n"
            "anything on another machine. bytes is the size of all tensors that are read or written.\n"
            "max_error is the largest difference on sampled rows from a computation in double; a wrong kernel makes the exit\n"
            "code 1. In the table, speed compares with the first kernel of the list.\n\n"
            "Masks: full, causal, window:L,R, chunked:N, prefix:N, document:N (documents of about N rows), document:N,L,R\n"
            "(and a window), intervals (each row keeps the keys from a drawn one to itself). With -br before the colon, the\n"
            "last row stands at the last key; otherwise the first at the first.\n\n"
            "decode times a few rows against a cache, every mask aligned as with -br. bytes is then what the cache gives: "
            "rows\n"
            "of keys and values that the mask keeps, and their factors. Each call reads another copy, so that nothing comes\n"
            "from a cache of the processor, and fraction_of_copy compares bytes / ms_min with the best rate at which as many\n"
            "threads read the same memory, measured before, after and between the runs.\n\n"
            "On a GPU events between queued calls are the clock, after a quarter of a second of the same calls; of calls under "
            "20\n"
            "microseconds several are one run. decode's copies have at least 256 MiB, and fraction_of_copy compares with a "
            "copy\n"
            "of a gigabyte within the GPU's memory, bytes read plus bytes written. There is no peak_gflops. --threads means "
            "nothing.\n\n"
            "With --varlen the sequences are packed, batch x seq rows in all; decode has caches of differing used lengths.",
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

static bool has(const option_ints *list, int64_t item)
{
    for (int i = 0; i < list->count; i++)
        if (list->item[i] == item)
            return true;
    return false;
}

/* Whether the library knows every kernel of the list; for any device, as those of another one are left out. */
static bool kernels_exist(const bench_options *o)
{
    const bench_place host = {0};
    for (int i = 0; i < o->kernels.count; i++) {
        fattn_context *context = NULL;
        const char *name = o->kernels.item[i];
        const fattn_context_options options = bench_context_options(&host, name, 1);
        if (fattn_context_create(&options, &context) != FATTN_OK) {
            cli_error("--kernel: %s: %s", name, fattn_last_error());
            return false;
        }
        fattn_context_destroy(context);
    }
    return true;
}

static bool open_places(bench_options *o)
{
    for (int device = 0; device < DEVICES; device++)
        if (has(&o->devices, device) && !bench_place_open(&o->places[device], (fattn_device)device))
            return false;
    return true;
}

static void close_places(bench_options *o)
{
    for (int device = 0; device < DEVICES; device++)
        bench_place_close(&o->places[device]);
}

/* What can be said without looking at cells. */
static bool supported(const bench_options *o)
{
    if (o->kernels.count > BENCH_KERNELS_MAX) {
        cli_error("--kernel: %d names are more than %d", o->kernels.count, BENCH_KERNELS_MAX);
        return false;
    }
    if (o->dbias && !has(&o->passes, BENCH_BACKWARD)) {
        cli_error("--dbias: a gradient needs --pass bwd");
        return false;
    }
    if (o->dbias && o->biases.count == 1 && o->biases.item[0] == BIAS_NONE) {
        cli_error("--dbias: needs --bias");
        return false;
    }
    return kernels_exist(o);
}

/* What the texts of lists say. */
static bool read_lists(bench_options *o)
{
    o->masks_count = bench_read_masks(o->mask_text, o->masks);
    o->biases.count = o->masks_count > 0 ? bench_read_biases(o->bias_text, o->biases.item) : 0;
    if (o->biases.count > 0)
        o->softcaps.count = bench_read_numbers("--softcap", o->softcaps.text, 0, 1e30, o->softcaps.item);
    if (o->softcaps.count > 0)
        o->dropouts.count = bench_read_numbers("--dropout", o->dropouts.text, 0, 0.999, o->dropouts.item);
    return o->dropouts.count > 0;
}

/* ---------------------------------------------------------------------------------------------------------------- grid */

/* The axes of the grid in the order in which they are walked, the last one fastest. */
typedef enum axis {
    AXIS_DEVICE,
    AXIS_PASS,
    AXIS_DTYPE,
    AXIS_OUT,
    AXIS_KV,
    AXIS_LAYOUT,
    AXIS_DIM,
    AXIS_DIM_V,
    AXIS_HEADS,
    AXIS_HEADS_KV,
    AXIS_BATCH,
    AXIS_BIAS,
    AXIS_SOFTCAP,
    AXIS_DROPOUT,
    AXIS_PAGE,
    AXIS_MASK,
    AXIS_SEQ,
    AXIS_SEQ_Q,
    AXIS_SEQ_K,
    AXIS_THREADS,
    AXES
} axis;

static void set_shape(bench_cell *cell, const bench_options *o, const int64_t at[AXES])
{
    const int64_t seq = o->seq.item[at[AXIS_SEQ]], dim = o->dim.item[at[AXIS_DIM]], seq_q = o->seq_q.item[at[AXIS_SEQ_Q]];
    const int64_t heads = o->heads.item[at[AXIS_HEADS]], heads_kv = o->heads_kv.item[at[AXIS_HEADS_KV]];
    const int64_t batch = o->batch.item[at[AXIS_BATCH]], dim_v = o->dim_v.item[at[AXIS_DIM_V]];
    const int64_t seq_k = o->seq_k.item[at[AXIS_SEQ_K]];
    cell->seq_q = seq_q ? seq_q : cell->pass == BENCH_DECODE ? 1 : seq;
    cell->seq_k = seq_k ? seq_k : seq;
    cell->dim = dim;
    cell->dim_v = dim_v ? dim_v : dim;
    cell->heads = heads ? heads : FA_WIDTH / dim > 0 ? FA_WIDTH / dim : 1;
    cell->heads_kv = heads_kv ? heads_kv : cell->heads;
    cell->batch = batch ? batch : FA_TOKENS / seq > 0 ? FA_TOKENS / seq : 1;
}

static bench_cell make_cell(const bench_options *o, const int64_t at[AXES])
{
    const fattn_dtype dtype = dtypes[o->dtypes.item[at[AXIS_DTYPE]]];
    bench_cell cell = {.pass = (bench_pass)o->passes.item[at[AXIS_PASS]],
                       .dtype = dtype,
                       .out_f32 = o->out_dtypes.item[at[AXIS_OUT]] == 1 && dtype != FATTN_F32,
                       .grad_f32 = o->grad_dtype == 1 && dtype != FATTN_F32,
                       .kv_i8 = o->kvs.item[at[AXIS_KV]] == 1,
                       .bshd = o->layouts.item[at[AXIS_LAYOUT]] == 1,
                       .mask = o->masks[at[AXIS_MASK]],
                       .bias = (unsigned)o->biases.item[at[AXIS_BIAS]],
                       .dbias = o->dbias,
                       .alibi = o->alibi,
                       .sinks = o->sinks,
                       .varlen = o->varlen,
                       .unordered = o->unordered,
                       .softcap = o->softcaps.item[at[AXIS_SOFTCAP]],
                       .dropout = o->dropouts.item[at[AXIS_DROPOUT]],
                       .page = o->pages.item[at[AXIS_PAGE]],
                       .seed = (uint64_t)o->seed,
                       .place = &o->places[o->devices.item[at[AXIS_DEVICE]]],
                       .threads = (int)o->threads.item[at[AXIS_THREADS]],
                       .seconds = o->seconds,
                       .json = o->json,
                       .kernels = o->kernels.count};
    set_shape(&cell, o, at);
    if (cell.pass == BENCH_DECODE && cell.mask.kind != FATTN_MASK_FULL)
        cell.mask.align = FATTN_ALIGN_BOTTOM_RIGHT;
    for (int i = 0; i < o->kernels.count; i++)
        cell.kernel[i] = o->kernels.item[i];
    return cell;
}

/* Whether every tensor has at most 2^40 elements. */
static bool cell_fits(const bench_cell *cell)
{
    const int64_t most = (int64_t)1 << 40, dim = cell->dim > cell->dim_v ? cell->dim : cell->dim_v;
    const unsigned bias = cell->bias & BIAS_NONE ? 0 : cell->bias;
    const int64_t tensors[3][4] = {{cell->batch, cell->heads, cell->seq_q, dim},
                                   {cell->batch, cell->heads_kv, cell->seq_k, dim},
                                   {bias & BIAS_BATCH ? cell->batch : 1, bias & BIAS_HEAD ? cell->heads : 1,
                                    bias & BIAS_ROW ? cell->seq_q : 1, cell->seq_k}};
    for (int t = 0; t < 3; t++) {
        int64_t count = 1;
        for (int i = 0; i < 4; i++)
            if (__builtin_mul_overflow(count, tensors[t][i] > 0 ? tensors[t][i] : 1, &count) || count > most)
                return false;
    }
    return true;
}

static bool sizes_right(const bench_cell *cell)
{
    if (cell->heads_kv > cell->heads || cell->heads % cell->heads_kv != 0) {
        cli_error("--heads-kv: %" PRId64 " does not divide --heads %" PRId64, cell->heads_kv, cell->heads);
        return false;
    }
    if (!cell_fits(cell)) {
        cli_error("--batch %" PRId64 ", --heads %" PRId64 ", queries %" PRId64 ", keys %" PRId64 ", --dim %" PRId64
                  ": a tensor has more than 2^40 elements",
                  cell->batch, cell->heads, cell->seq_q, cell->seq_k, cell->dim);
        return false;
    }
    if (cell->batch * cell->seq_q >= INT32_MAX || cell->batch * cell->seq_k >= INT32_MAX) {
        cli_error("--batch %" PRId64 ", queries %" PRId64 ", keys %" PRId64 ": more than 2^31 rows in all", cell->batch,
                  cell->seq_q, cell->seq_k);
        return false;
    }
    return true;
}

/* Features that do not go together. */
static const char *contradiction(const bench_cell *cell)
{
    if (cell->out_f32 && cell->dtype == FATTN_F64)
        return "--out-dtype f32: goes with bf16 and f16, not with --dtype f64";
    if (cell->grad_f32 && cell->dtype == FATTN_F64)
        return "--grad-dtype f32: goes with bf16 and f16, not with --dtype f64";
    if (cell->kv_i8 && cell->pass == BENCH_BACKWARD)
        return "--kv i8: goes with --pass fwd and decode, not with bwd";
    if (cell->kv_i8 && cell->dtype == FATTN_F64)
        return "--kv i8: not with --dtype f64";
    if (cell->page > 0 && cell->pass == BENCH_BACKWARD)
        return "--page: goes with --pass fwd and decode, not with bwd";
    if (cell->page > 0 && bench_packed(cell))
        return "--page: packed sequences (--varlen) have no pages, except in --pass decode";
    return NULL;
}

/* Whether this cell can be run: by what the options say, and by what the library says to its descriptor. */
static bool cell_right(const bench_cell *cell)
{
    const char *wrong = contradiction(cell);
    if (wrong) {
        cli_error("%s", wrong);
        return false;
    }
    if (!sizes_right(cell))
        return false;
    const fattn_context_options options = {.struct_size = sizeof options, .threads = 1, .kernel = ""};
    const fattn_desc desc = bench_desc(cell, NULL);
    fattn_context *context;
    size_t bytes;
    const bool ok = fattn_context_create(&options, &context) == FATTN_OK &&
                    fattn_workspace_size(context, &desc, bench_op(cell), &bytes) == FATTN_OK;
    if (!ok)
        cli_error("bench: the library refuses this problem: %s", fattn_last_error());
    fattn_context_destroy(context);
    return ok;
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

static void count_axes(const bench_options *o, int counts[AXES])
{
    const int all[AXES] = {
        [AXIS_DEVICE] = o->devices.count,    [AXIS_PASS] = o->passes.count,      [AXIS_DTYPE] = o->dtypes.count,
        [AXIS_OUT] = o->out_dtypes.count,    [AXIS_KV] = o->kvs.count,           [AXIS_LAYOUT] = o->layouts.count,
        [AXIS_DIM] = o->dim.count,           [AXIS_DIM_V] = o->dim_v.count,      [AXIS_HEADS] = o->heads.count,
        [AXIS_HEADS_KV] = o->heads_kv.count, [AXIS_BATCH] = o->batch.count,      [AXIS_BIAS] = o->biases.count,
        [AXIS_SOFTCAP] = o->softcaps.count,  [AXIS_DROPOUT] = o->dropouts.count, [AXIS_PAGE] = o->pages.count,
        [AXIS_MASK] = o->masks_count,        [AXIS_SEQ] = o->seq.count,          [AXIS_SEQ_Q] = o->seq_q.count,
        [AXIS_SEQ_K] = o->seq_k.count,       [AXIS_THREADS] = o->threads.count};
    memcpy(counts, all, sizeof all);
}

static int check_grid(const bench_options *o)
{
    int counts[AXES];
    int64_t at[AXES] = {0};
    count_axes(o, counts);
    do {
        const bench_cell cell = make_cell(o, at);
        if (!cell_right(&cell))
            return CLI_WRONG;
    } while (advance(at, counts));
    return CLI_OK;
}

static int run_grid(const bench_options *o)
{
    int counts[AXES], code = CLI_OK;
    int64_t at[AXES] = {0};
    bool first = true;
    count_axes(o, counts);
    do {
        bench_cell cell = make_cell(o, at);
        if (cell.place->gpu && at[AXIS_THREADS] > 0)
            continue; /* a GPU's calls use no threads */
        cell.first = first;
        const int result = bench_run_cell(&cell);
        if (result == CLI_WRONG)
            return result;
        if (!bench_place_wait(cell.place)) /* a GPU that is of no more use; it was said why */
            return CLI_FAILED;
        code = result != CLI_OK ? result : code;
        first = false;
    } while (advance(at, counts));
    return code;
}

int bench_attention(int argc, char **argv)
{
    bench_options *o = malloc(sizeof *o);
    int status = CLI_FAILED;
    if (o && read_options(o, argc, argv, &status)) {
        status = read_lists(o) && supported(o) && open_places(o) ? check_grid(o) : CLI_WRONG;
        if (status == CLI_OK)
            status = run_grid(o);
        close_places(o);
    }
    free(o);
    return status;
}
