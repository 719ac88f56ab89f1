"""Attention with a bias as docs/attention_models.md has it for each model: the code of its tables, run on recorded inputs."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posenc_jax as pe
from helpers import pages

PAGE, TABLES = "docs/attention_models.md", "docs/offset_tables.md"
ROWS = {re.sub(r" with .*|\[|\].*", "", row[0]): row[1:] for row in pages.rows(PAGE, "model | its bias")}
CHECKPOINTS = {
    re.sub(r"\[|\].*", "", model): pages.code_in(code) for model, _, code in pages.rows(TABLES, "model | its table")
}


def names_of(row: str, case: dict[str, Any]) -> dict[str, Any]:
    """What the code of a row reads: the config's keys, the checkpoint's table, the coordinates."""
    names: dict[str, Any] = {"pe": pe, "jax": jax, "jnp": jnp, "np": np} | case
    names |= {name: jnp.array(case[name], jnp.float32) for name in ("table", "logit_scale") if name in case}
    for page, name in ((PAGE, "mpt_slopes"), (PAGE, "falcon_alibi"), (TABLES, "continuous_table")):
        names = pages.run(pages.definition(page, name), names)
    if "window" not in case:
        return names
    window = tuple(case["window"])
    names["grid"] = grid = pe.grid_positions(window)
    names["tokens"] = jnp.pad(grid, ((1, 0), (0, 0)), constant_values=-1)
    names["coarse"] = 2 * pe.grid_positions(tuple(case.get("coarse", (1, 1))))
    names["regions"] = jnp.array(case.get("regions", 0))
    if "mlp" in case:
        mlp = (np.float32(x) for x in case["mlp"])
        return names | {"table": names["continuous_table"](window, *mlp, pretrained=tuple(case["pretrained"]))}
    code, *prefix = CHECKPOINTS[row.partition(",")[0]]
    names |= {"t": jnp.array(case["t"], jnp.float32), "w1": window[0], "w2": window[-1]}
    given = names | {"table": eval(code, names)}
    return given | (eval(f"dict({prefix[0]})", names) if row == "BEiT" else {})


def options_of(row: str, case: dict[str, Any]) -> dict[str, Any]:
    """The options that the page gives for a row."""
    cell = ROWS[row][-1]
    code = [x for x in pages.code_in(ROWS["Swin"][-1]) if cell.startswith("as Swin")] + pages.code_in(cell)
    return eval(f"dict({', '.join(x for x in code if re.match(r'[a-z_]+=', x))})", names_of(row, case))


def rounded(case: dict[str, Any]) -> dict[str, Any]:
    """The options by which the page repeats Falcon's rounding."""
    (code,) = re.findall("`(bias=lambda i, j: falcon_alibi[^`]*)`", pages.text_of(PAGE))
    return eval(f"dict({code})", names_of("Falcon", case))


def prepared(row: str, case: dict[str, Any]) -> list[np.ndarray]:
    """Queries, keys and values, and what a model does with them before they meet."""
    x = [np.array(case[name], np.float32) for name in ("query", "key", "value")]
    if case.get("clip_qkv"):
        x = [np.clip(y, -case["clip_qkv"], case["clip_qkv"]) for y in x]
    if row == "Swin V2":
        x[:2] = (y / np.linalg.norm(y, axis=-1, keepdims=True) for y in x[:2])
    return [np.concatenate([y] * (case.get("length", len(y)) // len(y))) for y in x]


def attended(row: str, case: dict[str, Any], **changes: Any) -> np.ndarray:
    """The output for the queries that the case keeps."""
    attend = jax.jit(lambda q, k, v: pe.attention(q, k, v, **options_of(row, case) | changes))
    return np.asarray(attend(*prepared(row, case)))[-len(case["output"]) :]
