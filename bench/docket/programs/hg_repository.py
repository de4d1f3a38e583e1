#!/usr/bin/python3
"""Makes a Mercurial repository of 60 files of text like source code with a few changes: hg_repository.py CACHE. It is made once, and kept
as CACHE/hg-repository."""
import os
import random
import shutil
import subprocess
import sys

done = os.path.join(sys.argv[1], "hg-repository")
if os.path.exists(done):
    sys.exit()
folder = f"{done}.{os.getpid()}"
environment = {**os.environ, "HGRCPATH": "", "HGUSER": "docket"}
random.seed(4)
names = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz_", k=random.randint(3, 11))) for _ in range(4000)]


def line():
    return "    %s(%s, %s->%s + %d);" % (*random.choices(names, k=4), random.getrandbits(16))


files = [[line() for _ in range(4000)] for _ in range(60)]
subprocess.run(["hg", "init", folder], env=environment, check=True)
for change in range(3):
    for i, lines in enumerate(files):
        for _ in range(40):
            lines[random.randrange(len(lines))] = line()
        with open(os.path.join(folder, f"module{i}.c"), "w", encoding="ascii") as f:
            f.write("\n".join(lines) + "\n")
    subprocess.run(["hg", "-R", folder, "commit", "-q", "-A", "-m", f"change {change}"], env=environment, check=True)
for name in os.listdir(folder):
    if name.endswith(".c"):
        os.unlink(os.path.join(folder, name))
try:
    os.rename(folder, done)
except OSError:
    shutil.rmtree(folder)
