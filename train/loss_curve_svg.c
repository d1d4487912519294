/* Drawing losses: see loss_curve.h. Lengths are in units of the drawing, WIDTH x HEIGHT. */
#include <math.h>
#include <stdlib.h>

#include "loss_curve.h"

enum { WIDTH = 800, HEIGHT = 450, LEFT = 64, RIGHT = 16, TOP = 44, BOTTOM = 48, TICKS = 8 };

typedef struct axis {
    double least, most;
    bool logarithmic;
    double from, to; /* where least and most are drawn */
} axis;

static double place(const axis *a, double x)
{
    const double part = a->logarithmic ? log(x / a->least) / log(a->most / a->least) : (x - a->least) / (a->most - a->least);
    return a->from + part * (a->to - a->from);
}

double curve_ticks(double least, double most, double *distance)
{
    const double wanted = (most - least) / TICKS, power = pow(10, floor(log10(wanted))), scaled = wanted / power;
    *distance = (scaled <= 1 ? 1 : scaled <= 2 ? 2 : scaled <= 5 ? 5 : 10) * power;
    return ceil(least / *distance - 1e-9) * *distance;
}

/* ---------------------------------------------------------------------------------------------------------------- ranges */

static void widen_to(axis *a, double x)
{
    if (!isfinite(x) || (a->logarithmic && x <= 0))
        return;
    a->least = x < a->least ? x : a->least;
    a->most = x > a->most ? x : a->most;
}

static axis loss_axis(const loss_curve *c, bool logarithmic)
{
    axis a = {INFINITY, -INFINITY, logarithmic, HEIGHT - BOTTOM, TOP};
    for (int64_t i = 0; i < c->count; i++) {
        widen_to(&a, c->points[i].loss);
        widen_to(&a, c->points[i].val_loss);
    }
    if (!(a.least <= a.most)) /* nothing can be drawn on this axis */
        a.least = a.most = 1;
    const double room = a.most > a.least ? 0.04 * (a.most - a.least) : 0.5 * fabs(a.most) + 1e-3;
    if (logarithmic) {
        const double factor = a.most > a.least ? pow(a.most / a.least, 0.04) : 1.5;
        a.least /= factor, a.most *= factor;
    } else
        a.least -= room, a.most += room;
    return a;
}

static axis step_axis(const loss_curve *c)
{
    const double first = (double)c->points[0].step, last = (double)c->points[c->count - 1].step;
    return (axis){first, last > first ? last : first + 1, false, LEFT, WIDTH - RIGHT};
}

/* ----------------------------------------------------------------------------------------------------------------- axes */

static void draw_loss_tick(const axis *y, double value, text_buffer *svg)
{
    const double at = place(y, value);
    text_format(svg, "<path class='grid' d='M%d %.1fH%d'/><text x='%d' y='%.1f' text-anchor='end'>%.4g</text>\n", LEFT, at,
                WIDTH - RIGHT, LEFT - 8, at + 4, value);
}

/* 1, 2 and 5 times the powers of ten; where that gives fewer than three, as on a linear axis. */
static int draw_log_ticks(const axis *y, text_buffer *svg)
{
    static const double leading[] = {1, 2, 5};
    int drawn = 0;
    for (int power = (int)floor(log10(y->least)); pow(10, power) <= y->most; power++)
        for (int i = 0; i < 3; i++) {
            const double value = leading[i] * pow(10, power);
            if (value < y->least || value > y->most)
                continue;
            if (svg)
                draw_loss_tick(y, value, svg);
            drawn++;
        }
    return drawn;
}

static void draw_axes(const axis *x, const axis *y, text_buffer *svg)
{
    double distance;
    if (y->logarithmic && draw_log_ticks(y, NULL) >= 3)
        draw_log_ticks(y, svg);
    else {
        const double first = curve_ticks(y->least, y->most, &distance);
        for (int i = 0; first + i * distance <= y->most; i++)
            draw_loss_tick(y, first + i * distance, svg);
    }
    double first = curve_ticks(x->least, x->most, &distance);
    if (distance < 1)
        distance = 1, first = ceil(x->least);
    for (int i = 0; first + i * distance <= x->most; i++) {
        const double at = place(x, first + i * distance);
        text_format(svg, "<path class='grid' d='M%.1f %dV%d'/><text x='%.1f' y='%d' text-anchor='middle'>%.10g</text>\n", at,
                    TOP, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 18, first + i * distance);
    }
    text_format(svg, "<text x='%d' y='%d' text-anchor='middle'>step</text>\n", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10);
    text_format(svg, "<text x='16' y='%d' text-anchor='middle' transform='rotate(-90 16 %d)'>loss%s</text>\n",
                (TOP + HEIGHT - BOTTOM) / 2, (TOP + HEIGHT - BOTTOM) / 2, y->logarithmic ? ", logarithmic" : "");
}

/* ---------------------------------------------------------------------------------------------------------------- curves */

typedef struct pen {
    text_buffer *svg;
    bool down, broken;               /* broken: the next column does not join this one */
    int column;                      /* of what was collected */
    double first, last, least, most; /* heights in it; column < 0: none */
} pen;

static void move(pen *p, double x, double y)
{
    text_format(p->svg, "%s%.1f %.1f", p->down ? "L" : "M", x, y);
    p->down = true;
}

/* First, least, most and last of a column, which come out as one upright stroke. */
static void flush(pen *p)
{
    if (p->column < 0)
        return;
    move(p, p->column, p->first);
    if (p->least < p->most) {
        move(p, p->column, p->most);
        move(p, p->column, p->least);
        move(p, p->column, p->last);
    }
    p->column = -1;
}

static void add(pen *p, double x, double y)
{
    const int column = (int)(x + 0.5);
    if (column != p->column) {
        flush(p);
        *p = (pen){p->svg, p->down && !p->broken, false, column, y, y, y, y};
    }
    p->last = y;
    p->least = fmin(p->least, y);
    p->most = fmax(p->most, y);
}

/* A value that is not finite interrupts the training curve; steps without evaluation do not interrupt the other. */
static void draw_curve(const loss_curve *c, const axis *x, const axis *y, bool val, text_buffer *svg)
{
    pen p = {.svg = svg, .column = -1};
    text_format(svg, "<path class='%s' d='", val ? "val" : "train");
    for (int64_t i = 0; i < c->count; i++) {
        const double loss = val ? c->points[i].val_loss : c->points[i].loss;
        if (isfinite(loss) && !(y->logarithmic && loss <= 0))
            add(&p, place(x, (double)c->points[i].step), place(y, loss));
        else
            p.broken = !val;
    }
    flush(&p);
    text_format(svg, "'/>\n");
}

static void draw_dots(const loss_curve *c, const axis *x, const axis *y, text_buffer *svg)
{
    enum { MOST = 60 }; /* more would hide the curve */
    int64_t count = 0;
    for (int64_t i = 0; i < c->count; i++)
        count += isfinite(c->points[i].val_loss);
    for (int64_t i = 0; i < c->count && count <= MOST; i++)
        if (isfinite(c->points[i].val_loss) && !(y->logarithmic && c->points[i].val_loss <= 0))
            text_format(svg, "<circle cx='%.1f' cy='%.1f' r='3'/>\n", place(x, (double)c->points[i].step),
                        place(y, c->points[i].val_loss));
}

/* ---------------------------------------------------------------------------------------------------------------- whole */

static const char style[] = "<style>svg{background:#fff;color-scheme:light dark}"
                            "text{font:12px sans-serif;fill:#333}.title{font-size:14px;font-weight:bold}"
                            ".grid{stroke:#ddd;fill:none}.train,.val{fill:none;stroke-width:1.5;stroke-linejoin:round}"
                            ".train{stroke:#2266bb}.val{stroke:#c0501a;stroke-width:2}circle{fill:#c0501a}"
                            "@media (prefers-color-scheme:dark){svg{background:#16181c}text{fill:#ccc}.grid{stroke:#33373d}"
                            ".train{stroke:#6cacf0}.val{stroke:#f0955f}circle{fill:#f0955f}}</style>\n";

static void escaped(text_buffer *svg, const char *text)
{
    for (; *text; text++)
        if (*text == '<' || *text == '&' || *text == '>')
            text_format(svg, "&#%d;", *text);
        else
            text_bytes(svg, (unsigned char)*text < ' ' ? " " : text, 1);
}

static void draw_legend(const loss_curve *c, text_buffer *svg)
{
    bool any = false;
    for (int64_t i = 0; i < c->count; i++)
        any = any || isfinite(c->points[i].val_loss);
    text_format(svg, "<path class='train' d='M%d 24h24'/><text x='%d' y='28'>training</text>\n", WIDTH - 220, WIDTH - 190);
    if (any)
        text_format(svg, "<path class='val' d='M%d 24h24'/><text x='%d' y='28'>validation</text>\n", WIDTH - 120, WIDTH - 90);
}

void loss_curve_draw(const loss_curve *c, bool logarithmic, const char *title, text_buffer *svg)
{
    const axis x = step_axis(c), y = loss_axis(c, logarithmic);
    text_format(svg, "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='%d' height='%d' role='img'>\n<title>",
                WIDTH, HEIGHT, WIDTH, HEIGHT);
    escaped(svg, title);
    text_format(svg, "</title>\n%s<text class='title' x='%d' y='28'>", style, LEFT);
    escaped(svg, title);
    text_format(svg, "</text>\n");
    draw_axes(&x, &y, svg);
    draw_legend(c, svg);
    draw_curve(c, &x, &y, false, svg);
    draw_curve(c, &x, &y, true, svg);
    draw_dots(c, &x, &y, svg);
    text_format(svg, "</svg>\n");
}
