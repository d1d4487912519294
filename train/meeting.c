/* TCP between rank 0 and the others: see meeting.h. */
#define _GNU_SOURCE
#include "meeting.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "error.h"
#include "evaluate.h"

enum { PATIENCE = 60, PAUSE_US = 50000 }; /* seconds in all; between two attempts to connect */
static const double BEAT = 1, REST = 5;   /* seconds between two of them; until one that has begun is all there */

/* What a rank says first. */
typedef struct hello {
    char name[8];
    int32_t rank, size;
} hello;

static const char greeting[8] = "fattn 2";

/* What ranks tell each other from time to time, and last. */
typedef struct beat {
    int64_t leaves; /* 1: in peace */
    double idle;    /* seconds since the rank went on */
} beat;

/* What is known of a rank. Seconds in which this process was stopped itself are not counted. */
typedef struct rank_state {
    double silent, idle; /* since it was heard of; since it went on, at that time */
    double heard;        /* when that was */
} rank_state;

struct meeting {
    ranks_place place;
    ranks *self;
    int count;           /* of peers: all others for rank 0, rank 0 for the others */
    struct pollfd *ends; /* [count + 1]: of the peers, fd -1 where there is none (any more); the last is the pipe's */
    rank_state *states;  /* [count + 1]: of the peers; the last is this rank's */
    double told, alive;  /* when the last beat was due; self->alive then */
    int wake[2];         /* a pipe that ends the thread */
    pthread_t thread;
    bool watched;
};

static bool failed(const ranks_place *p, const char *what, const char *why)
{
    return train_fail_as(TRAIN_ERROR_WORK, "rank %d of %d, at MASTER_ADDR %s, port %d: %s: %s", p->rank, p->size, p->address,
                         p->port, what, why);
}

static bool send_all(int fd, const void *bytes, size_t count)
{
    const char *at = bytes;
    while (count) {
        ssize_t sent = send(fd, at, count, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        at += sent;
        count -= (size_t)sent;
    }
    return true;
}

/* Is there something to read, before the deadline? */
static bool readable(int fd, double deadline)
{
    struct pollfd end = {.fd = fd, .events = POLLIN};
    const double left = deadline - evaluate_seconds();
    return left > 0 && poll(&end, 1, (int)(left * 1e3) + 1) > 0;
}

static bool receive_all(int fd, void *bytes, size_t count, double deadline)
{
    char *at = bytes;
    while (count) {
        ssize_t got = readable(fd, deadline) ? recv(fd, at, count, 0) : 0;
        if (got <= 0)
            return false;
        at += got;
        count -= (size_t)got;
    }
    return true;
}

/* -------------------------------------------------------------------------------------------------------------- meeting */

static int listen_at(const ranks_place *p)
{
    const struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((uint16_t)p->port)};
    const int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(fd, (const struct sockaddr *)&any, sizeof any) == 0 && listen(fd, p->size) == 0)
        return fd;
    failed(p, "listening", strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

/* One that comes: a rank of this run that has not come before, or a stranger, who is sent away. */
static bool welcome(meeting *m, int fd, const void *told, size_t bytes, double deadline)
{
    hello h;
    const bool known = receive_all(fd, &h, sizeof h, deadline) && memcmp(h.name, greeting, sizeof greeting) == 0 &&
                       h.size == m->place.size && h.rank > 0 && h.rank < h.size && m->ends[h.rank - 1].fd < 0;
    if (!known || !send_all(fd, told, bytes)) {
        close(fd);
        return false;
    }
    m->ends[h.rank - 1].fd = fd;
    return true;
}

static bool receive_ranks(meeting *m, const void *told, size_t bytes)
{
    const double deadline = evaluate_seconds() + PATIENCE;
    const int door = listen_at(&m->place);
    int missing = m->count;
    if (door < 0)
        return false;
    while (missing > 0 && readable(door, deadline)) {
        const int fd = accept4(door, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            missing -= welcome(m, fd, told, bytes, deadline);
    }
    close(door);
    return missing == 0 || failed(&m->place, "waiting for the other ranks", "some did not come within a minute");
}

static int connect_once(const struct addrinfo *to)
{
    const int fd = socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC, to->ai_protocol);
    if (fd >= 0 && connect(fd, to->ai_addr, to->ai_addrlen) == 0)
        return fd;
    const int reason = errno;
    if (fd >= 0)
        close(fd);
    errno = reason;
    return -1;
}

static bool go_to_rank_0(meeting *m, void *told, size_t bytes)
{
    const double deadline = evaluate_seconds() + PATIENCE;
    const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    hello h = {.rank = m->place.rank, .size = m->place.size};
    struct addrinfo *to;
    char port[16];
    int fd;
    memcpy(h.name, greeting, sizeof greeting);
    snprintf(port, sizeof port, "%d", m->place.port);
    const int reason = getaddrinfo(m->place.address, port, &hints, &to);
    if (reason)
        return failed(&m->place, "looking it up", gai_strerror(reason));
    while ((fd = connect_once(to)) < 0 && evaluate_seconds() < deadline) /* rank 0 may come later */
        usleep(PAUSE_US);
    const char *why = fd < 0 ? strerror(errno) : "";
    freeaddrinfo(to);
    if (fd < 0)
        return failed(&m->place, "connecting to rank 0", why);
    m->ends[0].fd = fd;
    return (send_all(fd, &h, sizeof h) && receive_all(fd, told, bytes, deadline)) ||
           failed(&m->place, "talking to rank 0", "it did not answer, or is of another run");
}

/* ------------------------------------------------------------------------------------------------------------- watching */

static void lose(const meeting *m, int peer)
{
    char why[160];
    if (m->place.rank == 0)
        snprintf(why, sizeof why, "rank %d ended too early", peer + 1);
    else
        snprintf(why, sizeof why, "rank %d: rank 0 ended too early, perhaps because another did", m->place.rank);
    m->place.lost(why);
}

static void hear(meeting *m, int peer)
{
    beat b;
    if (m->ends[peer].fd < 0 || m->ends[peer].revents == 0)
        return;
    if (!receive_all(m->ends[peer].fd, &b, sizeof b, evaluate_seconds() + REST))
        lose(m, peer);
    m->states[peer] = (rank_state){.idle = b.idle, .heard = evaluate_seconds()};
    if (b.leaves) {
        close(m->ends[peer].fd);
        m->ends[peer].fd = -1;
    }
}

static double beat_seconds(const meeting *m)
{
    const double patience = m->self->patience;
    return patience / 4 < BEAT ? patience / 4 : BEAT;
}

/* Time goes on: for this rank, and in silence for the others. */
static void count_seconds(meeting *m, double now)
{
    const double most = 2 * beat_seconds(m), passed = now - m->told < most ? now - m->told : most;
    const double alive = atomic_load(&m->self->alive);
    rank_state *own = &m->states[m->count];
    for (int i = 0; i < m->count; i++)
        m->states[i].silent += passed;
    own->idle = alive == m->alive ? own->idle + passed : now - alive < most ? now - alive : most;
    own->heard = m->told = now;
    m->alive = alive;
}

static int rank_of(const meeting *m, int state)
{
    return state == m->count ? m->place.rank : m->place.rank == 0 ? state + 1 : 0;
}

static void judge(const meeting *m)
{
    const double patience = m->self->patience;
    const long long step = (long long)atomic_load(&m->self->step);
    int first = m->count; /* to stop */
    bool all_idle = true;
    char why[200];
    for (int i = 0; i <= m->count; i++) {
        const rank_state *s = &m->states[i];
        if (i < m->count && m->ends[i].fd < 0)
            continue;
        if (s->silent > patience) {
            snprintf(why, sizeof why, "rank %d is missing in step %lld: nothing was heard of it for %.0f s (--rank-timeout)",
                     rank_of(m, i), step, s->silent);
            m->place.lost(why);
        }
        all_idle = all_idle && s->silent + s->idle > patience;
        if (s->heard - s->idle < m->states[first].heard - m->states[first].idle)
            first = i;
    }
    if (!all_idle || m->place.rank != 0 || step == 0) /* before the first step there is nothing to go on with */
        return;
    snprintf(why, sizeof why,
             "no rank has gone on for %.0f s (--rank-timeout): rank %d is missing in step %lld, it stopped first",
             m->states[m->count].idle, rank_of(m, first), step);
    m->place.lost(why);
}

static void tell_all(meeting *m, bool leaves)
{
    const beat b = {.leaves = leaves, .idle = m->states[m->count].idle};
    for (int i = 0; i < m->count; i++)
        if (m->ends[i].fd >= 0)
            send_all(m->ends[i].fd, &b, sizeof b);
}

static void *watch(void *user)
{
    meeting *m = user;
    const bool beats = m->self->patience > 0;
    const int pause = beats ? (int)(1e3 * beat_seconds(m)) + 1 : -1;
    m->told = evaluate_seconds();
    while (m->ends[m->count].revents == 0) {
        if (poll(m->ends, (nfds_t)m->count + 1, pause) < 0)
            continue;
        for (int i = 0; i < m->count; i++)
            hear(m, i);
        const double now = evaluate_seconds();
        if (!beats || now - m->told < beat_seconds(m))
            continue;
        count_seconds(m, now);
        tell_all(m, false);
        judge(m);
    }
    return NULL;
}

/* A machine that is switched off closes nothing; the kernel then asks. */
static void keep_asking(int fd)
{
    const int on = 1, seconds = 5, times = 3;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
}

static bool start_watching(meeting *m)
{
    for (int i = 0; i < m->count; i++)
        keep_asking(m->ends[i].fd);
    if (pipe2(m->wake, O_CLOEXEC) != 0)
        return failed(&m->place, "watching the other ranks", strerror(errno));
    m->ends[m->count].fd = m->wake[0];
    const int reason = pthread_create(&m->thread, NULL, watch, m);
    m->watched = reason == 0;
    return m->watched || failed(&m->place, "watching the other ranks", strerror(reason));
}

meeting *meeting_open(const ranks_place *place, ranks *self, void *told, size_t bytes)
{
    meeting *m = calloc(1, sizeof *m);
    const int count = place->rank == 0 ? place->size - 1 : 1;
    if (m) {
        m->ends = calloc((size_t)count + 1, sizeof *m->ends);
        m->states = calloc((size_t)count + 1, sizeof *m->states);
    }
    if (!m || !m->ends || !m->states) {
        if (m) {
            free(m->ends);
            free(m->states);
        }
        free(m);
        train_fail_as(TRAIN_ERROR_WORK, "no memory for the ranks' meeting");
        return NULL;
    }
    m->place = *place;
    m->self = self;
    m->count = count;
    m->wake[0] = m->wake[1] = -1;
    for (int i = 0; i <= count; i++)
        m->ends[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    if ((place->rank == 0 ? receive_ranks(m, told, bytes) : go_to_rank_0(m, told, bytes)) && start_watching(m))
        return m;
    meeting_close(m, false);
    return NULL;
}

void meeting_close(meeting *m, bool in_peace)
{
    if (!m)
        return;
    if (m->watched) {
        close(m->wake[1]);
        m->wake[1] = -1;
        pthread_join(m->thread, NULL);
    }
    if (in_peace)
        tell_all(m, true);
    for (int i = 0; i < m->count; i++)
        if (m->ends[i].fd >= 0)
            close(m->ends[i].fd);
    for (int i = 0; i < 2; i++)
        if (m->wake[i] >= 0)
            close(m->wake[i]);
    free(m->ends);
    free(m->states);
    free(m);
}
