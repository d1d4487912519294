/*
 * fattn bench: chooses among the benchmarks.
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
    if (!strcmp(what, "train"))
        return bench_train(argc - 1, argv + 1);
    if (!strcmp(what, "--help") || !strcmp(what, "-h")) {
        puts("usage: fattn bench attention|gemm|train [options]\n\n"
             "  attention  times attention on one problem or a grid of problems\n"
             "  gemm       times the machine itself: multiply-add peak, matrix product, reading memory\n"
             "  train      times training steps, and says what memory they plan for\n\n"
             "Each lists its options with --help.");
        return CLI_OK;
    }
    cli_error("bench: '%s' is none of: attention, gemm, train", what);
    return CLI_WRONG;
}
