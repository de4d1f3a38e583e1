"""Writes tables and plots of samples. The samples are stored as JSON beside the plots, so that every figure can be verified."""
import json
import os
import statistics

import plot
import results
import stats

LIMITS = ("direct", "forward")


def in_order(samples):
    """{name: its samples by block}, in the order of first appearance."""
    found = {}
    for sample in sorted(samples, key=lambda s: s["block"]):
        found.setdefault(sample["peer"], {})[sample["block"]] = sample
    return found


def paired(found, over, under, key):
    """The samples of two peers in the blocks that have both. Pairs with a value of 0 are left out."""
    blocks = [b for b in found[over] if b in found[under]]
    pairs = [(found[over][b].get(key), found[under][b].get(key)) for b in blocks]
    pairs = [(a, b) for a, b in pairs if a and b and a > 0 and b > 0]
    return [a for a, _ in pairs], [b for _, b in pairs]


def reference(found, wanted):
    """The peer that the others are compared with."""
    for name in (wanted, "parshall", "haproxy-splice", "nginx-64k"):
        if name in found:
            return name
    return next((name for name in found if name not in LIMITS), next(iter(found)))


def ratio_text(found, name, other, key):
    over, under = paired(found, name, other, key)
    if name == other or not over:
        return "", None
    got = stats.ratio(over, under)
    text = f"{got['ratio']:.2f}"
    if got["low"] is not None:
        text += f" ({got['low']:.2f}–{got['high']:.2f})"
    return text, got


def values(samples, key):
    return [s[key] for s in samples.values() if s.get(key) is not None]


def figure_text(figure, got):
    if not got:
        return ""
    first, median, third = (figure.form.format(v) for v in stats.quartiles(got))
    return median if first == third or not figure.main else f"{median} ({first}–{third})"


def table(metric, found, names, against):
    """One row per peer: medians (quartiles), and for the main figures the paired ratio. The limits come first, then the best."""
    first = metric.figures[0]
    merit = lambda name: statistics.median(values(found[name], first.key) or [0])  # noqa: E731
    order = sorted(
        found, key=lambda n: (n not in LIMITS, LIMITS.index(n) if n in LIMITS else merit(n) * (-1) ** first.more_is_better)
    )
    head = [metric.title]
    for figure in metric.figures:
        head += [figure.title] + ([f"{against} / this"] if figure.main else [])
    rows, ratios = [], {}
    for name in [n for n in names if n in found] if names else order:
        row = [f"**{name}**" if name.startswith("parshall") else name]
        for figure in metric.figures:
            row.append(figure_text(figure, values(found[name], figure.key)))
            if figure.main:
                text, got = ratio_text(found, against, name, figure.key)
                row.append(text)
                if got:
                    ratios.setdefault(figure.key, {})[name] = got
        rows.append(row)
    return results.table(head, rows), order, ratios


class Report:
    """Writes figures to the folder of plots and to RESULTS.md, or only to another folder and to stdout."""

    def __init__(self, folder, into_results):
        self.folder, self.into_results = folder, into_results
        os.makedirs(folder, exist_ok=True)

    def file(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as f:
            f.write(text)

    def section(self, name, how, text):
        if self.into_results:
            results.write(name, how, text)
        else:
            print(f"{how}\n\n{text}", flush=True)

    def metric(self, metric, run, names=None, prefix="relay", stem=None):
        """Writes the samples, the plots and the table of one metric. `run` holds samples, failures and conditions.

        `stem` is the name of the files, by default that of the metric.
        """
        stem = stem or metric.name
        found = in_order(run["samples"])
        text = ""
        if found:
            against = reference(found, run["against"])
            text, order, run["ratios"] = table(metric, found, names, against)
            for figure in metric.figures:
                if figure.main:
                    text += self.plot(metric, figure, found, names or order, stem)
        text += "".join(f"\n- {line}" for line in self.remarks(run)) + "\n" if self.remarks(run) else ""
        self.file(f"{stem}.json", json.dumps(run, indent=1) + "\n")
        blocks = f"{run['blocks']} randomised block{'s' if run['blocks'] > 1 else ''}"
        busy = statistics.median([s["baseline_cores"] for s in run["samples"]] or [0])
        blocks += f", {busy:.2f} cores busy beforehand" if busy >= 0.01 else ""
        how = f"`{run['command']}`: {blocks}. {metric.how(run['seconds'])} Medians (quartiles); ratios with 95 % intervals."
        self.section(f"{prefix}-{metric.name}", how, text)

    def plot(self, metric, figure, found, order, stem):
        rows = [(name, values(found[name], figure.key)) for name in order if name in found]
        rows = [(name, got) for name, got in rows if got and max(got) > 0]
        if not rows:
            return ""
        name = f"{stem}-{figure.key.replace('_', '-')}.svg"
        self.file(name, plot.dots(f"{metric.title}: {figure.title}", "", rows, LIMITS, figure.form))
        return f"\n![{metric.title}: {figure.title}](relay/plots/{name})\n"

    @staticmethod
    def remarks(run):
        lacking = {}
        for name, why in sorted(run["skipped"].items()):
            lacking.setdefault(why, []).append(name)
        lines = [f"{', '.join(names)}: skipped, {why}" for why, names in lacking.items()]
        failed = {}
        for failure in run["failures"]:
            failed.setdefault((failure["peer"], failure["why"]), []).append(failure["block"])
        return lines + [f"{peer}: {len(blocks)} trial(s) failed, {why}" for (peer, why), blocks in sorted(failed.items())]
