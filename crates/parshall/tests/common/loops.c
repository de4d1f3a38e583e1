/*
 * Echoes 64 bytes after CPU_US of work, in event loops with a thread and an epoll set each: loops LOOPS SPREAD CPU_US.
 * SPREAD 1 hands connections out in turn, 0 gives all to the first loop. Prints `ready PORT`; ends with its stdin.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static long cpu_us;

static long now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000L + t.tv_nsec / 1000;
}

static void *loop(void *argument)
{
	int ep = (int)(long)argument;
	struct epoll_event events[16];
	char data[64];

	for (;;) {
		int n = epoll_wait(ep, events, 16, -1);

		for (int i = 0; i < n; i++) {
			long until = now_us() + cpu_us;
			ssize_t got = read(events[i].data.fd, data, sizeof(data));

			if (got <= 0) {
				close(events[i].data.fd);
				continue;
			}
			while (now_us() < until)
				;
			if (write(events[i].data.fd, data, got) < 0)
				close(events[i].data.fd);
		}
	}
	return NULL;
}

static void *end_with_stdin(void *argument)
{
	char data[64];

	while (read(0, data, sizeof(data)) > 0)
		;
	exit(0);
	return argument;
}

int main(int argc, char **argv)
{
	int loops = argc > 1 ? atoi(argv[1]) : 2, spread = argc > 2 ? atoi(argv[2]) : 1, sets[16];
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t length = sizeof(address);
	pthread_t thread;

	cpu_us = argc > 3 ? atol(argv[3]) : 0;
	if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 128) ||
	    getsockname(listener, (struct sockaddr *)&address, &length))
		return 1;
	pthread_create(&thread, NULL, end_with_stdin, NULL);
	for (long i = 0; i < loops; i++) {
		sets[i] = epoll_create1(0);
		pthread_create(&thread, NULL, loop, (void *)(long)sets[i]);
	}
	printf("ready %d\n", ntohs(address.sin_port));
	fflush(stdout);
	for (int n = 0;; n++) {
		int fd = accept(listener, NULL, NULL);
		struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

		epoll_ctl(sets[spread ? n % loops : 0], EPOLL_CTL_ADD, fd, &event);
	}
}
