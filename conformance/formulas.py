"""The formulas of README.md in mpmath, to 50 digits of the result, without any library.

Inputs (bases, factors, positions, weights) are taken at their exact value.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from oracles.spectra import MP as M
from oracles.spectra import SCALINGS
from oracles.spectra import geometric as spectrum


def frequencies(width, base, endpoint=False, scaling=None, axes=None):
    """Of each pair ω, which coordinate of the position turns it, and the amplitude of all.

    Of directions, each pair has an ω for every coordinate, which all turn it.
    """
    if axes and axes["type"] == "axial":
        one = spectrum(width // axes["count"], base)
        return one * axes["count"], [c for c in range(axes["count"]) for _ in one], M.mpf(1)
    if axes and axes["type"] == "widths":
        each = [spectrum(one, base) for one in axes["widths"]]
        return sum(each, []), [c for c, one in enumerate(each) for _ in one], M.mpf(1)
    if axes and axes["type"] == "directions":
        return [[M.mpf(w) for w in pair] for pair in zip(*axes["angular"], strict=True)], None, M.mpf(1)
    if scaling:
        settings = {name: value for name, value in scaling.items() if name != "type"}
        omegas, amplitude = SCALINGS[scaling["type"]](width, base, **settings)
    else:
        omegas, amplitude = spectrum(width, base, endpoint), M.mpf(1)
    which = [0] * len(omegas)
    if axes and axes["type"] == "sections":
        which = [c for c, count in enumerate(axes["sections"]) for _ in range(count)]
    if axes and axes["type"] == "interleaved":
        s, n = axes["sections"], len(axes["sections"])
        which = [i % n if i < n * s[i % n] else 0 for i in range(len(omegas))]
    return omegas, which, amplitude


def phases(positions, omegas, which):
    """p·ω for each position, a number or one for each coordinate, and each pair."""
    points = [p if isinstance(p, list) else [p] for p in positions]
    if which is None:
        return [[sum(M.mpf(c) * w for c, w in zip(p, pair, strict=True)) for pair in omegas] for p in points]
    return [[M.mpf(p[axis]) * w for w, axis in zip(omegas, which, strict=True)] for p in points]


def places(i, pairs, layout):
    """The two features of pair i."""
    return (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + pairs)


def sinusoidal(positions, width, base, layout, endpoint=False, axes=None):
    omegas, which, _ = frequencies(width, base, endpoint, axes=axes)
    rows = []
    for row in phases(positions, omegas, which):
        out = [M.mpf(0)] * (width + 1)
        for i, phase in enumerate(row):
            sine, cosine = places(i, len(omegas), layout)
            out[sine], out[cosine] = M.sin(phase), M.cos(phase)
        rows.append(out[:width])
    return rows


def rotary(positions, x, rotary_width, base, layout, scaling=None, axes=None):
    """Turns x; the features beyond rotary_width stay as they are."""
    omegas, which, amplitude = frequencies(rotary_width, base, scaling=scaling, axes=axes)
    rows = []
    for row in phases(positions, omegas, which):
        out = [M.mpf(value) for value in x]
        for i, phase in enumerate(row):
            first, second = places(i, len(omegas), layout)
            a, b = M.mpf(x[first]), M.mpf(x[second])
            sine, cosine = amplitude * M.sin(phase), amplitude * M.cos(phase)
            out[first], out[second] = a * cosine - b * sine, b * cosine + a * sine
        rows.append(out)
    return rows


def decays(rotary_width, of, distance, scale_base=512, gamma="0.4"):
    """What xPos scales each pair by in a query, or in a key, at a distance from the origin."""
    pairs, sign = rotary_width // 2, {"query": 1, "key": -1}[of]
    zetas = [(M.mpf(i) / pairs + M.mpf(gamma)) / (1 + M.mpf(gamma)) for i in range(pairs)]
    return [zeta ** (sign * M.mpf(distance) / scale_base) for zeta in zetas]


def xpos(positions, x, rotary_width, base, layout, of, origin, **settings):
    """Turned as by rotary, and scaled."""
    rows = rotary(positions, x, rotary_width, base, layout)
    for p, row in zip(positions, rows, strict=True):
        for i, scale in enumerate(decays(rotary_width, of, p - origin, **settings)):
            for place in places(i, rotary_width // 2, layout):
                row[place] *= scale
    return rows


def timestep_phases(positions, width, base, shift, scale):
    n = width // 2
    omegas = [scale * M.mpf(base) ** (-M.mpf(i) / (n - shift)) for i in range(n)]
    return phases(positions, omegas, [0] * n)


def timestep(positions, width, base, shift, scale, cosines_first):
    rows = []
    for row in timestep_phases(positions, width, base, shift, scale):
        sines, cosines = [M.sin(phase) for phase in row], [M.cos(phase) for phase in row]
        rows.append((cosines + sines if cosines_first else sines + cosines) + [M.mpf(0)] * (width % 2))
    return rows


def turns(positions, matrix):
    columns = list(zip(*matrix, strict=True))
    return [[sum(M.mpf(a) * M.mpf(b) for a, b in zip(x, c, strict=True)) for c in columns] for x in positions]


def fourier(positions, matrix, layout):
    rows = []
    for row in turns(positions, matrix):
        out = [M.mpf(0)] * (2 * len(row))
        for j, turn in enumerate(row):
            sine, cosine = places(j, len(row), layout)
            out[sine], out[cosine] = M.sinpi(2 * turn), M.cospi(2 * turn)
        rows.append(out)
    return rows


def slopes(heads):
    power = 2 ** (heads.bit_length() - 1)
    own = [M.mpf(2) ** (-M.mpf(8) * h / power) for h in range(1, power + 1)]
    return own + [M.mpf(2) ** (-M.mpf(4) * h / power) for h in range(1, 2 * (heads - power), 2)]


def of_pairs(f, queries, keys, heads):
    return [[[f(h, i, j) for j in keys] for i in queries] for h in range(heads)]


def alibi(queries, keys, heads):
    m = slopes(heads)
    return of_pairs(lambda h, i, j: -m[h] * abs(i - j), queries, keys, heads)


def kerple_log(queries, keys, scale, rate):
    return of_pairs(
        lambda h, i, j: -M.mpf(scale[h]) * M.log(1 + M.mpf(rate[h]) * abs(i - j)), queries, keys, len(scale)
    )


def kerple_power(queries, keys, scale, exponent):
    return of_pairs(lambda h, i, j: -M.mpf(scale[h]) * M.mpf(abs(i - j)) ** exponent[h], queries, keys, len(scale))


def sandwich(queries, keys, heads, width, base):
    omegas = spectrum(width, base)

    def f(h, i, j):
        return M.mpf(heads) / (8 * (h + 1)) * sum(M.cos(w * (i - j)) - 1 for w in omegas)

    return of_pairs(f, queries, keys, heads)


def fire(queries, keys, w1, b1, w2, b2, c, threshold):
    def f(h, i, j):
        far = max(M.mpf(threshold), M.mpf(i))
        x = M.log(M.mpf(c) * abs(i - j) + 1) / M.log(M.mpf(c) * far + 1)
        hidden = [max(M.mpf(w) * x + M.mpf(b), M.mpf(0)) for w, b in zip(w1, b1, strict=True)]
        return sum(M.mpf(row[h]) * u for row, u in zip(w2, hidden, strict=True)) + M.mpf(b2[h])

    return of_pairs(f, queries, keys, len(b2))


def bucket(distance, buckets, max_distance):
    """T5's, of a direction. The logarithm's whole part is found in integers: d^n ≥ max^k · e^(n − k)."""
    exact = buckets // 2
    if distance < exact:
        return distance
    n = buckets - exact
    return exact + max(k for k in range(n) if k == 0 or distance**n >= max_distance**k * exact ** (n - k))


def t5(queries, keys, table, bidirectional, max_distance):
    buckets = len(table) // (1 + bidirectional)

    def f(h, i, j):
        after = j > i
        distance = abs(i - j) if bidirectional or not after else 0
        return M.mpf(table[bucket(distance, buckets, max_distance) + (buckets if after and bidirectional else 0)][h])

    return of_pairs(f, queries, keys, len(table[0]))


def sees(i, j, causal, left, right):
    """Whether a query at position i sees a key at position j."""
    return (j <= i or not causal) and (left is None or i - j <= left) and (right is None or j - i <= right)


def attention(
    query_positions,
    key_positions,
    query,
    key,
    value,
    scale,
    causal=False,
    window=(None, None),
    soft_cap=None,
    sinks=None,
):
    """Operands are (tokens, heads, width); each key head serves consecutive query heads."""
    group, width = len(query[0]) // len(key[0]), len(value[0][0])

    def attend(i, h, x):
        seen = [n for n, j in enumerate(key_positions) if sees(i, j, causal, *window)]
        scores = [scale * sum(M.mpf(a) * b for a, b in zip(x, key[n][h // group], strict=True)) for n in seen]
        if soft_cap is not None:
            scores = [soft_cap * M.tanh(s / soft_cap) for s in scores]
        weights = [M.exp(s) for s in scores]
        total = sum(weights) + (0 if sinks is None else M.exp(sinks[h]))
        values = [value[n][h // group] for n in seen]
        return [sum((w * v[d] / total for w, v in zip(weights, values, strict=True)), M.mpf(0)) for d in range(width)]

    return [[attend(i, h, x) for h, x in enumerate(heads)] for i, heads in zip(query_positions, query, strict=True)]


FUNCTIONS = {
    f.__name__: f
    for f in (
        *(sinusoidal, rotary, xpos, timestep, fourier),
        *(alibi, kerple_log, kerple_power, sandwich, fire, t5),
        attention,
    )
}
