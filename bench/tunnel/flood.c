// Sends datagrams from spoofed sources at a fixed rate: flood TARGET PORT PACKETS_PER_S SECONDS < PACKETS
// PACKETS are messages of LENGTH bytes one after the other, sent in turn. Sources are 198.18.0.0/16, which must be local addresses
// of the namespace (ip route add local 198.18.0.0/16 dev lo). Prints how many were sent.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <netinet/in.h>

enum { LENGTH = 148, BATCH = 32, MOST = 65536 };

static unsigned char packets[MOST][LENGTH];

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	size_t count = fread(packets, LENGTH, MOST, stdin);
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[2])) };
	if (!count || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1)
		return 2;
	double per_s = atof(argv[3]), begun = now(), until = begun + atof(argv[4]);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct mmsghdr messages[BATCH] = { 0 };
	struct iovec parts[BATCH];
	union {
		char bytes[CMSG_SPACE(sizeof(struct in_pktinfo))];
		struct cmsghdr align;
	} control[BATCH] = { 0 };
	for (int i = 0; i < BATCH; i++) {
		struct msghdr *m = &messages[i].msg_hdr;
		*m = (struct msghdr){ .msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &parts[i], .msg_iovlen = 1,
				      .msg_control = control[i].bytes, .msg_controllen = sizeof control[i].bytes };
		struct cmsghdr *c = CMSG_FIRSTHDR(m);
		c->cmsg_level = IPPROTO_IP;
		c->cmsg_type = IP_PKTINFO;
		c->cmsg_len = CMSG_LEN(sizeof(struct in_pktinfo));
		parts[i].iov_len = LENGTH;
	}
	unsigned long sent = 0;
	for (double t = now(); t < until; t = now()) {
		unsigned long due = (t - begun) * per_s;
		if (due < sent + BATCH) {
			struct timespec pause = { .tv_nsec = 1e9 * BATCH / per_s };
			nanosleep(&pause, NULL);
			continue;
		}
		for (int i = 0; i < BATCH; i++) {
			unsigned long n = sent + i;
			parts[i].iov_base = packets[n % count];
			struct in_pktinfo *info = (struct in_pktinfo *)CMSG_DATA(CMSG_FIRSTHDR(&messages[i].msg_hdr));
			info->ipi_spec_dst.s_addr = htonl(0xc6120000 | (n * 40503 & 0xffff));
		}
		int done = sendmmsg(fd, messages, BATCH, 0);
		if (done <= 0) {
			perror("sendmmsg");
			return 1;
		}
		sent += done;
	}
	printf("%lu\n", sent);
	return 0;
}
