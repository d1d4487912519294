/*
 * Sleeping on a word where there is no futex: one mutex and condition variable for all words. Every sleeper wakes at every
 * change and asks again, which is dear with many threads but simple; only systems other than Linux use it.
 */
#include <pthread.h>

#include "core/system.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

void fattn_word_wait(_Atomic uint32_t *word, uint32_t value)
{
    pthread_mutex_lock(&mutex);
    while (atomic_load(word) == value)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

void fattn_word_wake(_Atomic uint32_t *word)
{
    (void)word;
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}
