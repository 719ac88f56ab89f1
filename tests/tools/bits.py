"""Hashes of what every public function computes, over a drawn corpus: for changes that must not move a bit.

    python tests/tools/bits.py FILE              writes {case: hash}
    python tests/tools/bits.py FILE --compare    compares with what FILE says, and fails on a difference

Run the first on the version before a change and the second on that after it, on one machine and one JAX: other
processors and compilers round differently.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import nnx

import posenc_jax as pe
import posenc_jax.linen
import posenc_jax.nnx
from posenc_jax import hf

INT32 = np.iinfo(np.int32)
DTYPES = np.float32, ml_dtypes.bfloat16, np.float16
Draw = np.random.Generator


def digest(value: Any) -> str:
    """Of all leaves: dtype, shape and bytes of arrays, else the repr."""
    h = hashlib.sha256()
    for leaf in jax.tree.leaves(value, is_leaf=lambda x: x is None or isinstance(x, pe.Frequencies)):
        if isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
            x = np.asarray(leaf)
            h.update(f"{x.dtype} {x.shape}".encode() + x.tobytes())
        elif isinstance(leaf, pe.Frequencies):
            fields = leaf.cycles, leaf.dim, leaf.axes, leaf.attention_factor, leaf.precision
            h.update(repr(fields).encode())
        else:
            h.update(repr(leaf).encode())
    return h.hexdigest()[:20]


def with_derivatives(f: Callable[..., Any], *arrays: Any) -> list[Any]:
    """The result, eager and compiled, and the cotangents of the float arrays under a fixed cotangent."""
    moving = [i for i, x in enumerate(arrays) if isinstance(x, (np.ndarray, jax.Array)) and x.dtype.kind not in "iub"]

    def of(*floats: Any) -> Any:
        given = dict(enumerate(arrays)) | dict(zip(moving, floats, strict=True))
        return f(*given.values())

    floats = [jnp.asarray(arrays[i]) for i in moving]
    result = of(*floats)
    results = [result, jax.jit(of)(*floats)]
    if moving:
        cotangent = jax.tree.map(lambda y: jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape), result)
        cotangent = jax.tree.map(lambda c, y: c.astype(y.dtype), cotangent, result)
        results.append(jax.jit(lambda c, *x: jax.vjp(of, *x)[1](c))(cotangent, *floats))
        results.append(jax.vjp(of, *floats)[1](cotangent))
    return results


# What is drawn


def normal(draw: Draw, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return draw.standard_normal(shape).astype(dtype)


def each(p: Any, batch: int, seq: int) -> Any:
    """Positions with one for each token; None where they are counted."""
    if p is None:
        return None if seq > 1 else np.zeros(1, np.int32)
    return np.array(np.broadcast_to(p, (batch, seq))) if p.shape[-1:] in ((), (1,)) else p


def positions(draw: Draw, *shape: int) -> np.ndarray:
    kind = draw.integers(5)
    if kind == 0:
        return draw.integers(INT32.min, INT32.max, shape, endpoint=True).astype(np.int32)
    if kind == 1:
        return draw.integers(0, 1000, shape).astype(np.int32)
    if kind == 2:
        return draw.integers(0, 255, shape).astype(np.uint8)
    scale = 1000 if kind == 3 else 1e6
    return (draw.standard_normal(shape) * scale).astype(np.float32)


def spectrum(draw: Draw, width: int, arrays: bool = True) -> Any:
    base = float(draw.choice([100.0, 1e4, 5e5, 1e6]))
    kinds = {
        0: lambda: width,
        1: lambda: pe.geometric(width, base),
        2: lambda: pe.geometric(width, base, endpoint=True),
        3: lambda: pe.yarn(width, 1e4, 4.0, 2048),
        4: lambda: pe.geometric(width, base).with_precision("float32"),
        5: lambda: pe.linear_scaling(pe.geometric(width, base), 3.0),
        6: lambda: pe.llama3(width, 8, low_freq_factor=1, high_freq_factor=4, original_max=8192),
        7: lambda: np.exp(-draw.random(width // 2) * 8).astype(np.float32),
    }
    return kinds[int(draw.integers(len(kinds) if arrays else 7))]()


def pick(draw: Draw, *values: Any) -> Any:
    return values[int(draw.integers(len(values)))]


# What is computed, by the name of the function: from a generator to the arrays that hash it


def sinusoidal(draw: Draw) -> Any:
    width = int(pick(draw, 2, 6, 64, 128))
    settings = {"layout": pick(draw, "interleaved", "half"), "dtype": pick(draw, *DTYPES)}
    f = lambda p, w: pe.sinusoidal(p, w, **settings)  # noqa: E731
    odd = pe.sinusoidal(positions(draw, 3), 7, **settings)
    grid = pe.sinusoidal(positions(draw, 3, 2), pe.axial(8, 2), **settings)
    return with_derivatives(f, positions(draw, *pick(draw, (), (5,), (2, 9))), spectrum(draw, width)), odd, grid


def add_sinusoidal(draw: Draw) -> Any:
    batch, seq, width = int(pick(draw, 1, 2, 5)), int(pick(draw, 1, 7)), int(pick(draw, 2, 32))
    p = pick(draw, None, positions(draw, seq), positions(draw, batch, seq), positions(draw, batch, 1))
    settings = {"layout": pick(draw, "interleaved", "half"), "scale": pick(draw, 1.0, 5.5, jnp.float32(2.5))}
    f = lambda x, p, w: pe.add_sinusoidal(x, p, w, **settings)  # noqa: E731
    x = normal(draw, batch, seq, width, dtype=pick(draw, *DTYPES))
    return with_derivatives(f, x, each(p, batch, seq), spectrum(draw, width))


def rotations(draw: Draw) -> Any:
    width, settings = int(pick(draw, 2, 8, 32)), {"layout": pick(draw, "interleaved", "half")}
    w, p = spectrum(draw, width), positions(draw, 4)
    x = normal(draw, 3, 4, width, dtype=pick(draw, *DTYPES))
    return (
        with_derivatives(lambda p, w: pe.rotation_matrix(p, w, **settings), p, w),
        with_derivatives(lambda x, p, w: pe.shift(x, p, w, **settings), x, p, w),
        with_derivatives(pe.offset_similarity, p, w),
    )


def rotary(draw: Draw) -> Any:
    batch, seq, heads = int(pick(draw, 1, 2)), int(pick(draw, 1, 5, 33)), int(pick(draw, 1, 3, 8))
    head_dim = int(pick(draw, 2, 16, 64))
    width = int(pick(draw, head_dim, head_dim, max(2, head_dim // 4 * 2)))
    axis = pick(draw, -2, -3, None)
    shape = {-2: (batch, seq, heads, head_dim), -3: (batch, heads, seq, head_dim), None: (batch, seq, head_dim)}[axis]
    p = pick(draw, None, positions(draw), positions(draw, seq), positions(draw, batch, seq), positions(draw, batch, 1))
    settings = {
        "layout": pick(draw, "interleaved", "half"),
        "part": pick(draw, "first", "last"),
        "inverse": bool(pick(draw, False, False, True)),
        "head_axis": axis,
    }
    f = lambda x, p, w: pe.rotary(x, p, w, **settings)  # noqa: E731
    x, w = normal(draw, *shape, dtype=pick(draw, *DTYPES)), spectrum(draw, width)
    return with_derivatives(f, x, each(p, batch, seq), w)


def rotary_of_axes(draw: Draw) -> Any:
    f = pick(draw, pe.axial(16, 2), pe.multi_section(16, (3, 3, 2)), pe.multi_section(16, (3, 3, 2), interleaved=True))
    x = normal(draw, 2, 5, 3, 20, dtype=pick(draw, *DTYPES))
    layout = pick(draw, "interleaved", "half")
    return with_derivatives(
        lambda x, p: pe.rotary(x, p, f, layout=layout, head_axis=-2), x, positions(draw, 5, f.num_axes)
    )


def rotary_by_heads(draw: Draw) -> Any:
    w, settings = normal(draw, 3, 2, 8), {"layout": pick(draw, "interleaved", "half"), "head_axis": -2}
    x, p = normal(draw, 2, 5, 3, 20, dtype=pick(draw, *DTYPES)), positions(draw, 5, 2)
    return with_derivatives(lambda x, p, w: pe.rotary(x, p, w, **settings), x, p, w)


def rotary_by_cos_sin(draw: Draw) -> Any:
    x, settings = (
        normal(draw, 2, 5, 3, 16, dtype=pick(draw, *DTYPES)),
        {"part": pick(draw, "first", "last"), "head_axis": -2},
    )
    found = pe.cos_sin(positions(draw, 5), spectrum(draw, int(pick(draw, 8, 16))))
    rotate = lambda x, c, s: pe.rotary(x, cos_sin=pe.CosSin(c, s, columns="pair"), **settings)  # noqa: E731
    return tuple(found), with_derivatives(rotate, x, *found)


def xpos(draw: Draw) -> Any:
    q, k = (normal(draw, 2, 6, heads, 16, dtype=pick(draw, *DTYPES)) for heads in (4, 2))
    p, settings = pick(draw, None, positions(draw, 6)), {"layout": pick(draw, "interleaved", "half")}
    settings["origin"] = pick(draw, 0, 100, 2.5)
    return with_derivatives(lambda q, k, p: pe.xpos(q, k, p, 16, head_axis=-2, **settings), q, k, p)


def prope(draw: Draw) -> Any:
    role = pick(draw, "query", "key", "value", "output")
    turns, shift = np.linalg.qr(draw.standard_normal((6, 3, 3)))[0], draw.standard_normal((6, 3, 1))
    poses = np.concatenate([np.concatenate([turns, shift], -1), np.tile([[[0, 0, 0, 1]]], (6, 1, 1))], 1)
    lens = np.array([[2.0 + draw.random(), draw.random(), 1.5], [0, 3 - draw.random(), 1.2], [0, 0, 1]], np.float32)
    given = {"image_size": (3, 4), "width": int(pick(draw, 8, 16)), "role": role, "head_axis": -2}
    x = normal(draw, 2, 6, 4, 16, dtype=pick(draw, *DTYPES))
    return with_derivatives(lambda x, e, k: pe.prope(x, e, k, **given), x, poses.astype(np.float32), lens)


def pope(draw: Draw) -> Any:
    x, phase = (
        normal(draw, 2, 6, 4, 8, dtype=pick(draw, *DTYPES)),
        pick(draw, None, normal(draw, 8), normal(draw, 4, 8)),
    )
    p, settings = pick(draw, None, positions(draw, 6)), {"layout": pick(draw, "interleaved", "half"), "head_axis": -2}
    return with_derivatives(lambda x, p: pe.pope(x, p, phase=phase, **settings), x, p)


def convert_layout(draw: Draw) -> Any:
    layouts = "interleaved", "half"
    source, target, part = pick(draw, *layouts), pick(draw, *layouts), pick(draw, "first", "last")
    x = normal(draw, 5, 24)
    return pe.convert_layout(x, 8, source=source, target=target, axis=1, num_heads=2, part=part)


def biases(draw: Draw) -> Any:
    heads = int(pick(draw, 1, 3, 8))
    i, j = positions(draw, 2, 5), positions(draw, 7)
    ii, jj = (draw.integers(-(2**31), 2**31 - 1, n).astype(np.int32) for n in (5, 7))
    a, b = (np.abs(normal(draw, heads)) + 0.1 for _ in range(2))
    mlp = normal(draw, 4), normal(draw, 4), normal(draw, 4, heads), normal(draw, heads)
    sided = bool(draw.integers(2))
    table = normal(draw, 32, heads, dtype=pick(draw, *DTYPES))
    return (
        with_derivatives(lambda i, j, a: pe.alibi(i, j, a), i, j, a),
        pe.alibi(ii, jj, heads),
        with_derivatives(pe.kerple_log, i, j, a, b),
        with_derivatives(lambda i, j, a, b: pe.kerple_power(i, j, a, b / 8), ii, jj, a, b),
        with_derivatives(lambda i, j, t: pe.t5(i, j, t, bidirectional=sided), ii, jj, table),
        with_derivatives(lambda i, j, *mlp: pe.fire(i, j, mlp, c=0.1, threshold=64.0), np.abs(ii), np.abs(jj), *mlp),
        with_derivatives(lambda i, j, w: pe.sandwich(i, j, heads, w), ii, jj, spectrum(draw, 16)),
    )


def attention(draw: Draw) -> Any:
    batch, length, heads, kv_heads = int(pick(draw, 1, 2)), int(pick(draw, 5, 40)), 4, int(pick(draw, 1, 2, 4))
    dtype = pick(draw, *DTYPES)
    q = normal(draw, batch, length, heads, 8, dtype=dtype)
    k, v = (normal(draw, batch, length, kv_heads, 8, dtype=dtype) for _ in range(2))
    settings: dict[str, Any] = {"causal": bool(draw.integers(2)), "block_size": int(pick(draw, 8, 512))}
    settings["return_residual"] = bool(draw.integers(2))
    if draw.integers(2):
        settings["query_segments"] = settings["key_segments"] = np.sort(draw.integers(0, 3, length)).astype(np.int32)
    m, table = np.abs(normal(draw, heads)), normal(draw, 32, heads)
    bias = pick(
        draw,
        None,
        lambda m, t: lambda i, j: pe.alibi(i, j, m),
        lambda m, t: lambda i, j: pe.t5(i, j, t, bidirectional=False),
    )

    def f(q: Any, k: Any, v: Any, m: Any, t: Any) -> Any:
        return pe.attention(q, k, v, bias=None if bias is None else bias(m, t), **settings)

    return with_derivatives(f, q, k, v, m, table)


def learned(draw: Draw) -> Any:
    table, dtype = normal(draw, 9, 6, dtype=pick(draw, *DTYPES)), pick(draw, *DTYPES)
    inside, any_of = draw.integers(0, 9, (2, 5)).astype(np.int32), draw.integers(-3, 12, (2, 5)).astype(np.int64)
    rule = pick(draw, "nan", "zeros")
    x = normal(draw, 2, 5, 6, dtype=dtype)
    return (
        with_derivatives(pe.learned, inside, table),
        pe.learned(any_of, table, out_of_range=rule),
        with_derivatives(lambda x, t: pe.add_learned(x, t, scale=1.5), x, table),
        with_derivatives(lambda x, t: pe.add_learned(x, t, any_of, out_of_range=rule), x, table),
        pe.resize_table(table, int(pick(draw, 4, 20)), method=pick(draw, "linear", "cubic")),
        pe.resize_table(normal(draw, 3, 4, 6), (5, 2), method=pick(draw, "linear", "cubic")),
        with_derivatives(lambda t: pe.resize_table(t, 13, method="torch_cubic", antialias=False), table),
    )


def fourier(draw: Draw) -> Any:
    settings = {"layout": pick(draw, "interleaved", "half"), "dtype": pick(draw, *DTYPES)}
    x, matrix, width = positions(draw, 5, 3), normal(draw, 3, 4), int(pick(draw, 9, 16))
    times = {"flip_sin_to_cos": bool(draw.integers(2)), "downscale_freq_shift": pick(draw, 0, 1, 0.5)}
    return (
        with_derivatives(lambda x, b: pe.fourier_features(x, b, **settings), x, matrix),
        with_derivatives(lambda t: pe.timestep_embedding(t, width, **times), positions(draw, 4)),
    )


def places(draw: Draw) -> Any:
    ids = np.sort(draw.integers(0, 4, (2, 9))).astype(pick(draw, np.int32, np.uint8, np.int64))
    mask = draw.integers(0, 2, (2, 9)).astype(pick(draw, bool, np.int32))
    return (
        pe.positions_from_segments(ids, padding=pick(draw, None, 0)),
        pe.positions_from_mask(mask),
        pe.positions_from_lengths(draw.integers(0, 5, (2, 4)).astype(np.int32), 20),
        pe.grid_positions((3, 4), order=pick(draw, "row", "column"), leading=int(draw.integers(3))),
        pe.multimodal_positions([2, (2, 2, 3), (3, 2, 2, 1.5), 4], following=pick(draw, "maximum", "side")),
        pe.shard_positions(24, 3, order=pick(draw, "contiguous", "zigzag", "striped")),
        pe.shard_positions(
            24, 3, order=pick(draw, "contiguous", "zigzag", "striped"), lengths=6 * draw.integers(0, 2, 4)
        ),
        pe.positions_from_tokens(np.array([4, 1, 1, 5, 1, 1]), image_token=1, image_grids=[(1, 2, 4)] * 2),
    )


def spectra(draw: Draw) -> Any:
    width, base = int(pick(draw, 4, 64, 128)), float(pick(draw, 1e4, 5e5))
    factors = [[1 + draw.random() for _ in range(width // 2)] for _ in range(2)]
    length = jnp.int32(draw.integers(1, 100_000))
    return (
        pe.geometric(width + 1, base),
        pe.ntk(width, base, 1 + draw.random()),
        pe.dynamic_ntk(width, base, 4, 2048, 5000),
        pe.dynamic_ntk(width, base, 4, 2048, length),
        jax.jit(lambda n: pe.dynamic_ntk(width, base, 4, 2048, n))(length),
        pe.yarn(width, base, 1 + 8 * draw.random(), 4096, truncate=bool(draw.integers(2))),
        pe.longrope(width, *factors, original_max=4096, factor=32, length=int(pick(draw, 100, 10_000))),
        pe.proportional(width, base, 0.5, 2.0),
        pe.axial(pe.linear_scaling(width, 2.5), 3),
        pe.geometric(width).with_angular(draw.random(width // 2)),
        pe.geometric(width).angular,
        pe.geometric(width).wavelengths,
    )


def configs(draw: Draw) -> Any:
    llama = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "rope_theta": 1e4,
    }
    scaling = pick(
        draw,
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
        {"rope_type": "dynamic", "factor": 2.0},
    )
    several = llama | {"model_type": "gemma3_text", "num_hidden_layers": 7}
    for config in (llama | {"max_position_embeddings": 4096, "rope_scaling": scaling}, several):
        plan = hf.rotary_from_config(config, length=8192)
        yield plan.layout, plan.part, plan.softmax_scale, plan.length
        yield [(layer.frequencies, layer.head_dim, layer.query_scale, layer.settings) for layer in plan.layers]
        yield sorted(hf.plan_to_config(plan).items(), key=str)
    yield hf.QueryScale(0.1, 8192, 1)(positions(draw, 5))


def modules(draw: Draw) -> Any:
    seed, x = int(draw.integers(1000)), normal(draw, 2, 6, 16)
    i, j = jnp.arange(6), jnp.arange(3, 12)
    q, k, v = (normal(draw, 2, 6, 2, 8) for _ in range(3))
    made = {
        "SinusoidalEncoding": ((16,), {}, (x,)),
        "LearnedEncoding": ((9, 16), {}, (x,)),
        "RotaryEncoding": ((8,), {"head_axis": -2}, (q,)),
        "FourierFeatures": ((16, 4), {"scale": 2.0}, (x,)),
        "TimestepEmbedding": ((8,), {}, (i,)),
        "ALiBi": ((2,), {}, (i, j)),
        "T5Bias": ((2,), {}, (i, j)),
        "KERPLE": ((2,), {"variant": pick(draw, "log", "power")}, (i, j)),
        "FIRE": ((2,), {}, (i, j)),
    }
    for name, (arguments, settings, inputs) in made.items():
        of_nnx, of_linen = (getattr(m, name) for m in (pe.nnx, pe.linen))
        with_rngs = name in ("LearnedEncoding", "FourierFeatures", "T5Bias", "KERPLE", "FIRE")
        module = of_nnx(*arguments, **settings, **({"rngs": nnx.Rngs(seed)} if with_rngs else {}))
        yield module(*inputs), jax.tree.leaves(nnx.state(module))
        module = of_linen(*arguments, **settings)
        variables = module.init(jax.random.key(seed), *inputs)
        yield module.apply(variables, *inputs), variables
    attend = pe.nnx.positional_attention(
        rotation=8, bias=pe.nnx.T5Bias(2, rngs=nnx.Rngs(seed)), layout=pick(draw, "half", "interleaved")
    )
    yield with_derivatives(lambda q, k, v: attend(q, k, v, is_causal=True), q, k, v)
    attend = pe.linen.positional_attention(rotation=8, bias=pe.linen.ALiBi(2))
    yield with_derivatives(lambda q, k, v: attend.apply({}, q, k, v), q, k, v)


COMPUTED: dict[Callable[[Draw], Any], int] = {
    sinusoidal: 16,
    add_sinusoidal: 16,
    rotations: 8,
    rotary: 64,
    rotary_of_axes: 6,
    rotary_by_heads: 4,
    rotary_by_cos_sin: 4,
    xpos: 4,
    prope: 4,
    pope: 4,
    convert_layout: 4,
    biases: 5,
    attention: 12,
    learned: 5,
    fourier: 6,
    places: 6,
    spectra: 6,
    configs: 6,
    modules: 2,
}


def hashes() -> Iterator[tuple[str, str]]:
    for f, count in COMPUTED.items():
        for i in range(count):
            name = f"{f.__name__} {i}"
            value = f(np.random.default_rng(zlib.crc32(name.encode())))
            yield name, digest(list(value) if isinstance(value, Iterator) else value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--compare", action="store_true")
    options = parser.parse_args()
    found = dict(hashes())
    if not options.compare:
        options.file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{options.file}: {len(found)} hashes")
        return
    before = json.loads(options.file.read_text(encoding="utf-8"))
    different = sorted(name for name in found | before if found.get(name) != before.get(name))
    print(f"{len(found)} hashes, {len(different)} differ: {', '.join(different) or 'none'}")
    raise SystemExit(bool(different))


if __name__ == "__main__":
    main()
