"""Compares the verdicts of stored runs with the expected causes. Pure functions over the records of the runner."""
import tomllib
from collections import Counter

# A healthy verdict is a missed slowness if the change makes the median better by at least this ratio.
MISSED_RATIO = 2.0


def causes(run):
    """The causes that a verdict names, in the order of the findings."""
    verdict = run["verdict"]
    if verdict["verdict"]["status"] not in ("cause", "at-capacity"):
        return []
    named = [f["cause"] for f in verdict.get("findings", [])]
    first = verdict["verdict"].get("cause")
    return ([first] if first and first not in named[:1] else []) + named


def answer(run):
    status = run["verdict"]["verdict"]["status"]
    named = causes(run)
    return named[0] if status == "cause" and named else status


def is_right(case, run, depth=1):
    expect = case.expect
    if case.is_healthy:
        return run["verdict"]["verdict"]["status"] in expect["status"]
    return bool(set(causes(run)[:depth]) & set(expect["causes"]))


def still_named(case, run):
    """Whether the first finding about a case whose cause was removed is still that cause."""
    return bool(set(causes(run)[:1]) & set(case.expect["causes"]))


def changed(cases, runs):
    """The rows of what was said about cases whose cause was removed: [verdict, runs, share]. Another cause need not be false: the load of
    most cases asks as fast as it is answered, so that something else limits them then."""
    def kind(run):
        if still_named(cases[run["case"]], run):
            return "the cause that was removed"
        status = run["verdict"]["verdict"]["status"]
        confidence = run["verdict"]["verdict"].get("confidence")
        return f"another cause, {confidence} confidence" if status == "cause" else status

    count = Counter(map(kind, runs))
    return [[name, f"{n} of {len(runs)}", f"{n / len(runs):.0%}"] for name, n in count.most_common()]


def is_accused(case, run):
    return case.is_healthy and run["verdict"]["verdict"]["status"] == "cause"


def is_missed(case, run, proofs):
    ratio = proofs.get(case.id, {}).get("p50_ratio") or proofs.get(case.id, {}).get("ratio", 1)
    return not case.is_healthy and run["verdict"]["verdict"]["status"] == "healthy" and ratio >= MISSED_RATIO


def chain_right(case, run):
    """(processes, threads, leaf): whether each part of the chain is as expected. All are false for a verdict without a chain.

    The verdict's `chain` has `hops` (each with `process`, `thread` and `waits_on`, the next hop's process or resource) and
    `leaf` (with `process`, `thread` and `cause`)."""
    chain = run["verdict"].get("chain") or {}
    hops, leaf = chain.get("hops") or [], chain.get("leaf") or {}
    want = case.expect["hop"]
    process = len(hops) >= len(want) and all(_same(w, h, ("process", "waits_on")) for w, h in zip(want, hops))
    thread = bool(hops) and all(_same(w, h, ("thread",)) for w, h in zip(want, hops))
    return process, thread, bool(leaf) and _same(case.expect["leaf"], leaf, ("process", "thread", "cause"))


def _same(want, have, keys):
    """Whether the values are as expected. An expected name is a prefix, because a database appends its state to its process title."""
    return all(key not in want or str(have.get(key, "")).startswith(want[key]) for key in keys)


def confusion(cases, runs):
    """[(expected cause, Counter of answers)]."""
    rows = {}
    for run in runs:
        case = cases[run["case"]]
        key = "healthy" if case.is_healthy else case.expect["causes"][0]
        rows.setdefault(key, Counter())[answer(run)] += 1
    return sorted(rows.items())


def summary(cases, runs, proofs):
    """[(name of the figure, hits, total)]."""
    slow = [r for r in runs if not cases[r["case"]].is_healthy]
    well = [r for r in runs if cases[r["case"]].is_healthy]
    chains = [r for r in runs if cases[r["case"]].role == "chain"]
    checked = [chain_right(cases[r["case"]], r) for r in chains]

    def count(group, test):
        return sum(bool(test(cases[r["case"]], r)) for r in group)

    rows = [
        ("top-1 of slow cases", count(slow, is_right), len(slow)),
        ("top-3 of slow cases", count(slow, lambda c, r: is_right(c, r, 3)), len(slow)),
        ("healthy cases with an accepted status", count(well, is_right), len(well)),
        ("false accusations of healthy cases", count(well, is_accused), len(well)),
        ("missed slowness", count(slow, lambda c, r: is_missed(c, r, proofs)), len(slow)),
        ("chain: processes right", sum(c[0] for c in checked), len(chains)),
        ("chain: threads right", sum(c[1] for c in checked), len(chains)),
        ("chain: leaf right", sum(c[2] for c in checked), len(chains)),
        ("chain: all right", sum(all(c) for c in checked), len(chains)),
    ]
    for level in ("high", "medium", "low"):
        group = [r for r in runs if r["verdict"]["verdict"].get("confidence") == level]
        rows.append((f"right of those with {level} confidence", count(group, is_right), len(group)))
    rows += [
        ("baseline: top-1 of slow cases", sum(_baseline(r)[:1] != [] and _baseline(r)[0] in _want(cases, r) for r in slow), len(slow)),
        ("baseline: top-3 of slow cases", sum(bool(set(_baseline(r)[:3]) & set(_want(cases, r))) for r in slow), len(slow)),
        ("baseline: false accusations of healthy cases", sum(bool(_baseline(r)) for r in well), len(well)),
    ]
    return rows


def _baseline(run):
    return [cause for cause, _ in run.get("baseline", [])]


def _want(cases, run):
    return cases[run["case"]].expect["causes"]


JUDGEMENTS = ("right", "acceptable", "none", "wrong", "missed", "accused")


def by_hand(path):
    """The rows of the figures of a round whose verdicts were judged by hand: [figure, n, share]. `path` is a TOML file with a table
    `[judged]`: for each slow case `right`, `acceptable`, `none` (no cause, and not called healthy), `wrong` or `missed` (called healthy); for each
    healthy one `right`, `accused`, or `none` (neither healthy nor a cause); and with what confidence, as in `case = ["right", "high"]`. `healthy` lists the healthy ones."""
    with open(path, "rb") as f:
        round_ = tomllib.load(f)
    healthy = set(round_["healthy"])
    unknown = {j for j, _ in round_["judged"].values()} - set(JUDGEMENTS)
    if unknown:
        raise ValueError(f"{path}: unknown judgement {', '.join(unknown)}")
    slow = {c: j for c, (j, _) in round_["judged"].items() if c not in healthy}
    well = {c: j for c, (j, _) in round_["judged"].items() if c in healthy}
    sure = [j for j, confidence in round_["judged"].values() if confidence == "high"]

    def row(name, hits, of):
        return [name, f"{hits} of {of}", f"{hits / of:.0%}" if of else "-"]

    count = Counter(slow.values())
    return [
        *(row(f"slow: {name}", count[name], len(slow)) for name in JUDGEMENTS[:5]),
        row("slow: right or acceptable", count["right"] + count["acceptable"], len(slow)),
        row("healthy: right", sum(j == "right" for j in well.values()), len(well)),
        row("healthy: accused", sum(j == "accused" for j in well.values()), len(well)),
        row("healthy: neither", sum(j == "none" for j in well.values()), len(well)),
        row("high confidence: right or acceptable", sum(j in ("right", "acceptable") for j in sure), len(sure)),
    ]
