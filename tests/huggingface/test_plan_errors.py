"""What plans refuse, of language models and of vision towers: valid calls with a few arguments changed."""

import functools

import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers.plans import refused
from posenc_jax.hf import HeadScale, PatchGrid, RotaryLayer, RotaryPlan, VisionPlan

X, AT, PLACES = np.ones((2, 5, 3, 8), np.float32), np.arange(5, dtype=np.int32), np.zeros((5, 2), np.int32)
TABLE, TRACED = np.ones((4, 4, 1), np.float32), jax.ShapeDtypeStruct((), np.int32)
NOPE, FAST, SMALL, YARN = pe.geometric(0), pe.geometric(8), pe.geometric(4), pe.yarn(6, 100.0, 8.0, 64)
LAYER = functools.partial(RotaryLayer, head_dim=8)
HEADS = HeadScale("{layer}.s", "{layer}.b", num_heads=3)
ARRAYS = {name: np.ones(3, np.float32) for name in ("alpha", HEADS.scale, HEADS.bias)}
PLAN = functools.partial(RotaryPlan, layers=(LAYER(FAST), LAYER(NOPE, query_scale=HEADS)), layout="half")
TOWER = functools.partial(VisionPlan, layers=(LAYER(pe.axial(8, 2)),), layout="half", grids=(PatchGrid(),))


def rotate(*layers, **options):
    return functools.partial(PLAN(layers=layers, **options).rotate, x=X, layer=0, head_axis=-2)


def patches(**grid):
    return functools.partial(TOWER(grids=(PatchGrid(**grid),)).positions, shape=(4, 4))


def rows(table):
    return functools.partial(TOWER(table=table).table_rows, table=TABLE, shape=(4, 4))


PLAIN = rotate(LAYER(FAST), LAYER(NOPE))
SCALED = functools.partial(PLAN(softmax_scale=1.7).rotate, X, 1, AT, head_axis=-2)
LEARNING = LAYER(YARN, query_scale=HEADS, learned_log_factor="alpha")
LEARNED = functools.partial(rotate(LEARNING), positions=AT, role="query", parameters=ARRAYS)
UNEQUAL = rotate(LAYER(FAST), RotaryLayer(SMALL, head_dim=16))
MIXED = functools.partial(rotate(LAYER(pe.axial(8, 2)), LAYER(SMALL)), layer=TRACED)
UNLIKE = TOWER(layers=(LAYER(FAST),) * 2, grids=(PatchGrid(), PatchGrid(inside=2, shapes=((4, 4),)))).positions
SLICES = functools.partial(TOWER(slices=2).rotate, x=X, layer=0, positions=PLACES, head_axis=-2)

# A valid call, and arguments that it refuses, by the message: a ValueError unless it says otherwise
REFUSED = [
    (functools.partial(LAYER, FAST), {
        "TypeError: RotaryLayer: query_scale must be a QueryScale, a HeadScale or None": {"query_scale": 1.0},
        "RotaryLayer: frequencies of width 8 must fit into a head_dim of 6": {"head_dim": 6},
        "TypeError: RotaryLayer: learned_log_factor must be a string or None, got int 3": {"learned_log_factor": 3},
        "TypeError: kind must be a string or None, got int": {"kind": 1},
        r"TypeError: window must be a pair \(left, right\) of integers or None, got int": {"window": 5},
        r"window\[0\] must be at least 0": {"window": (-1, None)},
        "chunk must be at least 1": {"chunk": 0},
        "TypeError: score_scale must be a number": {"score_scale": "a"},
    }),
    (LAYER, {
        "TypeError: RotaryLayer: frequencies must be Frequencies or an integer width": {"frequencies": None},
        "RotaryLayer: frequencies must have an even dim, got 7": {"frequencies": 7},
        "frequencies must be exact, of one coordinate, with a learned": {"frequencies": NOPE, "learned_log_factor": "a"},
        "exact, .* precision": {"frequencies": FAST.with_precision("float32"), "learned_log_factor": "a"},
        "exact, of one .* num_axes": {"frequencies": pe.axial(8, 2), "learned_log_factor": "a"},
    }),
    (functools.partial(HeadScale, scale="a", bias="b", num_heads=4), {
        "TypeError: HeadScale: bias must be a string, got int 3": {"bias": 3},
        "HeadScale: scale and bias must have different names": {"bias": "a"},
        "HeadScale: num_heads must be at least 1, got 0": {"num_heads": 0},
    }),
    (PLAN, {
        "RotaryPlan: layout must be one of": {"layout": "halves"},
        "RotaryPlan: part must be one of": {"part": "lats"},
        "RotaryPlan: softmax_scale must be fin": {"softmax_scale": np.nan},
        "TypeError: RotaryPlan: rotates_values must be True or False, got int 1": {"rotates_values": 1},
        "TypeError: RotaryPlan: indexer must be a RotaryPlan or None": {"indexer": 1},
    }),
    (TOWER, {
        "VisionPlan: table must be one of .* got 'bilinear'": {"table": "bilinear"},
        "VisionPlan: layout must be one of": {"layout": "halves"},
        "TypeError: VisionPlan: grids must be a sequence of PatchGrid, one for each layer, got tuple": {"grids": ()},
        "TypeError: .* of PatchGrid": {"grids": (1,)},
        "VisionPlan: slices must be 1 or divide the pairs of whole heads, got 3": {"slices": 3},
        "slices must be 1 or .*2": {"slices": 2, "layers": (RotaryLayer(pe.axial(8, 2), head_dim=12),)},
    }),
    (PatchGrid, {
        "PatchGrid: merge must be at least 0, got -1": {"merge": -1},
        "PatchGrid: leading must be below 65,536": {"leading": 2**16},
        "TypeError: PatchGrid: centres must be True or False": {"centres": 1},
        r"PatchGrid: shapes must hold \(height, width\)": {"shapes": ((1, 2), (1, 2, 3))},
        "PatchGrid: centres must have no offset": {"centres": True, "offset": 1},
    }),
    (PLAIN, {
        "RotaryPlan.rotate: layer must be from 0 to 1, got 2": {"layer": 2},
        "layer must be from 0 to 1, got -1": {"layer": np.asarray(-1)},
        "TypeError: .*layer must be an integer, got float 1.0": {"layer": 1.0},
        "TypeError: .*layer must be an integer, got": {"layer": jax.ShapeDtypeStruct((), np.float32)},
        "layer must be a scalar": {"layer": jax.ShapeDtypeStruct((2,), np.int32)},
        "x must have 8 features in this layer, got shape": {"x": X[..., :6]},
        "role must be one of .*'output'.*, or with scaled=True, got None": {"scaled": True},
        "TypeError: .*scaled must be True or False, got int 1": {"scaled": 1},
        "head_axis must be an axis of x": {"head_axis": 7, "role": "output"},
    }),
    (PLAN().shift_keys, {
        "RotaryPlan.shift_keys: keys must have 8 f": {"keys": X[..., :6], "layer": 0, "offset": 7, "head_axis": -2},
    }),
    (UNEQUAL, {
        "x must have 16 or 4 features in this layer": {"layer": 1},
        "must be a Python integer where head_dim differs between layers, got \\[8, 16\\]": {"layer": TRACED},
    }),
    (MIXED, {
        "x must have 8 features in this layer": {"x": X[..., :4]},
        r"positions of shape \(5, 2\) must broadcast": {"positions": PLACES},
    }),
    (SCALED, {
        "role must be one of .* where a layer scales its queries": {},
        "role must be one of": {"role": "q"},
        "scaled must be True or False, because .* 1.7, got": {"role": "query"},
    }),
    (rotate(LAYER(YARN), rotates_values=True), {
        "role must be one of .*, where values rotate": {},
    }),
    (LEARNED, {
        "positions must be at least 0 where a layer scales": {"positions": -AT},
        "positions must be given where x holds one token": {"x": X[:, :1], "positions": None},
        "head_axis must be given, because each head": {"x": X[:, :, 0], "head_axis": None},
        r"'{layer}.s'\] must have shape \(2,\), got \(3,\)": {"x": X[:, :, :2]},
        r"which this model has learned, {'alpha': \(3,\), '{layer}.s': .*}, got none": {"parameters": None},
        r"must hold arrays of these shapes, .* {'alpha': \(3,\)}, got \['beta'\]": {"role": "key", "parameters": {"beta": 1}},
        "TypeError: .*parameters must be a mapping of names to arrays, got list": {"parameters": [1]},
        r"TypeError: .*parameters\['alpha'\] must be a float": {"role": "key", "parameters": {"alpha": np.ones(3, int)}},
    }),
    (patches(merge=2), {
        r"VisionPlan.positions: shape must have sides that are multiples of 2, got \(3, 4\)": {"shape": (3, 4)},
        r"must be \(height, width\) or \(time, height, width\), in patches, got \(4,\)": {"shape": (4,)},
        r"shape must be .* got \(1, 2, 4, 4\)": {"shape": (1, 2, 4, 4)},
        r"shape must have fewer than 2³¹ tokens, got \(1, 65536, 32768\)": {"shape": (2**16, 2**15)},
        "TypeError: VisionPlan.positions: shape must be a sequence of integers, got int 4": {"shape": 4},
        "merge_size must not be given, because it is 2 in this tower, got 2": {"merge_size": 2},
    }),
    (patches(merge=0), {
        "merge_size must be given, because it comes with each image, got None": {},
        "merge_size must be at least 1": {"merge_size": 0},
    }),
    (patches(frames=False), {r"shape must be \(height, width\), in patches, got \(1, 4, 4\)": {"shape": (1, 4, 4)}}),
    (patches(leading=1), {"shape must have fewer than 2³¹ tokens": {"shape": (2**31 - 1, 1)}}),
    (functools.partial(UNLIKE, (4, 5)), {
        "layer must be given, because the layers of this tower differ, got None": {},
        r"shape must be \(4, 4\) in this layer, got \(4, 5\)": {"layer": 1},
        "TypeError: .*layer must be a Python integer, because": {"layer": TRACED},
    }),
    (SLICES, {
        "positions must be given for frequencies of 2 axes": {"positions": None},
        r"positions must have a last axis of size 2, .* got shape \(5, 3\)": {"positions": PLACES[:, [0, 0, 1]]},
        r"not be one for all 5 vectors of x, .*\(positions, \(2, 5, 2\)\)": {"positions": PLACES[0]},
        "x must have 8 features in this layer": {"x": X[..., :4]},
        "VisionPlan.rotate: role must be one of": {"role": "q"},
    }),
    (TOWER(slices=2).shift_keys, {
        "VisionPlan.shift_keys: slices must be 1 to move keys, got 2": {"keys": X, "layer": 0, "offset": 7},
    }),
    (rows("unknown"), {"VisionPlan.table_rows: table must be left out, because that of the plan is 'unknown'": {}}),
    (rows("none"), {"table must be left out, because that of the plan is 'none'": {}}),
    (rows("by_coordinate"), {
        r"table must have shape \(2, positions, dim\) and a row for each patch of \(4, 4\), got shape \(4, 4, 1\)": {},
        r"a row for each patch of \(2, 5\), got shape \(2, 4, 1\)": {"table": TABLE[:2], "shape": (2, 5)},
    }),
    (functools.partial(TOWER(table="linear", grids=(PatchGrid(merge=0),)).table_rows, TABLE, (4, 4)), {
        "VisionPlan.table_rows: merge must be at least 1, got 0": {},
    }),
    (rows("fixed"), {r"a row for each patch of \(4, 5\), got shape \(4, 4, 1\)": {"shape": (4, 5)}}),
    (rows("linear"), {
        r"table must have shape \(rows, columns, dim\) and .*, got shape \(4, 1\)": {"table": TABLE[0]},
        r"table must have shape \(rows, columns, dim\) and .*, got shape \(0, 4, 1\)": {"table": TABLE[:0]},
        "TypeError: VisionPlan.table_rows: table must be a float array": {"table": TABLE.astype(int)},
    }),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "match", "changes"), [(call, *case) for call, cases in REFUSED for case in cases.items()]
)
def test_what_is_refused(call, match, changes):
    call = functools.partial(call, **changes)
    traced = {name: x for name, x in call.keywords.items() if isinstance(x, jax.ShapeDtypeStruct)}
    with refused(match):
        jax.eval_shape(lambda given: call(**given), traced) if traced else call()


@pytest.mark.parametrize("table", ["unknown", "by_coordinate", "tiled", "fixed", "linear_zeros_exchanged"])
def test_a_table_that_resize_table_alone_does_not_resize(table):
    with pytest.raises(
        ValueError, match=f"table must be one of .* for resize_table alone, got '{table}': see table_rows"
    ):
        TOWER(table=table).resampling  # noqa: B018
