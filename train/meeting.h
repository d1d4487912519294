/*
 * Where ranks meet that no launcher has connected: each but rank 0 connects to it by TCP. Rank 0 tells all of them a few bytes,
 * and the connections stay, so that everyone notices when a rank is gone, however it ended.
 */
#ifndef TRAIN_MEETING_H
#define TRAIN_MEETING_H

#include "ranks.h"

typedef struct meeting meeting;

/* At place->address and port. `told` [bytes] is rank 0's and becomes the others'. Waits for a minute at most. place->lost is
 * called, from a thread of its own, when another rank's connection ends without meeting_close. NULL with train_error() set. */
meeting *meeting_open(const ranks_place *place, void *told, size_t bytes);
/* in_peace: the others are to go on without this rank. */
void meeting_close(meeting *m, bool in_peace);

#endif
