/* Ranks that meet by TCP, as processes: what they are told, strangers, ranks that leave in peace and others, ranks that hang.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"
#include "train/meeting.h"

enum { RANKS = 3, PEACE = 0, LOST = 7, WRONG = 9, SILENT = 20, FIRST = 30, STEP = 17 };

/* LOST, or SILENT or FIRST and the number of the rank that is missing. */
static void on_lost(const char *why)
{
    const char *named = strstr(why, " is missing in step 17");
    const int rank = named ? named[-1] - '0' : 0;
    _exit(strstr(why, "ended too early")                            ? LOST
          : named && strstr(why, "nothing was heard of it for 1 s") ? SILENT + rank
          : named && strstr(why, "it stopped first")                ? FIRST + rank
                                                                    : WRONG);
}

static ranks_place place_of(int rank, int port)
{
    return (ranks_place){.rank = rank, .size = RANKS, .address = "127.0.0.1", .port = port, .lost = on_lost};
}

/* A port that was free a moment ago. */
static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    close(fd);
    return ntohs(at.sin_port);
}

static double patience; /* of the ranks that are started from now on */
static int hangs = -1;  /* likewise, the rank that does; -1: none */

/* Comes, is told, then goes on for `seconds` and leaves. Rank 0 comes last. */
static pid_t start_rank(int rank, int port, unsigned seconds)
{
    const pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a stopped one would outlive a test that failed */
    alarm(60);
    const ranks_place place = place_of(rank, port);
    char told[8] = "unknown";
    if (rank == 0) {
        usleep(200000);
        memcpy(told, "the id!", sizeof told);
    }
    ranks self = {.patience = patience};
    atomic_store(&self.step, STEP);
    ranks_go_on(&self);
    meeting *m = meeting_open(&place, &self, told, sizeof told);
    if (!m || strcmp(told, "the id!") != 0)
        _exit(WRONG);
    for (double left = seconds; left > 0; left -= 0.05) {
        usleep(50000);
        if (rank != hangs)
            ranks_go_on(&self);
        if (hangs >= 0 && left < seconds - 1) /* it hangs longer than the others, which wait for it */
            pause();
    }
    meeting_close(m, true);
    _exit(PEACE);
}

static int end_of(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void test_peace(void **state)
{
    pid_t pid[RANKS];
    const int port = free_port();
    (void)state;
    for (int i = RANKS - 1; i >= 0; i--)
        pid[i] = start_rank(i, port, i == 1 ? 0 : 1); /* the first to leave disturbs nobody */
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(end_of(pid[i]), PEACE);
}

static void check_killed(int killed)
{
    pid_t pid[RANKS];
    const int port = free_port();
    for (int i = RANKS - 1; i >= 0; i--)
        pid[i] = start_rank(i, port, 20);
    usleep(600000);
    kill(pid[killed], SIGKILL);
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(end_of(pid[i]), i == killed ? -SIGKILL : LOST);
}

static void test_killed(void **state)
{
    (void)state;
    check_killed(0);
    check_killed(2);
}

/* The others are told, by rank 0 or because it is rank 0. */
static void check_stopped(int stopped)
{
    pid_t pid[RANKS];
    const int port = free_port();
    patience = 1;
    for (int i = RANKS - 1; i >= 0; i--)
        pid[i] = start_rank(i, port, 20);
    sleep(2); /* longer than patience: they go on */
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(waitpid(pid[i], NULL, WNOHANG), 0);
    kill(pid[stopped], SIGSTOP);
    for (int i = 0; i < RANKS; i++)
        if (i != stopped) {
            const int end = end_of(pid[i]);
            assert_true(end == SILENT + stopped || (end == LOST && i != 0 && stopped != 0));
        }
    kill(pid[stopped], SIGKILL);
    end_of(pid[stopped]);
    patience = 0;
}

static void test_stopped(void **state)
{
    (void)state;
    check_stopped(0);
    check_stopped(2);
}

/* Each process is there, but nothing goes on. */
static void test_hanging(void **state)
{
    pid_t pid[RANKS];
    (void)state;
    patience = 2;
    for (hangs = 0; hangs < RANKS; hangs++) {
        const int port = free_port();
        for (int i = RANKS - 1; i >= 0; i--)
            pid[i] = start_rank(i, port, 20);
        assert_int_equal(end_of(pid[0]), FIRST + hangs);
        for (int i = 1; i < RANKS; i++)
            assert_int_equal(end_of(pid[i]), LOST);
    }
    patience = 0;
    hangs = -1;
}

/* Something else connects, says something else, and is not counted. */
static void test_stranger(void **state)
{
    pid_t pid[RANKS];
    const int port = free_port(), fd = socket(AF_INET, SOCK_STREAM, 0);
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    (void)state;
    pid[0] = start_rank(0, port, 1);
    usleep(300000);
    assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(write(fd, "GET / HTTP/1.1\r\n\r\n", 18), 18);
    for (int i = 1; i < RANKS; i++)
        pid[i] = start_rank(i, port, 1);
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(end_of(pid[i]), PEACE);
    close(fd);
}

static void test_taken_port(void **state)
{
    const int port = free_port(), fd = socket(AF_INET, SOCK_STREAM, 0);
    const struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    const ranks_place place = place_of(0, port);
    char told[8] = "";
    (void)state;
    assert_int_equal(bind(fd, (const struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_null(meeting_open(&place, &(ranks){0}, told, sizeof told));
    assert_non_null(strstr(train_error(), "in use"));
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_peace),    cmocka_unit_test(test_killed),
                                       cmocka_unit_test(test_stopped),  cmocka_unit_test(test_hanging),
                                       cmocka_unit_test(test_stranger), cmocka_unit_test(test_taken_port)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
