"""Least squares for models whose terms are positive, in plain Python.

The terms are fitted as logarithms, so they stay positive, by the method of Levenberg and Marquardt.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Vector = list[float]
Matrix = list[Vector]
Terms = dict[str, float]
# The step of the numerical derivatives, in the logarithm of a term.
STEP = 1e-5
# A fit ends when a step improves the sum of squares by less than this fraction.
SMALLEST_GAIN = 1e-9
STEPS_MAX = 120
# The largest change of a term in one step, as a logarithm: keeps a bad first step near the starting values.
LEAP_MAX = 1.0


def solve(matrix: Matrix, right: Vector) -> Vector:
    """Solves a system of linear equations by elimination with pivots."""
    size = len(right)
    rows = [[*matrix[at], right[at]] for at in range(size)]
    for at in range(size):
        best = max(range(at, size), key=lambda row: abs(rows[row][at]))
        rows[at], rows[best] = rows[best], rows[at]
        pivot = rows[at][at] or 1e-300
        for below in range(at + 1, size):
            factor = rows[below][at] / pivot
            if factor:
                rows[below] = [low - factor * high for low, high in zip(rows[below], rows[at])]
    found = [0.0] * size
    for at in reversed(range(size)):
        known = sum(rows[at][after] * found[after] for after in range(at + 1, size))
        found[at] = (rows[at][size] - known) / (rows[at][at] or 1e-300)
    return found


def products(columns: Matrix, vector: Vector) -> tuple[Matrix, Vector]:
    """The products of the columns with each other and with a vector."""
    each = [[sum(a * b for a, b in zip(left, right)) for right in columns] for left in columns]
    return each, [sum(a * b for a, b in zip(column, vector)) for column in columns]


def columns_at(errors: Callable[[Vector], Vector], point: Vector, present: Vector) -> Matrix:
    """The derivatives of the errors, one column for each term."""
    found = []
    for at in range(len(point)):
        moved = list(point)
        moved[at] += STEP
        found.append([(new - old) / STEP for new, old in zip(errors(moved), present)])
    return found


def fit(errors: Callable[[Terms], Vector], start: Terms) -> Terms:
    """The terms for which the sum of the squared errors is least, beginning at `start`."""
    names = list(start)
    point = [math.log(start[name]) for name in names]
    named = lambda at: {name: math.exp(value) for name, value in zip(names, at)}  # noqa: E731
    of = lambda at: errors(named(at))  # noqa: E731
    present = of(point)
    total = sum(error * error for error in present)
    damping = 1e-2
    for _ in range(STEPS_MAX):
        matrix, right = products(columns_at(of, point, present), present)
        before = total
        for _ in range(12):
            damped = [[*row] for row in matrix]
            for at, row in enumerate(damped):
                row[at] += damping * (row[at] + 1e-6)
            step = solve(damped, [-value for value in right])
            moved = [old + max(-LEAP_MAX, min(LEAP_MAX, by)) for old, by in zip(point, step)]
            new = of(moved)
            new_total = sum(error * error for error in new)
            if new_total < total:
                point, present, total = moved, new, new_total
                damping = max(damping / 5, 1e-9)
                break
            damping *= 4
        if before - total <= SMALLEST_GAIN * before:
            break
    return named(point)


def leverages(errors: Callable[[Terms], Vector], terms: Terms, block: int) -> Vector:
    """For each block of errors, which belong to one measurement: how much of some term it alone determines, from 0 to
    1. At 1 no other measurement has that term."""
    names = list(terms)
    point = [math.log(terms[name]) for name in names]
    of = lambda at: errors({name: math.exp(value) for name, value in zip(names, at)})  # noqa: E731
    present = of(point)
    columns = columns_at(of, point, present)
    matrix, _ = products(columns, present)
    for at, row in enumerate(matrix):
        row[at] *= 1 + 1e-9
    found = []
    for first in range(0, len(present), block):
        own = [[column[number] for column in columns] for number in range(first, first + block)]
        solved = [solve(matrix, row) for row in own]
        found.append(largest([[sum(a * b for a, b in zip(left, right)) for right in solved] for left in own]))
    return found


def largest(matrix: Matrix) -> float:
    """The largest eigenvalue of a symmetric matrix without negative ones, by repeated multiplication."""
    vector = [1.0 + at / 8 for at in range(len(matrix))]
    length = 0.0
    for _ in range(100):
        moved = [sum(a * b for a, b in zip(row, vector)) for row in matrix]
        length = math.sqrt(sum(value * value for value in moved))
        if not length:
            return 0.0
        vector = [value / length for value in moved]
    return length
