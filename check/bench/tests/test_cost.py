"""Tests of the cost from pairs of runs: python3 -m unittest discover check/bench/tests."""

from __future__ import annotations

import random
import sys
import unittest
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
if str(BENCH) not in sys.path:
    sys.path.append(str(BENCH))

from harness.cost import cost_of  # noqa: E402


class Costs(unittest.TestCase):
    def test_a_known_cost_is_found_within_the_interval(self):
        source = random.Random(7)
        # The host drifts by tens of percent; both runs of a pair see the same drift, and 1 % of noise.
        drifts = [100_000 * (1 + source.random() / 3) for _ in range(40)]
        noise = lambda: 1 + source.gauss(0, 0.01)  # noqa: E731
        cost = cost_of([(drift * 0.985 * noise(), drift * noise()) for drift in drifts])
        self.assertLess(abs(cost.percent - 1.5), 0.6)
        self.assertTrue(cost.low <= 1.5 <= cost.high and cost.low < cost.percent < cost.high, cost)

    def test_equal_builds_cost_nothing(self):
        cost = cost_of([(100.0, 100.0)] * 10)
        self.assertEqual((cost.percent, cost.low, cost.high, cost.pairs), (0.0, 0.0, 0.0, 10))
        self.assertEqual(cost.words(), "0.00 % (95 % confidence interval 0.00 to 0.00 %, 10 pairs)")


if __name__ == "__main__":
    unittest.main()
