"""Camera RoPE against its formula in float64 and the authors' code, and the property that it exists for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import slow
from oracles import cameras, recorded
from posenc_jax._rotary import transforms

RNG = np.random.default_rng(0)
BATCH, SEQ, HEADS, DIM, SIZE = 2, 5, 3, 16, (96.0, 160.0)
ROLES = "query", "key", "value", "output"
X = RNG.normal(size=(BATCH, SEQ, HEADS, DIM)).astype(np.float32)
POSES = cameras.poses(RNG, BATCH, SEQ).astype(np.float32)
LENSES = cameras.lenses(RNG, BATCH, SEQ, image_size=SIZE).astype(np.float32)
ALL = {"head_axis": -2, "image_size": SIZE}


def by_role(x, extrinsics, intrinsics=None, **settings):
    settings = {"head_axis": -2} | settings
    return {role: pe.prope(x, extrinsics, intrinsics, role=role, **settings) for role in ROLES}


@pytest.mark.parametrize(
    ("lens", "width"),
    [(True, 8), (False, None), slow(True, None), slow(False, 8)],
    ids=["PRoPE-8", "GTA-None", "PRoPE-None", "GTA-8"],
)
def test_the_formula(lens, width):
    k, size = (LENSES, SIZE) if lens else (None, None)
    got = quick(functools.partial(by_role, image_size=size, width=width))(X, POSES, k)
    p = cameras.projection(POSES, k, size)
    for role in ROLES:
        want = cameras.transformed(X, cameras.matrix(role, p), width)
        assert_within(got[role], want, 2e-6, against=f"{role} in float64")
    # What another role, another normalization or another order of the sides would give is far from that.
    wrong = [cameras.matrix(role, p) for role in ("query", "key", "output")]
    if lens:
        wrong += [cameras.projection(POSES, k, sides) for sides in ((1, 1), SIZE[::-1])]
    results = [cameras.transformed(X, m, width) for m in wrong]
    for i, one in enumerate(results):
        assert all(np.abs(one - other).max() > 0.1 for other in results[:i])


@pytest.mark.parametrize(
    "case", [slow(c) if c["name"] == "GTA" else c for c in recorded.cases("cameras")], ids=lambda case: case["name"]
)
def test_the_authors_attention(case):
    """With their layout: the columns' features before the rows', each as halves, turned backward.

    Of float64, with the softmax of `jax.nn.dot_product_attention`, which is float32.
    """
    q, k, v, e, want = (np.array(case[name]) for name in ("query", "key", "value", "viewmats", "output"))
    patches = np.array([(row, column) for row in range(case["patches_y"]) for column in range(case["patches_x"])])
    images, n = len(e), q.shape[-1] // 4
    patches, e = np.tile(patches, (images, 1)), np.repeat(e, len(patches), axis=0)
    lens, size = np.array(case["Ks"]) if case["Ks"] else None, (case["image_height"], case["image_width"])
    lens = None if lens is None else np.repeat(lens, len(patches) // images, axis=0)
    size = None if lens is None else size
    assert_within(cameras.attention(q, k, v, cameras.projection(e, lens, size), patches), want, 1e-6, against="theirs")

    @quick
    def attend(q, k, v, extrinsics, intrinsics, patches):
        f = pe.geometric(n, 100.0)

        def of(x, role):
            x = pe.prope(x, extrinsics, intrinsics, role=role, head_axis=-2, image_size=size, width=2 * n)
            turn = functools.partial(pe.rotary, frequencies=f, head_axis=-2, inverse=role != "output")
            column, row = turn(x[..., 2 * n : 3 * n], patches[:, 1]), turn(x[..., 3 * n :], patches[:, 0])
            return jnp.concatenate([x[..., : 2 * n], column, row], axis=-1)

        out = jax.nn.dot_product_attention(of(q, "query"), of(k, "key"), of(v, "value"))
        return of(out, "output")

    single = [None if x is None else x.astype(np.float32) for x in (q, k, v, e, lens)]
    assert_within(attend(*single, patches.astype(np.int32)), want, 5e-6, against="the authors' code in float64")


def test_what_the_authors_record_tells_apart():
    """The oracle with a fault in each place is far from their output."""
    case = recorded.cases("cameras")[0]
    assert case["Ks"]
    q, k, v, e, lens, want = (np.array(case[name]) for name in ("query", "key", "value", "viewmats", "Ks", "output"))
    patches = np.array([(row, column) for row in range(case["patches_y"]) for column in range(case["patches_x"])])
    n, size = len(patches), (case["image_height"], case["image_width"])
    p = np.repeat(cameras.projection(e, lens, size), n, axis=0)
    places = np.tile(patches, (len(e), 1))
    wrong = {
        "transposed": (q, k, v, p.swapaxes(-1, -2), places),
        "inverse": (q, k, v, np.linalg.inv(p), places),
        "keys for queries": (k, q, v, p, places),
        "in pixels": (q, k, v, np.repeat(cameras.lifted(lens) @ e, n, axis=0), places),
        "no intrinsics": (q, k, v, np.repeat(e, n, axis=0), places),
        "sides exchanged": (q, k, v, np.repeat(cameras.projection(e, lens, size[::-1]), n, axis=0), places),
        "rows before columns": (q, k, v, p, places[:, ::-1]),
        "the other direction": (q, k, v, p, -places),
        "the next patch's camera": (q, k, v, np.roll(p, 1, axis=0), places),
    }
    of_roles = {
        "values as they are": {"untouched": ["value"]},
        "outputs as they are": {"untouched": ["output"]},
        "neither transformed": {"untouched": ["value", "output"]},
        "patches of outputs with the others": {"forward": []},
        "patches of values with outputs": {"forward": ["value", "output"]},
    }
    found = {name: cameras.attention(*arguments) for name, arguments in wrong.items()}
    found |= {name: cameras.attention(q, k, v, p, places, **roles) for name, roles in of_roles.items()}
    for name, output in found.items():
        assert np.abs(output - want).max() > 0.01, name


@quick
def attend(q, k, v, extrinsics, intrinsics):
    of = functools.partial(pe.prope, extrinsics=extrinsics, intrinsics=intrinsics, head_axis=-2, image_size=SIZE)
    out = jax.nn.dot_product_attention(of(q, role="query"), of(k, role="key"), of(v, role="value"))
    return of(out, role="output")


def test_the_frame_of_the_world_does_not_matter():
    q, k, v = RNG.normal(size=(3, BATCH, SEQ, HEADS, DIM)).astype(np.float32)
    want = attend(q, k, v, POSES, LENSES)
    for world in cameras.poses(RNG, 3):
        assert_within(attend(q, k, v, (POSES @ world).astype(np.float32), LENSES), np.asarray(want), 2e-5)
    moved = cameras.poses(RNG, SEQ) @ POSES  # each camera by itself
    assert np.abs(np.asarray(attend(q, k, v, moved.astype(np.float32), LENSES)) - want).max() > 0.1


def test_cached_keys_move_to_another_frame_of_the_world():
    """As the role "output" moves by a camera: P becomes P G⁻¹, and P⁻¹ becomes G P⁻¹."""
    world = cameras.poses(RNG).astype(np.float32)
    elsewhere = (POSES.astype(np.float64) @ np.linalg.inv(world)).astype(np.float32)

    @quick
    def moved_and_there(x):
        key = functools.partial(pe.prope, role="key", head_axis=-2)
        return pe.prope(key(x, POSES), world, role="output", head_axis=-2), key(x, elsewhere)

    assert_within(*moved_and_there(X), 1e-5)


def test_value_and_output_undo_each_other():
    undone = quick(
        lambda x: pe.prope(pe.prope(x, POSES, LENSES, role="value", **ALL), POSES, LENSES, role="output", **ALL)
    )
    assert_within(undone(X), X, 1e-5)


def test_one_camera_leaves_scores_and_outputs_alone():
    """Of one image: what remains is the RoPE of its patches."""
    q, k, v = RNG.normal(size=(3, BATCH, SEQ, HEADS, DIM)).astype(np.float32)
    plain = quick(jax.nn.dot_product_attention)(q, k, v)
    assert_within(attend(q, k, v, POSES[:1, :1], LENSES[:1, :1]), np.asarray(plain), 1e-5)


@pytest.mark.parametrize("shape", [slow((SEQ, 4, 4)), slow((4, 4)), (BATCH, 1, 4, 4), slow((BATCH, SEQ, 4, 4))])
def test_cameras_broadcast_as_positions_do(shape):
    e = POSES[: shape[0] if len(shape) == 4 else 1, : shape[-3] if len(shape) > 2 else 1].reshape(shape)
    x, heads_first, one = X, X.swapaxes(1, 2), X[:, :, 0]

    @quick
    def axes(x, heads_first, one, e):
        of = functools.partial(pe.prope, extrinsics=e, role="key")
        return of(x, head_axis=-2), of(heads_first, head_axis=-3), of(one, head_axis=None)

    last, first, none = map(np.asarray, axes(x, heads_first, one, e))
    want = cameras.transformed(X, cameras.matrix("key", cameras.projection(np.broadcast_to(e, (BATCH, SEQ, 4, 4)))))
    assert_within(last, want, 2e-6, against="float64")
    np.testing.assert_array_equal(first.swapaxes(1, 2), last)
    np.testing.assert_array_equal(none, last[:, :, 0])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, slow(np.float16)])
def test_a_16_bit_result_is_rounded_once(dtype):
    x = X.astype(dtype)
    of = jax.jit(lambda x: list(by_role(x, POSES, LENSES, image_size=SIZE, width=8).values()))
    for short, full in zip(of(x), of(x.astype(np.float32)), strict=True):
        assert short.dtype == dtype
        np.testing.assert_array_equal(short, np.asarray(full).astype(dtype))
    # The derivative too.
    back = jax.jit(lambda x, dy: jax.vjp(lambda x: pe.prope(x, POSES, role="query", head_axis=-2), x)[1](dy)[0])
    dy = X[::-1].astype(dtype)
    got = back(x, dy)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, np.asarray(back(X, dy.astype(np.float32))).astype(dtype))


def test_float64_is_kept():
    x, e, k = (np.asarray(a, np.float64) for a in (X, cameras.poses(RNG, BATCH, SEQ), LENSES))
    with jax.enable_x64(True):
        got = quick(functools.partial(by_role, image_size=SIZE))(x, e, k)
    for role in ROLES:
        assert got[role].dtype == np.float64
        assert_within(got[role], cameras.transformed(x, cameras.matrix(role, cameras.projection(e, k, SIZE))), 1e-13)


@pytest.mark.parametrize("width", [8, slow(DIM)])
@pytest.mark.parametrize("role", ["query", slow("key"), slow("value"), slow("output")])
def test_derivatives(role, width):
    """Along a direction of all arguments, forward and backward, beside the float64 formula's slope."""
    arguments = X, POSES, LENSES
    along = [RNG.normal(size=x.shape).astype(np.float32) for x in arguments]
    along[1][..., 3, :], along[2][..., [1, 2, 2, 2], [0, 0, 1, 2]] = 0, 0  # rows that are not read
    f = functools.partial(pe.prope, role=role, width=width, **ALL)

    @quick
    def derivatives(arguments, along):
        y, slope = jax.jvp(f, arguments, tuple(along))
        dy = jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)
        second = jax.jvp(lambda *x: jax.vjp(f, *x)[1](dy), arguments, tuple(along))[1]
        return slope, dy, jax.vjp(f, *arguments)[1](dy), second

    slope, dy, by_all, second = derivatives(arguments, along)

    def exact(step):
        x, e, k = (np.float64(a) + step * np.float64(d) for a, d in zip(arguments, along, strict=True))
        rows = cameras.projection(e, k, SIZE)
        turn, centre = e[..., :3, :3].swapaxes(-1, -2), e[..., :3, 3:]  # Rᵀ stands for R⁻¹
        lens = (cameras.projection(np.eye(4), k, SIZE))[..., :3, :3]
        inverse = cameras.lifted(turn @ np.linalg.inv(lens))
        inverse[..., :3, 3:] = -turn @ centre
        m = {"query": rows.swapaxes(-1, -2), "output": rows}.get(role, inverse)
        return cameras.transformed(x, m, width)

    want = (exact(1e-5) - exact(-1e-5)) / 2e-5
    assert_within(slope, want, 2e-5 * np.abs(want).max(), against="differences in float64")
    products = sum(np.vdot(np.float64(a), np.float64(b)) for a, b in zip(by_all, along, strict=True))
    np.testing.assert_allclose(products, np.vdot(np.float64(dy), want), rtol=1e-4)
    assert all(np.isfinite(a).all() for a in second) and np.abs(second[1]).max() > 0.1
    for a, x in zip(by_all, arguments, strict=True):
        assert a.shape == x.shape


@pytest.mark.parametrize("result", [slow(np.float32), jnp.bfloat16])
@pytest.mark.parametrize("width", [8, slow(DIM)])
def test_every_form_computes_the_same(width, result):
    """An infinity, and NaN, stay in their group; on a CPU, which has an FMA, the form for TPUs rounds otherwise."""
    x, matrix = X.astype(result), RNG.normal(size=(BATCH, SEQ, 1, 16)).astype(np.float32)
    x[0, 1, 1, 5], matrix[0, 2], x[1, 3, 2, -2:] = np.inf, 0, (np.nan, -np.inf)
    forms = {
        str(name): functools.partial(f, width=width, result=np.dtype(result)) for name, f in transforms.PROGRAMS.items()
    }
    got = jax.jit(lambda *a: {name: f(*a) for name, f in forms.items()})(x, matrix)
    with np.errstate(invalid="ignore"):
        want = cameras.transformed(x, matrix.reshape(BATCH, SEQ, 4, 4), width)
    close = 8 * float(jnp.finfo(result).eps)
    for name, y in got.items():
        assert y.dtype == result
        assert_within(y, want, close, against=f"float64, of the form for {name}")
        if name != "tpu":
            np.testing.assert_array_equal(*(np.float32(z) for z in (y, got["None"])), err_msg=name)


def test_the_derivative_in_x_keeps_cameras_alone():
    x = jax.ShapeDtypeStruct((2, 256, 8, 64), jnp.bfloat16)
    e = jnp.asarray(cameras.poses(RNG, 256), jnp.float32)
    kept = jax.eval_shape(lambda x: jax.vjp(lambda x: pe.prope(x, e, role="key", head_axis=-2), x)[1], x)
    assert sum(array.size for array in jax.tree.leaves(kept)) <= 256 * 16


def test_far_from_the_origin_bits_are_lost_and_an_origin_among_the_cameras_keeps_them():
    """What the docstring says of large translations."""
    q, k, v = RNG.normal(size=(3, BATCH, SEQ, HEADS, DIM)).astype(np.float32)
    want, world = np.asarray(attend(q, k, v, POSES, LENSES)), np.eye(4)
    world[:3, 3] = 3e4, -2e4, 1e4
    far = POSES.astype(np.float64) @ world
    lost = np.abs(attend(q, k, v, far.astype(np.float32), LENSES) - want).max()
    again = far @ np.linalg.inv(far[0, 0])  # in float64, before arrays are made for a model
    kept = np.abs(attend(q, k, v, again.astype(np.float32), LENSES) - want).max()
    assert lost > 1e-2 and kept < 2e-5


E4 = np.eye(4, dtype=np.float32)
K3 = np.array([[80, 0, 80], [0, 80, 48], [0, 0, 1]], np.float32)
key = functools.partial(pe.prope, role="key", head_axis=-2)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.prope(X, E4, role="keys", head_axis=-2), ValueError, "prope: role must be one of .*'value', 'output'.*, got 'keys'"),  # type: ignore
        (lambda: pe.prope(X, E4, role="key", head_axis=-1), ValueError, "prope: head_axis must be an axis of x other than its last"),
        (lambda: key(X.astype(int), E4), TypeError, "prope: x must be a float array"),
        (lambda: key(X[..., :6], E4), ValueError, r"prope: x must have a head_dim that is a multiple of 4, got shape \(2, 5, 3, 6\)"),
        (lambda: key(X, E4, width=6), ValueError, "prope: width must be a multiple of 4 from 0 to head_dim, 16, got 6"),
        (lambda: key(X, E4, width=20), ValueError, "prope: width must be a multiple of 4 from 0 to head_dim, 16, got 20"),
        (lambda: key(X, E4, width=-4), ValueError, "prope: width must be a multiple of 4 from 0 to head_dim, 16, got -4"),
        (lambda: key(X, E4, width=8.0), TypeError, "prope: width must be an integer, got float 8.0"),  # type: ignore
        (lambda: key(X, E4[:3]), ValueError, r"prope: extrinsics must have shape \(..., 4, 4\), got \(3, 4\)"),
        (lambda: key(X, np.stack([E4] * 4)), ValueError, r"prope: extrinsics without their last 2 axes, of shape \(4,\) must broadcast to x without its head axis and its last, shape \(2, 5\)"),
        (lambda: key(X, E4.astype(int)), TypeError, r"prope: extrinsics must be a float array of shape \(..., 4, 4\), got int64"),
        (lambda: key(X, E4.astype(jnp.bfloat16)), TypeError, "prope: extrinsics must be float32 .* because 16 bits are too coarse, got bfloat16"),
        (lambda: key(X, 1.1 * E4), ValueError, "prope: extrinsics must be rigid, RᵀR = 1 to 0.001, got a rotation that is off by 0.21"),
        (lambda: key(X, np.float32(cameras.projection(E4, K3, SIZE))), ValueError, "prope: extrinsics must be rigid"),
        (lambda: key(X, E4 + np.eye(4, k=-3, dtype=np.float32)), ValueError, r"prope: extrinsics must end with the row \(0, 0, 0, 1\), got one that is off by 1"),
        (lambda: key(X, np.full((4, 4), np.nan, np.float32)), ValueError, "prope: extrinsics must be rigid"),
        (lambda: key(X, np.where(np.eye(4, k=3), np.float32(np.inf), E4)), ValueError, "prope: extrinsics must be finite"),
        (lambda: key(X, np.diag(np.float32([1.0004, 1, 1, 1])) + np.eye(4, k=3, dtype=np.float32) * 1000), ValueError, "prope: extrinsics must be rigid to 0.001 of their translation, got a rotation that is off by 0.0008 at 1e\\+03"),
        (lambda: key(X, E4, K3, image_size=(1, 1)), ValueError, r"prope: intrinsics must be in the unit of image_size, got a focal length of \d+ times a side, \(1.0, 1.0\)"),
        (lambda: key(X, E4, np.diag(np.float32([1.2, 0.9, 1])), image_size=(600, 800)), ValueError, r"prope: intrinsics must be in the unit of image_size, got a focal length of 0.0015 times a side"),
        (lambda: key(X, E4, K3), ValueError, "prope: image_size must be given with intrinsics, got None"),
        (lambda: key(X, E4, image_size=SIZE), ValueError, r"prope: image_size must be left out without intrinsics, got \(96.0, 160.0\)"),
        (lambda: key(X, E4, K3, image_size=96), TypeError, "prope: image_size must be a sequence of the height and the width, got int 96"),  # type: ignore
        (lambda: key(X, E4, K3, image_size=(96, 160, 3)), ValueError, "prope: image_size must be the height and the width, got 3 numbers"),  # type: ignore
        (lambda: key(X, E4, K3, image_size=(96, 0)), ValueError, r"prope: image_size\[1\] must be positive, got 0"),
        (lambda: key(X, E4, K3[:2], image_size=SIZE), ValueError, r"prope: intrinsics must have shape \(..., 3, 3\), got \(2, 3\)"),
        (lambda: key(X, E4, K3.T, image_size=SIZE), ValueError, "prope: intrinsics must be upper triangular with 1 in the corner, got an entry that is off by 80"),
        (lambda: key(X, E4, K3 * 2, image_size=SIZE), ValueError, "prope: intrinsics must be upper triangular with 1 in the corner, got an entry that is off by 1"),
        (lambda: key(X, E4, K3 - np.diag(np.diag(K3)) + np.diag(np.float32([0, 1, 1])), image_size=SIZE), ValueError, "prope: intrinsics must be finite, with focal lengths other than 0"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
