"""`attention(implementation="mosaic_gpu")` without a GPU: the kernel in Pallas's interpret mode."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np

from posenc_jax import _blockwise, _flash
from posenc_jax._operation import operation

ONE = threading.Lock()  # the interpreter keeps its memory once for all programs that run


def _compute(settings: Any, *leaves: Any) -> Any:
    types = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in _blockwise.types(settings, *map(jax.typeof, leaves))]
    settings = settings._replace(kernel=settings.kernel._replace(interpret=True))
    program = jax.jit(lambda *leaves: _flash.forward(settings, *leaves))
    # Interpret mode has ordered effects, which the lowering of a primitive cannot have. The caller waits on one device.
    another = jax.devices()[-1]

    def run(*x: Any) -> Any:
        with ONE:
            return jax.block_until_ready(program(*jax.device_put([*map(np.asarray, x)], another)))

    return jax.pure_callback(run, types, *leaves)


ATTEND = operation(
    "interpreted_attention",
    types=_blockwise.types,
    compute=_compute,
    tangent=_blockwise.tangent,
    transpose=_blockwise.transpose,
)


def interpreted(patch: Any = setattr) -> None:
    """Makes the kernel run in interpret mode, until pytest's `monkeypatch.setattr` as `patch` is undone."""
    patch(_flash, "attend", ATTEND)
