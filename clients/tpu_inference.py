"""tpu-inference, which serves models of vLLM on TPU: RoPE and M-RoPE of its models, LongRoPE, Llama 4's vision tower.

Its JAX models are run, prefill and a step of decoding, without vLLM, PyTorch and its kernels: what imports these gets
modules that are empty, and attention, which is a kernel for TPU, is JAX's with a cache behind it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from clients import truth
from clients.harness import Far, Replaced, Timed, Trial, layer, parameters, tokens, video


class _Empty(types.ModuleType):
    """A module in place of one that is not installed, of whatever names: classes that do nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        call = lambda self, *x, **_: x[0] if x else self  # noqa: E731  as a decorator does
        return type(
            name, (), {"__init__": lambda *_, **__: None, "__getattr__": lambda self, _: self, "__call__": call}
        )


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds empty modules: of vLLM, of PyTorch, and of tpu-inference where it runs models of these or loads weights."""

    NAMES = ("vllm", "torch", "torchax", "torchvision", "tokamax", "tpu_inference.layers.vllm")
    NAMES += ("tpu_inference.models.vllm", "tpu_inference.models.jax.utils.weight_utils")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(f"{name}.".startswith(f"{empty}.") for empty in self.NAMES):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


sys.meta_path.insert(0, _Finder())

from tpu_inference.distributed import jax_parallel_state
from tpu_inference.layers.jax import pp_utils, rope, rope_interface
from tpu_inference.models.jax import llama3, qwen3

# --8<-- [start:copy]
import posenc_jax as pe
from posenc_jax.hf import frequencies_from_rope_parameters


def apply_rope(
    inputs,
    positions,
    head_dim,
    rope_theta=10000,
    rope_scaling=None,
    rope_input_ordering="split",
    *,
    rope_proportion=1.0,
):
    options = {"head_axis": -2, "layout": "half" if rope_input_ordering == "split" else "interleaved"}
    if positions.ndim == 3:  # cosines and sines of the patches of an image, for one or more images
        c, s = jnp.tile(positions, (len(inputs) // len(positions), 1, 1)).transpose(2, 0, 1)
        return pe.rotary(inputs, cos_sin=pe.CosSin(c, s, columns="pair"), **options)
    settings = {"factor" if k == "scale_factor" else k: v for k, v in (rope_scaling or {}).items()}
    proportional = {"rope_type": "proportional", "partial_rotary_factor": rope_proportion}
    settings |= proportional if rope_proportion != 1 else {}
    f = frequencies_from_rope_parameters(head_dim, rope_theta, settings, axes=positions.ndim == 2)
    return pe.rotary(inputs, positions.T, f, **options)  # M-RoPE has (3, tokens)


def apply_longrope(
    inputs,
    positions,
    head_dim,
    rope_scaling,
    original_max_position_embeddings,
    max_position_embeddings,
    rope_theta=10000,
):
    longest, original = max_position_embeddings, original_max_position_embeddings
    settings = {"max_position_embeddings": longest, "original_max_position_embeddings": original}
    settings |= rope_scaling | {"rope_type": "longrope"}
    f = frequencies_from_rope_parameters(head_dim, rope_theta, settings, length=longest)
    return pe.rotary(inputs, positions, f, head_axis=-2)


def vision(self):  # Llama4VisionRotaryEmbedding; the class token is not rotated
    side = self.image_size // self.patch_size
    at = jnp.pad(pe.grid_positions((side, side), start=1, order="column"), ((0, 1), (0, 0)))
    f = pe.axial(pe.geometric(self.hidden_size // self.num_attention_heads // 2, self.rope_theta), 2)
    return jnp.stack(pe.cos_sin(at, f), axis=-1)


# --8<-- [end:copy]


# As transformers has it, in float64


def _true_rope(
    inputs,
    positions,
    head_dim,
    rope_theta=10000,
    rope_scaling=None,
    rope_input_ordering="split",
    *,
    rope_proportion=1.0,
):
    layout = "half" if rope_input_ordering == "split" else "interleaved"
    if positions.ndim == 3:
        return truth.rotate(inputs, (positions[..., 0], positions[..., 1]), layout)
    settings = {"rope_type": "default", "rope_theta": rope_theta} | (rope_scaling or {})
    settings["factor"] = settings.get("scale_factor")
    if rope_proportion != 1:
        settings |= {"rope_type": "proportional", "partial_rotary_factor": rope_proportion}
    at = positions.T if positions.ndim == 2 else positions[:, None]
    return truth.rotate(inputs, truth.cos_sin(at, head_dim, settings), layout)


def _true_longrope(inputs, positions, head_dim, rope_scaling, original, longest, rope_theta=10000):
    settings = rope_scaling | {"rope_type": "longrope", "rope_theta": rope_theta}
    settings["original_max_position_embeddings"] = original
    return truth.rotate(inputs, truth.cos_sin(positions[:, None], head_dim, settings, longest))


def _true_vision(self):
    side, width = self.image_size // self.patch_size, self.hidden_size // self.num_attention_heads // 2
    at = np.stack(np.divmod(np.arange(side**2), side)[::-1], -1) + 1  # of a patch, its column and row, from 1
    at = np.concatenate([at, [[0, 0]]])
    angle = (at[..., None] * float(self.rope_theta) ** (-np.arange(0, width, 2) / width)).reshape(len(at), -1)
    return jnp.asarray(np.stack([np.cos(angle), np.sin(angle)], -1), jnp.float32)


REPLACED = [
    Replaced(rope_interface, "apply_rope", apply_rope, truth=_true_rope),
    Replaced(rope_interface, "apply_longrope", apply_longrope, truth=_true_longrope),
    Replaced(rope.Llama4VisionRotaryEmbedding, "__call__", vision, vision, _true_vision),
]
FAR = Far(lambda x, at: rope_interface.apply_rope(x[0], at[0], 64, 500_000)[None])
PACKAGE = "tpu-inference"
TESTS = [f"tests/layers/jax/test_{name}.py" for name in ("rope", "rope_interface")]  # of a checkout

LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA["original_max_position_embeddings"] = 8192
SECTIONS = {"rope_type": "default", "mrope_section": [12, 10, 10]}
MIXED = "Llama 3's formula for all rope types"


def _attention(cache, q, k, v, *_, **__):
    """Attention of one sequence: to what is cached, and to what is new."""
    if cache is not None:
        k, v = (jnp.concatenate(both) for both in zip(cache, (k, v), strict=True))
    out = jax.nn.dot_product_attention(q[None], k[None], v[None], is_causal=cache is None)
    return (k, v), out[0]


jax_parallel_state._PP = jax_parallel_state.GroupCoordinator(0, 1)  # one stage of a pipeline
pp_utils.get_pp_indices = lambda layers, rank, stages: (0, layers)
for _module in (llama3, qwen3):
    _module.attention = _attention
    _module.apply_rope = lambda *x, **options: rope_interface.apply_rope(*x, **options)  # as it is when it is called


def _model(kind: Any, config: Any) -> tuple[Any, Any]:
    """Outputs of tokens (batch, seq), all but the last in one call and the last in another, and parameters."""
    from flax import nnx

    of_model = types.SimpleNamespace(hf_config=config, get_vocab_size=lambda: 96, dtype=jnp.float32)
    cache = types.SimpleNamespace(cache_dtype="auto")
    of_vllm = types.SimpleNamespace(model_config=of_model, cache_config=cache, quant_config=None)
    of_vllm.parallel_config = of_vllm.speculative_config = None
    mesh = jax.make_mesh((1, 1), ("data", "model"))
    with jax.set_mesh(mesh):
        call, params = parameters(kind(of_vllm, nnx.Rngs(0), mesh))

    def of_sequence(params, ids, at):
        more = (None,) if kind is llama3.LlamaModel else ()
        prompt = types.SimpleNamespace(input_positions=at[..., :-1])
        caches, x, *_ = call(params, [None] * config.num_hidden_layers, ids[:-1], prompt, *more)
        step = types.SimpleNamespace(input_positions=at[..., -1:])
        return jnp.concatenate([x, call(params, caches, ids[-1:], step, *more)[1]])

    return jax.vmap(of_sequence, (None, 0, 0)), params


def trials() -> Iterator[tuple[Trial, Timed | None]]:
    """Llama and Qwen 3 of two layers, with rope types; a layer of attention around the other functions."""
    from transformers import LlamaConfig, Qwen3Config

    sizes = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    ids, at = tokens(96, length=64)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2048, 16, 64)), jnp.float32)

    def function(settings, base, positions):
        settings = rope_interface.normalize_rope_scaling(settings)
        return Timed(lambda x, p: rope_interface.apply_rope(x, p, 64, base, settings), (x, positions))

    text, along = jnp.arange(2048, dtype=jnp.int32), video(64)
    models = {
        "Llama 3.1": (llama3.LlamaModel, LlamaConfig, LLAMA, 5e5, at, ""),
        "Qwen 3": (qwen3.Qwen3Model, Qwen3Config, None, 1e6, at, ""),
        "Qwen 3, YaRN × 4": (qwen3.Qwen3Model, Qwen3Config, YARN, 1e6, at, MIXED),
        "Qwen 3, linear × 4": (qwen3.Qwen3Model, Qwen3Config, LINEAR, 1e6, at, MIXED),
        "M-RoPE of Qwen 2.5-VL, a video": (qwen3.Qwen3Model, Qwen3Config, SECTIONS, 1e6, along, ""),
        "M-RoPE of Qwen 3-VL, a video": (
            qwen3.Qwen3Model, Qwen3Config, SECTIONS | {"mrope_interleaved": True}, 5e6, along,
            "mrope_interleaved is not read",
        ),
    }  # fmt: skip
    for name, (kind, config, settings, base, positions, wrong) in models.items():
        config = config(**sizes, rope_parameters={"rope_type": "default", "rope_theta": base} | (settings or {}))
        forward, params = _model(kind, config)
        far = ids, positions + 1_000_000
        yield (
            Trial(name, forward, params, (ids, positions), far, wrong),
            function(settings, base, text if positions is at else jnp.stack([text, text // 2, text // 3])),
        )

    lists = {"short_factor": list(np.linspace(1, 2, 32)), "long_factor": list(np.linspace(1, 40, 32))}
    long = lambda x, p: rope_interface.apply_longrope(x, p, 64, lists, 4096, 131072)  # noqa: E731
    call, params, patches = layer(jax.vmap(long), head_dim=64)
    at = jnp.broadcast_to(jnp.arange(20_000 - 255, 20_001, dtype=jnp.int32), (2, 256))
    wrong = "the list for short texts, since a step of decoding has few tokens"
    timed = Timed(lambda x, p: rope_interface.apply_longrope(x, p, 64, lists, 4096, 131072), (x, text + 20_000))
    yield Trial("LongRoPE at 20,000", call, params, (patches, at), (patches, at + 1_000_000), wrong), timed

    tower = rope.Llama4VisionRotaryEmbedding(image_size=224, patch_size=14, hidden_size=256, num_attention_heads=4)
    turn = lambda x: rope_interface.apply_rope(x, tower(), 64, rope_input_ordering="interleaved")  # noqa: E731
    call, params, patches = layer(jax.vmap(turn), head_dim=64, length=257)
    wrong = "the class token is at (-1, -1), where it is not rotated in transformers"
    yield Trial("Llama 4's vision tower", call, params, (patches,), None, wrong), Timed(lambda x: turn(x[:257]), (x,))

    part = lambda x, p: rope_interface.apply_rope(x, p, 64, 1e6, rope_proportion=0.25)  # noqa: E731
    call, params, x = layer(jax.vmap(part), head_dim=64)
    yield Trial("Gemma 4's proportional RoPE", call, params, (x, at - 19_745), (x, at + 1_000_000)), None
