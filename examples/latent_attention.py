r"""Latent attention as in DeepSeek V2 and V3, for `decoder.py`: one small key for all heads is all that a cache keeps.

To be copied with `decoder.py`, which imports it.

A token has a latent $c$ and one rotated key $k^R$, shared by the heads. Head $h$ would expand the latent to a key
$W^K_h c$ and a value $W^V_h c$. Since

$$q_h \cdot W^K_h c = (W^{K\top}_h q_h) \cdot c, \qquad \sum_j p_j W^V_h c_j = W^V_h \sum_j p_j c_j,$$

the heads attend to $(c, k^R)$ itself: attention with one key head, whose values are the first features of its keys.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from grouped_attention import attend


class Widths(NamedTuple):
    """The sizes in a config, under its own names."""

    q_lora_rank: int | None  # None: queries are not compressed
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


class LatentAttention(nnx.Module):
    """What `decoder.Attention` is to other families; its modules have the names of the files."""

    def __init__(self, s: Any, layer: int, *, rngs: nnx.Rngs) -> None:
        self.settings, self.layer, w = s, layer, s.latent
        half = {"dtype": s.dtype, "rngs": rngs}
        linear = {"param_dtype": s.dtype, **half}
        biased = {"use_bias": s.attention_bias, **linear}
        if w.q_lora_rank:
            self.q_a_proj = nnx.Linear(s.width, w.q_lora_rank, **biased)
            self.q_a_layernorm = nnx.RMSNorm(w.q_lora_rank, epsilon=1e-6, **half)
        name, inputs = ("q_b_proj", w.q_lora_rank) if w.q_lora_rank else ("q_proj", s.width)
        setattr(self, name, nnx.Linear(inputs, s.heads * s.head_dim, use_bias=False, **linear))
        self.kv_a_proj_with_mqa = nnx.Linear(s.width, w.kv_lora_rank + w.qk_rope_head_dim, **biased)
        self.kv_a_layernorm = nnx.RMSNorm(w.kv_lora_rank, epsilon=1e-6, **half)
        expanded = s.heads * (w.qk_nope_head_dim + w.v_head_dim)
        self.kv_b_proj = nnx.Linear(w.kv_lora_rank, expanded, use_bias=False, **linear)
        self.o_proj = nnx.Linear(s.heads * w.v_head_dim, s.width, **biased)
        self.kept = 1, w.kv_lora_rank + w.qk_rope_head_dim, 0  # values are features of the keys

    def __call__(self, x: jax.Array, positions: jax.Array, cache: Any = None, **options: Any) -> tuple[jax.Array, Any]:
        """Takes x (batch, tokens, width) and its positions; returns the same shape, and the cache with its tokens."""
        s, w, heads = self.settings, self.settings.latent, (*x.shape[:2], self.settings.heads, -1)
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))) if w.q_lora_rank else self.q_proj(x)
        q, q_rope = jnp.split(q.reshape(heads), [w.qk_nope_head_dim], axis=-1)
        latent, k_rope = jnp.split(self.kv_a_proj_with_mqa(x)[:, :, None], [w.kv_lora_rank], axis=-1)
        q_rope, k_rope = (
            s.plan.rotate(z, self.layer, positions, head_axis=-2, role=role, scaled=False)
            for z, role in ((q_rope, "query"), (k_rope, "key"))
        )
        expand = self.kv_b_proj.kernel[...].reshape(w.kv_lora_rank, s.heads, -1)
        to_keys, to_values = jnp.split(expand, [w.qk_nope_head_dim], axis=-1)
        q = jnp.concatenate([jnp.einsum("bthn,rhn->bthr", q, to_keys), q_rope], axis=-1)
        k = jnp.concatenate([self.kv_a_layernorm(latent), k_rope], axis=-1)
        options |= {"scale": s.score_scale * s.plan.softmax_scale, "values_in_keys": w.kv_lora_rank}
        y, cache = attend(q, k, k[..., :0], positions, cache, **options)
        y = jnp.einsum("bthr,rhv->bthv", y, to_values)
        return self.o_proj(y.reshape(*x.shape[:2], -1)), cache
