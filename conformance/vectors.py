"""Writes vectors/*.json from the formulas: `python -m conformance.vectors`; with `--check` it only compares.

Every input is exact in float32, so no error comes from rounding the inputs.
"""

import argparse
import json
import sys
from pathlib import Path

from conformance.formulas import FUNCTIONS, M, bucket, decays, frequencies, phases, timestep_phases, turns
from oracles.spectra import SCALED, SHARED

FOLDER = Path(__file__).parent / "vectors"
LAYOUTS = ("half", "interleaved")
RANGES = {
    "near": [0, 1, 2, 3, 5, 8, 13, 21],
    "text": [64, 511, 512, 2047, 4095],
    "long": [8191, 32768, 100003, 131071],
    "far": [1000003, 16777217, 1000000007, 2147483646, 2147483647],
    "negative": [-1, -2, -17, -4095, -131071, -16777217, -2147483648],
}
UNIT = [0.0, 0.0009765625, 0.33203125, -0.71875, 1.0]
# Of two and three coordinates.
POINTS = {
    2: {"near": [[0, 0], [0, 1], [1, 0], [13, 7], [3, 21]], "far": [[100003, 7], [1, 16777217], [2147483647, 46341]]},
    3: {"near": [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [5, 5, 5], [4, 13, 21]], "far": [[100003, 7, 2147483647]]},
}
SINE = 9e-8
REASONS = {
    "sinusoidal": "a sine correctly rounded to float32 is within 3e-8; 9e-8 leaves room for the rounding of a phase",
    "rotary": "two sines within 9e-8 and three roundings of float32, for |x| ≤ 1; times the amplitude",
    "xpos": "as for rotary, times the greatest scale; relative: the roundings of a scale's exponent, of up to 8 bits",
    "timestep": "a sine within 9e-8, as for sinusoidal",
    "fourier": "a sine within 9e-8, as for sinusoidal",
    "alibi": "roundings of the slope, the distance and their product to float32, relative to it",
    "t5": "an entry of the table, exact in float32",
    "kerple_log": "a logarithm of a few units in the last place of float32, relative to it",
    "kerple_power": "a power of float32, whose exponent's rounding grows with the logarithm of the distance; relative",
    "sandwich": "for each pair four sines within 9e-8 and their roundings, times the greatest rate, heads/8",
    "fire": "two logarithms, a quotient and a sum of products of float32, for weights of about 1",
    "attention": "scores below 4 with four roundings of float32 each, and a mean of values of at most 1",
}


def case(name, function, parameters, inputs, absolute, relative=0.0, turned=None, amplitude=1):
    """One case: the expected numbers, the error allowed, and what its phases `turned`, in float32, would come to."""
    expected = FUNCTIONS[function](**inputs, **parameters)
    result = {"name": name, "function": function, "parameters": parameters, "inputs": inputs}
    result |= {"tolerance": {"absolute": absolute, "relative": relative}, "reason": REASONS[function]}
    if turned:
        largest = max(abs(phase) for row in turned for phase in row)
        # 16 roundings of float32: of p, of ω (a power: several), of their product and of its division by a factor.
        result["float32_phases"] = rounded(largest * amplitude / 2**20 + absolute, 3)
    return result | {"expected": nested(expected)}


def nested(values):
    """The nearest float64, which JSON writes with at most 17 digits."""
    return [nested(value) for value in values] if isinstance(values, list) else float(values)


def rounded(x, digits):
    return float(f"{float(x):.{digits - 1}e}")


def x_of(width):
    """Sixteenths from −1 to 1, different for neighbours and for the two features of every pair in both layouts."""
    return [((7 * j + 3) % 33 - 16) / 16 for j in range(width)]


def sinusoidal_case(name, positions, width, base, layout, **settings):
    parameters = {"width": width, "base": base, "layout": layout, **settings}
    turned = phases(positions, *frequencies(width, base, **settings)[:2])
    return case(name, "sinusoidal", parameters, {"positions": positions}, SINE, turned=turned)


# In these, and in the rotary ones, a width comes again with another base: a table that is looked up by width is wrong.
SINUSOIDAL = ((64, 10000, False), (64, 10000, True), (7, 10000, False), (16, 500, False), (7, 500, False))


def sinusoidal_cases():
    for width, base, endpoint in SINUSOIDAL:
        for layout in LAYOUTS:
            for name, positions in RANGES.items():
                spacing = "-endpoint" if endpoint else ""
                full = f"sinusoidal-{width}-{base}{spacing}-{layout}-{name}"
                yield sinusoidal_case(full, positions, width, base, layout, endpoint=endpoint)


def rotary_case(name, positions, head_width, rotary_width, base, layout, **settings):
    parameters = {"rotary_width": rotary_width, "base": base, "layout": layout, **settings}
    omegas, which, amplitude = frequencies(rotary_width, base, **settings)
    inputs, absolute = {"positions": positions, "x": x_of(head_width)}, rounded(3.2e-7 * amplitude, 3)
    turned = phases(positions, omegas, which)
    return case(name, "rotary", parameters, inputs, absolute, turned=turned, amplitude=amplitude)


def rotary_cases():
    for width, base in ((8, 10000), (64, 500000), (128, 10000), (8, 500000)):
        for layout in LAYOUTS:
            for name, positions in RANGES.items():
                yield rotary_case(f"rotary-{width}-{base}-{layout}-{name}", positions, width, width, base, layout)


def partial_cases():
    for head, width in ((32, 8), (24, 12)):
        for layout in LAYOUTS:
            for name in ("near", "text", "far"):
                full = f"partial-{width}-of-{head}-{layout}-{name}"
                yield rotary_case(full, RANGES[name], head, width, 10000, layout)


def scaling_cases():
    for name in ("near", "text", "long", "far"):
        positions = [p for p in RANGES[name] if p < 2**31 - 1][-4:]  # so that the length, one more, is an int32
        for label in SHARED:
            width, base, settings = SCALED[label]
            scaling = {k: positions[-1] + 1 if v is None else v for k, v in settings.items()}
            for layout in LAYOUTS if label == "yarn-40" else ("half",):
                full = f"scaling-{label}-{layout}-{name}"
                yield rotary_case(full, positions, width, width, base, layout, scaling=scaling)


DIRECTIONS = [[1.0, -0.625, 0.140625, 0.0078125], [0.375, 0.875, -0.25, 0.015625]]


def axes_cases():
    maps = [
        ("axial", {"type": "axial", "count": 2}, 2, 32),
        ("axial", {"type": "axial", "count": 3}, 3, 48),
        ("sections", {"type": "sections", "sections": [4, 6, 6]}, 3, 32),
        ("interleaved", {"type": "interleaved", "sections": [6, 5, 5]}, 3, 32),
        ("widths", {"type": "widths", "widths": [8, 12, 12]}, 3, 32),
        ("directions", {"type": "directions", "angular": DIRECTIONS}, 2, 8),
    ]
    for label, axes, count, width in maps:
        for name, positions in POINTS[count].items():
            for layout in LAYOUTS if label == "axial" else ("half",):
                full = f"axes-{label}-{count}-{layout}-{name}"
                yield rotary_case(full, positions, width, width, 10000, layout, axes=axes)
                if label == "axial":
                    full = f"axes-encoding-{count}-{layout}-{name}"
                    yield sinusoidal_case(full, positions, width, 10000, layout, axes=axes)


def xpos_cases():
    # An origin and positions around it: float32 holds the scales near the origin, wherever that is.
    around = {"near": (0, RANGES["near"]), "text": (2048, RANGES["text"])}
    around["far"] = (2**31 - 512, [2**31 - before for before in (1536, 1023, 512, 129, 1)])
    around["negative"] = (-(2**31) + 512, [-(2**31) + after for after in (0, 1, 511, 513, 1536)])
    for layout, base, settings in (("half", 10000, {}), ("interleaved", 500, {"scale_base": 1024, "gamma": 0.5})):
        for of in ("query", "key"):
            for name, (origin, positions) in around.items():
                parameters = {"rotary_width": 8, "base": base, "layout": layout, "of": of, "origin": origin, **settings}
                greatest = max(max(decays(8, of, p - origin, **settings)) for p in positions)
                inputs, absolute = {"positions": positions, "x": x_of(8)}, rounded(3.2e-7 * greatest, 3)
                turned = phases(positions, *frequencies(8, base)[:2])
                full = f"xpos-{of}-{layout}-{name}"
                yield case(full, "xpos", parameters, inputs, absolute, 2e-6, turned, greatest)


def timestep_cases():
    settings = {"width": 16, "base": 10000, "shift": 0, "scale": 1}
    for label, changes, cosines_first, ranges in (
        ("sines-first", {"width": 9, "shift": 1}, False, ("near", "text", "far")),
        ("cosines-first", {}, True, ("near", "text", "far")),
        ("scaled", {"scale": 1000}, True, ("unit",)),
    ):
        for name in ranges:
            spectrum, positions = settings | changes, UNIT if name == "unit" else RANGES[name]
            parameters, inputs = spectrum | {"cosines_first": cosines_first}, {"positions": positions}
            turned = timestep_phases(positions, **spectrum)
            yield case(f"timestep-{label}-{name}", "timestep", parameters, inputs, SINE, turned=turned)


def fourier_cases():
    octaves = [[2.0**k / 2 if row == axis else 0.0 for axis in range(2) for k in range(6)] for row in range(2)]
    dense = [[((37 * j + 11 * row) % 129 - 64) / 8 for j in range(6)] for row in range(2)]
    points = [[a, b] for a, b in zip(UNIT, UNIT[2:] + UNIT[:2], strict=True)]
    for name, matrix, layout, positions in (
        ("octaves-unit", octaves, "interleaved", points),
        ("dense-unit", dense, "half", points),
        ("dense-far", dense, "half", POINTS[2]["far"]),
    ):
        parameters, inputs = {"matrix": matrix, "layout": layout}, {"positions": positions}
        turned = [[2 * M.pi * turn for turn in row] for row in turns(positions, matrix)]
        yield case(f"fourier-{name}", "fourier", parameters, inputs, SINE, turned=turned)


TILES = {
    "near": {"queries": [0, 1, 5, 31], "keys": [0, 1, 2, 5, 17, 31, 40]},
    "causal": {"queries": list(range(12)), "keys": list(range(12))},
    "far": {"queries": [131072, 2147483647], "keys": [0, 1, 100003, 131071, 2147483647]},
    "decode": {"queries": [4095], "keys": [0, 1, 2047, 4094, 4095]},
}


def bias_cases():
    for heads in (1, 2, 3, 6, 8, 12, 20, 40):
        for name in ("decode", "far") if heads > 12 else ("causal", "decode", "far"):
            yield case(f"alibi-{heads}-{name}", "alibi", {"heads": heads}, TILES[name], 0.0, 1.8e-7)
    coarse = {"queries": [700], "keys": [700 + s * d for d in (0, 1, 9, 40, 100, 500) for s in (1, -1)]}
    for label, buckets, both, furthest in (("both", 32, 1, 128), ("causal", 32, 0, 128), ("wide", 64, 0, 512)):
        table = [[float(row), (row * 5 % 17 - 8) / 8] for row in range(buckets)]
        parameters = {"table": table, "bidirectional": bool(both), "max_distance": furthest}
        # The last distance of each bucket and the first of the next, where a rounded logarithm may be one off.
        of = [bucket(distance, buckets // (1 + both), furthest) for distance in range(furthest + 2)]
        edges = [d + side for d in range(furthest + 1) if of[d] != of[d + 1] for side in (0, 1)]
        edges += [furthest, furthest + 1]
        tiles = TILES | {"edges": {"queries": [1000], "keys": [1000 - d for d in sorted(set(edges))]}, "coarse": coarse}
        for name in ("near", "edges", "coarse", "far"):
            yield case(f"t5-{label}-{name}", "t5", parameters, tiles[name], 0.0)
    scale, other = [0.5, 1.0, 2.5], [0.125, 1.0, 0.75]
    for name, tile in TILES.items():
        yield case(f"kerple-log-{name}", "kerple_log", {"scale": scale, "rate": other}, tile, 0.0, 5e-7)
        yield case(f"kerple-power-{name}", "kerple_power", {"scale": scale, "exponent": other}, tile, 0.0, 3e-6)
        sandwich = {"heads": 8, "width": 64, "base": 10000}
        yield case(f"sandwich-{name}", "sandwich", sandwich, tile, rounded(32 * 4e-7, 3))
        first, second = [(3 * u - 8) / 8 for u in range(6)], [(2 - u) / 4 for u in range(6)]
        out = [[(u + 1) / 8, (3 - u) / 4] for u in range(6)]
        mlp = {"w1": first, "b1": second, "w2": out, "b2": [0.25, -0.5], "c": 0.125, "threshold": 16.0}
        yield case(f"fire-{name}", "fire", mlp, tile, 1e-6)


# Queries and keys: of a sequence, of its last token, at the ends of int32, and queries of which some see no key.
SEQUENCE = range(6)
TOKENS = {
    "near": (list(SEQUENCE), list(SEQUENCE)),
    "decode": ([5], list(SEQUENCE)),
    "far": ([2**31 - 6 + n for n in SEQUENCE], [2**31 - 6 + n for n in SEQUENCE]),
    "negative": ([-(2**31) + n for n in SEQUENCE], [-(2**31) + n for n in SEQUENCE]),
    "apart": ([2, 5, 7, 8, 100, 2**31 - 1], list(SEQUENCE)),
}
SINKS = [0.5, -1.0, 2.0, 0.0]


def heads_of(tokens, heads, width, step):
    """Sixteenths from −1 to 1 for each token and head, different for neighbours."""
    return [
        [[((step * n + 7 * h + 13 * d + 3 * n * d) % 33 - 16) / 16 for d in range(width)] for h in range(heads)]
        for n in range(tokens)
    ]


def attention_cases():
    sliding, capped, sinks = {"causal": True, "window": [2, 0]}, {"soft_cap": 1.5}, {"sinks": SINKS}
    for label, settings, width, ranges in (
        ("plain", {}, 4, ("near",)),
        ("causal", {"causal": True}, 4, ("near", "decode")),
        ("left", {"window": [2, None]}, 4, ("near", "negative")),
        ("right", {"window": [None, 1]}, 4, ("near", "far")),
        ("both", {"window": [2, 1]}, 4, ("near", "far", "negative")),
        ("alone", {"window": [0, 0]}, 4, ("near",)),
        ("sliding", sliding, 4, ("near", "decode", "apart")),
        ("sinks", {"causal": True} | sinks, 4, ("near",)),
        ("sliding-sinks", sliding | sinks, 4, ("near", "decode", "far", "apart")),
        ("cap", {"causal": True} | capped, 4, ("near",)),
        ("sliding-cap", sliding | capped, 4, ("near", "decode")),
        ("narrow", {"causal": True}, 3, ("near", "decode")),
        ("wide", {"causal": True}, 5, ("near",)),
        ("all", {"causal": True, "window": [3, 1]} | capped | sinks, 3, ("near", "apart")),
    ):
        for name in ranges:
            queries, keys = TOKENS[name]
            inputs = {"query_positions": queries, "key_positions": keys, "query": heads_of(6, 4, 4, 5)[-len(queries) :]}
            inputs |= {"key": heads_of(6, 2, 4, 11), "value": heads_of(6, 2, width, 8)}
            yield case(f"attention-{label}-{name}", "attention", {"scale": 1.5} | settings, inputs, 2e-6)


GROUPS = {
    "sinusoidal": sinusoidal_cases,
    "rotary": rotary_cases,
    "partial": partial_cases,
    "scaling": scaling_cases,
    "axes": axes_cases,
    "xpos": xpos_cases,
    "timestep": timestep_cases,
    "fourier": fourier_cases,
    "bias": bias_cases,
    "attention": attention_cases,
}


def text(group, cases):
    lines = ",\n".join(json.dumps(c, ensure_ascii=False, separators=(", ", ": ")) for c in cases)
    return f'{{"group": "{group}", "digits": {M.dps - 20}, "cases": [\n{lines}\n]}}\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a file is not what the formulas give")
    check = parser.parse_args().check
    FOLDER.mkdir(exist_ok=True)
    for group, cases in GROUPS.items():
        path, new = FOLDER / f"{group}.json", text(group, cases())
        if check and path.read_text(encoding="utf-8") != new:
            sys.exit(f"{path} is not what the formulas give")
        if not check:
            path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
