"""Functions of a sequence over eight devices: each device computes its own part and gets the bits of one device.

- Values: no collective, no array of the global length, and a share of the work and of the temporaries.
- Explicit axes: results are sharded as their arguments, and an argument that cannot be split so is named in an error.
- Derivatives: they are sharded as what they are derivatives of; those by parameters are summed by all-reduces alone.
"""

import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from devices.aot import Compiled
from helpers import pages
from helpers.closeness import assert_within
from helpers.functions import FUNCTIONS, SHARED, WHOLE, WRAPPED, table
from helpers.slow import slow

pytestmark = pytest.mark.usefixtures("on_cpu", "compiled_anew")
# Axis of an array (the letters are those of helpers/functions.py) → axis of the mesh that splits it
MESH = {"b": "data", "s": "sequence", "h": "heads", "f": "heads"}
AXES = "data", "sequence", "heads"
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
# Name → (shape of the mesh, types of its axes). "shard_map" splits by hand; the others let functions or XLA do it.
MESHES = {
    "auto": ((2, 2, 2), (AUTO,) * 3),
    "explicit": ((2, 2, 2), (EXPLICIT,) * 3),
    "shard_map": ((2, 2, 2), (AUTO,) * 3),
    "explicit batch": ((2, 2, 2), (EXPLICIT, AUTO, AUTO)),
    "explicit sequence": ((2, 2, 2), (AUTO, EXPLICIT, AUTO)),
    "sequence alone": ((1, 8, 1), (EXPLICIT,) * 3),
}
LENGTH = 128 * 17  # no other axis is a multiple of it: one that is, is a whole sequence
SPLIT = {name: row for name, row in FUNCTIONS.items() if row.arrays and row.result}
# Functions that sum over an axis that the mesh splits: over all rows of a table, and over pairs
SUMS = "content_bias", "offset_similarity, array"
# Functions with a sequence in their result, each position of which needs nothing of the others
LOCAL = [name for name, row in SPLIT.items() if "s" in "".join(jax.tree.leaves(row.result)) and name not in SUMS]
# The default tests take one function of each kind: cosines, counting, lookup, rotation, a plan, a shift and a bias.
KINDS_OF_FEW = "explicit batch", "explicit sequence", "sequence alone"
FEW = ["sinusoidal", "add_sinusoidal, counted", "learned", "rotary", "RotaryPlan.rotate, traced layer", "shift", "t5"]


def mesh_of(kind):
    shape, kinds = MESHES[kind]
    return jax.make_mesh(shape, AXES, kinds, devices=jax.devices("cpu"))


@pytest.fixture
def explicit():
    with jax.set_mesh(mesh := mesh_of("explicit")):
        yield mesh


def spec_of(axes, mesh=MESH):
    """The PartitionSpec of an array whose axes are these letters."""
    return P(*(mesh.get(axis) for axis in axes))


def put(mesh, row, specs):
    """A row's arrays on the mesh."""
    return [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(row.arrays, specs, strict=True)]


@functools.cache
def large():
    """The table of functions with sequences of LENGTH."""
    return table(batch=4, length=LENGTH, heads=8)


@functools.cache
def on_one(name):
    """A function compiled for one device, and its result there."""
    row = large()[name]
    compiled = jax.jit(row).lower(*row.arrays).compile()
    return compiled, jax.device_get(compiled(*row.arrays))


@functools.cache
def on_many(name, kind):
    """A function compiled for a mesh of MESHES, and its result there."""
    row, mesh = large()[name], mesh_of(kind)
    specs, out = [*map(spec_of, row.axes)], jax.tree.map(spec_of, row.result)
    f = jax.shard_map(row, mesh=mesh, in_specs=tuple(specs), out_specs=out) if kind == "shard_map" else row
    settings = {} if kind in ("explicit", "sequence alone") else {"out_shardings": shardings(mesh, out)}
    with jax.set_mesh(mesh):
        compiled = jax.jit(f, **settings).lower(*put(mesh, row, specs)).compile()
        return compiled, compiled(*put(mesh, row, specs))


def shardings(mesh, specs):
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def work(compiled):
    costs = compiled.cost_analysis()
    return costs.get("flops", 0.0) + costs.get("transcendentals", 0.0)


def collectives(compiled):
    """The names of all collectives, and of those that no loop repeats."""
    return Compiled(compiled.as_text(), 0, 0).collectives


def temporaries(compiled):
    return compiled.memory_analysis().temp_size_in_bytes


def check_local(compiled, whole, shares):
    """No collective, no axis of the global length, and one of so many shares of a lone device's temporaries and work.

    A device may exceed its share by 2% and by 4 KiB or 4096 operations, for what does not grow with the sequence.
    """
    assert collectives(compiled) == ([], [])
    assert not [n for n in Compiled(compiled.as_text(), 0, 0).sizes if n % LENGTH == 0]
    for cost in (temporaries, work):
        assert cost(compiled) <= 1.02 * cost(whole) // shares + 4096


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "explicit") if name in FEW else slow(name, "explicit") for name in LOCAL),
        # What counts positions itself would count each device's own part from 0 in shard_map.
        *(slow(name, kind) for name in LOCAL for kind in ("auto", "shard_map") if "counted" not in name),
        *(slow(name, kind) for name in FEW for kind in KINDS_OF_FEW if "counted" not in name),
    ],
)
def test_each_device_computes_its_part(name, kind):
    """A device has its share of positions, and costs no more than where XLA itself splits without a collective.

    Sequences that share positions compute their cosines once, so splitting the batch does not reduce that work.
    """
    row, shape = large()[name], MESHES[kind][0]
    whole, want = on_one(name)
    compiled, got = on_many(name, kind)
    chosen, _ = on_many(name, "auto")
    shares_positions = not all("b" in axes for axes in row.axes if "s" in axes) or "counted" in name
    check_local(compiled, whole, shape[1] * (1 if shares_positions else shape[0]))
    if shape == MESHES["auto"][0] and collectives(chosen) == ([], []):
        assert work(compiled) <= 1.01 * work(chosen) and temporaries(compiled) <= temporaries(chosen) + 4096
    for a, b, spec in zip(*map(jax.tree.leaves, (got, want, row.result)), strict=True):
        assert a.sharding.is_equivalent_to(NamedSharding(a.sharding.mesh, spec_of(spec)), a.ndim)
        if name.startswith("offset_similarity"):  # sums of 4 cosines, in whatever order
            assert_within(a, b, 8 * 2.0**-23, against="one device")
        else:
            np.testing.assert_array_equal(a, b)


# Controls: check_local fails on what it is meant to find.


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda x: x - x.mean(1, keepdims=True), "all-reduce"),
        # a sort, which needs the whole axis
        (lambda x: x + pe.sinusoidal(lax.sort(jnp.arange(LENGTH) ^ 1), 8)[None], str(LENGTH)),
    ],
)
def test_a_collective_and_what_has_the_global_length_are_caught(explicit, fault, message):
    x = jax.device_put(np.ones((4, LENGTH, 8), np.float32), NamedSharding(explicit, P("data", "sequence")))
    compiled = jax.jit(fault).lower(x).compile()
    with pytest.raises(AssertionError, match=message):
        check_local(compiled, compiled, 1)


def test_a_device_that_does_more_than_its_share_of_the_work_is_caught():
    """As where positions are split, but not the batch."""
    whole, _ = on_one("sinusoidal")
    compiled, _ = on_many("sinusoidal", "sequence alone")
    check_local(compiled, whole, 8)
    with pytest.raises(AssertionError, match="work|temporaries"):
        check_local(compiled, whole, 16)


# Explicit axes


def types(mesh, row, specs):
    """The types of a row's arrays on the mesh, for tests that only trace."""
    each = zip(row.arrays, specs, strict=True)
    return [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)) for x, spec in each]


@pytest.mark.parametrize("name", SPLIT)
def test_a_result_is_sharded_as_its_arguments(explicit, name):
    """Split along all axes that devices may share, and along each alone. Nothing is compiled."""
    row = SPLIT[name]
    # Axis of an array → axis of the mesh. Queries (s) and keys (t) cannot both be split by the mesh's sequence.
    all_axes = {axis: MESH.get(axis, "sequence") for axes in row.axes for axis in axes if axis in SHARED}
    if "s" in all_axes and "t" in all_axes:
        del all_axes["t"]
    for mesh in [
        all_axes,
        *({axis: mesh_axis} for axis, mesh_axis in MESH.items() if axis in all_axes),
        *([{"t": "sequence"}] if "t" in row.result else []),  # keys alone
    ]:
        results = jax.eval_shape(row, *types(explicit, row, [spec_of(axes, mesh) for axes in row.axes]))
        for y, axes in zip(jax.tree.leaves(results), jax.tree.leaves(row.result), strict=True):
            want = NamedSharding(explicit, spec_of(axes, mesh))
            assert NamedSharding(explicit, y.sharding.spec).is_equivalent_to(want, y.ndim), (mesh, y.sharding.spec)


# (function, index of an array, index of its axis) for each axis that a device needs whole and that two could split
PUBLIC = {name: row for name, row in SPLIT.items() if name not in WRAPPED}
MUST_BE_WHOLE = [
    (name, i, at)
    for name, row in PUBLIC.items()
    for i, (x, axes) in enumerate(zip(row.arrays, row.axes, strict=True))
    for at, axis in enumerate(axes)
    if axis in WHOLE and x.shape[at] % 2 == 0
]


@pytest.mark.parametrize(("name", "i", "at"), MUST_BE_WHOLE)
def test_an_axis_that_must_be_whole_is_named(explicit, name, i, at):
    row = SPLIT[name]
    specs = [P()] * len(row.arrays)
    specs[i] = P(*[None] * at, "data")
    named = rf"^[\w.]+: (\w+ of )?{row.names[i]} must not be sharded along axis {at} on Explicit axes"
    with pytest.raises(ValueError, match=f"{named} of a mesh, got P.*'data'.*; reshard it, or use jax.shard_map"):
        jax.eval_shape(row, *types(explicit, row, specs))


def test_the_page_names_every_function_with_an_argument_that_must_be_whole():
    rows = pages.rows("docs/devices.md", "on Explicit axes")
    named = set().union(*(re.findall(r"`(\w+)`", functions) for functions, _ in rows))
    assert {name.split(",")[0] for name, *_ in MUST_BE_WHOLE if "." not in name} <= named <= set(pe.__all__)


# (function, two indices of arrays, an axis that both have), such as x and positions with their sequence: a function
# with one result needs both split alike. Left out are queries beside keys, which have results of their own, and
# frequencies by heads, which are moved to the heads.
APART = [
    (name, i, j, axis)
    for name, row in PUBLIC.items()
    for i, j in itertools.combinations(range(len(row.axes)), 2)
    for axis in SHARED
    if row.names[i] != row.names[j]
    and axis in row.axes[i]
    and axis in row.axes[j]
    and (name, row.names[i]) != ("rotary, by heads", "frequencies")
    and (isinstance(row.result, str) or {row.names[i], row.names[j]} == {"positions", "query"})
]


@pytest.mark.parametrize(("name", "i", "j", "axis"), APART)
def test_arguments_that_share_an_axis_are_split_alike(explicit, name, i, j, axis):
    row = SPLIT[name]
    specs = [P()] * len(row.arrays)
    specs[i], specs[j] = spec_of(row.axes[i], {axis: "data"}), spec_of(row.axes[j], {axis: "heads"})
    alike = "alike where they share an axis of the result|on Explicit axes of a mesh as .*query is"
    with pytest.raises(ValueError, match=rf"^[\w.]+: .*must be sharded ({alike})"):
        jax.eval_shape(row, *types(explicit, row, specs))


# (function, two indices of arrays, an axis that only the first has, an axis that only the second has), such as queries
# and keys of a bias. Functions of x are left out, because JAX itself rejects such arrays beside x.
TWICE = [
    (name, i, j, a, b)
    for name, row in PUBLIC.items()
    if "x" not in row.given
    for i, j in itertools.permutations(range(min(len(row.axes), 2)), 2)
    for a, b in itertools.product(SHARED, SHARED)
    if a in row.axes[i] and a not in row.axes[j] and b in row.axes[j] and b not in row.axes[i]
]


@pytest.mark.parametrize(("name", "i", "j", "a", "b"), TWICE)
def test_no_two_axes_of_a_result_are_split_by_one_of_the_mesh(explicit, name, i, j, a, b):
    row = SPLIT[name]
    specs = [P()] * len(row.arrays)
    specs[i], specs[j] = spec_of(row.axes[i], {a: "data"}), spec_of(row.axes[j], {b: "data"})
    with pytest.raises(ValueError, match=r"^\w+: .*must be sharded .* over no Explicit axis of a mesh twice"):
        jax.eval_shape(row, *types(explicit, row, specs))


@pytest.mark.parametrize("name", [name if name in ("rotary", "t5") else slow(name) for name in [*FEW, "pope", "xpos"]])
def test_op_by_op_on_explicit_axes_gives_the_bits_of_one_device(explicit, name):
    row = SPLIT[name]
    got = row(*put(explicit, row, [*map(spec_of, row.axes)]))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(row)(*row.arrays)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_lengths_that_are_known_stay_known_where_they_are_split(explicit):
    """Concrete lengths are still checked against `total` on a mesh."""
    lengths = np.full((8, 3), 2, np.int32)
    split = jax.device_put(lengths, NamedSharding(explicit, P("data")))
    got = pe.positions_from_lengths(split, 8)
    assert jax.typeof(got).sharding.spec[0] == "data"
    np.testing.assert_array_equal(got, pe.positions_from_lengths(lengths, 8))
    with pytest.raises(ValueError, match="^positions_from_lengths: lengths must sum to at most total = 3, got"):
        pe.positions_from_lengths(split, 3)


def test_a_table_that_is_cut_must_be_whole(explicit):
    """add_learned takes all rows of a split table, and refuses to take its first nine."""
    row_split = jax.device_put(np.ones((16, 8), np.float32), NamedSharding(explicit, P("data")))
    assert pe.add_learned(jnp.ones((2, 16, 8)), row_split).shape == (2, 16, 8)
    with pytest.raises(ValueError, match="^add_learned: table must not be sharded along axis 0 on Explicit axes"):
        pe.add_learned(jnp.ones((2, 9, 8)), row_split)


@pytest.mark.parametrize("spmd", [None, "data"])
def test_a_lookup_under_vmap_over_a_split_batch_gives_the_rows_of_the_table(explicit, spmd):
    """With and without spmd_axis_name."""
    row = SPLIT["add_learned"]
    x, table, p = (row.arguments[name] for name in ("x", "table", "positions"))
    f = jax.vmap(lambda p, x: (pe.learned(p, table), pe.add_learned(x, table, p)), spmd_axis_name=spmd)
    found, added = jax.jit(f)(*(jax.device_put(a, NamedSharding(explicit, P("data"))) for a in (p, x)))
    np.testing.assert_array_equal(found, table[p])
    np.testing.assert_array_equal(added, x + table[p])


# Derivatives


@pytest.mark.parametrize("name", [name for name, row in SPLIT.items() if row.floats])
def test_derivatives_are_sharded_as_what_they_are_derivatives_of(explicit, name):
    """Forward mode: as the result. Reverse mode: as each argument. Nothing is compiled."""
    row = SPLIT[name]
    arrays = types(explicit, row, [*map(spec_of, row.axes)])
    moving = [i for i, x in enumerate(arrays) if x.dtype == np.float32]

    def derivatives(*arrays):
        def f(*floats):
            return row(*(dict(enumerate(arrays)) | dict(zip(moving, floats, strict=True))).values())

        floats = [arrays[i] for i in moving]
        y, tangent = jax.jvp(f, floats, floats)
        return tangent, jax.vjp(f, *floats)[1](y)

    tangent, cotangents = jax.eval_shape(derivatives, *arrays)
    wanted = [spec_of(axes) for axes in (*jax.tree.leaves(row.result), *(row.axes[i] for i in moving))]
    for x, spec in zip(jax.tree.leaves((tangent, cotangents)), wanted, strict=True):
        assert NamedSharding(explicit, x.sharding.spec).is_equivalent_to(NamedSharding(explicit, spec), x.ndim)


@pytest.mark.parametrize("table", [P(), slow(P(None, "heads")), P("heads")], ids=str)
def test_the_derivative_of_a_lookup_is_sharded_as_its_table(explicit, table):
    """Its values are float64 sums of the cotangents of each row."""
    row = large()["learned"]
    p, rows = row.arguments["positions"], row.arguments["table"]
    dy = np.random.default_rng(0).normal(size=(*p.shape, 8)).astype(np.float32)
    want = np.zeros(rows.shape)
    np.add.at(want, p, dy.astype(np.float64))
    specs = (table, rows), (P("data", "sequence"), p), (P("data", "sequence"), dy)
    placed = [jax.device_put(x, NamedSharding(explicit, spec)) for spec, x in specs]
    got = jax.jit(jax.grad(lambda t, p, dy: jnp.sum(dy * pe.learned(p, t))))(*placed)
    assert got.sharding.is_equivalent_to(placed[0].sharding, 2)
    assert_within(got, want, 1e-5 * np.abs(want) + 1e-4, against="float64 sums")  # each sums some 700 numbers


def gradient_of(row, f):
    """The gradient of a loss of f by the row's parameters, the floats without batch and sequence; and their indices."""
    each = enumerate(zip(row.arrays, row.axes, strict=True))
    at = [i for i, (x, axes) in each if x.dtype == np.float32 and not {*axes} & {*"bst"}]
    return jax.grad(lambda *x: sum(jnp.sum(jnp.sin(y) * y) for y in jax.tree.leaves(f(*x))), at), at


LEARNED = [name for name in LOCAL if gradient_of(SPLIT[name], None)[1] and name not in WRAPPED]
# Functions whose parameters also need sums over heads or parts of a pair: XLA may send larger partial sums for them.
LARGER = "fire", "pope, array", "prope", "rotary, last"


@pytest.mark.parametrize("kind", [slow("auto"), slow("explicit"), "shard_map"])
@pytest.mark.parametrize("name", [name if name == "t5" else slow(name) for name in LEARNED])
def test_derivatives_by_parameters_are_summed_by_small_all_reduces(name, kind):
    """What is sent has at most twice a parameter's size, and a device does at most 0.3 of the work (ideal: 1/8)."""
    row, mesh = large()[name], mesh_of(kind)
    specs = [*map(spec_of, row.axes)]
    gradient, at = gradient_of(row, row)
    whole = jax.jit(gradient).lower(*row.arrays).compile()
    if kind == "shard_map":
        out = tuple(specs[i] for i in at)
        gradient = jax.shard_map(gradient, mesh=mesh, in_specs=tuple(specs), out_specs=out)
    with jax.set_mesh(mesh):
        compiled = jax.jit(gradient).lower(*put(mesh, row, specs)).compile()
        got = compiled(*put(mesh, row, specs))
    assert {*collectives(compiled)[0]} == {"all-reduce"}
    summed = re.findall(r"= (.+?) all-reduce(?:-start)?\(", compiled.as_text())
    sizes = [math.prod(map(int, filter(None, n.split(",")))) for t in summed for n in re.findall(r"\[([\d,]*)\]", t)]
    few = 64 if name.startswith("sandwich") else 0  # it sums the cosines of keys of half a batch
    assert max(sizes) <= max(few, *(2 * row.arrays[i].size for i in at)) or name.startswith(LARGER)
    assert work(compiled) <= 0.3 * work(whole)
    for a, b, i in zip(got, whole(*row.arrays), at, strict=True):
        assert_within(a, b, 2e-4 * np.abs(b) + 2e-5 * np.abs(b).max(), against="one device")
        if kind != "auto":
            assert a.sharding.is_equivalent_to(NamedSharding(mesh, specs[i]), a.ndim)
