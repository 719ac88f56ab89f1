"""What `rotary` keeps: for the derivative, and while it runs."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.quick import quick
from helpers.tiers import slow, tiered
from posenc_jax._jax import workarounds

pytestmark = pytest.mark.usefixtures("compiled_anew")
SHAPE = (2, 256, 8, 64)
TWO = [  # layouts and dtypes
    *(("half", jnp.float32), ("interleaved", jnp.bfloat16)),
    *(slow("half", jnp.bfloat16), slow("interleaved", jnp.float32)),
]
SEQ, EACH = np.arange(256), np.arange(512).reshape(2, 256)
FRACTIONS = np.linspace(0, 100, 256, dtype=np.float32)
LEARNED = np.geomspace(1, 1e-4, 32, dtype=np.float32)

INTEGERS = {
    "None": lambda x: pe.rotary(x, head_axis=-2),
    "(seq,)": lambda x: pe.rotary(x, SEQ, head_axis=-2),
    "(batch, seq)": lambda x: pe.rotary(x, EACH, head_axis=-2),
    "one": lambda x: pe.shift_keys(x, 7, x.shape[-1], head_axis=-2),
    "partial": lambda x: pe.rotary(x, SEQ, 32, part="last", head_axis=-2),
    "axial": lambda x: pe.rotary(x, np.stack([SEQ, SEQ], -1), pe.axial(64, 2), head_axis=-2),
    "xpos": lambda x: pe.xpos(x, x, head_axis=-2)[0],
    "shift": lambda x: pe.shift(x, 5, 64),
}


def kept(function, *arguments):
    """The shapes and dtypes of the arrays that the derivative of a function keeps; nothing is computed."""
    return jax.tree.leaves(jax.eval_shape(lambda *arguments: jax.vjp(function, *arguments)[1], *arguments))


@pytest.mark.parametrize("dtype", tiered([jnp.float32, jnp.bfloat16], [jnp.bfloat16]))
@pytest.mark.parametrize("compiled", [False, True], ids=["", "jit"])
@pytest.mark.parametrize("name", INTEGERS)
def test_the_derivative_keeps_positions_alone(name, compiled, dtype):
    function = jax.jit(INTEGERS[name]) if compiled else INTEGERS[name]
    arrays = kept(function, jax.ShapeDtypeStruct(SHAPE, dtype))
    positions = {"one": 1, "shift": 1, "(batch, seq)": 512}.get(name, 256)
    copies = 2 if name in ("axial", "xpos") else 1  # two coordinates; positions and distances from the origin
    assert sum(array.size for array in arrays) <= copies * positions + 64


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("compiled", [False, True], ids=["", "jit"])
def test_derivatives_by_the_others_keep_x_once(compiled, dtype):
    x = np.ones(SHAPE, dtype)
    for function, *others in (
        (lambda x, p: pe.rotary(x, p, head_axis=-2), FRACTIONS),
        (lambda x, w: pe.rotary(x, SEQ, w, head_axis=-2), LEARNED),
        (lambda x, p, w: pe.rotary(x, p, w, head_axis=-2), FRACTIONS, LEARNED),
    ):
        arrays = kept(jax.jit(function) if compiled else function, x, *others)
        assert sum(array.size * array.dtype.itemsize for array in arrays) <= x.nbytes + 4 * (256 + 64)


@pytest.mark.parametrize("program", [slow(lambda f: f), quick], ids=["eagerly", "jit"])
def test_one_derivative_after_the_other(program):
    # JAX 0.10 keeps a traced call and mixes up its derivatives if those by x alone keep fewer arrays than the others.
    total = lambda x, p: jnp.sum(jnp.sin(pe.rotary(x, p, head_axis=-2)))  # noqa: E731

    def in_turn(x, p):
        closed = lambda x: total(x, p)  # noqa: E731
        by_x, by_both = [], [jax.grad(total, (0, 1))(x, p)]
        for _ in range(2):
            for one in (closed, jax.jit(closed), lambda x: jax.jit(total)(x, p)):
                by_x.append(jax.grad(one)(x))
                by_both += [jax.grad(both, (0, 1))(x, p) for both in (total, jax.jit(total))]
        return by_x, by_both

    x, p = np.ones((2, 9, 3, 10), np.float32), np.linspace(0, 5, 9, dtype=np.float32)
    by_x, ((of_x, of_p), *others) = program(in_turn)(x, p)
    for one in by_x:
        np.testing.assert_allclose(one, of_x, atol=1e-6)
    for one, other in others:
        np.testing.assert_allclose(one, of_x, atol=1e-5)
        np.testing.assert_allclose(other, of_p, atol=1e-5)


@pytest.mark.parametrize("derivative", [slow(False), True], ids=["forward", "both"])
@pytest.mark.parametrize(("layout", "dtype"), TWO)
def test_temporaries_are_small(layout, dtype, derivative):
    x = jax.ShapeDtypeStruct((1, 4096, 32, 128), dtype)
    forward = lambda x: pe.rotary(x, layout=layout, head_axis=-2)  # noqa: E731

    def both(x, dy):
        y, back = jax.vjp(forward, x)
        return y, back(dy)[0]

    compiled = jax.jit(both).lower(x, x).compile() if derivative else jax.jit(forward).lower(x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < x.size * x.dtype.itemsize / 4


COLUMNS = jax.__version_info__ >= (0, 12)  # for it JAX must keep a barrier
NARROW, WIDE = ("columns", "columns") if COLUMNS else ("pieces", "reads")
# x, what of it turns, the layout, and the program on a CPU. Bits do not show which it is: the time does.
# For the default: each form, and both sides of each threshold.
FEW = [
    "halves",
    "halves of a part",
    "pairs",
    "narrow halves",
    "narrow halves of a part",
    "pairs of a part",
    "too few heads",
    "one head",
    "one step",
]
PROGRAMS = {
    "halves": ((2, 64, 8, 64), 64, "half", jnp.float32, WIDE),
    "one batch": ((1, 48, 4, 64), 64, "half", jnp.float32, WIDE),
    "halves of a part": ((2, 64, 8, 64), 32, "half", jnp.float32, "reads"),
    "pairs": ((2, 64, 8, 64), 64, "interleaved", jnp.float32, WIDE),
    "pairs of a part": ((2, 64, 8, 64), 32, "interleaved", jnp.float32, WIDE),
    "pairs of an odd width": ((2, 64, 8, 65), 32, "interleaved", jnp.float32, "reads"),
    "narrow halves": ((2, 64, 8, 64), 64, "half", jnp.bfloat16, NARROW),
    "narrow pairs": ((2, 64, 8, 64), 64, "interleaved", jnp.bfloat16, NARROW),
    "narrow halves of a part": ((2, 64, 8, 64), 32, "half", jnp.bfloat16, "reads"),
    "narrow pairs of a part": ((2, 64, 8, 64), 32, "interleaved", jnp.bfloat16, NARROW),
    "too few heads": ((1, 64, 3, 64), 64, "half", jnp.float32, "pieces"),
    "too few heads of pairs": ((1, 64, 3, 64), 64, "interleaved", jnp.float32, "columns" if COLUMNS else "pieces"),
    "one head": ((2, 64, 1, 64), 64, "half", jnp.float32, "pieces"),
    "one head of one batch": ((1, 64, 1, 64), 64, "half", jnp.float32, "pieces"),
    "one narrow head of pairs": ((2, 64, 1, 64), 64, "interleaved", jnp.bfloat16, "pieces"),
    "8 pieces of one head": ((2, 64, 1, 64), 16, "half", jnp.float32, "pieces"),
    "9 pieces of one head": ((2, 64, 1, 72), 64, "half", jnp.float32, "reads"),
    "one step": ((2, 1, 8, 64), 64, "half", jnp.float32, WIDE),
    "one narrow step": ((2, 1, 8, 64), 64, "half", jnp.bfloat16, NARROW),
}


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the programs of a CPU")
@pytest.mark.parametrize("name", tiered(PROGRAMS, FEW))
def test_one_pass_on_a_cpu(name):
    shape, dim, layout, dtype, program = PROGRAMS[name]
    x, p = jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct(shape[1:2], jnp.int32)
    compiled = jax.jit(lambda x, p: pe.rotary(x, p, dim, layout=layout, head_axis=-2)).lower(x, p).compile()
    text = compiled.as_text()
    padded = ["pad"] if layout == "interleaved" and dim < shape[-1] else []  # the waves
    operations = {"reads": ["pad"], "pieces": [*padded, "concatenate"], "columns": padded}
    assert [op for op in ("pad", "reverse", "concatenate") if f" {op}(" in text] == operations[program]
    if program == "columns":  # a loop over pairs by itself
        pairs = (2, dim // 2) if layout == "half" else (shape[-1] // 2, 2)
        assert re.search(rf"f\d+\[{','.join(map(str, (*shape[:-1], *pairs)))}\]\S* fusion\(", text)
    # The waves that heads share are made once, for each pair or for each feature.
    waves = 2 * shape[3] if program == "reads" else shape[3] if padded else dim
    table = shape[1] * waves * 4 if shape[2] >= 4 else 0
    # If a program returns what a loop over pairs computes, XLA copies it where an axis of size 1 follows a longer one.
    copied = program == "columns" and shape[1] == 1
    copy = math.prod(shape) * np.dtype(dtype).itemsize if copied else 0
    assert table <= compiled.memory_analysis().temp_size_in_bytes <= table + copy + 1024
    # Rows as they lie in memory: in another order each number would be moved by itself.
    arrays = re.findall(r"\w\[([\d,]+)\]\{([\d,]+)[}:]", text)
    assert arrays
    for sizes, order in arrays:
        axes = [axis for axis in map(int, order.split(",")) if sizes.split(",")[axis] != "1"]
        assert axes == sorted(axes, reverse=True)
    assert copied or " copy(" not in text


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the programs of a CPU")
@pytest.mark.parametrize(
    ("name", "apart"),
    [
        *(("halves", True), ("pairs", True), ("pairs of a part", True), ("too few heads of pairs", True)),
        *(("halves of a part", False), ("too few heads", False), ("one narrow head of pairs", False)),
    ],
)
def test_pairs_have_a_loop_of_their_own_where_xla_keeps_a_barrier(name, apart, monkeypatch):
    """XLA of JAX 0.10 does not, so `test_one_pass_on_a_cpu` sees that loop on JAX 0.12 alone."""
    monkeypatch.setattr(workarounds, "KEEPS_BARRIERS", True)
    shape, dim, layout, dtype, _ = PROGRAMS[name]
    rotate = jax.jit(lambda x: pe.rotary(x, frequencies=dim, layout=layout, head_axis=-2))
    text = rotate.lower(jax.ShapeDtypeStruct(shape, dtype)).as_text()
    assert bool(re.search(r"(%\w+) = stablehlo.optimization_barrier .*\n.*stablehlo.reshape \1", text)) == apart


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the programs of a CPU")
@pytest.mark.parametrize("name", ["halves", "one batch", "narrow halves", "one step"])
def test_one_pass_under_vmap(name):
    shape, dim, layout, dtype, _ = PROGRAMS[name]
    x, p = jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct(shape[1:2], jnp.int32)
    many = jax.ShapeDtypeStruct((8, *shape), dtype)
    rotate = lambda x, p: pe.rotary(x, p, dim, layout=layout, head_axis=-2)  # noqa: E731
    texts = [jax.jit(rotate).lower(x, p).as_text(), jax.jit(jax.vmap(rotate, (0, None))).lower(many, p).as_text()]
    for op in ("pad", "reverse", "concatenate", "optimization_barrier"):
        alone, mapped = (len(re.findall(rf"stablehlo.{op}\b", text)) for text in texts)
        assert alone == mapped, op


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the programs of a CPU")
@pytest.mark.parametrize(
    ("axes", "dtype", "arguments", "most"),
    [
        slow(0, "float32", (0,), 1.2 if jax.__version_info__ >= (0, 12) else 3.3),
        (0, "bfloat16", (0, 1, 2), 2.1 if jax.__version_info__ >= (0, 10, 2) else 3.2),
        slow(None, "float32", (0, 1, 2), 2.1),
    ],
)
def test_temporaries_of_a_batch(axes, dtype, arguments, most):
    x = jax.ShapeDtypeStruct((8, 1, 256, 16, 64)[axes is None :], dtype)
    p, w = jax.ShapeDtypeStruct((256,), jnp.float32), jax.ShapeDtypeStruct((8, 32), jnp.float32)
    rotate = jax.vmap(lambda x, p, w: pe.rotary(x, p, w, head_axis=-2), (axes, None, 0))
    loss = lambda *arrays: jnp.sum(jnp.square(rotate(*arrays).astype(jnp.float32)))  # noqa: E731
    made = jax.jit(jax.grad(loss, arguments)).lower(x, p, w).compile()
    result = jax.eval_shape(rotate, x, p, w)
    assert made.memory_analysis().temp_size_in_bytes < most * 4 * result.size


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the programs of a CPU")
@pytest.mark.parametrize(("layout", "dtype"), TWO)
@pytest.mark.parametrize("given", ["positions", slow("cos_sin")])
def test_layers_share_their_cosines_and_sines(given, dtype, layout):
    x, p = jax.ShapeDtypeStruct((8, 1, 4, 64), dtype), jax.ShapeDtypeStruct((8, 1), jnp.int32)

    def layers(x, p):
        angle = {"positions": p} if given == "positions" else {"cos_sin": pe.cos_sin(p, 64)}
        turned = lambda x, _: (pe.rotary(x, **angle, layout=layout, head_axis=-2), None)  # noqa: E731
        return jax.lax.scan(turned, x, length=3)[0]

    text = jax.jit(layers).lower(x, p).compile().as_text()
    computations = dict(re.findall(r"^(?:ENTRY )?%([\w.]+) [^\n]*\{\n(.*?)^\}", text, re.M | re.S))
    sines = {name for name, code in computations.items() if re.search(r"= s32\S* abs\(", code)}  # a phase is reflected
    inside, left = set(), re.findall(r" while\(.*body=%([\w.]+)", text)
    assert sines and len(left) == 1
    while left:
        inside.add(name := left.pop())
        left += set(re.findall(r"(?:calls|to_apply|body|condition)=%([\w.]+)", computations[name])) - inside
    assert len(inside) > 1 and not inside & sines
