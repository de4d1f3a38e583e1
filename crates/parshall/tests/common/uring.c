/*
 * An echo over a socket pair by io_uring as Linux 5.10 has it, every 20 ms: recv, send, a nop, and a read that fails. Writes its process to the
 * file that is its argument when it is ready, and ends after 50 minutes.
 */
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int ring;
static unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail;
static struct io_uring_sqe *entries;

static void *map(size_t bytes, off_t what)
{
	void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, what);

	if (mapped == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return mapped;
}

static void open_ring(void)
{
	struct io_uring_params p = { 0 };
	char *sq, *cq;

	ring = syscall(__NR_io_uring_setup, 8, &p);
	if (ring < 0) {
		perror("io_uring_setup");
		exit(1);
	}
	sq = map(p.sq_off.array + p.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
	cq = map(p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
	entries = map(p.sq_entries * sizeof(*entries), IORING_OFF_SQES);
	sq_tail = (unsigned *)(sq + p.sq_off.tail);
	sq_mask = (unsigned *)(sq + p.sq_off.ring_mask);
	sq_array = (unsigned *)(sq + p.sq_off.array);
	cq_head = (unsigned *)(cq + p.cq_off.head);
	cq_tail = (unsigned *)(cq + p.cq_off.tail);
}

static void add(int opcode, int fd, void *buffer, unsigned bytes)
{
	unsigned tail = *sq_tail, i = tail & *sq_mask;

	memset(&entries[i], 0, sizeof(entries[i]));
	entries[i].opcode = opcode;
	entries[i].fd = fd;
	entries[i].addr = (unsigned long)buffer;
	entries[i].len = bytes;
	sq_array[i] = i;
	__atomic_store_n(sq_tail, tail + 1, __ATOMIC_RELEASE);
}

/* Submits what was added, waits for the completions and takes them. */
static void enter(unsigned count)
{
	syscall(__NR_io_uring_enter, ring, count, count, IORING_ENTER_GETEVENTS, NULL, 0);
	__atomic_store_n(cq_head, __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
}

static void ask(int fd)
{
	char buffer[8] = "request";

	close(ring);
	do
		usleep(20000);
	while (write(fd, buffer, 8) == 8 && read(fd, buffer, 8) == 8);
	_exit(0);
}

int main(int argc, char **argv)
{
	char buffer[8];
	int pair[2];
	FILE *ready;

	if (argc != 2)
		return 2;
	alarm(3000);
	open_ring();
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	if (fork() == 0) {
		close(pair[0]);
		ask(pair[1]);
	}
	close(pair[1]);
	ready = fopen(argv[1], "w");
	fprintf(ready, "%d", getpid());
	fclose(ready);
	for (;;) {
		add(IORING_OP_RECV, pair[0], buffer, sizeof(buffer));
		enter(1);
		add(IORING_OP_SEND, pair[0], buffer, sizeof(buffer));
		enter(1);
		add(IORING_OP_NOP, -1, NULL, 0);
		add(IORING_OP_READ, -1, buffer, sizeof(buffer));
		enter(2);
	}
}
