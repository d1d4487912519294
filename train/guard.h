/*
 * Watches loss and gradient norm for what would ruin a run: a number that is not finite, and a spike, which is more than
 *
 *     mean + spike * deviation                of the last GUARD_WINDOW finite numbers of its kind, this one not among them
 *
 * Nothing counts as a spike before the window is full, or while all of it is the same number. The windows are part of a
 * checkpoint, so that a run that continues from one decides as the uninterrupted one does.
 */
#ifndef TRAIN_GUARD_H
#define TRAIN_GUARD_H

#include <stdbool.h>
#include <stdint.h>

enum {
    GUARD_WINDOW = 128,
    GUARD_SKIPS = 16 /* so many updates may be skipped in a row: nothing changes any more then, and the run stops */
};

typedef enum guard_action {
    GUARD_STOP, /* the run ends, before the update; the default */
    GUARD_SKIP, /* the run goes on without this update */
    GUARD_OFF   /* any update is made */
} guard_action;

typedef struct guard_window {
    int count;
    double value[GUARD_WINDOW]; /* oldest first */
} guard_window;

/* What a checkpoint keeps. */
typedef struct guard_memory {
    guard_window loss, norm;
    int skips; /* in a row, so far */
} guard_memory;

/* The most that is no spike; infinite if there is no saying. spike 0: there are none. */
double guard_limit(const guard_window *w, double spike);
/* Finite and within the limit? */
bool guard_accepts(double value, double limit);
/* Numbers that are not finite are left out. */
void guard_note(guard_window *w, double value);

#endif
