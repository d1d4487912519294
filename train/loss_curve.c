/* Losses from a log: see loss_curve.h; the drawing is in loss_curve_svg.c. */
#include "loss_curve.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

static void add_point(loss_curve *c, loss_point p)
{
    while (c->count > 0 && c->points[c->count - 1].step >= p.step)
        --c->count;
    if (c->count == c->room) {
        c->room = c->room ? 2 * c->room : 1024;
        loss_point *grown = text_alloc((size_t)c->room * sizeof *grown);
        if (c->count)
            memcpy(grown, c->points, (size_t)c->count * sizeof *grown);
        free(c->points);
        c->points = grown;
    }
    c->points[c->count++] = p;
}

static double number_of(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static bool read_line(const char *path, long long line, const char *text, loss_curve *c)
{
    cJSON *object = cJSON_Parse(text);
    const bool good = cJSON_IsObject(object) || train_fail("%s: line %lld is no JSON object", path, line);
    if (good) {
        const double step = number_of(object, "step");
        if (step >= 0 && step < 9e15)
            add_point(c, (loss_point){(int64_t)step, number_of(object, "loss"), number_of(object, "val_loss")});
    }
    cJSON_Delete(object);
    return good;
}

static bool has_loss(const loss_curve *c)
{
    for (int64_t i = 0; i < c->count; ++i)
        if (isfinite(c->points[i].loss) || isfinite(c->points[i].val_loss))
            return true;
    return false;
}

bool loss_curve_read(const char *path, loss_curve *c)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t room = 0;
    bool good = true;
    *c = (loss_curve){0};
    if (!file)
        return train_fail("%s: %s", path, strerror(errno));
    for (long long line = 1; good && getline(&text, &room, file) > 0; ++line)
        if (text[strspn(text, " \t\r\n")])
            good = read_line(path, line, text, c);
    if (good && ferror(file))
        good = train_fail("%s: %s", path, strerror(errno));
    if (good && !has_loss(c))
        good = train_fail("%s: no step with a loss", path);
    free(text);
    fclose(file);
    return good;
}

void loss_curve_free(loss_curve *c)
{
    free(c->points);
    *c = (loss_curve){0};
}
