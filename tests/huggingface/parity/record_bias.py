"""Writes tests/oracles/recorded/biases.json: the attention biases of transformers and of the papers' own code.

    nox -s parity -- --record KERPLE ARITHMETIC NEMO

The arguments are files of the commits below, of which a class is run. Nothing of them is kept but its values.
"""

import ast
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import transformers
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

SOURCES = {
    "kerple": "github.com/chijames/KERPLE 25be3d712e96a3353b374f1f8e36b97d86f97ffa, megatron/mpu/layers.py (the authors)",
    "fire": "github.com/mcleish7/arithmetic 86022a57d38c0fde46444d62e8dcbebcc0af614c, cramming/architectures/embeddings.py "
    "(after the listing in the paper's appendix)",
    "sandwich": "github.com/NVIDIA/NeMo c42ec1b87670eab1c610b69c218ea7a351dc8a18, nemo/collections/nlp/modules/common/"
    "megatron/position_embedding/sandwich_relative_position_embedding.py",
}
# heads, and everything that bounds buckets: number, largest distance, both directions
HEADS = [1, 2, 6, 8, 12, 16, 32, 71, 112]
BUCKETS = [
    (32, 128, True),
    (32, 128, False),
    (64, 128, True),
    (320, 800, True),
    (16, 1000, False),
    (20, 77, True),
    (48, 81, False),
]
LENGTH = 9


def bare(path, name, **names):
    """A class of a file, in the company of `names` alone."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    (node,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    node.decorator_list = []
    exec(compile(ast.Module([node], []), path, "exec"), names)
    return names[name]


def numbers(x):
    return np.asarray(x.detach(), np.float64).tolist()


def buckets(number, largest, bidirectional):
    """Where the bucket changes as the distance grows to 100,000, for keys before and after the query."""
    runs = {}
    for name, sign in (("before", -1), ("after", 1)):
        relative = sign * torch.arange(100_001)
        found = T5Attention._relative_position_bucket(relative, bidirectional, number, largest).numpy()
        starts = np.flatnonzero(np.diff(found, prepend=-1))
        runs[name] = [[int(d), int(found[d])] for d in starts]
    return {"buckets": number, "max_distance": largest, "bidirectional": bidirectional, **runs}


def t5(bidirectional):
    torch.manual_seed(0)
    config = transformers.T5Config(num_heads=3, d_model=12, d_kv=4, is_decoder=not bidirectional)
    layer = T5Attention(config, has_relative_attention_bias=True)
    bias = layer.compute_bias(40, 300)[0]
    picked = [0, 1, 7, 8, 9, 39, 40, 60, 130, 160, 299]
    return {
        "bidirectional": bidirectional,
        "table": numbers(layer.relative_attention_bias.weight),
        "queries": [0, 13, 39],
        "keys": picked,
        "bias": numbers(bias[:, [0, 13, 39]][:, :, picked]),
    }


def kerple(path, name):
    parallel = {"get_model_parallel_world_size": lambda: 1, "get_model_parallel_rank": lambda: 0}
    cls = bare(path, name, torch=torch, math=math, Parameter=torch.nn.Parameter, **parallel)
    torch.manual_seed(1)
    torch.cuda.current_device = lambda: "cpu"
    arguments = SimpleNamespace(num_attention_heads=4, pos_emb="kerple_ap_", params_dtype=torch.float32)
    layer = cls(arguments)
    bias = layer(torch.zeros(1, 4, 60, 60))[0]
    rows = [0, 1, 2, 31, 59]
    a, p = (numbers(x.reshape(-1)) for x in (layer.bias_a, layer.bias_p))
    return {"a": a, "p": p, "queries": rows, "bias": numbers(bias[:, rows])}


def fire(path, length, threshold):
    torch.manual_seed(2)
    layer = bare(path, "FIRE", torch=torch)(num_heads=4, init_L=threshold).eval()
    layer.c.data *= 1.7
    bias = layer(length, "cpu")[0]
    rows = [0, 1, length // 2, length - 1]
    w1, b1, w2, b2 = (p for p in layer.mlp.parameters())
    mlp = [numbers(x) for x in (w1[:, 0], b1, w2.T, b2)]
    c, threshold = layer.c.item(), (layer.L_multiplier * layer.init_L).item()
    return {
        "mlp": mlp,
        "c": c,
        "threshold": threshold,
        "length": length,
        "queries": rows,
        "bias": numbers(bias[:, rows]),
    }


def sandwich(path, heads, width):
    relative = lambda n, full: torch.arange(n)[:, None] - torch.arange(n)  # noqa: E731
    names = {"torch": torch, "build_relative_position": relative}
    layer = bare(path, "SandwichRelativePositionEmbedding", **names)(True, heads, None, width, 50)
    torch.set_default_dtype(torch.float64)
    rows = [0, 1, 49]
    bias = layer(50, 50).reshape(heads, 50, 50)[:, rows]
    torch.set_default_dtype(torch.float32)
    return {"heads": heads, "width": width, "queries": rows, "bias": numbers(bias)}


def alibi(heads):
    bloom = build_alibi_tensor(torch.ones(1, LENGTH), heads, torch.float32)[:, 0]
    mpt = build_mpt_alibi_tensor(heads, LENGTH)[:, 0]
    return {"heads": heads, "bloom": numbers(bloom[:, [1, LENGTH - 1]]), "mpt": numbers(mpt[:, [0, LENGTH - 2]])}


def record(kerple_file, fire_file, sandwich_file):
    """A line for each case."""
    about = {
        "about": "Attention biases as transformers and the papers' code compute them.",
        "command": "nox -s parity -- --record KERPLE ARITHMETIC NEMO, files of the sources",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "sources": SOURCES,
    }
    cases = {
        "alibi": [alibi(n) for n in HEADS],
        "buckets": [buckets(*b) for b in BUCKETS],
        "t5": [t5(True), t5(False)],
        "kerple_log": [kerple(kerple_file, "ParallelKerpleLog")],
        "kerple_power": [kerple(kerple_file, "ParallelKerplePower")],
        "fire": [fire(fire_file, 40, 512.0), fire(fire_file, 90, 25.0)],
        "sandwich": [sandwich(sandwich_file, 5, 16)],
    }
    lines = [json.dumps(about, indent=1)[:-2]]
    for name, items in cases.items():
        lines.append(f' "{name}": [\n' + ",\n".join(map(json.dumps, items)) + "\n ]")
    path = Path(__file__).parents[2] / "oracles" / "recorded" / "biases.json"
    path.write_text(",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record(*sys.argv[1:])
