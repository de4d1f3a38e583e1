// LD_PRELOAD: socket(AF_INET6, ...) fails as on a host that was started with ipv6.disable=1.
#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int socket(int domain, int type, int protocol) {
    if (domain == AF_INET6) {
        errno = EAFNOSUPPORT;
        return -1;
    }
    return syscall(SYS_socket, domain, type, protocol);
}
