/*
 * Making, describing and ending contexts.
 */
#include "core/context.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/system.h"
#include "core/validate.h"

/* Which kernels to force: the option, else the environment, else none. An empty string is none. */
static const char *forced_kernels(const fattn_context_options *options, const char **source)
{
    const char *list = options->kernel;
    *source = "options.kernel";
    if (!list) {
        list = getenv("FATTN_KERNEL");
        *source = "FATTN_KERNEL in the environment";
    }
    return list && *list ? list : NULL;
}

static fattn_status check_options(const fattn_context_options *options, const char *kernel, const char *source)
{
    if (options->threads < 0 || options->threads > FATTN_THREADS_MOST)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "options.threads is %" PRId32 ", outside 0 .. %d", options->threads,
                          FATTN_THREADS_MOST);
    int length = 0;
    const char *unknown = kernel ? fattn_registry_unknown(kernel, &length) : NULL;
    if (unknown)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "%s asks for \"%.*s\", but no kernel of this build has that name or beginning",
                          source, length, unknown);
    return FATTN_OK;
}

static fattn_status check_device(const fattn_context_options *options)
{
    if (options->device != FATTN_DEVICE_CPU && options->device != FATTN_DEVICE_CUDA)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "options.device is %" PRId32 ", not one of fattn_device, 0 .. %d",
                          options->device, FATTN_DEVICE_CUDA);
    if (options->device == FATTN_DEVICE_CPU && options->device_index != 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "options.device_index is %" PRId32 ", but options.device is the CPU",
                          options->device_index);
    return FATTN_OK;
}

/* Finds the features of the device that the context is for. */
static fattn_status open_device(fattn_context *context)
{
    if (context->device == FATTN_DEVICE_CPU) {
        context->features = fattn_cpu_features();
        return FATTN_OK;
    }
#ifdef FATTN_HAVE_CUDA
    const fattn_status status = fattn_cuda_backend.open(context);
    if (status == FATTN_OK)
        context->backend = &fattn_cuda_backend;
    return status;
#else
    return fattn_fail(FATTN_ERROR_UNSUPPORTED, "options.device is FATTN_DEVICE_CUDA, but this library was built without CUDA");
#endif
}

static void list_candidates(fattn_context *context, fattn_op op)
{
    const fattn_kernel *all[FATTN_MAX_KERNELS];
    const int32_t count = fattn_registry_list(op, all);
    int32_t kept = 0;
    for (int32_t i = 0; i < count; i++)
        if (all[i]->device == context->device && (all[i]->needs & ~context->features) == 0 &&
            (!context->kernel || fattn_kernel_matches(context->kernel, all[i]->name)))
            context->candidates[op - 1][kept++] = all[i];
    context->candidate_count[op - 1] = kept;
}

/* Everything that takes memory. */
static bool allocate(fattn_context *context, const char *kernel)
{
    if (kernel) {
        const size_t bytes = strlen(kernel) + 1;
        context->kernel = malloc(bytes);
        if (!context->kernel)
            return false;
        memcpy(context->kernel, kernel, bytes);
    }
    if (context->threads > 1 && !context->parallel_for) {
        context->pool = fattn_pool_create(context->threads);
        if (!context->pool)
            return false;
    }
    return true;
}

fattn_status fattn_context_create(const fattn_context_options *options, fattn_context **context)
{
    fattn_context_options own = {.struct_size = sizeof own};
    const char *source;
    if (!context)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "context is NULL");
    *context = NULL;
    fattn_status status = FATTN_OK;
    if (options)
        status = fattn_struct_read(&own, sizeof own, FATTN_CONTEXT_OPTIONS_FIRST_SIZE, options, "options");
    if (status != FATTN_OK)
        return status;
    const char *kernel = forced_kernels(&own, &source);
    status = check_options(&own, kernel, source);
    if (status != FATTN_OK || (status = check_device(&own)))
        return status;

    fattn_context *made = calloc(1, sizeof *made);
    if (!made)
        return fattn_fail(FATTN_ERROR_MEMORY, "no memory for a context of %zu bytes", sizeof *made);
    made->threads = own.threads > 0 ? own.threads : fattn_usable_cpus();
    made->device = own.device;
    made->device_index = own.device_index;
    made->parallel_for = own.parallel_for;
    made->user = own.user;
    if (!allocate(made, kernel)) {
        const int32_t threads = made->threads;
        fattn_context_destroy(made);
        return fattn_fail(FATTN_ERROR_MEMORY, "no memory for the parts of a context of %" PRId32 " threads", threads);
    }
    status = open_device(made);
    if (status != FATTN_OK) {
        fattn_context_destroy(made);
        return status;
    }
    list_candidates(made, FATTN_OP_FORWARD);
    list_candidates(made, FATTN_OP_BACKWARD);
    *context = made;
    return FATTN_OK;
}

void fattn_context_destroy(fattn_context *context)
{
    if (!context)
        return;
    if (context->backend)
        context->backend->close(context->gpu);
    if (context->pool)
        fattn_pool_destroy(context->pool);
    free(context->kernel);
    free(context);
}

fattn_status fattn_context_problem(const fattn_context *context, const fattn_desc *desc, fattn_problem *problem)
{
    if (!context)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "context is NULL");
    problem->lanes = context->threads;
    problem->device = context->device;
    return fattn_desc_read(desc, problem);
}

fattn_status fattn_context_query(const fattn_context *context, fattn_context_info *info)
{
    if (!context)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "context is NULL");
    const fattn_context_info own = {.threads = context->threads,
                                    .cpu_features = context->features,
                                    .builtin_pool = context->parallel_for == NULL,
                                    .kernel = context->kernel,
                                    .build = FATTN_BUILD,
                                    .device = context->device,
                                    .device_index = context->device_index,
                                    .device_name = context->device_name};
    return fattn_struct_write(&own, sizeof own, FATTN_CONTEXT_INFO_FIRST_SIZE, info, "info");
}
