"""Least squares with coefficients of at least 0, for a handful of unknowns, in plain Python."""

from collections.abc import Sequence
from itertools import combinations


def fit_nonnegative(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Coefficients c >= 0 that minimise the sum of (row . c - value)^2.

    Tries every set of unknowns that may be above 0 and solves the normal equations of each: exact, and fast for up to
    about eight unknowns.  Unknowns that the rows cannot tell apart get their share from one of them only."""
    num = len(rows[0])
    scales = [max((abs(row[j]) for row in rows), default=0.0) or 1.0 for j in range(num)]
    scaled = [[row[j] / scales[j] for j in range(num)] for row in rows]
    gram = [[sum(row[i] * row[j] for row in scaled) for j in range(num)] for i in range(num)]
    right = [sum(row[i] * value for row, value in zip(scaled, values, strict=True)) for i in range(num)]
    best, best_gain = [0.0] * num, 0.0
    for size in range(1, num + 1):
        for chosen in combinations(range(num), size):
            solution = _solve([[gram[i][j] for j in chosen] for i in chosen], [right[i] for i in chosen])
            if solution is None or min(solution) < 0.0:
                continue
            # At a solution of the normal equations the sum of squares has fallen by right . solution.
            gain = sum(right[i] * c for i, c in zip(chosen, solution, strict=True))
            if gain > best_gain * (1 + 1e-12):
                best_gain = gain
                best = [0.0] * num
                for i, c in zip(chosen, solution, strict=True):
                    best[i] = c
    return [c / scale for c, scale in zip(best, scales, strict=True)]


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gaussian elimination with pivoting; None when the matrix is (nearly) singular."""
    size = len(right)
    rows = [[*matrix[i], right[i]] for i in range(size)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda i: abs(rows[i][column]))
        if abs(rows[pivot][column]) < 1e-9:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for i in range(size):
            if i != column:
                factor = rows[i][column] / rows[column][column]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[column], strict=True)]
    return [rows[i][size] / rows[i][i] for i in range(size)]
