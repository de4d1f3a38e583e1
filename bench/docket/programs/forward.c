// A TCP forwarder with two threads per connection and a buffer of the given size.
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

struct pair { int from, to; };
static long size;

static void *copy(void *argument) {
    struct pair p = *(struct pair *)argument;
    free(argument);
    char *buf = malloc(size);
    for (long n; (n = recv(p.from, buf, size, 0)) > 0 && send(p.to, buf, n, MSG_NOSIGNAL) == n;) {}
    shutdown(p.to, SHUT_WR);
    free(buf);
    return 0;
}

int main(int c, char **v) {
    if (c != 4) return fprintf(stderr, "usage: forward LISTEN TARGET BUFFER\n"), 2;
    size = atol(v[3]);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(v[1]))};
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 1024)) return perror("forward"), 1;
    at.sin_port = htons(atoi(v[2]));
    for (;;) {
        int a = accept(listener, 0, 0), b = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(b, (void *)&at, sizeof at)) {
            close(a), close(b);
            continue;
        }
        setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(b, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        for (int i = 0; i < 2; i++) {
            struct pair *p = malloc(sizeof *p);
            *p = i ? (struct pair){a, b} : (struct pair){b, a};
            pthread_t thread;
            pthread_create(&thread, 0, copy, p);
            pthread_detach(thread);
        }
    }
}
