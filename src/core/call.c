/*
 * The calls: read what the caller passed, choose a kernel, run it.
 */
#include <inttypes.h>
#include <stdint.h>
#include <string.h>

#include "core/context.h"
#include "core/error.h"
#include "core/mask.h"
#include "core/validate.h"

static const char *op_name(fattn_op op)
{
    return op == FATTN_OP_FORWARD ? "forward" : "backward";
}

/* ------------------------------------------------------------------------------------------------------------- choosing */

/* Why this machine cannot run the kernel; NULL if it can. */
static const char *lacks(const fattn_context *context, const fattn_kernel *kernel)
{
    if (kernel->device != context->device)
        return kernel->device == FATTN_DEVICE_CPU ? "runs on the CPU" : "runs on a GPU";
    const uint32_t missing = kernel->needs & ~context->features;
    if (!missing)
        return NULL;
    if (missing & (FATTN_CUDA_SM80 | FATTN_CUDA_SM90))
        return missing & FATTN_CUDA_SM80 ? "needs a GPU of compute capability 8.0" : "needs a GPU of compute capability 9.0";
    if (missing & FATTN_CPU_AMX_BF16)
        return "needs AMX with bfloat16";
    if (missing & FATTN_CPU_AVX512_BF16)
        return "needs AVX-512 with bfloat16";
    if (missing & FATTN_CPU_AVX512)
        return "needs AVX-512 F, BW, DQ and VL";
    if (missing & FATTN_CPU_AVX2)
        return "needs AVX2 and FMA";
    return missing & FATTN_CPU_F16C ? "needs F16C" : "needs a CPU feature that is unknown here";
}

static const char *cannot(const fattn_context *context, const fattn_kernel *kernel, const fattn_problem *problem)
{
    if (kernel->unordered && !(problem->desc.flags & FATTN_UNORDERED))
        return "adds in no fixed order, which needs FATTN_UNORDERED";
    const char *reason = kernel->refuse ? kernel->refuse(problem) : NULL;
    if (!reason && kernel->shared && kernel->shared(problem) > context->shared)
        return "needs more shared memory for a block than this GPU has, for these dims";
    return reason;
}

static const char *unworthy(const fattn_kernel *kernel, const fattn_problem *problem)
{
    return kernel->unworthy ? kernel->unworthy(problem) : NULL;
}

static bool same_family(const fattn_kernel *a, const fattn_kernel *b)
{
    return a->family && b->family && strcmp(a->family, b->family) == 0;
}

/* Why a kernel should not run. Forcing overrules it, unless it was a family that was forced, and another of it should. */
static const char *should_not(const fattn_context *context, const fattn_kernel *kernel, const fattn_problem *problem)
{
    const char *reason = unworthy(kernel, problem);
    if (!reason || !context->kernel)
        return reason;
    for (int32_t i = 0; i < context->candidate_count[kernel->op - 1]; i++) {
        const fattn_kernel *other = context->candidates[kernel->op - 1][i];
        if (same_family(kernel, other) && !cannot(context, other, problem) && !unworthy(other, problem))
            return reason;
    }
    return NULL;
}

static const fattn_kernel *choose(const fattn_context *context, const fattn_problem *problem, fattn_op op)
{
    for (int32_t i = 0; i < context->candidate_count[op - 1]; i++) {
        const fattn_kernel *kernel = context->candidates[op - 1][i];
        if (!cannot(context, kernel, problem) && !should_not(context, kernel, problem))
            return kernel;
    }
    return NULL;
}

/* No kernel runs this: says why the first that was asked for does not. */
static fattn_status fail_to_choose(const fattn_context *context, const fattn_problem *problem, fattn_op op)
{
    const fattn_kernel *all[FATTN_MAX_KERNELS];
    const int32_t count = fattn_registry_list(op, all);
    for (int32_t i = 0; i < count; i++) {
        if (context->kernel && !fattn_kernel_matches(context->kernel, all[i]->name))
            continue;
        const char *reason = lacks(context, all[i]);
        reason = reason ? reason : cannot(context, all[i], problem);
        return fattn_fail(FATTN_ERROR_UNSUPPORTED, "no kernel of \"%s\" can run this %s: %s %s",
                          context->kernel ? context->kernel : "all", op_name(op), all[i]->name, reason ? reason : "refuses");
    }
    return fattn_fail(FATTN_ERROR_UNSUPPORTED, "no kernel of \"%s\" does %s", context->kernel ? context->kernel : "all",
                      op_name(op));
}

static size_t kernel_workspace(const fattn_kernel *kernel, const fattn_problem *problem)
{
    return kernel->workspace ? kernel->workspace(problem) : 0;
}

/* What the caller is asked for: with room to align. */
static size_t caller_workspace(const fattn_kernel *kernel, const fattn_problem *problem)
{
    const size_t bytes = kernel_workspace(kernel, problem);
    return bytes > 0 ? bytes + FATTN_ALIGNMENT - 1 : 0;
}

/* Rows of dbias that each lane may have sums for without leaving 64 bits. */
#define DBIAS_ROWS_MOST ((int64_t)1 << 36)

/* Kernels size by totals as by batch * seq. */
static fattn_status check_totals(const fattn_desc *d)
{
    if (d->total_q > d->batch * d->seq_q)
        return fattn_fail(FATTN_ERROR_ARGUMENT,
                          "desc.total_q is %" PRId64 ", more than desc.batch * seq_q, %" PRId64 " * %" PRId64, d->total_q,
                          d->batch, d->seq_q);
    if (d->total_k > d->batch * d->seq_k)
        return fattn_fail(FATTN_ERROR_ARGUMENT,
                          "desc.total_k is %" PRId64 ", more than desc.batch * seq_k, %" PRId64 " * %" PRId64, d->total_k,
                          d->batch, d->seq_k);
    return FATTN_OK;
}

static fattn_status read_problem(const fattn_context *context, const fattn_desc *desc, fattn_op op, fattn_problem *problem)
{
    if (!context)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "context is NULL");
    if (op != FATTN_OP_FORWARD && op != FATTN_OP_BACKWARD)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "op is %d, not one of fattn_op, 1 .. %d", (int)op, FATTN_OP_BACKWARD);
    problem->lanes = context->threads;
    problem->device = context->device;
    fattn_status status = fattn_desc_read(desc, problem);
    if (status != FATTN_OK || (status = check_totals(&problem->desc)) || op == FATTN_OP_FORWARD)
        return status;
    if ((problem->desc.flags & FATTN_WITH_DBIAS) && problem->desc.seq_q > DBIAS_ROWS_MOST)
        return fattn_fail(FATTN_ERROR_UNSUPPORTED, "desc.seq_q is %" PRId64 ", but dbias is for at most %" PRId64 " rows",
                          problem->desc.seq_q, DBIAS_ROWS_MOST);
    if (problem->desc.page_size > 0)
        return fattn_fail(FATTN_ERROR_UNSUPPORTED, "desc.page_size is %" PRId64 ", but backward reads no paged keys",
                          problem->desc.page_size);
    if (problem->desc.kv_dtype == FATTN_I8)
        return fattn_fail(FATTN_ERROR_UNSUPPORTED, "desc.kv_dtype is FATTN_I8, but backward reads no keys of 8 bits");
    return FATTN_OK;
}

/* -------------------------------------------------------------------------------------------------------------- queries */

fattn_status fattn_mask_interval(const fattn_desc *desc, int64_t row, int64_t *lo, int64_t *hi)
{
    fattn_problem problem;
    const fattn_status status = fattn_desc_read(desc, &problem);
    if (status != FATTN_OK)
        return status;
    if (!lo || !hi)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "%s is NULL", lo ? "hi" : "lo");
    if (row < 0 || row >= problem.desc.seq_q)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "row is %" PRId64 ", outside 0 .. desc.seq_q - 1, %" PRId64, row,
                          problem.desc.seq_q - 1);
    if (problem.desc.mask == FATTN_MASK_DOCUMENT || problem.desc.mask == FATTN_MASK_INTERVALS)
        return fattn_fail(FATTN_ERROR_UNSUPPORTED, "desc.mask is %" PRId32 ", whose keys stand in a call's arrays",
                          problem.desc.mask);
    const fattn_rows_mask mask = fattn_mask_of(&problem.desc, problem.desc.seq_q, problem.desc.seq_k);
    const fattn_interval kept = fattn_mask_row(&mask, row);
    *lo = kept.lo;
    *hi = kept.hi;
    return FATTN_OK;
}

fattn_status fattn_workspace_size(const fattn_context *context, const fattn_desc *desc, fattn_op op, size_t *bytes)
{
    fattn_problem problem;
    const fattn_status status = read_problem(context, desc, op, &problem);
    if (status != FATTN_OK)
        return status;
    if (!bytes)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "bytes is NULL");
    const fattn_kernel *kernel = choose(context, &problem, op);
    if (!kernel)
        return fail_to_choose(context, &problem, op);
    *bytes = caller_workspace(kernel, &problem);
    return FATTN_OK;
}

static void describe(const fattn_context *context, const fattn_problem *problem, fattn_op op, const fattn_kernel *kernel,
                     fattn_kernel_info *info)
{
    const char *reason = lacks(context, kernel);
    reason = reason ? reason : cannot(context, kernel, problem);
    info->name = kernel->name;
    info->needs = kernel->needs;
    info->device = kernel->device;
    info->rounds = kernel->rounds;
    info->unordered = kernel->unordered;
    info->can_run = reason == NULL;
    info->workspace = reason ? 0 : caller_workspace(kernel, problem);
    info->selected = kernel == choose(context, problem, op);
    if (!reason && context->kernel && !fattn_kernel_matches(context->kernel, kernel->name))
        reason = "other kernels are forced";
    info->refusal = reason ? reason : should_not(context, kernel, problem);
}

fattn_status fattn_kernel_query(const fattn_context *context, const fattn_desc *desc, fattn_op op, int32_t index,
                                fattn_kernel_info *info)
{
    fattn_problem problem;
    fattn_kernel_info own = {0};
    const fattn_kernel *all[FATTN_MAX_KERNELS];
    fattn_status status = read_problem(context, desc, op, &problem);
    if (status != FATTN_OK)
        return status;
    const int32_t count = fattn_registry_list(op, all);
    const bool past = index < 0 || index >= count;
    if (!past)
        describe(context, &problem, op, all[index], &own);
    status = fattn_struct_write(&own, sizeof own, FATTN_KERNEL_INFO_FIRST_SIZE, info, "info");
    if (status == FATTN_OK && past)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "index is %" PRId32 ", outside the %" PRId32 " kernels of %s", index, count,
                          op_name(op));
    return status;
}

/* -------------------------------------------------------------------------------------------------------------- running */

static fattn_status take_workspace(const fattn_kernel *kernel, const fattn_problem *problem, void *workspace, size_t size,
                                   fattn_launch *launch)
{
    const size_t needed = caller_workspace(kernel, problem);
    launch->workspace = fattn_nothing();
    if (needed == 0)
        return FATTN_OK;
    if (!workspace)
        return fattn_fail(FATTN_ERROR_WORKSPACE, "args.workspace is NULL, but %s needs %zu bytes", kernel->name, needed);
    if (size < needed)
        return fattn_fail(FATTN_ERROR_WORKSPACE, "args.workspace_size is %zu, but %s needs %zu bytes", size, kernel->name,
                          needed);
    const uintptr_t slack = -(uintptr_t)workspace % FATTN_ALIGNMENT;
    launch->workspace = (unsigned char *)workspace + slack;
    return FATTN_OK;
}

static fattn_status run(const fattn_context *context, const fattn_problem *problem, fattn_op op, void *workspace,
                        size_t workspace_size, const char **name, fattn_launch *launch)
{
    const fattn_kernel *kernel = choose(context, problem, op);
    if (!kernel)
        return fail_to_choose(context, problem, op);
    const fattn_status status = take_workspace(kernel, problem, workspace, workspace_size, launch);
    if (status != FATTN_OK)
        return status;
    launch->context = context;
    const fattn_status ran = context->backend ? context->backend->run(kernel, problem, launch) : kernel->run(problem, launch);
    if (ran == FATTN_OK && name)
        *name = kernel->name;
    return ran;
}

fattn_status fattn_forward(const fattn_context *context, const fattn_desc *desc, const fattn_forward_args *args)
{
    fattn_problem problem;
    fattn_launch launch;
    fattn_status status = read_problem(context, desc, FATTN_OP_FORWARD, &problem);
    if (status != FATTN_OK || (status = fattn_forward_args_read(&problem, args, &launch)))
        return status;
    return run(context, &problem, FATTN_OP_FORWARD, args->workspace, args->workspace_size, args->kernel, &launch);
}

fattn_status fattn_backward(const fattn_context *context, const fattn_desc *desc, const fattn_backward_args *args)
{
    fattn_problem problem;
    fattn_launch launch;
    fattn_status status = read_problem(context, desc, FATTN_OP_BACKWARD, &problem);
    if (status != FATTN_OK || (status = fattn_backward_args_read(&problem, args, &launch)))
        return status;
    return run(context, &problem, FATTN_OP_BACKWARD, args->workspace, args->workspace_size, args->kernel, &launch);
}
