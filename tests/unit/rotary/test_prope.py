"""`prope` multiplies groups of four features by a matrix of the camera of their token.

- Queries, keys, values and outputs are multiplied by Pᵀ, P⁻¹, P⁻¹ and P. Without intrinsics, this is GTA.
- Attention with `prope` is that of the authors' code.
- Cameras broadcast as positions do. Features beyond the width keep their values.
- Results are rounded once, and float64 is kept.
- Every lowering is the formula, in which an infinity stays in its group of four features.
- Derivatives are those along rigid motions. The derivative in x stores the cameras alone.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_rounded_once, assert_within
from helpers.differences import assert_derivatives, stored
from oracles import cameras, recorded
from posenc_jax._rotary import transforms

RNG = np.random.default_rng(0)
SIZE = 96.0, 160.0
X = RNG.normal(size=(2, 5, 3, 16)).astype(np.float32)  # batch, seq, heads, head_dim
POSES = cameras.poses(RNG, 2, 5).astype(np.float32)
LENSES = cameras.lenses(RNG, 2, 5, image_size=SIZE).astype(np.float32)


def prope(x, extrinsics=POSES, **settings):
    """`prope` in one program; cameras are concrete."""
    return np.asarray(jax.jit(lambda x: pe.prope(x, extrinsics, **{"head_axis": -2} | settings))(x))


WITH_LENSES = {"intrinsics": LENSES, "image_size": SIZE}


@pytest.mark.parametrize(
    ("role", "lens", "width"),
    [*((role, WITH_LENSES, 8) for role in ("query", "key", "value", "output")), ("key", {}, None)],
)
def test_it_is_the_formula(role, lens, width):
    p = cameras.projection(POSES, lens.get("intrinsics"), lens.get("image_size"))
    want = cameras.transformed(X, cameras.matrix(role, p), width)
    got = prope(X, role=role, width=width, **lens)
    assert_within(got, want, 2e-6, against="float64")
    np.testing.assert_array_equal(got[..., width or 16 :], X[..., width or 16 :])


@pytest.mark.parametrize("case", recorded.cases("cameras"), ids=lambda case: case["name"])
def test_attention_is_that_of_the_authors(case):
    """Half of the features are multiplied by cameras. A quarter each rotates by columns and by rows of patches.

    The authors rotate backward, hence `inverse`.
    """
    q, k, v, e = (np.float32(case[name]) for name in ("query", "key", "value", "viewmats"))
    n, lenses = q.shape[-1] // 4, np.float32(case["Ks"]) if case["Ks"] else None
    patches = np.array([(row, column) for row in range(case["patches_y"]) for column in range(case["patches_x"])])
    row, column = np.tile(patches, (len(e), 1)).T
    e, lenses = (None if a is None else np.repeat(a, len(patches), axis=0) for a in (e, lenses))  # one for each token
    size = None if lenses is None else (case["image_height"], case["image_width"])

    def transformed(x, role):
        x = pe.prope(x, e, lenses, role=role, head_axis=-2, image_size=size, width=2 * n)
        rotate = functools.partial(
            pe.rotary, frequencies=pe.geometric(n, 100.0), head_axis=-2, inverse=role != "output"
        )
        return jnp.concatenate(
            [x[..., : 2 * n], rotate(x[..., 2 * n : 3 * n], column), rotate(x[..., 3 * n :], row)], -1
        )

    @jax.jit
    def attend(q, k, v):
        q, k, v = transformed(q, "query"), transformed(k, "key"), transformed(v, "value")
        return transformed(jax.nn.dot_product_attention(q, k, v), "output")

    assert_within(attend(q, k, v), case["output"], 5e-6, against="the authors' code in float64")


@pytest.mark.parametrize("e", [POSES[0, 0], POSES[:, :1]], ids=["one", "of each row"])
def test_cameras_broadcast_as_positions_do(e):
    p = cameras.projection(np.broadcast_to(e, (2, 5, 4, 4)))
    assert_within(prope(X, e, role="key"), cameras.transformed(X, cameras.matrix("key", p)), 2e-6, against="float64")


def test_a_width_of_0_changes_nothing():
    got = pe.prope(X, POSES, role="key", head_axis=-2, width=0, **WITH_LENSES)
    np.testing.assert_array_equal(got, X)


# Dtypes


def test_a_16_bit_result_and_its_derivative_are_rounded_once():
    def result_and_derivative(x, dy):
        y, back = jax.vjp(lambda x: pe.prope(x, POSES, role="query", width=8, head_axis=-2, **WITH_LENSES), x)
        return y, back(dy)

    x = X.astype(jnp.bfloat16)
    assert_rounded_once(result_and_derivative, x, x[::-1])


def test_float64_is_kept():
    x, e, k = np.float64(X), cameras.poses(RNG, 2, 5), np.float64(LENSES)
    with jax.enable_x64(True):
        got = prope(x, e, intrinsics=k, image_size=SIZE, role="key")
    assert got.dtype == np.float64
    want = cameras.transformed(x, cameras.matrix("key", cameras.projection(e, k, SIZE)))
    assert_within(got, want, 1e-13, against="float64")


# The lowerings, and derivatives


@pytest.mark.parametrize(
    ("platform", "width", "result"),
    [(None, 8, jnp.bfloat16), ("cuda", 16, np.float32), ("tpu", 8, jnp.bfloat16), ("tpu", 16, np.float32)],
)
def test_every_lowering_is_the_formula_and_keeps_an_infinity_in_its_group(platform, width, result):
    x, matrix = X.astype(result), RNG.normal(size=(2, 5, 1, 16)).astype(np.float32)
    x[0, 1, 1, 5], matrix[0, 2], x[1, 3, 2, -2:] = np.inf, 0, (np.nan, -np.inf)
    program = functools.partial(transforms.PROGRAMS[platform], width=width, result=np.dtype(result))
    with np.errstate(invalid="ignore"):
        want = cameras.transformed(x, matrix.reshape(2, 5, 4, 4), width)
    got = jax.jit(program)(x, matrix)
    assert got.dtype == result
    assert_within(got, want, 8 * float(jnp.finfo(result).eps), against="float64")


@pytest.mark.parametrize("role", ["query", "key"])
def test_derivatives_are_those_along_rigid_motions(role):
    """The formula has Rᵀ for R⁻¹, and constants where all cameras have the same entry, which `prope` does not read."""

    def exact(x, e, k):
        e, k = e.copy(), k.copy()
        e[..., 3, :], k[..., [1, 2, 2, 2], [0, 0, 1, 2]] = POSES[..., 3, :], [0, 0, 0, 1]
        if role == "query":
            return cameras.transformed(x, cameras.matrix(role, cameras.projection(e, k, SIZE)), 8)
        rotation = e[..., :3, :3].swapaxes(-1, -2)
        inverse = cameras.lifted(rotation @ np.linalg.inv(cameras.projection(np.eye(4), k, SIZE)[..., :3, :3]))
        inverse[..., :3, 3:] = -rotation @ e[..., :3, 3:]
        return cameras.transformed(x, inverse, 8)

    f = lambda x, e, k: pe.prope(x, e, k, role=role, width=8, head_axis=-2, image_size=SIZE)  # noqa: E731
    assert_derivatives(f, exact, X, POSES, LENSES)


def test_the_derivative_in_x_stores_the_cameras_alone():
    x, e = jax.ShapeDtypeStruct((2, 256, 8, 64), jnp.bfloat16), cameras.poses(RNG, 256).astype(np.float32)
    assert stored(lambda x: pe.prope(x, e, role="key", head_axis=-2), x) <= 4 * 256 * 16


# Errors

E4 = np.eye(4, dtype=np.float32)
K3 = np.array([[80, 0, 80], [0, 80, 48], [0, 0, 1]], np.float32)


def entry(k):
    """A matrix (4, 4) with a single 1, in the upper right corner for k = 3, in the lower left one for k = -3."""
    return np.eye(4, k=k, dtype=np.float32)


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (ValueError, "role must be one of", {"role": "keys"}),
        (ValueError, "x must have a head_dim that is a multiple of 4", {"x": X[..., :6]}),
        (ValueError, "width must be a multiple of 4 from 0 to head_dim, 16", {"width": 6}),
        (ValueError, "width must be a multiple of 4 from 0 to head_dim, 16", {"width": 20}),
        (ValueError, "width must be a multiple of 4 from 0 to head_dim, 16", {"width": -4}),
        (ValueError, r"extrinsics must have shape \(..., 4, 4\)", {"extrinsics": E4[:3]}),
        (ValueError, r"extrinsics .* of shape \(4,\) must broadcast to x without", {"extrinsics": np.stack([E4] * 4)}),
        (TypeError, "extrinsics must be float32 .* 16 bits are too coarse", {"extrinsics": E4.astype(jnp.bfloat16)}),
        (ValueError, "extrinsics must be rigid", {"extrinsics": 1.1 * E4}),
        (ValueError, "extrinsics must be rigid", {"extrinsics": E4 * np.float32(np.nan)}),
        (ValueError, "extrinsics must end with the row .* off by 1", {"extrinsics": E4 + entry(-3)}),
        (ValueError, "extrinsics must be finite", {"extrinsics": np.where(entry(3), np.float32(np.inf), E4)}),
        (
            ValueError,
            r"extrinsics must be rigid to 0.001 of their translation, .* off by 0.0008 at 1e\+03",
            {"extrinsics": (E4 + 1000 * entry(3)) * np.float32([1.0004, 1, 1, 1])},
        ),
    ],
)
def test_invalid_arguments_raise(error, match, change):
    with pytest.raises(error, match=f"^prope: {match}"):
        pe.prope(**{"x": X, "extrinsics": E4, "role": "key", "head_axis": -2} | change)


@pytest.mark.parametrize(
    ("error", "match", "intrinsics", "image_size"),
    [
        (ValueError, "image_size must be given with intrinsics", K3, None),
        (ValueError, "image_size must be left out without intrinsics", None, SIZE),
        (TypeError, "image_size must be a sequence of the height and the width", K3, 96),
        (ValueError, "image_size must be the height and the width", K3, (96, 160, 3)),
        (ValueError, r"image_size\[1\] must be positive", K3, (96, 0)),
        (ValueError, r"intrinsics must have shape \(..., 3, 3\)", K3[:2], SIZE),
        (ValueError, "intrinsics must be upper triangular .* off by 80", K3.T, SIZE),
        (ValueError, "intrinsics must be upper triangular .* off by 1", 2 * K3, SIZE),
        (ValueError, "intrinsics must be finite, with focal lengths", K3 * np.float32([0, 1, 1]), SIZE),
        (ValueError, "intrinsics must be finite, with focal lengths", np.where(K3 == 48, np.float32(np.inf), K3), SIZE),
        (ValueError, "intrinsics must be in the unit of image_size, .* of 80 times", K3, (1, 1)),
        (ValueError, "intrinsics must be in the unit .* of 0.0015 times", np.float32(np.diag([1.2, 1, 1])), (600, 800)),
    ],
)
def test_invalid_lenses_raise(error, match, intrinsics, image_size):
    with pytest.raises(error, match=f"^prope: {match}"):
        pe.prope(X, E4, intrinsics, role="key", head_axis=-2, image_size=image_size)
