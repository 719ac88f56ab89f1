"""`diffusion_rotary_from_config` reads the config of a diffusion transformer.

- What a config leaves out has the value of the class.
- A config that it cannot read rightly is refused, with an error that names the key; no value crashes.
- Positions need the sizes that the model needs, and take no others.
- Angles are exact where the model's are fractions.
- A plan is a static value, and says what it lacks.

What a plan does is compared with diffusers in test_diffusion_recorded.py.
"""

import pickle
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import posenc_jax as pe
from helpers.hostile import MANY
from helpers.plans import WithToDict
from huggingface.test_hostile_configs import JUNK
from posenc_jax.hf import DiffusionPlan
from posenc_jax.hf import diffusion_rotary_from_config as read
from posenc_jax.hf._diffusion_models import MODELS, REFUSED
from posenc_jax.hf._models import FACTS

FLUX_2, QWEN, COGVIDEOX = ({"_class_name": f"{x}"} for x in (
    "Flux2Transformer2DModel", "QwenImageTransformer2DModel", "CogVideoXTransformer3DModel"
))  # fmt: skip
LTX, LTX_2, WAN = ({"_class_name": f"{x}Transformer3DModel"} for x in ("LTXVideo", "LTX2Video", "Wan"))
KANDINSKY = {"_class_name": "Kandinsky5Transformer3DModel"}
FREQUENCIES = pe.axial((44, 42, 42))
# What the classes' own values do not give: a plan that rotates, or an argument.
NEEDED = {
    "CogVideoXTransformer3DModel": {"use_rotary_positional_embeddings": True},
    "HiDreamImageTransformer2DModel": {"axes_dims_rope": [64, 32, 32], "patch_size": 2},
}
OPTIONS = {"Kandinsky5Transformer3DModel": {"scale": (1, 2, 2)}, "LTXVideoTransformer3DModel": {"causal": True}}


def by_name(name, **keys):
    """The plan of a class, with other values of some keys."""
    return read({"_class_name": name} | NEEDED.get(name, {}) | keys, **OPTIONS.get(name, {}))


# What may be missing: the class has it


def test_keys_left_out_have_the_values_of_the_class():
    for name in MODELS:
        given = FACTS["diffusion"][name] | NEEDED.get(name, {})
        config = {"_class_name": name, "_diffusers_version": "0.42.1", "in_channels": 16, "my_key": 3} | given
        assert (
            read(config, **OPTIONS.get(name, {})) == by_name(name) == read(WithToDict(config), **OPTIONS.get(name, {}))
        )


@pytest.mark.parametrize("key", ["rope_theta", "axes_dims_rope", "rope_axes_dim", "axes_dims", "axes_dim_rope"])
def test_a_changed_key_changes_the_plan(key):
    for name, facts in FACTS["diffusion"].items():
        if key in facts and name != "CogView4Transformer2DModel":
            value = NEEDED.get(name, facts)[key] if isinstance(facts[key], list) else 77.0
            changed = [value[0] + 8, value[1] - 8, *value[2:]] if isinstance(value, list) else value
            assert by_name(name, **{key: changed}).frequencies != by_name(name).frequencies


# What is refused

BAD = [
    (None, {}, "config must be a mapping or have to_dict"),
    ({}, {}, "_class_name is missing"),
    ({"_class_name": "UNet2DConditionModel"}, {}, "'UNet2DConditionModel' is not known"),
    ({"_class_name": "PixArtTransformer2DModel"}, {}, "'PixArtTransformer2DModel' is not read: it does not rotate"),
    ({"_class_name": "WanPipeline"}, {}, "'WanPipeline' is not known: it must be a transformer of diffusers"),
    (COGVIDEOX, {}, "use_rotary_positional_embeddings must be true"),
    ({"_class_name": "HiDreamImageTransformer2DModel"}, {}, r"axes_dims_rope must hold 3 integers, got \(32, 32\)"),
    (COGVIDEOX | NEEDED[COGVIDEOX["_class_name"]] | {"patch_size": 61}, {}, "patch_size must be at most sample_height"),
    (
        COGVIDEOX | {"attention_head_dim": 34},
        {},
        r"the shares of attention_head_dim must sum to .* 34, got \(8, 12, 12\)",
    ),
    (WAN | {"attention_head_dim": 127}, {}, "the shares of attention_head_dim must be even"),
    (
        {"_class_name": "ZImageTransformer2DModel", "siglip_feat_dim": 1152},
        {},
        "siglip_feat_dim must be null, got 1152",
    ),
    (KANDINSKY | {"attention_type": "nabla"}, {"scale": (1, 2, 2)}, "attention_type must be one of .*'regular'"),
    (KANDINSKY | {"axes_dims": [32, 32]}, {"scale": (1, 2, 2)}, "axes_dims must hold 3 integers"),
    (LTX, {}, "causal must be given for LTXVideo"),
    (LTX, {"causal": 1}, "causal must be True or False"),
    (WAN, {"causal": True}, "causal must not be given for Wan"),
    (FLUX_2 | {"rope_scaling": {}}, {}, "the key rope_scaling = {} is not read by Flux2Transformer2DModel"),
    (FLUX_2 | {"axes_dim_rope": [64, 64]}, {}, "axes_dim_rope = .* is not read .*: is axes_dims_rope meant"),
    (FLUX_2 | {"rope_theta": None}, {}, "rope_theta must have a value or be left out for 2000"),
    (FLUX_2 | {"rope_theta": "2000"}, {}, "rope_theta must be a number, got str '2000'"),
    (FLUX_2 | {"axes_dims_rope": [32, 32, 32, 33]}, {}, "axes_dims_rope must be even, got"),
    (FLUX_2 | {"axes_dims_rope": [32, 32, 32, 34]}, {}, "axes_dims_rope must sum to the width of a head, 128, got"),
    ({"_class_name": "ChronoEditTransformer3DModel", "attention_head_dim": 64}, {}, "must have an even third"),
    ({"_class_name": "ZImageTransformer2DModel", "n_heads": 7}, {}, "dim must be a multiple of n_heads, got 3840"),
    ({"_class_name": "AuraFlowTransformer2DModel", "pos_embed_max_size": 99}, {}, "must be a square, got 99"),
    ({"_class_name": "CosmosTransformer3DModel", "rope_scale": [1.0]}, {}, "rope_scale must hold three numbers"),
    (LTX_2 | {"rope_type": "half"}, {}, r"rope_type must be one of \('interleaved', 'split'\), got 'half'"),
    (LTX_2 | {"attention_head_dim": 3}, {}, "attention_head_dim must give each head and coordinate pairs"),
    (LTX_2, {"stream": "text"}, r"stream must be one of \('video', 'audio', 'video_cross', 'audio_cross'\)"),
    (WAN, {"stream": "audio"}, "stream must not be given for Wan"),
    (KANDINSKY, {}, "scale must be given"),
    (KANDINSKY, {"stream": "text", "scale": (1, 2, 2)}, "scale must not be given"),
    (KANDINSKY, {"scale": (1, 2)}, "scale must hold a number for each of 3 coordinates"),
    (WAN, {"scale": (1, 1, 1)}, "scale must not be given"),
]


@pytest.mark.parametrize(("config", "options", "words"), BAD, ids=range(len(BAD)))
def test_a_config_is_refused_with_these_words(config, options, words):
    with pytest.raises((ValueError, TypeError), match=f"^diffusion_rotary_from_config: .*{words}"):
        read(config, **options)


def test_every_refused_class_has_its_reason():
    assert not REFUSED.keys() & MODELS.keys()
    for name, reason in REFUSED.items():
        with pytest.raises(ValueError, match=f"'{name}' is not read: {reason}"):
            read({"_class_name": name})


def test_no_value_crashes():
    """Each key takes a third of JUNK, another third in the next class; all of it if POSENC_HOSTILE is above 1."""
    for n, (name, facts) in enumerate(FACTS["diffusion"].items()):
        for i, key in enumerate((*facts, "_class_name"), n):
            for junk in JUNK if MANY > 1 else JUNK[i % 3 :: 3]:
                try:
                    by_name(name, **{key: junk})
                except (ValueError, TypeError) as error:
                    assert str(error).startswith("diffusion_rotary_from_config: ")


# Positions

SIZES = [
    (FLUX_2, {"shape": (2, 3)}, "text must be given"),
    (FLUX_2, {"shape": (2, 3), "text": 2**24}, "text must be below 2²⁴"),
    (FLUX_2, {"shape": (2**24, 3), "text": 1}, "shape must be below 2²⁴"),
    (FLUX_2, {"shape": (2, 3), "text": -1}, "text must be at least 0"),
    (FLUX_2, {"shape": (2, 3), "text": (1, 2)}, "text must be an integer"),
    (FLUX_2, {"shape": (2,), "text": 1}, r"shape must be \(height, width\), in tokens, got \(2,\)"),
    (FLUX_2, {"shape": (2, 2, 2), "text": 1}, r"shape must be \(height, width\), in tokens, got \(2, 2, 2\)"),
    (WAN, {"shape": (2,)}, r"shape must be \(height, width\) or \(frames, height, width\), in tokens, got \(2,\)"),
    (FLUX_2, {"shape": (2, 0), "text": 1}, r"shape\[1\] must be at least 1"),
    (FLUX_2, {"shape": (2, 3), "text": 1, "references": [(2, 3, 4, 5)]}, r"references\[0\] must be \(height, width\)"),
    (FLUX_2, {"shape": (2, 3), "text": 1, "rate": 24}, "rate must not be given to this model"),
    (FLUX_2, {"shape": (2**15, 2**16), "text": 1}, "the sequence must have fewer than 2³¹ tokens"),
    ({"_class_name": "FluxTransformer2DModel"}, {"shape": (2, 3), "text": 1, "references": [(1, 1)] * 2}, "at most 1"),
    ({"_class_name": "Krea2Transformer2DModel"}, {"shape": (2, 3), "text": 1, "references": [(1, 1)]}, "at most 0"),
    (WAN, {"shape": (2, 3), "text": 1}, "text must not be given to this model, got 1"),
    ({"_class_name": "HiDreamImageTransformer2DModel"}, {"shape": (64, 65), "text": 3}, "at most 4096 tokens"),
    (
        {"_class_name": "Kandinsky6Transformer3DModel"},
        {"shape": (2, 3, 4), "references": [(4, 3)]},
        r"references must hold a frame of the video, \(3, 4\)",
    ),
    (LTX, {"shape": (3, 2, 2)}, "rate must be given for this model"),
    (LTX, {"shape": (3, 2, 2), "rate": 0}, "rate must be positive"),
    (LTX, {"shape": (3, 2, 2), "rate": Fraction(-1)}, "rate must be positive"),
    ({"_class_name": "CosmosTransformer3DModel"}, {"shape": (3, 2, 2)}, "rate must be given for a video, .* 3 frames"),
    (
        {"_class_name": "Ideogram4Transformer2DModel"},
        {"shape": (2, 3), "text": 65537},
        "text must end before the image",
    ),
    ({"_class_name": "SD3Transformer2DModel"}, {"shape": (2, 97)}, r"shape must fit into the table, \(96, 96\)"),
    (QWEN | {"use_layer3d_rope": True}, {"shape": (2, 4, 4), "text": 3}, "references must hold the condition image"),
    ({"_class_name": "QwenImage21Transformer2DModel"}, {"shape": (2, 3), "text": "3"}, "text must be a sequence"),
    ({"_class_name": "QwenImage21Transformer2DModel"}, {"shape": (2, 3), "text": (3, 4)}, "a length for each of 1"),
]


@pytest.mark.parametrize(("config", "sizes", "words"), SIZES, ids=range(len(SIZES)))
def test_bad_sizes_are_refused_with_these_words(config, sizes, words):
    with pytest.raises((ValueError, TypeError), match=f"^DiffusionPlan.positions: .*{words}"):
        by_name(config["_class_name"], **config).positions(**sizes)


def test_sizes_that_may_be_left_out():
    """No references are as an empty list; the one image of Qwen-Image 2.1 may have its text as a number."""
    for name in ("Krea2Transformer2DModel", "Flux2Transformer2DModel"):
        plan = by_name(name)
        np.testing.assert_array_equal(plan.positions((2, 3), text=2, references=[]), plan.positions((2, 3), text=2))
        assert plan.positions((2, 3), text=0).dtype == np.int32
    plan = by_name("QwenImage21Transformer2DModel")
    np.testing.assert_array_equal(plan.positions((2, 3), text=4), plan.positions((2, 3), text=[4]))
    bria = by_name("BriaTransformer2DModel", attention_head_dim=96, axes_dims_rope=[0, 48, 48])  # as BRIA 3.2
    assert bria.frequencies == pe.axial((0, 48, 48)) and bria.positions((2, 3), text=1).shape == (7, 3)


def test_a_stream_of_one_coordinate_takes_a_length():
    audio = read(LTX_2, stream="audio")
    assert audio.positions((5,)).shape == (5,) and audio.frequencies.num_axes == 1
    with pytest.raises(ValueError, match=r"shape must be \(length,\), in tokens, got \(5, 2\)"):
        audio.positions((5, 2))
    assert read(KANDINSKY, stream="text").positions((3,)).tolist() == [0, 1, 2]


def test_angles_of_seconds_and_pixels_are_exact_at_the_usual_rates():
    """The last frame of LTX and LTX-2 beside mpmath, at 40 digits; a rate between them is one rounding of float32."""
    rates = [24, 25, 30, 50, 60, 120, *(Fraction(n * 1000, 1001) for n in (24, 30, 60)), 24000 / 1001, 23.976]
    cases = [(read(LTX, causal=False), 341, 128), (read(LTX, causal=True), 341, 121), (read(LTX_2), 682, 125)]
    for plan, pairs, frame in cases:
        for rate in rates:
            p = np.asarray(plan.positions((17, 1, 2), rate=rate))
            assert p.dtype == (np.float32 if rate == 23.976 else np.int32)
            with mpmath.workdps(40):
                exact = mpmath.mpf(rate.numerator) / rate.denominator if isinstance(rate, Fraction) else rate
                exact = mpmath.mpf(24000) / 1001 if rate == 24000 / 1001 else exact
                share = 2 * frame / mpmath.mpf(exact) / 20 - 1
                spectrum = [mpmath.mpf(10_000) ** (mpmath.mpf(j) / (pairs - 1)) * mpmath.pi / 2 for j in range(pairs)]
                want = [float(mpmath.cos(w * share)) for w in spectrum]
            time = np.flatnonzero((np.array(plan.frequencies.axes) == 0) & (plan.frequencies.angular != 0))
            phases = plan.frequencies.angular[time] * p[-1, 0].astype(np.float64)
            np.testing.assert_allclose(np.cos(phases), want, rtol=0, atol=1e-3 if rate == 23.976 else 1e-10)


# Plans


def test_plans_are_static_values_and_give_positions_under_jit():
    plan = read(FLUX_2)
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan and hash(again) == hash(plan) and jax.tree.leaves(plan) == []
    inside = jax.jit(lambda plan: plan.positions((2, 3), text=2, references=[(1, 2)]))(plan)
    np.testing.assert_array_equal(inside, plan.positions((2, 3), text=2, references=[(1, 2)]))
    assert inside[-1].tolist() == [10, 0, 1, 0]


def test_what_a_plan_needs_to_rotate_is_asked_for():
    x, p = jnp.ones((1, 9, 2, 128)), read(FLUX_2).positions((2, 3), text=3)
    with pytest.raises(TypeError, match=r"^DiffusionPlan.rotate: positions must be an array"):
        read(FLUX_2).rotate(x, None, head_axis=-2)
    with pytest.raises(ValueError, match=r"x must have 128 features, got shape \(1, 9, 2, 64\)"):
        read(FLUX_2).rotate(x[..., :64], p, head_axis=-2)
    with pytest.raises(ValueError, match="x must have 4096 features of all heads, which rotate as one"):
        read(LTX_2).rotate(x, p, head_axis=-2)
    mochi = by_name("MochiTransformer3DModel")
    with pytest.raises(ValueError, match="parameters must hold 'pos_frequencies', the learned frequencies, got None"):
        mochi.rotate(x, p, head_axis=-2)
    with pytest.raises(TypeError, match="parameters must be a mapping"):
        mochi.rotate(x, p, head_axis=-2, parameters=[1])
    with pytest.raises(ValueError, match="its model adds rows of a table, see positions and learned"):
        by_name("SD3Transformer2DModel").rotate(x[..., :64], p, head_axis=-2)
    for fields, words in (
        ({"placement": "flux9"}, "placement must be one of"),
        ({"placement": "chronoedit"}, r"settings must be pairs of \['skip'\] and a value"),
        ({"settings": (1,)}, "settings must be pairs of"),
        ({"placement": "flux2"}, "frequencies must have 4 axes for placement 'flux2', got 3"),
        ({"slices": 3}, "slices must divide"),
        ({"references": -1}, "references must be at least 0"),
        ({"references": 1}, "references must be 0 for placement 'wan', got 1"),
        ({"frequencies": pe.axial(252, 3)}, "must fit into a head_dim of 128"),
    ):
        with pytest.raises(ValueError, match="^DiffusionPlan: .*" + words):
            DiffusionPlan(
                **{"frequencies": FREQUENCIES, "head_dim": 128, "layout": "half", "placement": "wan"} | fields
            )
