/* Clients and servers for the relay measurements. In C, because a client in Python would be the bottleneck.
 *
 *   load serve ADDR PORT [BYTES]                            TCP echo server, or BYTES for every 32 that arrive
 *   load rr ADDR PORT CONNECTIONS SECONDS [BYTES]           32-byte exchanges, or requests of 32 bytes for BYTES, one at
 *                                                           a time on each connection
 *   load connect ADDR PORT CONCURRENCY SECONDS              repeatedly connects, exchanges 32 bytes and closes
 *   load churn ADDR PORT OPEN RATE SECONDS                  opens RATE connections per second (both ends) and resets each
 *                                                           once OPEN newer ones are open
 *   load idle ADDR PORT COUNT                               opens COUNT connections, holds them until stdin ends
 *   load udp-serve ADDR PORT                                UDP echo server
 *   load udp-sink ADDR PORT                                 counts datagrams until SIGTERM
 *   load udp-flood ADDR PORT BYTES SOURCES SECONDS          sends as fast as the host allows
 *   load udp-trips ADDR PORT BYTES SOURCES WINDOW SECONDS   echo round trips, WINDOW datagrams in flight per source
 *
 * A client prints one JSON object on stdout. Servers print "ready" once they are bound.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    EXCHANGE_BYTES = 32,
    EVENTS = 256,
    BATCH = 32,
    DATAGRAM_BYTES = 65536,
    ANSWER_MAX = 1 << 20,
    IDLE_STEP = 100, /* connections opened at a time: fewer than every peer's accept backlog */
};
static const double WARM_UP_S = 0.2;  /* the first part of each timed client, which is not measured */
static const double GIVE_UP_S = 5;    /* timeout of an answer */
static const double LOST_S = 0.1;     /* after this time the echo of a datagram counts as lost */

static struct sockaddr_in address;
static int answer_bytes = EXCHANGE_BYTES;

static void die(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* Stores all times in nanoseconds, so that percentiles are exact. */
static struct {
    uint32_t *ns;
    size_t count, capacity;
} times;

static void note_time(double seconds) {
    if (times.count == times.capacity) {
        times.capacity = times.capacity ? times.capacity * 2 : 1 << 16;
        times.ns = realloc(times.ns, times.capacity * sizeof *times.ns);
        if (!times.ns)
            die("memory");
    }
    times.ns[times.count++] = seconds < 4 ? (uint32_t)(seconds * 1e9) : 4000000000u;
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double percentile_us(double share) {
    return times.count ? times.ns[(size_t)(share * (times.count - 1))] / 1e3 : 0;
}

static void print_times(double seconds, long errors) {
    qsort(times.ns, times.count, sizeof *times.ns, ascending);
    printf("{\"count\": %zu, \"seconds\": %.4f, \"per_s\": %.1f, \"p50_us\": %.2f, \"p99_us\": %.2f, \"errors\": %ld}\n",
           times.count, seconds, times.count / seconds, percentile_us(0.5), percentile_us(0.99), errors);
}

static int new_socket(int type) {
    int one = 1, fd = socket(AF_INET, type, 0);
    if (fd < 0)
        die("socket");
    if ((type & 15) == SOCK_STREAM)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static int bound_socket(int type) {
    int one = 1, bytes = 8 << 20, fd = new_socket(type);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    /* The receiver must not lose datagrams itself. */
    if ((type & 15) == SOCK_DGRAM && setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes))
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if (bind(fd, (struct sockaddr *)&address, sizeof address))
        die("bind");
    if ((type & 15) == SOCK_STREAM && listen(fd, 4096))
        die("listen");
    puts("ready");
    fflush(stdout);
    return fd;
}

static void watch(int poll, int op, int fd, uint32_t events, uint64_t data) {
    struct epoll_event e = {.events = events, .data.u64 = data};
    if (epoll_ctl(poll, op, fd, &e))
        die("epoll_ctl");
}

/* ---- TCP ---- */

/* Echoes or answers until the end of data, then closes. */
static void serve(void) {
    static char buffer[ANSWER_MAX];
    struct epoll_event events[EVENTS];
    int poll = epoll_create1(0), listener = bound_socket(SOCK_STREAM | SOCK_NONBLOCK);
    int echoes = answer_bytes == EXCHANGE_BYTES;
    watch(poll, EPOLL_CTL_ADD, listener, EPOLLIN, listener);
    for (;;) {
        int n = epoll_wait(poll, events, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.u64, one = 1;
            if (fd == listener) {
                while ((fd = accept4(listener, NULL, NULL, 0)) >= 0) {
                    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    watch(poll, EPOLL_CTL_ADD, fd, EPOLLIN, fd);
                }
                continue;
            }
            ssize_t bytes = recv(fd, buffer, echoes ? 65536 : EXCHANGE_BYTES, 0);
            /* A request always arrives as a whole, because the client sends it with one write. */
            if (!echoes && bytes > 0)
                bytes = bytes == EXCHANGE_BYTES ? answer_bytes : 0;
            if (bytes <= 0 || send(fd, buffer, bytes, MSG_NOSIGNAL) != bytes)
                close(fd);
        }
    }
}

struct exchange {
    int fd, got;
    enum { CONNECTING, WAITING } state;
    double begun_s;
};

static void send_request(struct exchange *x) {
    static const char request[EXCHANGE_BYTES] = "parshall measures relays, 32 B.";
    x->got = 0;
    x->state = WAITING;
    if (send(x->fd, request, sizeof request, MSG_NOSIGNAL) != sizeof request)
        x->got = -1;
}

/* Returns 1 if the whole answer has arrived, 0 if not yet, -1 on an error or an early end of data. */
static int read_answer(struct exchange *x) {
    static char answer[ANSWER_MAX];
    ssize_t n = x->got < 0 ? -1 : recv(x->fd, answer, answer_bytes - x->got, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN && x->got >= 0)
        return 0;
    if (n <= 0)
        return -1;
    x->got += n;
    return x->got == answer_bytes;
}

static void request_response(int connections, double seconds) {
    struct exchange *all = calloc(connections, sizeof *all);
    struct epoll_event events[EVENTS];
    int poll = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        all[i].fd = new_socket(SOCK_STREAM);
        if (connect(all[i].fd, (struct sockaddr *)&address, sizeof address))
            die("connect");
        watch(poll, EPOLL_CTL_ADD, all[i].fd, EPOLLIN, i);
    }
    double begin_s = now_s() + WARM_UP_S, end_s = begin_s + seconds, t = begin_s;
    for (int i = 0; i < connections; i++) {
        all[i].begun_s = now_s();
        send_request(&all[i]);
    }
    while (t < end_s) {
        int n = epoll_wait(poll, events, EVENTS, GIVE_UP_S * 1000);
        if (n <= 0)
            die("no answer");
        for (int i = 0; i < n; i++) {
            struct exchange *x = &all[events[i].data.u64];
            int done = read_answer(x);
            if (done < 0)
                die("connection lost");
            if (!done)
                continue;
            t = now_s();
            if (x->begun_s >= begin_s)
                note_time(t - x->begun_s);
            x->begun_s = t;
            send_request(x);
        }
    }
    print_times(t - begin_s, 0);
}

static void begin_connection(int poll, struct exchange *x, int index) {
    x->begun_s = now_s();
    x->fd = new_socket(SOCK_STREAM | SOCK_NONBLOCK);
    x->state = CONNECTING;
    if (connect(x->fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS)
        die("connect");
    watch(poll, EPOLL_CTL_ADD, x->fd, EPOLLOUT, index);
}

static void connections(int concurrency, double seconds) {
    struct exchange *all = calloc(concurrency, sizeof *all);
    struct epoll_event events[EVENTS];
    int poll = epoll_create1(0);
    long errors = 0;
    double begin_s = now_s() + WARM_UP_S, end_s = begin_s + seconds, t = begin_s;
    for (int i = 0; i < concurrency; i++)
        begin_connection(poll, &all[i], i);
    while (t < end_s) {
        int n = epoll_wait(poll, events, EVENTS, GIVE_UP_S * 1000);
        if (n <= 0)
            die("no answer");
        for (int i = 0; i < n; i++) {
            struct exchange *x = &all[events[i].data.u64];
            if (x->state == CONNECTING && !(events[i].events & (EPOLLERR | EPOLLHUP))) {
                watch(poll, EPOLL_CTL_MOD, x->fd, EPOLLIN, events[i].data.u64);
                send_request(x);
                continue;
            }
            int done = read_answer(x);
            if (!done)
                continue;
            t = now_s();
            if (done < 0)
                errors++;
            else if (x->begun_s >= begin_s)
                note_time(t - x->begun_s);
            close(x->fd);
            if (errors > 1000)
                die("more than 1000 connections failed");
            begin_connection(poll, x, events[i].data.u64);
        }
    }
    print_times(t - begin_s, errors);
}

/* Opens and resets connections without data and without TIME_WAIT, so that ports are free again at once. */
static void churn(int open, double rate, double seconds) {
    struct linger reset = {.l_onoff = 1};
    int listener = bound_socket(SOCK_STREAM), (*ends)[2] = calloc(open, sizeof *ends);
    double begin_s = now_s(), end_s = begin_s + seconds, t = begin_s;
    long made = 0;
    for (; t < end_s; made++) {
        int *end = ends[made % open];
        if (made >= open && (close(end[0]) | close(end[1])))
            die("close");
        end[0] = new_socket(SOCK_STREAM);
        setsockopt(end[0], SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        if (connect(end[0], (struct sockaddr *)&address, sizeof address))
            die("connect");
        end[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (end[1] < 0)
            die("accept");
        t = now_s();
        double ahead_s = begin_s + made / rate - t;
        if (ahead_s > 0.001)
            usleep(ahead_s * 1e6);
    }
    printf("{\"count\": %ld, \"seconds\": %.4f, \"per_s\": %.1f}\n", made, t - begin_s, made / (t - begin_s));
}

/* Opens connections in steps, each with an exchange, so that both connections of the relay exist. */
static void idle(int count) {
    struct timeval limit = {.tv_sec = (long)GIVE_UP_S};
    struct exchange step[IDLE_STEP];
    int open = 0, failed = 0;
    const char *why = "";
    while (open < count && !failed) {
        int started = 0;
        for (; started < IDLE_STEP && open + started < count && !failed; started++) {
            struct exchange *x = &step[started];
            if ((x->fd = socket(AF_INET, SOCK_STREAM, 0)) < 0) {
                failed = 1, why = "socket";
                break;
            }
            setsockopt(x->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
            setsockopt(x->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
            if (connect(x->fd, (struct sockaddr *)&address, sizeof address)) {
                failed = 1, why = "connect";
                break;
            }
            send_request(x);
        }
        for (int i = 0; i < started; i++) {
            char answer[EXCHANGE_BYTES];
            if (recv(step[i].fd, answer, sizeof answer, MSG_WAITALL) != sizeof answer)
                failed = 1, why = "no answer";
            else
                open++;
        }
    }
    printf("{\"open\": %d, \"stopped_by\": \"%s\"}\n", open, why);
    fflush(stdout);
    while (getchar() != EOF)
        ;
}

/* ---- UDP ---- */

static struct mmsghdr batch[BATCH];
static struct iovec parts[BATCH];
static struct sockaddr_in sources[BATCH];
static char datagrams[BATCH][DATAGRAM_BYTES];

/* Prepares the batch to send datagrams of `bytes`, or to receive any; with or without addresses. */
static void prepare(size_t bytes, int with_address) {
    for (int i = 0; i < BATCH; i++) {
        parts[i] = (struct iovec){datagrams[i], bytes};
        batch[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
        if (with_address) {
            batch[i].msg_hdr.msg_name = &sources[i];
            batch[i].msg_hdr.msg_namelen = sizeof sources[i];
        }
    }
}

static void udp_serve(void) {
    int fd = bound_socket(SOCK_DGRAM);
    for (;;) {
        prepare(DATAGRAM_BYTES, 1);
        int n = recvmmsg(fd, batch, BATCH, MSG_WAITFORONE, NULL), kept = 0;
        /* One of the relays sends an empty datagram for each session, and ends the session if it is echoed. */
        for (int i = 0; i < n; i++)
            if (batch[i].msg_len) {
                batch[kept] = batch[i];
                batch[kept++].msg_hdr.msg_iov->iov_len = batch[i].msg_len;
            }
        n = kept;
        for (int sent = 0, more; sent < n; sent += more)
            if ((more = sendmmsg(fd, batch + sent, n - sent, 0)) <= 0)
                more = 1; /* skips a datagram that cannot be sent */
    }
}

static volatile sig_atomic_t stop;

static void on_stop(int signal_number) {
    (void)signal_number;
    stop = 1;
}

/* The first datagram of each source opens the relay's session and is not counted. The others are sent after a pause. */
static void udp_sink(void) {
    struct sigaction act = {.sa_handler = on_stop};
    struct timeval tick = {.tv_usec = 20000};
    long long count = 0, bytes = 0;
    double first_s = 0, last_s = 0;
    int fd = bound_socket(SOCK_DGRAM);
    sigaction(SIGTERM, &act, NULL);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tick, sizeof tick);
    prepare(DATAGRAM_BYTES, 0);
    while (!stop) {
        int n = recvmmsg(fd, batch, BATCH, MSG_WAITFORONE, NULL);
        if (n <= 0)
            continue;
        last_s = now_s();
        for (int i = 0; i < n; i++) {
            if (batch[i].msg_len <= 1)
                continue;
            if (!count)
                first_s = last_s;
            count++;
            bytes += batch[i].msg_len;
        }
    }
    printf("{\"received\": %lld, \"bytes\": %lld, \"seconds\": %.4f}\n", count, bytes, last_s - first_s);
}

static int *udp_sources(int count) {
    int *fds = calloc(count, sizeof *fds);
    for (int i = 0; i < count; i++) {
        fds[i] = new_socket(SOCK_DGRAM);
        if (connect(fds[i], (struct sockaddr *)&address, sizeof address))
            die("connect");
        if (send(fds[i], "", 1, 0) != 1)
            die("send");
    }
    usleep(200000);
    return fds;
}

static void udp_flood(size_t bytes, int count, double seconds) {
    int *fds = udp_sources(count);
    long long sent = 0;
    double begin_s = now_s(), t = begin_s;
    prepare(bytes, 0);
    for (int i = 0; t < begin_s + seconds; i = (i + 1) % count) {
        int n = sendmmsg(fds[i], batch, BATCH, 0);
        if (n > 0)
            sent += n;
        t = now_s();
    }
    printf("{\"sent\": %lld, \"seconds\": %.4f}\n", sent, t - begin_s);
}

/* Each datagram carries the time at which it was sent. */
static int send_stamped(int fd, size_t bytes, int count) {
    prepare(bytes, 0);
    double t = now_s();
    for (int i = 0; i < count; i++)
        memcpy(datagrams[i], &t, sizeof t);
    int n = sendmmsg(fd, batch, count, 0);
    return n > 0 ? n : 0;
}

static void udp_trips(size_t bytes, int count, int window, double seconds) {
    int *fds = udp_sources(count), poll = epoll_create1(0);
    double *heard_s = calloc(count, sizeof *heard_s);
    struct epoll_event events[EVENTS];
    long lost = 0;
    if (window > BATCH)
        die("the window is larger than a batch");
    for (int i = 0; i < count; i++) {
        while (recv(fds[i], datagrams[0], DATAGRAM_BYTES, MSG_DONTWAIT) > 0)
            ;
        watch(poll, EPOLL_CTL_ADD, fds[i], EPOLLIN, i);
    }
    double begin_s = now_s() + WARM_UP_S, end_s = begin_s + seconds, t = now_s();
    for (int i = 0; i < count; i++) {
        heard_s[i] = t;
        send_stamped(fds[i], bytes, window);
    }
    while (t < end_s) {
        int n = epoll_wait(poll, events, EVENTS, LOST_S * 1000);
        t = now_s();
        for (int i = 0; i < n; i++) {
            int source = events[i].data.u64;
            prepare(DATAGRAM_BYTES, 0);
            int got = recvmmsg(fds[source], batch, BATCH, MSG_DONTWAIT, NULL);
            for (int k = 0; k < got; k++) {
                double sent_s;
                memcpy(&sent_s, datagrams[k], sizeof sent_s);
                if (batch[k].msg_len == bytes && sent_s >= begin_s)
                    note_time(t - sent_s);
            }
            if (got > 0) {
                heard_s[source] = t;
                send_stamped(fds[source], bytes, got);
            }
        }
        for (int i = 0; i < count; i++)
            if (t - heard_s[i] > LOST_S) {
                heard_s[i] = t;
                lost += send_stamped(fds[i], bytes, window);
            }
    }
    print_times(t - begin_s, lost);
}

int main(int argc, char **argv) {
    const char *mode = argc > 3 ? argv[1] : "";
    double value[4] = {0};
    for (int i = 4; i < argc && i < 8; i++)
        value[i - 4] = atof(argv[i]);
    if (argc > 3) {
        address.sin_family = AF_INET;
        address.sin_port = htons(atoi(argv[3]));
        if (inet_pton(AF_INET, argv[2], &address.sin_addr) != 1)
            die("address");
    }
    int bytes = !strcmp(mode, "serve") ? value[0] : !strcmp(mode, "rr") ? value[2] : 0;
    if (bytes > ANSWER_MAX) {
        fputs("load: BYTES is at most 1 MiB\n", stderr);
        return 2;
    }
    if (bytes > 0)
        answer_bytes = bytes;
    if (!strcmp(mode, "serve"))
        serve();
    else if (!strcmp(mode, "rr") && (argc == 6 || argc == 7))
        request_response(value[0], value[1]);
    else if (!strcmp(mode, "connect") && argc == 6)
        connections(value[0], value[1]);
    else if (!strcmp(mode, "churn") && argc == 7)
        churn(value[0], value[1], value[2]);
    else if (!strcmp(mode, "idle") && argc == 5)
        idle(value[0]);
    else if (!strcmp(mode, "udp-serve"))
        udp_serve();
    else if (!strcmp(mode, "udp-sink"))
        udp_sink();
    else if (!strcmp(mode, "udp-flood") && argc == 7)
        udp_flood(value[0], value[1], value[2]);
    else if (!strcmp(mode, "udp-trips") && argc == 8)
        udp_trips(value[0], value[1], value[2], value[3]);
    else {
        fputs("load: invalid arguments; the usage is at the top of load.c\n", stderr);
        return 2;
    }
    return 0;
}
