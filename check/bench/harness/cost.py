"""The cost of a part of the program, from pairs of runs with and without it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

# Resamples of the bootstrap, and its confidence.
RESAMPLES = 10_000
CONFIDENCE = 0.95
SEED = 1


@dataclass(frozen=True)
class Cost:
    """The cost in percent of the rate without the part: the median of the pairs, and its confidence interval."""

    percent: float
    low: float
    high: float
    pairs: int

    def words(self) -> str:
        interval = f"{self.low:.2f} to {self.high:.2f} %"
        return f"{self.percent:.2f} % (95 % confidence interval {interval}, {self.pairs} pairs)"


def cost_of(pairs: Sequence[tuple[float, float]]) -> Cost:
    """The cost, from pairs of the rate with the part and the rate without it."""
    costs = [(1 - counted / uncounted) * 100 for counted, uncounted in pairs]
    source = random.Random(SEED)
    medians = sorted(median(source.choices(costs, k=len(costs))) for _ in range(RESAMPLES))
    rest = (1 - CONFIDENCE) / 2
    low, high = medians[int(rest * RESAMPLES)], medians[int((1 - rest) * RESAMPLES) - 1]
    return Cost(median(costs), low, high, len(costs))
