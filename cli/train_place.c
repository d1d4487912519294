/*
 * Where a model runs; see train_place.h.
 */
#include "train_place.h"

#include "cli.h"
#include "train/error.h"
#include "train_exit.h"

const char *const train_devices[] = {"cpu", "cuda", NULL}, *const train_types[] = {"f32", "bf16", NULL};

int train_place_open(runtime *r, int place, int type, int64_t threads)
{
    const runtime_options options = {.threads = (int)threads,
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
