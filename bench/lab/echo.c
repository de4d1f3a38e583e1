// A trial: request and reply over TCP on the loopback interface, one connection, one byte each way.
//
//   echo EXCHANGES EXTRA_PER_CENT
//
// Makes EXCHANGES exchanges and EXTRA_PER_CENT more, and reports the rate of EXCHANGES alone: with 5 it is a program that needs 5 %
// more work for the same. Ends by itself: both ends know how many exchanges there are, and an alarm ends a trial that hangs.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void check(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(1);
    }
}

static void exchange(int fd, long count, int first) {
    char byte = 'x';
    for (long i = 0; i < count; i++) {
        if (first && write(fd, &byte, 1) != 1) exit(1);
        if (read(fd, &byte, 1) != 1) exit(1);
        if (!first && write(fd, &byte, 1) != 1) exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    long count = atol(argv[1]), all = count + (long)(count * atof(argv[2]) / 100);
    alarm(20);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    check(listener, "socket");
    check(bind(listener, (struct sockaddr *)&address, sizeof address), "bind");
    check(listen(listener, 1), "listen");
    check(getsockname(listener, (struct sockaddr *)&address, &size), "getsockname");
    pid_t child = fork();
    check(child, "fork");
    if (child == 0) {
        alarm(20);
        int fd = accept(listener, NULL, NULL);
        check(fd, "accept");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        exchange(fd, all, 0);
        return 0;
    }
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(fd, "socket");
    check(connect(fd, (struct sockaddr *)&address, sizeof address), "connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    exchange(fd, all, 1);
    clock_gettime(CLOCK_MONOTONIC, &end);
    int status = 1;
    if (waitpid(child, &status, 0) != child || status != 0) return 1;
    double seconds = (end.tv_sec - begin.tv_sec) + (end.tv_nsec - begin.tv_nsec) / 1e9;
    printf("{\"rate\": %f, \"seconds\": %f}\n", count / seconds, seconds);
    return 0;
}
