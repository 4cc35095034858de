"""Tests of the performance model: python3 -m unittest discover check/bench/tests."""

from __future__ import annotations

import json
import math
import sys
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH))

from harness import fitting, model_pages, squares  # noqa: E402
from harness.model import Load, predict, scaled  # noqa: E402

KEPT = json.loads((BENCH / "results" / "model.json").read_text())
TERMS = KEPT["terms"]
PAGE = Load("iscsi", False, 4096, 32)


class Squares(unittest.TestCase):
    def test_a_fit_finds_the_terms_that_made_the_data(self):
        points = [(1, 3.0 + 0.5), (2, 3.0 + 1.0), (8, 3.0 + 4.0), (32, 3.0 + 16.0)]
        errors = lambda terms: [math.log((terms["a"] + terms["b"] * x) / y) for x, y in points]  # noqa: E731
        found = squares.fit(errors, {"a": 1.0, "b": 1.0})
        self.assertAlmostEqual(found["a"], 3.0, places=4)
        self.assertAlmostEqual(found["b"], 0.5, places=4)

    def test_a_row_that_alone_has_a_term_is_noticed(self):
        # The first three rows share a term; the last one has another in addition.
        errors = lambda terms: [terms["a"] - 1] * 3 + [terms["a"] + terms["b"] - 3]  # noqa: E731
        own = squares.leverages(errors, {"a": 1.0, "b": 2.0}, 1)
        self.assertTrue(all(one < 0.5 for one in own[:3]), own)
        self.assertGreater(own[3], 0.99)


class Predictions(unittest.TestCase):
    def rate(self, **changes) -> float:
        return predict(TERMS, replace(PAGE, **changes)).rate

    def test_a_link_and_the_latency_of_a_store_bound_the_rate(self):
        self.assertLess(self.rate(link=1.0), 1e9 / 8 / 4096 / 1e6)
        self.assertEqual(predict(TERMS, replace(PAGE, link=1.0)).limit, "link")
        self.assertLess(self.rate(store_wait=1000.0), 32 / 1000.0)
        rates = [self.rate(store_wait=float(wait)) for wait in (0, 10, 40, 200, 1000)]
        self.assertEqual(rates, sorted(rates, reverse=True))

    def test_depth_and_cores_help_until_something_else_is_the_limit(self):
        rates = [self.rate(depth=depth) for depth in (1, 2, 4, 8, 16, 32, 64, 128)]
        self.assertEqual(rates, sorted(rates))
        full = {"depth": 128, "sessions": 8, "hosts": 0}
        one, four, many = (self.rate(cores=cores, **full) for cores in (1, 4, 64))
        self.assertAlmostEqual(four / one, 4, delta=0.4)
        self.assertEqual(many, self.rate(cores=8, **full))

    def test_a_faster_core_works_less_and_waits_as_long(self):
        fast, slow = predict(scaled(TERMS, 2.0), PAGE), predict(TERMS, PAGE)
        self.assertAlmostEqual(fast.work * 2, slow.work, delta=slow.work / 4)
        self.assertLess(fast.rate, slow.rate * 2)


class Check(unittest.TestCase):
    def setUp(self):
        self.rows, self.files = fitting.results(BENCH / "results")

    def test_a_row_that_disagrees_with_the_others_is_off(self):
        shared = self.rows["vfio-user"]
        at = next(number for number, row in enumerate(shared) if "depth 8, polling" in row.title)
        high = tuple(limit * 2 for limit in shared[at].rate_between)
        moved = replace(shared[at], rate=shared[at].rate * 2, rate_between=high)
        changed = [moved if number == at else row for number, row in enumerate(shared)]
        verdicts = fitting.held_out({"vfio-user": changed}, TERMS)
        off = {verdict.row.title for verdict in verdicts if verdict.fails and verdict.quantity == "rate"}
        self.assertIn(shared[at].title, off)

    def test_old_terms_and_old_tables_are_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            kept, page = Path(folder) / "model.json", Path(folder) / "sizing.md"
            kept.write_text(json.dumps({"machine": model_pages.machine(self.files), "terms": TERMS}))
            page.write_text(model_pages.with_tables("<!-- model: links -->\n<!-- model end -->\n", TERMS))
            self.assertEqual(model_pages.stale(kept, page, self.files, TERMS, 1e-3), [])
            changed = {**TERMS, "iscsi": {**TERMS["iscsi"], "turn": TERMS["iscsi"]["turn"] * 1.01}}
            self.assertEqual(len(model_pages.stale(kept, page, self.files, changed, 1e-3)), 1)
            page.write_text(page.read_text().replace("25 Gbit/s", "24 Gbit/s"))
            self.assertEqual(len(model_pages.stale(kept, page, self.files, TERMS, 1e-3)), 1)


if __name__ == "__main__":
    unittest.main()
