/*
 * Where ranks meet that no launcher has connected: each but rank 0 connects to it by TCP. Rank 0 tells all of them a few bytes,
 * and the connections stay, so that everyone notices when a rank is gone, however it ended.
 *
 * With patience (ranks.h) each rank tells rank 0 every second that it is there, and how long ago it went on; rank 0 tells the
 * others. A rank that is not heard of for so long is missing. So is, if none has gone on for so long, the one that stopped
 * first: the others wait for it.
 */
#ifndef TRAIN_MEETING_H
#define TRAIN_MEETING_H

#include "ranks.h"

typedef struct meeting meeting;

/* At place->address and port. `told` [bytes] is rank 0's and becomes the others'. Waits for a minute at most. place->lost is
 * called, from a thread of its own, when another rank's connection ends without meeting_close, or it is missing. `self` is what
 * this rank goes on in. NULL with train_error() set. */
meeting *meeting_open(const ranks_place *place, ranks *self, void *told, size_t bytes);
/* in_peace: the others are to go on without this rank. */
void meeting_close(meeting *m, bool in_peace);

#endif
