/* What the environment says of ranks, the engine for one process, and what all engines have in common: see ranks.h. */
#include "ranks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "evaluate.h"
#include "text.h"

/* --------------------------------------------------------------------------------------------------------- environment */

enum { RANKS_MOST = 65536, PORT = 29500 };

/* A launcher's variables. */
static const struct {
    const char *rank, *size, *local;
} launchers[] = {{"RANK", "WORLD_SIZE", "LOCAL_RANK"},
                 {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
                 {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
                 /* Not SLURM_NTASKS, which a batch script has too. */
                 {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"}};

/* A whole number of the environment; `otherwise` where there is none. */
static bool read_number(const char *name, int least, int most, int otherwise, int *number)
{
    const char *text = getenv(name);
    char *end;
    *number = otherwise;
    if (!text)
        return true;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most)
        return train_fail("the environment's %s is '%s', not a number of %d .. %d", name, text, least, most);
    *number = (int)value;
    return true;
}

static bool read_meeting(ranks_place *place)
{
    const char *address = getenv("MASTER_ADDR"), *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    place->address = address ? address : "127.0.0.1";
    if (!read_number("MASTER_PORT", 1, 65534, PORT, &place->port))
        return false;
    /* torchrun itself listens there. */
    place->port += agent && strcmp(agent, "True") == 0;
    return true;
}

bool ranks_look(ranks_place *place)
{
    *place = (ranks_place){.size = 1};
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        if (!getenv(launchers[i].rank) || !getenv(launchers[i].size))
            continue;
        place->said_by = launchers[i].rank;
        if (!read_number(launchers[i].size, 1, RANKS_MOST, 1, &place->size) ||
            !read_number(launchers[i].rank, 0, RANKS_MOST, 0, &place->rank) ||
            !read_number(launchers[i].local, 0, RANKS_MOST, place->rank, &place->local))
            return false;
        if (place->rank >= place->size)
            return train_fail("the environment's %s is %d, but %s is %d", launchers[i].rank, place->rank, launchers[i].size,
                              place->size);
        break;
    }
    return read_meeting(place);
}

/* --------------------------------------------------------------------------------------------------------- one process */

static bool sum_alone(ranks *r, float *data, const int64_t *cuts, bool everywhere)
{
    (void)r, (void)data, (void)cuts, (void)everywhere;
    return true;
}

static bool gather_alone(ranks *r, void *data, size_t bytes, const int64_t *cuts)
{
    (void)r, (void)data, (void)bytes, (void)cuts;
    return true;
}

/* To and from itself. */
static bool exchange_alone(ranks *r, const void *send, int to, void *receive, int from, size_t bytes)
{
    const copy_call c = {.rows = 1, .cols = (int64_t)(bytes / sizeof(float)), .to = receive, .from = send};
    (void)to, (void)from;
    return r->device->run->copy(r->device, &c);
}

static bool nothing(ranks *r)
{
    (void)r;
    return true;
}

static bool gather_host_alone(ranks *r, void *all, size_t bytes)
{
    (void)r, (void)all, (void)bytes;
    return true;
}

static void close_alone(ranks *r, int code)
{
    (void)code;
    free(r);
}

static ranks *open_alone(device *d)
{
    static const ranks_table table = {.sum_begin = sum_alone,
                                      .sum_end = nothing,
                                      .gather = gather_alone,
                                      .exchange_begin = exchange_alone,
                                      .exchange_end = nothing,
                                      .gather_host = gather_host_alone,
                                      .close = close_alone};
    ranks *r = calloc(1, sizeof *r);
    if (!r) {
        train_fail_as(TRAIN_ERROR_WORK, "no memory for a rank");
        return NULL;
    }
    *r = (ranks){.run = &table, .size = 1, .device = d};
    return r;
}

/* ------------------------------------------------------------------------------------------------------------ in common */

ranks *ranks_open(const ranks_place *place, device *d)
{
    const int shards = place->shards ? place->shards : 1;
    if (place->size % shards) {
        train_fail("--context %d: the number of ranks is %d, not a multiple", shards, place->size);
        return NULL;
    }
    ranks *r = place->size == 1              ? open_alone(d)
               : d->kind == FATTN_DEVICE_CPU ? ranks_open_mpi(place, d)
                                             : ranks_open_nccl(place, d);
    if (r) {
        r->shards = shards;
        r->shard = r->rank % shards;
        r->groups = r->size / shards;
        r->group = r->rank / shards;
    }
    return r;
}

void ranks_close(ranks *r, int code)
{
    if (r)
        r->run->close(r, code);
}

void ranks_go_on(ranks *r)
{
    atomic_store(&r->alive, evaluate_seconds());
}

void ranks_cut(const ranks *r, int64_t count, int64_t unit, int64_t *cuts)
{
    const int64_t units = (count + unit - 1) / unit;
    for (int i = 0; i <= r->size; i++) {
        int64_t cut = units * i / r->size * unit;
        cuts[i] = cut < count ? cut : count;
    }
}

bool ranks_agree(ranks *r, const void *bytes, size_t count, bool *same)
{
    unsigned char *all = text_alloc((size_t)r->size * count);
    memset(all, 0, (size_t)r->size * count);
    memcpy(all + (size_t)r->rank * count, bytes, count);
    bool done = r->run->gather_host(r, all, count);
    *same = true;
    for (int i = 1; i < r->size; i++)
        *same = *same && memcmp(all, all + (size_t)i * count, count) == 0;
    free(all);
    return done;
}
