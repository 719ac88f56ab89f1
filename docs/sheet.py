"""The tables of "RoPE on one page": what bases reach, and what published models use, read from their configs."""

import json
import pathlib
from typing import Any

import numpy as np

import posenc_jax as pe
from posenc_jax import hf
from posenc_jax.hf._config import parse_text_config

CONFIGS = pathlib.Path(__file__).parents[1] / "tests" / "oracles" / "recorded" / "hf_published.json"
MODELS = {
    "Pythia 410M": "pythia-410m",
    "GPT-J 6B": "ipex-gptj",
    "Llama 2 7B": "llama-2-7b-hf",
    "Llama 3.1 70B": "meta-llama-3.1-70b",
    "Mistral Nemo": "mistral-nemo-instruct-2407",
    "Qwen 3 8B": "qwen3-8b",
    "Gemma 3 27B": "gemma-3-27b",
    "SmolLM3 3B": "smollm3-3b",
    "OLMo 3.1 32B": "olmo-3.1-32b-instruct",
    "gpt-oss 120B": "gpt-oss-120b",
    "DeepSeek-R1": "deepseek-r1",
    "Kimi K2.6": "kimi-k2.6-nvfp4",
}
BASES = 10_000, 500_000, 1_000_000, 10_000_000
LENGTHS = 4096, 32_768, 131_072
SCALINGS = {"yarn": "YaRN", "llama3": "Llama 3", "linear": "linear"}


def bases() -> str:
    """The slowest wavelength of each base, and how many pairs complete a cycle within a length; a head of 128."""
    rows = [f"| base $b$ | slowest pair repeats after | {' | '.join(f'complete a cycle in {n:,}' for n in LENGTHS)} |"]
    rows.append("| ---: | ---: |" + " ---: |" * len(LENGTHS))
    for base in BASES:
        wavelengths = pe.geometric(128, base).wavelengths
        counts = (f"{(wavelengths <= n).sum()} of 64" for n in LENGTHS)
        rows.append(f"| {base:,} | {wavelengths[-1]:,.0f} | {' | '.join(counts)} |")
    return "\n".join(rows)


def base(f: pe.Frequencies) -> int:
    """The base of a spectrum whose first two pairs keep their ratio, as under every scaling here."""
    fast, slower = f.angular[:2]
    return int(float(f"{(fast / slower) ** f.num_pairs:.4g}"))


def model(name: str, config: dict[str, Any]) -> str:
    """A row: the plan of a config, and the scaling by the name in the config."""
    plan, text = hf.rotary_from_config(config), parse_text_config(config)[0]
    rotating = [layer for layer in plan.layers if layer.frequencies.dim]
    settings = text.get("rope_scaling") or text.get("rope_parameters") or {}
    rope_type = settings.get("rope_type") or settings.get("type")
    scaled = [
        f
        for f in (layer.frequencies for layer in rotating)
        if not np.allclose(f.angular, pe.geometric(f.dim, base(f)).angular)
    ]
    some = f" in {len(scaled)} of {len(rotating)} layers" if len(scaled) < len(rotating) else ""
    widths = {f"{layer.frequencies.dim} of {layer.head_dim}" for layer in rotating}
    layers = "all" if len(rotating) == len(plan.layers) else f"{len(rotating)} of {len(plan.layers)}"
    cells = (
        " and ".join(f"{b:,}" for b in sorted({base(layer.frequencies) for layer in rotating})),
        plan.layout,
        ", ".join(sorted(widths)),
        layers,
        f"{SCALINGS[rope_type]}, $s = {settings['factor']:g}${some}" if rope_type in SCALINGS else "–",
    )
    return f"| {name} | {' | '.join(cells)} |"


def models() -> str:
    """What published models use."""
    cases = json.loads(CONFIGS.read_text(encoding="utf-8"))["cases"]
    configs = {case["name"]: case["config"] for case in cases}
    header = [
        "| model | base $b$ | layout | features that turn | layers | scaling |",
        "| --- | ---: | --- | --- | --- | --- |",
    ]
    return "\n".join(header + [model(name, configs[file]) for name, file in MODELS.items()])


def texts() -> dict[str, str]:
    """Both tables, by the names of the files that the page includes."""
    return {"sheet_bases.md": bases() + "\n", "sheet_models.md": models() + "\n"}
