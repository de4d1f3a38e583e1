#!/usr/bin/python3
"""Runs a command again and again, several at a time, and prints how long it took. A command that fails or takes longer than --limit
is an error. `timed.py --parallel 2 --for 3 --bytes 1000000 -- curl -s http://...`"""
import argparse
import os
import signal
import subprocess
import time

from figures import Figures, side_by_side

p = argparse.ArgumentParser()
p.add_argument("--parallel", type=int, default=1)
p.add_argument("--for", dest="seconds", type=float, default=3)
p.add_argument("--limit", type=float, default=10, help="seconds after which a command is ended")
p.add_argument("--gap-ms", type=float, default=0)
p.add_argument("--bytes", type=int, default=0, help="bytes that one command transfers")
p.add_argument("command", nargs="+")
o = p.parse_args()
figures = Figures(o.seconds)


def work(_):
    while figures.goes_on():
        start = time.monotonic()
        child = subprocess.Popen(o.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 start_new_session=True)
        try:
            good = child.wait(timeout=min(o.limit, max(0.1, figures.stop + 1 - start))) == 0
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            good = False
        if good:
            figures.answered(start)
        else:
            figures.failed()
        time.sleep(o.gap_ms / 1e3)


side_by_side(work, range(o.parallel))
figures.print(transferred_bytes=o.bytes)
