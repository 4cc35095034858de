"""Tests of the reports: python3 -m unittest discover check/bench/tests."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH))

import run  # noqa: E402
from harness.report import COLORS  # noqa: E402


class Plots(unittest.TestCase):
    def test_every_target_has_a_colour(self):
        for protocol, (kinds, _) in run.PROTOCOLS.items():
            self.assertEqual(set(kinds) - set(COLORS), set(), protocol)


if __name__ == "__main__":
    unittest.main()
