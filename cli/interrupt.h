/*
 * Ending a run by SIGINT or SIGTERM, without a signal handler.
 *
 * A handler would run on the stack of whatever thread the signal meets, and a signal in the middle of one of oneDNN 2.6.3's
 * compiled products corrupts memory (not with a handler on a stack of its own: they seem to keep data below the stack pointer).
 * So the signals are blocked in every thread, and one thread waits for them.
 */
#ifndef FATTN_CLI_INTERRUPT_H
#define FATTN_CLI_INTERRUPT_H

#include <stdatomic.h>
#include <stdbool.h>

/* Starts to watch, once; call it before other threads are made, which inherit what is blocked. After the first signal the
 * flag is 1; the second one kills. False if no thread can be made: then signals kill at once, as by default. */
bool interrupt_watch(void);

/* 1 after the first signal. */
const atomic_int *interrupt_flag(void);

#endif
