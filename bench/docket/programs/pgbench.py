#!/usr/bin/python3
"""Runs pgbench with its options, and prints its figures as load.c does: pgbench.py SECONDS OPTION..."""
import glob
import json
import re
import subprocess
import sys

program = sorted(glob.glob("/usr/lib/postgresql/*/bin/pgbench"))[-1]
command = [program, "--no-vacuum", "--time", str(round(float(sys.argv[1]))), *sys.argv[2:]]
done = subprocess.run(command, capture_output=True, text=True, check=False)
sys.stderr.write(done.stderr)


def figure(pattern):
    found = re.search(pattern, done.stdout)
    return float(found.group(1)) if found else None


out = {"requests": figure(r"actually processed: (\d+)"), "errors": figure(r"failed transactions: (\d+)") or 0,
       "rate": figure(r"tps = ([\d.]+)"), "mean_ms": figure(r"latency average = ([\d.]+)")}
print(json.dumps({k: v for k, v in out.items() if v is not None}), flush=True)
