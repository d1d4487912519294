/*
 * fattn bench train: how fast a model trains, and in how much memory, with composed attention and with flash, at several
 * sequence lengths and widths of a head. One process for the whole grid, so that a GPU is opened once. The model's width, and
 * the tokens in a step, are the same everywhere; the tokens are random, as what they say changes nothing here.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "cli.h"
#include "fattn/fattn.h"
#include "json_out.h"
#include "machine.h"
#include "options.h"
#include "train/error.h"
#include "train/evaluate.h"
#include "train/optimizer.h"
#include "train/random.h"
#include "train_exit.h"
#include "train_place.h"

enum { WARM_UP = 3, LEAST = 3, MOST = 1000, PATHS = 2 }; /* steps; the first two are not yet as fast as the rest */

static const char *const path_words[PATHS + 1] = {"composed", "flash", NULL};

typedef struct bench_train_options {
    int device, dtype;
    int64_t hidden, layers, heads_kv, ffn, vocab, tokens, threads; /* heads_kv 0: as many as query heads */
    option_ints dims, seqs, paths;
    double seconds;
    bool json, recompute; /* recompute: with it as well */
} bench_train_options;

typedef struct bench_train_run {
    const bench_train_options *o;
    runtime r;
    model *m;
    optimizer *adam;
    int64_t dim, seq, batch;
    bool recompute;
} bench_train_run;

typedef struct bench_speed {
    double ms, tokens_per_s; /* of the median step */
    size_t bytes;            /* planned */
} bench_speed;

static int compare(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static bool one_step(bench_train_run *b, model_step *s, const int32_t *tokens)
{
    double loss, norm;
    return model_zero_grad(b->m) && step_forward(s, tokens, tokens, NULL) && step_backward(s, 1.0f / (float)step_targets(s)) &&
           step_loss(s, &loss) && optimizer_update(b->adam, 1e-4, &norm);
}

static bool time_steps(bench_train_run *b, model_step *s, bench_speed *speed)
{
    const int64_t rows = b->batch * b->seq;
    random_state random = {1};
    int32_t *tokens = malloc((size_t)rows * sizeof *tokens);
    double seconds[MOST];
    int count = 0;
    bool good = tokens || train_fail_as(TRAIN_ERROR_WORK, "no memory for %lld tokens", (long long)rows);
    for (int64_t i = 0; i < rows && good; i++)
        tokens[i] = (int32_t)random_below(&random, (uint64_t)b->o->vocab);
    for (int i = 0; i < WARM_UP && good; i++)
        good = one_step(b, s, tokens);
    const double begin = evaluate_seconds();
    while (good && count < MOST && (count < LEAST || evaluate_seconds() - begin < b->o->seconds)) {
        const double start = evaluate_seconds();
        good = one_step(b, s, tokens);
        seconds[count++] = evaluate_seconds() - start;
    }
    free(tokens);
    if (!good)
        return false;
    qsort(seconds, (size_t)count, sizeof *seconds, compare);
    speed->ms = 1e3 * seconds[count / 2];
    speed->tokens_per_s = (double)rows / seconds[count / 2];
    return true;
}

static bool measure(bench_train_run *b, attention_kind kind, bench_speed *speed)
{
    model_step *s = step_create(
        b->m, &b->r,
        &(step_options){
            .batch = b->batch, .seq = b->seq, .attention = {.kind = kind}, .backward = true, .recompute = b->recompute});
    if (!s)
        return false;
    const step_memory memory = step_memory_use(s);
    speed->bytes = memory.parameters + memory.gradients + memory.arena + optimizer_bytes(b->adam) + b->m->device->own_bytes;
    const bool good = time_steps(b, s, speed);
    step_free(s);
    return good;
}

static void print_json(const bench_train_run *b, const char *attention, const bench_speed *speed)
{
    const bench_train_options *o = b->o;
    char cpu[128];
    machine_cpu_name(cpu, sizeof cpu);
    json_out json = json_begin(stdout);
    json_string(&json, "op", "train");
    json_string(&json, "version", fattn_version());
    json_string(&json, "device", train_devices[o->device]);
    json_string(&json, "device_name", b->r.device->name ? b->r.device->name : cpu);
    if (!b->r.device->name)
        json_int(&json, "threads", b->r.threads);
    json_string(&json, "dtype", train_types[o->dtype]);
    json_int(&json, "parameters", b->m->weights);
    json_int(&json, "hidden", o->hidden);
    json_int(&json, "layers", o->layers);
    json_int(&json, "ffn", o->ffn);
    json_int(&json, "vocab", o->vocab);
    json_int(&json, "head_dim", b->dim);
    json_int(&json, "heads_kv", b->m->config.heads_kv);
    json_int(&json, "seq", b->seq);
    json_int(&json, "batch", b->batch);
    json_string(&json, "attention", attention);
    json_bool(&json, "recompute", b->recompute);
    json_double(&json, "tokens_per_s", speed->tokens_per_s);
    json_double(&json, "ms", speed->ms);
    json_int(&json, "mem_bytes", (int64_t)speed->bytes);
    json_end(&json);
}

static bool compare_paths(bench_train_run *b)
{
    double first = 0;
    for (int i = 0; i < b->o->paths.count; i++) {
        const int path = (int)b->o->paths.item[i];
        bench_speed speed;
        if (!measure(b, path ? ATTENTION_FLASH : ATTENTION_COMPOSED, &speed))
            return false;
        if (i == 0)
            first = speed.tokens_per_s;
        if (b->o->json)
            print_json(b, path_words[path], &speed);
        else
            printf("%8lld %6lld %6lld %-9s %9s %10.2f %14.0f %8.2f %13.1f\n", (long long)b->dim, (long long)b->seq,
                   (long long)b->batch, path_words[path], b->recompute ? "yes" : "no", speed.ms, speed.tokens_per_s,
                   speed.tokens_per_s / first, (double)speed.bytes / 0x1p20);
        fflush(stdout);
    }
    return true;
}

static int64_t longest(const option_ints *seqs)
{
    int64_t most = 0;
    for (int i = 0; i < seqs->count; i++)
        most = seqs->item[i] > most ? seqs->item[i] : most;
    return most;
}

/* All lengths for one width of a head. */
static bool bench_heads(bench_train_run *b)
{
    const bench_train_options *o = b->o;
    const optimizer_options adam = optimizer_defaults();
    const model_config config = {.vocab = o->vocab,
                                 .hidden = o->hidden,
                                 .layers = o->layers,
                                 .heads = o->hidden / b->dim,
                                 .heads_kv = o->heads_kv ? o->heads_kv : o->hidden / b->dim,
                                 .head_dim = b->dim,
                                 .ffn = o->ffn,
                                 .max_seq = longest(&o->seqs),
                                 .rope_theta = 1e4,
                                 .rms_eps = 1e-6,
                                 .tied = true};
    b->m = model_create(&config, 1);
    bool good = b->m && model_place(b->m, &b->r) && (b->adam = optimizer_create(b->m, &adam));
    for (int i = 0; i < o->seqs.count && good; i++) {
        b->seq = o->seqs.item[i];
        b->batch = o->tokens / b->seq > 0 ? o->tokens / b->seq : 1;
        for (int again = 0; again <= (int)o->recompute && good; again++) {
            b->recompute = again;
            good = compare_paths(b);
        }
    }
    optimizer_free(b->adam);
    model_free(b->m);
    b->adam = NULL;
    b->m = NULL;
    return good;
}

static bool check(const bench_train_options *o)
{
    for (int i = 0; i < o->dims.count; i++) {
        const int64_t heads = o->hidden / o->dims.item[i];
        if (o->hidden % o->dims.item[i]) {
            cli_error("--head-dim: %lld does not divide --hidden, %lld", (long long)o->dims.item[i], (long long)o->hidden);
            return false;
        }
        if (o->heads_kv && heads % o->heads_kv) {
            cli_error("--heads-kv: %lld does not divide the %lld heads that fill --hidden", (long long)o->heads_kv,
                      (long long)heads);
            return false;
        }
    }
    return true;
}

static int run(const bench_train_options *o)
{
    bench_train_run b = {.o = o};
    int status = train_place_open(&b.r, o->device, o->dtype, o->threads, NULL);
    if (status != CLI_OK)
        return status;
    if (!o->json)
        printf("%s, %s\n%8s %6s %6s %-9s %9s %10s %14s %8s %13s\n", b.r.device->name ? b.r.device->name : "CPU",
               train_types[o->dtype], "head dim", "seq", "batch", "attention", "recompute", "ms", "tok/s", "ratio", "MiB");
    for (int i = 0; i < o->dims.count && status == CLI_OK; i++) {
        b.dim = o->dims.item[i];
        if (!bench_heads(&b)) {
            cli_error("%s", train_error());
            status = train_exit_code();
        }
    }
    runtime_close(&b.r);
    return status;
}

int bench_train(int argc, char **argv)
{
    bench_train_options o = {.hidden = 512,
                             .layers = 4,
                             .ffn = 1408,
                             .vocab = 258,
                             .tokens = 8192,
                             .dims = option_ints_of(64),
                             .paths = {.count = 2, .item = {0, 1}},
                             .seqs = {.count = 4, .item = {512, 1024, 2048, 4096}},
                             .seconds = 0.05};
    const option_spec table[] = {
        {"device", "WHERE", OPTION_WORD, &o.device, .words = train_devices, .help = "where to train: cpu or cuda"},
        {"dtype", "TYPE", OPTION_WORD, &o.dtype, .words = train_types, .help = "of activations and products: f32 or bf16"},
        {"hidden", "N", OPTION_INT, &o.hidden, .low = 1, .high = 65536, .help = "width of the model"},
        {"layers", "N", OPTION_INT, &o.layers, .low = 1, .high = 1024, .help = "blocks"},
        {"ffn", "N", OPTION_INT, &o.ffn, .low = 1, .high = 262144, .help = "width of the feed-forward layer"},
        {"vocab", "N", OPTION_INT, &o.vocab, .low = 1, .high = 1 << 24, .help = "tokens there are; 258: bytes and two more"},
        {"head-dim", "N,...", OPTION_INTS, &o.dims, .low = 2, .high = 512, .help = "width of a head; they fill --hidden"},
        {"heads-kv", "N", OPTION_INT, &o.heads_kv, .high = 65536, .help = "heads of keys and values; 0: as many as of queries"},
        {"seq", "N,...", OPTION_INTS, &o.seqs, .low = 1, .high = 1 << 20, .help = "tokens in a window"},
        {"tokens", "N", OPTION_INT, &o.tokens, .low = 1, .high = 1 << 24, .help = "in a step; a window at least"},
        {"attention", "PATH,...", OPTION_WORDS, &o.paths, .words = path_words,
         .help = "what to compare with the first of them"},
        {"recompute", NULL, OPTION_FLAG, &o.recompute, .help = "each also with layers computed again in backward"},
        {"threads", "N", OPTION_INT, &o.threads, .high = 1024, .help = "on the CPU; 0: as many as the process may use"},
        {"seconds", "X", OPTION_DOUBLE, &o.seconds, .low = 0.001, .high = 1e6, .help = "per figure; three steps at least"},
        {"json", NULL, OPTION_FLAG, &o.json, .help = "JSON lines"},
        {0}};
    const option_set set = {
        .usage = "fattn bench train [options]",
        .about = "Times training steps of one model with composed attention and with flash, and says what memory\n"
                 "each plans for. The median step counts.",
        .table = table};
    int status;
    if (!options_parse(&set, argc, argv, &status))
        return status;
    return check(&o) ? run(&o) : CLI_WRONG;
}
