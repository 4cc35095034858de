"""Tests of what is made of several runs: python3 -m unittest discover check/bench/tests."""

from __future__ import annotations

import random
import sys
import unittest
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH))

from harness.measure import CERTAINTY, known_between  # noqa: E402


class Medians(unittest.TestCase):
    def test_few_runs_do_not_narrow_the_limits(self):
        self.assertEqual(known_between([4.0]), [4.0, 4.0])
        self.assertEqual(known_between([5.0, 1.0, 4.0, 2.0, 3.0]), [1.0, 5.0])
        self.assertEqual(known_between([float(one) for one in range(7)]), [0.0, 6.0])
        self.assertEqual(known_between([float(one) for one in range(8)]), [1.0, 6.0])

    def test_the_limits_have_the_median_as_often_as_they_say(self):
        chance = random.Random(1)
        for count in (5, 8, 11, 20):
            inside = 0
            for _ in range(2000):
                low, high = known_between([chance.random() for _ in range(count)])
                inside += low <= 0.5 <= high
            self.assertGreater(inside / 2000, CERTAINTY - 0.02, count)


if __name__ == "__main__":
    unittest.main()
