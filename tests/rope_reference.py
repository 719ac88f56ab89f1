"""What transformers computes, and what it should: recorded rotations, and the formulas in mpmath.

Shares nothing with the library but the words in which a configuration is written.
"""

import json
from pathlib import Path

import numpy as np
import oracle

DATA = Path(__file__).parent / "data"
MP = oracle.WORKING


def read_cases(name):
    """The recorded cases of a file."""
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))["cases"]


def read_rotations():
    """The recorded queries and keys: a description of each model, its layers holding arrays."""
    with np.load(DATA / "hf_rotations.npz", allow_pickle=False) as file:
        arrays = dict(file)
    about = json.loads(str(arrays.pop("about")))
    for name, model in about["models"].items():
        model.update({key: arrays[f"{name}/{key}"] for key in ("positions", "scale_positions")})
        for layer in model["layers"]:
            prefix = f"{name}/{layer['index']}/"
            layer.update({k.removeprefix(prefix): x for k, x in arrays.items() if k.startswith(prefix)})
            for part in "qk":  # what nothing changed is stored once
                layer.setdefault(f"{part}_rotated", layer[part])
                layer.setdefault(f"{part}_attended", layer[f"{part}_rotated"])
    return about


def temperature(factor, mscale):
    return MP.mpf(1) if factor <= 1 else MP.mpf("0.1") * mscale * MP.log(factor) + 1


def spectrum(rope, head_dim, max_length, length=None):
    """ω of every pair and the amplitude, as mpf, from a flat `rope_parameters`; `length` is max(position) + 1."""
    kind, base = rope["rope_type"], MP.mpf(rope["rope_theta"])
    share = rope.get("partial_rotary_factor", 1.0)
    width = head_dim if kind == "proportional" else int(head_dim * share)
    exponents = [MP.mpf(2 * i) / width for i in range(width // 2)]
    omega, amplitude = [base**-e for e in exponents], MP.mpf(1)
    factor = MP.mpf(rope["factor"]) if rope.get("factor") is not None else None
    original = rope.get("original_max_position_embeddings", max_length)
    if factor is None and kind in ("yarn", "longrope"):
        factor = MP.mpf(max_length) / original
    if kind == "linear":
        omega = [w / factor for w in omega]
    elif kind == "dynamic":
        if "alpha" in rope:
            base *= MP.mpf(rope["alpha"]) ** (MP.mpf(width) / (width - 2))
        else:
            reach = MP.mpf(max(length or 0, max_length)) / max_length
            base *= (factor * reach - (factor - 1)) ** (MP.mpf(width) / (width - 2))
        omega = [base**-e for e in exponents]
    elif kind == "yarn":
        low, high = (
            width * MP.log(original / (beta * 2 * MP.pi)) / (2 * MP.log(base))
            for beta in (rope.get("beta_fast") or 32, rope.get("beta_slow") or 1)
        )
        if rope.get("truncate", True):
            low, high = MP.floor(low), MP.ceil(high)
        low, high = max(low, MP.mpf(0)), min(high, MP.mpf(width - 1))
        high += MP.mpf(1) / 1000 if low == high else 0
        ramp = [min(max((i - low) / (high - low), MP.mpf(0)), MP.mpf(1)) for i in range(width // 2)]
        omega = [w * (1 - g) + w / factor * g for w, g in zip(omega, ramp, strict=True)]
        mscale, all_dim = rope.get("mscale"), rope.get("mscale_all_dim")
        amplitude = temperature(factor, mscale) / temperature(factor, all_dim) if mscale and all_dim else None
        amplitude = temperature(factor, 1) if amplitude is None else amplitude
    elif kind == "longrope":
        long = length is not None and length > original
        omega = [w / x for w, x in zip(omega, rope["long_factor" if long else "short_factor"], strict=True)]
        amplitude = MP.mpf(1) if factor <= 1 else MP.sqrt(1 + MP.log(factor) / MP.log(original))
    elif kind == "llama3":
        low, high = MP.mpf(rope["low_freq_factor"]), MP.mpf(rope["high_freq_factor"])  # a float difference is rounded
        kept = [(original * w / (2 * MP.pi) - low) / (high - low) for w in omega]
        kept = [min(max(s, MP.mpf(0)), MP.mpf(1)) for s in kept]
        omega = [(1 - s) * w / factor + s * w for w, s in zip(omega, kept, strict=True)]
    elif kind == "proportional":
        turning = int(share * head_dim // 2)
        omega = [w / (factor or 1) * (i < turning) for i, w in enumerate(omega)]
    else:
        assert kind == "default", kind
    if kind in ("yarn", "longrope") and rope.get("attention_factor") is not None:
        amplitude = MP.mpf(rope["attention_factor"])
    return omega, amplitude


def axes_of(rope, pairs):
    """The coordinate of every pair, from the reference's own ways of dealing them out."""
    sections = rope.get("mrope_section")
    if not sections:
        return np.zeros(pairs, int)
    if rope.get("mrope_interleaved"):
        axes = np.zeros(pairs, int)
        for axis in (1, 2):
            axes[axis : 3 * sections[axis] : 3] = axis
        return axes
    return np.repeat([i % 3 for i in range(len(sections))], sections)


def split(x, pairs, layout, part):
    """The two features of each pair (..., pairs), float64, and the features that do not turn."""
    width = 2 * pairs
    start = 0 if part == "first" else x.shape[-1] - width
    turned, rest = x[..., start : start + width], np.delete(x, np.s_[start : start + width], axis=-1)
    a, b = (turned[..., :pairs], turned[..., pairs:]) if layout == "half" else (turned[..., 0::2], turned[..., 1::2])
    return a.astype(np.float64), b.astype(np.float64), rest


def waves(positions, omega, axes):
    """True sine and cosine of every pair at positions (batch, seq) or (batch, seq, coordinates), float64."""
    coordinates = positions[..., None] if positions.ndim == 2 else positions
    every = [oracle.waves(p.ravel(), omega) for p in np.moveaxis(coordinates, -1, 0)]
    choose = lambda i: np.stack([wave[i] for wave in every])[axes, :, np.arange(len(omega))].T  # noqa: E731
    return tuple(choose(i).reshape(*coordinates.shape[:-1], len(omega)) for i in (0, 1))


def rotate(a, b, sine, cosine, amplitude):
    """The two features (batch, heads, seq, pairs) rotated in float64."""
    sine, cosine = (float(amplitude) * x[:, None] for x in (sine, cosine))
    return a * cosine - b * sine, b * cosine + a * sine


def join(a, b, rest, pairs, layout, part):
    """The inverse of `split`."""
    turned = np.concatenate([a, b], -1) if layout == "half" else np.stack([a, b], -1).reshape(*a.shape[:-1], -1)
    return np.concatenate([turned, rest] if part == "first" else [rest, turned], axis=-1)


def distance(x, y, size, pairs, layout, part):
    """max |x − y| / |pair| for each pair, where `size` is |pair|.

    A feature that does not turn must be the same bit for bit: else infinity.
    """
    (*turned_x, rest_x), (*turned_y, rest_y) = (split(z, pairs, layout, part) for z in (x, y))
    if not np.array_equal(rest_x, rest_y):
        return np.full(pairs, np.inf)
    a, b = (u - v for u, v in zip(turned_x, turned_y, strict=True))
    return np.max(np.hypot(a, b) / size, axis=(0, 1, 2))
