/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * An open-loop client of `parshall lab load rpc-echo --serve` that stores every latency with its time.
 *
 *   paced PORT RATE SECONDS FILE
 *
 * One thread with 12 connections, each with at most one request in flight. Requests are due on a fixed schedule, and a latency is
 * counted from the due time. FILE gets two 64-bit numbers for each request: the due time (CLOCK_MONOTONIC, ns) and the latency (ns).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS = 12, REQUEST = 176, REPLY = 96 };

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static void check(int bad, const char *what)
{
	if (bad) {
		perror(what);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	static char request[REQUEST], reply[4096];
	int fds[CLIENTS], idle[CLIENTS], n_idle = 0, got[CLIENTS] = {}, one = 1;
	uint64_t due[CLIENTS], next, end, interval, at = 0;
	struct sockaddr_in to = { .sin_family = AF_INET };
	struct { uint64_t due, latency; } *log;
	int epoll = epoll_create1(0);
	FILE *file;

	check(argc != 5, "usage: paced PORT RATE SECONDS FILE");
	to.sin_port = htons(atoi(argv[1]));
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	interval = 1000000000ULL / atoi(argv[2]);
	log = calloc((size_t)atoi(argv[2]) * (atoi(argv[3]) + 1), sizeof(*log));
	check(!log, "memory");
	memset(log, 1, (size_t)atoi(argv[2]) * (atoi(argv[3]) + 1) * sizeof(*log));
	for (int i = 0; i < CLIENTS; i++) {
		struct epoll_event e = { .events = EPOLLIN, .data.u32 = i };

		fds[i] = socket(AF_INET, SOCK_STREAM, 0);
		check(connect(fds[i], (void *)&to, sizeof(to)), "connect");
		check(setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), "TCP_NODELAY");
		check(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &e), "epoll_ctl");
		idle[n_idle++] = i;
	}
	next = now_ns();
	end = next + atoi(argv[3]) * 1000000000ULL;
	fprintf(stderr, "ready\n");
	for (uint64_t now = next; now < end; now = now_ns()) {
		struct epoll_event events[CLIENTS];
		struct timespec wait = { 0, 100000000 };
		int n;

		for (; n_idle && now >= next; next += interval) {
			int i = idle[--n_idle];

			due[i] = next;
			check(write(fds[i], request, REQUEST) != REQUEST, "write");
		}
		if (n_idle) {
			now = now_ns();
			wait.tv_nsec = next > now ? next - now : 0;
		}
		n = epoll_pwait2(epoll, events, CLIENTS, &wait, NULL);
		for (int k = 0; k < n; k++) {
			int i = events[k].data.u32;
			ssize_t bytes = read(fds[i], reply, sizeof(reply));

			check(bytes <= 0, "read");
			got[i] += bytes;
			if (got[i] < REPLY)
				continue;
			got[i] = 0;
			log[at].due = due[i];
			log[at++].latency = now_ns() - due[i];
			idle[n_idle++] = i;
		}
	}
	file = fopen(argv[4], "w");
	check(!file || fwrite(log, sizeof(*log), at, file) != at || fclose(file), argv[4]);
	return 0;
}
