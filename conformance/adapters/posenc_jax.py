"""This library."""

import inspect

import numpy as np

import posenc_jax as pe

NAME, PACKAGES = "posenc_jax", ("posenc_jax", "jax")


def integers(values):
    return np.array(values, np.int32)


def floats(values):
    return np.array(values, np.float32)


def scaling_call(width, base, type, **settings):
    """A function for a scaling, and its arguments by name."""
    f = getattr(pe, {"linear": "linear_scaling", "dynamic": "dynamic_ntk"}.get(type, type))
    if "frequencies" in inspect.signature(f).parameters:
        return f, {"frequencies": pe.geometric(width, base)} | settings
    return f, {"dim": width, "base": base} | settings


def scaled(width, base, scaling):
    if scaling is None:
        return pe.geometric(width, base)
    f, arguments = scaling_call(width, base, **scaling)
    return f(**arguments)


def frequencies(width, base, scaling, axes):
    if axes and axes["type"] == "axial":
        return pe.axial(width, axes["count"], base)
    if axes and axes["type"] == "widths":
        return pe.axial(axes["widths"], base=base)
    if axes and axes["type"] == "directions":
        return np.array(axes["angular"], np.float32)
    if axes:
        interleaved = axes["type"] == "interleaved"
        return pe.multi_section(scaled(width, base, scaling), axes["sections"], interleaved=interleaved)
    return scaled(width, base, scaling)


def sinusoidal(positions, width, base, layout, endpoint=False, axes=None):
    f = frequencies(width, base, None, axes) if axes else pe.geometric(width, base, endpoint=endpoint)
    return pe.sinusoidal(integers(positions), f, layout=layout)


def rotary(positions, x, rotary_width, base, layout, scaling=None, axes=None):
    rows = np.tile(floats(x), (len(positions), 1))
    f = frequencies(rotary_width, base, scaling, axes)
    return pe.rotary(rows, integers(positions), f, layout=layout, head_axis=None)


def xpos(positions, x, rotary_width, base, layout, of, origin, **settings):
    rows = np.tile(floats(x), (len(positions), 1))
    settings |= {"origin": origin, "layout": layout, "head_axis": None}
    query, key = pe.xpos(rows, rows, integers(positions), pe.geometric(rotary_width, base), **settings)
    return {"query": query, "key": key}[of]


def timestep(positions, width, base, shift, scale, cosines_first):
    exact = floats(positions) if isinstance(positions[0], float) else integers(positions)
    settings = {"flip_sin_to_cos": cosines_first, "downscale_freq_shift": shift, "scale": scale, "max_period": base}
    return pe.timestep_embedding(exact, width, **settings)


def fourier(positions, matrix, layout):
    exact = floats(positions) if isinstance(positions[0][0], float) else integers(positions)
    return pe.fourier_features(exact, floats(matrix), layout=layout)


def alibi(queries, keys, heads):
    return pe.alibi(integers(queries), integers(keys), heads)


def kerple_log(queries, keys, scale, rate):
    return pe.kerple_log(integers(queries), integers(keys), floats(scale), floats(rate))


def kerple_power(queries, keys, scale, exponent):
    return pe.kerple_power(integers(queries), integers(keys), floats(scale), floats(exponent))


def sandwich(queries, keys, heads, width, base):
    return pe.sandwich(integers(queries), integers(keys), heads, pe.geometric(width, base))


def fire(queries, keys, w1, b1, w2, b2, c, threshold):
    mlp = tuple(floats(w) for w in (w1, b1, w2, b2))
    return pe.fire(integers(queries), integers(keys), mlp, c=c, threshold=threshold)


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
    settings = {"causal": causal, "window": tuple(window), "logits_soft_cap": soft_cap, "scale": scale}
    settings |= {"query_positions": integers(query_positions), "key_positions": integers(key_positions)}
    settings["sinks"] = None if sinks is None else floats(sinks)
    return pe.attention(floats(query), floats(key), floats(value), **settings)


def t5(queries, keys, table, bidirectional, max_distance):
    settings = {"bidirectional": bidirectional, "max_distance": max_distance}
    return pe.t5(integers(queries), integers(keys), floats(table), **settings)
