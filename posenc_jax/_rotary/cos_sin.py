r"""The cosines and sines of RoPE, computed once for all layers."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.export
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._frequencies.angles import Angles, features, pair_sines
from posenc_jax._frequencies.frequencies import AnyFrequencies, Frequencies
from posenc_jax._frequencies.parser import parse, parse_positions
from posenc_jax._jax import checks
from posenc_jax._jax.calls import parsed_once
from posenc_jax._jax.errors import public
from posenc_jax._jax.workarounds import compiled

Columns = Literal["pair", "half", "interleaved"]  # one per pair, or one per feature in a layout
COLUMNS: tuple[Columns, ...] = "pair", "half", "interleaved"


class CosSin(tuple[Any, Any]):
    """Cosines and sines for `rotary`: a pair of arrays that knows the order of its columns.

    `cos_sin` returns one. Construct one from other arrays, such as the `cos` and `sin` of a Hugging Face model.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> angles = jnp.outer(jnp.arange(5.0), jnp.array([1.0, 0.01]))
      >>> c = pe.CosSin(jnp.cos(angles), jnp.sin(angles), columns="pair")
      >>> cosine, sine = c
      >>> pe.rotary(jnp.ones((5, 8)), cos_sin=c, head_axis=None).shape
      (5, 8)

    Args:
      cosine: cosines, float array of shape (..., columns).
      sine: sines, float array of the same shape.
      columns: the order of the columns. "pair": one column per feature pair. "half": one column per rotated feature,
        the columns of all pairs and then the same columns again, as in Hugging Face's Llama and ONNX. "interleaved":
        one column per rotated feature, each column twice in a row, as in GPT-J and timm.

    Notes:
      - The order must be stated because the arrays do not show it if only a part of the head is rotated. If concrete
        values are not in that order, `rotary` raises a `ValueError`. If traced values are not, it returns NaN.
      - A `CosSin` is a tuple and a pytree.
    """

    columns: Columns

    def __new__(cls, cosine: ArrayLike, sine: ArrayLike, *, columns: Columns):
        """Keeps the arrays as they are: `rotary` checks them."""
        return super().__new__(cls, (cosine, sine))

    @public
    def __init__(self, cosine: ArrayLike, sine: ArrayLike, *, columns: Columns):
        self.columns = checks.one_of("columns", columns, COLUMNS)

    def __getnewargs_ex__(self) -> Any:
        """What copies and pickles are made of."""
        return tuple(self), {"columns": self.columns}


jax.tree_util.register_pytree_with_keys(
    CosSin,
    lambda c: ([(jax.tree_util.SequenceKey(i), x) for i, x in enumerate(c)], c.columns),
    lambda columns, arrays: CosSin(*arrays, columns=columns),  # type: ignore[arg-type]
)
jax.export.register_pytree_node_serialization(
    CosSin, serialized_name="posenc_jax.CosSin", serialize_auxdata=str.encode, deserialize_auxdata=bytes.decode
)


@public
@parsed_once(integers=["positions"], frequencies=(Frequencies, int), columns=(str,))
def cos_sin(positions: ArrayLike, frequencies: Frequencies | int | jax.Array, *, columns: Columns = "pair") -> CosSin:
    r"""The cosines and sines of RoPE, computed once and shared by all layers.

    $$c_i = a \cos \omega_i p, \qquad s_i = a \sin \omega_i p$$

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> query = jnp.ones((2, 5, 4, 64))  # batch, seq, heads, head_dim
      >>> c = pe.cos_sin(jnp.arange(5), 64)
      >>> [x.shape for x in c]
      [(5, 32), (5, 32)]
      >>> same = pe.rotary(query, cos_sin=c, head_axis=-2) == pe.rotary(query, head_axis=-2)
      >>> bool(same.all())
      True

    Args:
      positions: $p$, integer or float32 array of shape (...,), or (..., axes) if the frequencies have several axes.
      frequencies: `Frequencies`, whose attention_factor is $a$; an int (a width, for `geometric(width)`); or a float
        array of angular frequencies of shape (num_pairs,) or (axes, num_pairs).
      columns: "pair" for one column per feature pair; "half" or "interleaved" for one column per feature in that
        layout.

    Returns:
      A `CosSin`, which unpacks into cosines and sines. Both are float32 arrays of shape (..., num_pairs), or (..., 2 ·
      num_pairs) with one column per feature. They are within 9e-8 · a of their true values at every int32 position, and
      NaN where a position lies outside int32 but could not be rejected at trace time. Differentiable with respect to
      float positions and an array of frequencies.

    Raises:
      TypeError: if positions are not integers or float32, or frequencies have the wrong type.
      ValueError: if concrete positions lie outside int32, positions do not have one coordinate per axis, or columns is
        unknown.

    Notes:
      - `rotary(x, cos_sin=cos_sin(positions, frequencies), …)` has the same bits as
        `rotary(x, positions, frequencies, …)`.
      - FlashAttention's `apply_rotary_emb` accepts such arrays too. FlashInfer accepts both in one array,
        `jnp.concatenate(c, -1)`.

    Reference:
      Su et al., "RoFormer", 2021, section 3.4.2, equation 34.
    """
    checks.one_of("columns", columns, COLUMNS)
    frequencies = parse(frequencies, ndim=2)
    if isinstance(frequencies, jax.Array) and frequencies.ndim == 2:
        checks.unsharded("frequencies", frequencies, -1)
        checks.unsharded("frequencies", frequencies, -2)
    arrays = _cos_sin(parse_positions("positions", positions, frequencies), frequencies, columns)
    return CosSin(*arrays, columns=columns)


@compiled("cos_sin", static_argnums=2)
def _cos_sin(positions: jax.Array, frequencies: AnyFrequencies, columns: Columns) -> tuple[jax.Array, jax.Array]:
    if isinstance(frequencies, jax.Array):
        frequencies = frequencies.reshape(-1)
    angles = Angles(positions, frequencies)
    if columns == "pair":
        return pair_sines(angles, np.int32(1)), pair_sines(angles, np.int32(0))
    cosine, sine = (features(angles, columns, np.full(angles.dim, quarter)) for quarter in (1, 0))
    return cosine, sine
