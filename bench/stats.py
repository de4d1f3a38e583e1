"""Paired comparison of two peers: the ratio with a confidence interval that is robust against heavy tails and drift.

Every block has one trial of each peer, so a block is a pair. The estimate is that of Hodges and Lehmann (the median of all
pairwise means) on the logarithms of the ratios. The interval is computed from the exact signed-rank distribution.
"""
import math
import statistics


def walsh(values):
    """The sorted means of all pairs of values, including each value with itself."""
    return sorted((values[i] + values[j]) / 2 for i in range(len(values)) for j in range(i, len(values)))


def rank_sums(n):
    """The number of the 2^n sign patterns for each sum of positive ranks.

    >>> rank_sums(3)
    [1, 1, 1, 2, 1, 1, 1]
    """
    ways = [1] + [0] * (n * (n + 1) // 2)
    for rank in range(1, n + 1):
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    return ways


def signed_rank_p(values):
    """The two-sided p value of the hypothesis that the values are symmetric around 0. A zero counts half on each side.

    >>> signed_rank_p([1, 2, 3, 4, 5])
    0.0625
    """
    n = len(values)
    positive = sum((mean > 0) + 0.5 * (mean == 0) for mean in walsh(values))
    least = math.floor(min(positive, n * (n + 1) / 2 - positive))
    return min(1.0, 2 * sum(rank_sums(n)[: least + 1]) / 2**n)


def ratio(over, under, confidence=0.95):
    """{"ratio", "low", "high", "p", "pairs"} of paired positive samples; low and high are None with too few pairs.

    >>> got = ratio([2.0, 2.2, 1.8, 2.1, 1.9, 2.0], [1.0] * 6)
    >>> round(got["ratio"], 2), got["low"], got["high"], got["p"]
    (2.0, 1.8, 2.2, 0.03125)
    >>> ratio([1.0, 2.0], [1.0, 1.0])["low"] is None
    True
    """
    logs = [math.log(a / b) for a, b in zip(over, under)]
    means, ways, n = walsh(logs), rank_sums(len(logs)), len(logs)
    # The interval is from the k-th smallest to the k-th largest mean, for the largest k whose tail is small enough.
    k, tail = 0, ways[0] / 2**n
    while tail <= (1 - confidence) / 2:
        k += 1
        tail += ways[k] / 2**n
    exact = lambda log: round(math.exp(log), 9)  # noqa: E731
    return {
        "ratio": exact(statistics.median(means)),
        "low": exact(means[k - 1]) if k else None,
        "high": exact(means[-k]) if k else None,
        "p": signed_rank_p(logs),
        "pairs": n,
    }


def quartiles(values):
    """(first, median, third).

    >>> quartiles([3.0])
    (3.0, 3.0, 3.0)
    """
    if len(values) < 2:
        return (values[0],) * 3
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))
