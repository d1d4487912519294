/* Learning rates: see schedule.h. */
#include "schedule.h"
#include <math.h>

double schedule_lr(const lr_schedule *s, int64_t step)
{
    if (step < s->warmup)
        return s->lr * (double)(step + 1) / (double)s->warmup;
    if (s->kind == SCHEDULE_CONSTANT)
        return s->lr;
    if (step >= s->steps)
        return s->min_lr;
    double done = (double)(step - s->warmup) / (double)(s->steps - s->warmup);
    return s->min_lr + (s->lr - s->min_lr) * 0.5 * (1.0 + cos(acos(-1.0) * done));
}
