"""Parts that loads written in Python share: clients that ask until the time is over, and figures that are the same as of load.c."""
import json
import threading
import time


class Figures:
    """Times and errors of requests, from now on for some seconds."""

    def __init__(self, seconds):
        self.taken_ms, self.errors, self.lock = [], 0, threading.Lock()
        self.begun = time.monotonic()
        self.stop = self.begun + seconds

    def goes_on(self):
        return time.monotonic() < self.stop

    def answered(self, start, end=None):
        """A request that was sent at `start`, times of time.monotonic()."""
        taken_ms = ((time.monotonic() if end is None else end) - start) * 1e3
        with self.lock:
            self.taken_ms.append(taken_ms)

    def failed(self):
        with self.lock:
            self.errors += 1

    def summary(self, transferred_bytes=None):
        """The figures up to now; `transferred_bytes` are those of one request."""
        spent, taken = time.monotonic() - self.begun, sorted(self.taken_ms)
        n = len(taken)
        out = {"requests": n, "errors": self.errors, "rate": round(n / spent, 3)}
        if transferred_bytes is not None:
            out["mb_s"] = round(n * transferred_bytes / spent / 1e6, 3)
        if n:
            out.update(mean_ms=round(sum(taken) / n, 3), p50_ms=round(taken[n // 2], 3), p99_ms=round(taken[int(n * 0.99)], 3))
        return out

    def print(self, **more):
        print(json.dumps(self.summary(**more)), flush=True)


def side_by_side(work, arguments):
    """Runs `work` in a thread for each argument, until all have ended."""
    threads = [threading.Thread(target=work, args=(argument,)) for argument in arguments]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
