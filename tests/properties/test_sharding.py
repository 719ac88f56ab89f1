"""Over many devices every function computes its part where it is: no collective, nothing of the global length."""

import dataclasses
import functools
import importlib.util
import math
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from devices.aot import Compiled
from helpers.biases import BIASES
from helpers.closeness import assert_within
from helpers.hopper import interpreted
from helpers.quick import compiler_options, quick
from helpers.tiers import slow, tiered
from oracles import cameras
from posenc_jax import hf

pytestmark = pytest.mark.usefixtures("on_cpu", "compiled_anew")
AXES = D, S, H = "data", "sequence", "heads"
BATCH, LENGTH, HEADS, DIM, KEYS = 8, 128 * 17, 16, 8, 5
RNG = np.random.default_rng(0)
EACH = RNG.integers(-(2**31), 2**31, (BATCH, LENGTH)).astype(np.int32)
NEAR = RNG.integers(0, 9000, (BATCH, LENGTH)).astype(np.int32)
COUNT = np.arange(LENGTH, dtype=np.int32)
TIMES = RNG.uniform(0, 1000, (BATCH, LENGTH)).astype(np.float32)
PLACES = RNG.integers(0, 9000, (BATCH, LENGTH, 2)).astype(np.int32)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


X, Q = normal(BATCH, LENGTH, DIM), normal(BATCH, LENGTH, HEADS, DIM)
SLOPES = np.linspace(0.1, 0.9, HEADS, dtype=np.float32)
LAST = {"frequencies": 4, "part": "last", "inverse": True}
FLOAT32, SECTIONS = pe.geometric(DIM).with_precision("float32"), pe.multi_section(DIM, (1, 3))
QB, W, TABLE = Q.astype(jnp.bfloat16), RNG.uniform(0.01, 2, HEADS).astype(np.float32), normal(50, DIM)
ROWS, HEADED, BIAS, ONE = P(D, S), P(D, S, H), P(D, H, S), P(H)
TILE = [(NEAR, ROWS), (NEAR[:, :KEYS], P(D))]  # the queries of a bias are sharded, its keys are not
FLOATS = [(TIMES, ROWS), (TIMES[:, :KEYS], P(D))]
COLUMNS = TILE[::-1]  # its keys are, and not its queries
MLP = [(normal(4), P()), (normal(4), P()), (normal(4, HEADS), P(None, H)), (normal(HEADS), ONE)]


def back(x, dy, p):
    return jax.vjp(lambda x: pe.rotary(x, p, head_axis=-2), x)[1](dy)[0]


def fire(i, j, *mlp):
    return pe.fire(i, j, mlp, c=0.1, threshold=50.0)


def by_cos_sin(x, *arrays):
    return pe.rotary(x, cos_sin=pe.CosSin(*arrays, columns="pair"), head_axis=-2)


def of_phase(x, phase, positions):
    return pe.pope(x, positions, phase=phase, layout="interleaved", head_axis=-2)


def of_layer(x, layer, positions, alpha, slope, bias):
    arrays = {"alpha": alpha, "slope": slope, "bias": bias}
    return PLAN.rotate(x, layer, positions, head_axis=-2, role="query", parameters=arrays)


# Layers that rotate, do not, and scale queries by position or by learned factors; slices of a head
LAYER, SCALE = partial(hf.RotaryLayer, head_dim=DIM), hf.HeadScale("slope", "bias", HEADS)
PLAN = hf.RotaryPlan(
    (LAYER(DIM), LAYER(0, query_scale=hf.QueryScale(0.1, 4)), LAYER(4, query_scale=SCALE, learned_log_factor="alpha")),
    "half",
)
SLICED = hf.VisionPlan((LAYER(pe.axial(DIM, 2)),), "half", grids=(hf.PatchGrid(),), slices=2)
ROTARY = partial(pe.rotary, head_axis=-2)
POSES = cameras.poses(RNG, BATCH, LENGTH).astype(np.float32)
LENS = cameras.lenses(RNG, image_size=(96, 160)).astype(np.float32)
IN_VIEW = partial(pe.prope, role="query", head_axis=-2, image_size=(96, 160), width=4)
BY_HEAD = normal(HEADS, 2, 1)  # of one pair: batch and sequence do not split increments, 68 bytes for each frequency
# name → function, its arguments with what shards them, what shards the result
CASES = {
    "sinusoidal": (partial(pe.sinusoidal, frequencies=DIM), [(EACH, ROWS)], ROWS),
    "sinusoidal, features": (pe.sinusoidal, [(EACH, ROWS), (W, ONE)], HEADED),
    "add_sinusoidal": (pe.add_sinusoidal, [(X, ROWS), (COUNT, P(S))], ROWS),
    "add_sinusoidal, counted": (pe.add_sinusoidal, [(X, ROWS)], ROWS),
    "add_sinusoidal, counted, width": (pe.add_sinusoidal, [(X, HEADED)], HEADED),
    "add_sinusoidal, learned": (pe.add_sinusoidal, [(X, ROWS), (COUNT, P(S)), (W[:4], P())], ROWS),
    "learned": (pe.learned, [(NEAR % 50, ROWS), (TABLE, P())], ROWS),
    "learned, width": (pe.learned, [(NEAR % 50, ROWS), (TABLE, P(None, H))], HEADED),
    "add_learned": (pe.add_learned, [(X, ROWS), (TABLE, P()), (COUNT % 50, P(S))], ROWS),
    "fourier_features": (pe.fourier_features, [(normal(BATCH, LENGTH, 3), ROWS), (normal(3, 4), P())], ROWS),
    "timestep_embedding": (partial(pe.timestep_embedding, dim=DIM), [(TIMES, ROWS)], ROWS),
    "rotary, half": (ROTARY, [(Q, HEADED), (COUNT, P(S))], HEADED),
    "rotary, interleaved": (partial(ROTARY, layout="interleaved"), [(Q, HEADED), (COUNT, P(S))], HEADED),
    "rotary, bfloat16": (ROTARY, [(QB, HEADED), (EACH, ROWS)], HEADED),
    "rotary, counted": (ROTARY, [(Q, HEADED)], HEADED),
    "rotary, by heads": (ROTARY, [(Q, HEADED), (PLACES, ROWS), (BY_HEAD, ONE)], HEADED),
    "rotary, waves": (by_cos_sin, [(Q, HEADED), (normal(LENGTH, 4), P(S)), (normal(LENGTH, 4), P(S))], HEADED),
    "cos_sin": (partial(pe.cos_sin, frequencies=DIM), [(EACH, ROWS)], ROWS),
    "rotary, derivative": (back, [(Q, HEADED), (Q, HEADED), (COUNT, P(S))], HEADED),
    "RotaryPlan.rotate": (
        of_layer,
        [(Q, HEADED), (np.int32(2), P()), (NEAR, ROWS), (W[:2], P()), (W, ONE), (W[::-1], ONE)],
        HEADED,
    ),
    "VisionPlan.rotate": (lambda x, p: SLICED.rotate(x, 0, p, head_axis=-2), [(Q, HEADED), (PLACES, ROWS)], HEADED),
    "xpos": (partial(pe.xpos, head_axis=-2), [(Q, HEADED), (Q, HEADED), (COUNT, P(S))], HEADED),
    "prope": (partial(pe.prope, role="key", head_axis=-2), [(Q, HEADED), (POSES, ROWS)], HEADED),
    "pope": (partial(pe.pope, head_axis=-2), [(Q, HEADED), (COUNT, P(S))], HEADED),
    "pope, phase": (of_phase, [(Q, HEADED), (normal(HEADS, DIM), P(H)), (EACH, ROWS)], HEADED),
    "shift": (partial(pe.shift, frequencies=DIM), [(X, ROWS), (EACH, ROWS)], ROWS),
    "shift, one": (partial(pe.shift, frequencies=DIM), [(X, ROWS), (np.int32(5), P())], ROWS),
    "rotation_matrix": (partial(pe.rotation_matrix, frequencies=8), [(EACH, ROWS)], ROWS),
    "offset_similarity": (partial(pe.offset_similarity, frequencies=DIM), [(EACH, ROWS)], ROWS),
}

BIASED = {}  # their parameters are split along the heads
for name, bias in BIASES.items():
    call, parameters = bias.of(HEADS)
    split = [(x, P(*[None] * (x.ndim - 1), H) if x.shape[-1] == HEADS else P()) for x in parameters]
    BIASED[name] = call, [*TILE, *split], BIAS if split else P(D, None, S)
CASES |= BIASED
# Other forms of these, on one mesh
FORMS = {
    "sinusoidal, half": (partial(pe.sinusoidal, frequencies=DIM, layout="half"), [(EACH, ROWS)], ROWS),
    "sinusoidal, odd": (partial(pe.sinusoidal, frequencies=7), [(EACH, ROWS)], ROWS),
    "sinusoidal, half, odd": (partial(pe.sinusoidal, frequencies=7, layout="half"), [(EACH, ROWS)], ROWS),
    "sinusoidal, axial": (partial(pe.sinusoidal, frequencies=pe.axial(DIM, 2)), [(PLACES, ROWS)], ROWS),
    "sinusoidal, floats": (partial(pe.sinusoidal, frequencies=DIM), [(TIMES, ROWS)], ROWS),
    "sinusoidal, float32": (partial(pe.sinusoidal, frequencies=FLOAT32), [(NEAR, ROWS)], ROWS),
    "rotary, sections": (partial(ROTARY, frequencies=SECTIONS), [(Q, HEADED), (PLACES, ROWS)], HEADED),
    "rotary, axial": (partial(ROTARY, frequencies=pe.axial(DIM, 2)), [(Q, HEADED), (PLACES[0], P(S))], HEADED),
    "rotary, partial": (partial(ROTARY, frequencies=4), [(Q, HEADED), (COUNT, P(S))], HEADED),
    "rotary, last, inverse": (partial(pe.rotary, head_axis=-2, **LAST), [(Q, HEADED), (EACH, ROWS)], HEADED),
    "rotary, learned": (ROTARY, [(Q, HEADED), (COUNT, P(S)), (W[:4], P())], HEADED),
    "rotary, floats": (ROTARY, [(Q, HEADED), (TIMES, ROWS)], HEADED),
    "rotary, heads first": (partial(pe.rotary, head_axis=-3), [(Q.swapaxes(1, 2), BIAS), (EACH, ROWS)], BIAS),
    "rotary, no heads": (partial(pe.rotary, head_axis=None), [(X, ROWS), (COUNT, P(S))], ROWS),
    "xpos, interleaved": (partial(pe.xpos, layout="interleaved", head_axis=-2), CASES["xpos"][1], HEADED),
    "prope, one lens": (IN_VIEW, [(Q, HEADED), (POSES[0], P(S)), (LENS, P())], HEADED),
    "shift, half": (partial(pe.shift, frequencies=DIM, layout="half"), [(X, ROWS), (EACH, ROWS)], ROWS),
    "rotation_matrix, half": (partial(pe.rotation_matrix, frequencies=DIM, layout="half"), [(EACH, ROWS)], ROWS),
    "t5, causal": (partial(pe.t5, bidirectional=False), CASES["t5"][1], BIAS),
}
FORMS |= {f"{name}, keys": (f, [*COLUMNS, *x[2:]], P(*spec[:2], None, S)) for name, (f, x, spec) in BIASED.items()}
FORMS |= {
    f"{name}, floats": (f, [*FLOATS, *x[2:]], spec) for name, (f, x, spec) in BIASED.items() if not BIASES[name].sided
}

MANY = {  # the kinds of the axes
    "auto": (AxisType.Auto,) * 3,
    "explicit": (AxisType.Explicit,) * 3,
    "shard_map": (AxisType.Auto,) * 3,
    "explicit batch": (AxisType.Explicit, AxisType.Auto, AxisType.Auto),
    "explicit sequence": (AxisType.Auto, AxisType.Explicit, AxisType.Auto),
}
# Of each kind of function one
MIXED = {"add_sinusoidal", "learned", "rotary, half", "shift", "t5", "fire"}


def mesh_of(shape=(2, 2, 2), kinds=MANY["auto"]):
    return jax.make_mesh(shape, AXES, axis_types=kinds, devices=jax.devices("cpu"))


def put(mesh, arguments):
    return [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in arguments]


@dataclasses.dataclass(frozen=True)
class OnDevice(Compiled):
    """What a compiler made of a function for one device."""

    work: float = dataclasses.field(kw_only=True)  # operations on numbers

    @property
    def reduced(self):
        """The elements of each array that is summed over devices."""
        types = re.findall(r"= (.+?) all-reduce(?:-start)?\(", self.text)
        return [math.prod(map(int, filter(None, n.split(",")))) for t in types for n in re.findall(r"\[([\d,]*)\]", t)]


def compile_and_run(f, *arrays):
    """What the compiler made of it, and its results."""
    compiled = quick(f).lower(*arrays).compile()
    costs, temporaries = compiled.cost_analysis(), compiled.memory_analysis().temp_size_in_bytes
    work = costs.get("flops", 0.0) + costs.get("transcendentals", 0.0)
    return OnDevice(compiled.as_text(), temporaries, 0, work=work), compiled(*arrays)


def on_one(name):
    """On one device, compiled with the options of the test that runs, because bits are compared."""
    return compiled_on_one(name, tuple(compiler_options()))


@functools.cache
def compiled_on_one(name, options):  # options are part of the key alone
    function, arguments, _ = (CASES | FORMS)[name]
    compiled, results = compile_and_run(function, *(x for x, _ in arguments))
    return compiled, jax.tree.map(np.asarray, results)


def on_many(name, mode, shape):
    function, arguments, out = (CASES | FORMS)[name]
    mesh = mesh_of(shape, MANY[mode])
    if mode == "shard_map":
        function = jax.shard_map(function, mesh=mesh, in_specs=tuple(spec for _, spec in arguments), out_specs=out)
    elif mode != "explicit":
        function = jax.jit(function, out_shardings=NamedSharding(mesh, out))
    with jax.set_mesh(mesh):
        compiled, results = compile_and_run(function, *put(mesh, arguments))
    for y in jax.tree.leaves(results):  # on Explicit axes by JAX's rules, which each operation must follow
        assert y.sharding.is_equivalent_to(NamedSharding(mesh, out), y.ndim)
    return compiled, results


def check_local(compiled, whole, sequence, batch=1):
    """No collective, nothing of the global length; a device's share of what one alone does and keeps, and 4 KiB."""
    assert compiled.collectives == ([], [])
    assert sequence == 1 or not [n for n in compiled.sizes if n % LENGTH == 0]
    for here, all_of_it in ((compiled.temporaries, whole.temporaries), (compiled.work, whole.work)):
        assert here <= 1.02 * all_of_it // (sequence * batch) + 4096


SHAPES = [(2, 2, 2), (8, 1, 1), (1, 8, 1), (1, 1, 8)]
ON_MESHES = [(name, shape) for name in CASES for shape in SHAPES if shape[2] < 8 or H in CASES[name][2]]
ON_MESHES += [(name, SHAPES[0]) for name in FORMS]
# For the default: what computes waves, counts, reads rows, turns, turns back and makes a bias, where all axes are split.
FEW = (
    "sinusoidal",
    "add_sinusoidal, counted",
    "learned, width",
    "rotary, half",
    "rotary, derivative",
    "RotaryPlan.rotate",
    "shift",
    "t5",
)


def modes(name, shape):
    """The modes of a case."""
    if "counted" not in name and (shape == SHAPES[0] or shape == SHAPES[2] and name in MIXED):
        yield "shard_map"  # where each device would count its own part from 0
    if shape == SHAPES[0] and name in MIXED:
        yield from ("explicit batch", "explicit sequence")


@pytest.mark.parametrize(
    ("name", "shape", "modes"),
    [
        *((name, SHAPES[0], ["explicit"]) for name in FEW),
        *(slow(name, shape, ["explicit", *modes(name, shape)]) for name, shape in ON_MESHES),
    ],
)
def test_each_device_computes_its_part(name, shape, modes):
    rows = [spec for x, spec in (CASES | FORMS)[name][1] if LENGTH in x.shape]
    batch = shape[0] if "counted" not in name and all(D in spec for spec in rows) else 1  # else it shares positions
    made, (whole, want) = {}, on_one(name)
    for mode in ("auto", *modes):
        made[mode], got = on_many(name, mode, shape)
        check_local(made[mode], whole, shape[1], batch)
        # What is not cut along the sequence is cut as the compiler does where it may choose.
        assert made[mode].work <= 1.01 * made["auto"].work
        assert made[mode].temporaries <= made["auto"].temporaries + 4096
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            if name == "offset_similarity":  # sums of DIM / 2 cosines, in whatever order
                assert_within(a, b, DIM * 2.0**-23, against=f"one device, where {mode} is on eight")
            elif not np.array_equal(a, b):  # which is quicker than to look for the differences at once
                np.testing.assert_array_equal(np.asarray(a), b, err_msg=mode)


@pytest.mark.parametrize("name", [*CASES, *(slow(name) for name in FORMS)])
def test_a_result_is_sharded_as_its_arguments(name):
    """On Explicit axes by JAX's rules, which each operation must follow. Nothing is compiled."""
    function, arguments, out = (CASES | FORMS)[name]
    mesh = mesh_of(kinds=MANY["explicit"])
    with jax.set_mesh(mesh):
        types = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)) for x, spec in arguments]
        results = jax.tree.leaves(jax.eval_shape(function, *types))
    for y in results:
        assert NamedSharding(mesh, y.sharding.spec).is_equivalent_to(NamedSharding(mesh, out), y.ndim)


def test_control_a_collective_is_caught():
    mesh = mesh_of()
    compiled, _ = compile_and_run(lambda x: x - x.mean(1, keepdims=True), *put(mesh, [(X, ROWS)]))
    with pytest.raises(AssertionError):
        check_local(compiled, OnDevice("", 2**30, 0, work=2.0**30), 2)


def test_control_a_table_of_the_global_length_is_caught():
    # Positions that are not sharded, on Explicit axes: every device computes the waves of all.
    mesh = mesh_of(kinds=MANY["explicit"])
    with jax.set_mesh(mesh):
        compiled, _ = compile_and_run(ROTARY, *put(mesh, [(Q, HEADED), (COUNT, P())]))
    with pytest.raises(AssertionError):
        check_local(compiled, on_one("rotary, half")[0], 2)


@pytest.mark.parametrize("steps", [slow(1), 3])  # a loop of one step is none
def test_control_a_row_of_the_global_length_is_caught(steps):
    # Of integers, and each device uses its part of them: no more memory than the share of a large temporary.
    def step(i, x):
        row = lax.sort(jnp.arange(LENGTH, dtype=np.int32) ^ i)  # what a fusion cannot keep to itself
        return x + pe.sinusoidal(lax.dynamic_slice_in_dim(row, lax.axis_index(S) * x.shape[1], x.shape[1]), DIM)[None]

    mesh, f = mesh_of(), lambda x: lax.fori_loop(0, steps, step, x)
    with jax.set_mesh(mesh):
        mapped = jax.shard_map(f, mesh=mesh, in_specs=ROWS, out_specs=ROWS)
        compiled, _ = compile_and_run(mapped, *put(mesh, [(X, ROWS)]))
    assert ("while" in compiled.operations) == (steps > 1)
    with pytest.raises(AssertionError, match=rf"\[{LENGTH}\]"):
        check_local(compiled, OnDevice("", 2**30, 0, work=2.0**30), 2)


def test_control_the_waves_of_all_batches_are_caught():
    def add(x, positions):
        return x + pe.sinusoidal(jnp.broadcast_to(positions, x.shape[:-1]), DIM)

    made = []
    for kinds in (MANY["auto"], MANY["explicit"]):
        mesh = mesh_of((8, 1, 1), kinds)
        with jax.set_mesh(mesh):
            made.append(compile_and_run(add, *put(mesh, [(X, ROWS), (COUNT[None], P())]))[0])
    assert made[1].work > 6 * made[0].work


# Derivatives by what is one for all devices


def by_last(f):
    """The derivative by the last argument, of squares with weights: those of a rotation have the same sum."""

    def total(*arguments):
        y = f(*arguments)
        return jnp.sum(np.sin(np.arange(y.shape[-1], dtype=np.float32)).reshape((1,) * (y.ndim - 1) + (-1,)) * y * y)

    return jax.grad(total, argnums=-1)


LEARNED = {
    "sinusoidal": (pe.sinusoidal, [(NEAR, ROWS), (W[:4], P())]),
    "add_sinusoidal": (pe.add_sinusoidal, [(X, ROWS), (NEAR, ROWS), (W[:4], P())]),
    "rotary": (ROTARY, [(Q, HEADED), (NEAR, ROWS), (W[:4], P())]),
    "shift": (pe.shift, [(X, ROWS), (NEAR, ROWS), (W[:4], P())]),
    "fourier_features": (pe.fourier_features, [(normal(BATCH, LENGTH, 3), ROWS), (normal(3, 4), P())]),
    **{name: (f, x) for name, (f, x, _) in BIASED.items() if len(x) > 2},
    "fire, kernel": (lambda i, j, *x: fire(i, j, *x[:2], x[-1], x[2]), [*TILE, *MLP[:2], MLP[3], MLP[2]]),
    "sandwich": (lambda i, j, w: pe.sandwich(i, j, HEADS, w), [*TILE, (W[:4], P())]),
}


@pytest.mark.parametrize(
    ("name", "modes"),
    [
        ("t5", ["shard_map"]),
        *(slow(name, ["auto", "explicit", "shard_map"]) for name in LEARNED),
    ],
)
def test_derivatives_by_parameters(name, modes):
    f, arguments = LEARNED[name]
    parameter, spec = arguments[-1]
    gradient = by_last(f)
    whole, want = compile_and_run(gradient, *(x for x, _ in arguments))
    for mode in modes:
        mesh = mesh_of(kinds=MANY[mode])
        if mode == "shard_map":  # by what is one for all devices but those along the heads
            gradient = jax.shard_map(gradient, mesh=mesh, in_specs=tuple(spec for _, spec in arguments), out_specs=spec)
        with jax.set_mesh(mesh):
            compiled, got = compile_and_run(gradient, *put(mesh, arguments))
        assert set(compiled.collectives[0]) == {"all-reduce"}
        # The parameter's own sums alone, before or after pairs are made of features; here those of waves of keys too.
        few = BATCH // 2 * KEYS * DIM if name == "sandwich" else 0
        assert max(compiled.reduced) <= max(2 * parameter.size, few)
        assert compiled.work <= 0.3 * whole.work
        assert_within(got, want, 2e-4 * np.abs(want) + 2e-5 * np.abs(want).max(), against=f"one device; {mode}")
        if mode != "auto":
            assert got.sharding.is_equivalent_to(NamedSharding(mesh, spec), got.ndim)


@pytest.mark.parametrize("spmd", [None, D])
def test_a_lookup_where_the_mapped_axis_alone_is_sharded(spmd):
    mesh, rows, x = mesh_of((8, 1, 1), MANY["explicit"]), NEAR[:, :50] % 50, X[:, :50]
    f = jax.vmap(lambda p, x: (pe.learned(p, TABLE), pe.add_learned(x, TABLE, p)), spmd_axis_name=spmd)
    with jax.set_mesh(mesh):
        got, added = jax.jit(f)(*put(mesh, [(rows, P(D)), (x, P(D))]))
    np.testing.assert_array_equal(got, TABLE[rows])
    np.testing.assert_array_equal(added, x + TABLE[rows])


@pytest.mark.slow
@pytest.mark.parametrize("spmd", [None, D])
def test_an_eager_lookup_where_the_mapped_axis_alone_is_sharded(spmd):
    mesh, rows, x = mesh_of((8, 1, 1), MANY["explicit"]), NEAR[:, :50] % 50, X[:, :50]
    mapped = partial(jax.vmap, spmd_axis_name=spmd)
    with jax.set_mesh(mesh):
        here = put(mesh, [(rows, P(D)), (x, P(D))])
        got = mapped(lambda p: pe.learned(p, TABLE))(here[0])
        added = mapped(lambda p, x: pe.add_learned(x, TABLE, p))(*here)
    np.testing.assert_array_equal(got, TABLE[rows])
    np.testing.assert_array_equal(added, x + TABLE[rows])


@pytest.mark.parametrize("table", [P(), slow(P(None, H)), P(H)], ids=str)
def test_derivatives_of_a_lookup_on_explicit_axes(table):
    mesh, dy = mesh_of(kinds=MANY["explicit"]), X.astype(np.float64)
    want = np.zeros(TABLE.shape)
    np.add.at(want, NEAR % 50, dy)
    gradient = quick(jax.grad(lambda t, p, dy: jnp.sum(dy * pe.learned(p, t))))
    with jax.set_mesh(mesh):
        got = gradient(*put(mesh, [(TABLE, table), (NEAR % 50, ROWS), (X, ROWS)]))
    assert got.sharding.is_equivalent_to(NamedSharding(mesh, table), 2)
    assert_within(got, want, 1e-5 * np.abs(want) + 1e-4, against="float64 sums")  # of some 300 numbers


def attend(q, k, v, slopes):
    return pe.attention(q, k, v, bias=lambda i, j: pe.alibi(i, j, slopes), causal=True, block_size=16)


def attention_and_slope(q, k, v, dy, slopes, along=()):
    """The result, and the derivative by the slopes."""

    def total(slopes):
        slopes = lax.pcast(slopes, along, to="varying") if along else slopes
        y = attend(q, k, v, slopes)
        return jnp.sum(y * dy), y

    return jax.grad(total, has_aux=True)(slopes)[::-1]


# The slopes' derivative is summed over devices once if they vary along the batch as the rest does, else in the loop,
# with every tile. Nothing else is sent.
@pytest.mark.parametrize(
    ("mode", "along", "once"),
    [
        slow("auto", (), []),
        slow("explicit", (), []),
        slow("shard_map", (), []),
        ("shard_map", (D,), ["all-reduce"]),
    ],
)
def test_attention_over_batch_and_heads(mode, along, once):
    mesh, specs = mesh_of(kinds=MANY[mode]), (*[P(D, None, H)] * 4, ONE)
    x = *(Q[:4, 64 * i : 64 * i + 64, :4] for i in range(4)), SLOPES[:4]
    want = quick(attention_and_slope)(*x)
    f = partial(attention_and_slope, along=along)
    if mode == "shard_map":
        f = jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=(specs[0], ONE))
    with jax.set_mesh(mesh):
        compiled, got = compile_and_run(f, *put(mesh, zip(x, specs, strict=True)))
    assert compiled.collectives == (["all-reduce"], once)
    # A slope's derivative is a sum of 16,384 products with distances up to 63.
    for name, a, b, bound in zip(("result", "slopes"), got, want, (2e-6, 1e-3), strict=True):
        assert_within(a, b, 1e-4 * np.abs(b) + bound, against=f"one device: {name}")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "explicit", "shard_map"])
def test_attention_alone_sends_nothing(mode):
    mesh, specs = mesh_of(kinds=MANY[mode]), (*[P(D, None, H)] * 3, ONE)
    x = *(Q[:4, 64 * i : 64 * i + 64, :4] for i in range(3)), SLOPES[:4]
    want, f = np.asarray(quick(attend)(*x)), attend
    if mode == "shard_map":
        f = jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=specs[0])
    with jax.set_mesh(mesh):
        compiled, got = compile_and_run(f, *put(mesh, zip(x, specs, strict=True)))
    assert compiled.collectives == ([], [])
    assert_within(got, want, 1e-4 * np.abs(want) + 2e-6, against="one device")


# Context parallelism: sequences in any order, packed

EXAMPLE = Path(__file__).parents[2] / "examples" / "ring_attention.py"
ORDERS = ["contiguous", "zigzag", "striped"]
DOCUMENTS = [5, 20, 32, 7]
SEGMENTS = np.repeat(np.arange(4, dtype=np.int32), DOCUMENTS)
POSITIONS = np.concatenate([np.arange(n, dtype=np.int32) for n in DOCUMENTS])
WITH_BIAS = {"none": None} | {name: bias.beside(4)[0] for name, bias in BIASES.items()}


@functools.cache
def example():
    spec = importlib.util.spec_from_file_location("ring_attention", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def packed():
    """Queries, keys, values, positions, segments."""
    return *(Q[:2, 64 * i : 64 * i + 64, :4] for i in range(3)), POSITIONS, SEGMENTS


def in_order(length, devices, order):
    """The places of a sequence in the order of the shards."""
    at = np.arange(length, dtype=np.int32)
    if order == "contiguous":
        return at
    if order == "striped":
        return at.reshape(-1, devices).T.reshape(-1)
    chunks = at.reshape(2 * devices, -1)
    return np.stack([chunks[:devices], chunks[: devices - 1 : -1]], 1).reshape(-1)


def sharded(arrays, devices, order="zigzag"):
    """The arrays in the order of the shards, and that order."""
    order = in_order(arrays[-1].size, devices, order)
    return [x[:, order] for x in arrays[:3]] + [x[order] for x in arrays[3:]], order


@pytest.mark.parametrize("order", ORDERS)
def test_positions_of_a_shard_are_its_own(order):
    # By its number in shard_map, as their docstring says: no array of the global length for a row of it.
    mesh, length = mesh_of((1, 8, 1)), 2**20
    mine = lambda: pe.shard_positions(length, 8, order=order)[lax.axis_index(S)]  # noqa: E731
    with jax.set_mesh(mesh):
        compiled, got = compile_and_run(jax.shard_map(mine, mesh=mesh, in_specs=(), out_specs=P(S)))
    np.testing.assert_array_equal(got, in_order(length, 8, order))
    assert compiled.collectives == ([], [])
    assert compiled.temporaries <= 4096


def ring_of(devices):
    return jax.make_mesh((devices,), (S,), axis_types=(AxisType.Auto,), devices=jax.devices("cpu"))


def test_context_parallel_with_gathered_keys():
    def local(q, k, v, positions, segments):
        q, k = pe.rotary(q, positions, head_axis=-2), pe.rotary(k, positions, head_axis=-2)
        gathered = lambda x, axis=0: lax.all_gather(x, S, axis=axis, tiled=True)  # noqa: E731
        here = {"query_positions": positions, "query_segments": segments}
        there = {"key_positions": gathered(positions), "key_segments": gathered(segments)}
        bias, k, v = WITH_BIAS["alibi"], gathered(k, 1), gathered(v, 1)
        return q, pe.attention(q, k, v, bias=bias, causal=True, block_size=8, **here, **there)

    mesh, arrays = mesh_of((2, 4, 1)), packed()
    f = quick(jax.shard_map(local, mesh=mesh, in_specs=(*[ROWS] * 3, P(S), P(S)), out_specs=ROWS))
    alone = lambda q, k, v, positions, segments: (pe.rotary(q, positions, head_axis=-2), example().alone(WITH_BIAS["alibi"])(q, k, v, positions, segments))  # noqa: E731  # fmt: skip
    rotated, attended = map(np.asarray, quick(alone)(*arrays))
    for name in ORDERS:
        parts, order = sharded(arrays, 4, name)
        got = f(*parts)
        np.testing.assert_array_equal(got[0], rotated[:, order])
        assert_within(got[1], attended[:, order], 2e-6, against=f"one device, where four have them {name}")


@pytest.mark.parametrize("name", tiered(WITH_BIAS, ["t5"]))
def test_a_ring_with_any_bias_in_any_order(name):
    arrays, ring = packed(), quick(example().sharded(ring_of(8), WITH_BIAS[name])).lower(*packed()).compile()
    found = Compiled(ring.as_text(), 0, 0).collectives  # keys go to the neighbour, in the loop, and nothing else does
    assert set(found[0]) == {"collective-permute"} and not found[1]
    want = np.asarray(quick(example().alone(WITH_BIAS[name]))(*arrays))
    for kind in ORDERS:
        parts, order = sharded(arrays, 8, kind)
        assert_within(ring(*parts), want[:, order], 2e-6, against=f"one device, where eight have them {kind}")


@pytest.mark.slow
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel needs JAX 0.11")
def test_a_ring_by_the_kernel_for_gpus(monkeypatch):
    """In interpret mode: parts, weights and outputs are rounded to bfloat16."""
    interpreted(monkeypatch.setattr)
    q, k, v, *places = packed()
    whole = *(x[:1, :, :heads].astype(jnp.bfloat16) for x, heads in ((q, 2), (k, 1), (v, 1))), *places
    parts, order = sharded(whole, 2)
    bias = partial(pe.alibi, heads=2)
    got = np.asarray(example().sharded(ring_of(2), bias, implementation="mosaic_gpu")(*parts), np.float32)
    exact = *(x.astype(np.float32) for x in whole[:3]), *places
    want = np.asarray(quick(example().alone(bias))(*exact))[:, order]
    rounded = np.asarray(want.astype(jnp.bfloat16), np.float32)
    error, least = (np.sqrt(np.mean((y - want) ** 2)) for y in (got, rounded))
    assert error <= 2 * least


@pytest.mark.slow
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel needs JAX 0.11")
def test_a_ring_trains_by_the_kernel_for_gpus(monkeypatch):
    """In interpret mode: the gradients of queries, keys, values and slopes."""
    interpreted(monkeypatch.setattr)
    q, k, v, *places = packed()
    whole = *(x[:1, :, :heads].astype(jnp.bfloat16) for x, heads in ((q, 2), (k, 1), (v, 1))), *places
    parts, order = sharded(whole, 2)

    def gradients(attend, x, dy):
        def loss(q, k, v, slopes):
            return jnp.sum(attend(q, k, v, *x[3:], slopes).astype(jnp.float32) * dy)

        return jax.jit(jax.grad(loss, (0, 1, 2, 3)))(*x[:3], SLOPES[:2])

    dy = np.asarray(Q[:1, :64, 4:6], np.float32)
    ring = example().sharded(ring_of(2), pe.alibi, implementation="mosaic_gpu")
    got = gradients(ring, parts, dy[:, order])
    want = gradients(example().alone(pe.alibi), (*(x.astype(np.float32) for x in whole[:3]), *places), dy)
    want = *(x[:, order] for x in want[:3]), want[3]
    for each, exact in zip(got, want, strict=True):
        each, exact = np.asarray(each, np.float32), np.asarray(exact)
        assert np.linalg.norm(each - exact) < 0.01 * np.linalg.norm(exact)


@pytest.mark.slow
def test_rings_over_batch_and_heads():
    def local(q, k, v, positions, segments, slopes):
        q, k = pe.rotary(q, positions, head_axis=-2), pe.rotary(k, positions, head_axis=-2)
        return example().ring_attention(q, k, v, positions, segments, slopes, axis=S, bias=pe.alibi)

    mesh, specs = mesh_of(kinds=MANY["explicit"]), [*[HEADED] * 3, P(S), P(S), ONE]
    parts, order = sharded(packed(), 2)
    with jax.set_mesh(mesh):
        f = jax.shard_map(local, mesh=mesh, in_specs=tuple(specs), out_specs=HEADED)
        compiled, got = compile_and_run(f, *put(mesh, zip([*parts, SLOPES[:4]], specs, strict=True)))
    assert set(compiled.collectives[0]) == {"collective-permute"}
    want = np.asarray(quick(example().alone(pe.alibi))(*packed(), SLOPES[:4]))
    assert_within(got, want[:, order], 2e-6, against="one device")


def learned(i, j, slopes, table, kerple, mlp):
    return pe.alibi(i, j, slopes) + pe.t5(i, j, table) + pe.kerple_log(i, j, *kerple) + fire(i, j, *mlp)


@pytest.mark.slow
def test_derivatives_of_a_ring_under_learned_biases():
    # 15 positions a device, 2 heads of keys; each device has other tiles in which nothing is seen.
    q, k, v, positions, segments = packed()
    arrays = q[:, :60], k[:, :60, :2], v[:, :60, :2], positions[:60], segments[:60]
    parameters = SLOPES[:4], normal(8, 4), (SLOPES[4:8], SLOPES[8:12]), tuple(w[..., :4] for w, _ in MLP)
    parts, place = sharded(arrays, 4, "striped")

    def gradients(f, positions, segments):
        total = lambda qkv, parameters: jnp.sum(f(*qkv, positions, segments, *parameters) ** 2)  # noqa: E731
        return jax.grad(total, (0, 1))

    ring = gradients(example().sharded(ring_of(4), learned), *parts[3:])
    compiled, (of_parts, got) = compile_and_run(ring, tuple(parts[:3]), parameters)
    of_arrays, want = quick(gradients(example().alone(learned), *arrays[3:]))(arrays[:3], parameters)
    for name, a, b in zip(("queries", "keys", "values"), of_parts, of_arrays, strict=True):
        b = np.asarray(b)[:, place]
        assert_within(a, b, 1e-4 * np.abs(b) + 1e-5, against=f"one device, by {name}")
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(want), strict=True):
        # Sums over all pairs: relative to the largest. One number for all keys moves no weight.
        bound = 1e-5 * np.max(np.abs(b), initial=10)
        assert_within(a, b, bound, against=f"one device, by parameter {jax.tree_util.keystr(path)}")
    once = compiled.collectives[1]
    assert once and once == [name for name in compiled.collectives[0] if name != "collective-permute"]


def of_tokens(i, j, q, gates, table):
    """Relative keys of far more rows than a device has tokens, and a number for each key."""
    relative = pe.content_bias(i, j, table, query=q, first=-200, out_of_range="nearest")
    return relative + jnp.swapaxes(gates, 1, 2)[:, :, None]


@pytest.mark.slow
def test_a_ring_with_a_bias_that_sees_the_tokens():
    """The data of keys go round with them, and their cotangents come home."""
    q, k, v, *rows = packed()
    gates, table = np.cos(k[..., :1, 0]), normal(400, q.shape[-1]) / 8
    arrays = q, k, v, gates
    parts, order = sharded((*arrays[:3], *rows), 4)
    x = P(None, S)

    def local(positions, segments, q, k, v, gates, table):
        data = {"query_data": q, "key_data": gates}
        return example().ring_attention(q, k, v, positions, segments, table, axis=S, bias=of_tokens, **data)

    def alone(positions, segments, q, k, v, gates, table):
        where = {"query_positions": positions, "key_positions": positions, "causal": True}
        where |= {"query_segments": segments, "key_segments": segments, "query_data": q, "key_data": gates}
        return pe.attention(q, k, v, bias=lambda *tile: of_tokens(*tile, table), **where)

    ring = jax.shard_map(local, mesh=ring_of(4), in_specs=(P(S), P(S), x, x, x, x, P()), out_specs=x)
    run = lambda f: lambda *x: (f(*x), jax.grad(lambda *of: jnp.sum(f(*x[:2], *of) ** 2), range(5))(*x[2:]))  # noqa: E731
    y, got = quick(run(ring))(*parts[3:], *parts[:3], gates[:, order], table)
    right, want = quick(run(alone))(*rows, *arrays, table)
    assert_within(y, np.asarray(right)[:, order], 2e-6, against="one device")
    for n, (a, b) in enumerate(zip(got, want, strict=True)):
        b = np.asarray(b)[:, order] if n < 4 else b
        assert_within(a, b, 1e-5 * np.abs(b).max(), against=f"one device, by operand {n}")


def test_a_ring_passes_over_what_is_not_seen():
    local, x = partial(example().ring_attention, axis=S, bias=pe.alibi), P(None, S)
    ring = jax.shard_map(local, mesh=ring_of(4), in_specs=(x, x, x, P(S), P(S), P()), out_specs=x)
    f = jax.grad(lambda slopes: jnp.sum(ring(*packed(), slopes)))
    # There, and for the derivative again and back.
    assert jax.jit(f).lower(SLOPES[:4]).as_text().count("stablehlo.case") == 3


@pytest.mark.parametrize("by", [0, 1], ids=["queries", "slopes"])
def test_what_a_ring_cannot_differentiate_it_refuses(by):
    (q, *arrays), mesh = packed(), ring_of(4)
    f = lambda q, slopes: jnp.sum(example().sharded(mesh, lambda i, j: pe.alibi(i, j, slopes))(q, *arrays))  # noqa: E731
    with pytest.raises(ValueError, match=r"ring_attention: bias must have traced .* got float32\[4\] closed over"):
        jax.jit(jax.grad(f, by)).trace(q, SLOPES[:4])


@pytest.mark.slow
def test_memory_of_a_ring_grows_with_a_device_s_part():
    def held(devices, local):
        x, row = (jax.ShapeDtypeStruct(s, t) for s, t in (((1, devices * local, 1, 64), np.float32), ((devices * local,), np.int32)))  # fmt: skip
        f = example().sharded(ring_of(devices), WITH_BIAS["none"])
        g = lambda q, k, v, dy, *rows: jax.vjp(lambda *qkv: f(*qkv, *rows), q, k, v)[1](dy)  # noqa: E731
        compiled = quick(g).lower(x, x, x, x, row, row).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert held(8, 4096) <= 2 * held(2, 2048)  # with its length, and not with that of the sequence


@pytest.mark.slow
def test_the_example_runs():
    out = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True, timeout=300).stdout
    (difference,) = re.findall(r"on 8 devices: largest difference from pe.attention on one (\S+)\n", out)
    sizes = re.findall(r"(?:holds|alone are) ([\d,]+) bytes", out)
    one, alone, scores = (int(size.replace(",", "")) for size in sizes)
    assert float(difference) <= 2e-6 and 4 * one < alone < scores
