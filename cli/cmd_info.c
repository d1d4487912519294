/*
 * fattn info: the library, the machine, and which kernels can run.
 */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "gpu/memory.h"
#include "json_out.h"
#include "machine.h"
#include "options.h"
#include "run.h"

static const struct {
    uint32_t bit;
    const char *name;
} features[] = {
    {FATTN_CPU_AVX2, "avx2"},         {FATTN_CPU_AVX512, "avx512"},
    {FATTN_CPU_F16C, "f16c"},         {FATTN_CPU_AVX512_BF16, "avx512_bf16"},
    {FATTN_CPU_AMX_BF16, "amx_bf16"},
};

enum { FEATURES = sizeof features / sizeof features[0] };

/* "avx2, avx512" */
static void list_features(uint32_t bits, char *text, size_t size)
{
    text[0] = '\0';
    for (int i = 0; i < FEATURES; i++)
        if (bits & features[i].bit) {
            const size_t used = strlen(text);
            snprintf(text + used, size - used, "%s%s", used ? ", " : "", features[i].name);
        }
}

/* ------------------------------------------------------------------------------------------------------------- kernels */

/* Problems of a type of which each kernel should accept one: a call with many rows, and one with few, or sums in any order. */
enum { PROBES = 2 };

static problem probe(fattn_op op, fattn_dtype dtype, int number)
{
    problem p = problem_of(number && op == FATTN_OP_FORWARD ? 1 : 256, 256, 64);
    p.op = op;
    p.dtype = dtype;
    p.batch = 1;
    p.heads_q = 4;
    p.unordered = number && op == FATTN_OP_BACKWARD;
    return p;
}

/* Every kernel of a device, with the kindest of its answers. */
static int list_kernels(harness *h, fattn_op op, fattn_device device, kernel_entry list[KERNELS_MAX])
{
    static const fattn_dtype types[] = {FATTN_F32, FATTN_F64, FATTN_F16, FATTN_BF16};
    kernel_entry entries[KERNELS_MAX];
    int count = 0;
    for (size_t type = 0; type < sizeof types / sizeof types[0]; type++)
        for (int number = 0; number < PROBES; number++) {
            const problem p = probe(op, types[type], number);
            const int found = harness_kernels_of(h, &p, device, entries);
            for (int i = 0; i < found; i++) {
                const bool first = i >= count, selected = (!first && list[i].selected) || entries[i].selected;
                if (first || (!list[i].of_type && entries[i].of_type) || (list[i].refusal && !entries[i].refusal))
                    list[i] = entries[i];
                list[i].selected = selected;
            }
            count = found > count ? found : count;
        }
    return count;
}

/* Why a kernel cannot run here; NULL if it can. absent: why its device is not there; NULL if it is. */
static const char *reason_of(const kernel_entry *k, const char *absent)
{
    return k->refusal && absent ? absent : k->refusal;
}

static void print_kernel(const kernel_entry *k, const char *op, const char *device, const char *absent)
{
    char lacks[80];
    list_features(k->lacks, lacks, sizeof lacks);
    printf("  %-9s %-36s %-4s ", op, k->name, device);
    if (*lacks)
        printf("cannot run here: the machine lacks %s\n", lacks);
    else if (k->refusal)
        printf("cannot run here: %s\n", reason_of(k, absent));
    else
        printf("runs here%s\n", k->selected ? ", first choice" : "");
}

static void json_kernel(json_out *json, const kernel_entry *k, const char *op, const char *device, const char *absent)
{
    char lacks[80];
    list_features(k->lacks, lacks, sizeof lacks);
    json_open(json, NULL, '{');
    json_string(json, "name", k->name);
    json_string(json, "op", op);
    json_string(json, "device", device);
    json_bool(json, "runs", !k->refusal);
    json_bool(json, "first_choice", !k->refusal && k->selected);
    json_string(json, "lacks", *lacks ? lacks : NULL);
    json_string(json, "refusal", reason_of(k, absent));
    json_close(json, '}');
}

static void each_kernel_of(harness *h, fattn_device device, const char *absent, json_out *json)
{
    const char *const word = device == FATTN_DEVICE_CPU ? "cpu" : "cuda";
    for (int op = 0; op < 2; op++) {
        kernel_entry list[KERNELS_MAX];
        const int count = list_kernels(h, op ? FATTN_OP_BACKWARD : FATTN_OP_FORWARD, device, list);
        for (int i = 0; i < count; i++)
            if (json)
                json_kernel(json, &list[i], op ? "backward" : "forward", word, absent);
            else
                print_kernel(&list[i], op ? "backward" : "forward", word, absent);
    }
}

/* Those of GPUs are asked on the first GPU; where there is none, the library still says which were built. */
static void each_kernel(harness *h, json_out *json)
{
    char absent[300];
    harness on_gpu = harness_make();
    const bool there = harness_use_gpu(&on_gpu, absent, sizeof absent);
    each_kernel_of(h, FATTN_DEVICE_CPU, NULL, json);
    each_kernel_of(there ? &on_gpu : h, FATTN_DEVICE_CUDA, there ? NULL : absent, json);
    harness_free(&on_gpu);
}

/* ---------------------------------------------------------------------------------------------------------------- GPUs */

/* "9.0" */
static void capability_text(const gpu_info *gpu, char text[16])
{
    snprintf(text, 16, "%d.%d", gpu->capability / 10, gpu->capability % 10);
}

static void print_gpu(const gpu_info *gpu)
{
    char capability[16];
    capability_text(gpu, capability);
    printf("gpu       %s, compute capability %s, %.1f GiB, %d multiprocessors\n", gpu->name, capability,
           (double)gpu->memory / (1 << 30), gpu->multiprocessors);
}

static void json_gpu(json_out *json, const gpu_info *gpu)
{
    char capability[16];
    capability_text(gpu, capability);
    json_open(json, NULL, '{');
    json_string(json, "name", gpu->name);
    json_string(json, "compute_capability", capability);
    json_int(json, "memory_bytes", (int64_t)gpu->memory);
    json_int(json, "multiprocessors", gpu->multiprocessors);
    json_close(json, '}');
}

/* Prints every GPU. Returns false, with the reason, if there is none or one cannot be looked at. */
static bool each_gpu(json_out *json, char *reason, size_t size)
{
    const int count = gpu_count(reason, size);
    for (int i = 0; i < count; i++) {
        gpu_info gpu;
        if (!gpu_look(i, &gpu, reason, size))
            return false;
        if (json)
            json_gpu(json, &gpu);
        else
            print_gpu(&gpu);
    }
    return count > 0;
}

static void print_info(harness *h, const fattn_context_info *info)
{
    char text[160], cpu[128], reason[300];
    list_features(info->cpu_features, text, sizeof text);
    machine_cpu_name(cpu, sizeof cpu);
    printf("fattn     %s (header %d.%d.%d)\n", fattn_version(), FATTN_VERSION_MAJOR, FATTN_VERSION_MINOR, FATTN_VERSION_PATCH);
    printf("build     %s\n", info->build);
    printf("cpu       %s\n", cpu);
    printf("features  %s\n", *text ? text : "none beyond the base");
    printf("threads   %d\n", info->threads);
    if (!each_gpu(NULL, reason, sizeof reason))
        printf("gpus      none: %s\n", reason);
    printf("forced    %s\n", info->kernel ? info->kernel : "no kernel");
    printf("kernels\n");
    each_kernel(h, NULL);
}

static void json_info(harness *h, const fattn_context_info *info)
{
    char cpu[128], reason[300];
    machine_cpu_name(cpu, sizeof cpu);
    json_out json = json_begin(stdout);
    json_string(&json, "version", fattn_version());
    json_string(&json, "build", info->build);
    json_string(&json, "device_name", cpu);
    json_open(&json, "cpu_features", '[');
    for (int i = 0; i < FEATURES; i++)
        if (info->cpu_features & features[i].bit)
            json_string(&json, NULL, features[i].name);
    json_close(&json, ']');
    json_int(&json, "threads", info->threads);
    json_open(&json, "gpus", '[');
    const bool any = each_gpu(&json, reason, sizeof reason);
    json_close(&json, ']');
    json_string(&json, "gpus_absent", any ? NULL : reason);
    json_string(&json, "forced", info->kernel);
    json_open(&json, "kernels", '[');
    each_kernel(h, &json);
    json_close(&json, ']');
    json_end(&json);
}

int cmd_info(int argc, char **argv)
{
    bool json = false;
    const option_spec table[] = {{"json", NULL, OPTION_FLAG, &json, .help = "one JSON object"}, {0}};
    const option_set set = {.usage = "fattn info [options]",
                            .about =
                                "Prints the library's version and build, what the machine has, and which kernels run here.",
                            .table = table};
    int status;
    if (!options_parse(&set, argc, argv, &status))
        return status;
    harness h = harness_make();
    fattn_context *context = harness_context(&h, NULL, 0);
    fattn_context_info info = {.struct_size = sizeof info};
    if (!context || fattn_context_query(context, &info) != FATTN_OK) {
        cli_error("info: %s", fattn_last_error());
        harness_free(&h);
        return CLI_FAILED;
    }
    if (json)
        json_info(&h, &info);
    else
        print_info(&h, &info);
    harness_free(&h);
    return CLI_OK;
}
