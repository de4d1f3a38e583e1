/*
 * Many connections of which few are active.
 *
 *   many serve PORT THREADS               echoes what arrives; THREADS more threads sleep
 *   many ask PORT COUNT ACTIVE MS SOURCE  opens COUNT connections from the address SOURCE and, every MS milliseconds, sends 64 bytes
 *                                         on each of the first ACTIVE and reads the echo
 *
 * Both print `ready` and run until stdin is closed. `ask` then prints the number of exchanges.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void allow_descriptors(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) die("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit)) die("setrlimit");
}

static void *sleeps(void *unused) {
    for (;;) pause();
    return unused;
}

static void start_threads(int count) {
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (int i = 0; i < count; i++)
        if (pthread_create(&thread, &small, sleeps, 0)) die("pthread_create");
}

static void watch(int epoll, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
}

static int serve(int port, int threads) {
    struct sockaddr_in local = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), epoll = epoll_create1(0);
    char data[4096];
    setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    if (bind(listener, (void *)&local, sizeof local) || listen(listener, 4096)) die("bind");
    watch(epoll, listener);
    watch(epoll, 0);
    start_threads(threads);
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct epoll_event events[256];
        int n = epoll_wait(epoll, events, 256, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == 0) return 0;
            if (fd == listener) {
                int accepted = accept4(listener, 0, 0, SOCK_NONBLOCK);
                if (accepted >= 0) watch(epoll, accepted);
                continue;
            }
            ssize_t got = recv(fd, data, sizeof data, 0);
            if (got > 0) send(fd, data, got, MSG_NOSIGNAL);
            else if (got == 0 || errno != EAGAIN) close(fd);
        }
    }
}

static void sleep_until(struct timespec *due, long ms) {
    due->tv_nsec += ms * 1000000;
    due->tv_sec += due->tv_nsec / 1000000000;
    due->tv_nsec %= 1000000000;
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, due, 0);
}

static int ask(int port, int count, int active, int ms, const char *source) {
    struct sockaddr_in local = {.sin_family = AF_INET};
    struct sockaddr_in remote = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int *fds = calloc(count, sizeof *fds), one = 1;
    long exchanges = 0;
    char data[64] = {0};
    inet_pton(AF_INET, source, &local.sin_addr);
    for (int i = 0; i < count; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(fds[i], SOL_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
        if (fds[i] < 0 || bind(fds[i], (void *)&local, sizeof local) || connect(fds[i], (void *)&remote, sizeof remote))
            die("connect");
    }
    puts("ready");
    fflush(stdout);
    struct timespec due;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    clock_gettime(CLOCK_MONOTONIC, &due);
    while (poll(&input, 1, 0) == 0) {
        /* In steps of 10 ms, so that the requests are spread over the interval. */
        for (int step = 0, steps = ms / 10; step < steps; step++) {
            int from = (long)active * step / steps, to = (long)active * (step + 1) / steps;
            for (int i = from; i < to; i++) {
                if (send(fds[i], data, sizeof data, MSG_NOSIGNAL) != sizeof data) die("send");
                if (recv(fds[i], data, sizeof data, MSG_WAITALL) != sizeof data) die("recv");
                exchanges++;
            }
            sleep_until(&due, 10);
        }
    }
    printf("%ld\n", exchanges);
    return 0;
}

int main(int c, char **v) {
    allow_descriptors();
    if (c == 4 && !strcmp(v[1], "serve")) return serve(atoi(v[2]), atoi(v[3]));
    if (c == 7 && !strcmp(v[1], "ask")) return ask(atoi(v[2]), atoi(v[3]), atoi(v[4]), atoi(v[5]), v[6]);
    fputs("usage: many serve PORT THREADS | many ask PORT COUNT ACTIVE MS SOURCE\n", stderr);
    return 2;
}
