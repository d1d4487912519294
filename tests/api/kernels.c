/*
 * The list of kernels, forcing them by option and by environment, and the floating-point mode in which they run.
 */

#include <fenv.h>

#include "api.h"

enum { MANY = 200 };

static int count_kernels(const fixture *f, fattn_op op, fattn_kernel_info list[MANY])
{
    int count = 0;
    for (; count < MANY; count++) {
        list[count] = (fattn_kernel_info){.struct_size = sizeof *list};
        if (fattn_kernel_query(f->context, &f->desc, op, count, &list[count]) != FATTN_OK)
            break;
    }
    assert_true(count > 0 && count < MANY);
    assert_null(list[count].name); /* past the end */
    return count;
}

/* Exactly one is selected; it is the one that runs, and its workspace the one asked for. */
static void one_is_selected(void **state)
{
    static const int32_t dtypes[] = {FATTN_F32, FATTN_F64};
    (void)state;
    for (int t = 0; t < 2; t++)
        for (int op = FATTN_OP_FORWARD; op <= FATTN_OP_BACKWARD; op++) {
            fixture f;
            fattn_kernel_info list[MANY];
            fixture_make(&f, dtypes[t], NULL);
            const int count = count_kernels(&f, (fattn_op)op, list);
            const fattn_kernel_info *selected = NULL;
            for (int i = 0; i < count; i++) {
                const char *word = op == FATTN_OP_FORWARD ? "_forward" : "_backward";
                assert_true(strstr(list[i].name, word) || (op == FATTN_OP_FORWARD && strstr(list[i].name, "_decode")));
                assert_true(list[i].can_run || list[i].refusal);
                assert_false(list[i].selected && list[i].refusal);
                if (list[i].selected) {
                    assert_null(selected);
                    selected = &list[i];
                }
                if (!selected) /* the first that has no reason not to */
                    assert_non_null(list[i].refusal);
                for (int j = 0; j < i; j++)
                    assert_string_not_equal(list[i].name, list[j].name);
            }
            assert_non_null(selected);
            size_t bytes;
            assert_int_equal(fattn_workspace_size(f.context, &f.desc, (fattn_op)op, &bytes), FATTN_OK);
            assert_int_equal(bytes, selected->workspace);
            if (op == FATTN_OP_FORWARD)
                assert_int_equal(fattn_forward(f.context, &f.desc, &f.forward), FATTN_OK);
            else
                assert_int_equal(fattn_backward(f.context, &f.desc, &f.backward), FATTN_OK);
            assert_string_equal(f.kernel, selected->name);
            assert_ptr_equal(f.kernel, selected->name);
            fixture_free(&f);
        }
}

static void ref_is_last(void **state)
{
    fixture f;
    fattn_kernel_info list[MANY];
    (void)state;
    fixture_make(&f, FATTN_F64, NULL);
    int count = count_kernels(&f, FATTN_OP_FORWARD, list);
    assert_string_equal(list[count - 1].name, "ref_forward");
    assert_int_equal(list[count - 1].can_run, 1);
    count = count_kernels(&f, FATTN_OP_BACKWARD, list);
    assert_string_equal(list[count - 1].name, "ref_backward");
    fixture_free(&f);
}

/* can_run keeps its word: each kernel that can is forced by its full name, and each that cannot is refused with the reason. */
static void each_can_be_forced(void **state)
{
    static const int32_t dtypes[] = {FATTN_F32, FATTN_F64};
    (void)state;
    for (int t = 0; t < 2; t++) {
        fixture f;
        fattn_kernel_info list[MANY];
        fixture_make(&f, dtypes[t], NULL);
        const int count = count_kernels(&f, FATTN_OP_FORWARD, list);
        for (int i = 0; i < count; i++) {
            fattn_context *forced = make_context(1, list[i].name);
            fattn_forward_args args = f.forward;
            size_t bytes = 0;
            const fattn_status status = fattn_workspace_size(forced, &f.desc, FATTN_OP_FORWARD, &bytes);
            poison(&f);
            if (list[i].can_run) {
                assert_int_equal(status, FATTN_OK);
                args.workspace = malloc(bytes);
                args.workspace_size = bytes;
                assert_int_equal(fattn_forward(forced, &f.desc, &args), FATTN_OK);
                assert_string_equal(f.kernel, list[i].name);
                free(args.workspace);
            } else {
                assert_int_equal(status, FATTN_ERROR_UNSUPPORTED);
                assert_non_null(strstr(fattn_last_error(), list[i].refusal));
                assert_refused(&f, fattn_forward(forced, &f.desc, &args), FATTN_ERROR_UNSUPPORTED, list[i].refusal);
            }
            fattn_context_destroy(forced);
        }
        fixture_free(&f);
    }
}

static const char *selected(const fattn_context *context, const fattn_desc *desc, fattn_op op)
{
    fattn_kernel_info info = {.struct_size = sizeof info};
    for (int32_t i = 0; fattn_kernel_query(context, desc, op, i, &info) == FATTN_OK; i++)
        if (info.selected)
            return info.name;
    return "none";
}

/* A problem with more rows than the kernels for decoding take, which would come first in their families. */
static fattn_desc many_rows(const fixture *f)
{
    fattn_desc desc = f->desc;
    desc.seq_q = desc.seq_k = 1000;
    return desc;
}

static void lists_and_beginnings(void **state)
{
    static const struct {
        const char *list, *forward, *backward;
    } cases[] = {
        {"ref", "ref_forward", "ref_backward"},
        {"ref_forward", "ref_forward", "none"},
        {"ref_backward,cpu_generic_forward", "cpu_generic_forward_f32", "ref_backward"},
        {" cpu_generic , ref ", "cpu_generic_forward_f32", "cpu_generic_backward_f32"},
        {"ref,cpu_generic", "cpu_generic_forward_f32", "cpu_generic_backward_f32"}, /* the order is the library's */
        {",,ref,", "ref_forward", "ref_backward"},
        {"cpu_generic_forward_f64", "none", "none"},
    };
    fixture f;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    const fattn_desc desc = many_rows(&f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fattn_context *context = make_context(1, cases[i].list);
        fattn_context_info info = {.struct_size = sizeof info};
        size_t bytes;
        assert_int_equal(fattn_context_query(context, &info), FATTN_OK);
        assert_string_equal(info.kernel, cases[i].list);
        assert_ptr_not_equal(info.kernel, cases[i].list); /* a copy */
        assert_string_equal(selected(context, &desc, FATTN_OP_FORWARD), cases[i].forward);
        assert_string_equal(selected(context, &desc, FATTN_OP_BACKWARD), cases[i].backward);
        const fattn_status wanted = strcmp(cases[i].backward, "none") != 0 ? FATTN_OK : FATTN_ERROR_UNSUPPORTED;
        assert_int_equal(fattn_workspace_size(context, &desc, FATTN_OP_BACKWARD, &bytes), wanted);
        fattn_context_destroy(context);
    }
    fixture_free(&f);
}

static void unknown_names(void **state)
{
    static const char *const lists[] = {"nonsense", "re", "ref_", "ref_forwar", "ref,nonsense", "REF", "cpu_generic_forward_f"};
    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        fattn_context *context = (fattn_context *)&context;
        const fattn_context_options options = {.struct_size = sizeof options, .threads = 1, .kernel = lists[i]};
        assert_int_equal(fattn_context_create(&options, &context), FATTN_ERROR_ARGUMENT);
        assert_null(context);
        assert_non_null(strstr(fattn_last_error(), "options.kernel"));
    }
}

static void environment(void **state)
{
    fixture f;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    const fattn_desc desc = many_rows(&f);
    const char *normal = selected(f.context, &desc, FATTN_OP_FORWARD);
    setenv("FATTN_KERNEL", "ref", 1);
    fattn_context *from_environment = make_context(1, NULL), *own = make_context(1, "cpu_generic"), *none = make_context(1, "");
    setenv("FATTN_KERNEL", "cpu_generic", 1); /* too late for them */
    assert_string_equal(selected(from_environment, &desc, FATTN_OP_FORWARD), "ref_forward");
    assert_string_equal(selected(own, &desc, FATTN_OP_FORWARD), "cpu_generic_forward_f32");
    assert_string_equal(selected(none, &desc, FATTN_OP_FORWARD), normal);
    setenv("FATTN_KERNEL", "nonsense", 1);
    fattn_context *context;
    assert_int_equal(fattn_context_create(NULL, &context), FATTN_ERROR_ARGUMENT);
    assert_non_null(strstr(fattn_last_error(), "FATTN_KERNEL"));
    setenv("FATTN_KERNEL", "", 1);
    assert_int_equal(fattn_context_create(NULL, &context), FATTN_OK);
    assert_string_equal(selected(context, &desc, FATTN_OP_FORWARD), normal);
    unsetenv("FATTN_KERNEL");
    fattn_context_destroy(context);
    fattn_context_destroy(from_environment);
    fattn_context_destroy(own);
    fattn_context_destroy(none);
    fixture_free(&f);
}

static void indices(void **state)
{
    static const int32_t wrong[] = {-1, INT32_MIN, MANY, INT32_MAX};
    fixture f;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        fattn_kernel_info info = {.struct_size = sizeof info, .name = "before"};
        assert_int_equal(fattn_kernel_query(f.context, &f.desc, FATTN_OP_FORWARD, wrong[i], &info), FATTN_ERROR_ARGUMENT);
        assert_null(info.name);
    }
    fixture_free(&f);
}

/* The baseline writes seq_q x seq_k numbers; it is listed with the reason, and never chosen unless forced. */
static void composed_is_only_forced(void **state)
{
    fixture f;
    fattn_kernel_info list[MANY];
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    const int count = count_kernels(&f, FATTN_OP_FORWARD, list);
    bool found = false;
    for (int i = 0; i < count; i++)
        if (strcmp(list[i].name, "composed_forward_f32") == 0) {
            found = true;
            assert_int_equal(list[i].can_run, 1);
            assert_int_equal(list[i].selected, 0);
            assert_non_null(strstr(list[i].refusal, "seq_q x seq_k"));
            assert_true(list[i].workspace >= Q_ROWS * SEQ_K * sizeof(float));
        }
    if (found) {
        fattn_context *context = make_context(1, "composed");
        assert_string_equal(selected(context, &f.desc, FATTN_OP_FORWARD), "composed_forward_f32");
        assert_string_equal(selected(context, &f.desc, FATTN_OP_BACKWARD), "composed_backward_f32");
        fattn_context_destroy(context);
    }
    fixture_free(&f);
    if (!found)
        skip();
}

/* The bits that forward and backward write while the caller rounds in this way. */
static void results_in_mode(fixture *f, int rounding)
{
    poison(f);
    assert_int_equal(fesetround(rounding), 0);
    const fattn_status forward = fattn_forward(f->context, &f->desc, &f->forward);
    const fattn_status backward = fattn_backward(f->context, &f->desc, &f->backward);
    const int after = fegetround();
    fesetround(FE_TONEAREST);
    assert_int_equal(forward, FATTN_OK);
    assert_int_equal(backward, FATTN_OK);
    assert_int_equal(after, rounding);
}

/* Results, and the default scale 1 / sqrt(3) in them, are those of rounding to nearest whatever the caller does. */
static void caller_rounds_otherwise(void **state)
{
#if defined(__SSE__) && defined(FE_UPWARD) && defined(FE_DOWNWARD) && defined(FE_TOWARDZERO)
    static const int32_t dtypes[] = {FATTN_F32, FATTN_F64};
    static const int roundings[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    static fixture f, nearest;
    (void)state;
    for (int t = 0; t < 2; t++) {
        fattn_kernel_info list[MANY];
        fixture_make(&f, dtypes[t], NULL);
        const int count = count_kernels(&f, FATTN_OP_FORWARD, list);
        fixture_free(&f);
        for (int i = 0; i < count; i++) {
            char both[128];
            if (!list[i].can_run)
                continue;
            const char *word = strstr(list[i].name, "_decode");
            word = word ? word : strstr(list[i].name, "_forward");
            snprintf(both, sizeof both, "%s,%.*s_backward", list[i].name, (int)(word - list[i].name), list[i].name);
            fixture_make(&f, dtypes[t], both);
            results_in_mode(&f, FE_TONEAREST);
            nearest = f;
            for (size_t r = 0; r < sizeof roundings / sizeof *roundings; r++) {
                results_in_mode(&f, roundings[r]);
                assert_memory_equal(&f.out, &nearest.out, sizeof(output));
                assert_memory_equal(&f.lse, &nearest.lse, sizeof(output));
                assert_memory_equal(&f.dq, &nearest.dq, sizeof(output));
                assert_memory_equal(&f.dk, &nearest.dk, sizeof(output));
                assert_memory_equal(&f.dv, &nearest.dv, sizeof(output));
            }
            fixture_free(&f);
        }
    }
#else
    (void)state;
    skip(); /* src/core/flush.h leaves the mode alone here */
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_is_selected),
                                       cmocka_unit_test(ref_is_last),
                                       cmocka_unit_test(each_can_be_forced),
                                       cmocka_unit_test(lists_and_beginnings),
                                       cmocka_unit_test(unknown_names),
                                       cmocka_unit_test(environment),
                                       cmocka_unit_test(indices),
                                       cmocka_unit_test(composed_is_only_forced),
                                       cmocka_unit_test(caller_rounds_otherwise)};
    unsetenv("FATTN_KERNEL"); /* these tests force their own */
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
