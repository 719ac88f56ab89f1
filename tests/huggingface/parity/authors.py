"""Position encodings by their authors' own code, of which single classes and functions are run.

`record.py prope=FILE fope=FILE xtuner=FILE selective_rope=FILE kerple=FILE fire=FILE sandwich=FILE` names files
of the commits that cameras.json, authors.json and biases.json name; what no file is named for stays as it is recorded.
Only computed values are kept, no code.
"""

import ast
import functools
import importlib.util
import math
import sys
import types
import typing
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import torch
import transformers
from embeddings import modeling
from torch.nn import functional
from vectors import floats

FILES = {}  # paths by source, from the command line


def bare(source, *names, **company):
    """Classes and functions of a source's file, without the rest of the file; `company` are the names that they use."""
    tree = ast.parse(Path(FILES[source]).read_text(encoding="utf-8"))
    nodes = [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name in names]
    for node in nodes:
        node.decorator_list = []
    company |= {"torch": torch, "nn": torch.nn, "F": functional, "math": math}
    exec(compile(ast.Module(nodes, []), FILES[source], "exec"), company)
    return [company[name] for name in names]


def authors(case):
    """The values of a case of authors.json or cameras.json, by the function for its source."""
    source = {
        "PRoPE": prope,
        "GTA": prope,
        "FoPE's authors": fope,
        "Intern-S1-Pro": xtuner,
        "Selective RoPE": selective_rope,
    }[case["name"]]
    return source(case) if source.__name__ in FILES else {}


cameras = authors


def prope(case):
    """Attention between the patches of two images, in float64."""
    with jax.enable_x64(True):
        spec = importlib.util.spec_from_file_location("prope_of_authors", FILES["prope"])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        given = [np.array(case[name])[None] for name in ("query", "key", "value")]
        arrays = {name: case[name] and np.array(case[name])[None] for name in ("viewmats", "Ks")}
        where = {name: case[name] for name in ("patches_x", "patches_y", "image_width", "image_height")}
        out = module.prope_dot_product_attention(*given, **arrays, **where)
        assert out.dtype == np.float64
    return {"output": out[0]}


class Settings(types.SimpleNamespace):
    """A config of which all other settings are off."""

    def __getattr__(self, name):
        return False


_ONES = "rope_init_upper_freq rope_floor_freq_ratio rope_upper_freq_ratio"
_TRUE = """
    rope_full_precision rope_clamp_floor_freq rope_clamp_floor_to_zero rope_clamp_upper_to_zero
    fourier fourier_separate_basis fourier_separate_head fourier_ignore_zero
"""
FOPE = dict(d_model=32, n_heads=2, rope_theta=100, init_device="cpu", rope_init_distribution="exponential")
FOPE |= dict(rope_zero_freq_ratio=-1.0, rope_init_floor_freq=0.0, rope_clamp_to_linear_mode="ceil")
FOPE |= dict(fourier_dim=0, fourier_init="eye_xavier_norm", fourier_init_norm_gain=0.3)
FOPE |= dict.fromkeys(_ONES.split(), 1.0) | dict.fromkeys(_TRUE.split(), True)


def fope(case):
    """Heads of 8 pairs, with random coefficients; pairs with less than one cycle within the length are constants."""
    company = dict(_non_meta_init_device=lambda config: torch.device("cpu"), ModelConfig=None, BufferCache=dict)
    company |= dict(Optional=typing.Optional, Tuple=tuple)
    _, cls = bare("fope", "RotaryEmbedding", "FourierEmbedding", **company)
    torch.manual_seed(case["length"])
    layer = cls(Settings(**FOPE, max_sequence_length=case["length"]), {})
    x = floats(case["x"])
    return {"cosines": layer.cos_coef, "sines": layer.sin_coef, "rotated": layer(x, x.shape[2])}


def xtuner(case):
    """FoPE as Intern-S1-Pro was trained: each head of the keys has as many coefficients as pairs."""
    x = floats(case["x"])
    rope = types.SimpleNamespace(num_inv_freq=None, fope_sep_head=True, fope_init_factor=0.5)
    sizes = dict(head_dim=x.shape[-1], num_key_value_heads=x.shape[1], max_position_embeddings=case["length"])

    class Base(torch.nn.Module):
        """Stands for the class that reads a config: a spectrum and no scaling."""

        def __init__(self, config, device):
            super().__init__()
            self.config, self.rope_type, self.attention_scaling = config, "default", 1.0
            inverse = case["base"] ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
            self.register_buffer("inv_freq", inverse)

    company = dict(cast=lambda _, x: x, RotaryEmbedding=Base, DEVICE="cpu", logger=mock.Mock())
    _, cls = bare("xtuner", "_compute_fope_parameters", "FourierEmbedding", **company)
    with mock.patch.dict(sys.modules, {"xtuner.v1.model.base": mock.Mock()}):
        layer = cls(types.SimpleNamespace(rope_scaling_cfg=rope, **sizes))
    batch, _, seq, _ = x.shape
    cos, sin = layer(x[:, 0], torch.arange(seq).expand(batch, seq))
    first, second = x.chunk(2, -1)
    rotated = x * cos + torch.cat([-second, first], -1) * sin
    return {"cosines": layer.cos_coef, "sines": layer.sin_coef, "rotated": rotated}


def selective_rope(case):
    """Queries and keys after rotation by given increments of phases, which the class would compute from tokens."""
    import einops

    company = dict(rearrange=einops.rearrange, Literal=typing.Literal)
    company |= dict(l2_norm=lambda x: functional.normalize(x, dim=-1))
    company |= dict(ShortConvolution=lambda **_: lambda x, **_: (x, None))  # does nothing
    *_, cls = bare("selective_rope", "rotary_temperature", "ChunkedLinear", "SelectiveRoPE", **company)
    q, k, phases = (floats(case[name]) for name in ("query", "key", "phases"))
    _, seq, heads, dim = q.shape
    sizes = dict(head_k_dim=dim, model_dim=heads * dim, num_heads=heads)
    layer = cls(**sizes, temp_theta=case["base"], phi_parametrization="low-rank")
    del layer.phi_proj
    layer.phi_proj = lambda _: phases.reshape(1, seq, -1)
    query, key = layer(q, k, torch.ones(1, seq, heads * dim))[:2]
    return {"query_turned": query, "key_turned": key}


# Biases: of transformers, and of the papers' code


def biases(values):
    """The lists of biases.json; a list whose source has no file is left out."""
    computed, sources = {"alibi": alibi, "buckets": buckets, "t5": t5}, {"fire": fire, "sandwich": sandwich}
    sources |= {f"kerple_{kind}": functools.partial(kerple, kind) for kind in ("log", "power")}
    computed |= {name: compute for name, compute in sources.items() if name.partition("_")[0] in FILES}
    return {name: [case | compute(case) for case in values[name]] for name, compute in computed.items()}


def alibi(case):
    """The biases of two offsets in BLOOM and in MPT."""
    bloom = modeling("bloom").build_alibi_tensor(torch.ones(1, 9), case["heads"], torch.float32)
    mpt = modeling("mpt").build_mpt_alibi_tensor(case["heads"], 9)
    return {"bloom": bloom[:, 0, [1, 8]], "mpt": mpt[:, 0, [0, 7]]}


def buckets(case):
    """Where the bucket changes as the distance grows to 100,000, for keys before and after the query."""
    runs = {}
    for name, sign in (("before", -1), ("after", 1)):
        sizes = case["bidirectional"], case["buckets"], case["max_distance"]
        found = modeling("t5").T5Attention._relative_position_bucket(sign * torch.arange(100_001), *sizes).numpy()
        runs[name] = [[int(d), int(found[d])] for d in np.flatnonzero(np.diff(found, prepend=-1))]
    return runs


def t5(case):
    decoder = not case["bidirectional"]
    config = transformers.T5Config(num_heads=len(case["table"][0]), d_model=12, d_kv=4, is_decoder=decoder)
    layer = modeling("t5").T5Attention(config, has_relative_attention_bias=True)
    layer.relative_attention_bias.weight.data = floats(case["table"])
    return {"bias": layer.compute_bias(40, 300)[0][:, case["queries"]][:, :, case["keys"]]}


def kerple(kind, case):
    parallel = dict(get_model_parallel_world_size=lambda: 1, get_model_parallel_rank=lambda: 0)
    (cls,) = bare("kerple", f"ParallelKerple{kind.title()}", Parameter=torch.nn.Parameter, **parallel)
    heads, length = len(case["a"]), max(case["queries"]) + 1
    arguments = types.SimpleNamespace(num_attention_heads=heads, pos_emb="kerple_ap_", params_dtype=torch.float32)
    with mock.patch.object(torch.cuda, "current_device", lambda: "cpu"):
        layer = cls(arguments)
        for parameter, name in ((layer.bias_a, "a"), (layer.bias_p, "p")):
            parameter.data = floats(case[name]).reshape(parameter.shape)
        bias = layer(torch.zeros(1, heads, length, length))[0]
    return {"bias": bias[:, case["queries"]]}


def fire(case):
    w1, b1, w2, b2 = map(floats, case["mlp"])
    (cls,) = bare("fire", "FIRE")
    layer = cls(num_heads=len(b2), init_L=case["threshold"]).eval()
    for parameter, value in zip(layer.mlp.parameters(), (w1[:, None], b1, w2.T, b2), strict=True):
        parameter.data = value
    layer.c.data = floats(case["c"])
    return {"bias": layer(case["length"], "cpu")[0][:, case["queries"]]}


def sandwich(case):
    """The bias of Sandwich, in float64."""

    def build_relative_position(n, full):
        return torch.arange(n)[:, None] - torch.arange(n)

    (cls,) = bare("sandwich", "SandwichRelativePositionEmbedding", build_relative_position=build_relative_position)
    length = max(case["queries"]) + 1
    with mock.patch.object(torch.cuda, "current_device", lambda: "cpu"):
        torch.set_default_dtype(torch.float64)
        bias = cls(True, case["heads"], None, case["width"], length)(length, length)
        torch.set_default_dtype(torch.float32)
    return {"bias": bias.reshape(case["heads"], length, length)[:, case["queries"]]}
