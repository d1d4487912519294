/* Numbers that are not finite, and spikes: see guard.h. */
#include "guard.h"

#include <math.h>
#include <string.h>

double guard_limit(const guard_window *w, double spike)
{
    double sum = 0, squares = 0;
    if (spike == 0 || w->count < GUARD_WINDOW)
        return INFINITY;
    for (int i = 0; i < GUARD_WINDOW; ++i)
        sum += w->value[i];
    const double mean = sum / GUARD_WINDOW;
    for (int i = 0; i < GUARD_WINDOW; ++i)
        squares += (w->value[i] - mean) * (w->value[i] - mean);
    const double deviation = sqrt(squares / GUARD_WINDOW);
    return deviation > 0 ? mean + spike * deviation : INFINITY;
}

bool guard_accepts(double value, double limit)
{
    return isfinite(value) && value <= limit;
}

void guard_note(guard_window *w, double value)
{
    if (!isfinite(value))
        return;
    if (w->count == GUARD_WINDOW)
        memmove(w->value, w->value + 1, --w->count * sizeof *w->value);
    w->value[w->count++] = value;
}
