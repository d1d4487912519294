/* Signals that end a run: see interrupt.h. */
#include "interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static atomic_int interrupted;

static sigset_t watched(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    return set;
}

static void *wait_for_signal(void *unused)
{
    (void)unused;
    const sigset_t set = watched();
    int number;
    while (sigwait(&set, &number) != 0)
        ;
    atomic_store(&interrupted, 1);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    /* Unblocked in this thread alone, which stays for it. */
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    while (pause() != 0)
        ;
    return NULL;
}

bool interrupt_watch(void)
{
    const sigset_t set = watched();
    pthread_t thread;
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (pthread_create(&thread, NULL, wait_for_signal, NULL) != 0) {
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
        return false;
    }
    pthread_detach(thread);
    return true;
}

const atomic_int *interrupt_flag(void)
{
    return &interrupted;
}
