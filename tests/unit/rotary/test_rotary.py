"""Rotary embeddings against complex numbers at 40 digits, and the properties they exist for."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import compiled_by, slow, tiered
from oracles import encodings, rotations, spectra
from posenc_jax import linen
from posenc_jax import nnx as nnx_modules
from posenc_jax.hf import RotaryLayer, RotaryPlan

LAYOUTS = ["half", "interleaved"]
EDGES = [0, 1, 2, 3, 1000, 65_535, 65_536, 1_000_003, 2_000_000_000, 2**31 - 1, -1, -(2**16), -(2**31)]
SCALED = dataclasses.replace(pe.geometric(8), attention_factor=1.25)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


ANYWHERE = np.concatenate([EDGES, np.random.default_rng(1).integers(-(2**31), 2**31, 30)]).astype(np.int32)
SPECTRA = [(2, 10_000), (6, 10_000), (64, 500_000), (128, 100)]


@compiled_by(quick)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pairs_are_within_3e_7_at_any_position(layout, program):
    rotary = functools.partial(pe.rotary, layout=layout, head_axis=-2)
    x = [normal(len(ANYWHERE), 2, dim) for dim, _ in SPECTRA]
    turned = program(lambda x, p: [rotary(v, p, pe.geometric(*case)) for v, case in zip(x, SPECTRA, strict=True)])
    for before, after, case in zip(x, turned(x, ANYWHERE), SPECTRA, strict=True):
        sine, cosine = encodings.waves(ANYWHERE, spectra.geometric(*case))
        z = rotations.as_complex(before, layout)
        want = z * (cosine + 1j * sine)[:, None]
        against = f"of dim and base {case}, mpmath at 60 digits"
        assert_within(rotations.as_complex(after, layout), want, 3e-7 * np.abs(z), against=against)


@compiled_by(quick)
def test_the_rotation_is_the_one_of_llama_and_of_gpt_j(program):
    x, p = normal(5, 3, 8), np.arange(5)
    angles = p[:, None, None] * spectra.floats(spectra.geometric(8, 10_000))
    turned = program(lambda x, p: [pe.rotary(x, p, layout=layout, head_axis=-2) for layout in LAYOUTS])
    half, interleaved = turned(x, p)
    np.testing.assert_allclose(half, rotations.llama(x, angles), atol=1e-6)
    np.testing.assert_allclose(interleaved, rotations.gpt_j(x, angles), atol=1e-6)


@compiled_by(quick)
@pytest.mark.parametrize("layout", tiered(LAYOUTS, ["half"]))
def test_scores_depend_on_the_offset_alone(layout, program):
    q, k = normal(64, 1, 128), normal(64, 1, 128, seed=1)
    offsets = np.arange(64)
    rotary = functools.partial(pe.rotary, layout=layout, head_axis=-2)
    turned = program(lambda q, k, p, start: (rotary(q, p), rotary(k, jnp.broadcast_to(start, (64,)))))

    def scores(start):
        both = turned(q, k, start + offsets, start)
        return np.einsum("shd,shd->s", *(np.asarray(v, np.float64) for v in both))

    size = np.linalg.norm(q, axis=-1)[:, 0] * np.linalg.norm(k, axis=-1)[:, 0]
    near = scores(3)
    want = np.einsum("shd,shd->s", rotations.rope(q, offsets, layout=layout), k)
    np.testing.assert_allclose(near / size, want / size, atol=3e-7)
    for start in (-3, 2_000_000_000, -(2**31)):
        assert_within(scores(start) / size, near / size, 3e-7, against=f"the scores from 3 on, from {start}:")
    assert np.max(np.abs(np.diff(near))) > 0.1  # and they do depend on it


def test_norms_are_kept_and_rotations_compose():
    x = normal(7, 2, 16)
    p = np.random.default_rng(2).integers(-(2**30), 2**30, (2, 7)).astype(np.int32)
    norm = lambda v: np.linalg.norm(np.asarray(v, np.float64), axis=-1)  # noqa: E731
    np.testing.assert_allclose(norm(pe.rotary(x, p[0], head_axis=-2)), norm(x), rtol=3e-7)
    twice = pe.rotary(pe.rotary(x, p[0], head_axis=-2), p[1], head_axis=-2)
    np.testing.assert_allclose(twice, pe.rotary(x, p[0] + p[1], head_axis=-2), atol=2e-6)


@pytest.mark.parametrize("part", [slow("first"), "last"])
@pytest.mark.parametrize("layout", tiered(LAYOUTS, ["interleaved"]))
def test_keys_move_by_an_offset(layout, part):
    """To where they would have been rotated, with an amplitude that is applied once."""
    keys, near = normal(2, 6, 3, 12), np.arange(40, 46)
    offsets = [-40, np.int32(1_000_000_000), np.int32([[7], [-40]]), np.arange(6), np.arange(12).reshape(2, 6), 0.5]
    how = {"layout": layout, "part": part, "head_axis": -2}

    there = [np.broadcast_to(near + k, (2, 6)) for k in offsets]

    def move(keys, offset, there, f):
        cached = pe.rotary(keys, near, f, **how)
        return cached, pe.shift_keys(cached, offset, f, **how), pe.rotary(keys, there, f, **how)

    learned = SCALED.angular.astype(np.float32)
    both = quick(lambda keys, *at: [move(keys, *k, f) for f in (SCALED, learned) for k in zip(*at, strict=True)])
    for n, (cached, got, want) in enumerate(both(keys, offsets, there)):
        assert_within(got, np.asarray(want), 3e-6, against=f"moved by {offsets[n % len(offsets)]}")
        assert np.abs(got - cached).max() > 0.1


def test_moving_keys_needs_the_frequencies_of_their_rotation():
    with pytest.raises(
        TypeError, match="shift_keys: frequencies must be Frequencies, an integer width or a float array"
    ):
        pe.shift_keys(X, 7, None, head_axis=-2)  # type: ignore
    with pytest.raises(TypeError, match="shift_keys: offset must be an integer or float array, got NoneType None"):
        pe.shift_keys(X, None, 8, head_axis=-2)  # type: ignore


def test_in_16_bits_a_thousand_moves_are_not_one():
    """Why the docstring says to move a key once: slow pairs turn by less than half a unit in the last place."""
    x = np.random.default_rng(0).normal(size=(1, 8, 2, 128)).astype(jnp.bfloat16)
    angles = -1000.0 * 1e4 ** (-np.arange(64) / 64)
    want = rotations.rotate_by(x, angles, "half")
    step = lambda offset: lambda _, x: pe.shift_keys(x, offset, 128, head_axis=-2)  # noqa: E731
    move = jax.jit(lambda x, offset, times: lax.fori_loop(0, times, step(offset), x))
    assert_within(move(x, -1000, 1), want, 2.0**-8 * np.abs(want) + 1e-6, against="float64")
    assert np.abs(np.asarray(move(x, -1, 1000), np.float64) - want).max() > 2


@compiled_by(quick)
@pytest.mark.parametrize(
    ("head_dim", "dim"),
    [slow(16, 4), slow(16, 6), (7, 4), slow(8, 8), slow(8, 4), slow(16, 12), slow(40, 4)],
)
def test_partial(head_dim, dim, program):
    x, p, ways = normal(2, 5, 3, head_dim), np.arange(100, 105), [*itertools.product(LAYOUTS, ["first", "last"])]
    turned = program(lambda x, p: [pe.rotary(x, p, dim, layout=at, part=part, head_axis=-2) for at, part in ways])
    for (layout, part), y in zip(ways, jax.device_get(turned(x, p)), strict=True):
        want = rotations.rope(x, p, dim, layout=layout, part=part)
        np.testing.assert_allclose(y, want, atol=1e-6, err_msg=f"{layout}, {part}")
        kept = np.s_[..., dim:] if part == "first" else np.s_[..., : head_dim - dim]
        np.testing.assert_array_equal(y[kept], x[kept], f"{layout}, {part}")


@compiled_by(jax.jit)
def test_head_axes(program):
    x, p = normal(2, 5, 3, 8), np.random.default_rng(3).integers(0, 1000, (2, 5))
    axes = (-3, 1), (1, 1), (0, 0), (-4, 0), (2, 2)

    def turned(x, moved, p):
        by_axis = [pe.rotary(v, p, head_axis=axis) for v, (axis, _) in zip(moved, axes, strict=True)]
        by_head = [pe.rotary(x[:, :, head], p, head_axis=None) for head in range(3)]
        tokens = pe.rotary(x.reshape(10, 3, 8), p.reshape(10), head_axis=-2)
        return pe.rotary(x, p, head_axis=-2), by_axis, by_head, tokens

    every_x = [np.moveaxis(x, 2, moved) for _, moved in axes]
    want, by_axis, by_head, tokens = jax.device_get(program(turned)(x, every_x, p))
    np.testing.assert_allclose(want, rotations.rope(x, p), atol=1e-6)
    for (axis, moved), got in zip(axes, by_axis, strict=True):
        np.testing.assert_array_equal(np.moveaxis(got, moved, 2), want, f"head_axis={axis}")
    for head, got in enumerate(by_head):
        np.testing.assert_array_equal(got, want[:, :, head], f"head {head} alone")
    np.testing.assert_array_equal(tokens, want.reshape(10, 3, 8))


@compiled_by(jax.jit)
def test_shapes_of_positions(program):
    x, p = normal(2, 5, 3, 8), np.arange(50, 55)
    same = p, p[None], p.astype(np.int32), p.astype(np.int64), p.astype(np.float32)

    def turned(x, array):
        want, *got = (pe.rotary(x, positions, head_axis=-2) for positions in (np.stack([p, p]), *same, array))
        steps = [pe.rotary(x[:, 1:2], at, head_axis=-2) for at in (51, np.array([51]), np.array([[51], [51]]))]
        return want, got, steps, pe.rotary(x[0, 0], 50, head_axis=-2), pe.rotary(x, p + 1, head_axis=-2)

    array = jax.device_put(p)
    want, every_got, steps, first, other = jax.device_get(program(turned)(x, array))
    for positions, got in zip((*same, array), every_got, strict=True):
        np.testing.assert_array_equal(got, want, f"{positions!r}")
    for step in steps:
        np.testing.assert_array_equal(step, want[:, 1:2])
    np.testing.assert_array_equal(first, want[0, 0])
    assert np.abs(want - other).max() > 0.5


@compiled_by(jax.jit)
def test_positions_count_from_zero(program):
    x, axes = normal(2, 5, 3, 8), [(-2, 1), (-3, 2), (0, 2), (None, 2)]  # of the heads and of the sequence
    counted = program(lambda x: [pe.rotary(x, head_axis=head_axis) for head_axis, _ in axes])
    alone = program(lambda x, p: pe.rotary(x, p, head_axis=None))
    for (head_axis, seq_axis), y in zip(axes, jax.device_get(counted(x)), strict=True):
        for row in range(x.shape[seq_axis]):
            vectors = x.take(row, axis=seq_axis)
            want = alone(vectors, np.full(vectors.shape[-2], row))
            np.testing.assert_array_equal(y.take(row, axis=seq_axis), want, f"row {row} of {head_axis=}")


def test_prefill_then_steps_is_the_whole_sequence():
    x, f = normal(2, 9, 4, 16), pe.yarn(16, 10_000.0, 4.0, 64)
    whole = np.asarray(pe.rotary(x, None, f, head_axis=-2))
    np.testing.assert_array_equal(pe.rotary(x[:, :5], None, f, head_axis=-2), whole[:, :5])
    step = jax.jit(lambda x, p: pe.rotary(x, p, f, head_axis=-2))
    for i in range(5, 9):
        np.testing.assert_array_equal(step(x[:, i : i + 1], np.full((2, 1), i)), whole[:, i : i + 1])
    packed = pe.rotary(x.reshape(18, 4, 16), np.tile(np.arange(9), 2), f, head_axis=-2)
    np.testing.assert_array_equal(np.asarray(packed).reshape(x.shape), whole)


@compiled_by(quick)
@pytest.mark.parametrize("layout", tiered(LAYOUTS, ["interleaved"]))
@pytest.mark.parametrize(
    "frequencies", [slow(None), slow(6), SCALED, np.float32([1, 0.3])], ids=["None", "6", "scaled", "array"]
)
def test_inverse(layout, frequencies, program):
    x, p = normal(2, 5, 3, 8), np.arange(2_000_000_000, 2_000_000_005)
    turned = functools.partial(pe.rotary, frequencies=frequencies, layout=layout, head_axis=-2)

    def both(x, p):
        return turned(turned(x, p), p, inverse=True), turned(turned(x, p, inverse=True), p)

    for result in program(both)(x, p):
        np.testing.assert_allclose(result, x, atol=1e-6)


def test_the_inverse_of_the_smallest_amplitude():
    """Its reciprocal is the largest float32, and no more."""
    largest = float(np.finfo(np.float32).max)
    frequencies = dataclasses.replace(pe.geometric(8), attention_factor=1 / largest)
    assert 1 / frequencies.attention_factor == largest
    x = np.full((1, 1, 8), 0.5, np.float32)
    np.testing.assert_array_equal(pe.rotary(x, 0, frequencies, inverse=True, head_axis=-2), x * largest)


@compiled_by(quick)
def test_the_attention_factor_multiplies_what_is_turned(program):
    x, p = normal(5, 2, 10), np.arange(5)
    turned = program(lambda x, p: [pe.rotary(x, p, f, head_axis=-2) for f in (8, SCALED)])
    plain, scaled = jax.device_get(turned(x, p))
    np.testing.assert_allclose(scaled[..., :8], 1.25 * plain[..., :8], atol=1e-6)
    np.testing.assert_array_equal(scaled[..., 8:], x[..., 8:])


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [("half", jnp.bfloat16), *(slow(*x) for x in (("interleaved", jnp.float16), ("half", jnp.float16), ("interleaved", jnp.bfloat16)))],
)  # fmt: skip
def test_half_precision_is_float32_rounded_once(layout, dtype):
    x = normal(3, 50, 8, 16).astype(dtype)
    y = pe.rotary(x, np.arange(5000, 5050), 8, layout=layout, head_axis=-2)
    assert y.dtype == dtype
    full = pe.rotary(x.astype(np.float32), np.arange(5000, 5050), 8, layout=layout, head_axis=-2)
    np.testing.assert_array_equal(y, np.asarray(full).astype(dtype))


@pytest.mark.skipif(not jax.config.read("jax_enable_x64"), reason="float64 needs x64: nox -s x64")
def test_float64_is_kept():
    x = normal(5, 2, 8).astype(np.float64)
    y = pe.rotary(x, np.arange(5), head_axis=-2)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, rotations.rope(x, np.arange(5)), atol=3e-7)
    np.testing.assert_allclose(
        jax.grad(lambda x: jnp.sum(pe.rotary(x, np.arange(5), head_axis=-2) ** 2))(x), 2 * x, atol=1e-6
    )


SECTIONS = {
    "sections": pe.multi_section(pe.geometric(16), [2, 3, 3]),
    "interleaved sections": pe.multi_section(pe.geometric(16), [4, 2, 2], interleaved=True),
    "axial": pe.axial(12, 3),
}


@compiled_by(quick)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_pair_turns_by_its_own_coordinate(layout, program):
    x, p = normal(2, 5, 4, 16), np.random.default_rng(4).integers(0, 1000, (2, 5, 3))
    turned = program(lambda x, p: {k: pe.rotary(x, p, f, layout=layout, head_axis=-2) for k, f in SECTIONS.items()})
    for name, got in turned(x, p).items():
        angles = np.take(p, SECTIONS[name].axes, axis=-1) * SECTIONS[name].angular
        want = rotations.rotate_by(x, angles[:, :, None], layout)
        np.testing.assert_allclose(got, want, atol=1e-6, err_msg=name)


def test_text_of_three_equal_coordinates_is_ordinary():
    x, p = normal(5, 2, 16), np.arange(7, 12)
    sections = pe.multi_section(16, [2, 3, 3])
    np.testing.assert_array_equal(
        pe.rotary(x, np.stack([p] * 3, -1), sections, head_axis=-2), pe.rotary(x, p, head_axis=-2)
    )


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 3)])
def test_as_many_tokens_as_coordinates_are_not_guessed(shape):
    """They may be one point for all, or a number for each of three tokens of text."""
    f, x, p = pe.multi_section(16, [2, 3, 3]), normal(2, 3, 2, 16), np.zeros(shape, np.int32)
    with pytest.raises(
        ValueError,
        match=r"positions of shape \(.*\) must have 3 axes with frequencies of 3 axes, .* pass positions\[..., None\] if all",
    ):
        pe.rotary(x, p, f, head_axis=-2)
    text = pe.rotary(x, p[..., None], f, head_axis=-2)
    np.testing.assert_array_equal(pe.rotary(x, np.zeros((3, 3), np.int32)[None], f, head_axis=-2), text)


def test_a_last_axis_of_size_1_holds_all_coordinates():
    f, g = pe.multi_section(16, [2, 3, 3]), pe.geometric(16)
    x, p = normal(2, 5, 2, 16), np.int32([[0, 1, 2, 3, 4], [7, 8, 9, 2**31 - 1, 11]])
    by = RotaryPlan((RotaryLayer(f, 16),), "half")
    calls = {
        "rotary": lambda p, f: pe.rotary(x, p, f, head_axis=-2),
        "RotaryPlan.rotate": lambda p, f: (
            by.rotate(x, 0, p, head_axis=-2) if f.num_axes > 1 else pe.rotary(x, p, f, head_axis=-2)
        ),
        "sinusoidal": pe.sinusoidal,
        "add_sinusoidal": lambda p, f: pe.add_sinusoidal(x[:, :, 0], p, f),
        "cos_sin": pe.cos_sin,
        "shift": lambda p, f: pe.shift(x[:, :, 0], p, f),
        "rotation_matrix": pe.rotation_matrix,
        "offset_similarity": pe.offset_similarity,
    }
    for name, call in calls.items():
        for got, want in zip(*(jax.tree.leaves(call(*a)) for a in ((p[..., None], f), (p, g))), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6 * (name == "offset_similarity"), err_msg=name)
        with pytest.raises(
            ValueError,
            match=rf"^{name}: (positions|offset) must have a last axis of size 3, .*; pass (positions|offset)\[\.\.\., None\]",
        ):
            call(p, f)


@pytest.mark.parametrize("length", [5, 3, 1])
def test_coordinates_before_the_rows_are_told_to_move(length):
    """As transformers passes them, (3, batch, seq); a prompt of three tokens and a decode step fit by chance."""
    f, x = pe.multi_section(16, [2, 3, 3]), jax.ShapeDtypeStruct((2, length, 2, 16), np.float32)
    p = np.zeros((3, 2, length), np.int32)
    rotate = lambda p: jax.eval_shape(lambda x: pe.rotary(x, p, f, head_axis=-2), x)  # noqa: E731
    with pytest.raises(ValueError, match=r"^rotary: positions .* jnp.moveaxis\(positions, 0, -1\)"):
        rotate(p)
    rotate(np.moveaxis(p, 0, -1))


def test_a_last_axis_of_size_1_that_may_be_rows_is_refused():
    f, x = pe.multi_section(16, [2, 3, 3]), jax.ShapeDtypeStruct((5, 5, 2, 16), np.float32)
    rotate = lambda p: jax.eval_shape(lambda x: pe.rotary(x, p, f, head_axis=-2), x)  # noqa: E731
    with pytest.raises(
        ValueError,
        match=r"positions of shape \(5, 1\) must have 3 axes with frequencies of 3 axes, the last for the coordinates; pass positions",
    ):
        rotate(np.zeros((5, 1), np.int32))  # one offset for each row, or one position for each token?
    rotate(np.zeros((5, 5, 1), np.int32))
    rotate(np.zeros((1, 5, 1), np.int32))


@compiled_by(quick)
@pytest.mark.parametrize("layout", tiered(LAYOUTS, ["half"]))
def test_float32_precision_is_what_references_compute(layout, program):
    x, p, f = normal(50, 2, 16), np.arange(4000, 4050), pe.geometric(16)
    angles = encodings.float32_phases(p, spectra.geometric(16, 10_000))[:, None]
    want = rotations.rotate_by(x, angles, layout)
    both = f.with_precision("float32"), f
    turned = program(lambda x, p: [pe.rotary(x, p, f, layout=layout, head_axis=-2) for f in both])
    got, exact = turned(x, p)
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert np.abs(want - np.asarray(exact)).max() > 2e-5  # the float32 phases' own error


# Derivatives


@pytest.mark.parametrize(
    ("layout", "inverse", "shape"),
    [
        slow("half", False, (2, 5)),
        ("interleaved", True, (5,)),
        slow("half", True, (2, 1)),
        slow("interleaved", False, ()),
    ],
)
def test_derivatives_in_x_positions_and_frequencies(layout, inverse, shape):
    x, weights = normal(2, 5, 3, 8), normal(2, 5, 3, 8, seed=1)
    p = np.random.default_rng(5).uniform(-3, 3, shape).astype(np.float32)
    w = np.asarray([1.3, 0.2, 0.7], np.float32)
    expected = rotations.derivatives(x, p, w, lambda y: 2 * weights * y, layout, inverse)

    def rotate(x, p, w, **part):
        if shape[-1:] == (5,):
            return pe.rotary(x, p, w, layout=layout, inverse=inverse, head_axis=-2, **part)
        return pe.shift_keys(x, -p if inverse else p, w, layout=layout, head_axis=-2, **part)

    @quick
    def slopes(x, p, w):
        ours = lambda x, p, w: jnp.sum(weights * rotate(x, p, w) ** 2)  # noqa: E731
        # The last features instead of the first: the same of features in another order.
        turned_round = lambda v: jnp.concatenate([v[..., 6:], v[..., :6]], -1)  # noqa: E731
        last = lambda p, w: rotate(turned_round(x), p, w, part="last")  # noqa: E731
        loss = lambda p, w: jnp.sum(turned_round(jnp.asarray(weights)) * last(p, w) ** 2)  # noqa: E731
        return {
            "together": jax.grad(ours, argnums=(0, 1, 2))(x, p, w),
            "of the last features": (None, *jax.grad(loss, argnums=(0, 1))(p, w)),
            "positions alone": (None, jax.grad(lambda p: ours(x, p, w))(p), None),
            "frequencies alone": (None, None, jax.grad(lambda w: ours(x, p, w))(w)),
        }

    for name, results in slopes(x, p, w).items():
        for by, got, argument, want in zip(("x", "p", "w"), results, (x, p, w), expected, strict=True):
            if got is not None:
                assert got.shape == argument.shape and got.dtype == argument.dtype
                bound = 2e-5 + 2e-5 * np.abs(want)
                assert_within(got, want, bound, against=f"{name}, by {by}: the float64 derivative")


def test_derivatives_in_positions_of_several_coordinates():
    x, f = normal(2, 5, 3, 8), pe.multi_section(pe.geometric(8), [1, 2, 1])
    p = np.random.default_rng(6).uniform(-3, 3, (5, 3)).astype(np.float32)
    loss = lambda p: jnp.sum(pe.rotary(x, p, f, head_axis=-2) * x)  # noqa: E731
    got = np.asarray(quick(jax.grad(loss))(p))
    z = rotations.as_complex(x, "half")
    angles = np.take(p.astype(np.float64), f.axes, -1) * f.angular
    slopes = -np.sin(angles)[None, :, None] * np.abs(z) ** 2 * f.angular  # d/dθ Re(z̄ z e^{iθ})
    want = np.stack([slopes[..., np.array(f.axes) == c].sum((0, 2, 3)) for c in range(3)], -1)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", tiered(LAYOUTS, ["half"]))
def test_the_derivative_is_the_rotation_backward(layout):
    x, dy = (normal(2, 5, 3, 10, seed=seed).astype(jnp.bfloat16) for seed in range(2))
    p = np.random.default_rng(7).integers(-(2**31), 2**31, (2, 5)).astype(np.int32)
    turned = lambda x: pe.rotary(x, p, SCALED, layout=layout, head_axis=-2)  # noqa: E731
    dx = jax.jit(lambda x, dy: jax.vjp(turned, x)[1](dy)[0])(x, dy)
    undone = dataclasses.replace(SCALED, attention_factor=1 / SCALED.attention_factor)
    assert dx.dtype == x.dtype
    np.testing.assert_array_equal(dx, pe.rotary(dy, p, undone, layout=layout, inverse=True, head_axis=-2))


def test_derivatives_by_frequencies_are_not_rounded_to_16_bits():
    x, weights = (normal(64, 4, 8, seed=i).astype(jnp.bfloat16) for i in range(2))
    w = np.float32([1.3, 0.2, 0.7, 0.01])
    total = lambda w, x: jnp.vdot(weights.astype(np.float32), pe.rotary(x, None, w, head_axis=-2).astype(jnp.float32))  # noqa: E731
    got, want = quick(lambda w, *x: [jax.grad(total)(w, v) for v in x])(w, x, x.astype(np.float32))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)  # sums of 256 terms of up to 64 · 3


@pytest.mark.slow
def test_derivatives_compose():
    x, p = normal(4, 3, 2, 8), np.arange(3)
    loss = lambda x: jnp.sum(pe.rotary(x, p, head_axis=-2) ** 4)  # noqa: E731
    plain = jax.jit(jax.grad(loss))(x)
    np.testing.assert_array_equal(jax.jit(jax.vmap(jax.grad(loss)))(x), plain)
    np.testing.assert_array_equal(jax.jit(jax.grad(jax.checkpoint(loss)))(x), plain)
    one = x[0, 0, 0]
    turned = lambda x: pe.rotary(x, 3, head_axis=None)  # noqa: E731

    @quick
    def others(x, one):
        scanned = lambda x: lax.scan(lambda c, v: (c + loss(v), None), jnp.zeros((), jnp.float32), x)[0]  # noqa: E731
        along = lambda x: jnp.vdot(jax.grad(loss)(x), x)  # noqa: E731
        return jax.grad(scanned)(x), jax.grad(along)(x), jax.jacrev(turned)(one), turned(one)

    scanned, along, jacobian, y = jax.device_get(others(x, one))
    np.testing.assert_allclose(scanned, plain, rtol=1e-6)
    np.testing.assert_allclose(along, 4 * np.asarray(plain), rtol=1e-5, atol=1e-5)  # H·x + ∇ = 3∇ + ∇ for a quartic
    np.testing.assert_allclose(jacobian @ one, y, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Explicit, "shard_map"])
@pytest.mark.parametrize(
    ("x_spec", "p_spec"),
    [(P("d"), P()), (P(), P("d")), (P("d"), P("d"))],
    ids=["x", "positions", "both"],
)
def test_derivatives_on_a_mesh(kind, x_spec, p_spec, on_cpu):
    # Each has the type of its argument: summed over the devices where the argument is one for all.
    x, p, w = normal(8, 3, 6), np.linspace(-3, 3, 8, dtype=np.float32), np.float32([1.3, 0.2, 0.7])
    total = lambda x, p, w: jnp.sum(pe.rotary(x, p, w, head_axis=-2) ** 3)  # noqa: E731
    want = rotations.derivatives(x, p, w, lambda y: 3 * y**2, "half")
    explicit = kind != "shard_map"
    mesh = jax.make_mesh((8,), ("d",), (kind if explicit else AxisType.Auto,), devices=jax.devices("cpu"))
    if not explicit:

        def total(x, p, w):
            def local(x, p, w):
                if x.shape[0] > p.shape[0]:  # all of x on each device
                    x = lax.dynamic_slice_in_dim(x, lax.axis_index("d"), 1)
                elif p.shape[0] > x.shape[0]:
                    p = lax.dynamic_slice_in_dim(p, lax.axis_index("d"), 1)
                return lax.psum(jnp.sum(pe.rotary(x, p, w, head_axis=-2) ** 3), "d")

            return jax.shard_map(local, mesh=mesh, in_specs=(x_spec, p_spec, P()), out_specs=P())(x, p, w)

    with jax.set_mesh(mesh):
        if explicit:
            x, p = (jax.device_put(v, NamedSharding(mesh, spec)) for v, spec in ((x, x_spec), (p, p_spec)))

        @quick
        def slopes(x, p, w):
            by_x = jax.grad(lambda x: total(x, p, pe.geometric(6)) if explicit else total(x, p, w))
            return jax.grad(total, (0, 1, 2))(x, p, w), by_x(x)

        got, by_x = slopes(x, p, w)
    for by, one, true in zip(("x", "p", "w"), got, want, strict=True):
        assert_within(one, true, 1e-5 + 1e-4 * np.abs(true), against=f"the float64 derivative by {by}")
    assert np.isfinite(np.asarray(by_x)).all()


def test_an_x_that_is_one_for_all_devices(on_cpu):
    x, p, weights = normal(1, 3, 6), np.arange(8), normal(8, 3, 6, seed=1)
    total = lambda x, p, c: jnp.sum(c * pe.rotary(x, p, head_axis=-2))  # noqa: E731
    want = rotations.rope(weights, -np.arange(8)).sum(0, keepdims=True)
    local = lambda x, p, c: lax.psum(total(x, p, c), "d")  # noqa: E731
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu"))
    got = quick(jax.grad(jax.shard_map(local, mesh=mesh, in_specs=(P(), P("d"), P("d")), out_specs=P())))
    np.testing.assert_allclose(got(x, p, weights), want, rtol=1e-5, atol=1e-6)


# Layouts of weights


@compiled_by(quick)
@pytest.mark.parametrize(("part", "dim"), [slow("first", 8), slow("first", 4), ("last", 6)])
def test_convert_layout_keeps_the_scores_of_a_layer(part, dim, program):
    heads, head_dim, p = 2, 8, np.arange(5)
    layer = nnx.eval_shape(
        lambda: nnx.MultiHeadAttention(heads, heads * head_dim, use_bias=True, decode=False, rngs=nnx.Rngs(0))
    )
    x, bias = normal(5, heads * head_dim), normal(heads, head_dim, seed=9)
    shapes = layer.query.kernel.shape, layer.key.kernel.shape
    kernels = [normal(*shape, seed=i) / np.float32(4) for i, shape in enumerate(shapes, 1)]
    flat = [kernel.reshape(len(kernel), -1) for kernel in kernels]

    def scores(kernels, bias, layout):
        projected = (np.einsum("si,ihd->shd", x, kernel) + bias for kernel in kernels)
        return np.einsum("qhd,khd->hqk", *(rotations.rope(v, p, dim, layout=layout, part=part) for v in projected))

    def converted(kernels, flat, bias):
        convert = functools.partial(pe.convert_layout, frequencies=dim, source="interleaved", target="half", part=part)
        moved = [convert(kernel, axis=-1, num_heads=1) for kernel in kernels]
        back = pe.convert_layout(moved[0], dim, source="half", target="interleaved", axis=2, num_heads=1, part=part)
        moved_flat = [convert(kernel.T, axis=0, num_heads=heads) for kernel in flat]
        biases = [convert(bias.reshape(-1), axis=axis, num_heads=heads) for axis in (0, -1)]
        unmoved = pe.convert_layout(bias, 4, source="half", target="half", axis=1, num_heads=1)
        return moved, convert(bias, axis=1, num_heads=1), back, moved_flat, biases, unmoved

    moved, moved_bias, back, moved_flat, biases, unmoved = jax.device_get(program(converted)(kernels, flat, bias))
    want = scores(kernels, bias, "interleaved")
    np.testing.assert_allclose(scores(moved, moved_bias, "half"), want, atol=1e-4)
    assert np.abs(scores(kernels, bias, "half") - want).max() > 1e-2
    np.testing.assert_array_equal(back, kernels[0])
    np.testing.assert_array_equal(unmoved, bias)
    # The same outputs in one axis, head by head, as torch's (outputs, inputs) and a flat bias hold them.
    for kernel, got in zip(moved, moved_flat, strict=True):
        np.testing.assert_array_equal(got, kernel.reshape(len(kernel), -1).T)
    for got in biases:
        np.testing.assert_array_equal(got, moved_bias.reshape(-1))


@compiled_by(quick)
def test_convert_layout_keeps_dtypes(program):
    convert = functools.partial(pe.convert_layout, source="half", target="interleaved", axis=0, num_heads=1)
    weights = [np.arange(8).astype(dtype) for dtype in (jnp.bfloat16, np.int8, np.float32)]
    for given, got in zip(weights, program(lambda weights: [convert(w, 8) for w in weights])(weights), strict=True):
        assert got.dtype == given.dtype
        np.testing.assert_array_equal(np.asarray(got).astype(np.float32), [0, 4, 1, 5, 2, 6, 3, 7])
    with jax.enable_x64(False):
        assert convert(np.zeros(8), 8).dtype == np.float32
        with pytest.raises(TypeError, match="convert_layout: weights are int64, which this"):
            convert(np.zeros(8, np.int64), 8)


def test_pairs_in_and_halves_out():
    """MaxText's YaRN takes pairs and gives halves, and its caches hold that."""
    x, f, n = normal(2, 5, 3, 8), pe.yarn(8, 1e4, 8, 4096), 4
    halves = x.reshape(2, 5, 3, n, 2).swapaxes(-1, -2).reshape(x.shape)
    pairs = np.asarray(pe.rotary(x, None, f, layout="interleaved", head_axis=-2))
    want = np.concatenate([pairs[..., ::2], pairs[..., 1::2]], -1)
    np.testing.assert_array_equal(pe.rotary(halves, None, f, head_axis=-2), want)


X = np.zeros((2, 5, 3, 8), np.float32)
convert = functools.partial(pe.convert_layout, source="half", target="interleaved")


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.rotary(X, None, 10, head_axis=-2), ValueError, r"rotary: frequencies of width 10 must fit into head_dim, x has shape \(2, 5, 3, 8\)"),
        (lambda: pe.rotary(X, None, 7, head_axis=-2), ValueError, "rotary: frequencies must have an even dim, got 7"),
        (lambda: pe.rotary(X[..., :7], head_axis=-2), ValueError, "rotary: frequencies must have an even dim, got 7"),
        (lambda: pe.rotary(X, np.arange(4), head_axis=-2), ValueError, r"rotary: positions of shape \(4,\) must broadcast to x without its head axis and its last, shape \(2, 5\)"),
        (lambda: pe.rotary(X, np.zeros((2, 5, 3), int), head_axis=-2), ValueError, r"positions of shape \(2, 5, 3\) must broadcast .* \(2, 5\)"),
        (lambda: pe.rotary(X, np.zeros((5, 2), int), head_axis=-2), ValueError, r"positions of shape \(5, 2\) must broadcast .* \(2, 5\)"),
        (lambda: pe.rotary(X, np.arange(5), head_axis=-3), ValueError, r"positions of shape \(5,\) must broadcast .* shape \(2, 3\)"),
        (lambda: pe.rotary(X, None, pe.axial(8, 2), head_axis=-2), ValueError, "rotary: positions must be given for frequencies of 2 axes, got None"),
        (lambda: pe.rotary(X, np.arange(5), pe.axial(8, 2), head_axis=-2), ValueError, r"rotary: positions must have a last axis of size 2, .* got shape \(5,\)"),
        (lambda: pe.rotary(X[0, 0], head_axis=-2), ValueError, r"rotary: positions must be given where x has no sequence axis, shape \(3, 8\)"),
        (lambda: pe.rotary(X.astype(int), head_axis=-2), TypeError, r"rotary: x must be a float array of shape \(..., heads, head_dim\), got int64"),
        (lambda: pe.rotary([1.0, 2.0], head_axis=-2), TypeError, r"rotary: x must be a float array"),  # type: ignore
        (lambda: pe.rotary(X.astype(int), head_axis=None), TypeError, r"rotary: x must be a float array of shape \(..., head_dim\), got int64"),
        (lambda: pe.rotary(X, head_axis=(-3, "a")), TypeError, "rotary: head_axis must be an integer, a tuple of integers or None, got str 'a'"),
        (lambda: pe.rotary(X, head_axis=(-2, 2)), ValueError, r"rotary: head_axis must name each axis of x once, got \(-2, 2\)"),
        (lambda: pe.rotary(X, head_axis=(-2, -1)), ValueError, r"rotary: head_axis must be an axis of x other than its last, shape \(2, 5, 3, 8\), got \(-2, -1\)"),
        (lambda: pe.rotary(X, head_axis=(0, 1, 2)), ValueError, r"rotary: positions must be given where x has no sequence axis, shape \(2, 5, 3, 8\)"),
        (lambda: pe.rotary(X[0, 0, 0], head_axis=-2), ValueError, r"rotary: x must have shape \(..., heads, head_dim\), got \(8,\)"),
        (lambda: pe.rotary(X, head_axis=-1), ValueError, r"rotary: head_axis must be an axis of x other than its last, .* got -1"),
        (lambda: pe.rotary(X, head_axis=3), ValueError, "rotary: head_axis must be an axis of x other than its last"),
        (lambda: pe.rotary(X, head_axis=4), ValueError, "rotary: head_axis must be an axis of x other than its last"),
        (lambda: pe.rotary(X, head_axis=True), TypeError, "rotary: head_axis must be an integer, a tuple of integers or None, got bool True"),
        (lambda: pe.rotary(np.ones((2, 1, 4), np.float32), head_axis=np.timedelta64(1, "s")), TypeError, "rotary: head_axis must be an integer, a tuple of integers or None, got timedelta64"),
        (lambda: pe.convert_layout(np.ones(8), 8, source="half", target="half", axis=np.timedelta64(0, "s"), num_heads=1), TypeError, "convert_layout: axis must be an integer, got timedelta64"),
        (lambda: pe.rotary(X, layout="neox", head_axis=-2), ValueError, "rotary: layout must be one of .* got 'neox'"),  # type: ignore
        (lambda: pe.rotary(X, part="middle", head_axis=-2), ValueError, "rotary: part must be one of .* got 'middle'"),  # type: ignore
        (lambda: pe.rotary(X, inverse="no", head_axis=-2), TypeError, "rotary: inverse must be"),  # type: ignore
        (lambda: pe.rotary(X, None, dataclasses.replace(pe.geometric(8), attention_factor=0.0), inverse=True, head_axis=-2), ValueError, "rotary: inverse needs frequencies with an attention_factor above 3e-39, got 0.0"),
        (lambda: pe.rotary(X, None, dataclasses.replace(pe.geometric(8), attention_factor=-2e-39), inverse=True, head_axis=-2), ValueError, "rotary: inverse needs frequencies with an attention_factor above 3e-39, got -2e-39"),
        (lambda: pe.rotary(X, "3", head_axis=-2), TypeError, "rotary: positions must be an integer or float array, got str '3'"),  # type: ignore
        (lambda: pe.rotary(X, np.array([2**31]), head_axis=-2), ValueError, "rotary: positions must fit into int32"),
        (lambda: pe.rotary(X, None, "8", head_axis=-2), TypeError, "rotary: frequencies must be Frequencies, an integer width"),  # type: ignore
        (lambda: convert([1, 2], 2, axis=0, num_heads=1), TypeError, "convert_layout: weights must be an array that JAX can hold, got list"),  # type: ignore
        (lambda: convert(np.full((2, 8), "a"), 8, axis=1, num_heads=1), TypeError, "convert_layout: weights must be an array that JAX can hold, got <U1"),
        (lambda: convert(np.ma.ones((2, 8), np.float32), 8, axis=1, num_heads=1), TypeError, "convert_layout: weights must be an array that JAX can hold, got masked float32"),
        (lambda: convert(X, 8, axis=4, num_heads=1), ValueError, r"convert_layout: axis must be one of weights, shape \(2, 5, 3, 8\), got 4"),
        (lambda: convert(X, 8, axis=0.0, num_heads=1), TypeError, "convert_layout: axis must be an integer, got float 0.0"),  # type: ignore
        (lambda: convert(X, 8, axis=-1, num_heads=3), ValueError, "convert_layout: num_heads must divide axis 3 of weights, .* got 3"),
        (lambda: convert(X, 8, axis=-1, num_heads=2), ValueError, "convert_layout: frequencies must have an even width of at most 4, the head_dim, got 8"),
        (lambda: convert(X, 3, axis=-1, num_heads=1), ValueError, "convert_layout: frequencies must have an even width of at most 8, the head_dim, got 3"),
        (lambda: convert(X, 8, axis=-1, num_heads=0), ValueError, "convert_layout: num_heads must be at least 1, got 0"),
        (lambda: convert(X, 8, axis=-1, num_heads=1, part="all"), ValueError, "convert_layout: part must be one of"),
        (lambda: pe.convert_layout(X, 8, source="half", target="meta", axis=-1, num_heads=1), ValueError, "convert_layout: target must be one of"),  # type: ignore
        (lambda: pe.convert_layout(X, 8, source="meta", target="half", axis=-1, num_heads=1), ValueError, "convert_layout: source must be one of"),  # type: ignore
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_positions_that_are_not_known_to_fit_give_nan():
    p = np.float32([1.0, 3e9, np.nan])
    y = jax.jit(lambda p: pe.rotary(np.ones((3, 2, 4), np.float32), p, head_axis=-2))(p)
    assert np.isfinite(y[0]).all() and np.isnan(y[1:]).all()


@compiled_by(jax.jit)
@pytest.mark.parametrize("layout", tiered(LAYOUTS, ["half"]))
def test_several_head_axes_are_one_that_is_divided(layout, program):
    x, p = normal(2, 5, 6, 8), np.int32([[0, 1, 2, 3, 4], [7, 2**31 - 1, 5, 5, -9]])
    by_head = normal(6, 1, 4, seed=1)
    options = {"layout": layout}

    def each(x, p, w):
        divided = x.reshape(2, 5, 2, 3, 8)  # batch, seq, kv_heads, group, head_dim
        first = divided.transpose(2, 0, 3, 1, 4)  # kv_heads, batch, group, seq, head_dim
        want = [pe.rotary(x, at, f, head_axis=-2, **options) for at, f in ((p, None), (None, SCALED), (p, w))]
        got = [
            pe.rotary(divided, at, f, head_axis=(-3, -2), **options) for at, f in ((p, None), (None, SCALED), (p, w))
        ]
        got += [pe.rotary(first, p, None, head_axis=[0, 2], **options).transpose(1, 3, 0, 2, 4)]
        got += [pe.rotary(divided, cos_sin=pe.cos_sin(p, 8), head_axis=(3, 2), **options)]
        got += pe.xpos(divided, divided, p, head_axis=(-3, -2), **options)
        return want + [want[0]] * 2 + [*pe.xpos(x, x, p, head_axis=-2, **options)], got

    for want, got in zip(*program(each)(x, p, by_head), strict=True):
        np.testing.assert_array_equal(got.reshape(want.shape), want)
    at = np.repeat(p[:, :, None], 6, 2)
    np.testing.assert_array_equal(pe.rotary(x, at, 8, head_axis=()), pe.rotary(x, p, 8, head_axis=-2))


def test_which_vectors_share_a_position_depends_on_the_head_axes():
    x = jax.ShapeDtypeStruct((1, 1, 2, 3, 8), np.float32)
    rotate = lambda x, p, heads: pe.rotary(x, p, SCALED, head_axis=heads)  # noqa: E731
    one = np.int32([[3]])
    jax.eval_shape(lambda x: rotate(x, one, (-3, -2)), x)  # one token
    with pytest.raises(ValueError, match="positions must not be one for all 2 vectors of x"):
        jax.eval_shape(lambda x: rotate(x, one, -2), x)


@pytest.mark.parametrize("name", ["base", "theta", "rope_theta"])
def test_a_base_is_given_with_the_frequencies(name):
    message = rf"{name} must be given as frequencies=geometric\(width, 500000.0\), got {name}=500000.0"
    calls = pe.rotary, pe.cos_sin, pe.sinusoidal, pe.pope, pe.xpos, nnx_modules.RotaryEncoding, linen.RotaryEncoding
    for call in calls:
        with pytest.raises(TypeError, match=f"^{call.__name__}: {message}$"):
            call(X, **{name: 5e5})


@pytest.mark.parametrize("base", tiered([10_000, 500_000], [10_000]))
def test_a_base_is_not_a_width(base):
    match = rf"frequencies of width {base} .*; for a base of {base}, pass geometric\(8, {base}\)"
    with pytest.raises(ValueError, match=match):
        pe.rotary(X, None, base, head_axis=-2)


def test_the_head_axis_must_be_said():
    for call in (lambda: pe.rotary(X), lambda: pe.xpos(X, X)):
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'head_axis'"):
            call()
