"""The sinusoidal embeddings of Flax's examples, `AddPositionEmbs` of examples/wmt/models.py at commit 18f8f311.

The examples are in no package, so their formula is written again here. As there, NumPy makes the table in float64 on
the host whenever the module is called: under `jax.jit` it is a constant of the compiled program. So `table` runs as it
is, and takes no positions; `add` is compiled with its constant.
"""

import jax.numpy as jnp
import numpy as np

NAME, PACKAGES, FRAMEWORK = "Flax examples", ("flax",), "jax"
IMPORT = "import flax.linen"
EAGER = ("table",)
ENDPOINT = True


def initial(length, width):
    half = width // 2
    angular = np.exp(np.arange(half) * (-np.log(10_000.0) / (half - 1)))
    phase = np.arange(length)[:, None] * angular
    rows = np.zeros((length, width), np.float32)
    rows[:, :half] = np.sin(phase)
    rows[:, half : 2 * half] = np.cos(phase)
    return jnp.array(rows)


def table(case):
    return lambda positions: initial(*case.shape)


def add(case):
    return lambda x: (x + initial(*case.shape[1:])).astype(x.dtype)


def waves(position):
    if position >= 2**20:
        return None
    row = np.asarray(initial(position + 1, 128)[-1])
    return row[64:] + 1j * row[:64]
