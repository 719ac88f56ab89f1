"""`operation` makes a function with a tangent and a transpose of its own.

The example is settings · sin(x) · Σw · n, compared with the same by JAX's own operations.

- It has derivatives of the first three orders, in both modes, under `jax.vmap` of any operands, and without jit. A
  mapped axis keeps its name on a mesh.
- Only cotangents and tangents that are asked for are computed. A transpose whose result is not used is not run.
- CUDA may have a program of its own. Kernels compute the cotangents that they support.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from helpers.closeness import assert_within
from posenc_jax._jax.derivatives import Kernels, operation

RNG = np.random.default_rng(0)
RAN = []  # the programs that JAX traced, in order


# The programs of the example, in the terms of `operation`; its second output, max(x), counts as a constant


def types(settings, x, w, n):
    return [x, x.update(shape=(), sharding=x.sharding.update(spec=()))]


def compute(settings, x, w, n):
    RAN.append("compute")
    return [settings * jnp.sin(x) * jnp.sum(w) * n.astype(x.dtype), jnp.max(x)]


def tangent(settings, operands, outputs, tangents):
    (x, w, n), (dx, dw, dn) = operands, tangents
    RAN.append(("tangent", dx is not None, dw is not None))
    assert len(outputs) == 2 and dn is None
    dy = jnp.zeros_like(x)
    if dx is not None:
        dy += settings * jnp.cos(x) * jnp.sum(w) * n.astype(x.dtype) * dx
    if dw is not None:
        dy += settings * jnp.sin(x) * n.astype(x.dtype) * jnp.sum(dw)
    return [dy]


def transpose(settings, operands, outputs, cotangents, has_tangent):
    (x, w, n), (dy,) = operands, cotangents
    RAN.append(("transpose", *has_tangent[:2]))
    assert not has_tangent[2] and len(outputs) == 2
    by_w = jnp.broadcast_to(settings * jnp.sum(jnp.sin(x) * dy) * n.astype(x.dtype), w.shape)
    by_x = settings * jnp.cos(x) * jnp.sum(w) * n.astype(x.dtype) * dy
    return [y for y, has in zip((by_x, by_w), has_tangent, strict=False) if has]


example = operation("example", types=types, compute=compute, tangent=tangent, transpose=transpose)
N = np.int32(3)


def ours(x, w, n=N):
    return example(2.0, x, w, n)[0]


def theirs(x, w, n=N):
    return 2.0 * jnp.sin(x) * jnp.sum(w) * jnp.asarray(n).astype(x.dtype)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


X, W = normal(5), normal(3)


def everything(f, x, w):
    """Derivatives of three orders, by both operands and by x alone, in both modes; v is the direction."""
    loss = lambda x, w: jnp.sum(f(x, w) ** 2)  # noqa: E731
    gradient, v = jax.grad(loss, (0, 1)), (jnp.cos(x), jnp.sin(w))
    dot = lambda a, b: sum(map(jnp.vdot, a, b))  # noqa: E731
    return {
        "value": f(x, w),
        "jvp": jax.jvp(f, (x, w), v),
        "jvp by x": jax.jvp(lambda x: f(x, w), (x,), v[:1]),
        "gradient": gradient(x, w),
        "forward over reverse": jax.jvp(gradient, (x, w), v)[1],
        "reverse over reverse": jax.grad(lambda x, w: dot(gradient(x, w), v), (0, 1))(x, w),
        "reverse over forward": jax.grad(lambda x, w: jnp.sum(jax.jvp(f, (x, w), v)[1] ** 2), (0, 1))(x, w),
        "forward over forward": jax.jvp(lambda *a: jax.jvp(f, a, v)[1], (x, w), v),
        "third": jax.jvp(lambda x: jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(loss)(x, w))))(x), (x,), v[:1])[1],
    }


def check(got, want):
    """Asserts that two trees of arrays agree to float32."""
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        bound = 1e-5 * np.max(np.abs(b), initial=1)
        assert_within(a, b, bound, against=f"JAX, {jax.tree_util.keystr(path)}")


def test_every_derivative_is_that_of_jax():
    check(*jax.jit(lambda x, w: [everything(f, x, w) for f in (ours, theirs)])(X, W))


def test_derivatives_do_not_need_jit():
    doubled = operation(
        "doubled",
        types=lambda _, x: [x, x],
        compute=lambda _, x: [x + x, x],
        tangent=lambda _, operands, outputs, tangents: [tangents[0] + tangents[0]],
        transpose=lambda _, operands, outputs, cotangents, has_tangent: [cotangents[0] + cotangents[0]],
    )
    f, v = lambda x: doubled(None, x)[0], normal(5)  # noqa: E731
    with jax.disable_jit():
        got = f(X), jax.jvp(f, (X,), (v,)), jax.vjp(f, X)[1](v)
    check(got, (2 * X, (2 * X, 2 * v), (2 * v,)))


def four_results(f, x, w, n):
    """The value, the tangent along v, the gradient of a loss, and its tangent along v."""
    v = jnp.cos(x), jnp.sin(w)
    loss = lambda x, w: jnp.sum(jnp.sin(f(x, w, n)))  # noqa: E731
    gradient = jax.grad(loss, (0, 1))
    along = jax.jvp(lambda x, w: f(x, w, n), (x, w), v)
    return f(x, w, n), along, gradient(x, w), jax.jvp(gradient, (x, w), v)[1]


@pytest.mark.parametrize("axes", [(0, 1, 0), (0, None, None), (None, 0, None), (None, None, 0)])
def test_any_operands_may_be_mapped(axes):
    """Derivatives of a map, and a map of derivatives; an axis of None means that all rows share the operand."""
    batches = normal(4, 5), normal(4, 3), np.int32([1, 2, -1, 4])
    arrays = [x[0] if axis is None else np.moveaxis(x, 0, axis) for x, axis in zip(batches, axes, strict=True)]

    def both(f, *a):
        return four_results(jax.vmap(f, axes), *a), jax.vmap(functools.partial(four_results, f), axes)(*a)

    check(*jax.jit(lambda *a: [both(f, *a) for f in (ours, theirs)])(*arrays))


def nested(f, x, w, n):
    """f under three maps: over x, over w, and over w and n."""
    inner = jax.vmap(jax.vmap(f, (None, 0, None)), (0, None, None))  # x (a, 5) and w (b, 3) to (a, b, 5)
    return jax.vmap(inner, (None, 0, 0), 1)(x, w, n)  # w (c, b, 3) and n (c,) to (a, c, b, 5)


def test_maps_may_be_nested():
    arrays = normal(2, 5), normal(4, 3, 3), np.int32([1, 2, 3, 4])
    got, want = jax.jit(lambda *a: [four_results(functools.partial(nested, f), *a) for f in (ours, theirs)])(*arrays)
    assert got[0].shape == (2, 4, 3, 5)
    check(got, want)


def test_a_mapped_axis_keeps_its_name_on_a_mesh():
    """`jax.vmap` promises that constraints within the program split that axis too."""
    programs = {"types": lambda settings, x: [x], "tangent": tangent, "transpose": transpose}
    f = operation("kept", compute=lambda settings, x: [jax.lax.with_sharding_constraint(x, P())], **programs)
    with jax.set_mesh(jax.make_mesh((2,), ("data",), (AxisType.Auto,), devices=jax.devices("cpu")[:2])):
        mapped = jax.vmap(lambda x: f(1.0, x), spmd_axis_name="data")
        assert re.search(r'sharding_constraint .*\[\{"data"\}, \{\}\]', jax.jit(mapped).lower(normal(2, 5)).as_text())


def test_tangents_and_cotangents_alone_may_be_mapped():
    def mapped(f, v, u):
        along = jax.vmap(lambda v: jax.jvp(lambda x: f(x, W), (X,), (v,))[1])(v)
        return along, jax.vmap(lambda u: jax.vjp(f, X, W)[1](u))(u)

    check(*jax.jit(lambda v, u: [mapped(f, v, u) for f in (ours, theirs)])(normal(4, 5), normal(4, 5)))


def test_only_what_has_a_tangent_is_computed():
    f = lambda x, w: example(5.0, x, w, N)[0]  # noqa: E731  # settings that no other test has, so that JAX traces it
    RAN.clear()
    jax.jit(lambda x: jax.jvp(lambda x: f(x, W), (x,), (x,))).lower(X)
    assert ("tangent", True, False) in RAN and "compute" in RAN
    RAN.clear()
    jax.jit(lambda w: jax.vjp(lambda w: f(X, w), w)[1](X)).lower(W)
    assert ("transpose", False, True) in RAN and not any(r[0] == "tangent" for r in RAN)


def test_a_function_that_is_not_used_is_not_run():
    """Its derivative is 0, without a transpose."""
    RAN.clear()
    stopped = lambda x: jnp.sum(x) + 0 * jnp.sum(jax.lax.stop_gradient(ours(x, W)))  # noqa: E731
    last = lambda x: example(2.0, x, W, N)[1]  # noqa: E731  # the output that counts as a constant
    g, along, gradient = jax.jit(lambda x: (jax.grad(stopped)(x), jax.jvp(last, (x,), (x,))[1], jax.grad(last)(x)))(X)
    np.testing.assert_array_equal(g, np.ones(5))
    np.testing.assert_array_equal(along, np.zeros(()))
    np.testing.assert_array_equal(gradient, np.zeros(5))
    assert not any(r[0] == "transpose" for r in RAN)


def test_cotangents_of_outputs_that_are_not_used_are_zeros():
    two = operation(
        "two",
        types=lambda _, x: [x, x, x],
        compute=lambda _, x: [2 * x, 3 * x, x],
        tangent=lambda _, operands, outputs, tangents: [2 * tangents[0], 3 * tangents[0]],
        transpose=lambda _, operands, outputs, cotangents, has_tangent: [2 * cotangents[0] + 3 * cotangents[1]],
    )
    gradients = jax.jit(lambda x: [jax.grad(lambda x: jnp.sum(two(None, x)[n]))(x) for n in (0, 1)])(X)  # noqa: B023
    np.testing.assert_array_equal(gradients, np.repeat([[2], [3]], len(X), 1))


# Kernels


def test_the_program_for_cuda_is_compiled_for_cuda_alone():
    programs = {"types": types, "compute": compute, "tangent": tangent, "transpose": transpose}
    f = operation("of_cuda", **programs, cuda=lambda settings, x, w, n: [jnp.cbrt(x), jnp.max(x)])
    call = jax.jit(lambda x: f(2.0, x, W, N)[0])
    in_cuda, in_cpu = ("cbrt" in export.export(call, platforms=[p])(X).mlir_module() for p in ("cuda", "cpu"))
    assert in_cuda and not in_cpu


def without_derivative(settings, operands, outputs, cotangents, has_tangent):
    """`transpose` on the host, where JAX cannot differentiate it, as it cannot differentiate a kernel."""
    RAN.append("kernel")
    on_host = jax.jit(lambda *x: transpose(settings, x[:3], x[3:5], x[5:], has_tangent))
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x, has in zip(operands, has_tangent, strict=True) if has]
    return jax.pure_callback(on_host, shapes, *operands, *outputs, *cotangents, vmap_method="sequential")


# Of settings other than 2, they support only cotangents without that of w.
KERNELS = Kernels({None: without_derivative}, lambda settings, has_tangent: settings == 2.0 or not has_tangent[1])
by_kernels = operation(
    "by_kernels", types=types, compute=compute, tangent=tangent, transpose=transpose, kernels=KERNELS
)


# the operands to differentiate by, settings, and how many kernels run
@pytest.mark.parametrize(("argnums", "settings", "count"), [((0, 1), 2.0, 1), ((0, 1), 3.0, 0), (0, 3.0, 1)])
def test_kernels_compute_what_they_support(argnums, settings, count):
    RAN.clear()
    f = lambda x, w: jnp.sum(by_kernels(settings, x, w, N)[0])  # noqa: E731
    got = jax.jit(jax.grad(f, argnums))(X, W)
    assert RAN.count("kernel") == count
    want = settings * N * np.cos(X) * W.sum(), np.full(3, settings * N * np.sin(X).sum())
    check(got, want if argnums else want[0])


def test_a_function_with_kernels_has_second_derivatives_and_maps():
    """`jax.vmap` maps x, never w, outside of the derivative and inside."""
    f = lambda x, w, n=N: by_kernels(2.0, x, w, n)[0]  # noqa: E731

    def derivatives(g, x, w):
        gradient = jax.grad(lambda x, w: jnp.sum(g(x, w) ** 2), (0, 1))
        of_rows = jax.grad(lambda x, w: jnp.sum(jax.vmap(g, (0, None))(x, w) ** 2), (0, 1))
        return jax.jvp(gradient, (x[0], w), (x[1], w)), jax.vmap(gradient, (0, None))(x, w), of_rows(x, w)

    check(*jax.jit(lambda x, w: [derivatives(g, x, w) for g in (f, theirs)])(normal(2, 3), W))
