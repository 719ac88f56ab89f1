"""The frequencies ω of pairs in radians a position, of 70 digits, and the coordinate that turns each pair."""

import inspect
from typing import Any

import mpmath
import numpy as np

# Reducing a phase of 2³¹ radians loses ten digits, so 50 digits are kept by working with 70.
MP = mpmath.MPContext()
MP.dps = 70
Real = Any  # a number of MP, or one that it takes at its exact value


def geometric(dim, base, endpoint=False):
    """base^(−2i/dim), or down to exactly 1/base; an odd width has a last pair of which the cosine is dropped."""
    pairs = (dim + 1) // 2
    exponents = [MP.mpf(i) / max(pairs - 1, 1) if endpoint else MP.mpf(2 * i) / dim for i in range(pairs)]
    return [MP.mpf(base) ** -e for e in exponents]


def floats(omegas):
    """The same in float64."""
    return np.array([float(w) for w in omegas])


def exact_turns(omegas):
    """In units of 2⁻¹²⁸ turn; floats are taken at their exact value."""
    scale = MP.mpf(2) ** 128 / (2 * MP.pi)
    return [MP.mpf(w) * scale for w in omegas]


def turns(omegas):
    """`exact_turns`, rounded to the nearest integers."""
    return tuple(int(MP.nint(t)) for t in exact_turns(omegas))


def wavelengths(omegas):
    """Positions per turn, in float64."""
    return floats(2 * MP.pi / w for w in omegas)


# Scalings

# By name, as the conformance vectors have it: ω of each pair, and the amplitude.
SCALINGS = {}
# What tests try, by label: width, base, and settings with the name as their type; and which of these the vectors have.
SCALED = {}
SHARED = []


def scaling(tried, shared=True):
    """Enters a formula and what it is tried with, and gives its ω alone; vectors try what other libraries share.

    A `length` of None stands for the last position and one more.
    """

    def enter(formula):
        name = formula.__name__
        SCALINGS[name] = formula
        SCALED.update((label, (width, base, {"type": name} | rest)) for label, (width, base, rest) in tried.items())
        SHARED.extend(tried if shared else ())
        return lambda *arguments, **settings: formula(*arguments, **settings)[0]

    return enter


@scaling({"linear-8": (32, 10000, dict(factor=8)), "linear-2.5": (32, 10000, dict(factor=2.5))})
def linear(dim, base, factor):
    return [w / MP.mpf(factor) for w in geometric(dim, base)], MP.mpf(1)


@scaling({"ntk-4": (32, 10000, dict(factor=4))})
def ntk(dim, base, factor):
    stretched = MP.mpf(base) * MP.mpf(factor) ** (MP.mpf(dim) / (dim - 2))
    return geometric(dim, stretched), MP.mpf(1)


@scaling({"dynamic-2": (32, 10000, dict(factor=2, original_max=2048, length=None))})
def dynamic(dim, base, factor, original_max, length):
    s, longest = MP.mpf(factor), max(length, original_max)
    return SCALINGS["ntk"](dim, base, s * longest / original_max - (s - 1))


dynamic_ntk = dynamic  # as the library calls it


def temperature(factor, mscale=1):
    """YaRN's amplitude."""
    return MP.mpf(1) if factor <= 1 else MP.mpf(float(mscale)) * MP.log(factor) / 10 + 1


@scaling(
    {
        "yarn-4": (32, 1000000, dict(factor=4, original_max=32768)),
        "yarn-40": (64, 10000, dict(factor=40, original_max=4096, beta_fast=32, beta_slow=1, attention_factor=1.0)),
        "yarn-32-untruncated": (64, 150000, dict(factor=32, original_max=4096, truncate=False)),
    }
)
def yarn(dim, base, factor, original_max, beta_fast=32, beta_slow=1, truncate=True, attention_factor=None):
    """Pairs are kept below a ramp, divided by the factor above it, and mixed on it."""

    def pair_of(beta):
        """The pair, a real number, that makes `beta` turns in the original length."""
        return dim * MP.log(original_max / (MP.mpf(beta) * 2 * MP.pi)) / (2 * MP.log(base))

    low, high = pair_of(beta_fast), pair_of(beta_slow)
    if truncate:
        low, high = MP.floor(low), MP.ceil(high)
    low, high = max(low, MP.mpf(0)), min(high, MP.mpf(dim - 1))
    if high == low:
        high += MP.mpf(1) / 1000
    divided = [_clip((i - low) / (high - low)) for i in range(dim // 2)]
    amplitude = temperature(factor) if attention_factor is None else MP.mpf(attention_factor)
    return [w * (1 - g + g / MP.mpf(factor)) for w, g in zip(geometric(dim, base), divided, strict=True)], amplitude


def longrope_amplitude(factor, original_max):
    return MP.mpf(1) if factor <= 1 else MP.sqrt(1 + MP.log(factor) / MP.log(original_max))


_lists = dict(short_factor=[1 + i / 32 for i in range(16)], long_factor=[1 + i * i / 4 for i in range(16)])


@scaling({"longrope-32": (32, 10000, dict(original_max=4096, factor=32, length=None, **_lists))})
def longrope(dim, base, short_factor, long_factor, original_max, factor, length, attention_factor=None):
    divisors = long_factor if length > original_max else short_factor
    omegas = [w / MP.mpf(float(d)) for w, d in zip(geometric(dim, base), divisors, strict=True)]
    given = attention_factor is not None
    return omegas, MP.mpf(attention_factor) if given else longrope_amplitude(factor, original_max)


@scaling({"llama3-8": (64, 500000, dict(factor=8, low_freq_factor=1, high_freq_factor=4, original_max=8192))})
def llama3(dim, base, factor, low_freq_factor, high_freq_factor, original_max):
    """Pairs are kept above `high_freq_factor` turns in the original length, and divided below `low_freq_factor`."""
    s, low, high = MP.mpf(factor), MP.mpf(low_freq_factor), MP.mpf(high_freq_factor)

    def kept(w):
        made = original_max * w / (2 * MP.pi)
        return MP.mpf(made > low) if high == low else _clip((made - low) / (high - low))

    return [w * ((1 - kept(w)) / s + kept(w)) for w in geometric(dim, base)], MP.mpf(1)


@scaling(
    {
        "proportional-0.25": (64, 1000000, dict(fraction=0.25)),
        "proportional-0.5-by-8": (32, 10000, dict(fraction=0.5, factor=8)),
    }
)
def proportional(dim, base, fraction, factor=1):
    """The first pairs turn, as many as a fraction of the features has; the product is rounded as transformers does."""
    turning = int(fraction * dim // 2)
    return [w / MP.mpf(factor) * (i < turning) for i, w in enumerate(geometric(dim, base))], MP.mpf(1)


@scaling(
    {
        "riflex-hunyuan": (16, 256, dict(length=66, pair=3)),
        "riflex-cogvideox": (16, 10000, dict(length=25, pair=1)),
        "riflex-unchanged": (16, 10000, dict(length=20, pair=1)),
    },
    shared=False,
)
def riflex(dim, base, length, pair):
    """Pair `pair` makes 0.9 turns in the length if that is longer than its period, a rounded number of frames."""
    omegas = geometric(dim, base)
    if length > MP.nint(2 * MP.pi / omegas[pair]):
        omegas[pair] = MP.mpf(9) / 10 * 2 * MP.pi / length
    return omegas, MP.mpf(1)


def _clip(x):
    return min(max(x, MP.mpf(0)), MP.mpf(1))


# Coordinates


def axes_of(sections, interleaved=False):
    """The coordinate of each pair: one section after the other, or dealt out as Qwen3-VL does.

    That is the first coordinate everywhere, and strided slices of the others over it.
    """
    if not interleaved:
        return np.repeat(np.arange(len(sections)), sections)
    axes = np.zeros(sum(sections), int)
    for axis in range(1, len(sections)):
        axes[axis : sections[axis] * len(sections) : len(sections)] = axis
    return axes


# As Hugging Face configs write them


def call_of(rope, head_dim, max_length, length):
    """Width, base, and settings with their type, of a flat `rope_parameters`; `length` is max(position) + 1."""
    kind, share = rope["rope_type"], rope.get("partial_rotary_factor", 1.0)
    width = head_dim if kind == "proportional" else int(head_dim * share)
    original = max_length if kind == "dynamic" else rope.get("original_max_position_embeddings", max_length)
    factor = rope.get("alpha") or rope.get("factor")
    if factor is None and kind in ("yarn", "longrope"):
        factor = max_length / original
    known = {**rope, "factor": factor, "original_max": original, "length": length or 1, "fraction": share}
    if kind == "yarn" and all(mscales := [rope.get("mscale"), rope.get("mscale_all_dim")]):
        amplitude = float(temperature(factor, mscales[0]) / temperature(factor, mscales[1]))
        known["attention_factor"] = known.get("attention_factor") or amplitude
    name = "ntk" if "alpha" in rope else kind
    taken = {k: known.get(k) for k in inspect.signature(SCALINGS[name]).parameters} if name in SCALINGS else {}
    return width, rope["rope_theta"], {"type": name} | {k: v for k, v in taken.items() if v or v is False}


def from_parameters(rope, head_dim, max_length, length=None):
    """ω of each pair and the amplitude, of a flat `rope_parameters`."""
    width, base, settings = call_of(rope, head_dim, max_length, length)
    if (name := settings.pop("type")) == "default":
        return geometric(width, base), MP.mpf(1)
    return SCALINGS[name](width, base, **settings)


def axes_from_parameters(rope, pairs):
    """The coordinate of each pair, of a flat `rope_parameters`."""
    if not rope.get("mrope_section"):
        return np.zeros(pairs, int)
    return axes_of(rope["mrope_section"], rope.get("mrope_interleaved", False)) % 3
