// A service with requests and replies of fixed size over TCP or UDP, with one fault per flag. Most C cases use it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

// Options with integer values; 0 switches a fault off.
static struct {
    long port, size, reply, sleep_us, lock_us, lock_cpu_us, cpu_us, kernel_kb, fault_mb, split, nodelay, cork, log_bytes, rcvbuf, sndbuf,
        backlog, accept_us, threads, chunk, chunk_gap_us, first_us, close, reset, spread, read_kb;
} f = {.port = 7000, .size = 64, .reply = 64, .nodelay = 1, .backlog = 1024, .threads = 2, .chunk = 65536};
static const char *style = "threads", *sync_file, *read_file;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t workers;
static char *reply;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void nap(long us) {
    if (us <= 0) return;
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, 0);
}

static volatile unsigned long sink;
static __attribute__((noinline)) void compute(long us) {
    for (double end = now() + us; us > 0 && now() < end;)
        for (int i = 0; i < 200; i++) sink = sink * 6364136223846793005ul + 1442695040888963407ul;
}

static __attribute__((noinline)) void hold_lock(void) {
    pthread_mutex_lock(&lock);
    nap(f.lock_us);
    compute(f.lock_cpu_us);
    pthread_mutex_unlock(&lock);
}

static __attribute__((noinline)) void save(void) {
    static _Thread_local int fd = -1;
    char block[4096] = "record\n";
    if (fd < 0) {
        char name[512];
        snprintf(name, sizeof name, "%s.%lx", sync_file, (long)pthread_self());
        fd = open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    }
    if (write(fd, block, sizeof block) < 0 || fsync(fd)) perror("service: save");
}

static __attribute__((noinline)) void touch_fresh_memory(void) {
    size_t n = f.fault_mb << 20;
    char *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return perror("service: mmap");
    madvise(p, n, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < n; i += 4096) p[i] = 1;
    munmap(p, n);
}

// Reads a random part of a file through the page cache, from which a small memory limit evicts it again.
static __attribute__((noinline)) void read_part(void) {
    static _Thread_local unsigned seed;
    static _Thread_local int fd = -1;
    char part[4096];
    if (fd < 0) fd = open(read_file, O_RDONLY | O_CLOEXEC), posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM), seed = (unsigned)now();
    for (int i = 0; i < 16; i++)
        if (pread(fd, part, sizeof part, (off_t)(rand_r(&seed) % (f.read_kb / 4)) * 4096) < 0) perror("service: read");
}

static void handle(void) {
    nap(f.sleep_us);
    if (f.lock_us || f.lock_cpu_us) hold_lock();
    compute(f.cpu_us);
    if (f.kernel_kb) {
        char noise[4096];
        for (long i = 0; i < f.kernel_kb; i += 4)
            if (getrandom(noise, sizeof noise, 0) < 0) perror("service: getrandom");
    }
    if (sync_file) save();
    if (read_file) read_part();
    if (f.fault_mb) touch_fresh_memory();
    if (f.log_bytes) {
        static _Thread_local char text[65536];
        memset(text, 'l', f.log_bytes);
        if (write(1, text, f.log_bytes) < 0) perror("service: log");
    }
}

static void set(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

static void answer(int fd) {
    if (f.cork) set(fd, IPPROTO_TCP, TCP_CORK, 1);
    long first = f.split ? f.split : f.reply;
    if (send(fd, reply, first, MSG_NOSIGNAL) == first && first < f.reply) send(fd, reply + first, f.reply - first, MSG_NOSIGNAL);
    if (f.cork == 2) set(fd, IPPROTO_TCP, TCP_CORK, 0);
}

// The number of requests that a receive completed; -1 if the peer has closed the connection.
static long requests(int fd, long *have, int flags) {
    char buf[65536];
    long n = recv(fd, buf, sizeof buf, flags);
    if (n == 0 || (n < 0 && errno != EAGAIN)) return -1;
    *have += n > 0 ? n : 0;
    long whole = *have / f.size;
    *have %= f.size;
    return whole;
}

static void *connection(void *argument) {
    int fd = (int)(long)argument;
    for (long have = 0, n; (n = requests(fd, &have, 0)) >= 0;)
        while (n-- > 0) {
            if (f.threads && !strcmp(style, "limited")) sem_wait(&workers);
            handle();
            if (f.threads && !strcmp(style, "limited")) sem_post(&workers);
            answer(fd);
            if (f.reset) {
                struct linger at_once = {1, 0};
                setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
            }
            if (f.close || f.reset) goto done;
        }
done:
    close(fd);
    return 0;
}

// Sends or receives for ever, in pieces with a pause after each.
static void *stream(void *argument) {
    int fd = (int)(long)argument;
    char *piece = calloc(1, f.chunk);
    nap(f.first_us);
    for (;;) {
        long n = !strcmp(style, "source") ? send(fd, piece, f.chunk, MSG_NOSIGNAL) : recv(fd, piece, f.chunk, 0);
        if (n <= 0) break;
        handle();
        nap(f.chunk_gap_us);
    }
    close(fd);
    free(piece);
    return 0;
}

static void *loop(void *argument) {
    int ep = (int)(long)argument;
    static long have[65536];
    for (struct epoll_event e[64];;) {
        int n = epoll_wait(ep, e, 64, -1);
        for (int i = 0; i < n; i++) {
            int fd = e[i].data.fd;
            long whole = requests(fd, &have[fd], MSG_DONTWAIT);
            if (whole < 0) close(fd), have[fd] = 0;
            while (whole-- > 0) handle(), answer(fd);
        }
    }
    return 0;
}

static void serve_udp(void) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (f.rcvbuf) set(fd, SOL_SOCKET, SO_RCVBUF, f.rcvbuf);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(f.port)};
    if (bind(fd, (void *)&at, sizeof at)) perror("service: bind"), exit(1);
    for (char buf[65536];;) {
        struct sockaddr_in from;
        socklen_t n = sizeof from;
        long got = recvfrom(fd, buf, sizeof buf, 0, (void *)&from, &n);
        if (got < 0) continue;
        static long count;
        if (!f.spread || ++count % f.spread == 0) handle();
        sendto(fd, reply, f.reply, 0, (void *)&from, n);
    }
}

int main(int c, char **v) {
    struct { const char *name; long *to; } flags[] = {{"port", &f.port}, {"size", &f.size}, {"reply", &f.reply}, {"sleep-us", &f.sleep_us},
        {"lock-us", &f.lock_us}, {"lock-cpu-us", &f.lock_cpu_us}, {"cpu-us", &f.cpu_us}, {"kernel-kb", &f.kernel_kb},
        {"fault-mb", &f.fault_mb}, {"split", &f.split}, {"nodelay", &f.nodelay}, {"cork", &f.cork}, {"log-bytes", &f.log_bytes},
        {"rcvbuf", &f.rcvbuf}, {"sndbuf", &f.sndbuf}, {"backlog", &f.backlog}, {"accept-us", &f.accept_us}, {"threads", &f.threads},
        {"chunk", &f.chunk}, {"chunk-gap-us", &f.chunk_gap_us}, {"first-us", &f.first_us}, {"close", &f.close}, {"reset", &f.reset},
        {"spread", &f.spread}, {"read-kb", &f.read_kb}};
    for (int i = 1; i + 1 < c; i += 2) {
        size_t k = 0, all = sizeof flags / sizeof *flags;
        if (!strcmp(v[i], "--style")) style = v[i + 1];
        else if (!strcmp(v[i], "--fsync")) sync_file = *v[i + 1] == '/' ? v[i + 1] : 0;
        else if (!strcmp(v[i], "--read")) read_file = v[i + 1];
        else {
            while (k < all && strcmp(v[i] + 2, flags[k].name)) k++;
            if (k == all) return fprintf(stderr, "service: no flag %s\n", v[i]), 2;
            *flags[k].to = atol(v[i + 1]);
        }
    }
    reply = malloc(f.reply);
    memset(reply, 'r', f.reply);
    sem_init(&workers, 0, f.threads);
    if (!strcmp(style, "udp")) serve_udp();
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    set(listener, SOL_SOCKET, SO_REUSEADDR, 1);
    if (f.rcvbuf) set(listener, SOL_SOCKET, SO_RCVBUF, f.rcvbuf);
    if (f.sndbuf) set(listener, SOL_SOCKET, SO_SNDBUF, f.sndbuf);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(f.port)};
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, f.backlog)) return perror("service: listen"), 1;
    int loops[64] = {0};
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 << 10);
    pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    for (long i = 0; !strcmp(style, "epoll") && i < f.threads; i++)
        pthread_create(&thread, &small, loop, (void *)(long)(loops[i] = epoll_create1(EPOLL_CLOEXEC)));
    for (long n = 0;; n++) {
        int fd = accept4(listener, 0, 0, SOCK_CLOEXEC);
        if (fd < 0) {
            nap(1000);
            continue;
        }
        nap(f.accept_us);
        set(fd, IPPROTO_TCP, TCP_NODELAY, f.nodelay);
        if (!strcmp(style, "epoll")) {
            // `spread 0`: all connections on the first loop.
            struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
            epoll_ctl(loops[f.spread ? n % f.threads : 0], EPOLL_CTL_ADD, fd, &e);
        } else if (!strcmp(style, "inline")) {
            connection((void *)(long)fd);
        } else if (pthread_create(&thread, &small, !strcmp(style, "source") || !strcmp(style, "sink") ? stream : connection, (void *)(long)fd)) {
            close(fd);
        }
    }
}
