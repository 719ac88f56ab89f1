"""The memory that `rotary` takes: what it stores for the derivative, and its temporaries.

- The derivative by x, with static frequencies, stores positions alone, and one derivative may follow another.
- On a CPU a rotation is one pass over x, which stores no more than a table that heads share. `jax.vmap` adds no
  operation that would copy.
- Layers of a scan compute their cosines and sines once, outside the loop.
"""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.differences import stored

pytestmark = pytest.mark.usefixtures("compiled_anew")
on_a_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="the programs of a CPU")
# In one dtype each
BOTH_LAYOUTS = pytest.mark.parametrize(("layout", "dtype"), [("half", jnp.float32), ("interleaved", jnp.bfloat16)])
X = jax.ShapeDtypeStruct((2, 256, 8, 64), jnp.bfloat16)
POSITIONS = np.arange(256)


@pytest.mark.parametrize(
    ("function", "positions"),  # how many numbers of 4 bytes hold its positions or its offset
    [
        (lambda x: pe.rotary(x, np.stack([POSITIONS, POSITIONS]), head_axis=-2), 512),
        (lambda x: pe.rotary(x, np.stack([POSITIONS, POSITIONS], -1), pe.axial(64, 2), head_axis=-2), 512),
        (lambda x: pe.shift_keys(x, 7, 64, head_axis=-2), 1),
        (lambda x: pe.shift(x, 5, 64), 1),
    ],
    ids=["by row", "axial", "keys", "encodings"],
)
def test_the_derivative_in_x_stores_positions_alone(function, positions):
    assert stored(jax.jit(function), X) <= 4 * (positions + 64)  # 64: frequencies of the pairs, at most


def test_derivatives_by_x_alone_and_by_x_and_positions_agree_in_one_program():
    """JAX 0.10 keeps a traced call: a derivative by x alone that stored fewer arrays would get those of the other."""
    total = jax.jit(lambda x, p: jnp.sum(jnp.sin(pe.rotary(x, p, head_axis=-2))))
    x, p = np.ones((2, 9, 3, 10), np.float32), np.linspace(0, 5, 9, dtype=np.float32)

    @jax.jit
    def in_turn(x, p):
        return [(jax.grad(lambda x: total(x, p))(x), *jax.grad(total, (0, 1))(x, p)) for _ in range(2)]

    found = in_turn(x, p)
    _, want_x, want_p = found[0]
    for alone, by_x, by_p in found:
        np.testing.assert_allclose(alone, want_x, atol=1e-6)
        np.testing.assert_allclose(by_x, want_x, atol=1e-5)
        np.testing.assert_allclose(by_p, want_p, atol=1e-5)


@BOTH_LAYOUTS
def test_temporaries_are_small(layout, dtype):
    """Those of a rotation and its derivative are less than a quarter of x."""
    x = jax.ShapeDtypeStruct((1, 4096, 32, 128), dtype)

    def both(x, dy):
        y, back = jax.vjp(lambda x: pe.rotary(x, layout=layout, head_axis=-2), x)
        return y, back(dy)[0]

    temporaries = jax.jit(both).lower(x, x).compile().memory_analysis().temp_size_in_bytes
    assert temporaries < x.size * x.dtype.itemsize / 4


PAD, CONCATENATE = ["pad"], ["concatenate"]
# Since JAX 0.12, which keeps a barrier, the lowering `sum_columns` needs neither.
NONE_OR_PAD, NONE_OR_CONCATENATE = (
    [] if jax.__version_info__ >= (0, 12) else operations for operations in (PAD, CONCATENATE)
)
# By name: the shape of x, how many of its features rotate, the layout, the dtype, and which of pad, reverse and
# concatenate the program on a CPU contains
PROGRAMS = {
    "halves": ((2, 64, 8, 64), 64, "half", jnp.float32, NONE_OR_PAD),
    "narrow halves": ((2, 64, 8, 64), 64, "half", jnp.bfloat16, NONE_OR_CONCATENATE),
    "pairs": ((2, 64, 8, 64), 64, "interleaved", jnp.float32, NONE_OR_PAD),
    "halves of a part": ((2, 64, 8, 64), 32, "half", jnp.float32, PAD),
    "one head": ((2, 64, 1, 64), 64, "half", jnp.float32, CONCATENATE),
    "one step": ((2, 1, 8, 64), 64, "half", jnp.float32, NONE_OR_PAD),
}


@on_a_cpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_pass_on_a_cpu(name):
    """XLA makes no copy and no temporary as large as x, so x is read once and the result is written once."""
    shape, dim, layout, dtype, operations = PROGRAMS[name]
    x, p = jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct(shape[1:2], jnp.int32)
    compiled = jax.jit(lambda x, p: pe.rotary(x, p, dim, layout=layout, head_axis=-2)).lower(x, p).compile()
    text = compiled.as_text()
    assert [op for op in ("pad", "reverse", "concatenate") if f" {op}(" in text] == operations
    if not operations:  # one fusion loops over pairs
        pairs = "2,32" if layout == "half" else "32,2"
        assert re.search(rf"f\d+\[{','.join(map(str, shape[:-1]))},{pairs}\]\S* fusion\(", text)
    # Bytes of cosines and sines, of each pair or of each feature: stored if four or more heads share them.
    table = shape[1] * 4 * (2 * 64 if operations == PAD else dim) if shape[2] >= 4 else 0
    # If a program returns what a loop over pairs computes, XLA copies it where an axis of size 1 follows a longer one.
    copied = not operations and shape[1] == 1
    copy = math.prod(shape) * np.dtype(dtype).itemsize if copied else 0
    assert table <= compiled.memory_analysis().temp_size_in_bytes <= table + copy + 1024  # 1024 for small things
    assert copied or " copy(" not in text
    # All arrays are row-major, leaving out axes of size 1: another order would move numbers one by one.
    arrays = re.findall(r"\w\[([\d,]+)\]\{([\d,]+)[}:]", text)
    assert arrays
    for sizes, order in arrays:
        axes = [axis for axis in map(int, order.split(",")) if sizes.split(",")[axis] != "1"]
        assert axes == sorted(axes, reverse=True)


@on_a_cpu
@pytest.mark.parametrize("name", ["halves", "one step"])
def test_vmap_adds_no_operation_that_copies(name):
    shape, dim, layout, dtype, _ = PROGRAMS[name]
    x, many = (jax.ShapeDtypeStruct((*batch, *shape), dtype) for batch in ((), (8,)))
    p = jax.ShapeDtypeStruct(shape[1:2], jnp.int32)
    rotate = lambda x, p: pe.rotary(x, p, dim, layout=layout, head_axis=-2)  # noqa: E731
    alone, mapped = jax.jit(rotate).lower(x, p), jax.jit(jax.vmap(rotate, (0, None))).lower(many, p)
    for op in ("pad", "reverse", "concatenate", "optimization_barrier"):
        once, again = (len(re.findall(rf"stablehlo.{op}\b", lowered.as_text())) for lowered in (alone, mapped))
        assert once == again, op


@on_a_cpu
def test_a_gradient_under_vmap_keeps_the_result_and_its_cotangent():
    """In float32, for derivatives by x, positions and frequencies of each row of the batch."""
    most = 2.1 if jax.__version_info__ >= (0, 10, 2) else 3.2  # of x's size: two, and a tenth; before, XLA kept a third
    x, p = jax.ShapeDtypeStruct((8, 1, 256, 16, 64), jnp.bfloat16), jax.ShapeDtypeStruct((256,), jnp.float32)
    w = jax.ShapeDtypeStruct((8, 32), jnp.float32)
    rotate = jax.vmap(lambda x, p, w: pe.rotary(x, p, w, head_axis=-2), (0, None, 0))
    loss = lambda *arrays: jnp.sum(jnp.square(rotate(*arrays).astype(jnp.float32)))  # noqa: E731
    compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(x, p, w).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < most * 4 * x.size


@on_a_cpu
@BOTH_LAYOUTS
def test_a_scan_computes_cosines_and_sines_once_outside_its_loop(layout, dtype):
    def layers(x, p):
        layer = lambda x, _: (pe.rotary(x, p, layout=layout, head_axis=-2), None)  # noqa: E731
        return jax.lax.scan(layer, x, length=3)[0]

    x, p = jax.ShapeDtypeStruct((8, 1, 4, 64), dtype), jax.ShapeDtypeStruct((8, 1), jnp.int32)
    text = jax.jit(layers).lower(x, p).compile().as_text()
    computations = dict(re.findall(r"^(?:ENTRY )?%([\w.]+) [^\n]*\{\n(.*?)^\}", text, re.M | re.S))
    # Only a sine takes |phase|, of an int32.
    sines = {name for name, code in computations.items() if re.search(r"= s32\S* abs\(", code)}
    # The computations that the only loop calls, directly or through others
    inside, left = set(), re.findall(r" while\(.*body=%([\w.]+)", text)
    assert sines and len(left) == 1
    while left:
        name = left.pop()
        inside.add(name)
        left += set(re.findall(r"(?:calls|to_apply|body|condition)=%([\w.]+)", computations[name])) - inside
    assert len(inside) > 1 and not inside & sines
