"""How exact rotary embeddings are: `python benchmarks/rotary_error.py [--json PATH]`.

Compares rotated pairs with the truth of `reference.py`, as `accuracy.py` does for the encoding, and scores q·k at
positions from 3 with those from 2,000,000,000. Exits with status 1 if a bound is missed.
"""

import argparse
import functools
import json
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from accuracy import RANGES, draw
from formulas import BASE, halves, phases
from reference import BITS, check_sample, geometric_turns, markdown, progress, true_waves

import posenc_jax as pe

LAYOUTS = ("half", "interleaved")
BOUND, SCORES = 3e-7, 1e-5
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max": 8192}
LONGROPE = {"original_max": 4096, "factor": 32.0, "length": 131_072}
# The truth of a scaled spectrum starts from the library's own frequencies, to 2⁻¹²⁸ cycle: these have their own tests.
SPECTRA = {
    **{f"width {dim}, base {base:,.0f}": (dim, base) for dim, base in ((2, 1e4), (64, 1e4), (128, 5e5), (512, 1e7))},
    "linear": pe.linear_scaling(128, 4.0),
    "NTK": pe.ntk(128, 10_000.0, 8.0),
    "dynamic NTK": pe.dynamic_ntk(128, 10_000.0, 4.0, 4096, 20_000),
    "YaRN": pe.yarn(64, 150_000.0, 32.0, 4096, truncate=False),
    "LongRoPE": pe.longrope(96, [1.0] * 48, np.linspace(1, 60, 48), **LONGROPE),
    "Llama 3": pe.llama3(pe.geometric(128, 5e5), 8.0, **LLAMA3),
    "proportional": pe.proportional(128, 1e6, 0.25),
}


def textbook(x, positions=None, base=BASE):
    """The usual formula: phases in float32, halves concatenated."""
    positions = jnp.arange(x.shape[-3]) if positions is None else positions
    phase = phases(positions, x.shape[-1], base)[..., None, :]
    return halves(x, jnp.cos(phase), jnp.sin(phase)).astype(x.dtype)


def pairs_of(x, layout):
    x, half = np.asarray(x, np.float64), x.shape[-1] // 2
    return x[..., :half] + 1j * x[..., half:] if layout == "half" else x[..., 0::2] + 1j * x[..., 1::2]


def worst_pair(found, x, rotation, layout):
    """The largest error of a pair over its length."""
    true = pairs_of(x, layout) * rotation
    return float(np.max(np.abs(pairs_of(found, layout) - true) / np.abs(true)))


def pairs(rng):
    """Each spectrum in each range of positions, and the number of 16-bit results unlike the float32 result rounded."""
    rows, most, textbooks, mismatches = [], 0.0, 0.0, 0
    for name, spectrum in SPECTRA.items():
        progress(f"pairs, {name}")
        geometric = isinstance(spectrum, tuple)
        f = pe.geometric(*spectrum) if geometric else spectrum
        turns = geometric_turns(*spectrum) if geometric else [t << (BITS - 128) for t in f.cycles]
        worst = []
        for low, high in RANGES.values():
            positions = draw(rng, low, high, max(150, 200_000 // f.dim))
            x = rng.standard_normal((len(positions), f.dim), np.float32)
            waves = true_waves(positions, turns)
            if geometric and (check := check_sample(positions, *spectrum, waves, 10, rng)) > 1e-15:
                raise AssertionError(f"the reference differs from mpmath at 40 digits by {check}")
            rotation, errors = f.attention_factor * (waves[1] + 1j * waves[0]), []
            for layout in LAYOUTS:
                rotate = lambda x, p=positions, f=f, lay=layout: np.asarray(  # noqa: E731
                    pe.rotary(x, p, f, layout=lay, head_axis=None)
                )
                errors.append(worst_pair(rotate(x), x, rotation, layout))
                for dtype in (ml_dtypes.bfloat16, np.float16):
                    short, long = rotate(x.astype(dtype)), rotate(x.astype(dtype).astype(np.float32))
                    mismatches += int((short.view(np.uint16) != long.astype(dtype).view(np.uint16)).sum())
            worst.append(max(errors))
            if geometric:
                plain = textbook(jnp.asarray(x)[:, None], jnp.asarray(positions), spectrum[1])[:, 0]
                textbooks = max(textbooks, worst_pair(plain, x, rotation, "half"))
        most = max(most, *worst)
        rows.append([name, *(f"{error:.1e}" for error in worst)])
    print("Worst error of `posenc_jax.rotary`, both layouts, as a multiple of the pair's length:\n")
    print(markdown(["frequencies", *RANGES], rows) + "\n")
    return {
        "pairs, every int32 position, over their length": (most, BOUND),
        "the same, textbook in float32": (textbooks, None),
        "bfloat16 and float16 results unlike float32 rounded": (mismatches, 0),
    }


def scores(rng):
    """How far scores q·k, which depend on p − q alone, are apart at offsets from 3 and from 2,000,000,000."""
    q, k = rng.standard_normal((2, 64, 8, 128), np.float32)
    size, figures = np.einsum("ih,jh->hij", *(np.linalg.norm(v, axis=-1) for v in (q, k))), {}
    for name, rotate in (
        ("posenc_jax", functools.partial(pe.rotary, head_axis=-2)),
        ("textbook in float32", jax.jit(textbook)),
    ):

        def at(start, rotate=rotate):
            # Every query of 64 positions with every key, by offset: the score of (i, j) at i − j.
            positions = np.arange(start, start + 64, dtype=np.int32)
            return np.einsum("ihd,jhd->hij", *(np.asarray(rotate(v, positions), np.float64) for v in (q, k)))

        near, bound = at(3), SCORES if name == "posenc_jax" else None
        apart = np.abs(at(2_000_000_000) - near)
        figures[f"scores at 3 and at 2,000,000,000, over |q||k|, {name}"] = float(np.max(apart / size)), bound
        figures[f"the same, over the scores' standard deviation, {name}"] = float(np.max(apart) / np.std(near)), bound
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    errors = {**pairs(rng), **scores(rng)}
    verdicts = {name: "" if bound is None else "met" if e <= bound else "MISSED" for name, (e, bound) in errors.items()}
    rows = [
        [name, f"{error:.1e}", "" if bound is None else f"≤ {bound:.0e}", verdicts[name]]
        for name, (error, bound) in errors.items()
    ]
    print(markdown(["largest error", "", "target", ""], rows) + "\n", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"jax": jax.__version__, "errors": errors}, file, indent=1)
    return 1 if "MISSED" in verdicts.values() else 0


if __name__ == "__main__":
    sys.exit(main())
