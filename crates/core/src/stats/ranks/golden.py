#!/usr/bin/env python3
"""Makes golden.json: what SciPy answers for samples of several shapes. Run with SciPy installed: ./golden.py > golden.json

SciPy has tests and no intervals, so an interval is found by asking the test: it holds the centres that the test does not refuse.
Between two neighbouring estimates (means of pairs, or differences of two samples) the answer does not change.
"""
import json

import numpy as np
import scipy
from scipy import stats

ALPHAS = [0.05, 1 / 64, 0.001]


def interval(estimates, p_of, alpha):
    """From the first to the last estimate that borders on a centre which is not refused; None where the outermost ones do not."""
    ends = np.sort(estimates)
    step = np.concatenate([[ends[0] - 1], (ends[:-1] + ends[1:]) / 2, [ends[-1] + 1]])
    kept = [i for i, centre in enumerate(step) if p_of(centre) > alpha]
    # Gap i lies between estimate i - 1 and estimate i; the outermost gaps reach to infinity.
    if kept[0] == 0 or kept[-1] == len(ends):
        return None
    return [ends[kept[0] - 1], ends[kept[-1]]]


def paired(rng):
    shapes = {
        "normal": rng.normal(0.2, 1, 8),
        "shifted": rng.normal(2, 1, 12),
        "heavy": rng.standard_t(1.5, 16) + 0.5,
        "skewed": rng.lognormal(0, 1, 24) - 1,
        "long": rng.normal(0.05, 0.1, 32),
        "short": rng.normal(0, 1, 4),
        "one": np.array([0.7]),
    }
    for name, x in shapes.items():
        x = np.round(x, 9)
        means = [(x[i] + x[j]) / 2 for i in range(len(x)) for j in range(i, len(x))]
        exact = lambda centre: stats.wilcoxon(x - centre, method="exact").pvalue  # noqa: E731
        yield {
            "name": name,
            "differences": x.tolist(),
            "p": exact(0),
            "estimate": np.median(means),
            "intervals": [interval(means, exact, alpha) for alpha in ALPHAS],
        }


def tied(rng):
    """Ties share their ranks and zeros count half on either side ("zsplit"); SciPy then goes through all sign patterns itself."""
    for x in ([1, 1, 2, 2, -1, 3, 3, -2, 4], [0, 0, 1, 2, 2, -1, 3], [1, 1, 1, 1, -1, 1, 1, 1], rng.integers(-2, 4, 12).tolist()):
        every = stats.PermutationMethod(n_resamples=2 ** len(x) + 1)
        yield {"differences": x, "p": stats.wilcoxon(x, zero_method="zsplit", method=every).pvalue}


def two_samples(rng):
    for name, x, y in [
        ("equal", rng.normal(0, 1, 8), rng.normal(0, 1, 8)),
        ("shifted", rng.normal(0, 1, 12), rng.normal(1.5, 1, 16)),
        ("heavy", rng.standard_t(1.5, 32), rng.standard_t(1.5, 32) + 1),
        ("few", rng.normal(0, 1, 2), rng.normal(0, 1, 3)),
    ]:
        x, y = np.round(x, 9), np.round(y, 9)
        shifts = (y[:, None] - x[None, :]).ravel()
        exact = lambda centre: stats.mannwhitneyu(x, y - centre, method="exact").pvalue  # noqa: E731
        yield {
            "name": name,
            "first": x.tolist(),
            "second": y.tolist(),
            "p": exact(0),
            "estimate": np.median(shifts),
            "intervals": [interval(shifts, exact, alpha) for alpha in ALPHAS],
        }


rng = np.random.default_rng(17)
print(json.dumps({
    "made_by": f"SciPy {scipy.__version__}",
    "alphas": ALPHAS,
    "paired": list(paired(rng)),
    "tied": list(tied(rng)),
    "two_samples": list(two_samples(rng)),
}, indent=1))
