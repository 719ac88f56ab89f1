"""The table of all public functions: a valid call of each, for the tests of properties that all functions share.

A letter names each axis of an array:

- Devices may split b batch, s sequence, t sequence of keys, h heads, f features (SHARED).
- Each device needs the whole of d features, p pairs, a coordinates, c matrices, w tables, q queries, k keys (WHOLE).
- r table rows, e features, and the small axes o and l are tested for neither.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posenc_jax as pe
from helpers.biases import BIASES
from helpers.spectra import SCALINGS
from oracles import cameras, rotations
from posenc_jax import hf

SHARED, WHOLE = "bsthf", "dpacwqk"


@dataclasses.dataclass(frozen=True)
class Named:
    """An array and the names of its axes."""

    value: np.ndarray
    axes: str


class Row:
    """A valid call of a public function, and what tests need to know of it."""

    def __init__(
        self, function: Callable[..., Any], result: Any, formula: Any = None, *, exact: bool = True, **given: Any
    ) -> None:
        self.function, self.given = function, given  # given: arguments by name; arrays of the tests are Named
        self.result = result  # the axes of the result, or of each of several results
        self.formula = formula  # the same function of the same arguments, in float64 NumPy
        self.exact = exact  # whether every program gives the same bits: it has no sum that compilers may reorder
        leaves, self._tree = jax.tree.flatten_with_path(given)
        self._leaves = [leaf for _, leaf in leaves]
        # Of the Named leaves: where they are among all leaves, and the argument, the array and the axes of each
        self._at = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, Named)]
        self.names = [leaves[i][0][0].key for i in self._at]
        self.arrays = [self._leaves[i].value for i in self._at]
        self.axes = [self._leaves[i].axes for i in self._at]

    def filled(self, arrays: Any) -> dict[str, Any]:
        """All arguments by name, with these arrays in place of the Named ones."""
        leaves = dict(enumerate(self._leaves)) | dict(zip(self._at, arrays, strict=True))
        return self._tree.unflatten(leaves.values())

    @property
    def arguments(self) -> dict[str, Any]:
        return self.filled(self.arrays)

    def __call__(self, *arrays: Any) -> Any:
        return self.function(**self.filled(arrays))

    @property
    def floats(self) -> list[np.ndarray]:
        """The float32 arrays, by which tests take derivatives."""
        return [x for x in self.arrays if x.dtype == np.float32]

    def with_floats(self, floats: Any) -> list[Any]:
        """All arrays, with these in place of the float32 ones."""
        remaining = iter(floats)
        return [next(remaining) if x.dtype == np.float32 else x for x in self.arrays]

    def truth(self, floats: Any) -> Any:
        """The result of the formula where the float32 arrays are these."""
        return self.formula(**self.filled(self.with_floats(floats)))


def _angles(positions: Any, frequencies: Any) -> np.ndarray:
    """Angles (batch, seq, heads or 1, pairs) from frequencies (pairs,) or (heads, axes, pairs)."""
    if np.ndim(frequencies) == 1:
        return positions[..., None, None] * frequencies
    return np.einsum("bsa,haf->bshf", positions, frequencies)


def _rotated(x: Any, positions: Any, frequencies: Any, layout: str = "half", part: str = "first", **given: Any) -> Any:
    """The formula of `rotary`."""
    sign = -1 if given.get("inverse") else 1
    return rotations.rotate_by(x, sign * _angles(positions, frequencies), layout, part)


def _decayed(query: Any, key: Any, positions: Any, frequencies: Any, scale_base: float, **_: Any) -> Any:
    """The formula of `xpos`."""
    angles = _angles(positions, frequencies)
    distance = np.broadcast_to(positions[..., None], query.shape[:-1])
    each = (query, distance), (key, -distance)
    return tuple(rotations.xpos(x, np.sin(angles), np.cos(angles), d, "half", scale_base) for x, d in each)


def _polar(x: Any, positions: Any, frequencies: Any, phase: Any, **_: Any) -> np.ndarray:
    """The formula of `pope`."""
    angles = _angles(positions, frequencies) + phase
    return rotations.pope(x, np.sin(angles), np.cos(angles), "half")


def _camera(m: Any, turns: Any, shift: Any) -> Any:
    """A pose (..., 4, 4): rotations by two angles and a shift (..., 3); m is NumPy or jax.numpy."""
    (a, b), zero = (turns[..., i] for i in range(2)), 0 * turns[..., 0]
    (c, s), (d, t) = ((m.cos(x), m.sin(x)) for x in (a, b))
    rows = [[c, -s * d, s * t], [s, c * d, -c * t], [zero, t, d]]
    rows = [[*row, shift[..., i]] for i, row in enumerate(rows)] + [[zero, zero, zero, zero + 1]]
    return m.stack([m.stack(row, -1) for row in rows], -2)


def _lens(m: Any, focal: Any) -> Any:
    """Intrinsics (3, 3): two focal lengths, a skew and a principal point; m is NumPy or jax.numpy."""
    f, s, c, g, d = (focal[i] for i in range(5))
    zero = 0 * f
    return m.stack([m.stack(row) for row in ([f, s, c], [zero, g, d], [zero, zero, zero + 1])])


def _in_view(x: Any, turns: Any, shift: Any, focal: Any, role: Any) -> jax.Array:
    """`prope` as a function of what its cameras are made of, so that every array has a derivative."""
    view = {"role": role, "head_axis": -2, "image_size": (3, 4), "width": 4}
    return pe.prope(x, _camera(jnp, turns, shift), _lens(jnp, focal), **view)


def _of_view(x: Any, turns: Any, shift: Any, focal: Any, role: str) -> np.ndarray:
    """The formula of `_in_view`."""
    projection = cameras.projection(_camera(np, turns, shift), _lens(np, focal), (3, 4))
    return cameras.transformed(x, cameras.matrix(role, projection), 4)


def _encoded(positions: Any, frequencies: Any) -> np.ndarray:
    """The formula of `sinusoidal`."""
    angles = positions[..., None] * frequencies
    return rotations.features(np.sin(angles), np.cos(angles), "interleaved")


def _cos_sin(**given: Any) -> tuple[jax.Array, jax.Array]:
    """`cos_sin` with its arrays as a plain tuple."""
    cosine, sine = pe.cos_sin(**given)
    return cosine, sine


def _by_cos_sin(x: Any, cos_sin: Any) -> jax.Array:
    return pe.rotary(x, cos_sin=pe.CosSin(*cos_sin, columns="pair"), head_axis=-2)


def _cached(keys: Any, values: Any, held: Any, **tokens: Any) -> tuple[jax.Array, ...]:
    """`KVCache.extend` of a cache of these arrays, as many slots as tokens."""
    cache = pe.KVCache(keys, values, held, (None, None)).extend(**tokens)
    return cache.keys, cache.values


def _by_plan(x: Any, layer: Any, positions: Any, alpha: Any, slope: Any, bias: Any, heads: int) -> jax.Array:
    """`RotaryPlan.rotate` where `layer` is traced.

    The three layers rotate, scale queries without rotating, and scale queries by learned factors.
    """
    at = partial(hf.RotaryLayer, head_dim=8)
    scale = hf.HeadScale("slope", "bias", heads)
    learned = at(pe.geometric(4), query_scale=scale, learned_log_factor="alpha")
    plan = hf.RotaryPlan((at(pe.geometric(8)), at(pe.geometric(0), query_scale=hf.QueryScale(0.1, 4)), learned), "half")
    parameters = {"alpha": alpha, "slope": slope, "bias": bias}
    return plan.rotate(x, layer, positions, head_axis=-2, role="query", parameters=parameters)


PLAN = hf.RotaryPlan(
    (hf.RotaryLayer(pe.geometric(0), 8), hf.RotaryLayer(pe.geometric(8), 8, hf.QueryScale(0.1, 2))),
    *("half", "first", 1.5),
)
SLICED = hf.VisionPlan(
    (hf.RotaryLayer(pe.axial(8, 2), 8),) * 2, "half", grids=(hf.PatchGrid(),) * 2, slices=2, table="linear_aligned"
)
PLACED = hf.DiffusionPlan(pe.axial(8, 2), 8, "half", "image")
CONFIG = {"model_type": "qwen2_5_vl", "image_token_id": 3, "video_token_id": 4}


def table(batch: int = 2, length: int = 8, heads: int = 2, keys: int = 4) -> dict[str, Row]:
    """The functions of arrays, eight features wide.

    A row whose name has no comma gives every argument of its function; the others are variants of the call.
    """
    sizes = {"b": batch, "h": heads, "t": keys, "r": 12} | dict.fromkeys("sqk", length) | dict.fromkeys("def", 8)
    sizes |= dict.fromkeys("pc", 4) | dict.fromkeys("ao", 2)
    rng = np.random.default_rng(0)

    def normal(axes: str, dtype: Any = np.float32) -> Named:
        return Named(rng.normal(size=[sizes[axis] for axis in axes]).astype(dtype), axes)

    def integers(axes: str, low: int = 0, high: int = 900) -> Named:
        return Named(rng.integers(low, high, [sizes[axis] for axis in axes]).astype(np.int32), axes)

    def times(axes: str) -> Named:
        return Named(rng.uniform(-3, 3, [sizes[axis] for axis in axes]).astype(np.float32), axes)

    # Arguments that several rows share. `far` draws any int32; `times` draws floats near 0, beside which the formula
    # of float64 is as exact as the function; `lens` is shared by all sequences.
    far, frequencies = partial(integers, low=-(2**31), high=2**31), np.geomspace(1, 0.1, 4).astype(np.float32)
    per_pair = {"frequencies": Named(frequencies, "p")}
    shared_pairs = {"frequencies": Named(frequencies, "f")}
    count, slopes = np.arange(length, dtype=np.int32), np.linspace(0.1, 0.9, heads, dtype=np.float32)
    camera = Named(cameras.poses(rng, batch, length).astype(np.float32), "bscc")
    lens = Named(cameras.lenses(rng, image_size=(3, 4)).astype(np.float32), "ll")
    heads_at = {"head_axis": -2}
    view = {"image_size": (3.0, 4.0), "width": 4} | heads_at
    views = {"x": normal("bshd"), "turns": normal("bso"), "shift": Named(normal("bsc").value[..., :3], "bsl")}
    views["focal"] = Named(np.float32([3.1, 0.2, 1.7, 2.4, 1.6]), "l")
    tile = {"query_positions": integers("bs"), "key_positions": integers("bt")}
    apart = {"query_positions": times("bs"), "key_positions": times("bt")}
    # Of queries and keys alike: positions and order count from 0, and a segment has four tokens.
    sides = {
        f"{side}_{name}": Named(count // (4 if name == "segments" else 1), axis)
        for side, axis in (("query", "q"), ("key", "k"))
        for name in ("positions", "order", "segments")
    }
    last = {"layout": "interleaved", "part": "last", "inverse": True}
    seen = {"causal": True, "window": (3, None), "logits_soft_cap": 2.0, "scale": 0.5, "block_size": 4}
    rows = {
        "sinusoidal": Row(pe.sinusoidal, "bsd", positions=far("bs"), frequencies=8, layout="half", dtype=jnp.float32),
        "sinusoidal, array": Row(pe.sinusoidal, "bsf", _encoded, positions=times("bs"), **shared_pairs),
        "sinusoidal, halves": Row(pe.sinusoidal, "bsd", positions=far("bs"), **per_pair, layout="half"),
        "sinusoidal, axes": Row(pe.sinusoidal, "bsd", positions=integers("bsa"), frequencies=pe.axial(8, 2)),
        "add_sinusoidal": Row(
            pe.add_sinusoidal, "bse", x=normal("bse"), positions=far("bs"), frequencies=8, layout="half", scale=2.0
        ),
        "add_sinusoidal, array": Row(
            pe.add_sinusoidal,
            "bse",
            lambda x, **at: x + _encoded(**at),
            x=normal("bse"),
            positions=times("bs"),
            frequencies=Named(frequencies, "e"),
        ),
        "add_sinusoidal, counted": Row(pe.add_sinusoidal, "bsf", x=normal("bsf")),
        "learned": Row(pe.learned, "bsf", positions=integers("bs", 0, 12), table=normal("rf"), out_of_range="nan"),
        "add_learned": Row(
            pe.add_learned,
            "bsf",
            x=normal("bsf"),
            table=normal("rf"),
            positions=integers("bs", 0, 12),
            scale=1.0,
            out_of_range="nan",
        ),
        "resize_table": Row(
            pe.resize_table,
            "",
            table=normal("rd"),
            shape=4,
            method="linear",
            antialias=False,
            align_corners=False,
            zeros_outside=False,
            size_offset=0.1,
            exact=False,
        ),
        "rotation_matrix": Row(
            pe.rotation_matrix, "bsdd", offset=far("bs"), frequencies=8, layout="half", dtype=jnp.float32
        ),
        "rotation_matrix, array": Row(
            pe.rotation_matrix, "bsed", offset=far("bs"), frequencies=Named(frequencies, "e")
        ),
        "rotation_matrix, halves": Row(pe.rotation_matrix, "bsdd", offset=far("bs"), **per_pair, layout="half"),
        "shift": Row(pe.shift, "bsd", encodings=normal("bsd"), offset=far("bs"), frequencies=8, layout="half"),
        "shift, array": Row(
            pe.shift,
            "bse",
            lambda encodings, offset, frequencies: _rotated(
                encodings[..., None, :], -offset, frequencies, "interleaved"
            )[..., 0, :],
            encodings=normal("bse"),
            offset=times("bs"),
            **per_pair,
        ),
        "offset_similarity": Row(pe.offset_similarity, "bs", offset=far("bs"), frequencies=8, exact=False),
        "offset_similarity, array": Row(pe.offset_similarity, "bs", offset=times("bs"), **shared_pairs, exact=False),
        "fourier_features": Row(
            pe.fourier_features,
            "bsd",
            lambda x, matrix, **_: rotations.features(
                np.sin(2 * np.pi * x @ matrix), np.cos(2 * np.pi * x @ matrix), "half"
            ),
            x=normal("bso"),
            matrix=Named(normal("od").value / 4, "od"),
            layout="half",
            dtype=jnp.float32,
        ),
        "timestep_embedding": Row(
            pe.timestep_embedding,
            "bsd",
            timesteps=integers("bs"),
            dim=8,
            flip_sin_to_cos=True,
            downscale_freq_shift=1.0,
            scale=1.0,
            max_period=1e4,
            dtype=jnp.float32,
        ),
        "cos_sin": Row(_cos_sin, ("bsd", "bsd"), positions=far("bs"), frequencies=8, columns="half"),
        "cos_sin, array": Row(
            _cos_sin,
            ("bsf", "bsf"),
            lambda positions, frequencies: (
                np.cos(positions[..., None] * frequencies),
                np.sin(positions[..., None] * frequencies),
            ),
            positions=times("bs"),
            **shared_pairs,
        ),
        "cos_sin, axes": Row(_cos_sin, ("bsp", "bsp"), positions=normal("bsa"), frequencies=normal("ap")),
        "rotary": Row(
            pe.rotary,
            "bshd",
            x=normal("bshd"),
            positions=far("bs"),
            frequencies=8,
            layout="half",
            part="first",
            inverse=False,
            **heads_at,
        ),
        "rotary, counted": Row(pe.rotary, "bsf", x=normal("bsf"), layout="interleaved", head_axis=None),
        "rotary, array": Row(
            pe.rotary, "bshd", _rotated, x=normal("bshd"), positions=times("bs"), **per_pair, **heads_at
        ),
        "rotary, last": Row(
            pe.rotary,
            "bshd",
            _rotated,
            x=normal("bshd"),
            positions=times("bs"),
            frequencies=Named(frequencies[:3], "p"),
            **last,
            **heads_at,
        ),
        "rotary, by heads": Row(
            pe.rotary,
            "bshd",
            _rotated,
            x=normal("bshd"),
            positions=normal("bsa"),
            frequencies=normal("hap"),
            **heads_at,
        ),
        "rotary, cos_sin": Row(
            _by_cos_sin,
            "bshd",
            lambda x, cos_sin: rotations.rotate(x, cos_sin[1][..., None, :], cos_sin[0][..., None, :], "half"),
            x=normal("bshd"),
            cos_sin=(normal("bsp"), normal("bsp")),
        ),
        "rotary, bfloat16": Row(pe.rotary, "bshd", x=normal("bshd", jnp.bfloat16), positions=far("bs"), **heads_at),
        "rotary, heads first": Row(pe.rotary, "bhsd", x=normal("bhsd"), positions=far("bs"), head_axis=-3),
        "shift_keys": Row(
            pe.shift_keys,
            "bshd",
            keys=normal("bshd"),
            offset=far("bs"),
            frequencies=8,
            layout="half",
            part="first",
            **heads_at,
        ),
        "xpos": Row(
            pe.xpos,
            ("bshd", "bshd"),
            query=normal("bshd"),
            key=normal("bshd"),
            positions=integers("bs"),
            frequencies=8,
            key_positions=integers("bs"),
            origin=0,
            scale_base=512.0,
            gamma=0.4,
            layout="half",
            **heads_at,
        ),
        "xpos, array": Row(
            pe.xpos,
            ("bshd", "bshd"),
            _decayed,
            query=normal("bshd"),
            key=normal("bshd"),
            positions=times("bs"),
            **per_pair,
            scale_base=20.0,
            **heads_at,
        ),
        "pope": Row(
            pe.pope,
            "bshd",
            x=normal("bshd"),
            positions=far("bs"),
            frequencies=16,
            phase=normal("hd"),
            layout="half",
            **heads_at,
        ),
        "pope, array": Row(
            pe.pope, "bshd", _polar, x=normal("bshp"), positions=times("bs"), **per_pair, phase=normal("hp"), **heads_at
        ),
        "prope": Row(pe.prope, "bshd", x=normal("bshd"), extrinsics=camera, intrinsics=lens, role="query", **view),
        "prope, query": Row(_in_view, "bshd", _of_view, **views, role="query"),
        "prope, key": Row(_in_view, "bshd", _of_view, **views, role="key"),
        "convert_layout": Row(
            pe.convert_layout,
            "fd",
            weights=normal("fd"),
            frequencies=8,
            source="half",
            target="interleaved",
            axis=1,
            num_heads=1,
            part="first",
        ),
        "relative_position_bias": Row(
            pe.relative_position_bias,
            "bhst",
            query_positions=integers("bsa", -1, 2),
            key_positions=integers("bta", -1, 2),
            table=Named(normal("ddh").value[:3, :5], "wwh"),
            prefix=Named(normal("rh").value[:3], "wh"),
            symmetric=False,
            out_of_range="nan",
        ),
        "sandwich, array": Row(pe.sandwich, "best", **tile, heads=8, **per_pair, exact=False),
        "content_bias": Row(
            pe.content_bias,
            "bhst",
            query_positions=integers("bs", 0, 6),
            key_positions=integers("bt", 0, 6),
            table=normal("rhd"),
            query=normal("bshd"),
            key=None,
            first=-6,
            max_distance=None,
            out_of_range="zeros",
            exact=False,
        ),
        "attention": Row(
            pe.attention,
            "bqhd",
            query=normal("bqhd"),
            key=normal("bkhd"),
            value=normal("bkhd"),
            **sides,
            sinks=Named(slopes, "h"),
            **seen,
            exact=False,
        ),
        "KVCache.extend, arrays": Row(
            _cached,
            ("bkhd", "bkhd"),
            lambda keys, values, held, key, value, positions: (
                np.concatenate([key[:, :-1], keys[:, -1:]], 1),
                np.concatenate([value[:, :-1], values[:, -1:]], 1),
            ),
            keys=normal("bkhd"),
            values=normal("bkhd"),
            held=Named(np.full((batch, length), 2**31 - 1, np.int32), "bk"),
            key=normal("bqhd"),
            value=normal("bqhd"),
            positions=Named(
                np.tile([*count[:-1], 2**31 - 1], (batch, 1)).astype(np.int32), "bq"
            ),  # the last is padding
        ),
        "positions_from_lengths": Row(pe.positions_from_lengths, "bd", lengths=integers("bc", 0, 6), total=24),
        "positions_from_mask": Row(pe.positions_from_mask, "bq", mask=Named(normal("bq").value > 0, "bq")),
        "positions_from_segments": Row(pe.positions_from_segments, "bq", ids=integers("bq", 0, 2), padding=0),
        "positions_from_tokens": Row(
            pe.positions_from_tokens,
            "",
            tokens=np.arange(6, dtype=np.int32),
            image_token=3,
            video_token=4,
            image_grids=[(1, 2, 2)],
            video_grids=[(1, 2, 2)],
            video_steps=[2.0],
            spatial_merge_size=2,
            mask=np.ones(6, bool),
            following="side",
        ),
        "shard_positions": Row(
            pe.shard_positions, "oo", length=24, shards=2, order="zigzag", lengths=Named(4 * count[:4] // 2 * 2, "c")
        ),
        "hf.positions_from_tokens": Row(
            hf.positions_from_tokens,
            "",
            config=CONFIG,
            tokens=np.arange(6, dtype=np.int32),
            image_grids=[(1, 2, 2)],
            video_grids=[(1, 2, 2)],
            video_seconds=[2.0],
            mask=np.ones(6, bool),
        ),
        "RotaryPlan.rotate": Row(
            PLAN.rotate,
            "bshd",
            x=normal("bshd"),
            layer=1,
            positions=integers("bs"),
            role="query",
            scaled=True,
            **heads_at,
        ),
        "RotaryPlan.rotate, traced layer": Row(
            partial(_by_plan, heads=heads),
            "bshd",
            x=normal("bshd"),
            layer=Named(np.int32(2), ""),
            positions=integers("bs"),
            alpha=Named(frequencies[:2], "e"),
            slope=Named(slopes, "h"),
            bias=Named(slopes[::-1], "h"),
        ),
        "RotaryPlan.shift_keys": Row(
            PLAN.shift_keys, "bshd", keys=normal("bshd"), layer=1, offset=far("bs"), **heads_at
        ),
        "VisionPlan.positions": Row(SLICED.positions, "", shape=(2, 3), layer=1),
        "VisionPlan.rotate": Row(
            SLICED.rotate,
            "bshd",
            x=normal("bshd"),
            layer=1,
            positions=integers("bsa"),
            role="key",
            scaled=False,
            **heads_at,
        ),
        "DiffusionPlan.positions": Row(PLACED.positions, "", shape=(2, 3), text=2, references=None, rate=None),
        "DiffusionPlan.rotate": Row(
            PLACED.rotate, "bshd", x=normal("bshd"), positions=integers("bsa"), parameters=None, **heads_at
        ),
        "DiffusionPlan.rotate, slices": Row(
            hf.DiffusionPlan(pe.axial(16, 2), 16, "half", "image", slices=2).rotate,
            "bsw",
            x=Named(rng.normal(size=(batch, length, 16)).astype(np.float32), "bsw"),
            positions=integers("bsa"),
            head_axis=None,
        ),
        "VisionPlan.table_rows": Row(SLICED.table_rows, "", table=np.ones((3, 5, 2), np.float32), shape=(2, 3)),
    }
    for name, bias in BIASES.items():
        # An array of parameters: its last axis is heads where it is as long as they are many, the others are tables.
        given = jax.tree.map(
            lambda x: Named(x, "w" * (x.ndim - 1) + "wh"[x.shape[-1] == heads]) if isinstance(x, np.ndarray) else x,
            bias.arguments(heads),
        )
        result = "bhst" if bias.of(heads)[1] else "best"
        settings = {"formula": bias.truth}
        rows.setdefault(name, Row(bias.function, result, **settings, exact=not bias.rounded, **tile, **given))
        if not bias.sided:
            # A CPU's logarithm of some floats depends on how many it takes at once, so other biases are exact only at
            # integers.
            exact = name == "alibi"
            rows[f"{name}, floats"] = Row(bias.function, result, **settings, exact=exact, **apart, **given)
    return rows


# Functions of widths and settings, without arrays
STATIC = {
    "Frequencies": Row(
        pe.Frequencies, "", cycles=(1 << 120, 1 << 119), dim=4, axes=(0, 1), attention_factor=1.0, precision="exact"
    ),
    "axial": Row(pe.axial, "", frequencies=8, num_axes=2, base=1e4, interleaved=True),
    "geometric": Row(pe.geometric, "", dim=8, base=1e4, endpoint=True),
    "grid_positions": Row(pe.grid_positions, "", shape=(2, 3), start=(0, 0.5), step=2, order="row", leading=1),
    "kv_cache": Row(
        pe.kv_cache,
        "",
        **{"batch": 2, "slots": 5, "heads": 2, "head_dim": 8, "value_dim": 4, "layers": 2, "window": (3, None)},
        dtype=jnp.float32,
        sharding=None,
    ),
    "KVCache.extend": Row(
        pe.kv_cache(2, 6, 1, 8, layers=2).extend,
        "",
        key=np.ones((2, 6, 1, 8), np.float32),
        value=np.ones((2, 6, 1, 8), np.float32),
        positions=np.arange(6, dtype=np.int32),
        layer=1,
        slots=np.arange(6, dtype=np.int32),
    ),
    "join": Row(lambda frequencies, axes: pe.join(frequencies, 8, axes=axes), "", frequencies=8, axes=(0, 1)),
    "multi_section": Row(pe.multi_section, "", frequencies=8, sections=(2, 1, 1), interleaved=False),
    "multimodal_positions": Row(pe.multimodal_positions, "", parts=[2, (1, 2, 2)], following="side"),
} | {scaling.function.__name__: Row(scaling.function, "", **scaling.arguments) for scaling in SCALINGS.values()}
FUNCTIONS = STATIC | table()
# Rows whose function is a wrapper above, which computes with the arrays before the public function checks them
WRAPPED = "prope, query", "prope, key", "RotaryPlan.rotate, traced layer", "KVCache.extend, arrays"
