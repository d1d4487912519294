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

/* What a rank says first. */
typedef struct hello {
    char name[8];
    int32_t rank, size;
} hello;

static const char greeting[8] = "fattn 1";

struct meeting {
    ranks_place place;
    int count;           /* of peers: all others for rank 0, rank 0 for the others */
    struct pollfd *ends; /* [count + 1]: of the peers, fd -1 where there is none (any more); the last is the pipe's */
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

static void *watch(void *user)
{
    meeting *m = user;
    while (m->ends[m->count].revents == 0) {
        if (poll(m->ends, (nfds_t)m->count + 1, -1) < 0)
            continue;
        for (int i = 0; i < m->count; i++) {
            char last = 0;
            if (m->ends[i].fd < 0 || m->ends[i].revents == 0)
                continue;
            if (recv(m->ends[i].fd, &last, 1, 0) != 1)
                lose(m, i);
            close(m->ends[i].fd);
            m->ends[i].fd = -1;
        }
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

meeting *meeting_open(const ranks_place *place, void *told, size_t bytes)
{
    meeting *m = calloc(1, sizeof *m);
    const int count = place->rank == 0 ? place->size - 1 : 1;
    if (m)
        m->ends = calloc((size_t)count + 1, sizeof *m->ends);
    if (!m || !m->ends) {
        free(m);
        train_fail_as(TRAIN_ERROR_WORK, "no memory for the ranks' meeting");
        return NULL;
    }
    m->place = *place;
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
    for (int i = 0; i < m->count; i++) {
        if (m->ends[i].fd < 0)
            continue;
        if (in_peace)
            send_all(m->ends[i].fd, "q", 1);
        close(m->ends[i].fd);
    }
    for (int i = 0; i < 2; i++)
        if (m->wake[i] >= 0)
            close(m->wake[i]);
    free(m->ends);
    free(m);
}
