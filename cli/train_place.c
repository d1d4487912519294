/*
 * Where a model runs; see train_place.h.
 */
#include "train_place.h"

#include "cli.h"
#include "gpu/memory.h"
#include "train/error.h"
#include "train_exit.h"

const char *const train_devices[] = {"cpu", "cuda", NULL}, *const train_types[] = {"f32", "bf16", NULL};

/* Which GPU: the only one that this process sees, or the one of its number. */
static bool choose_gpu(const ranks_place *rank, int32_t *index)
{
    char reason[300];
    const int count = gpu_count(reason, sizeof reason);
    *index = rank && count > 1 ? rank->local : 0;
    if (*index < count || count == 0) /* opening says why there is none */
        return true;
    cli_error("--device: cuda: rank %d is number %d on this machine, counted from 0, which has %d GPUs", rank->rank,
              rank->local, count);
    return false;
}

int train_place_open(runtime *r, int place, int type, int64_t threads, const ranks_place *rank)
{
    int32_t index = 0;
    if (place && !choose_gpu(rank, &index))
        return CLI_WRONG;
    const runtime_options options = {.threads = (int)threads,
                                     .index = index,
                                     .place = rank,
                                     .device = place ? FATTN_DEVICE_CUDA : FATTN_DEVICE_CPU,
                                     .type = type ? NUMBER_BF16 : NUMBER_F32};
    if (runtime_open(r, &options))
        return CLI_OK;
    if (place)
        cli_error("--device: cuda: %s", train_error());
    else
        cli_error("%s", train_error());
    return train_exit_code();
}
