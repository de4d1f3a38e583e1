"""The order of trials. Each block has one trial of each peer in random order, so that drift of the machine affects all peers."""
import random
import time

import accounts
import metrics
from testbed import say

BASELINE_S = 0.5
BUSY_CORES = 0.1  # above this, other processes disturb the trials


class Options:
    """The options of a trial: its time, and the cores that are busy without it."""

    def __init__(self, seconds):
        self.seconds, self.baseline_cores = seconds, 0.0


def baseline(name, wait_s):
    """The number of cores that other processes keep busy. Waits at most `wait_s` until they are idle."""
    end_s = time.monotonic() + wait_s
    while True:
        cores = accounts.idle_cores(BASELINE_S)
        if cores <= BUSY_CORES or time.monotonic() > end_s:
            break
    if cores > BUSY_CORES:
        say(f"{name}: other processes keep {cores:.2f} cores busy, so the figures will be wrong")
    return cores


def run(bed, metric, chosen, blocks, seconds, shuffle: random.Random, wait_s=0):
    """Runs all blocks of a metric. Returns the samples and failures. A peer that fails twice in a row is not run again."""
    options = Options(seconds)
    samples, failures, in_a_row = [], [], {}
    for block in range(blocks):
        options.baseline_cores = baseline(metric.name, wait_s)
        order = [peer for peer in chosen if in_a_row.get(peer.name, 0) < 2]
        shuffle.shuffle(order)
        for place, peer in enumerate(order):
            label = f"{metric.name} {block + 1}/{blocks} {peer.name}"
            begun_s = time.monotonic()
            try:
                sample = metric.trial(bed, peer, options)
            except (metrics.Failed, RuntimeError, TimeoutError, ValueError) as error:
                failures.append({"peer": peer.name, "block": block, "why": str(error)})
                in_a_row[peer.name] = in_a_row.get(peer.name, 0) + 1
                say(f"{label}: FAILED: {error}")
                continue
            in_a_row[peer.name] = 0
            sample |= {"peer": peer.name, "block": block, "place": place, "baseline_cores": options.baseline_cores}
            samples.append(sample)
            figures = ", ".join(
                f"{figure.title} {figure.form.format(sample[figure.key])}"
                for figure in metric.figures if sample.get(figure.key) is not None
            )
            say(f"{label}: {figures}  [{time.monotonic() - begun_s:.1f} s]")
    return {"samples": samples, "failures": failures}
