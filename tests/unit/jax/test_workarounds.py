"""Workarounds for compilers keep values and derivatives, and each one names a test that fails without it.

- Profiles show the names of functions.
- Products are rounded before anything is added to them, keep zeros, infinities and NaN, and can be told from others.
- Selections, stored arrays and functions computed without axes of size 1 have the same bits.
"""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import posenc_jax as pe
from posenc_jax._jax import workarounds

AT, X = np.arange(5, dtype=np.int32), np.ones((1, 5, 2, 8), np.float32)
NAMED = {
    "rotary": (functools.partial(pe.rotary, head_axis=-2), X),
    "alibi": (functools.partial(pe.alibi, heads=2), AT, AT),
}


@pytest.mark.parametrize("name", NAMED)
def test_profiles_show_the_name_of_the_function(name):
    """Both for a function that is a program of its own, and for a part of a program."""
    f, *arrays = NAMED[name]
    program = f if name == "alibi" else lambda *arrays: jnp.sin(f(*arrays))
    assert f"posenc_jax.{name}/" in jax.jit(program).lower(*arrays).compile().as_text()


def test_each_workaround_names_a_test_that_exists():
    root = Path(__file__).parents[3]
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", Path(workarounds.__file__).read_text(encoding="utf-8"))
    assert len(named) >= 6  # fewer would mean that the pattern no longer finds them
    for path, test in named:
        assert f"def {test}(" in (root / path).read_text(encoding="utf-8"), (path, test)


def test_products_are_rounded_first():
    """A fused multiply-add would return the rounding error of the product instead of 0."""
    a, b = np.float32([1 + 2**-12, 1 + 2**-12])
    rounded = np.float32(a * b)
    assert float(a) * float(b) != float(rounded)
    for product in (workarounds.rounded_product, workarounds.product, workarounds.positive_product):
        f = jax.jit(lambda a, b, c, product=product: product(a, b) - c)
        assert not np.any(np.asarray(f(np.full(64, a), np.full(64, b), np.full(64, rounded))))
    text = export.export(jax.jit(workarounds.rounded_product), platforms=["cuda"])(
        np.ones(4, np.float32), np.ones(4, np.float32)
    )
    assert "minimum" in text.mlir_module()


@pytest.mark.parametrize("f", [workarounds.rounded_product, workarounds.product])
def test_the_derivative_of_a_product(f):
    x, dx = np.float32([3, 5]), np.float32([7, 11])
    both = jax.jit(lambda x, dx: (jax.jvp(f, [*x], [*dx]), jax.grad(f, (0, 1))(*x)))
    assert jax.device_get(both(x, dx)) == ((15, 3 * 11 + 7 * 5), (5, 3))
    infinity, one = (np.float32(np.inf),), (np.float32(1),)
    assert jax.jit(lambda *at: jax.jvp(lambda a: workarounds.product(a, x[1]), *at)[1])(infinity, one) == 5


@pytest.mark.parametrize("transform", [lambda f: f, jax.vmap, jax.checkpoint, lambda f: lambda *x: jax.jvp(f, x, x)[0]])
def test_a_product_is_recognized_in_a_jaxpr(transform):
    """Another function of the same name is not."""
    other = jax.custom_jvp(lambda a, b: a - b)
    other.__wrapped__.__name__ = "product"
    other.defjvp(lambda primals, tangents: (other(*primals), tangents[0]))
    for f, expected in (workarounds.product, True), (workarounds.rounded_product, True), (other, False):
        jaxpr = jax.make_jaxpr(transform(lambda a, b, f=f: f(a, b)))(*[np.ones(2, np.float32)] * 2).jaxpr
        # jax.checkpoint has the equations in a jaxpr of its own
        equations = getattr(jaxpr.eqns[0].params.get("jaxpr"), "eqns", jaxpr.eqns)
        assert "custom_jvp_call" in [eqn.primitive.name for eqn in equations]
        assert any(map(workarounds.is_product, equations)) == expected


def test_rounded_products_have_the_values_of_numpy():
    bits = np.random.default_rng(0).integers(0, 2**32, (2, 4096), dtype=np.uint32)
    a, b = np.where(np.abs(bits.view(np.float32)) < 1e-19, np.float32([[0], [-0.0]]), bits.view(np.float32))
    with np.errstate(all="ignore"):
        want = a * b  # zeros, infinities, NaNs; no subnormal numbers, which XLA takes for zeros
    got = np.asarray(jax.jit(workarounds.rounded_product)(a, b))
    np.testing.assert_array_equal(got, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(want[numbers]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_where(dtype):
    a, b = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(dtype)
    a[0, :4], b[0, :4] = [np.nan, np.inf, -0.0, 0.0], [0.0, np.nan, np.inf, -0.0]
    mask = np.arange(8) % 3 == 0
    with jax.enable_x64(dtype == "float64"):
        got = np.asarray(jax.jit(lambda a, b: workarounds.bits_where(mask[None], a, b))(a, b))
    assert got.dtype == dtype
    want = np.where(mask, a, b)
    np.testing.assert_array_equal(got.view(f"int{8 * got.itemsize}"), want.view(f"int{8 * got.itemsize}"))


def test_a_stored_array_keeps_its_bits():
    bits = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32)
    bits[:6] = 0, 1, 0x7F800000, 0xFF800000, 0x80000000, 0xFFFFFFFE
    got = np.asarray(jax.jit(workarounds.materialized)(bits.view(np.float32)))
    np.testing.assert_array_equal(got.view(np.uint32), bits)


def test_each_compiler_stores_an_array_and_rounds_a_product():
    a, b = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    each = jax.jit(lambda a, b: [(way.stored(a), way.product(a, b)) for way in workarounds.TARGETS.values()])
    np.testing.assert_array_equal(each(a, b), [(a, a * b)] * 3)


def test_a_function_computed_without_axes_of_size_1_gives_the_same():
    """Operands may be None."""
    x = np.random.default_rng(0).normal(size=(1, 3, 1, 4)).astype(np.float32)
    x[0, 1, 0, 2], x[0, 2, 0, 0] = np.nan, -0.0
    assert workarounds.unit_axes(x, 0) == [2]
    f = lambda x, p, w: x + p * 0 if w is None else None  # noqa: E731
    got = jax.jit(lambda x, p: workarounds.without_axes([2], f, x, p, None))(x, np.ones((1, 3, 1, 1), np.float32))
    np.testing.assert_array_equal(got, x)
