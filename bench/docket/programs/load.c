// The load of most cases: connections that send a request and wait for the whole reply, one thread each, or streams. Prints one
// JSON object with the figures of the clients.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HTTP, LINE, BYTES, SINK, SOURCE, UDP, UDPFLOOD, READER };
static const char *kinds[] = {"http", "line", "bytes", "sink", "source", "udp", "udpflood", "reader", 0};
static int kind, connections = 4, fresh, size = 64, reply = 64, nagle, split, rcvbuf, sndbuf, batch = 1, timeout_ms = 10000, reset, quickack;
static double seconds = 3, gap_ms, hold_ms, rate;
static const char *host = "127.0.0.1", *path = "/", *header = "", *line = "GET key\r\n", *last;
static int port = 8080;
static double stop;

struct worker { pthread_t thread; float *ms; long n, cap, errors, sent; uint64_t bytes; };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void nap(double s) {
    if (s <= 0) return;
    struct timespec t = {(time_t)s, (long)((s - (time_t)s) * 1e9)};
    nanosleep(&t, 0);
}

static int dial(void) {
    int udp = kind == UDP || kind == UDPFLOOD, one = 1;
    int fd = socket(AF_INET, (udp ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (rcvbuf) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
    if (sndbuf) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof sndbuf);
    if (!udp && !nagle) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct timeval limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (reset) {
        struct linger now_ = {1, 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now_, sizeof now_);
    }
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &to.sin_addr);
    if (connect(fd, (void *)&to, sizeof to)) {
        close(fd);
        return -1;
    }
    return fd;
}

static int send_all(int fd, const char *p, long n) {
    while (n > 0) {
        long did = send(fd, p, n, MSG_NOSIGNAL);
        if (did <= 0) return -1;
        p += did, n -= did;
    }
    return 0;
}

// Reads one HTTP reply: its head, then Content-Length bytes, or until the server closes the connection.
static long read_http(int fd, char *buf, long cap) {
    long have = 0, want = -1;
    char *end = 0;
    for (;;) {
        long did = recv(fd, buf + (end ? 0 : have), end ? cap : cap - have - 1, 0);
        if (did < 0 || (did == 0 && (want >= 0 || !end))) return -1;
        if (did == 0) return have;
        have += did;
        if (!end) {
            buf[have] = 0;
            if (!(end = strstr(buf, "\r\n\r\n"))) continue;
            if (strncmp(buf + 9, "200", 3)) return -1;
            char *length = strcasestr(buf, "content-length:");
            if (length && length < end) want = end + 4 - buf + atol(length + 15);
        }
        if (want >= 0 && have >= want) return have;
    }
}

static long read_reply(int fd, char *buf, long cap) {
    if (kind == HTTP) return read_http(fd, buf, cap);
    long have = 0, lines = 0;
    for (;;) {
        long did = recv(fd, buf, cap, 0);
        if (did <= 0) return -1;
        have += did;
        if (quickack) setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &quickack, sizeof quickack);
        if (kind == LINE) {
            for (long i = 0; i < did; i++) lines += buf[i] == '\n';
            if (!last && lines >= batch) return have;
            if (last && did >= (long)strlen(last) && !memcmp(buf + did - strlen(last), last, strlen(last))) return have;
        } else if (kind == UDP || have >= (long)reply * batch) {
            return have;
        }
    }
}

static void note(struct worker *w, double ms) {
    if (w->n == w->cap) w->ms = realloc(w->ms, (w->cap = w->cap * 2 + 4096) * sizeof *w->ms);
    w->ms[w->n++] = ms;
}

static void requests(struct worker *w, char *buf, long cap) {
    char *request = malloc(size + strlen(path) + strlen(header) + strlen(line) * batch + 256);
    long n = 0;
    if (kind == HTTP)
        n = sprintf(request, "GET %s HTTP/1.1\r\nHost: docket\r\n%s%s%s\r\n", path, header, *header ? "\r\n" : "", fresh ? "Connection: close\r\n" : "");
    else if (kind == LINE)
        for (int i = 0; i < batch; i++) n += sprintf(request + n, "%s", line);
    else
        memset(request, 'x', n = size);
    int fd = -1;
    double due = now();
    while (now() < stop) {
        double begun = now();
        if (rate > 0 && due > begun) {
            nap(due - begun);
            begun = now();
        }
        if (rate > 0) due += connections / rate;
        w->sent++;
        if (fd < 0 && (fd = dial()) < 0) {
            w->errors++;
            nap(0.01);
            continue;
        }
        int bad = split ? send_all(fd, request, split) || send_all(fd, request + split, n - split) : send_all(fd, request, n);
        long got = bad ? -1 : read_reply(fd, buf, cap);
        if (got < 0) {
            w->errors++;
        } else {
            w->bytes += got;
            note(w, (now() - begun) * 1e3);
        }
        if (hold_ms && got >= 0) { // a visitor that keeps its connection for a while, closes it when the server does, and comes again
            struct pollfd end = {fd, POLLIN, 0};
            double back = now() + hold_ms / 1e3;
            poll(&end, 1, hold_ms);
            close(fd);
            fd = -1;
            nap(back - now());
        } else if (fresh || (got < 0 && kind != UDP)) {
            close(fd);
            fd = -1;
        }
        nap(gap_ms / 1e3);
    }
    if (fd >= 0) close(fd);
}

static void stream(struct worker *w, char *buf, long cap) {
    int fd = dial();
    if (fd < 0) {
        w->errors++;
        return;
    }
    if (kind == SINK || kind == READER) send_all(fd, line, strlen(line));
    double due = now();
    while (now() < stop) {
        long did = kind == SOURCE || kind == UDPFLOOD ? send(fd, buf, size, MSG_NOSIGNAL) : recv(fd, buf, cap < size ? cap : size, 0);
        if (did < 0 && (errno == EAGAIN || errno == ECONNREFUSED)) continue;
        if (did <= 0) break;
        w->bytes += did;
        w->sent++;
        nap(gap_ms / 1e3);
        if (rate > 0) nap((due += connections / rate) - now());
    }
    close(fd);
}

static void *work(void *argument) {
    struct worker *w = argument;
    long cap = 1 << 20;
    char *buf = calloc(1, cap);
    if (kind <= BYTES || kind == UDP) requests(w, buf, cap);
    else stream(w, buf, cap);
    return 0;
}

static int order(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

int main(int c, char **v) {
    enum { O_KIND, O_HOST, O_PORT, O_PATH, O_LINE, O_LAST, O_CONN, O_SEC, O_FRESH, O_SIZE, O_REPLY, O_NAGLE, O_SPLIT, O_GAP, O_RATE, O_RCV,
        O_SND, O_BATCH, O_TIMEOUT, O_RESET, O_QUICKACK, O_HEADER, O_HOLD };
    static const struct option options[] = {{"kind", 1, 0, O_KIND}, {"host", 1, 0, O_HOST}, {"port", 1, 0, O_PORT}, {"path", 1, 0, O_PATH},
        {"line", 1, 0, O_LINE}, {"last", 1, 0, O_LAST}, {"connections", 1, 0, O_CONN}, {"for", 1, 0, O_SEC}, {"fresh", 1, 0, O_FRESH},
        {"size", 1, 0, O_SIZE}, {"reply", 1, 0, O_REPLY}, {"nagle", 1, 0, O_NAGLE}, {"split", 1, 0, O_SPLIT}, {"gap-ms", 1, 0, O_GAP},
        {"rate", 1, 0, O_RATE}, {"rcvbuf", 1, 0, O_RCV}, {"sndbuf", 1, 0, O_SND}, {"batch", 1, 0, O_BATCH},
        {"timeout-ms", 1, 0, O_TIMEOUT}, {"reset", 1, 0, O_RESET}, {"quickack", 1, 0, O_QUICKACK},
        {"header", 1, 0, O_HEADER}, {"hold-ms", 1, 0, O_HOLD}, {0}};
    for (int o; (o = getopt_long(c, v, "", options, 0)) >= 0;)
        switch (o) {
        case O_KIND:
            for (kind = 0; kinds[kind] && strcmp(kinds[kind], optarg);) kind++;
            if (!kinds[kind]) return fprintf(stderr, "load: no kind %s\n", optarg), 2;
            break;
        case O_HOST: host = optarg; break;
        case O_PORT: port = atoi(optarg); break;
        case O_PATH: path = optarg; break;
        case O_LINE: { // lines that end with CR LF, separated by '|' in the argument
            char *text = malloc(strlen(optarg) * 2 + 3), *to = text;
            for (const char *p = optarg; *p; p++) to = *p == '|' ? stpcpy(to, "\r\n") : (*to++ = *p, to);
            strcpy(to, "\r\n");
            line = text;
            break;
        }
        case O_LAST: last = strcmp(optarg, "END") ? optarg : "END\r\n"; break;
        case O_CONN: connections = atoi(optarg); break;
        case O_SEC: seconds = atof(optarg); break;
        case O_FRESH: fresh = atoi(optarg); break;
        case O_SIZE: size = atoi(optarg); break;
        case O_REPLY: reply = atoi(optarg); break;
        case O_NAGLE: nagle = atoi(optarg); break;
        case O_SPLIT: split = atoi(optarg); break;
        case O_GAP: gap_ms = atof(optarg); break;
        case O_RATE: rate = atof(optarg); break;
        case O_RCV: rcvbuf = atoi(optarg); break;
        case O_SND: sndbuf = atoi(optarg); break;
        case O_BATCH: batch = atoi(optarg); break;
        case O_TIMEOUT: timeout_ms = atoi(optarg); break;
        case O_RESET: reset = atoi(optarg); break;
        case O_HEADER: header = optarg; break;
        case O_HOLD: hold_ms = atof(optarg); break;
        case O_QUICKACK: quickack = atoi(optarg); break;
        default: return 2;
        }
    double begun = now();
    stop = begun + seconds;
    struct worker *w = calloc(connections, sizeof *w);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 << 10);
    for (int i = 0; i < connections; i++)
        if (pthread_create(&w[i].thread, &small, work, &w[i])) return perror("load: thread"), 1;
    long n = 0, errors = 0, sent = 0;
    uint64_t bytes = 0;
    for (int i = 0; i < connections; i++) {
        pthread_join(w[i].thread, 0);
        n += w[i].n, errors += w[i].errors, bytes += w[i].bytes, sent += w[i].sent;
    }
    double took = now() - begun, sum = 0;
    float *all = malloc((n + 1) * sizeof *all), *to = all;
    for (int i = 0; i < connections; i++) {
        memcpy(to, w[i].ms, w[i].n * sizeof *to);
        to += w[i].n;
    }
    for (long i = 0; i < n; i++) sum += all[i];
    qsort(all, n, sizeof *all, order);
    printf("{\"requests\": %ld, \"errors\": %ld, \"sent\": %ld, \"rate\": %.1f, \"mb_s\": %.3f", n, errors, sent,
        n * batch / took, bytes / took / 1e6);
    if (n) printf(", \"mean_ms\": %.3f, \"p50_ms\": %.3f, \"p99_ms\": %.3f", sum / n, all[n / 2], all[(long)(n * 0.99)]);
    printf("}\n");
    return 0;
}
