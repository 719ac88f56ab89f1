"""Workarounds for compilers: one function per problem, which can go when the problem has.

Each says what XLA or LLVM does, where that was seen, what the function gains, and which test fails without it. The JAX
versions are those that the tests run on, 0.10.2 and 0.12.0, on a CPU unless another compiler is named.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from posenc_jax._jax import sharding

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", bound=tuple[Any, ...])  # a named tuple


def compiled(name: str, *, inline: bool = True, **static: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function: `jax.jit` with these static arguments, by default inlined into other jitted functions.

    XLA rounds a fused program differently from its operations one by one: one way of evaluating gives one result.
    Profiles show the operations as posenc_jax.`name`.
    tests/unit/flax/test_nnx_and_linen.py::test_a_module_computes_its_function_and_both_stacks_have_one_gradient
    """
    return lambda f: jax.jit(jax.named_scope(f"posenc_jax.{name}")(f), inline=inline, **static)


# Before 0.12, JAX lowers `optimization_barrier` to nothing on a CPU. With it, `sum_columns` takes one pass.
# tests/properties/test_rotary_memory.py::test_one_pass_on_a_cpu
KEEPS_BARRIERS = jax.__version_info__ >= (0, 12)


# What a comparison of symbolic sizes raises. JAX before 0.10.2 has it in no public module.
# tests/properties/test_arguments.py::test_a_symbolic_length_needs_a_bound_for_a_table
InconclusiveDimensionOperation = getattr(jax.errors, "InconclusiveDimensionOperation", Exception)


# JAX before 0.11 does not lower the Pallas kernels of `attention` for NVIDIA GPUs.
# tests/unit/attention/test_hopper.py::test_it_refuses_an_older_jax
HAS_MOSAIC_GPU = jax.__version_info__ >= (0, 11)


@functools.cache
def ptxas() -> tuple[int, ...] | None:
    """The version of CUDA 12's compiler that is installed for JAX, such as (12, 8, 61) of CUDA 12.8.0; else None.

    From CUDA 12.8.0 to before 12.9.1 it miscompiles the selects that mask scores, according to JAX, whose
    `attention_mgpu` rejects causal masks there.
    tests/unit/attention/test_hopper.py::test_it_masks_nothing_where_ptxas_miscompiles_it
    """
    try:
        importlib.metadata.version("jax-cuda12-plugin")
        version = importlib.metadata.version("nvidia-cuda-nvcc-cu12")
    except importlib.metadata.PackageNotFoundError:  # another CUDA, or one from elsewhere
        return None
    return tuple(map(int, version.split(".")[:3]))


@jax.custom_jvp
def rounded_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """a·b, rounded before anything is added to it.

    LLVM and NVIDIA's compiler contract a·b + c to an FMA in some programs but not in others, so the bits differ (JAX
    0.10 and 0.12). An integer minimum blocks the contraction, and changes nothing: it replaces the positive NaN of all
    ones by the next one. Gains the same bits in every program, at one operation.
    tests/unit/rotary/test_rotation.py::test_every_lowering_computes_the_same
    """
    result = lax.mul(a, b)
    bits = lax.bitcast_convert_type(result, np.dtype(f"int{8 * result.dtype.itemsize}"))
    most = np.iinfo(bits.dtype).max - 1
    return lax.bitcast_convert_type(lax.min(bits, lax.full_like(bits, most)), result.dtype)


@rounded_product.defjvp
def _rounded_product_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (a, b), (da, db) = primals, tangents
    return rounded_product(a, b), da * b + a * db


@jax.custom_jvp
def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """`rounded_product` whose derivative skips zero tangents, which give NaN if an infinity multiplies them.

    Functions of tiles call `rounded_product`: Pallas does not lower `symbolic_zeros` for a TPU (JAX 0.10 and 0.12).
    tests/unit/jax/test_workarounds.py::test_the_derivative_of_a_product
    """
    return rounded_product(a, b)


def _product_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, Any]:
    a, b = primals
    result = product(a, b)
    terms = [x * d for x, d in zip((b, a), tangents, strict=True) if not isinstance(d, SymbolicZero)]
    return result, sum(terms[1:], terms[0]) if terms else jnp.zeros_like(result)


product.defjvp(_product_jvp, symbolic_zeros=True)


def is_product(eqn: Any) -> bool:
    """Whether an equation of a jaxpr calls one of these products, by the name and the file of a `jax.custom_jvp`.

    A kernel that computes the bias of a jaxpr may contract products: it computes a·b instead, with derivatives. Gains
    registers, and gradients by kernels.
    tests/unit/attention/test_bias_programs.py::test_a_pullback_is_that_of_the_bias
    """
    if eqn.primitive.name != "custom_jvp_call":
        return False
    called = eqn.params["call_jaxpr"].jaxpr.debug_info
    return called.func_name in ("product", "rounded_product") and called.func_filename == __file__


def positive_product(a: Any, b: Any) -> jax.Array:
    """a·b for a·b ≥ 0, rounded before anything is added to it.

    The problem of `rounded_product`: compilers do not contract across |a·b|, and do not know that it changes nothing.
    tests/unit/jax/test_workarounds.py::test_products_are_rounded_first
    """
    return lax.abs(lax.mul(a, b))


def materialized(x: jax.Array) -> jax.Array:
    """Makes XLA:CPU store an array of floats instead of recomputing it at each use (JAX 0.10 and 0.12).

    XLA does not duplicate an integer remainder, and in 32 bits `bits % (2³² − 1)` leaves all smaller bit patterns
    unchanged. The only other pattern, the NaN of all ones, becomes another NaN. Gains a table of cosines and sines that
    all heads share.
    tests/properties/test_rotary_memory.py::test_one_pass_on_a_cpu
    """
    bits = lax.bitcast_convert_type(x, np.dtype(f"uint{8 * x.dtype.itemsize}"))
    most = np.iinfo(bits.dtype).max
    bits = lax.min(bits, lax.full_like(bits, most - 1))
    return lax.bitcast_convert_type(lax.rem(bits, lax.full_like(bits, most)), x.dtype)


def computed_where_used(f: Callable[[A], Any], x: jax.Array, angles: A) -> Any:
    """f(angles), whose first array (..., axes) is broadcast to the vectors of x, sharded like both.

    XLA computes sines inside the loop over x only if they have the shape of x. It stores sines that are broadcast to
    that shape, which costs a TPU or a GPU more than computing each element (JAX 0.10 and 0.12).
    tests/devices/compile/test_tpu.py::test_an_addition_costs_a_copy
    """

    def compute(first: jax.Array, *others: Any) -> Any:
        return f(type(angles)(jnp.broadcast_to(first, (*x.shape[:-1], first.shape[-1])), *others))

    return sharding.sharded_as([x, angles[0]], compute, *angles)


class Target(NamedTuple):
    """How to tell one compiler to store an array, and to round a product before a sum."""

    stored: Callable[[jax.Array], jax.Array]
    product: Callable[[jax.Array, jax.Array], jax.Array]


CPU = Target(materialized, rounded_product)
GPU = Target(lax.optimization_barrier, rounded_product)
TPU = Target(lax.optimization_barrier, lax.mul)  # it has no FMA to contract to
TARGETS = {"cpu": CPU, "gpu": GPU, "tpu": TPU}


def separate_loop(x: jax.Array) -> jax.Array:
    """Keeps XLA:CPU from fusing what computes x with what reads it (JAX 0.12; see `KEEPS_BARRIERS`).

    XLA compiles an expression of pairs to a loop over pairs and one over their members, which LLVM vectorizes. Fused
    with a loop over all features, it would be indexed feature by feature, which takes five times as long.
    tests/properties/test_rotary_memory.py::test_one_pass_on_a_cpu
    """
    return lax.optimization_barrier(x)


def bits_where(mask: np.ndarray, a: jax.Array, b: jax.Array) -> jax.Array:
    """`jnp.where(mask, a, b)` for a constant mask, by operations on bits.

    LLVM does not vectorize a loop over interleaved pairs that ends with a select (JAX 0.12).
    tests/unit/jax/test_workarounds.py::test_bits_where
    """
    integers = np.dtype(f"int{8 * a.dtype.itemsize}")
    ones, (a_bits, b_bits) = -mask.astype(integers), (lax.bitcast_convert_type(each, integers) for each in (a, b))
    return lax.bitcast_convert_type((a_bits & ones) | (b_bits & ~ones), a.dtype)


def unit_axes(x: jax.Array, batch: int) -> list[int]:
    """The axes of size 1 behind a longer axis, except the last and those that an Explicit mesh axis shards.

    The first `batch` axes do not count, so that x is compiled under `jax.vmap` as it is without.
    tests/properties/test_rotary_memory.py::test_vmap_adds_no_operation_that_copies
    """
    spec = (*jax.typeof(x).sharding.spec, *(None,) * x.ndim)
    one = [isinstance(n, int) and n == 1 and s is None for n, s in zip(x.shape[:-1], spec, strict=False)]
    return [axis for axis in range(batch, x.ndim - 1) if one[axis] and not all(one[batch:axis])]


def without_axes(axes: list[int], f: Callable[..., jax.Array], x: jax.Array, *others: Any) -> jax.Array:
    """Applies f to x and others of its rank without x's `unit_axes`, and restores them; f must be NaN wherever x is.

    XLA:CPU transposes what is stacked around axes of size 1, and then copies it element by element (JAX 0.10 and 0.12).
    The select changes no value, and makes the result keep x's order of axes.
    tests/properties/test_rotary_memory.py::test_one_pass_on_a_cpu
    """
    y = lax.expand_dims(f(*jax.tree.map(lambda array: lax.squeeze(array, axes), (x, *others))), axes)
    old = x.astype(y.dtype)
    return jnp.where(jnp.isnan(old), old, y)
