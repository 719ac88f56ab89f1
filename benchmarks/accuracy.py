"""How far the library is from the true values: `python benchmarks/accuracy.py [--json PATH]`.

Every figure is the worst over random positions, the ends of the range and the neighbours of multiples of 2¹⁶. Beside it
stands the textbook formula in float32. Exits with status 1 if a bound is missed.
"""

import argparse
import json
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from formulas import textbook
from reference import check_sample, float_turns, geometric_turns, in_layout, markdown, true_waves

import posenc_jax as pe

WIDTHS = (6, 7, 64, 128, 512, 4096)
BASES = (100.0, 10_000.0, 500_000.0, 1e7)
RANGES = {"0 … 100": (0, 100), "… 2^20": (0, 2**20), "… 2^31−1": (0, 2**31 - 1), "−2^31 … −1": (-(2**31), -1)}
BELOW = (10, 512, 4096, 32_768, 131_072, 10**6, 10**7, 2**31)
BOUND, MOVED_BOUND = 9e-8, 5e-7

textbook = jax.jit(textbook, static_argnums=(1, 2))


def draw(rng, low, high, count):
    """`count` int32 positions from low to high: both ends, neighbours of multiples of 2¹⁶, even and logarithmic draws.

    Always as many, so that what is compiled for one base or range serves the next.
    """
    multiples = (rng.integers(low >> 16, (high >> 16) + 2, count // 4) << 16) + rng.integers(-1, 2, count // 4)
    logarithmic = low + np.exp(rng.uniform(0, np.log(high - low + 1), count // 4)).astype(np.int64) - 1
    spread = rng.integers(low, high, count, endpoint=True)
    drawn = np.concatenate([np.array([low, low + 1, high - 1, high]), multiples, logarithmic, spread])
    return drawn[(drawn >= low) & (drawn <= high)][:count].astype(np.int32)


def worst(found, true):
    return float(np.abs(np.asarray(found, np.float64) - true).max())


def rounded_alike(positions, f, layout, exact):
    """The number of 16-bit results that are not the float32 result rounded."""
    wrong = 0
    for dtype in (ml_dtypes.bfloat16, np.float16):
        found = np.asarray(pe.sinusoidal(positions, f, layout=layout, dtype=dtype))
        wrong += int((found.view(np.uint16) != np.asarray(exact).astype(dtype).view(np.uint16)).sum())
    return wrong


def by_width(rng, result):
    """The encoding over widths, bases and ranges."""
    rows, sample, mismatches = [], 0.0, 0
    for dim in WIDTHS:
        for base in BASES:
            f, cells = pe.geometric(dim, base), []
            for name, (low, high) in RANGES.items():
                positions = draw(rng, low, high, max(150, min(1500, 400_000 // dim)))
                waves = true_waves(positions, geometric_turns(dim, base))
                sample = max(sample, check_sample(positions, dim, base, waves, 40, rng))
                errors = {}
                for layout in ("interleaved", "half"):
                    found = pe.sinusoidal(positions, f, layout=layout)
                    mismatches += rounded_alike(positions, f, layout, found)
                    errors[layout] = worst(found, in_layout(waves, dim, layout))
                theirs = worst(textbook(positions, dim, base), in_layout(waves, dim, "interleaved"))
                cells.append((max(errors.values()), theirs))
                result["encoding"].append(
                    {"dim": dim, "base": base, "positions": name, **errors, "textbook": theirs, "count": len(positions)}
                )
            rows.append([str(dim), f"{base:g}", *(f"{a:.1e} ({b:.0e})" for a, b in cells)])
    assert sample <= 1e-15, f"the reference differs from mpmath at 40 digits by {sample}"
    print("Worst error of `posenc_jax.sinusoidal`, both layouts (in brackets: textbook formula in float32):\n")
    print(markdown(["width", "base", *RANGES], rows))
    print(
        f"\nThe true phases are exact integers of 256 bits, their sines float64; at {40 * len(result['encoding']):,} "
        f"random places\nmpmath with 40 digits differs from that by at most {sample:.0e}.\n"
    )
    encoding = max(max(row["interleaved"], row["half"]) for row in result["encoding"])
    result["bounds"]["encoding, every int32 position"] = (encoding, BOUND)
    result["bounds"]["bfloat16 and float16 unlike float32 rounded (results)"] = (mismatches, 0)
    result["bounds"]["reference against mpmath"] = (sample, 1e-15)


def by_length(rng, result):
    """The table of the documentation: width 128, base 10,000, positions below a bound."""
    ours, theirs = [], []
    for below in BELOW:
        positions = draw(rng, 0, below - 1, 12_000)
        true = in_layout(true_waves(positions, geometric_turns(128, 10_000.0)), 128, "interleaved")
        ours.append(worst(pe.sinusoidal(positions, 128), true))
        theirs.append(worst(textbook(positions, 128, 10_000.0), true))
    names = [f"{b:,}" if b < 10**6 else f"10^{len(str(b)) - 1}" for b in BELOW[:-1]] + ["2^31"]
    print("Worst error by length (width 128, base 10,000):\n")
    print(
        markdown(
            ["positions below", *names],
            [["textbook, float32", *(f"{e:.0e}" for e in theirs)], ["posenc_jax", *(f"{e:.0e}" for e in ours)]],
        )
    )
    result["by_length"] = {"below": BELOW, "posenc_jax": ours, "textbook": theirs}
    result["bounds"]["encoding, width 128, by length"] = (max(ours), BOUND)


def moved(rng, result):
    """PE(p + k) = M_k PE(p), by the matrix and without it."""
    matrix, shifted = 0.0, 0.0
    for dim, base, count in ((2, 10_000.0, 4000), (64, 1e7, 2000), (128, 10_000.0, 1000), (512, 500_000.0, 100)):
        f = pe.geometric(dim, base)
        ends = rng.integers(-(2**31), 2**31, (2, count))
        ends[:, :3] = [[-(2**31), 2**31 - 1, -(2**31)], [-1, 2**30, -(2**31)]]
        p, q = ends
        keep = np.abs(q - p + 0.5) < 2**31  # k must fit, too
        p, k, q = (x[keep].astype(np.int32) for x in (p, q - p, q))
        for layout in ("interleaved", "half"):
            start, end = (np.asarray(pe.sinusoidal(x, f, layout=layout)) for x in (p, q))
            m = pe.rotation_matrix(k, f, layout=layout)
            found = jnp.matmul(m, jnp.asarray(start)[..., None], precision="highest")[..., 0]
            matrix = max(matrix, worst(found, end.astype(np.float64)))
            shifted = max(shifted, worst(pe.shift(start, k, f, layout=layout), end.astype(np.float64)))
    result["bounds"]["PE(p+k) = rotation_matrix(k) PE(p), every int32 p, k, p+k"] = (matrix, MOVED_BOUND)
    result["bounds"]["PE(p+k) = shift(PE(p), k)"] = (shifted, MOVED_BOUND)


def floats(rng, result):
    """Float positions, and frequencies that are arrays."""
    exponents = rng.uniform(-24, 31, 3000)
    x = (rng.choice([-1, 1], 3000) * 2.0**exponents).astype(np.float32)
    x = x[np.abs(x) < 2.0**31]
    p = np.concatenate([draw(rng, 0, 2**31 - 1, 1000), draw(rng, -(2**31), -1, 1000)])
    learned = (rng.choice([-1, 1], 64) * 10.0 ** rng.uniform(-7, 0, 64)).astype(np.float32)
    fast = (rng.choice([-1, 1], 64) * 10.0 ** rng.uniform(0, 9, 64)).astype(np.float32)
    medium = fast[np.abs(fast) < 1e6]

    cases = {
        "float positions, below 2^31 in size": (x, 128, geometric_turns(128, 10_000.0)),
        "array frequencies, ω up to 1, every int32 position": (p, jnp.array(learned), float_turns(learned)),
        "array frequencies, ω from 1 to 10^9, every int32 position": (p, jnp.array(fast), float_turns(fast)),
        "array frequencies, ω up to 1, float positions": (x, jnp.array(learned), float_turns(learned)),
        "array frequencies, ω from 1 to 10^6, float positions": (x, jnp.array(medium), float_turns(medium)),
    }
    for name, (positions, f, turns) in cases.items():
        found = pe.sinusoidal(positions, f, layout="half")
        result["bounds"][name] = (worst(found, np.concatenate(true_waves(positions, turns), -1)), BOUND)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    result = {"jax": jax.__version__, "device": str(jax.devices()[0].device_kind), "encoding": [], "bounds": {}}
    rng = np.random.default_rng(options.seed)
    for stage in (by_length, by_width, moved, floats):
        stage(rng, result)
        print(flush=True)
    bounds = result["bounds"]
    rows = [[n, f"{e:.1e}", f"{b:.0e}", "met" if e <= b else "MISSED"] for n, (e, b) in bounds.items()]
    print(f"Against the bounds (JAX {result['jax']}, {result['device']}):\n")
    print(markdown(["", "worst", "bound", ""], rows))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)
    return 0 if all(e <= b for e, b in bounds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
