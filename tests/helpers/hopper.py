"""`attention(implementation="mosaic_gpu")` without a GPU: the kernels in Pallas's interpret mode."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from posenc_jax._attention import blockwise
from posenc_jax._attention.hopper import attend
from posenc_jax._jax.derivatives import Kernels, operation

INTERPRETER_LOCK = threading.Lock()  # all programs share the interpreter's memory, so one runs at a time


def _on_host(program: Callable[..., Any], types: Any, leaves: Any) -> Any:
    """The outputs, of these types, of a program of the leaves, which a callback runs on the host."""
    types = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]
    jitted = jax.jit(program)
    # Interpret mode has ordered effects, which the lowering of a primitive cannot have: hence the callback. The caller
    # waits on its own device, so the program runs on another.
    other_device = jax.devices()[-1]

    def run(*x: Any) -> Any:
        with INTERPRETER_LOCK, jax.enable_x64(False):  # with x64, the interpreter would mix int32 and int64
            return jax.block_until_ready(jitted(*jax.device_put([*map(np.asarray, x)], other_device)))

    return jax.pure_callback(run, types, *leaves, vmap_method="sequential")


def _interpreted(settings: Any) -> Any:
    """The settings of attention with Pallas's interpret mode."""
    return settings._replace(kernel=settings.kernel._replace(interpret=True))


def _compute(settings: Any, *leaves: Any) -> Any:
    """What the kernel for results computes, in interpret mode."""
    types = blockwise.types(settings, *map(jax.typeof, leaves))
    return _on_host(lambda *leaves: attend.forward(_interpreted(settings), *leaves), types, leaves)


def _backward(settings: Any, leaves: Any, outputs: Any, cotangents: Any, has_tangent: Any) -> Any:
    """What the kernels for gradients compute, in interpret mode: a cotangent per leaf that has a tangent."""
    n, m = len(leaves), len(leaves) + len(outputs)

    def program(*x: Any) -> Any:
        return attend.backward(_interpreted(settings), x[:n], x[n:m], x[m:], has_tangent)

    types = [x for x, has in zip(leaves, has_tangent, strict=True) if has]
    return _on_host(program, types, (*leaves, *outputs, *cotangents))


ATTEND = operation(
    "interpreted_attention",
    **attend.RULES,
    compute=_compute,
    kernels=Kernels({None: _backward}, attend.holds_backward),
)


def interpreted(patch: Any) -> None:
    """Makes the kernels run in interpret mode, until `patch`, pytest's `monkeypatch.setattr`, is undone."""
    patch(attend, "kernels", ATTEND)
