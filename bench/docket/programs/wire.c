// A path between two network namespaces with delay, loss and a limited bandwidth: a TUN device in each (10.9.0.1 and 10.9.0.2), and
// this process between them. It is used instead of netem, which not every kernel has.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 1 << 15, MTU = 1500 };
struct packet { int64_t due; int length; unsigned char *bytes; };
static struct direction { struct packet *slot; unsigned head, tail; long queued; int64_t free_at; } direction[2];

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int open_end(int pid, int which) {
    char text[128];
    snprintf(text, sizeof text, "/proc/%d/ns/net", pid);
    int ns = open(text, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET)) perror("wire: setns"), exit(1);
    close(ns);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    struct ifreq request = {.ifr_name = "wire0", .ifr_flags = IFF_TUN | IFF_NO_PI};
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request)) perror("wire: tun"), exit(1);
    snprintf(text, sizeof text, "ip addr add 10.9.0.%d/24 dev wire0 && ip link set wire0 txqueuelen 2000 mtu %d up", which + 1, MTU);
    if (system(text)) exit(1);
    return fd;
}

// Whether a packet is a TCP segment with SYN (0x02) set, and the payload size of a TCP segment.
static int is_syn(const unsigned char *p, int n) { return n >= 40 && p[9] == 6 && p[(p[0] & 15) * 4 + 13] & 2; }
static int payload(const unsigned char *p, int n) { return n >= 40 && p[9] == 6 ? n - (p[0] & 15) * 4 - (p[(p[0] & 15) * 4 + 12] >> 4) * 4 : 0; }

int main(int c, char **v) {
    double delay_ms = 0, loss = 0, loss_back = 0, loss_syn = 0, loss_small = 0, mbit = 0;
    int largest = 1 << 16, queue = 1 << 20;
    static const struct option options[] = {{"delay-ms", 1, 0, 'd'}, {"loss", 1, 0, 'l'}, {"loss-back", 1, 0, 'b'}, {"loss-syn", 1, 0, 's'},
        {"loss-small", 1, 0, 't'}, {"mbit", 1, 0, 'r'}, {"largest", 1, 0, 'm'}, {"queue-bytes", 1, 0, 'q'}, {"seed", 1, 0, 'e'}, {0}};
    unsigned seed = 42;
    int first = atoi(v[1]), second = atoi(v[2]);
    for (int o; (o = getopt_long(c - 2, v + 2, "", options, 0)) >= 0;)
        switch (o) {
        case 'd': delay_ms = atof(optarg); break;       // in each direction
        case 'l': loss = atof(optarg); break;           // share of packets from the first namespace to the second
        case 'b': loss_back = atof(optarg); break;      // share of packets from the second to the first
        case 's': loss_syn = atof(optarg); break;       // share of SYNs and SYN-ACKs
        case 't': loss_small = atof(optarg); break;     // share of segments with 1 to 999 bytes, the last ones of messages
        case 'r': mbit = atof(optarg); break;
        case 'm': largest = atoi(optarg); break;        // MTU: larger packets are dropped without an ICMP message
        case 'q': queue = atoi(optarg); break;
        case 'e': seed = atoi(optarg); break;
        default: return 2;
        }
    prctl(PR_SET_TIMERSLACK, 1);
    int fd[2] = {open_end(first, 0), open_end(second, 1)};
    for (int i = 0; i < 2; i++) direction[i].slot = calloc(SLOTS, sizeof(struct packet));
    puts("ready");
    fflush(stdout);
    static unsigned char buf[1 << 16];
    for (;;) {
        struct pollfd p[2];
        int64_t next = -1, at = now();
        for (int i = 0; i < 2; i++) {
            struct direction *q = &direction[i];
            p[i] = (struct pollfd){fd[i], q->tail - q->head < SLOTS ? POLLIN : 0, 0};
            if (q->head != q->tail && (next < 0 || q->slot[q->head % SLOTS].due < next)) next = q->slot[q->head % SLOTS].due;
        }
        int64_t left = next < 0 ? 0 : next > at ? next - at : 0;
        struct timespec wait = {left / 1000000000, left % 1000000000};
        if (ppoll(p, 2, next < 0 ? 0 : &wait, 0) < 0 && errno != EINTR) return 1;
        for (int i = 0; i < 2; i++) {
            struct direction *q = &direction[i];
            for (int k = 0; p[i].revents & POLLIN && k < 64 && q->tail - q->head < SLOTS; k++) {
                int n = read(fd[i], buf, sizeof buf);
                if (n <= 0) break;
                double dice = rand_r(&seed) / (RAND_MAX + 1.0), chance = i ? loss_back : loss;
                if (is_syn(buf, n)) chance = loss_syn;
                else if (payload(buf, n) > 0 && payload(buf, n) < 1000 && loss_small > chance) chance = loss_small;
                if (dice < chance || n > largest) continue;
                at = now();
                if (mbit > 0) {
                    if (q->queued + n > queue) continue;
                    q->free_at = (q->free_at > at ? q->free_at : at) + (int64_t)(n * 8e3 / mbit);
                    q->queued += n;
                }
                struct packet *s = &q->slot[q->tail++ % SLOTS];
                *s = (struct packet){(mbit > 0 ? q->free_at : at) + (int64_t)(delay_ms * 1e6), n, malloc(n)};
                memcpy(s->bytes, buf, n);
            }
        }
        at = now();
        for (int i = 0; i < 2; i++) {
            struct direction *q = &direction[i];
            while (q->head != q->tail) {
                struct packet *s = &q->slot[q->head % SLOTS];
                if (s->due > at || (write(fd[1 - i], s->bytes, s->length) < 0 && errno == EAGAIN)) break;
                if (mbit > 0) q->queued -= s->length;
                free(s->bytes);
                q->head++;
            }
        }
    }
}
