"""Continues prompts with the model of a Hugging Face folder, or with a small one that it trains first.

    python examples/generate.py [FOLDER PROMPT ...] [--tokens N] [--temperature T] [--devices N]

FOLDER holds config.json, tokenizer.json and safetensors of a family of `decoder.py`. One prompt is streamed; several,
of any lengths, are continued together. Nothing is downloaded: without FOLDER, `small_model.py` makes a folder, which
takes two minutes on two cores. It prints the prompts with what follows. To install what it needs, in a clone:
`pip install ".[demo]" --group examples` (pip 25.1 or newer).
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from checkpoint import load, mesh_of, put, put_cache, read_json, read_settings
from decoder import EMPTY, Decoder
from flax import nnx
from jax.sharding import Mesh
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from tqdm import tqdm

import posenc_jax as pe

SMALL = Path(__file__).parents[1] / "build" / "small_model"
PROMPTS = ["def read(self, size=-1):\n"]


@nnx.jit(donate_argnums=3)
def step(model: Decoder, tokens: jax.Array, positions: jax.Array, cache: Any) -> tuple[jax.Array, Any]:
    """The logits after the last of these tokens (batch, length), and the cache with them."""
    hidden, cache = model(tokens, positions, cache)
    return model.logits(hidden[:, -1]), cache


@jax.jit
def pick(logits: jax.Array, key: jax.Array, temperature: jax.Array) -> jax.Array:
    """The likeliest token of each row, or one drawn at a temperature above 0."""
    drawn = jax.random.categorical(key, logits / jnp.where(temperature == 0, 1, temperature))
    return jnp.where(temperature == 0, jnp.argmax(logits, -1), drawn).astype(jnp.int32)


def prefill(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    length: int,
    *,
    chunk: int = 256,
    start: int = 0,
    mesh: Mesh | None = None,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> tuple[jax.Array, Any, jax.Array]:
    """Logits after each prompt, the cache, and where the next tokens stand; the first of each prompt stands at `start`.

    The cache holds `length` tokens of each row. Prompts are padded on the left to whole chunks.
    """
    for n, prompt in enumerate(prompts, 1):
        if not prompt or len(prompt) > length:
            raise ValueError(f"prompt {n} has {len(prompt)} tokens: the cache holds from 1 to {length}")
        if max(prompt) >= model.settings.vocabulary:
            raise ValueError(f"prompt {n} has token {max(prompt)} of a vocabulary of {model.settings.vocabulary}")
    if not 0 <= start <= EMPTY - length:
        raise ValueError(f"start must be from 0 to {EMPTY - length}, got {start}")
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    total = -(-lengths.max() // chunk) * chunk
    mask = np.arange(total) >= total - lengths[:, None]
    tokens = np.zeros(mask.shape, np.int32)
    tokens[mask] = np.concatenate(prompts)
    positions = np.where(mask, pe.positions_from_mask(mask) + np.int32(start), EMPTY)
    mesh = mesh or mesh_of(1, 1, 1)
    cache = put_cache(model.new_cache(len(prompts), length, chunk), mesh)
    for i in progress(range(0, total, chunk)):
        part = (put(x[:, i : i + chunk], mesh, ["batch"]) for x in (tokens, positions))
        logits, cache = step(model, *part, cache)
    return logits, cache, put(lengths + np.int32(start), mesh, ["batch"])


def continued(
    model: Decoder, prefilled: tuple[jax.Array, Any, jax.Array], count: int, temperature: float = 0, seed: int = 0
) -> Iterator[np.ndarray]:
    """Yields `count` times the next token of each row."""
    (logits, cache, positions), key = prefilled, jax.random.key(seed)
    run = nnx.cached_partial(step, model)
    for i in range(count):
        tokens = pick(logits, jax.random.fold_in(key, i), jnp.float32(temperature))
        yield np.asarray(tokens)
        if i + 1 < count:
            logits, cache = run(tokens[:, None], positions[:, None] + np.int32(i), cache)


def until(stop: set[int], steps: Iterable[np.ndarray], rows: int) -> Iterator[list[int | None]]:
    """The tokens of each row up to one that ends it, None from there on; ends when all rows have."""
    ended = [False] * rows
    for tokens in steps:
        ended = [end or int(token) in stop for end, token in zip(ended, tokens, strict=True)]
        if all(ended):
            return
        yield [None if end else int(token) for end, token in zip(ended, tokens, strict=True)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program; float32 means float32 on every device."""
    options = parse(arguments)
    if options.devices > 1:
        jax.config.update("jax_num_cpu_devices", options.devices)
    with jax.default_matmul_precision("highest" if options.dtype == "float32" else "default"):
        run(options)


def run(options: argparse.Namespace) -> None:
    """Reads the folder, continues the prompts, and says how fast."""
    folder, prompts = options.folder, options.prompts or PROMPTS
    temperature = options.temperature
    if temperature is None:  # the likeliest words of the small model repeat themselves
        temperature = 0.8 if folder is None else 0.0
    if folder is None:
        import small_model

        folder = small_model.folder(SMALL)
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"--temperature must be at least 0 and finite, got {temperature}")
    config, tokenizer = read_json(folder / "config.json"), tokenizer_of(folder)
    encoded = [tokenizer.encode(prompt).ids for prompt in prompts]
    longest = max(map(len, encoded))
    length = options.length or longest + options.tokens
    if longest + options.tokens > length:
        raise ValueError(f"a prompt of {longest} tokens and {options.tokens} more do not fit into --length {length}")
    settings = read_settings(folder, options.dtype, options.start + length)
    mesh = mesh_of(options.devices, settings.kv_heads, len(prompts))
    began = time.monotonic()
    model = load(folder, options.dtype, options.start + length, mesh)
    size = sum(x.size for x in jax.tree.leaves(nnx.state(model)))
    tell(f"{folder}: {config['model_type']}, {size / 1e6:.1f} million weights in {time.monotonic() - began:.1f} s")

    began, chunk = time.monotonic(), min(options.chunk, longest)
    bar = functools.partial(tqdm, desc="prompt", unit="chunk", leave=False, mininterval=1)
    prefilled = prefill(model, encoded, length, chunk=chunk, start=options.start, mesh=mesh, progress=bar)
    jax.block_until_ready(prefilled)
    tell(f"prompt: {rate(sum(map(len, encoded)), began)}, the time to compile included")
    stop = (config.get("text_config", {}) | config).get("eos_token_id")
    stop = set(stop if isinstance(stop, list) else [] if stop is None else [stop])
    steps = until(stop, continued(model, prefilled, options.tokens, temperature, options.seed), len(prompts))
    show(tokenizer, prompts, encoded, steps, options.tokens)


def tokenizer_of(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{path} is not a tokenizer: {error}") from None


def show(
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    encoded: Sequence[list[int]],
    steps: Iterable[list[int | None]],
    count: int,
) -> None:
    """Streams one row; of several, shows a bar and then the texts."""
    alone, texts = len(prompts) == 1, list(prompts)
    streams = [DecodeStream(ids, skip_special_tokens=True) for ids in encoded]  # a space may begin the next word
    print(prompts[0] if alone else "", end="", flush=True)
    written, began = 0, time.monotonic()
    for n, tokens in enumerate(tqdm(steps, total=count, unit="token", disable=alone, leave=False)):
        for row, token in enumerate(tokens):
            text = "" if token is None else streams[row].step(tokenizer, token) or ""
            texts[row] += text
            print(text if alone else "", end="", flush=True)
        if n <= 1:  # the first came with the prompt, and the second with its program
            written, began = 0, time.monotonic()
        else:
            written += sum(token is not None for token in tokens)
    print("" if alone else "\n\n".join(texts))
    if written:
        tell(f"answer: {rate(written, began)}")


def rate(tokens: int, began: float) -> str:
    seconds = time.monotonic() - began
    return f"{tokens} tokens in {seconds:.1f} s, {tokens / seconds:.0f} a second"


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Continue prompts with the model of a Hugging Face folder.")
    add = parser.add_argument
    add("folder", type=Path, nargs="?", help="(default: train a small model on the source of Python's library)")
    add("prompts", nargs="*", metavar="PROMPT", help=f"(default: {PROMPTS[0]!r})")
    add("--tokens", type=positive, default=64, metavar="N", help="to add to each prompt (default: 64)")
    add("--length", type=positive, metavar="N", help="tokens that the cache holds (default: as many as needed)")
    add("--chunk", type=positive, default=256, metavar="N", help="tokens of the prompts at once (default: 256)")
    add("--start", type=int, default=0, metavar="P", help="position of the first token (default: 0)")
    add("--temperature", type=float, metavar="T", help="draw tokens; 0, the default with FOLDER, takes the likeliest")
    add("--seed", type=int, default=0, metavar="N", help="of the drawing (default: 0)")
    add("--dtype", choices=["float32", "bfloat16"], default="float32", help="of weights and cache (default: float32)")
    add("--devices", type=positive, default=1, metavar="N", help="over which to split batch and heads (default: 1)")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """A type for argparse."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
