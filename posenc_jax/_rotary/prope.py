"""PRoPE: attention with relative camera poses, through matrices that multiply queries, keys, values and outputs."""

from __future__ import annotations

import weakref
from types import NoneType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from posenc_jax._frequencies.parser import require_rows_fit
from posenc_jax._jax import checks, sharding
from posenc_jax._jax.arrays import align, compute_dtype
from posenc_jax._jax.calls import parsed_once
from posenc_jax._jax.errors import public, require, require_type
from posenc_jax._jax.workarounds import compiled, product
from posenc_jax._rotary.parser import parse_vectors
from posenc_jax._rotary.rotary import expand_positions
from posenc_jax._rotary.transforms import transform, transposed

CameraRole = Literal["query", "key", "value", "output"]
_TOLERANCE = 1e-3  # to which concrete cameras must be rigid
_CHECKED: Any = weakref.WeakValueDictionary()  # cameras, by their id and the size of their images


def _check_cameras(extrinsics: Any, intrinsics: Any = None, *, image_size: Any = None, **_: Any) -> None:
    """Raises for concrete cameras that are wrong. Layers share cameras, so each array is read once."""
    for camera, check, size in ((extrinsics, _check_rigid, None), (intrinsics, _check_triangular, image_size)):
        key = id(camera), size
        if camera is None or not checks.is_concrete(camera) or _CHECKED.get(key) is camera:
            continue
        check(np.asarray(camera, np.float64), size)
        _CHECKED[key] = camera


@public
@parsed_once(
    check=_check_cameras,
    role=(str,),
    head_axis=(int, tuple, NoneType),
    image_size=(tuple, int, float, NoneType),
    width=(int, NoneType),
)
def prope(
    x: ArrayLike,
    extrinsics: ArrayLike,
    intrinsics: ArrayLike | None = None,
    *,
    role: CameraRole,
    head_axis: int | tuple[int, ...] | None,
    image_size: tuple[float, float] | None = None,
    width: int | None = None,
) -> jax.Array:
    r"""Camera RoPE (PRoPE; without intrinsics, GTA): multiplies features by the camera matrix of their token.

    The camera of a token maps the world to its image by $P = K\,[R \mid t]$, extended to 4 × 4. Each group of
    four features is multiplied by

    $$P^\top \text{ (query)}, \qquad P^{-1} \text{ (key, value)}, \qquad P \text{ (output)}.$$

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> here = jnp.eye(4)
      >>> cameras = jnp.stack([here, here.at[2, 3].set(0.5)])  # one per token
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 4, 64))  # seq, heads, head_dim
      >>> def attend(cameras):
      ...     of = lambda x, role: pe.prope(x, cameras, role=role, head_axis=-2)
      ...     out = jax.nn.dot_product_attention(of(q, "query"), of(k, "key"), of(v, "value"))
      ...     return of(out, "output")
      >>> elsewhere = cameras @ here.at[0, 3].set(-1.0)  # another origin of the world
      >>> bool(jnp.allclose(attend(elsewhere), attend(cameras), atol=1e-4))
      True

    Args:
      x: float array of shape (..., seq, heads, head_dim), with head_dim a multiple of 4.
      extrinsics: $[R \mid t]$ above a row (0, 0, 0, 1), rigid, from the world to the camera. Float32 array of shape
        (..., 4, 4), whose leading axes broadcast to (..., seq).
      intrinsics: $K$, from the camera to pixels, upper triangular with 1 in the corner. Float32 array of shape (..., 3,
        3), whose leading axes broadcast to (..., seq). `None` means the identity, which is GTA.
      role: what x is: "query", "key", "value", or "output" for the output of attention.
      head_axis: the axis of the heads; see `rotary`.
      image_size: height and width of the images, in the unit of the intrinsics. It must be given with intrinsics.
      width: the number of features to transform, a multiple of 4. The other features are unchanged. `None` means all.

    Returns:
      The transformed x, with its shape and dtype.

    Raises:
      TypeError: if x, extrinsics or intrinsics are not float arrays, or cameras are in 16 bits.
      ValueError: if shapes or head_axis do not fit, role is unknown, or only one of image_size and intrinsics is given.
      ValueError: if concrete extrinsics are not rigid, intrinsics are not upper triangular, or a focal length is not
        0.02 to 50 times a side.

    Notes:
      - Scores and outputs depend only on relative poses, $P_i P_j^{-1}$.
      - The matrices are not rotations: scale scenes so that cameras are about 1 apart, and put the origin among them.
      - Invert poses that map the camera to the world; no check can tell them apart. Traced cameras are not checked.
        $R^{-1}$ is computed as $R^\top$, so derivatives are along rigid motions.
      - Computed in float32 (float64 if an argument is float64) and rounded once. Differentiable in x and cameras to any
        order, in forward and reverse mode. The derivative in x alone stores only the cameras.

    See Also:
      `rotary`, for the position of a patch in its image; the guide to vision and video.

    Reference:
      Li et al., "Cameras as Relative Positional Encoding", 2025, section 4; Miyato et al., "GTA: A Geometry-Aware
      Attention Mechanism for Multi-View Transformers", 2024, section 3.
    """
    role = checks.one_of("role", role, ("query", "key", "value", "output"))
    x, heads, width = _parse_features(x, head_axis, width)
    size = _parse_size(image_size, intrinsics)
    extrinsics = _parse_camera("extrinsics", extrinsics, 4, x, heads)
    if intrinsics is not None:
        intrinsics = _parse_camera("intrinsics", intrinsics, 3, x, heads)
    _check_cameras(extrinsics, intrinsics, image_size=size)
    return x if not width else _prope(x, extrinsics, intrinsics, role=role, heads=heads, size=size, width=width)


def _parse_features(x: Any, head_axis: Any, width: Any) -> tuple[jax.Array, tuple[int, ...], int]:
    """x, its head axes counted from the front, and how many features are transformed."""
    x, heads = parse_vectors("x", x, head_axis)
    head_dim = x.shape[-1]
    require(head_dim % 4 == 0, "x must have a head_dim that is a multiple of 4, got shape {}", x.shape)
    checks.unsharded("x", x)
    width = head_dim if width is None else checks.integer("width", width)
    fits = 0 <= width <= head_dim and width % 4 == 0
    require(fits, "width must be a multiple of 4 from 0 to head_dim, {}, got {}", head_dim, width)
    return x, heads, width


def _parse_size(image_size: Any, intrinsics: Any) -> tuple[float, float] | None:
    """The height and the width of the image."""
    if intrinsics is None:
        require(image_size is None, "image_size must be left out without intrinsics, got {}", image_size)
        return None
    require(image_size is not None, "image_size must be given with intrinsics, got None")
    sides = checks.sequence("image_size", image_size, "the height and the width")
    require(len(sides) == 2, "image_size must be the height and the width, got {} numbers", len(sides))
    height, width = (checks.positive_float32(f"image_size[{i}]", side) for i, side in enumerate(sides))
    return height, width


def _parse_camera(name: str, value: Any, n: int, x: jax.Array, heads: tuple[int, ...]) -> jax.Array:
    """A float array (..., n, n) whose leading axes broadcast to the rows of x."""
    camera = checks.floats(name, value, (..., str(n), str(n)), static_axes=(-2, -1))
    fits = camera.dtype.itemsize >= 4
    require_type(fits, name, f"float32 of shape (..., {n}, {n}), because 16 bits are too coarse", value)
    require(camera.shape[-2:] == (n, n), "{} must have shape (..., {}, {}), got {}", name, n, n, camera.shape)
    for axis in (-2, -1):
        checks.unsharded(name, camera, axis)
    require_rows_fit(name, camera, "x", x, "x without its head axis and its last", heads, trailing_axes=2)
    return camera


def _check_rigid(values: np.ndarray, _: Any) -> None:
    """Raises for extrinsics that are not rigid motions: their inverse is computed as a transpose."""
    rotation = values[..., :3, :3]
    with np.errstate(all="ignore"):
        error = np.abs(rotation.swapaxes(-1, -2) @ rotation - np.eye(3)).max((-2, -1), initial=0)
    message = "extrinsics must be rigid, RᵀR = 1 to {}, got a rotation that is off by {:.2g}"
    require((error <= _TOLERANCE).all(), message, _TOLERANCE, error.max(initial=0))
    last = np.abs(values[..., 3, :] - np.eye(4)[3]).max(initial=0)
    require(last <= _TOLERANCE, "extrinsics must end with the row (0, 0, 0, 1), got one that is off by {:.2g}", last)
    distance = np.abs(values[..., :3, 3]).max(-1, initial=0)
    require(np.isfinite(distance).all(), "extrinsics must be finite, got a translation that is not")
    message = "extrinsics must be rigid to {} of their translation, got a rotation that is off by {:.2g} at {:.3g}"
    if error.size:
        worst = (error * distance).argmax()
        fits = (error * distance).flat[worst] <= _TOLERANCE
        require(fits, message, _TOLERANCE, error.flat[worst], distance.flat[worst])


def _check_triangular(values: np.ndarray, size: Any) -> None:
    """Raises for intrinsics that are not upper triangular with 1 in the corner, or have another unit."""
    below = np.abs(values[..., [1, 2, 2, 2], [0, 0, 1, 2]] - np.eye(4)[3]).max(initial=0)
    message = "intrinsics must be upper triangular with 1 in the corner, got an entry that is off by {:.2g}"
    require(below <= _TOLERANCE, message, below)
    usable = np.isfinite(values).all() and (values[..., [0, 1], [0, 1]] != 0).all()
    require(usable, "intrinsics must be finite, with focal lengths other than 0, got {}", values.reshape(-1, 9)[:1])
    focal = np.abs(values[..., [0, 1], [0, 1]]) / np.array(size)[::-1]
    message = "intrinsics must be in the unit of image_size, got a focal length of {:.3g} times a side, {}"
    worst = focal.flat[np.abs(np.log(focal)).argmax()] if focal.size else 1
    require(0.02 <= worst <= 50, message, worst, size)


@compiled("prope", static_argnames=("role", "heads", "size", "width"))
def _prope(
    x: jax.Array,
    extrinsics: jax.Array,
    intrinsics: jax.Array | None,
    *,
    role: CameraRole,
    heads: tuple[int, ...],
    size: tuple[float, float] | None,
    width: int,
) -> jax.Array:
    cameras = [extrinsics] if intrinsics is None else [extrinsics, intrinsics]
    flat = (camera.reshape(*camera.shape[:-2], camera.shape[-1] ** 2) for camera in cameras)
    dtype = compute_dtype(x, *cameras)
    pose, *lens = sharding.agreeing([expand_positions(x, camera.astype(dtype), heads) for camera in flat])
    rows = [pose[..., 4 * i : 4 * i + 4] for i in range(3)]  # of [R | t]
    lens = _lens(lens[0], *size) if size else None
    inverse = role in ("key", "value")
    vectors = _columns_of_inverse(rows, lens) if inverse else _rows_of_projection(rows, lens)
    matrix = jnp.concatenate(vectors, axis=-1)
    return transform(x, matrix if role == "output" else transposed(matrix), width=width, result=x.dtype)


def _lens(k: jax.Array, height: float, width: float) -> tuple[jax.Array, ...]:
    """fₓ, s, cₓ, f_y and c_y of K for an image of size 1 around the origin, each (..., 1)."""
    # A product and no quotient, because XLA makes a·c / b of a / (b / c) in some programs but not in others.
    sides = np.array([1 / width] * 3 + [1 / height] * 3, k.dtype)
    f, s, c, _, g, d = jnp.split(_times(align(sides, k.ndim), k[..., :6]), 6, axis=-1)
    return f, s, c - 0.5, g, d - 0.5


def _rows_of_projection(r: list[jax.Array], lens: tuple[jax.Array, ...] | None) -> list[jax.Array]:
    """The rows of P = K [R | t], lifted, from those of [R | t]."""
    if lens is not None:
        f, s, c, g, d = lens
        r = [_times(f, r[0]) + _times(s, r[1]) + _times(c, r[2]), _times(g, r[1]) + _times(d, r[2]), r[2]]
    return [*r, _lifted(jnp.zeros_like(r[0][..., :3]), 1)]


def _columns_of_inverse(r: list[jax.Array], lens: tuple[jax.Array, ...] | None) -> list[jax.Array]:
    """The columns of P⁻¹ = [RᵀK⁻¹ | −Rᵀt], lifted, from the rows of [R | t]; those of RᵀK⁻¹ by substitution."""
    columns, terms = [row[..., :3] for row in r], [_times(row[..., 3:], row[..., :3]) for row in r]
    centre = -(terms[0] + terms[1] + terms[2])
    if lens is not None:
        f, s, c, g, d = lens
        # Reciprocals, because XLA makes a · (1 / f) of a / f in some versions but not in others.
        first = _times(1 / f, columns[0])
        second = _times(1 / g, columns[1] - _times(s, first))
        columns = [first, second, columns[2] - _times(c, first) - _times(d, second)]
    return [*(_lifted(column, 0) for column in columns), _lifted(centre, 1)]


def _lifted(vector: jax.Array, last: float) -> jax.Array:
    """A vector (..., 3) before a fourth entry."""
    edges = [(0, 0, 0)] * (vector.ndim - 1) + [(0, 1, 0)]
    return lax.pad(vector, np.array(last, vector.dtype), edges)


def _times(number: jax.Array, row: jax.Array) -> jax.Array:
    """Rounded before anything is added, for the same bits in every program."""
    return product(*jnp.broadcast_arrays(number, row))
