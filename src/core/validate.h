/*
 * From what callers pass to what kernels may rely on.
 */
#ifndef FATTN_CORE_VALIDATE_H
#define FATTN_CORE_VALIDATE_H

#include "core/kernel.h"

/* Copies a caller's struct of any version into `own`, the library's version of own_size bytes. Both begin with struct_size.
 * Smaller than first_size, the size in the first release that had the struct, is refused: no header ever had it. Fields
 * that an older caller lacks become 0; what a newer caller has beyond own_size must be 0. `name` is for the message. */
fattn_status fattn_struct_read(void *own, size_t own_size, size_t first_size, const void *caller, const char *name);

/* Copies the first caller's struct_size bytes of `own` over the caller's struct, all but struct_size itself; what the library
 * does not know is left alone. */
fattn_status fattn_struct_write(const void *own, size_t own_size, size_t first_size, void *caller, const char *name);

/* Checks desc and fills in problem->desc and problem->group; lanes is the context's business. */
fattn_status fattn_desc_read(const fattn_desc *desc, fattn_problem *problem);

/* Check the arguments of a call and fill in launch, but for context and workspace. */
fattn_status fattn_forward_args_read(const fattn_problem *problem, const fattn_forward_args *args, fattn_launch *launch);
fattn_status fattn_backward_args_read(const fattn_problem *problem, const fattn_backward_args *args, fattn_launch *launch);

/* What forward reads, and no more: for fattn_scores. */
fattn_status fattn_scores_args_read(const fattn_problem *problem, const fattn_forward_args *args, fattn_launch *launch);

/* A stream is a GPU's: refuses one on the CPU. */
fattn_status fattn_stream_check(const fattn_problem *problem, const void *stream);

/* Whether the pages that hold keys [from, to) of sequence b exist. desc.page_size is not 0. */
fattn_status fattn_pages_check(const fattn_desc *desc, const int32_t *page_table, int64_t b, int64_t from, int64_t to);

/* Sizes of the first release. */
enum {
    FATTN_DESC_FIRST_SIZE = 128,
    FATTN_FORWARD_ARGS_FIRST_SIZE = 248,
    FATTN_BACKWARD_ARGS_FIRST_SIZE = 400,
    FATTN_MERGE_ARGS_FIRST_SIZE = 64,
    FATTN_MERGE_BACKWARD_ARGS_FIRST_SIZE = 120,
    FATTN_CACHE_ARGS_FIRST_SIZE = 240,
    FATTN_CONTEXT_OPTIONS_FIRST_SIZE = 32,
    FATTN_CONTEXT_INFO_FIRST_SIZE = 32,
    FATTN_KERNEL_INFO_FIRST_SIZE = 40
};

#endif
