/*
 * A run's losses, read from its log (one JSON object per step), and drawn as one self-contained SVG: training and validation
 * loss over the steps, on a linear or a logarithmic axis, in colours for a light and for a dark page.
 */
#ifndef TRAIN_LOSS_CURVE_H
#define TRAIN_LOSS_CURVE_H

#include <stdbool.h>
#include <stdint.h>

#include "text.h"

typedef struct loss_point {
    int64_t step;
    double loss, val_loss; /* NaN: none */
} loss_point;

typedef struct loss_curve {
    loss_point *points; /* by rising step */
    int64_t count, room;
} loss_curve;

/* Objects without a step, the run's header among them, are passed over; where a continued run does a step again, the later one
 * counts. False, with train_error() set, if the file cannot be read, a line is no JSON object, or no step has a loss. */
bool loss_curve_read(const char *path, loss_curve *c);
void loss_curve_free(loss_curve *c);

/* Appends the SVG. The losses of every stretch of steps that falls on one column of the drawing are drawn as their least and
 * most, so that a long run's file stays small. */
void loss_curve_draw(const loss_curve *c, bool logarithmic, const char *title, text_buffer *svg);

/* Where ticks stand: multiples of 1, 2 or 5 times a power of ten, from four to nine of them within least .. most. Returns the
 * first, and their distance. */
double curve_ticks(double least, double most, double *distance);

#endif
