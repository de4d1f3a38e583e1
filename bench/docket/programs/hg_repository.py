#!/usr/bin/python3
"""Makes a Mercurial repository with a history of 8 changes of 30 large files of source-like text: hg_repository.py FOLDER."""
import os
import random
import subprocess
import sys

folder = sys.argv[1]
environment = {**os.environ, "HGRCPATH": "", "HGUSER": "docket"}
random.seed(4)
words = [("%x" % random.getrandbits(40)) for _ in range(3000)]
files = [[" ".join(random.choices(words, k=8)) for _ in range(2500)] for _ in range(30)]


def hg(*arguments):
    subprocess.run(["hg", "-R", folder, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)


subprocess.run(["hg", "init", folder], env=environment, check=True)
for change in range(8):
    for i, lines in enumerate(files):
        for _ in range(60):
            lines[random.randrange(len(lines))] = " ".join(random.choices(words, k=8))
        with open(os.path.join(folder, f"module{i}.c"), "w", encoding="ascii") as f:
            f.write("\n".join(lines) + "\n")
    hg("commit", "-q", "-A", "-m", f"change {change}")
