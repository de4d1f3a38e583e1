"""Builds the programs of cases into target/docket/bin. Skips those that are newer than their source."""
import os
import subprocess
import sys

from case import BUILT, HERE

BIN = os.path.join(BUILT, "bin")
PROGRAMS = os.path.join(HERE, "programs")
# The commands that compile a source to {built}/NAME; that of Java writes NAME.class.
COMPILERS = {
    ".c": lambda source, to: ["gcc", "-O2", "-g", "-fno-omit-frame-pointer", "-Wall", "-o", to, source, "-lpthread"],
    ".go": lambda source, to: ["go", "build", "-o", to, source],
    ".java": lambda source, to: ["javac", "-g", "-d", os.path.dirname(to), source],
    ".rs": lambda source, to: ["rustc", "-O", "-g", "-o", to, source],
}


def build(cases):
    os.makedirs(BIN, exist_ok=True)
    databases = os.path.join(BUILT, "databases")
    os.makedirs(databases, exist_ok=True)
    os.chmod(databases, 0o1777)
    wanted = {name for c in cases for name in c.program_names()} | {c.path and "wire" for c in cases} - {None}
    for file in sorted(os.listdir(PROGRAMS)):
        stem, kind = os.path.splitext(file)
        if kind in COMPILERS and stem in wanted:
            _compile(os.path.join(PROGRAMS, file), os.path.join(BIN, stem), COMPILERS[kind])


def _compile(source, to, command):
    made = to + ".class" if source.endswith(".java") else to
    if os.path.exists(made) and os.path.getmtime(made) >= os.path.getmtime(source):
        return
    done = subprocess.run(command(source, to), capture_output=True, text=True, check=False, env={**os.environ, "GO111MODULE": "off"})
    if done.returncode:
        sys.exit(f"error: {source} does not compile:\n{done.stderr[-2000:]}")
