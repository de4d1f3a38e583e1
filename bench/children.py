"""Processes of a benchmark, which must not outlive it: also not when it is killed."""
import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


def dying_with_parent(by=signal.SIGKILL):
    """A `preexec_fn` for a child of this process, which gets this signal when the thread that starts it ends."""
    parent = os.getpid()

    def die_with_parent():
        LIBC.prctl(PR_SET_PDEATHSIG, by)
        if os.getppid() != parent:
            os._exit(1)
    return die_with_parent
