/*
 * What commands print on standard error: errors, notes and progress; and the clock.
 */
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

static bool progress_drawn;  /* a progress line stands on the terminal */
static double progress_time; /* of the last line, at first of the first call */

static void print_line(const char *prefix, const char *format, va_list list)
{
    cli_progress_end();
    fflush(stdout);
    fputs(prefix, stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
}

void cli_error(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    print_line("fattn: ", format, list);
    va_end(list);
}

void cli_note(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    print_line("", format, list);
    va_end(list);
}

void cli_progress(double interval, const char *format, ...)
{
    const bool terminal = isatty(STDERR_FILENO);
    const double now = cli_seconds();
    if (progress_time == 0)
        progress_time = now;
    if (now - progress_time < (terminal ? 0.1 : interval))
        return;
    progress_time = now;
    if (terminal)
        fputs("\r\033[K", stderr);
    va_list list;
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    if (!terminal)
        fputc('\n', stderr);
    fflush(stderr);
    progress_drawn = terminal;
}

void cli_progress_end(void)
{
    if (progress_drawn)
        fputs("\r\033[K", stderr);
    progress_drawn = false;
}

double cli_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}
