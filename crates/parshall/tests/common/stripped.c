/* A service whose symbols are stripped: one thread that sends a byte to itself over TCP and computes, in a loop. Prints
 * "ready PORT". */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

static volatile unsigned long sink;

/* Takes some milliseconds even on a CPU with memory renaming, because the cause under test needs at least one. */
static __attribute__((noinline)) void a_name_that_strip_removes(void)
{
	for (unsigned long i = 0; i < 12000000; i++)
		sink += i * i;
}

int main(void)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);
	int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0), server;
	char byte = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(60);
	if (bind(listener, (struct sockaddr *)&addr, len) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&addr, &len) || connect(client, (struct sockaddr *)&addr, len))
		return 1;
	server = accept(listener, NULL, NULL);
	printf("ready %d\n", ntohs(addr.sin_port));
	fflush(stdout);
	while (write(client, &byte, 1) == 1 && read(server, &byte, 1) == 1)
		a_name_that_strip_removes();
	return 0;
}
