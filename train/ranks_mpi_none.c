/* A build without MPI: see ranks.h. */
#include "error.h"
#include "ranks.h"

ranks *ranks_open_mpi(const ranks_place *place, device *d)
{
    (void)d;
    train_fail("the environment's %s says rank %d of %d, but this program was built without MPI, which ranks on CPUs need",
               place->said_by, place->rank, place->size);
    return NULL;
}
