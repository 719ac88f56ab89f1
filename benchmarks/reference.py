"""The true values, beside which the benchmarks measure errors.

They are computed from scratch and share nothing with the library: mpmath gives ω/2π to 256 binary digits, integers
of any size give the fraction of a turn at a position without any rounding, and float64 the sine and cosine of a phase
reduced to an eighth of a turn, within 3e-16. `precise` is mpmath throughout, at 40 digits, to check that on a sample.
"""

import functools
import json
import platform
import re
import sys
from pathlib import Path

import mpmath
import numpy as np

BITS = 256


@functools.cache
def geometric_turns(dim, base, endpoint=False):
    """ω_i/2π of a geometric spectrum as integers in units of 2⁻²⁵⁶; `endpoint` if it ends at 1/base."""
    with mpmath.workdps(100):
        pairs = (dim + 1) // 2
        powers = [mpmath.mpf(-i) / (pairs - 1) if endpoint else mpmath.mpf(-2 * i) / dim for i in range(pairs)]
        return [_fixed(mpmath.mpf(base) ** power) for power in powers]


def float_turns(angular):
    """The same of the exact values of floats."""
    with mpmath.workdps(100):
        return [_fixed(mpmath.mpf(float(w))) for w in angular]


def _fixed(angular):
    return int(mpmath.nint(angular / (2 * mpmath.pi) * mpmath.mpf(2) ** BITS))


def true_waves(positions, turns):
    """Sine and cosine, float64 (positions, pairs), at integer positions or the exact values of float ones."""
    numerators, scale = positions, 0
    if np.issubdtype(positions.dtype, np.floating):
        # x = n·2⁻⁹⁶ exactly for float32 of at least 2⁻⁷², and within 2⁻⁹⁷ below.
        scale = 96
        numerators = [int(mpmath.nint(mpmath.ldexp(mpmath.mpf(float(x)), scale))) for x in positions]
    product = np.array([int(n) for n in numerators], object)[:, None] * np.array(turns, object)[None]
    phase = (product >> (BITS + scale - 64) & (2**64 - 1)).astype(np.uint64)  # 2⁻⁶⁴ turn
    quadrant = (phase + np.uint64(2**61)) >> np.uint64(62)
    radians = (phase - (quadrant << np.uint64(62))).view(np.int64) * (2 * np.pi * 2.0**-64)
    sine, cosine = np.sin(radians), np.cos(radians)
    odd = quadrant % 2 == 1
    first, second = np.where(odd, cosine, sine), np.where(odd, sine, cosine)
    return np.where(quadrant % 4 >= 2, -first, first), np.where((quadrant + 1) % 4 >= 2, -second, second)


def check_sample(positions, dim, base, waves, count, rng):
    """The greatest difference of `waves` from mpmath's at `count` places."""
    worst = 0.0
    with mpmath.workdps(60):  # 10 for the whole turns, 40 and more for the fraction
        for _ in range(count):
            row, pair = int(rng.integers(len(positions))), int(rng.integers((dim + 1) // 2))
            phase = int(positions[row]) * mpmath.mpf(base) ** (mpmath.mpf(-2 * pair) / dim)
            for true, wave in ((mpmath.sin(phase), waves[0]), (mpmath.cos(phase), waves[1])):
                worst = max(worst, abs(float(true - mpmath.mpf(float(wave[row, pair])))))
    return worst


def in_layout(waves, dim, layout):
    """Sine and cosine of each pair as the features of an encoding."""
    stacked = np.stack(waves, -1 if layout == "interleaved" else -2)
    return stacked.reshape(len(stacked), -1)[:, :dim]


def markdown(head, rows):
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def compact(value, indent="\n"):
    """JSON with floats of eight digits, in which what fits into 280 characters takes one line."""
    if not isinstance(value, dict | list):
        return json.dumps(float(f"{value:.8g}") if isinstance(value, float) else value)
    inner, (start, end) = indent + " ", "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, dict):
        items = [f"{json.dumps(name)}: {compact(item, inner)}" for name, item in value.items()]
    else:
        items = [compact(item, inner) for item in value]
    line = start + ", ".join(items) + end
    if len(line) < 280 and "\n" not in line:
        return line
    return start + ",".join(inner + item for item in items) + indent + end


def slug(name):
    """A name in small letters, digits and hyphens, for files."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def progress(text, end="\n"):
    if sys.stderr.isatty():
        print(f"\r\033[K  … {text}", file=sys.stderr, end=end, flush=True)
    elif end == "\n":
        print(f"  … {text}", file=sys.stderr, flush=True)


# Families and models whose name does not tell their generation.
GENERATIONS = {
    ("AuthenticAMD", 23): {"Zen": range(0x30), "Zen 2": range(0x30, 0x100)},
    ("AuthenticAMD", 25): {
        "Zen 4": (*range(0x10, 0x20), *range(0x60, 0x80), *range(0xA0, 0xB0)),
        "Zen 3": (*range(0x10), *range(0x20, 0x60)),
    },
    ("AuthenticAMD", 26): {"Zen 5": range(0x100)},
    ("GenuineIntel", 6): {
        "Skylake or Cascade Lake": (85,),
        "Ice Lake": (106, 108),
        "Sapphire Rapids": (143,),
        "Granite Rapids": (173, 174),
        "Emerald Rapids": (207,),
    },
}


def processor(path="/proc/cpuinfo"):
    """The processor's name and its generation: "AMD EPYC (Zen 4)"; else its family and model."""
    try:
        lines = [line.split(":", 1) for line in Path(path).read_text().split("\n\n")[0].splitlines() if ":" in line]
    except OSError:
        return platform.processor()
    of = {name.strip(): value.strip() for name, value in lines}
    if "cpu family" not in of:  # not an x86
        return of.get("model name") or platform.processor() or platform.machine()
    family, model = int(of["cpu family"]), int(of["model"])
    names = GENERATIONS.get((of.get("vendor_id"), family), {})
    known = next((name for name, models in names.items() if model in models), f"family {family}, model {model}")
    return f"{of['model name']} ({known})"
