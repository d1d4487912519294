/*
 * fattn world: prints the generated corpus; see train/world.h.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "options.h"
#include "train/world.h"

int cmd_world(int argc, char **argv)
{
    static const char *const splits[] = {"train", "val", NULL};
    int64_t seed = 1, lines = 20;
    option_ints wanted = option_ints_of(WORLD_TRAIN);
    const option_spec table[] = {{"seed", "N", OPTION_INT, &seed, .high = 9e15, .help = "which world"},
                                 {"lines", "N", OPTION_INT, &lines, .high = 1e8, .help = "how many lines of each split"},
                                 {"split", "NAME,...", OPTION_WORDS, &wanted, .words = splits,
                                  .help = "lines to learn from, or those kept for validation"},
                                 {0}};
    const option_set set = {.usage = "fattn world [options]",
                            .about =
                                "Prints a small world: facts that do not contradict each other, stories and sums. The same\n"
                                "seed gives the same text everywhere.",
                            .table = table};
    int status;
    if (!options_parse(&set, argc, argv, &status))
        return status;
    world w;
    world_init(&w, (uint64_t)seed);
    for (int i = 0; i < wanted.count; ++i) {
        for (int64_t line = 0; line < lines; ++line) {
            char text[WORLD_LINE_MAX];
            world_line(&w, (world_split)wanted.item[i], (uint64_t)line, text);
            puts(text);
        }
    }
    return CLI_OK;
}
