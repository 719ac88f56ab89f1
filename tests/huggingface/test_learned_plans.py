"""Plans whose values rotate, and plans of which a model has learned a part: `plan.parameters`."""

import functools
import json

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.quick import quick
from helpers.tiers import thorough
from oracles import rotations
from posenc_jax.hf import HeadScale, QueryScale, RotaryLayer, RotaryPlan, plan_to_config, rotary_from_config

RNG = np.random.default_rng(0)
X, COTANGENT = RNG.normal(size=(2, 2, 5, 3, 8)).astype(np.float32)
AT = np.int32([[0, 1, 2, 3, 4], [1_000_000, 7, 3, 2_000_000_000, 5]])
NOPE, YARN = pe.geometric(0), pe.yarn(6, 100.0, 8.0, 64)  # with an amplitude
SCALE = HeadScale("layers.{layer}.s", "layers.{layer}.b", num_heads=3)
# Learned frequencies and scales, a learned scale alone, learned frequencies alone.
LEARNED = RotaryPlan(
    (
        RotaryLayer(YARN, 8, SCALE, learned_log_factor="alpha"),
        RotaryLayer(NOPE, 8, SCALE),
        RotaryLayer(YARN, 8, learned_log_factor="alpha"),
    ),
    "interleaved",
    "last",
)
ARRAYS = {"alpha": np.float32([0.3, -0.2, 0.05])}
ARRAYS |= {name: RNG.normal(size=3).astype(np.float32) for name in (SCALE.scale, SCALE.bias)}
VALUES = RotaryPlan((RotaryLayer(YARN, 8), RotaryLayer(pe.geometric(6, 50.0), 8)), "half", "last", rotates_values=True)


def angles(frequencies, alpha):
    """The angles at positions AT, float64, of 60 digits."""
    with mpmath.workdps(60):
        cycles = [mpmath.mpf(t) / 2**128 * mpmath.exp(mpmath.mpf(float(a))) for t, a in zip(frequencies.cycles, alpha, strict=True)]  # fmt: skip
        return np.array([[[float((t * int(p) % 1) * 2 * mpmath.pi) for t in cycles] for p in row] for row in AT])


def rotated(x, angles, layout, amplitude, sign=1):
    last = amplitude * rotations.rotate_by(np.float64(x[..., 2:]), sign * angles[:, :, None], layout)
    return np.concatenate([x[..., :2], last], -1)


def formula(layer, role, x=X, arrays=ARRAYS):
    how = LEARNED.layers[layer]
    y = np.float64(x)
    if how.rotary_dim:
        y = rotated(x, angles(how.frequencies, arrays["alpha"]), "interleaved", YARN.attention_factor)
    if role == "query" and how.query_scale:
        y = y * (arrays[SCALE.scale] * np.log1p(np.float64(AT))[..., None] + arrays[SCALE.bias])[..., None]
    return y


def rotate(x, layer, role, arrays=ARRAYS, positions=AT):
    return LEARNED.rotate(x, layer, positions, head_axis=-2, role=role, parameters=arrays)


NEAR = np.abs(AT) < 100  # where float32 frequencies say the phase to 1e-6


@pytest.mark.parametrize("role", ["query", thorough("key")])
def test_each_layer_is_its_formula(role):
    def every(x, arrays):
        return [rotate(x, layer, role, arrays) for layer in range(3)]

    def traced(x, arrays):
        def of_layer(layer):
            return rotate(x, layer, role, arrays)

        return jax.lax.map(of_layer, np.arange(-1, 4))

    static, by_index = quick(lambda *given: (every(*given), traced(*given)))(X, ARRAYS)
    for layer, y in enumerate(static):
        want, size = formula(layer, role), np.abs(np.asarray(y)).max()
        where = NEAR if LEARNED.layers[layer].rotary_dim else np.ones_like(NEAR)
        np.testing.assert_allclose(
            np.asarray(y)[where], want[where], rtol=0, atol=2e-6 * size, err_msg=f"layer {layer}"
        )
        np.testing.assert_array_equal(by_index[1 + layer], y, f"layer {layer}")
    assert np.isnan(by_index[0]).all() and np.isnan(by_index[-1]).all()


def test_the_error_of_a_phase_is_that_of_a_small_correction():
    """Within 2⁻²² of ω(e^α − 1)p, where a float32 frequency would be within 2⁻²³ of ω·e^α·p, and beyond that here."""
    f = pe.yarn(64, 10_000.0, 2048.0, 512, attention_factor=1.0)
    plan = RotaryPlan((RotaryLayer(f, 64, learned_log_factor="alpha"),), "half")
    places = np.int32([1, 4095, 65_535, 1_048_575, -1_048_575, 2**31 - 1])
    unit = np.zeros((len(places), 64), np.float32)
    unit[:, :32] = 1
    turn = quick(lambda arrays: plan.rotate(unit, 0, places, head_axis=None, parameters=arrays))
    worse = 0
    for size in (0.0, 1e-4, 1e-2, 0.1, 1.0):
        alpha = RNG.uniform(-size, size, 32).astype(np.float32)
        y = np.float64(turn({"alpha": alpha}))
        with mpmath.workdps(60):
            for i, place in enumerate(map(int, places)):
                for k, cycles in enumerate(f.cycles):
                    omega, a = 2 * mpmath.pi * cycles / mpmath.mpf(2) ** 128, mpmath.mpf(float(alpha[k]))
                    error = abs(mpmath.mpc(*y[i, [k, 32 + k]]) * mpmath.expj(-omega * mpmath.exp(a) * place) - 1)
                    bound = 2.0**-22 * abs(omega * mpmath.expm1(a) * place) + 2.0**-48 * omega * abs(place) + 2e-7
                    assert error <= bound, (size, place, k)
                    theirs = float(np.float32(omega) * np.exp(alpha[k])) - omega * mpmath.exp(a)
                    worse += abs(theirs * place) > max(bound, 0.01)
    assert worse > 50


def test_nothing_learned_is_the_plan_of_the_config():
    plain = RotaryPlan((RotaryLayer(YARN, 8),), "interleaved", "last")

    @quick
    def both(x):
        zero = {"alpha": np.zeros(3, np.float32)}
        return rotate(x, 2, "key", zero), plain.rotate(x, 0, AT, head_axis=-2)

    np.testing.assert_allclose(*both(X), rtol=0, atol=1e-5)  # at position 2e9 too


def test_derivatives():
    """In x and in each parameter, of a static and of a traced layer, by the formula."""

    def f(x, arrays, layer):
        return jnp.sum(rotate(x, layer, "query", arrays, np.where(NEAR, AT, 9)) * COTANGENT)

    def tangent(x, arrays, layer):
        return jax.jvp(
            lambda *given: f(*given, layer), (x, arrays), (COTANGENT, jax.tree.map(lambda a: a[::-1], arrays))
        )[1]

    @quick
    def each(x, arrays, layer):
        gradients = [jax.grad(f, (0, 1))(x, arrays, i) for i in (0, layer)]
        return gradients, tangent(x, arrays, 0)

    (static, traced), along = each(X, ARRAYS, 0)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), static, traced)
    at, alpha = np.where(NEAR, AT, 9)[..., None, None], np.float64(ARRAYS["alpha"])
    turn = np.asarray([YARN.angular * np.exp(alpha)])[0]
    u = YARN.attention_factor * rotations.rotate_by(np.float64(X[..., 2:]), at * turn, "interleaved")
    scale = (ARRAYS[SCALE.scale] * np.log1p(at[..., 0]) + ARRAYS[SCALE.bias])[..., None]
    # d/dθ of (y₁, y₂) is (−y₂, y₁)
    quarter = np.stack([-u[..., 1::2], u[..., ::2]], -1).reshape(u.shape)
    by_theta = (scale * quarter * COTANGENT[..., 2:]).reshape(*u.shape[:-1], 3, 2).sum(-1)
    whole = np.concatenate([X[..., :2], u], -1)
    want = {"alpha": (by_theta * at * turn).sum((0, 1, 2)), SCALE.bias: (whole * COTANGENT).sum((0, 1, 3))}
    want[SCALE.scale] = (whole * COTANGENT * np.log1p(at)).sum((0, 1, 3))
    for name, gradient in want.items():
        np.testing.assert_allclose(static[1][name], gradient, rtol=1e-5, atol=1e-4, err_msg=name)
    moved = sum(np.sum(want[name] * ARRAYS[name][::-1]) for name in want) + np.sum(np.asarray(static[0]) * COTANGENT)
    np.testing.assert_allclose(along, moved, rtol=1e-4)


def test_the_same_bits_in_every_program():
    """Of keys that are cached, at positions where an ulp of a frequency would be a tenth of a radian."""
    at = np.arange(1_000_000, 1_000_008, dtype=np.int32)
    keys = RNG.normal(size=(1, 8, 3, 8)).astype(np.float32)
    turn = functools.partial(LEARNED.rotate, head_axis=-2, role="key")
    whole = jax.jit(lambda k, arrays: turn(k, 2, at, parameters=arrays))(keys, ARRAYS)
    step = jax.jit(lambda k, p, layer, arrays: turn(k, layer, p[None], parameters=arrays))
    for i in (0, 7):
        np.testing.assert_array_equal(step(keys[:, i : i + 1], at[i], 0, ARRAYS)[:, 0], whole[:, i])

    @jax.jit
    def others(k, arrays):
        of_scan = jax.lax.map(
            lambda given: turn(given[0][:, None], 2, given[1][None], parameters=arrays), (k.swapaxes(0, 1), at)
        )
        several = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), arrays)
        mapped = jax.vmap(lambda arrays: turn(k, 2, at, parameters=arrays))(several)
        again = jax.checkpoint(lambda k: turn(k, 2, at, parameters=arrays))(k)[0]
        return of_scan[:, 0, 0], mapped[0, 0], again, turn(k, 2, at, parameters=ARRAYS)[0]  # of constants

    for y in others(keys, ARRAYS):
        np.testing.assert_array_equal(y, whole[0])


def test_two_axes_of_heads_have_a_parameter_for_each_head():
    x, arrays = np.concatenate([X, X[::-1]], 2), jax.tree.map(lambda a: np.concatenate([a, -a]), ARRAYS)
    arrays |= {"alpha": ARRAYS["alpha"]}

    @quick
    def both(x):
        whole = rotate(x, 0, "query", arrays)
        grouped = x.reshape(2, 5, 2, 3, 8)
        return whole, LEARNED.rotate(grouped, 0, AT, head_axis=(-3, -2), role="query", parameters=arrays).reshape(
            x.shape
        )

    np.testing.assert_allclose(*both(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, thorough(jnp.float16)])
def test_16_bits_are_rounded_once(dtype):
    x = X.astype(dtype)
    narrow, wide = quick(lambda *each: [rotate(x, 0, "query") for x in each])(x, x.astype(np.float32))
    assert narrow.dtype == dtype
    np.testing.assert_array_equal(narrow, np.asarray(wide).astype(dtype))


def test_a_scan_takes_the_parameters_of_each_layer():
    plan = RotaryPlan((LEARNED.layers[0], LEARNED.layers[1]) * 2, "interleaved", "last")
    of_layers = {name: np.stack([a, 2 * a, a - 1, a + 1]) for name, a in ARRAYS.items() if name != "alpha"}

    def turned(x, layer, arrays):
        arrays = {"alpha": ARRAYS["alpha"]} | arrays
        return plan.rotate(x, layer, AT % 100, head_axis=-2, role="query", parameters=arrays)

    @quick
    def both(x):
        by_scan = jax.lax.scan(lambda x, given: (x, turned(x, *given)), x, (jnp.arange(4), of_layers))[1]
        return by_scan, jnp.stack([turned(x, i, jax.tree.map(lambda a, i=i: a[i], of_layers)) for i in range(4)])

    np.testing.assert_allclose(*both(X), rtol=0, atol=1e-5)


@pytest.mark.thorough
def test_export():
    exported = export.export(jax.jit(lambda x, arrays: rotate(x, 0, "query", arrays)), platforms=("cpu", "cuda", "tpu"))
    loaded = export.deserialize(exported(X, ARRAYS).serialize())
    np.testing.assert_array_equal(loaded.call(X, ARRAYS), rotate(X, 0, "query"))


@pytest.mark.thorough
def test_heads_on_several_devices(on_cpu):
    """Under Explicit axes, and in `shard_map`, where each device has the parameters of its heads."""
    mesh = functools.partial(jax.make_mesh, (2, 4), ("d", "h"), devices=jax.devices("cpu"))
    x, at = RNG.normal(size=(2, 5, 4, 8)).astype(np.float32), AT
    arrays = ARRAYS | {name: RNG.normal(size=4).astype(np.float32) for name in (SCALE.scale, SCALE.bias)}
    f = lambda x, p, arrays: rotate(x, 0, "query", arrays, p)  # noqa: E731
    want, heads, everywhere = jax.jit(f)(x, at, arrays), P("d", None, "h"), {name: P() for name in arrays}
    split = everywhere | {name: P("h") for name in (SCALE.scale, SCALE.bias)}
    with jax.set_mesh(explicit := mesh(axis_types=(AxisType.Explicit,) * 2)):
        for specs in (everywhere, split):
            given = (x, heads), (at, P("d")), *((arrays[name], specs[name]) for name in arrays)
            y, p, *rest = (jax.device_put(a, NamedSharding(explicit, spec)) for a, spec in given)
            got = jax.jit(f)(y, p, dict(zip(arrays, rest, strict=True)))
            assert jax.typeof(got).sharding.spec == P("d", None, "h", None)
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
        alpha = jax.device_put(np.ones(4, np.float32), NamedSharding(explicit, P("h")))
        plan = RotaryPlan((RotaryLayer(pe.geometric(8), 8, learned_log_factor="alpha"),), "half")
        with pytest.raises(ValueError, match=r"parameters\['alpha'\] must not be sharded along axis 0"):
            plan.rotate(x, 0, head_axis=-2, parameters={"alpha": alpha})
    auto = mesh(axis_types=(AxisType.Auto,) * 2)
    mapped = jax.shard_map(f, mesh=auto, in_specs=(heads, P("d"), split), out_specs=heads)
    np.testing.assert_allclose(jax.jit(mapped)(x, at, arrays), want, rtol=1e-6, atol=1e-6)


# Values


def test_values_turn_and_outputs_turn_back():
    roles = "query", "key", "value", "output"

    @quick
    def each(x):
        turn = functools.partial(VALUES.rotate, x, positions=AT, head_axis=-2)
        return [{role: turn(i, role=role) for role in roles} for i in (0, 1)], turn(x.shape[0] - 2, role="output")

    got, _ = each(X)
    for how, by_role in zip(VALUES.layers, got, strict=True):
        f = how.frequencies
        theta = angles(f, np.zeros(f.num_pairs))
        for role, sign in (("value", 1), ("output", -1)):
            want = rotated(X, theta, "half", f.attention_factor, sign)
            np.testing.assert_allclose(by_role[role], want, rtol=0, atol=2e-6, err_msg=role)
        for role in ("query", "key"):
            np.testing.assert_array_equal(by_role[role], by_role["value"])


def test_a_value_counts_by_its_distance_from_the_query():
    """Attention's outputs are the same where all positions move, and differ where values or outputs do not turn."""

    @quick
    def outputs(x, shift):
        def attend(value, output):
            turn = functools.partial(
                VALUES.rotate, layer=1, positions=np.arange(5, dtype=np.int32) + shift, head_axis=-2
            )
            q, k = (turn(x, role=role) for role in ("query", "key"))
            v = turn(x[::-1], role="value") if value else x[::-1]
            y = jax.nn.dot_product_attention(q, k, v)
            return turn(y, role="output") if output else y

        return [attend(*given) for given in ((1, 1), (1, 0), (0, 1))]

    here, there = outputs(X, 0), outputs(X, 300_000)
    differences = [float(np.abs(np.asarray(a) - b).max()) for a, b in zip(here, there, strict=True)]
    assert differences[0] < 1e-5 and min(differences[1:]) > 0.1


def test_in_other_models_values_and_outputs_stay():
    wide = RNG.normal(size=(2, 5, 3, 24)).astype(np.float32)  # than queries
    for role in ("value", "output"):
        np.testing.assert_array_equal(LEARNED.rotate(wide, 0, AT, head_axis=-2, role=role), wide)
    traced = jax.jit(lambda layer: LEARNED.rotate(wide, layer, AT, head_axis=-2, role="value"))(1)
    np.testing.assert_array_equal(traced, wide)
    several = RotaryPlan((RotaryLayer(pe.axial(8, 2), 8),), "half")
    np.testing.assert_array_equal(several.rotate(wide, 0, np.zeros((5, 2), int), head_axis=-2, role="value"), wide)
    with pytest.raises(ValueError, match="head_axis must be an axis of x"):
        several.rotate(wide, 0, head_axis=7, role="output")


# Plans as values, errors


def test_parameters_are_names_and_shapes():
    heads = ((SCALE.scale, (3,)), (SCALE.bias, (3,)))
    assert LEARNED.parameters == (("alpha", (3,)), *heads)
    assert VALUES.parameters == () and hash(LEARNED) == hash(LEARNED) and jax.tree.leaves(LEARNED) == []
    assert [name.format(layer=7) for name, _ in heads] == ["layers.7.s", "layers.7.b"]


ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2048.0, "original_max_position_embeddings": 512}
LARGE = {
    "model_type": "mistral_large4_text",
    "num_hidden_layers": 5,
    "num_attention_heads": 64,
    "rope_parameters": ROPE,
}
LARGE |= {"qk_nope_head_dim": 64, "qk_rope_head_dim": 64}
V4 = {"model_type": "deepseek_v4", "num_hidden_layers": 4, "compress_ratios": [0, 128, 4, 0, 0], "qk_rope_head_dim": 64}
V4 |= {"num_nextn_predict_layers": 1, "rope_scaling": ROPE | {"rope_theta": 1e4}}
SUB = ROPE | {"partial_rotary_factor": 0.125}
MAIN = {"rope_theta": 1e4, "partial_rotary_factor": 0.125}


def test_mistral_large_4():
    plan = rotary_from_config({"model_type": "mistral_large4", "text_config": LARGE})
    assert [layer.rotary_dim for layer in plan.layers] == [64, 64, 64, 0, 64]
    name = "layers.{layer}.attention.ssmax_scaling"
    heads = ((f"{name}.s", (64,)), (f"{name}.b", (64,)))
    assert plan.parameters == (("lerope.alpha", (32,)), *heads)
    assert plan.indexer.parameters[1:] == tuple((n.replace("n.s", "n.indexer.s"), (32,)) for n, _ in heads)
    assert plan.layers[0].frequencies == pe.yarn(64, 1e4, 2048.0, 512)
    assert plan.layers[3].learned_log_factor is None and plan.layers[3].query_scale == plan.layers[0].query_scale


def test_deepseek_v4():
    plan = rotary_from_config(V4)
    main, compress = pe.geometric(64), pe.yarn(64, 160_000.0, 2048.0, 512, attention_factor=1.0)
    assert [layer.frequencies for layer in plan.layers] == [main, compress, compress, main]
    assert (plan.part, plan.layout, plan.layers[0].head_dim, plan.softmax_scale) == ("last", "interleaved", 512, 1.0)
    assert plan.rotates_values and (plan.indexer.part, plan.indexer.layers[2].head_dim) == ("last", 128)
    nested = {key: value for key, value in V4.items() if key != "rope_scaling"}
    spectra = {"main": MAIN, "compress": SUB | {"rope_theta": 160_000, "attention_factor": 1.0}}
    assert rotary_from_config(nested | {"rope_parameters": spectra}) == plan
    # As transformers has it, an amplitude that nested settings leave to YaRN is YaRN's.
    del spectra["compress"]["attention_factor"]
    louder = rotary_from_config(nested | {"rope_parameters": spectra})
    assert louder.layers[1].frequencies.attention_factor == pytest.approx(0.1 * np.log(2048) + 1)
    original = {key: value for key, value in ROPE.items() if "original" in key}
    inside = {key: value for key, value in ROPE.items() if key not in original}
    assert rotary_from_config(V4 | original | {"rope_scaling": inside}) == plan
    pattern = rotary_from_config({"model_type": "deepseek_v4", "num_hidden_layers": 6})
    assert {layer.frequencies for layer in pattern.layers} == {pe.geometric(64, 160_000.0)}


@pytest.mark.parametrize("config", [LARGE, V4], ids=["Mistral Large 4", "DeepSeek-V4"])
def test_round_trips(config):
    plan = rotary_from_config(config)
    written = json.loads(json.dumps(plan_to_config(plan)))
    assert rotary_from_config(written) == plan and rotary_from_config(written).parameters == plan.parameters
    for key in {"rope_on_values", "query_scales", "indexer_query_scales"} & written.keys():
        assert rotary_from_config({k: x for k, x in written.items() if k != key}) != plan


@pytest.mark.parametrize("plan", [LEARNED, VALUES], ids=["learned", "values"])
def test_a_plan_made_by_hand_has_no_settings_to_write(plan):
    with pytest.raises(ValueError, match="no config says this one"):
        plan_to_config(plan)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (V4 | {"compress_ratios": [0, 128, 8, 0]}, r"compress_ratios must be of \[0, 4, 128\], got \(0, 128, 8, 0\)"),
        (V4 | {"compress_ratios": [0, 128]}, "compress_ratios must have 4 items, one for each layer, got 2"),
        (V4 | {"layer_types": ["sliding_attention"] * 4}, "compress_ratios contradicts layer_types"),
        (V4 | {"compress_ratios": None, "layer_types": ["full_attention"] * 4}, "layer_types must be of"),
        (V4 | {"partial_rotary_factor": 0.25}, "qk_rope_head_dim must be 128 in model_type 'deepseek_v4', got 64"),
        (V4 | {"rope_scaling": ROPE | {"rope_theta": 5e6}}, "deepseek_v4' = 10000.0 contradicts rope_scaling.rope_theta = 5"),
        (V4 | {"rope_scaling": ROPE | {"rope_type": "deepseek_yarn"}}, "'deepseek_yarn' has an amplitude of its own"),
        (V4 | {"rope_theta": None}, "rope_theta must have a value or be left out for 10000.0, got null"),
        (V4 | {"rope_scaling": {"main": MAIN, "compress": SUB, "rope_type": "yarn"}}, "rope_type = 'yarn' is not read"),
        (V4 | {"rope_scaling": {"main": {"rope_theta": 1e4}, "compress": SUB}}, "main.partial_rotary_factor is missing"),
        (V4 | {"rope_scaling": {"main": MAIN | {"rope_theta": None}, "compress": SUB}}, "main.rope_theta is missing"),
        (V4 | {"rope_scaling": {"main": MAIN, "compress": SUB}, "compress_rope_theta": 7.0}, "contradicts compress_rope_theta"),
        (V4 | {"rope_scaling": {"main": MAIN, "compress": SUB | {"partial_rotary_factor": 0.5}}}, "0.5 contradicts 64 rotated"),
        (V4 | {"rope_on_values": True}, "rope_on_values = True is not read by the code of model_type 'deepseek_v4'"),
        (LARGE | {"query_scales": [None] * 5}, "query_scales = .* is not read by the code of model_type 'mistral_large4_text'"),
        (LARGE | {"rope_parameters": ROPE | {"learned_log_factor": "a"}}, "learned_log_factor = 'a' is not read by the code"),
        (LARGE | {"rope_parameters": None}, "rope_parameters is missing, and model_type 'mistral_large4_text' has its own"),
        (LARGE | {"num_attention_heads": None}, "num_attention_heads is missing"),
        ({"model_type": "clvp_encoder"}, "it rotates its values too, and does not rotate the outputs of attention back"),
        ({"model_type": "roformer", "num_hidden_layers": 1, "head_dim": 8, "rotary_value": True}, "rotary_value must be False"),
        ({"model_type": "llama", "num_hidden_layers": 1, "head_dim": 8, "rope_on_values": True}, "the key rope_on_values = True"),
    ],
)  # fmt: skip
def test_what_is_refused(config, match):
    with pytest.raises(ValueError, match=match) as e:
        rotary_from_config(config)
    assert str(e.value).count("rotary_from_config: ") == 1


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_a_spectrum_that_is_no_mapping_or_missing(key):
    plain = {name: value for name, value in V4.items() if name not in ("rope_scaling", "rope_parameters")}
    with pytest.raises(TypeError, match=f"{key}.compress must be a mapping, got int 3"):
        rotary_from_config(plain | {key: {"main": MAIN, "compress": 3}})
    for settings in ({"main": MAIN}, {"main": MAIN, "compress": None}):
        with pytest.raises(ValueError, match=f"{key}.compress is missing"):
            rotary_from_config(plain | {key: settings})


NAMES = "'alpha' of shape .3,., 'layers.{layer}.s' of shape .3,., 'layers.{layer}.b' of shape .3,."


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: rotate(X, 0, "query", None), ValueError, f"parameters must hold {NAMES}, which this model has learned, got none"),
        (lambda: rotate(X, 0, "key", {"beta": 1}), ValueError, r"must hold 'alpha' of shape \(3,\), which .* got \['beta'\]"),
        (lambda: rotate(X, 1, "query", {}), ValueError, "must hold 'layers.{layer}.s' of"),
        (lambda: rotate(X, 0, "key", [1]), TypeError, "parameters must be a mapping of names to arrays, got list"),
        (lambda: rotate(X, 0, "key", {"alpha": np.ones(4, np.float32)}), ValueError, r"parameters\['alpha'\] must have shape \(3,\), got \(4,\)"),
        (lambda: rotate(X, 0, "key", {"alpha": np.ones(3, int)}), TypeError, r"parameters\['alpha'\] must be a float array"),
        (lambda: rotate(X[:, :, :2], 0, "query"), ValueError, r"parameters\['layers.{layer}.s'\] must have shape \(2,\), got \(3,\)"),
        (lambda: LEARNED.rotate(X[:, :, 0], 0, AT, head_axis=None, role="query", parameters=ARRAYS), ValueError, "head_axis must be given, because each head"),
        (lambda: LEARNED.rotate(X, 0, AT, head_axis=-2, parameters=ARRAYS), ValueError, 'role must be "query" or "key", because layer 0 scales its queries'),
        (lambda: rotate(X, 0, "query", positions=-AT), ValueError, "positions must be at least 0 where a layer scales"),
        (lambda: VALUES.rotate(X, 0, AT, head_axis=-2), ValueError, "role must be one of .*'output'.*, because the values of this model rotate too, got None"),
        (lambda: VALUES.rotate(X, 0, AT, head_axis=-2, role="values"), ValueError, "role must be one of .* got 'values'"),
        (lambda: VALUES.rotate(X[..., :7], 0, AT, head_axis=-2, role="value"), ValueError, "x must have 8 or 6 features in this layer"),
        (lambda: RotaryLayer(NOPE, 8, learned_log_factor="a"), ValueError, "frequencies must be exact, of one coordinate, with a learned_log_factor"),
        (lambda: RotaryLayer(YARN.with_precision("float32"), 8, learned_log_factor="a"), ValueError, "frequencies must be exact"),
        (lambda: RotaryLayer(pe.axial(8, 2), 8, learned_log_factor="a"), ValueError, "of one coordinate"),
        (lambda: RotaryLayer(YARN, 8, learned_log_factor=3), TypeError, "learned_log_factor must be a string or None, got int 3"),  # type: ignore
        (lambda: HeadScale("a", 3, 4), TypeError, "HeadScale: bias must be a string, got int 3"),  # type: ignore
        (lambda: HeadScale("a", "a", 4), ValueError, "HeadScale: scale and bias must have different names"),
        (lambda: HeadScale("a", "b", 0), ValueError, "HeadScale: num_heads must be at least 1, got 0"),
        (lambda: RotaryPlan(VALUES.layers, "half", rotates_values=1), TypeError, "rotates_values must be True or False, got int 1"),  # type: ignore
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_a_scale_of_each_kind_in_one_model():
    """A traced layer chooses between a learned scale and one by a formula."""
    plan = RotaryPlan((RotaryLayer(NOPE, 8, SCALE), RotaryLayer(NOPE, 8, QueryScale(0.1, 4, 1))), "half")
    turn = quick(lambda layer: plan.rotate(X, layer, AT, head_axis=-2, role="query", parameters=ARRAYS))
    for layer in (0, 1):
        want = plan.rotate(X, layer, AT, head_axis=-2, role="query", parameters=ARRAYS)
        np.testing.assert_allclose(turn(layer), want, rtol=1e-6)
