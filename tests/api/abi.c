/*
 * The binary interface does not change: numbers of statuses and enumerators, sizes and offsets of structs (on machines with
 * 64-bit pointers), and what versions of structs are accepted. If a test here fails, programs compiled before would break.
 */
#include "api.h"

#define PIN(type, field, offset) assert_int_equal(offsetof(type, field), offset)

static void statuses(void **state)
{
    (void)state;
    const struct {
        fattn_status status;
        int number;
        const char *name;
    } all[] = {{FATTN_OK, 0, "FATTN_OK"},
               {FATTN_ERROR_ARGUMENT, -1, "FATTN_ERROR_ARGUMENT"},
               {FATTN_ERROR_UNSUPPORTED, -2, "FATTN_ERROR_UNSUPPORTED"},
               {FATTN_ERROR_WORKSPACE, -3, "FATTN_ERROR_WORKSPACE"},
               {FATTN_ERROR_MEMORY, -4, "FATTN_ERROR_MEMORY"},
               {FATTN_ERROR_SYSTEM, -5, "FATTN_ERROR_SYSTEM"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_int_equal(all[i].status, all[i].number);
        assert_string_equal(fattn_status_name(all[i].status), all[i].name);
    }
    assert_string_equal(fattn_status_name((fattn_status)1), "unknown status");
    assert_string_equal(fattn_status_name((fattn_status)-6), "unknown status");
}

static void enumerators(void **state)
{
    (void)state;
    assert_int_equal(FATTN_DTYPE_NONE, 0);
    assert_int_equal(FATTN_F32, 1);
    assert_int_equal(FATTN_F64, 2);
    assert_int_equal(FATTN_F16, 3);
    assert_int_equal(FATTN_BF16, 4);
    assert_int_equal(FATTN_I8, 5);
    assert_int_equal(FATTN_MASK_FULL, 0);
    assert_int_equal(FATTN_MASK_CAUSAL, 1);
    assert_int_equal(FATTN_MASK_WINDOW, 2);
    assert_int_equal(FATTN_MASK_CHUNKED, 3);
    assert_int_equal(FATTN_MASK_PREFIX, 4);
    assert_int_equal(FATTN_MASK_DOCUMENT, 5);
    assert_int_equal(FATTN_MASK_INTERVALS, 6);
    assert_int_equal(FATTN_ALIGN_TOP_LEFT, 0);
    assert_int_equal(FATTN_ALIGN_BOTTOM_RIGHT, 1);
    assert_int_equal(FATTN_OP_FORWARD, 1);
    assert_int_equal(FATTN_OP_BACKWARD, 2);
    assert_int_equal(FATTN_WITH_BIAS, 1);
    assert_int_equal(FATTN_WITH_SLOPES, 2);
    assert_int_equal(FATTN_WITH_SINKS, 4);
    assert_int_equal(FATTN_WITH_DLSE, 8);
    assert_int_equal(FATTN_WITH_DBIAS, 16);
    assert_int_equal(FATTN_WITH_DSINKS, 32);
    assert_int_equal(FATTN_CPU_AVX2, 1);
    assert_int_equal(FATTN_CPU_AVX512, 2);
    assert_int_equal(FATTN_CPU_F16C, 4);
    assert_int_equal(FATTN_CPU_AVX512_BF16, 8);
    assert_int_equal(FATTN_CPU_AMX_BF16, 16);
}

static void version(void **state)
{
    char text[32];
    (void)state;
    snprintf(text, sizeof text, "%d.%d.%d", FATTN_VERSION_MAJOR, FATTN_VERSION_MINOR, FATTN_VERSION_PATCH);
    assert_string_equal(fattn_version(), text);
}

static void layout_of_desc(void **state)
{
    (void)state;
    assert_int_equal(sizeof(fattn_desc), 176);
    PIN(fattn_desc, struct_size, 0);
    PIN(fattn_desc, dtype, 4);
    PIN(fattn_desc, out_dtype, 8);
    PIN(fattn_desc, mask, 12);
    PIN(fattn_desc, align, 16);
    PIN(fattn_desc, flags, 20);
    PIN(fattn_desc, batch, 24);
    PIN(fattn_desc, heads_q, 32);
    PIN(fattn_desc, heads_kv, 40);
    PIN(fattn_desc, seq_q, 48);
    PIN(fattn_desc, seq_k, 56);
    PIN(fattn_desc, dim, 64);
    PIN(fattn_desc, dim_v, 72);
    PIN(fattn_desc, window_left, 80);
    PIN(fattn_desc, window_right, 88);
    PIN(fattn_desc, scale, 96);
    PIN(fattn_desc, softcap, 104);
    PIN(fattn_desc, dropout, 112);
    PIN(fattn_desc, seed, 120);
    PIN(fattn_desc, total_q, 128); /* the first version ended here */
    PIN(fattn_desc, total_k, 136);
    PIN(fattn_desc, mask_size, 144);
    PIN(fattn_desc, page_size, 152);
    PIN(fattn_desc, pages, 160);
    PIN(fattn_desc, kv_dtype, 168);
    PIN(fattn_desc, grad_dtype, 172);
}

static void layout_of_arguments(void **state)
{
    (void)state;
    if (sizeof(void *) != 8)
        skip();
    assert_int_equal(sizeof(fattn_view), 32);
    PIN(fattn_view, stride_batch, 8);
    PIN(fattn_view, stride_row, 24);
    assert_int_equal(sizeof(fattn_forward_args), 296);
    PIN(fattn_forward_args, q, 8);
    PIN(fattn_forward_args, k, 40);
    PIN(fattn_forward_args, v, 72);
    PIN(fattn_forward_args, out, 104);
    PIN(fattn_forward_args, lse, 136);
    PIN(fattn_forward_args, workspace, 144);
    PIN(fattn_forward_args, workspace_size, 152);
    PIN(fattn_forward_args, kernel, 160);
    PIN(fattn_forward_args, cu_seqlens_q, 168);
    PIN(fattn_forward_args, cu_seqlens_k, 176);
    PIN(fattn_forward_args, used_q, 184);
    PIN(fattn_forward_args, used_k, 192);
    PIN(fattn_forward_args, mask_lo, 200);
    PIN(fattn_forward_args, mask_hi, 208);
    PIN(fattn_forward_args, bias, 216);
    PIN(fattn_forward_args, slopes, 224);
    PIN(fattn_forward_args, sinks, 232);
    PIN(fattn_forward_args, stream, 240);
    PIN(fattn_forward_args, mask_stride, 248); /* the first version ended here */
    PIN(fattn_forward_args, document_q, 256);
    PIN(fattn_forward_args, document_k, 264);
    PIN(fattn_forward_args, page_table, 272);
    PIN(fattn_forward_args, k_scales, 280);
    PIN(fattn_forward_args, v_scales, 288);
    assert_int_equal(sizeof(fattn_backward_args), 424);
    PIN(fattn_backward_args, q, 8);
    PIN(fattn_backward_args, out, 104);
    PIN(fattn_backward_args, dout, 136);
    PIN(fattn_backward_args, dq, 168);
    PIN(fattn_backward_args, lse, 264);
    PIN(fattn_backward_args, workspace, 272);
    PIN(fattn_backward_args, kernel, 288);
    PIN(fattn_backward_args, dlse, 296);
    PIN(fattn_backward_args, cu_seqlens_q, 304);
    PIN(fattn_backward_args, cu_seqlens_k, 312);
    PIN(fattn_backward_args, used_q, 320);
    PIN(fattn_backward_args, used_k, 328);
    PIN(fattn_backward_args, mask_lo, 336);
    PIN(fattn_backward_args, mask_hi, 344);
    PIN(fattn_backward_args, bias, 352);
    PIN(fattn_backward_args, slopes, 360);
    PIN(fattn_backward_args, sinks, 368);
    PIN(fattn_backward_args, dbias, 376);
    PIN(fattn_backward_args, dsinks, 384);
    PIN(fattn_backward_args, stream, 392);
    PIN(fattn_backward_args, mask_stride, 400); /* the first version ended here */
    PIN(fattn_backward_args, document_q, 408);
    PIN(fattn_backward_args, document_k, 416);
}

static void layout_of_merging(void **state)
{
    (void)state;
    if (sizeof(void *) != 8)
        skip();
    assert_int_equal(sizeof(fattn_merge_args), 72);
    PIN(fattn_merge_args, count, 4);
    PIN(fattn_merge_args, outs, 8);
    PIN(fattn_merge_args, lses, 16);
    PIN(fattn_merge_args, out, 24);
    PIN(fattn_merge_args, lse, 56);
    PIN(fattn_merge_args, stream, 64); /* the first version ended here */
    assert_int_equal(sizeof(fattn_merge_backward_args), 128);
    PIN(fattn_merge_backward_args, count, 4);
    PIN(fattn_merge_backward_args, outs, 8);
    PIN(fattn_merge_backward_args, lses, 16);
    PIN(fattn_merge_backward_args, out, 24);
    PIN(fattn_merge_backward_args, lse, 56);
    PIN(fattn_merge_backward_args, dout, 64);
    PIN(fattn_merge_backward_args, dlse, 96);
    PIN(fattn_merge_backward_args, douts, 104);
    PIN(fattn_merge_backward_args, dlses, 112);
    PIN(fattn_merge_backward_args, stream, 120); /* likewise */
}

static void layout_of_cache_arguments(void **state)
{
    (void)state;
    if (sizeof(void *) != 8)
        skip();
    assert_int_equal(sizeof(fattn_cache_args), 248);
    PIN(fattn_cache_args, interleaved, 4);
    PIN(fattn_cache_args, k_new, 8);
    PIN(fattn_cache_args, v_new, 40);
    PIN(fattn_cache_args, q, 72);
    PIN(fattn_cache_args, k, 104);
    PIN(fattn_cache_args, v, 136);
    PIN(fattn_cache_args, used_k, 168);
    PIN(fattn_cache_args, used_q, 176);
    PIN(fattn_cache_args, page_table, 184);
    PIN(fattn_cache_args, k_scales, 192);
    PIN(fattn_cache_args, v_scales, 200);
    PIN(fattn_cache_args, rotary_cos, 208);
    PIN(fattn_cache_args, rotary_sin, 216);
    PIN(fattn_cache_args, rotary_dim, 224);
    PIN(fattn_cache_args, rotary_rows, 232);
    PIN(fattn_cache_args, stream, 240); /* the first version ended here */
}

static void layout_of_the_rest(void **state)
{
    (void)state;
    if (sizeof(void *) != 8)
        skip();
    assert_int_equal(sizeof(fattn_context_options), 40);
    PIN(fattn_context_options, threads, 4);
    PIN(fattn_context_options, parallel_for, 8);
    PIN(fattn_context_options, user, 16);
    PIN(fattn_context_options, kernel, 24);
    PIN(fattn_context_options, device, 32); /* the first version ended here */
    PIN(fattn_context_options, device_index, 36);
    assert_int_equal(sizeof(fattn_context_info), 48);
    PIN(fattn_context_info, threads, 4);
    PIN(fattn_context_info, cpu_features, 8);
    PIN(fattn_context_info, builtin_pool, 12);
    PIN(fattn_context_info, kernel, 16);
    PIN(fattn_context_info, build, 24);
    PIN(fattn_context_info, device, 32); /* likewise */
    PIN(fattn_context_info, device_index, 36);
    PIN(fattn_context_info, device_name, 40);
    assert_int_equal(sizeof(fattn_kernel_info), 56);
    PIN(fattn_kernel_info, selected, 4);
    PIN(fattn_kernel_info, name, 8);
    PIN(fattn_kernel_info, refusal, 16);
    PIN(fattn_kernel_info, can_run, 24);
    PIN(fattn_kernel_info, needs, 28);
    PIN(fattn_kernel_info, workspace, 32);
    PIN(fattn_kernel_info, device, 40); /* likewise */
    PIN(fattn_kernel_info, rounds, 44);
    PIN(fattn_kernel_info, unordered, 48);
    PIN(fattn_kernel_info, reserved, 52);
}

/* Input structs of other versions: shorter than the first is refused, a longer one only if the unknown tail is set. */
#define LONGER(type)                                                                                                           \
    union {                                                                                                                    \
        type own;                                                                                                              \
        unsigned char bytes[sizeof(type) + 24];                                                                                \
    }

static void versions_of_desc(void **state)
{
    fixture f;
    LONGER(fattn_desc) desc;
    size_t bytes;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    memset(&desc, 0, sizeof desc);
    desc.own = f.desc;
    desc.own.struct_size = sizeof desc;
    assert_int_equal(fattn_workspace_size(f.context, &desc.own, FATTN_OP_FORWARD, &bytes), FATTN_OK);
    assert_int_equal(fattn_forward(f.context, &desc.own, &f.forward), FATTN_OK);
    poison(&f);
    desc.bytes[sizeof desc - 1] = 1;
    assert_refused(&f, fattn_forward(f.context, &desc.own, &f.forward), FATTN_ERROR_ARGUMENT, "desc.struct_size is 200");
    desc.own.struct_size = sizeof desc - 1; /* the set byte is beyond */
    assert_int_equal(fattn_forward(f.context, &desc.own, &f.forward), FATTN_OK);
    poison(&f);
    const uint32_t shorter[] = {0, 4, 64, 127};
    for (size_t i = 0; i < sizeof shorter / sizeof *shorter; i++) {
        f.desc.struct_size = shorter[i];
        assert_refused(&f, fattn_forward(f.context, &f.desc, &f.forward), FATTN_ERROR_ARGUMENT, "desc.struct_size");
    }
    fixture_free(&f);
}

static void versions_of_arguments(void **state)
{
    fixture f;
    LONGER(fattn_forward_args) forward;
    LONGER(fattn_backward_args) backward;
    (void)state;
    fixture_make(&f, FATTN_F64, NULL);
    memset(&forward, 0, sizeof forward);
    forward.own = f.forward;
    forward.own.struct_size = sizeof forward;
    assert_int_equal(fattn_forward(f.context, &f.desc, &forward.own), FATTN_OK);
    memset(&backward, 0, sizeof backward);
    backward.own = f.backward;
    backward.own.struct_size = sizeof backward;
    assert_int_equal(fattn_backward(f.context, &f.desc, &backward.own), FATTN_OK);
    poison(&f);
    forward.bytes[sizeof(fattn_forward_args)] = 1;
    assert_refused(&f, fattn_forward(f.context, &f.desc, &forward.own), FATTN_ERROR_ARGUMENT, "args.struct_size");
    backward.bytes[sizeof backward - 1] = 1;
    assert_refused(&f, fattn_backward(f.context, &f.desc, &backward.own), FATTN_ERROR_ARGUMENT, "args.struct_size");
    f.forward.struct_size = 247;
    assert_refused(&f, fattn_forward(f.context, &f.desc, &f.forward), FATTN_ERROR_ARGUMENT, "args.struct_size");
    f.backward.struct_size = 0;
    assert_refused(&f, fattn_backward(f.context, &f.desc, &f.backward), FATTN_ERROR_ARGUMENT, "args.struct_size");
    fixture_free(&f);
}

/* Structs of the first header end before the newer fields, and what lies there in memory is not looked at. */
static void first_versions(void **state)
{
    fixture f;
    (void)state;
    if (sizeof(void *) != 8)
        skip();
    fixture_make(&f, FATTN_F32, NULL);
    memset((char *)&f.desc + 128, 0x77, sizeof f.desc - 128);
    memset((char *)&f.forward + 248, 0x77, sizeof f.forward - 248);
    memset((char *)&f.backward + 400, 0x77, sizeof f.backward - 400);
    f.desc.struct_size = 128;
    f.forward.struct_size = 248;
    f.backward.struct_size = 400;
    assert_int_equal(fattn_forward(f.context, &f.desc, &f.forward), FATTN_OK);
    assert_memory_equal(f.out.data, f.saved_out, Q_ROWS * DIM_V * sizeof(float));
    assert_int_equal(fattn_backward(f.context, &f.desc, &f.backward), FATTN_OK);
    fixture_free(&f);
}

/* The structs of the other calls: no version is shorter, and longer ones must end in zeros. */
static void versions_of_other_arguments(void **state)
{
    fixture f;
    LONGER(fattn_merge_args) merge;
    LONGER(fattn_merge_backward_args) backward;
    LONGER(fattn_cache_args) cache;
    (void)state;
    if (sizeof(void *) != 8)
        skip();
    fixture_make(&f, FATTN_F32, NULL);
    f.desc.batch = 0; /* no tensor is needed */
    const fattn_view nothing = {NULL, 0, 0, 0};
    const void *const no_lse = NULL;
    void *const no_dlse = NULL;
    memset(&merge, 0, sizeof merge);
    memset(&backward, 0, sizeof backward);
    memset(&cache, 0, sizeof cache);
    merge.own = (fattn_merge_args){.struct_size = sizeof merge, .count = 1, .outs = &nothing, .lses = &no_lse};
    backward.own = (fattn_merge_backward_args){
        .struct_size = sizeof backward, .count = 1, .outs = &nothing, .lses = &no_lse, .douts = &nothing, .dlses = &no_dlse};
    cache.own.struct_size = sizeof cache;
    assert_int_equal(fattn_merge(f.context, &f.desc, &merge.own), FATTN_OK);
    assert_int_equal(fattn_merge_backward(f.context, &f.desc, &backward.own), FATTN_OK);
    assert_int_equal(fattn_cache_append(f.context, &f.desc, &cache.own), FATTN_OK);
    merge.bytes[sizeof merge - 1] = backward.bytes[sizeof backward - 1] = cache.bytes[sizeof cache - 1] = 1;
    assert_refused(&f, fattn_merge(f.context, &f.desc, &merge.own), FATTN_ERROR_ARGUMENT, "args.struct_size is 96");
    assert_refused(&f, fattn_merge_backward(f.context, &f.desc, &backward.own), FATTN_ERROR_ARGUMENT,
                   "args.struct_size is 152");
    assert_refused(&f, fattn_cache_append(f.context, &f.desc, &cache.own), FATTN_ERROR_ARGUMENT, "args.struct_size is 272");
    merge.own.struct_size = 63, backward.own.struct_size = 119, cache.own.struct_size = 239;
    assert_refused(&f, fattn_merge(f.context, &f.desc, &merge.own), FATTN_ERROR_ARGUMENT, "args.struct_size is 63");
    assert_refused(&f, fattn_merge_backward(f.context, &f.desc, &backward.own), FATTN_ERROR_ARGUMENT,
                   "args.struct_size is 119");
    assert_refused(&f, fattn_cache_append(f.context, &f.desc, &cache.own), FATTN_ERROR_ARGUMENT, "args.struct_size is 239");
    fixture_free(&f);
}

/* Their first versions end before the stream, and what lies there in memory is not looked at. */
static void first_versions_of_other_arguments(void **state)
{
    fixture f;
    (void)state;
    if (sizeof(void *) != 8)
        skip();
    fixture_make(&f, FATTN_F32, NULL);
    f.desc.batch = 0;
    const fattn_view nothing = {NULL, 0, 0, 0};
    const void *const no_lse = NULL;
    void *const no_dlse = NULL;
    const fattn_merge_args merge = {
        .struct_size = 64, .count = 1, .outs = &nothing, .lses = &no_lse, .stream = &f /* refused if it were read */};
    const fattn_merge_backward_args backward = {
        .struct_size = 120, .count = 1, .outs = &nothing, .lses = &no_lse, .douts = &nothing, .dlses = &no_dlse, .stream = &f};
    const fattn_cache_args cache = {.struct_size = 240, .stream = &f};
    assert_int_equal(fattn_merge(f.context, &f.desc, &merge), FATTN_OK);
    assert_int_equal(fattn_merge_backward(f.context, &f.desc, &backward), FATTN_OK);
    assert_int_equal(fattn_cache_append(f.context, &f.desc, &cache), FATTN_OK);
    fixture_free(&f);
}

static void versions_of_options(void **state)
{
    LONGER(fattn_context_options) options;
    fattn_context *context;
    (void)state;
    memset(&options, 0, sizeof options);
    options.own.struct_size = sizeof options;
    options.own.threads = 1;
    assert_int_equal(fattn_context_create(&options.own, &context), FATTN_OK);
    fattn_context_destroy(context);
    options.bytes[sizeof options - 1] = 1;
    assert_int_equal(fattn_context_create(&options.own, &context), FATTN_ERROR_ARGUMENT);
    assert_null(context);
    options.own.struct_size = 31; /* less than the first version's */
    context = (fattn_context *)&options;
    assert_int_equal(fattn_context_create(&options.own, &context), FATTN_ERROR_ARGUMENT);
    assert_null(context);
}

/* Output structs of a newer caller: what the library does not know stays. */
static void versions_of_results(void **state)
{
    fixture f;
    LONGER(fattn_context_info) context_info;
    LONGER(fattn_kernel_info) kernel_info;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    memset(&context_info, 0x5a, sizeof context_info);
    context_info.own.struct_size = sizeof context_info;
    assert_int_equal(fattn_context_query(f.context, &context_info.own), FATTN_OK);
    assert_int_equal(context_info.own.struct_size, sizeof context_info);
    assert_int_equal(context_info.own.threads, 2);
    assert_int_equal(context_info.bytes[sizeof(fattn_context_info)], 0x5a);
    memset(&kernel_info, 0x5a, sizeof kernel_info);
    kernel_info.own.struct_size = sizeof kernel_info;
    assert_int_equal(fattn_kernel_query(f.context, &f.desc, FATTN_OP_FORWARD, 0, &kernel_info.own), FATTN_OK);
    assert_int_equal(kernel_info.own.struct_size, sizeof kernel_info);
    assert_int_equal(kernel_info.bytes[sizeof(fattn_kernel_info)], 0x5a);
    context_info.own.struct_size = 31;
    context_info.own.threads = 77;
    assert_int_equal(fattn_context_query(f.context, &context_info.own), FATTN_ERROR_ARGUMENT);
    assert_int_equal(context_info.own.threads, 77);
    kernel_info.own.struct_size = 0;
    assert_int_equal(fattn_kernel_query(f.context, &f.desc, FATTN_OP_FORWARD, 0, &kernel_info.own), FATTN_ERROR_ARGUMENT);
    fixture_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statuses),
        cmocka_unit_test(enumerators),
        cmocka_unit_test(version),
        cmocka_unit_test(layout_of_desc),
        cmocka_unit_test(layout_of_arguments),
        cmocka_unit_test(layout_of_merging),
        cmocka_unit_test(layout_of_cache_arguments),
        cmocka_unit_test(layout_of_the_rest),
        cmocka_unit_test(versions_of_desc),
        cmocka_unit_test(versions_of_arguments),
        cmocka_unit_test(first_versions),
        cmocka_unit_test(versions_of_other_arguments),
        cmocka_unit_test(first_versions_of_other_arguments),
        cmocka_unit_test(versions_of_options),
        cmocka_unit_test(versions_of_results),
    };
    return cmocka_run_group_tests_name("abi", tests, NULL, NULL);
}
