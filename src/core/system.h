/*
 * What core asks of the machine and the operating system. One file per answer, chosen by the build:
 * features_x86.c or features_none.c; cpus_linux.c or cpus_posix.c; wait_futex.c or wait_condvar.c.
 */
#ifndef FATTN_CORE_SYSTEM_H
#define FATTN_CORE_SYSTEM_H

#include <stdatomic.h>
#include <stdint.h>

/* FATTN_CPU_... bits that the processor has and whose registers the system saves. */
uint32_t fattn_cpu_features(void);

enum { FATTN_THREADS_MOST = 1024 }; /* of a context */

/* How many threads the process may run at once: 1 .. FATTN_THREADS_MOST. */
int32_t fattn_usable_cpus(void);

/* Sleeps while *word is `value`; may also return for no reason, so callers ask again. */
void fattn_word_wait(_Atomic uint32_t *word, uint32_t value);

/* Wakes whoever sleeps on the word, after it was changed. */
void fattn_word_wake(_Atomic uint32_t *word);

#endif
