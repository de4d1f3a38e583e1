"""Reads a case from a TOML file in cases/ and fills in its variables. README.md describes the keys."""
import glob
import hashlib
import os
import re
import shlex
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILT = os.path.join(ROOT, "target", "docket")
ROLES = ("slow", "healthy-busy", "healthy-idle", "chain")
STATUSES = ("cause", "healthy", "at-capacity", "no-dominant-cause", "insufficient-evidence")
METRICS = ("p50_ms", "p99_ms", "mean_ms", "rate", "mb_s")
READY = ("port", "udp", "file", "exit", "seconds", "now")

KEYS = {
    "": {"title", "role", "source", "round", "needs", "subject", "namespaces", "path", "veth", "resolv", "sysctl", "disk", "with", "files", "process",
         "load", "expect", "change"},
    "process": {"name", "run", "in", "env", "ready", "cgroup", "user", "nofile", "cpus", "group"},
    "load": {"run", "in", "metric", "warmup"},
    "expect": {"status", "causes", "accept", "hop", "leaf"},
    "hop": {"process", "thread", "waits_on"},
    "leaf": {"process", "thread", "cause"},
    "change": {"what", "kind", "with", "drop"},
    "disk": {"mb", "write_iops"},
    "cgroup": {"cpu", "memory_mb"},
}
KINDS = ("environment", "flag", "sysctl", "config", "command")


class CaseError(Exception):
    """A case file is invalid."""


def _known(table, kind, where):
    unknown = set(table) - KEYS[kind]
    if unknown:
        raise CaseError(f"{where}: unknown key {', '.join(sorted(unknown))}")


def fill(text, values, where):
    """Replaces each {name} by its value, in which names are replaced too. Other text in braces is not changed."""
    def one(found):
        if found.group(1) not in values:
            raise CaseError(f"{where}: there is no variable {{{found.group(1)}}}")
        return fill(str(values[found.group(1)]), values, where)
    return re.sub(r"\{([a-z_][a-z0-9_.]*)\}", one, text)


class Case:
    """One case. `values(changed)` are its variables, with or without its change."""

    def __init__(self, path):
        self.id = os.path.basename(path)[:-5]
        with open(path, "rb") as f:
            try:
                t = tomllib.load(f)
            except tomllib.TOMLDecodeError as e:
                raise CaseError(f"{path}: {e}") from e
        self._check(t)
        self.title, self.role, self.subject = t["title"], t["role"], t["subject"]
        self.source, self.round = t.get("source"), t.get("round", 0)
        self.needs = t.get("needs", [])
        self.namespaces = t.get("namespaces", ["host"])
        self.path, self.veth, self.resolv = t.get("path"), t.get("veth", False), t.get("resolv")
        self.sysctl, self.disk, self.files = t.get("sysctl", {}), t.get("disk"), t.get("files", {})
        self.processes, self.load, self.expect = t["process"], t["load"], t["expect"]
        self.change, self._with = t.get("change"), t.get("with", {})

    def _check(self, t):
        where = self.id
        _known(t, "", where)
        for key in ("title", "role", "subject", "process", "load", "expect"):
            if key not in t:
                raise CaseError(f"{where}: {key} is missing")
        if t.get("round") and not str(t.get("source", "")).startswith("http"):
            raise CaseError(f"{where}: a case of a round needs its source, the address of the public report")
        if t["role"] not in ROLES:
            raise CaseError(f"{where}: role is {t['role']}, not one of {', '.join(ROLES)}")
        for p in t["process"]:
            _known(p, "process", where)
            _known(p.get("cgroup", {}), "cgroup", where)
            if p.get("ready", "now").split()[0] not in READY:
                raise CaseError(f"{where}: {p['name']}: unknown condition ready = {p['ready']}")
        for kind in ("load", "expect", "change", "disk"):
            _known(t.get(kind, {}), kind, where)
        if t["load"]["metric"] not in METRICS:
            raise CaseError(f"{where}: unknown metric {t['load']['metric']}")
        e = t["expect"]
        if not set(e["status"]) <= set(STATUSES):
            raise CaseError(f"{where}: unknown status in {e['status']}")
        for hop in e.get("hop", []):
            _known(hop, "hop", where)
        _known(e.get("leaf", {}), "leaf", where)
        if t["role"] in ("slow", "chain"):
            if not e.get("causes"):
                raise CaseError(f"{where}: a slow case needs an expected cause")
            if t.get("change", {}).get("kind") not in KINDS:
                raise CaseError(f"{where}: a slow case needs a change, whose kind is one of {', '.join(KINDS)}")
            unset = set(t["change"].get("with", {})) - set(t.get("with", {}))
            if unset:
                raise CaseError(f"{where}: the change sets {', '.join(sorted(unset))}, which [with] does not have")
        if t["role"] == "chain" and not (e.get("hop") and e.get("leaf")):
            raise CaseError(f"{where}: a chain needs expected hops and an expected leaf")

    @property
    def half(self):
        """"A" (to learn from) or "B" (run once before anybody learns from it), at random but the same on every host."""
        return "AB"[hashlib.sha256(self.id.encode()).digest()[0] & 1]

    @property
    def is_healthy(self):
        return self.role.startswith("healthy")

    @property
    def lower_is_better(self):
        return self.load["metric"].endswith("_ms")

    def values(self, changed):
        return {**self._with, **(self.change.get("with", {}) if changed and self.change else {})}

    def dropped(self, changed):
        """The names of processes that the change leaves out."""
        return set(self.change.get("drop", [])) if changed and self.change else set()

    def check_text(self):
        """Fills in all texts, with and without the change, to find misspelt variables without starting anything."""
        for changed in (False, True):
            values = dict.fromkeys(("programs", "built", "dir", "disk", "cache", "seconds"), "x") | self.values(changed)
            values |= {f"pid.{p['name']}": 1 for p in self.processes} | {f"ns.{n}": 1 for n in self.namespaces}
            texts = [self.subject, self.path or "", self.resolv or "", self.load["run"], *map(str, self.sysctl.values())]
            texts += list(self.files.values()) + [str(v) for v in (self.disk or {}).values()]
            for p in self.processes:
                texts += [p["run"], p.get("ready", ""), *map(str, p.get("env", {}).values()), *map(str, p.get("cgroup", {}).values())]
            for text in texts:
                fill(text, values, self.id)

    def program_names(self):
        """Words of the case among which its programs are."""
        text = " ".join([p["run"] for p in self.processes] + [self.load["run"]] + list(self.files.values()))
        return set(re.findall(r"[A-Za-z0-9_]+", text))


def words(text, values, where):
    return [fill(word, values, where) for word in shlex.split(text)]


def read_all(pattern=None):
    cases = [Case(path) for path in sorted(glob.glob(os.path.join(HERE, "cases", "*.toml")))]
    return [c for c in cases if not pattern or re.search(pattern, c.id)]
