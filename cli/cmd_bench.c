/*
 * fattn bench: chooses between the two benchmarks.
 */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "cli.h"

int cmd_bench(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "attention"))
        return bench_attention(argc - 1, argv + 1);
    if (!strcmp(what, "gemm"))
        return bench_gemm(argc - 1, argv + 1);
    if (!strcmp(what, "--help") || !strcmp(what, "-h")) {
        puts("usage: fattn bench attention|gemm [options]\n\n"
             "  attention  times attention on one problem or a grid of problems\n"
             "  gemm       times the machine itself: multiply-add peak, matrix product, reading memory\n\n"
             "fattn bench attention --help and fattn bench gemm --help list the options.");
        return CLI_OK;
    }
    cli_error("bench: '%s' is neither attention nor gemm", what);
    return CLI_WRONG;
}
