"""Runs a command that the kernel refuses system calls, as a container's seccomp profile does.

    refuse.py ERRNO CALL[,CALL...] COMMAND...

CALL is one of the names below.
"""
import ctypes
import os
import platform
import struct
import sys

# x86-64, arm64 (asm-generic/unistd.h)
CALLS = {
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "setns": (308, 268),
    "unshare": (272, 97),
    "mount": (165, 40),
    "pidfd_getfd": (438, 438),
    "process_vm_readv": (310, 270),
    "ptrace": (101, 117),
    "io_uring_setup": (425, 425),
}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW = 0x00050000, 0x7FFF0000
# linux/bpf_common.h: BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06

errno, names, command = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
arm = platform.machine() == "aarch64"
# The number of the call is at the beginning of struct seccomp_data.
program = [(LOAD, 0, 0, 0)]
for name in names:
    program += [(EQUAL, 0, 1, CALLS[name][arm]), (RETURN, 0, 0, SECCOMP_RET_ERRNO | errno)]
program.append((RETURN, 0, 0, SECCOMP_RET_ALLOW))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))


class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


libc = ctypes.CDLL(None, use_errno=True)
filter_ = Program(len(program), ctypes.addressof(code))
for call in [(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_), 0, 0)]:
    if libc.prctl(*call) != 0:
        sys.exit(f"prctl{call}: {os.strerror(ctypes.get_errno())}")
os.execvp(command[0], command)
