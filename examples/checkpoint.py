"""Reads the weights of a Hugging Face folder into a `decoder.Decoder`, one tensor after the other, onto a mesh.

To be copied with `decoder.py`, or imported from this folder. It needs safetensors (`pip install --group examples`).

What does not fit is an error that names it: a folder without config.json, another family, a file that is missing or cut
short, a tensor that is missing or has another shape, and one that the model would not use.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from decoder import Decoder, Settings, settings_of
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from safetensors import SafetensorError, safe_open

SPLIT_OUTPUTS = "q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj"  # over the devices
SPLIT_INPUTS = "o_proj", "down_proj"
UNUSED = "rotary_emb.inv_freq", "attention.bias", "attention.masked_bias"  # in older files
HEADS = "lm_head.weight", "embed_out.weight", "language_model.lm_head.weight"  # all names of one tensor


def load(
    folder: Path,
    dtype: Any = jnp.float32,
    length: int | None = None,
    mesh: Mesh | None = None,
    implementation: str | None = None,
) -> Decoder:
    """The decoder of a folder, its weights in `dtype` and its norms in float32.

    Rotations that depend on the length of the text are those for `length`. `implementation` is that of `pe.attention`;
    "mosaic_gpu" needs weights of 16 bits and one device.
    """
    s = read_settings(folder, dtype, length, implementation)
    tensors = Tensors(folder, s)
    graph, state = nnx.split(nnx.eval_shape(lambda: Decoder(s, rngs=nnx.Rngs(0))))
    state = dict(nnx.to_flat_state(state))
    tensors.check([name for path in state for name in names_of(s, path)])
    for path, variable in state.items():
        stacked = path[0] == "layers"
        parts = [tensors.read(name, path, variable.shape[stacked:]) for name in names_of(s, path)]
        array = (np.stack(parts) if stacked else parts[0]).astype(variable.dtype)
        state[path] = variable.replace(put(array, mesh or mesh_of(1, 1, 1), axes_of(path, array.ndim)))
    return nnx.merge(graph, nnx.from_flat_state(state))


def read_settings(
    folder: Path, dtype: Any = jnp.float32, length: int | None = None, implementation: str | None = None
) -> Settings:
    """What `decoder.settings_of` reads from the folder's config."""
    path = folder / "config.json"
    config = read_json(path)
    try:
        return settings_of(config, dtype, length, implementation)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content


def names_of(s: Settings, path: Sequence[Any]) -> list[str]:
    """The tensors of a variable, without the prefix of the file: one for each period, if it has those of all."""
    *modules, leaf = path
    layers: list[Any] = [None]
    if path[0] in ("layers", "rest"):
        periods, place = len(s.windows) // s.period, path[1]
        layers = [n * s.period + place for n in (range(periods) if path[0] == "layers" else [periods])]
        modules = modules[2:]
    roles = s.family.norms._asdict() | s.family.names
    name = ".".join([*(roles.get(m, m) for m in modules), "bias" if leaf == "bias" else "weight"])
    return [name if layer is None else f"layers.{layer}.{name}" for layer in layers]


class Tensors:
    """The tensors of a folder, in one file or in the files of an index, read when asked for."""

    def __init__(self, folder: Path, s: Settings) -> None:
        self.folder, self.settings, self.files = folder, s, {}
        index = folder / "model.safetensors.index.json"
        names = ["model.safetensors"]
        if index.exists():
            where = read_json(index).get("weight_map")
            if not isinstance(where, dict):
                raise ValueError(f"{index} has no weight_map")
            for name in where.values():  # a name with a folder in it could lead out of this one
                if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
                    raise ValueError(f"{index}: weight_map must name files beside it, got {name!r}")
            names = sorted(set(where.values()))
        for path in (folder / name for name in names):
            if not path.exists():
                raise FileNotFoundError(f"{path} is missing" + f", which {index.name} names" * index.exists())
            try:
                file = safe_open(path, framework="numpy")
            except SafetensorError as error:
                raise ValueError(f"{path} is cut short or not a safetensors file: {error}") from None
            self.files |= dict.fromkeys(file.keys(), file)
        embeddings = f"{s.family.names.get('embed_tokens', 'embed_tokens')}.weight"
        self.embeddings = next((n for n in self.files if n.endswith(embeddings)), f"model.{embeddings}")
        self.prefix = self.embeddings.removesuffix(embeddings)

    def full(self, name: str) -> str:
        """The name in the file."""
        if name == HEADS[0]:
            return next((n for n in HEADS if n in self.files), name)
        return self.prefix + name

    def check(self, names: Sequence[str]) -> None:
        """Raises unless there are tensors of all these names, and no other that belong to the model."""
        wanted = {self.full(name) for name in names}
        known = {n for n in self.files if n.startswith(self.prefix) and not n.endswith(UNUSED)}
        for what, found in (
            ("lacks", wanted - set(self.files)),
            ("has, beside what the config asks for,", known - wanted),
        ):
            if found:
                more = f" and {len(found) - 3} more" if len(found) > 3 else ""
                raise ValueError(f"{self.folder} {what} {', '.join(sorted(found)[:3])}{more}")
        head = self.full(HEADS[0])
        if self.settings.tied and head in self.files:
            if not np.array_equal(*(self.files[n].get_tensor(n) for n in (head, self.embeddings))):
                raise ValueError(f"{self.folder}: tie_word_embeddings, but {head} is not {self.embeddings}")

    def read(self, name: str, path: Sequence[Any], shape: Sequence[int]) -> np.ndarray:
        """A tensor as the variable at `path` has it: kernels are (inputs, outputs)."""
        name, fused = self.full(name), "query_key_value" in name
        kept = self.files[name].get_slice(name)
        want = shape[::-1] if path[-1] == "kernel" else shape
        want = (3 * want[0], *want[1:]) if fused else tuple(want)
        if (shape := tuple(kept.get_shape())) != want:
            raise ValueError(f"{self.folder}: {name} has shape {shape}, and the config asks for {want}")
        if kept.get_dtype() not in ("F64", "F32", "F16", "BF16"):
            raise ValueError(f"{self.folder}: {name} is {kept.get_dtype()}: quantized weights are not read")
        x = self.files[name].get_tensor(name)
        if fused:  # queries, keys and values of a head follow each other
            part = ("q_proj", "k_proj", "v_proj").index(path[-2])
            x = x.reshape(self.settings.heads, 3, -1, *x.shape[1:])[:, part].reshape(-1, *x.shape[1:])
        if path[-1] == "scale" and self.settings.family.unit_offset:
            return 1 + x.astype(np.float32)
        return x.T if path[-1] == "kernel" else x


# Devices: each has some prompts of the batch and some heads


def mesh_of(devices: int, kv_heads: int, batch: int) -> Mesh:
    """As many heads apart as devices and heads allow, the batch over what is left."""
    heads = math.gcd(devices, kv_heads)
    if len(jax.devices()) < devices:
        raise ValueError(f"{devices} devices: there are only {len(jax.devices())}")
    if batch % (devices // heads):
        rest = f"heads of keys split over {heads}, so prompts must come in multiples of {devices // heads}"
        raise ValueError(f"{devices} devices: {rest}, got {batch}")
    grid = np.array(jax.devices()[:devices]).reshape(-1, heads)
    return Mesh(grid, ("batch", "heads"), axis_types=(AxisType.Auto,) * 2)


def put(x: Any, mesh: Mesh, axes: Sequence[str | None]) -> jax.Array:
    """Puts x on the mesh, its axes split as these names say if they are multiples of that many devices."""
    fits = [name if name and size % mesh.shape[name] == 0 else None for name, size in zip(axes, x.shape, strict=False)]
    return jax.device_put(x, NamedSharding(mesh, P(*fits)))


def axes_of(path: Sequence[Any], ndim: int) -> list[str | None]:
    """How the variable at `path` is split."""
    module, kernel = path[-2], path[-1] == "kernel"
    from_end = 1 if module in SPLIT_OUTPUTS else 2 if module in SPLIT_INPUTS and kernel else 0
    return ["heads" if ndim - i == from_end else None for i in range(ndim)]


def put_cache(cache: Any, mesh: Mesh) -> Any:
    axes = {5: ("batch", None, None, "heads"), 3: ("batch",)}
    return jax.tree.map(lambda x: put(x, mesh, axes[x.ndim]), cache)
