"""Plans of language models and of vision towers refuse invalid arguments.

Each case is a valid call with a few arguments changed. Learned parameters and tables must not be sharded.
"""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.plans import refused
from posenc_jax.hf import HeadScale, PatchGrid, RotaryLayer, RotaryPlan, VisionPlan

X = np.ones((2, 5, 3, 8), np.float32)  # batch, tokens, heads, features
AT, PLACES = np.arange(5, dtype=np.int32), np.zeros((5, 2), np.int32)  # positions in a text, and in a grid
TABLE = np.ones((4, 4, 1), np.float32)  # rows, columns, features
TRACED = jax.ShapeDtypeStruct((), np.int32)  # stands for a traced integer
NOPE, FAST, SMALL, YARN = pe.geometric(0), pe.geometric(8), pe.geometric(4), pe.yarn(6, 100.0, 8.0, 64)
LAYER = functools.partial(RotaryLayer, head_dim=8)
HEADS = HeadScale("{layer}.s", "{layer}.b", num_heads=3)
ARRAYS = {name: np.ones(3, np.float32) for name in ("alpha", HEADS.scale, HEADS.bias)}
PLAN = functools.partial(RotaryPlan, layers=(LAYER(FAST), LAYER(NOPE, query_scale=HEADS)), layout="half")
TOWER = functools.partial(VisionPlan, layers=(LAYER(pe.axial(8, 2)),), layout="half", grids=(PatchGrid(),))


# The calls below are valid, or lack one argument; a case of REFUSED changes their arguments.


def rotate(*layers, **options):
    """`rotate` of a plan with these layers."""
    return functools.partial(PLAN(layers=layers, **options).rotate, x=X, layer=0, head_axis=-2)


def patches(**grid):
    """`positions` of a tower with this grid."""
    return functools.partial(TOWER(grids=(PatchGrid(**grid),)).positions, shape=(4, 4))


def rows(table, **grid):
    """`table_rows` of a tower with this kind of table and this grid."""
    return functools.partial(TOWER(table=table, grids=(PatchGrid(**grid),)).table_rows, table=TABLE, shape=(4, 4))


FAST_LAYER = functools.partial(LAYER, FAST)
HEAD_SCALE = functools.partial(HeadScale, scale="a", bias="b", num_heads=4)
PLAIN = rotate(LAYER(FAST), LAYER(NOPE))
SCALED = functools.partial(PLAN(softmax_scale=1.7).rotate, X, 1, AT, head_axis=-2)
LEARNING = LAYER(YARN, query_scale=HEADS, learned_log_factor="alpha")
LEARNED = functools.partial(rotate(LEARNING), positions=AT, role="query", parameters=ARRAYS)
UNEQUAL = rotate(LAYER(FAST), RotaryLayer(SMALL, head_dim=16))  # heads of different widths
SHIFT = functools.partial(PLAN().shift_keys, keys=X, layer=0, offset=7, head_axis=-2)
MIXED = functools.partial(rotate(LAYER(pe.axial(8, 2)), LAYER(SMALL)), layer=TRACED)  # positions of two axes and of one
# Each layer has its own grid.
UNLIKE = TOWER(layers=(LAYER(FAST),) * 2, grids=(PatchGrid(), PatchGrid(inside=2, shapes=((4, 4),)))).positions
SLICES = functools.partial(TOWER(slices=2).rotate, x=jax.eval_shape(lambda: X), layer=0, positions=PLACES, head_axis=-2)


def row(call, words, **changes):
    return call, words, changes


# A call, words of its error (see `refused`), and the arguments that make the call invalid.
REFUSED = [
    row(FAST_LAYER, "TypeError: RotaryLayer: query_scale must be a QueryScale", query_scale=1.0),
    row(FAST_LAYER, "RotaryLayer: frequencies of width 8 must fit into a head_dim of 6", head_dim=6),
    row(FAST_LAYER, "TypeError: learned_log_factor must be a string or None", learned_log_factor=3),
    row(FAST_LAYER, "TypeError: kind must be a string or None", kind=1),
    row(FAST_LAYER, "TypeError: window must be a pair", window=5),
    row(FAST_LAYER, "chunk must be at least 1", chunk=0),
    row(FAST_LAYER, "TypeError: score_scale must be a number", score_scale="a"),
    row(LAYER, "frequencies must be exact", frequencies=NOPE, learned_log_factor="a"),
    row(LAYER, "must be exact, .* precision", frequencies=FAST.with_precision("float32"), learned_log_factor="a"),
    row(LAYER, "exact, of one .* num_axes", frequencies=pe.axial(8, 2), learned_log_factor="a"),
    row(HEAD_SCALE, "TypeError: HeadScale: bias must be a string", bias=3),
    row(HEAD_SCALE, "HeadScale: scale and bias must have different names", bias="a"),
    row(PLAN, "RotaryPlan: layout must be one of", layout="halves"),
    row(PLAN, "RotaryPlan: part must be one of", part="lats"),
    row(PLAN, "RotaryPlan: softmax_scale must be fin", softmax_scale=np.nan),
    row(PLAN, "TypeError: RotaryPlan: rotates_values must be True or False", rotates_values=1),
    row(PLAN, "TypeError: RotaryPlan: indexer must be a RotaryPlan or None", indexer=1),
    row(TOWER, "TypeError: VisionPlan: grids must be a sequence of PatchGrid, one for each layer", grids=()),
    row(TOWER, "VisionPlan: table must be one of", table="bilinear"),
    row(TOWER, "TypeError: .* of PatchGrid", grids=(1,)),
    row(TOWER, "VisionPlan: slices must be 1 or divide the pairs of whole heads, got 3", slices=3),
    row(TOWER, "slices must be 1 or .*2", slices=2, layers=(RotaryLayer(pe.axial(8, 2), head_dim=12),)),
    row(PatchGrid, "PatchGrid: merge must be at least 0", merge=-1),
    row(PatchGrid, "TypeError: PatchGrid: centres must be True or False", centres=1),
    row(PatchGrid, r"PatchGrid: shapes must hold \(height, width\)", shapes=((1, 2), (1, 2, 3))),
    row(PatchGrid, "PatchGrid: centres must have no offset", centres=True, offset=1),
    row(PatchGrid, "PatchGrid: centres must have no .* frames", centres=True, timed=True),
    row(PLAIN, "RotaryPlan.rotate: layer must be from 0 to 1, got 2", layer=2),
    row(PLAIN, "layer must be from 0 to 1, got -1", layer=np.asarray(-1)),
    row(PLAIN, "x must have 8 features in this layer", x=X[..., :6]),
    row(PLAIN, "TypeError: .*layer must be an integer", layer=jax.ShapeDtypeStruct((), np.float32)),
    row(PLAIN, "role must be one of .*'output'.*, or with scaled=True, got None", scaled=True),
    row(SHIFT, "RotaryPlan.shift_keys: keys must have 8 features", keys=X[..., :6]),
    row(SHIFT, "TypeError: RotaryPlan.shift_keys: offset must be", offset=None),
    row(UNEQUAL, r"must be a Python integer where head_dim differs between layers", layer=TRACED),
    row(MIXED, "x must have 8 features in this layer", x=X[..., :4]),
    row(SCALED, "role must be one of .* where a layer scales its queries"),
    row(SCALED, "role must be one of", role="q"),
    row(SCALED, "scaled must be True or False, because .* 1.7", role="query"),
    row(rotate(LAYER(YARN), rotates_values=True), "role must be one of .*, where values rotate"),
    row(LEARNED, "positions must be at least 0 where a layer scales", positions=-AT),
    row(LEARNED, "positions must be given", x=X[:, :1], positions=None),
    row(LEARNED, "head_axis must be given", x=X[:, :, 0], head_axis=None),
    row(LEARNED, r"'{layer}.s'\] must have shape \(2,\), got \(3,\)", x=X[:, :, :2]),
    row(LEARNED, r"which this model has learned, .*, got none", parameters=None),
    row(LEARNED, "TypeError: .*parameters must be a mapping", parameters=[1]),
    row(patches(merge=2), "VisionPlan.positions: shape must have sides that are multiples of 2", shape=(3, 4)),
    row(patches(merge=2), r"must be \(height, width\) or \(time, height, width\)", shape=(4,)),
    row(patches(), r"VisionPlan.positions: shape\[0\] must be at least 1", shape=(0, 4)),
    row(patches(merge=2), "merge_size must not be given", merge_size=2),
    row(patches(merge=0), "merge_size must be given"),
    row(patches(frames=False), r"shape must be \(height, width\)", shape=(1, 4, 4)),
    row(patches(leading=1), "shape must have fewer than 2³¹ tokens", shape=(2**31 - 1, 1)),
    row(UNLIKE, "layer must be given", shape=(4, 5)),
    row(UNLIKE, r"shape must be \(4, 4\) in this layer", shape=(4, 5), layer=1),
    row(UNLIKE, "TypeError: .*layer must be a Python integer", shape=(4, 5), layer=TRACED),
    row(SLICES, r"not be one for all 5 vectors of x", positions=PLACES[0]),
    row(TOWER(slices=2).shift_keys, "VisionPlan.shift_keys: slices must be 1", keys=X, layer=0, offset=7),
    row(rows("unknown"), "VisionPlan.table_rows: table must be left out"),
    row(rows("none"), "table must be left out"),
    row(rows("by_coordinate"), r"table must have shape \(2, positions, dim\)"),
    row(rows("by_coordinate"), r"a row for each patch of \(2, 5\)", table=TABLE[:2], shape=(2, 5)),
    row(rows("linear", merge=0), "VisionPlan.table_rows: merge must be at least 1"),
    row(rows("fixed"), r"a row for each patch of \(4, 5\)", shape=(4, 5)),
    row(rows("linear"), r"table must have shape \(rows, columns, dim\)", table=TABLE[:0]),
    row(rows("linear"), r"table must have shape \(rows, columns, dim\)", table=TABLE[0]),
]


@pytest.mark.parametrize(("call", "words", "changes"), REFUSED, ids=range(len(REFUSED)))
def test_a_call_with_these_changes_is_refused(call, words, changes):
    call = functools.partial(call, **changes)
    traced = {name: x for name, x in call.keywords.items() if isinstance(x, jax.ShapeDtypeStruct)}
    with refused(words):
        jax.eval_shape(lambda given: call(**given), traced) if traced else call()


@pytest.mark.parametrize("table", ["unknown", "by_coordinate", "tiled", "fixed", "linear_zeros_exchanged"])
def test_tables_that_resize_table_alone_cannot_resize_have_no_resampling(table):
    with pytest.raises(ValueError, match=f"table must be one of .* for resize_table alone, got '{table}'"):
        TOWER(table=table).resampling  # noqa: B018


def test_learned_parameters_and_tables_must_not_be_sharded(on_cpu):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,), devices=jax.devices("cpu")[:2])
    plan = PLAN(layers=(LAYER(FAST, learned_log_factor="a"),))
    with jax.set_mesh(mesh):
        with refused(r"parameters\['a'\] must not be sharded along axis 0"):
            plan.rotate(X, 0, head_axis=-2, parameters={"a": jax.device_put(np.ones(4, np.float32), P("d"))})
        for spec in P("d"), P(None, "d"):
            with refused("table must not be sharded along axis"):
                rows("linear")(table=jax.device_put(TABLE, spec))
