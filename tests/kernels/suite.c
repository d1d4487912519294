/*
 * Runs the list of problems with every kernel that this machine can run: `suite quick`, `suite default` or `suite full`. The
 * same as `fattn check`, without the program around it.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "suite.h"

int main(int argc, char **argv)
{
    const char *level = argc > 1 ? argv[1] : "default";
    suite s = suite_make();
    s.level = !strcmp(level, "quick") ? LIST_QUICK : !strcmp(level, "full") ? LIST_FULL : LIST_DEFAULT;
    harness_catch_faults(STDOUT_FILENO);
    const bool ran = suite_run(&s, stdout);
    if (!ran)
        fprintf(stderr, "%s\n", s.complaint);
    suite_free(&s);
    return ran && s.failed == 0 ? 0 : 1;
}
