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
    const int64_t begin = s->kind == SCHEDULE_WSD ? s->steps - s->decay : s->warmup;
    if (step < begin)
        return s->lr;
    const double done = (double)(step - begin) / (double)(s->steps - begin);
    const double left = s->kind == SCHEDULE_COSINE   ? 0.5 * (1.0 + cos(acos(-1.0) * done))
                        : s->kind == SCHEDULE_LINEAR ? 1.0 - done
                                                     : 1.0 - sqrt(done);
    return s->min_lr + (s->lr - s->min_lr) * left;
}
