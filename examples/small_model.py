"""Trains a small Llama on the source of Python's standard library, 2 minutes, and writes a Hugging Face folder.

`python examples/generate.py` runs it where it is given no folder; its docstring says what to install.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from checkpoint import names_of
from decoder import Decoder, settings_of
from flax import nnx
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm

CONFIG = {
    "model_type": "llama",
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "max_position_embeddings": 128,
}
LENGTH, BATCH, STEPS, RATE = 128, 8, 400, 3e-3


def folder(path: Path, steps: int = STEPS) -> Path:
    """The folder, made unless it is there."""
    if (path / "model.safetensors").exists():
        return path
    text = read_text()
    tokenizer = train_tokenizer(text)
    tokens = np.array(tokenizer.encode(text).ids, np.int32)
    model = train(tokens, steps)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps(CONFIG, indent=2), encoding="utf-8")
    save_file(tensors_of(model), path / "model.safetensors")
    return path


def read_text() -> str:
    """The source of some modules, the same ones in the same order."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in library.glob("*.py") if path.stem in sys.stdlib_module_names)
    if not files:
        raise FileNotFoundError(f"this Python has no source code of its standard library in {library}")
    return "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)


def train_tokenizer(text: str) -> Tokenizer:
    """Bytes, and the pairs of tokens that are most frequent."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=CONFIG["vocab_size"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def train(tokens: np.ndarray, steps: int) -> Decoder:
    """The decoder after so many steps on random windows of the text."""
    model = Decoder(settings_of(CONFIG), rngs=nnx.Rngs(0))
    schedule = optax.warmup_cosine_decay_schedule(0, RATE, steps // 20 + 1, steps)
    chain = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.98))
    optimizer = nnx.Optimizer(model, chain, wrt=nnx.Param)
    positions = jnp.tile(jnp.arange(LENGTH, dtype=jnp.int32), (BATCH, 1))

    @nnx.jit(donate_argnums=(0, 1))
    def update(model: Decoder, optimizer: nnx.Optimizer, windows: jax.Array) -> jax.Array:
        def loss(model: Decoder) -> jax.Array:
            logits = model.logits(model(windows[:, :-1], positions)[0])
            return optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]).mean()

        cost, gradient = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradient)
        return cost

    draw = np.random.default_rng(0)
    with tqdm(range(steps), desc="training a small model", unit="step", leave=False, mininterval=1) as bar:
        for _ in bar:
            starts = draw.integers(0, len(tokens) - LENGTH, (BATCH, 1))
            cost = update(model, optimizer, tokens[starts + np.arange(LENGTH + 1)])
            bar.set_postfix(loss=f"{float(cost):.2f}", refresh=False)
    print(f"trained {steps} steps on {len(tokens):,} tokens, loss {float(cost):.2f}", file=sys.stderr)
    return model


def tensors_of(model: Decoder) -> dict[str, np.ndarray]:
    """The weights by the names of Llama's files."""
    result = {}
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        value, names = np.asarray(variable[...]), names_of(model.settings, path)
        for name, x in zip(names, value if path[0] == "layers" else [value], strict=True):
            result[f"model.{name}"] = np.ascontiguousarray(x.T if path[-1] == "kernel" else x)
    return result
