"""Misspelled keys: near a key that is read, and known to no model."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

# What people and other programs write for a key whose name is not near.
_OTHER_NAMES = {
    **dict.fromkeys(("base", "freq_base", "theta"), "rope_theta"),
    **dict.fromkeys(("freq_scale", "scaling"), "rope_scaling"),
}
# Keys that are near another one and known all the same: to a config class of transformers 5.23.0 or 5.24.0, or in a
# published file. `nox -s parity` finds those that are missing here.
KNOWN = set(
    """
    H_cycles L_bp_cycles L_cycles attention_window block_types channels compress_rates global_rope_theta in_channels
    index_head_dim indexer_head_dim indexer_n_heads layer_type local_rope_theta max_2d_position_embeddings
    moe_layer_interval mtp_layer_types no_rope_layer_interval partial_rotary_factor partial_rotary_factors
    position_embeddings_type q_head_dim qk_channels qk_head_dim qk_nope_head_dim qk_rope_head_dim rope_interleave
    sliding_windows swa_qk_rope_head_dim use_cla use_mem_rope use_rope v_channels v_head_dim
    """.split()
)
# An error says that one of these is missing, or no spectrum depends on it.
_SIZES = set(
    """
    alibi_bias_max compression_ratio d_model decoder_num_attention_heads decoder_num_hidden_layers group_norm_size
    hidden_size linear_silu model_type n_embd n_head n_heads n_layer n_layers num_attention_heads num_hidden_layers
    num_key_value_heads num_kv_heads_for_linear_attn num_layers num_nextn_predict_layers patch_size q_head_dim
    swa_num_attention_heads swa_num_key_value_heads swa_v_head_dim transformers_version use_position_ids
    """.split()
)


def meant(key: str, read: Collection[str]) -> str:
    """The keys that are read, with "or" between them, that `key` may be a misspelling of; empty if there is none."""
    if key in read or key.startswith("_"):  # transformers 4 wrote some private attributes
        return ""
    names = sorted(name for name in read if name not in _SIZES)
    other = _OTHER_NAMES.get(key.lower())
    same = [name for name in names if name == other or _folded(name) == _folded(key)]
    near = ([] if key in KNOWN else [name for name in names if _near(key, name, edits)] for edits in (1, 2))
    return " or ".join(same or next(filter(None, near), []))


@lru_cache(maxsize=4096)
def _folded(key: str) -> str:
    """A key without case, separators and plurals."""
    return _plain(re.sub("s(?=[^a-z]|$)", "", key.lower()))


def _plain(key: str) -> str:
    """A key without case and separators."""
    return re.sub("[^a-z0-9]", "", key.lower())


@lru_cache(maxsize=65536)
def _near(key: str, name: str, edits: int) -> bool:
    """Whether two keys are so many letters apart; two are too many for a short one."""
    forms = [(form(key), form(name)) for form in (_folded, _plain)]
    return any(min(len(a), len(b)) > 6 * (edits - 1) and _within(a, b, edits) for a, b in forms)


def _within(a: str, b: str, edits: int) -> bool:
    """Whether so many insertions, deletions, substitutions and transpositions make `b` of `a`."""
    if abs(len(a) - len(b)) > edits:
        return False
    if a == b or not edits:
        return a == b
    i = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[i:], b[i:]
    steps = [(a[1:], b), (a, b[1:]), (a[1:], b[1:])]
    if a[:2] == b[1::-1]:
        steps.append((a[2:], b[2:]))
    return any(_within(x, y, edits - 1) for x, y in steps)
