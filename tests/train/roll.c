/*
 * A rank that hangs while one of the others began to wait long after the other: only the first is missing.
 *
 * One of three ranks of `mpirun -n 3`, run by ranks_failing.sh. Rank 0 has waited for its patience when rank 2 has just come;
 * it would answer too late, did it wait for its own.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "support.h"
#include "train/error.h"

enum { HANGS = 1, LATE = 2, PATIENCE = 3, LATER = 2500000 };

int main(void)
{
    ranks_place place;
    char all[3] = "";
    if (!ranks_look(&place) || place.size != (int)sizeof all) {
        fprintf(stderr, "FAILED: this is no rank of three\n");
        return 1;
    }
    place.patience = PATIENCE;
    ranks *r = ranks_open(&place, device_cpu());
    if (!r) {
        fprintf(stderr, "FAILED: %s\n", train_error());
        return 1;
    }
    atomic_store(&r->step, 17);
    if (r->rank == HANGS)
        sleep(10 * PATIENCE);
    if (r->rank == LATE)
        usleep(LATER);
    if (!r->run->gather_host(r, all, 1))
        fprintf(stderr, "%s\n", train_error());
    fflush(stderr);
    ranks_close(r, 1);
    return 1;
}
