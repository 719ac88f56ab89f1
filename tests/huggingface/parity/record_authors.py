"""Writes tests/oracles/recorded/cameras.json and authors.json: position encodings by the code of those who proposed or trained them.

    nox -s parity -- --record-authors PROPE FOPE XTUNER SELECTIVE_ROPE DROPE

The arguments are files of the commits below, of which a class or a function is run. Nothing of them is kept but its values.
"""

import ast
import importlib.util
import inspect
import json
import logging
import math
import sys
import types
import typing
from pathlib import Path

import einops
import jax
import numpy as np
import torch
import transformers
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaAttention

COMMAND = "nox -s parity -- --record-authors PROPE FOPE XTUNER SELECTIVE_ROPE DROPE, files of the sources"
SOURCES = {
    "prope": "github.com/liruilong940607/prope 81c191e4769eea219aaf868b6ff203448b7fef6a, prope/jax.py",
    "fope": "github.com/TsinghuaC3I/Fourier-Position-Embedding bd94b20d82bf11240ad3584c515c790d255da919, olmo/model.py",
    "xtuner": "github.com/InternLM/xtuner b934f462095c1e750229de35367c50ae36caa786, xtuner/v1/module/rope/rope.py",
    "selective_rope": "github.com/timurcarstensen/selective-rope d12e82503de1b5062870bd52ded9b4f364ce0ad3, "
    "src/selective_rope/modules/rotary.py",
    "drope": "github.com/SakanaAI/DroPE 260a8bb9f4fda0673266ddfee7668915aade8b33, custom_models/attention.py",
}
RNG = np.random.default_rng(0)


def bare(path, *names, **company):
    """Classes and functions of a file, in the company of other names alone."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    nodes = [n for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name in names]
    assert {n.name for n in nodes} == {*names}
    exec(compile(ast.Module(nodes, []), path, "exec"), company)
    return [company[name] for name in names]


def numbers(x, digits=9):
    x = np.asarray(x.detach() if torch.is_tensor(x) else x)
    return [float(f"{v:.{digits}g}") for v in x] if x.ndim == 1 else [numbers(row, digits) for row in x]


def short(*shape):
    """Numbers that take little room in a file."""
    return RNG.integers(-8, 9, shape) / 4


def cameras(path):
    jax.config.update("jax_enable_x64", True)
    spec = importlib.util.spec_from_file_location("prope_of_authors", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    images, patches, heads, dim = 2, (3, 2), 2, 16
    where = {"patches_x": patches[0], "patches_y": patches[1], "image_width": 160, "image_height": 96}
    for name in ("PRoPE", "GTA"):
        turns, _ = np.linalg.qr(RNG.normal(size=(images, 3, 3)))
        turns[:, 0] *= np.linalg.det(turns)[:, None]
        viewmats = np.zeros((images, 4, 4))
        viewmats[:, :3, :3], viewmats[:, :3, 3], viewmats[:, 3, 3] = turns, short(images, 3), 1
        lens = np.array([[[150.0, 0, 70], [0, 120, 50], [0, 0, 1]], [[180, 0, 85], [0, 110, 40], [0, 0, 1]]])
        viewmats, lens = np.array(numbers(viewmats, 17)), lens if name == "PRoPE" else None
        q, k, v = short(3, images * math.prod(patches), heads, dim)
        given = {"viewmats": viewmats[None], "Ks": None if lens is None else lens[None]}
        out = module.prope_dot_product_attention(*(x[None] for x in (q, k, v)), **given, **where)
        assert out.dtype == np.float64
        arrays = {"query": q, "key": k, "value": v, "viewmats": viewmats, "output": numbers(out[0], 12)}
        arrays = {key: np.asarray(x).tolist() for key, x in arrays.items()}
        yield {"name": name, **where, "Ks": None if lens is None else lens.tolist(), **arrays}


def fope(path):
    """Of a head of 16 features, of whose 8 pairs so many turn within the length; both sets of coefficients at random."""
    device = lambda config: torch.device("cpu")  # noqa: E731
    company = {"torch": torch, "nn": torch.nn, "F": functional, "math": math, "_non_meta_init_device": device}
    company |= {"ModelConfig": None, "BufferCache": dict, "Optional": typing.Optional, "Tuple": tuple}
    _, cls = bare(path, "RotaryEmbedding", "FourierEmbedding", **company)
    for length in (64, 8):
        values = _FOPE | {"max_sequence_length": length}
        torch.manual_seed(length)
        layer = cls(types.SimpleNamespace(**values), {})
        x = short(2, 1, 5, 16)  # batch, heads, seq, head_dim: by the coefficients of each head
        x = np.broadcast_to(x, (2, 2, 5, 16)).copy()
        y = layer(torch.tensor(x, dtype=torch.float32), 5)
        yield {"name": "FoPE's authors", "length": length, "base": 100.0, **_rotation(layer, x, y)}


_FOPE = {"d_model": 32, "n_heads": 2, "rope_theta": 100, "init_device": "cpu"}
_FOPE |= {"rope_init_distribution": "exponential", "rope_learnable": False, "rope_include_neg_freq": False}
_FOPE |= {"rope_no_repetition": False, "rope_no_pos": False, "rope_full_precision": True, "rope_zero_freq_ratio": -1.0}
_FOPE |= {"rope_init_floor_freq": 0.0, "rope_init_upper_freq": 1.0, "rope_floor_freq_ratio": 1.0}
_FOPE |= {"rope_clamp_floor_freq": True, "rope_clamp_floor_to_zero": True, "rope_clamp_upper_freq": False}
_FOPE |= {"rope_upper_freq_ratio": 1.0, "rope_clamp_upper_to_zero": True, "rope_clamp_to_linear": False}
_FOPE |= {"rope_clamp_to_linear_mode": "ceil", "fourier": True, "fourier_dim": 0, "fourier_init": "eye_xavier_norm"}
_FOPE |= {"fourier_init_norm_gain": 0.3, "fourier_separate_basis": True, "fourier_separate_head": True}
_FOPE |= {"fourier_learnable": False, "fourier_norm": False, "fourier_ignore_zero": True, "len_extra": False}


def _rotation(layer, x, y):
    coefficients = {"cosines": numbers(layer.cos_coef), "sines": numbers(layer.sin_coef)}
    return coefficients | {"x": x.tolist(), "rotated": numbers(y)}


def xtuner(path):
    """As Intern-S1-Pro was trained: as many coefficients as pairs, for each head of the keys."""
    rope = types.SimpleNamespace(num_inv_freq=None, fope_sep_head=True, fope_init_factor=0.5)
    config = types.SimpleNamespace(
        rope_scaling_cfg=rope, max_position_embeddings=40, head_dim=16, num_key_value_heads=2
    )

    class Base(torch.nn.Module):
        """Stands for the class that reads a config: a spectrum and no scaling."""

        def __init__(self, config, device):
            super().__init__()
            self.config, self.rope_type, self.attention_scaling = config, "default", 1.0
            self.inv_freq = 100.0 ** (-torch.arange(0, 16, 2) / 16)

        def register_buffer(self, name, value, **_):
            setattr(self, name, value)

    company = {"torch": torch, "nn": torch.nn, "F": functional, "cast": lambda _, x: x, "RotaryEmbedding": Base}
    company |= {"DEVICE": "cpu", "logger": logging.getLogger("xtuner")}
    sys.modules["xtuner.v1.model.base"] = types.ModuleType("xtuner.v1.model.base")
    sys.modules["xtuner.v1.model.base"].TransformerConfig = object
    for parent in ("xtuner", "xtuner.v1", "xtuner.v1.model"):
        sys.modules[parent] = types.ModuleType(parent)
    _, cls = bare(path, "_compute_fope_parameters", "FourierEmbedding", **company)
    layer, x = cls(config), torch.tensor(short(2, 1, 5, 16), dtype=torch.float32).expand(2, 2, 5, 16)
    cos, sin = layer(torch.zeros(2, 5, 16), torch.arange(5).expand(2, 5))
    first, second = x.chunk(2, -1)
    y = x * cos + torch.cat([-second, first], -1) * sin
    yield {"name": "Intern-S1-Pro", "length": 40, "base": 100.0, **_rotation(layer, x.double().numpy(), y)}


def selective(path):
    """What the class makes of the increments of phases, which stand here for what it computes of tokens."""

    class Same(torch.nn.Module):
        """In place of the short convolution."""

        def __init__(self, **_):
            super().__init__()

        def forward(self, x, **_):
            return x, None

    company = {
        "torch": torch,
        "nn": torch.nn,
        "F": functional,
        "rearrange": einops.rearrange,
        "Literal": typing.Literal,
    }
    company |= {"ShortConvolution": Same, "l2_norm": lambda x: functional.normalize(x, dim=-1)}
    *_, cls = bare(path, "rotary_temperature", "ChunkedLinear", "SelectiveRoPE", **company)
    torch.manual_seed(3)
    heads, dim, seq = 2, 8, 6
    layer = cls(head_k_dim=dim, model_dim=16, num_heads=heads, temp_theta=100.0, phi_parametrization="low-rank")
    phases = short(1, seq, heads, dim // 2)
    del layer.phi_proj
    layer.phi_proj = lambda _: torch.tensor(phases.reshape(1, seq, -1), dtype=torch.float32)
    q, k = torch.tensor(short(2, 1, seq, heads, dim), dtype=torch.float32)
    turned = layer(q, k, torch.ones(1, seq, 16))[:2]
    arrays = {"phases": phases, "query": q.double().numpy(), "key": k.double().numpy()}
    arrays = {name: x.tolist() for name, x in arrays.items()} | dict(
        zip(("query_turned", "key_turned"), map(numbers, turned), strict=True)
    )
    yield {"name": "Selective RoPE", "base": 100.0, **arrays}


def drope(path):
    company = {"nn": torch.nn, "torch": torch, "inspect": inspect, "logger": logging.getLogger("drope")}
    (nope,) = bare(path, "nope", **company, Type=type, Any=typing.Any)
    config = transformers.LlamaConfig(hidden_size=8, num_attention_heads=2, num_key_value_heads=1, head_dim=4)
    config._attn_implementation = "eager"
    torch.manual_seed(4)
    source = LlamaAttention(config, 0).eval()
    layer = nope(LlamaAttention).from_source(source, config).eval()
    x = torch.tensor(short(1, 5, 8), dtype=torch.float32)
    mask = torch.full((5, 5), -math.inf).triu(1)[None, None]
    angles = torch.arange(5.0)[None, :, None] * torch.tensor([1.0, 0.01, 1.0, 0.01])
    y, _ = layer(x, position_embeddings=(angles.cos(), angles.sin()), attention_mask=mask)
    with_rope, _ = source(x, position_embeddings=(angles.cos(), angles.sin()), attention_mask=mask)
    assert (y - with_rope).abs().max() > 0.01
    weights = {name.removesuffix(".weight"): numbers(w.T) for name, w in layer.state_dict().items()}
    yield {"name": "DroPE", "x": x.double().numpy().tolist(), "output": numbers(y), **weights}


def write(name, about, sources, cases):
    versions = {"jax": jax.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    head = {"about": about, "command": COMMAND, "versions": versions, "sources": {key: SOURCES[key] for key in sources}}
    lines = [f' "{key}": {json.dumps(value)}' for key, value in head.items()]
    lines.append(' "cases": [\n  ' + ",\n  ".join(map(json.dumps, cases)) + "\n ]")
    path = Path(__file__).parents[2] / "oracles" / "recorded" / name
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def record(prope_file, fope_file, xtuner_file, selective_file, drope_file):
    about = (
        "Attention between the patches of two images by the authors' code in float64: cameras and patches, row by row."
    )
    write("cameras.json", about, ["prope"], [*cameras(prope_file)])
    cases = [*fope(fope_file), *xtuner(xtuner_file), *selective(selective_file), *drope(drope_file)]
    about = "Queries and keys turned, and attention, as the code of those who proposed an encoding or trained a model with it does."
    write("authors.json", about, ["fope", "xtuner", "selective_rope", "drope"], cases)


if __name__ == "__main__":
    record(*sys.argv[1:])
