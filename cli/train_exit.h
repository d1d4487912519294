/*
 * What the commands that use the trainer return after one of its functions failed.
 */
#ifndef FATTN_CLI_TRAIN_EXIT_H
#define FATTN_CLI_TRAIN_EXIT_H

#include "cli.h"
#include "train/error.h"

/* The exit code for train_error(). */
static inline int train_exit_code(void)
{
    return train_error_kind() == TRAIN_ERROR_WORK ? CLI_FAILED : CLI_WRONG;
}

#endif
