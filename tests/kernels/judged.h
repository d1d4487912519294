/*
 * Judging a kernel that is wrong on purpose: the harness runs a problem with ref, of which the test has replaced the call.
 */
#ifndef TESTS_KERNELS_JUDGED_H
#define TESTS_KERNELS_JUDGED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

typedef fattn_status (*forward_call)(const fattn_context *, const fattn_desc *, const fattn_forward_args *);
typedef fattn_status (*backward_call)(const fattn_context *, const fattn_desc *, const fattn_backward_args *);

/* Whether the harness lets the problem pass; text gets what it says. NULL: the library's own call. */
static inline bool judged(const char *name, forward_call forward, backward_call backward, char text[VERDICT_TEXT])
{
    problem p;
    char reason[100];
    test_case *c = malloc(sizeof *c);
    harness h = harness_make();
    if (!problem_parse(name, &p, reason, sizeof reason))
        fail_msg("%s: %s", name, reason);
    assert_non_null(c);
    assert_true(case_make(c, &p, reason, sizeof reason));
    h.forward = forward ? forward : h.forward;
    h.backward = backward ? backward : h.backward;
    const kernel_entry ref = {.name = p.op == FATTN_OP_FORWARD ? "ref_forward" : "ref_backward"};
    const verdict v = case_run(&h, c, &ref);
    snprintf(text, VERDICT_TEXT, "%s", v.text);
    case_free(c);
    free(c);
    harness_free(&h);
    return v.passed;
}

#endif
