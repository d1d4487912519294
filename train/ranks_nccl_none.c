/* A build without NCCL's header: see ranks.h. */
#include "error.h"
#include "ranks.h"

ranks *ranks_open_nccl(const ranks_place *place, device *d)
{
    (void)d;
    train_fail("the environment's %s says rank %d of %d, but this program was built without NCCL, which ranks on GPUs need",
               place->said_by, place->rank, place->size);
    return NULL;
}
