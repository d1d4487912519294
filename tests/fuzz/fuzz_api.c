/*
 * Bytes as calls of the public interface: a descriptor, tensors, mistakes (scene.h), for a context of one thread for each
 * family of kernels. Whatever the bytes are:
 *
 *   - no call reads or writes what is not a tensor's (arena.c), nor does anything that a sanitizer reports;
 *   - a call that fails says why, and has written nothing;
 *   - a call that succeeds writes every element of its outputs, the same bits each time;
 *   - every family agrees with the kernel `ref`, where the numbers are harmless.
 */
#include "scene.h"
#include "status.h"

#include <math.h>
#include <string.h>

enum { CONTEXTS_MOST = 16 };

static fattn_context *contexts[CONTEXTS_MOST]; /* the first chooses by itself, the second is `ref` */
static int context_count;
static const char *const untouched = "untouched";

/* ------------------------------------------------------------------------------------------------------------ contexts */

static void add_context(const char *kernel)
{
    const fattn_context_options options = {.struct_size = sizeof options, .threads = 1, .kernel = kernel};
    FUZZ_CHECK(context_count < CONTEXTS_MOST);
    FUZZ_CHECK(fattn_context_create(&options, &contexts[context_count++]) == FATTN_OK, "%s", fattn_last_error());
}

/* "cpu_avx2" of "cpu_avx2_forward_f32". */
static bool family_of(const char *name, char family[64])
{
    const char *end = strstr(name, "_forward");
    snprintf(family, 64, "%.*s", end ? (int)(end - name) : 0, name);
    return end != NULL;
}

/* A context for each family that this machine can run; their names come from the library. */
static void make_contexts(void)
{
    const fattn_desc desc = {.struct_size = sizeof desc,
                             .dtype = FATTN_F32,
                             .batch = 1,
                             .heads_q = 1,
                             .heads_kv = 1,
                             .seq_q = 1,
                             .seq_k = 1,
                             .dim = 8,
                             .dim_v = 8};
    fattn_kernel_info info = {.struct_size = sizeof info};
    char family[64], before[64] = "ref";
    add_context("");
    add_context("ref");
    for (int32_t i = 0; fattn_kernel_query(contexts[0], &desc, FATTN_OP_FORWARD, i, &info) == FATTN_OK; i++) {
        if (!info.can_run || !family_of(info.name, family) || !strcmp(family, before) || !strcmp(family, "ref"))
            continue;
        add_context(family);
        memcpy(before, family, sizeof before);
    }
}

/* ------------------------------------------------------------------------------------------------------------- queries */

static void ask_about_kernels(const fattn_context *context, const fattn_desc *desc, fattn_op op, fattn_status status)
{
    fattn_kernel_info info = {.struct_size = sizeof info};
    int selected = 0;
    for (int32_t i = 0; fattn_kernel_query(context, desc, op, i, &info) == FATTN_OK; i++) {
        FUZZ_CHECK(info.name && *info.name && (info.selected == 0 || (info.can_run && !info.refusal)), "%s", info.name);
        selected += info.selected;
    }
    FUZZ_CHECK(selected == (status == FATTN_OK), "%d are selected, but the workspace's status is %d", selected, (int)status);
}

static void ask_about_masks(const fattn_desc *desc, const fattn_desc *own, fuzz_input *in)
{
    for (int i = 0; i < 3; i++) {
        int64_t lo = -1, hi = -1;
        const int64_t row =
            own->seq_q > 0 && i < 2 ? (int64_t)(fuzz_number(in, 2) % (uint64_t)own->seq_q) : fuzz_byte(in) - 128;
        forget_error();
        if (checked(fattn_mask_interval(desc, row, &lo, &hi)) == FATTN_OK)
            FUZZ_CHECK(0 <= lo && lo <= hi && hi <= own->seq_k, "%lld .. %lld", (long long)lo, (long long)hi);
    }
}

static void ask_about_dropout(const fattn_desc *desc, const fattn_desc *own, fuzz_input *in)
{
    const int64_t b = fuzz_byte(in) % 4, h = fuzz_byte(in) % 4, i = fuzz_byte(in);
    if (own->seq_k < 0 || own->seq_k > ROWS_MOST)
        return;
    uint8_t *keep = malloc((size_t)own->seq_k + 1);
    FUZZ_CHECK(keep != NULL);
    memset(keep, 7, (size_t)own->seq_k + 1);
    forget_error();
    if (checked(fattn_dropout_keep(desc, b, h, i, keep)) == FATTN_OK)
        for (int64_t j = 0; j < own->seq_k; j++)
            FUZZ_CHECK(keep[j] == 1 || (keep[j] == 0 && own->dropout > 0));
    FUZZ_CHECK(keep[own->seq_k] == 7);
    free(keep);
}

/* -------------------------------------------------------------------------------------------------------------- running */

/* A call to come. */
typedef struct call {
    const fattn_desc *desc;
    const fattn_forward_args *forward;
    const fattn_backward_args *backward; /* this or the other one is NULL */
} call;

static fattn_status run(const fattn_context *context, const scene *s, const call *c, int poison)
{
    forget_error();
    arena_close(s->tensor, TENSORS, poison, s->loose);
    const fattn_status status =
        c->forward ? fattn_forward(context, c->desc, c->forward) : fattn_backward(context, c->desc, c->backward);
    arena_open();
    checked(status);
    FUZZ_CHECK(status != FATTN_OK || !s->refused, "a length beyond its room was taken");
    if (status != FATTN_OK)
        FUZZ_CHECK(arena_same(), "%s, but something was written", fattn_last_error());
    if (!s->loose)
        FUZZ_CHECK(arena_outside_same(), "written outside of all outputs");
    return status;
}

/* A number of a type that has floating point, as a double. */
static double value_of(const unsigned char *element, int32_t dtype)
{
    uint16_t half = 0;
    uint32_t bits = 0;
    float single;
    double number;
    if (dtype == FATTN_F64) {
        memcpy(&number, element, sizeof number);
        return number;
    }
    memcpy(&half, element, sizeof half);
    if (dtype == FATTN_F16) {
        const int exponent = half >> 10 & 31, mantissa = half & 0x3ff;
        number = exponent == 31  ? (mantissa ? NAN : INFINITY)
                 : exponent == 0 ? ldexp(mantissa, -24)
                                 : ldexp(mantissa + 1024, exponent - 25);
        return half & 0x8000 ? -number : number;
    }
    memcpy(&bits, element, dtype == FATTN_F32 ? sizeof bits : 0);
    bits = dtype == FATTN_F32 ? bits : (uint32_t)half << 16;
    memcpy(&single, &bits, sizeof single);
    return single;
}

/* Outputs as doubles, one after the other. */
static size_t read_outputs(const scene *s, double *values, size_t room)
{
    size_t count = 0;
    for (int id = 0; id < TENSORS; id++) {
        const tensor *t = &s->tensor[id];
        for (int64_t b = 0; b < t->batch && t->role == ROLE_OUTPUT && !tensor_empty(t); b++)
            for (int64_t h = 0; h < t->heads; h++)
                for (int64_t i = 0; i < t->rows; i++)
                    for (int64_t c = 0; c < t->cols && count < room; c++)
                        if (!t->rows_used || t->rows_used[b * t->rows + i])
                            values[count++] = value_of(tensor_row(t, b, h, i) + (size_t)c * tensor_size(t), t->dtype);
    }
    return count;
}

static bool close_enough(double a, double b, double largest)
{
    if (isnan(a) || isnan(b) || isinf(a) || isinf(b))
        return (isnan(a) && isnan(b)) || (isinf(a) && isinf(b) && (a > 0) == (b > 0));
    return fabs(a - b) <= 0.03 * (1 + largest);
}

/* The kernel `ref` gets about the same. The harness is who looks closely; a wrong key or head shows here. */
static void compare_with_ref(const scene *s, const call *c, const char *kernel)
{
    enum { ROOM = 1 << 18 };
    static double own[ROOM], ref[ROOM];
    double largest = 0;
    const size_t count = read_outputs(s, own, ROOM);
    if (run(contexts[1], s, c, 0x11) != FATTN_OK)
        return; /* its workspace is another one's */
    read_outputs(s, ref, ROOM);
    for (size_t i = 0; i < count; i++)
        largest = isfinite(ref[i]) && fabs(ref[i]) > largest ? fabs(ref[i]) : largest;
    for (size_t i = 0; i < count; i++)
        FUZZ_CHECK(close_enough(own[i], ref[i], largest), "%s: output %zu is %g, ref's %g", kernel, i, own[i], ref[i]);
}

/* Twice, and by `ref` in between: what the last run leaves, backward reads. */
static fattn_status run_all(const fattn_context *context, const scene *s, const call *c, const char **kernel)
{
    *kernel = untouched;
    const fattn_status status = run(context, s, c, 0xa5);
    if (status != FATTN_OK) {
        FUZZ_CHECK(*kernel == untouched);
        return status;
    }
    const char *name = *kernel;
    const uint64_t first = arena_outputs();
    if (!s->loose && !s->numbers_wild && context != contexts[1])
        compare_with_ref(s, c, name);
    FUZZ_CHECK(run(context, s, c, 0x5a) == FATTN_OK, "%s", fattn_last_error());
    if (!s->loose)
        FUZZ_CHECK(arena_outputs() == first, "%s: a second run differs, or leaves something unwritten", name);
    return status;
}

/* One row's scores and probabilities; forward's arguments serve, and nothing of them is written. */
static void look(const fattn_context *context, scene *s, const call *c, fuzz_input *in)
{
    const fattn_desc *d = &s->desc;
    const int64_t b = fuzz_byte(in) % 4, h = fuzz_byte(in) % 4, i = fuzz_byte(in);
    double *numbers = malloc(((size_t)d->seq_k * 2 + 1) * sizeof *numbers), *probabilities = numbers + d->seq_k, sum = 0;
    FUZZ_CHECK(numbers != NULL);
    s->tensor[OUT].role = s->tensor[LSE].role = s->tensor[FORWARD_SPACE].role = ROLE_NONE;
    forget_error();
    arena_close(s->tensor, TENSORS, 0, s->loose);
    const fattn_status status = fattn_scores(context, c->desc, c->forward, b, h, i, numbers, probabilities);
    arena_open();
    FUZZ_CHECK(arena_same());
    if (checked(status) == FATTN_OK && !s->numbers_wild) {
        for (int64_t j = 0; j < d->seq_k; j++) {
            FUZZ_CHECK(probabilities[j] >= 0 && !isnan(numbers[j]), "%g, %g", probabilities[j], numbers[j]);
            sum += probabilities[j];
        }
        FUZZ_CHECK(sum < 1 + 1e-9, "%g", sum);
    }
    free(numbers);
}

/* ------------------------------------------------------------------------------------------------------------- an input */

static void run_scene(const fattn_context *context, scene *s, const fattn_desc *desc, const fattn_status *sized, fuzz_input *in)
{
    const char *kernel;
    scene_roles(s, FATTN_OP_FORWARD);
    call c = {.desc = desc, .forward = scene_forward_args(s, in, &kernel)};
    scene_roles(s, FATTN_OP_FORWARD);
    const fattn_status forward = run_all(context, s, &c, &kernel);
    FUZZ_CHECK(sized[FATTN_OP_FORWARD] == FATTN_OK || forward != FATTN_OK);
    look(context, s, &c, in);
    free((void *)c.forward);
    /* Backward reads what forward left. */
    c = (call){.desc = desc, .backward = scene_backward_args(s, in, &kernel)};
    scene_roles(s, FATTN_OP_BACKWARD);
    s->numbers_wild = s->numbers_wild || forward != FATTN_OK || s->no_lse;
    const fattn_status backward = run_all(context, s, &c, &kernel);
    FUZZ_CHECK(sized[FATTN_OP_BACKWARD] == FATTN_OK || backward != FATTN_OK);
    free((void *)c.backward);
}

/* Without memory: the descriptor is refused before a pointer is looked at. */
static void run_refused(const fattn_context *context, const fattn_desc *desc, const fattn_status *sized)
{
    const fattn_forward_args forward = {.struct_size = sizeof forward};
    const fattn_backward_args backward = {.struct_size = sizeof backward};
    if (sized[FATTN_OP_FORWARD] != FATTN_OK)
        FUZZ_CHECK(checked(fattn_forward(context, desc, &forward)) != FATTN_OK);
    if (sized[FATTN_OP_BACKWARD] != FATTN_OK)
        FUZZ_CHECK(checked(fattn_backward(context, desc, &backward)) != FATTN_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static scene s;
    fuzz_input in = {data, size};
    fattn_status sized[3] = {FATTN_OK};
    size_t bytes[3] = {0};
    if (context_count == 0)
        make_contexts();
    const fattn_context *context = contexts[fuzz_byte(&in) % context_count];
    scene_describe(&s, &in);
    fattn_desc *desc = scene_desc(&s);
    for (int op = FATTN_OP_FORWARD; op <= FATTN_OP_BACKWARD; op++) {
        forget_error();
        sized[op] = checked(fattn_workspace_size(context, desc, (fattn_op)op, &bytes[op]));
        ask_about_kernels(context, desc, (fattn_op)op, sized[op]);
    }
    ask_about_masks(desc, &s.desc, &in);
    ask_about_dropout(desc, &s.desc, &in);
    run_refused(context, desc, sized);
    if ((sized[FATTN_OP_FORWARD] == FATTN_OK || sized[FATTN_OP_BACKWARD] == FATTN_OK) && scene_fits(&s.desc) &&
        scene_place(&s, &in, bytes[FATTN_OP_FORWARD], bytes[FATTN_OP_BACKWARD])) {
        scene_spoil(&s, &in);
        run_scene(context, &s, desc, sized, &in);
    }
    free(desc);
    return 0;
}
