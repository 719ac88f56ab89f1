"""Attention biases of exact distances |i − j|, in float64.

Distances are (queries, keys) or (..., 1, queries, keys), and biases (..., heads, queries, keys).
"""

import numpy as np

from oracles.spectra import MP


def exact_tile(i, j):
    """The query's position, |i − j| of exact integers or of floats, and whether i < j, (..., 1, queries, keys)."""
    if {i.dtype.kind, j.dtype.kind} - {*"iu"}:  # floats on one side make floats of the other
        dtype = np.float64 if np.float64 in (i.dtype, j.dtype) else np.float32
        i, j = i.astype(dtype).astype(np.float64), j.astype(dtype).astype(np.float64)
    i, j = i.astype(object)[..., None, :, None], j.astype(object)[..., None, None, :]
    with np.errstate(invalid="ignore"):
        return i.astype(np.float64), abs(i - j), i < j


def tile(queries, keys):
    """|i − j| of integers, (queries, keys)."""
    return exact_tile(np.asarray(queries), np.asarray(keys))[1][0]


def _each(heads):
    return np.asarray(heads, np.float64).reshape(-1, 1, 1)


def _heads_first(rows):
    """(queries, keys, heads) or (..., 1, queries, keys, heads) → (..., heads, queries, keys)."""
    found = np.moveaxis(rows, -1, -3)
    return found if found.ndim == 3 else found[..., 0, :, :, :]


def slopes(heads):
    """ALiBi's, as the paper has them for powers of two, and its code for others."""
    power = 2 ** int(np.log2(heads))
    first = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    return first if heads == power else first + slopes(2 * power)[::2][: heads - power]


def alibi(distance, slope):
    return -_each(slope) * np.asarray(distance, np.float64)


def kerple_log(distance, scale, rate):
    return -_each(scale) * np.log1p(_each(rate) * np.asarray(distance, np.float64))


def kerple_power(distance, scale, exponent):
    return -_each(scale) * np.asarray(distance, np.float64) ** _each(exponent)


def sandwich(distance, heads, omegas):
    """Σ (cos ω·d − 1) · heads / 8h, by mpmath."""
    distance = np.asarray(distance)
    each, place = np.unique(distance.ravel(), return_inverse=True)
    sums = np.array([float(sum(MP.cos(w * MP.mpf(d)) - 1 for w in omegas)) for d in each.tolist()])
    return _each(heads / (8 * np.arange(1, heads + 1))) * sums[place].reshape(distance.shape)


def perceptron(x, w1, b1, w2, b2):
    """FIRE's, of one input: w1 and b1 (hidden,), w2 (hidden, heads), b2 (heads,)."""
    w1, b1, w2, b2 = (np.asarray(w, np.float64) for w in (w1, b1, w2, b2))
    return _heads_first(np.maximum(np.asarray(x, np.float64)[..., None] * w1 + b1, 0) @ w2 + b2)


def fire(distance, queries, mlp, c, threshold):
    """Of the queries' positions too, which broadcast to the distances."""
    c, far = float(c), np.maximum(np.asarray(queries, np.float64), float(threshold))
    return perceptron(np.log1p(c * np.asarray(distance, np.float64)) / np.log1p(c * far), *mlp)


def bucket(distance, buckets, max_distance):
    """T5's, of one direction, by its definition: logarithms are compared as powers of integers."""
    exact = buckets // 2
    if distance < exact:
        return distance
    step, steps = 0, buckets - exact
    while step + 1 < steps and distance**steps >= max_distance ** (step + 1) * exact ** (steps - step - 1):
        step += 1
    return exact + step


def t5_rows(distance, after, rows, *, bidirectional=True, max_distance=128):
    """The row of T5's table for each distance; `after` says whether the key is after the query."""
    n = rows // (1 + bidirectional)

    def row(d, is_after):
        if not bidirectional:
            return 0 if is_after else bucket(int(d), n, max_distance)
        return bucket(int(d), n, max_distance) + n * bool(is_after)

    return np.vectorize(row, otypes=[int])(distance, after)


def t5(distance, after, table, **settings):
    """Rows of the table (rows, heads)."""
    return _heads_first(np.asarray(table, np.float64)[t5_rows(distance, after, len(table), **settings)])


def relative(queries, keys, table, *, prefix=None, symmetric=False):
    """A table's value for each offset of coordinates (tokens, axes), one element after the other; NaN outside."""
    table, sides = np.asarray(table, np.float64), np.shape(table)[:-1]
    result = np.full((table.shape[-1], len(queries), len(keys)), np.nan)
    for i, p in enumerate(np.asarray(queries).tolist()):
        for j, q in enumerate(np.asarray(keys).tolist()):
            if prefix is not None and (p[0] < 0 or q[0] < 0):
                result[:, i, j] = prefix[2 if p[0] < 0 and q[0] < 0 else 0 if p[0] < 0 else 1]
                continue
            offsets = [(a - b, n) for a, b, n in zip(p, q, sides, strict=True)]
            place = [abs(offset) if symmetric else offset + n // 2 for offset, n in offsets]
            if all(0 <= at < n for at, n in zip(place, sides, strict=True)):
                result[:, i, j] = table[tuple(place)]
    return result


def of_offsets(distance, after, table):
    """`relative` of one axis, from distances and whether the key is after the query; 0 outside."""
    last = len(table) // 2
    held = np.asarray(distance <= last, bool)
    place = last + np.where(after, -1, 1) * np.where(held, distance, 0).astype(int)
    return _heads_first(np.where(held[..., None], np.asarray(table, np.float64)[place], 0))


# Biases that multiply a token by a row of a table


def log_bucket(distance, span, max_distance):
    """DeBERTa's: its formula in so many digits that only an exact tie is within 1e-30 of an integer."""
    middle = span // 2
    if distance <= middle:
        return distance
    log = lambda x: MP.log(MP.mpf(x) / middle)  # noqa: E731
    return middle + int(MP.ceil(log(distance) / log(max_distance - 1) * (middle - 1) - MP.mpf("1e-30")))


def content_rows(i, j, rows, *, first=None, max_distance=None, nearest=False):
    """1 for the row that each query at i (..., queries) and key at j (..., keys) have, (..., queries, keys, rows)."""
    offsets = np.asarray(i).astype(object)[..., :, None] - np.asarray(j).astype(object)[..., None, :]
    if max_distance is not None:
        buckets = np.vectorize(lambda d: log_bucket(d, rows // 2, max_distance), otypes=[object])(abs(offsets))
        offsets = np.where(offsets < 0, -buckets, buckets)
        first, nearest = -(rows // 2), True
    row = offsets - (-(rows // 2) if first is None else first)
    row = np.clip(row, 0, rows - 1) if nearest else row
    return (row[..., None] == np.arange(rows)).astype(np.float64)


def content(selected, x, table, of_keys):
    """x · row for x (..., tokens, heads, features), queries or keys; 0 where no row is selected."""
    return np.einsum(f"...qkr,...{'qk'[of_keys]}hc,rhc->...hqk", selected, *map(np.float64, (x, table)), optimize=True)


def content_back(selected, x, table, of_keys, dy):
    """The cotangents of x and table from that of the bias."""
    side = "qk"[of_keys]
    x, table, dy = map(np.float64, (x, table, dy))
    dx = np.einsum(f"...qkr,rhc,...hqk->...{side}hc", selected, table, dy, optimize=True)
    return dx, np.einsum(f"...qkr,...{side}hc,...hqk->rhc", selected, x, dy, optimize=True)


# How modules map unconstrained parameters to positive numbers, and to the interval from 0 to 2


def softplus(x):
    return np.logaddexp(np.asarray(x, np.float64), 0)


def twice_sigmoid(x):
    return 2 / (1 + np.exp(-np.asarray(x, np.float64)))
