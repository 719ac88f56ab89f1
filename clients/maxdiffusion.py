"""MaxDiffusion, from a checkout: RoPE of Flux 1 and 2, Wan, Z-Image, LTX-Video and LTX-2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import maxdiffusion  # of AI-Hypercomputer/maxdiffusion
import numpy as np
from flax.core import meta
from maxdiffusion.models import attention_flax, embeddings_flax
from maxdiffusion.models.flux.transformers import transformer_flux_flax as flux_models
from maxdiffusion.models.ltx2 import attention_ltx2, transformer_ltx2
from maxdiffusion.models.ltx_video.transformers import attention as ltx_attention
from maxdiffusion.models.ltx_video.transformers import transformer3d
from maxdiffusion.models.wan.transformers import transformer_wan
from maxdiffusion.models.z_image import transformer_z_image

from clients.harness import Far, Replaced, Timed, Trial, drawn, layer, parameters

# --8<-- [start:copy]
import posenc_jax as pe


def flux(self, ids):  # FluxPosEmbed and NNXFluxPosEmbed
    f = pe.axial(self.axes_dim, base=self.theta)
    c, s = pe.cos_sin(ids.astype(jnp.float32), f, columns="interleaved" if self.return_tuple else "pair")
    return (c, s) if self.return_tuple else jnp.stack([c, -s, s, c], axis=-1)


def wan(self, hidden_states):  # WanRotaryPosEmbed
    shape = [n // patch for n, patch in zip(hidden_states.shape[1:4], self.patch_size, strict=True)]
    side = self.attention_head_dim // 6 * 2
    f = pe.axial((self.attention_head_dim - 2 * side, side, side), base=self.theta)
    return jax.lax.complex(*pe.cos_sin(pe.grid_positions(shape), f))[None, None]


# ZImageRopeEmbedder
def z_image_init(self, theta=256.0, axes_dims=(32, 48, 48), axes_lens=(1536, 512, 512)):
    self.axes_lens, self.frequencies = tuple(axes_lens), pe.axial(axes_dims, base=theta)


def z_image(self, ids):
    return pe.cos_sin(ids, self.frequencies)


def fractions(edges, tops, dim, theta, columns="interleaved"):
    # Of π/2 · theta^(j/(n-1)) · (start + end - top) / top. Coordinates are integers:
    # in 1/240,000 second and in pixels.
    units = np.array([240_000, 1, 1])[: edges.shape[1]]
    tops = units * tops[: len(units)]
    rising = pe.geometric(dim // (2 * len(tops)) * 2, 1 / theta, endpoint=True)
    f = pe.axial([pe.linear_scaling(rising, 2 * top / np.pi) for top in tops], interleaved=True)
    f = pe.join(pe.geometric(dim - f.dim).with_angular(np.zeros(dim // 2 - f.num_pairs)), f)
    at = jnp.round(edges * units[:, None, None]).astype(jnp.int32).sum(-1).swapaxes(1, 2) - tops
    return pe.cos_sin(at if len(tops) > 1 else at[..., 0], f, columns=columns)


def ltx(self, indices_grid):  # FreqsCisPrecomputer
    edges, theta = jnp.stack([indices_grid] * 2, axis=-1), self.positional_embedding_theta
    return fractions(edges, self.positional_embedding_max_pos, self.inner_dim, theta)


def ltx2(self, coords):  # LTX2RotaryPosEmbed
    edges = coords if coords.ndim == 4 else jnp.stack([coords.swapaxes(1, 2)] * 2, axis=-1)
    tops, split = (self.base_num_frames, self.base_height, self.base_width), self.rope_type == "split"
    c = fractions(edges, tops, self.dim, self.theta, "pair" if split else "interleaved")
    by_head = (x.reshape(*x.shape[:2], self.num_attention_heads, -1).swapaxes(1, 2) for x in c)
    return tuple(by_head) if split else c


# --8<-- [end:copy]


# What diffusers computes in float64, with NumPy


def _in_float64(at, spectra):
    """The cosines and sines (..., pairs) of angles, the coordinates times the frequencies of each."""

    def host(at):
        at = np.asarray(at, np.float64)
        angles = np.concatenate([at[..., i, None] * spectrum for i, spectrum in enumerate(spectra)], axis=-1)
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    shape = jax.ShapeDtypeStruct((*at.shape[:-1], sum(map(len, spectra))), jnp.float32)
    return jax.pure_callback(host, (shape, shape), at)


def _spectra(widths, theta):
    return [float(theta) ** -(np.arange(0, width, 2) / width) for width in widths]


def _true_flux(self, ids):
    c, s = _in_float64(ids.astype(jnp.float32), _spectra(self.axes_dim, self.theta))
    if self.return_tuple:
        return jnp.repeat(c, 2, axis=-1), jnp.repeat(s, 2, axis=-1)
    return jnp.stack([c, -s, s, c], axis=-1)


def _true_wan(self, hidden_states):
    sides = [n // patch for n, patch in zip(hidden_states.shape[1:4], self.patch_size, strict=True)]
    third = self.attention_head_dim // 6 * 2
    widths = self.attention_head_dim - 2 * third, third, third
    at = np.stack(np.meshgrid(*map(np.arange, sides), indexing="ij"), -1).reshape(-1, 3)
    return jax.lax.complex(*_in_float64(jnp.asarray(at), _spectra(widths, self.theta)))[None, None]


def _true_z_image_init(self, theta=256.0, axes_dims=(32, 48, 48), axes_lens=(1536, 512, 512)):
    self.axes_lens, self.spectra = tuple(axes_lens), _spectra(axes_dims, theta)


def _true_z_image(self, ids):
    return _in_float64(ids, self.spectra)


def _true_fractions(edges, tops, dim, theta):
    """In float64, of edges (batch, axes, tokens, 2), whose seconds are whole 24ths or hundredths in all trials."""
    axes = edges.shape[1]

    def host(edges):
        edges = np.asarray(edges, np.float64)
        edges[:, 0] = np.round(edges[:, 0] * 600) / 600
        fraction = edges.mean(-1).swapaxes(1, 2) / np.array(tops[:axes], np.float64)
        rising = float(theta) ** np.linspace(0, 1, dim // (2 * axes)) * np.pi / 2
        angles = (rising[:, None] * (2 * fraction - 1)[..., None, :]).reshape(*fraction.shape[:2], -1)
        angles = np.pad(angles, ((0, 0), (0, 0), (dim // 2 - angles.shape[-1], 0)))
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    shape = jax.ShapeDtypeStruct((edges.shape[0], edges.shape[2], dim // 2), jnp.float32)
    return jax.pure_callback(host, (shape, shape), edges)


def _true_ltx(self, indices_grid):
    edges, theta = jnp.stack([indices_grid] * 2, axis=-1), self.positional_embedding_theta
    c = _true_fractions(edges, self.positional_embedding_max_pos, self.inner_dim, theta)
    return tuple(jnp.repeat(x, 2, axis=-1) for x in c)


def _true_ltx2(self, coords):
    c = _true_fractions(coords, (self.base_num_frames, self.base_height, self.base_width), self.dim, self.theta)
    if self.rope_type == "interleaved":
        return tuple(jnp.repeat(x, 2, axis=-1) for x in c)
    return tuple(jnp.moveaxis(x.reshape(*x.shape[:2], self.num_attention_heads, -1), 2, 1) for x in c)


# Every token at one place


def _at_rest(call):
    return lambda self, at: call(self, jnp.zeros_like(at))


REPLACED = [
    Replaced(embeddings_flax.FluxPosEmbed, "__call__", flux, _at_rest(flux), _true_flux),
    Replaced(embeddings_flax.NNXFluxPosEmbed, "__call__", flux, _at_rest(flux), _true_flux),
    Replaced(
        transformer_wan.WanRotaryPosEmbed, "__call__", wan, lambda self, x: jnp.ones_like(wan(self, x)), _true_wan
    ),
    Replaced(transformer_z_image.ZImageRopeEmbedder, "__init__", z_image_init, z_image_init, _true_z_image_init),
    Replaced(transformer_z_image.ZImageRopeEmbedder, "__call__", z_image, _at_rest(z_image), _true_z_image),
    Replaced(transformer3d.FreqsCisPrecomputer, "__call__", ltx, _at_rest(ltx), _true_ltx),
    Replaced(attention_ltx2.LTX2RotaryPosEmbed, "__call__", ltx2, _at_rest(ltx2), _true_ltx2),
]


def _far(x, at):
    ids = jnp.stack([at[0], jnp.zeros_like(at[0])], axis=-1)  # a model has several coordinates
    table = [each[:, :64] for each in embeddings_flax.NNXFluxPosEmbed(500_000.0, (64, 64))(ids)]
    heads = jnp.swapaxes(x, 1, 2)
    return jnp.swapaxes(attention_flax.apply_rope(heads, heads, table)[0], 1, 2)


FAR = Far(_far, layout="interleaved")
ROOT = Path(maxdiffusion.__file__).parents[2]
PACKAGE = "AI-Hypercomputer/maxdiffusion"
TESTS = [  # those of Wan ask for the very bits of PyTorch
    f"src/maxdiffusion/tests/{name}.py"
    for name in ("nnx_flux2klein_test", "ltx2/test_attention_ltx2", "z_image/z_image_module_parity_test")
]


@contextlib.contextmanager
def _without_mesh():
    """The blocks of Wan and LTX-2 constrain their sharding, which asks for a mesh."""
    before = jax.lax.with_sharding_constraint
    jax.lax.with_sharding_constraint = lambda x, *_, **__: x
    try:
        yield
    finally:
        jax.lax.with_sharding_constraint = before


def _normal(*shape):
    return jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape), jnp.float32)


def _grid(*sides):
    return np.stack(np.meshgrid(*map(np.arange, sides), indexing="ij"), -1).reshape(-1, len(sides))


def _ids(text, *sides, axes):
    """Coordinates of text and image, (2, tokens, axes): text counts on the fourth, if there is one."""
    image = np.pad(_grid(1, *sides), ((0, 0), (0, axes - 3)))
    words = np.zeros((text, axes), int)
    words[:, 3:] = np.arange(text)[:, None]
    return tuple(jnp.asarray(np.stack([each] * 2), jnp.float32) for each in (words, image))


def trials() -> Iterator[tuple[Trial, Timed | None]]:
    """Two layers of each model, and a layer of attention around Flux 1's rotation in bfloat16."""
    yield from _flux()
    yield from _wan_and_z_image()
    yield from _ltx()


def _flux():
    from flax import nnx

    big = embeddings_flax.NNXFluxPosEmbed(2000.0, (32, 32, 32, 32))
    timed = Timed(lambda ids: big(ids), (jnp.concatenate(_ids(512, 64, 64, axes=4), axis=1)[0],))
    second = flux_models.NNXFlux2KleinTransformer2DModel(
        rngs=nnx.Rngs(0), in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=32,
        num_attention_heads=4, joint_attention_dim=48, pooled_projection_dim=16, axes_dim=(8, 8, 8, 8),
    )  # fmt: skip
    call, params = parameters(second)

    def flux2(params, image, text, t, words, patches, call=call):
        given = {"timestep": t, "guidance": 3.5 * t, "img_ids": patches, "txt_ids": words, "return_dict": False}
        return call(params, image, text, pooled_projections=jnp.ones((image.shape[0], 16)), **given)[0]

    words, patches = _ids(16, 8, 8, axes=4)
    inputs = _normal(2, 64, 16), _normal(2, 16, 48), jnp.array([0.3, 0.6])
    far = words + 1_000_000, patches + 1_000_000
    yield Trial("Flux 2", flux2, params, (*inputs, words, patches), (*inputs, *far)), timed

    settings = {"in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 32, "theta": 10_000}
    settings |= {"num_attention_heads": 4, "joint_attention_dim": 48, "pooled_projection_dim": 16}
    if flux_models.FluxTransformer2DModel.theta != 1_000:  # Flux 1 has 10,000
        raise ValueError("MaxDiffusion has mended the base of Flux 1: take the sentence on it out of docs/clients.md")
    first = flux_models.FluxTransformer2DModel(**settings, axes_dims_rope=(8, 12, 12))
    words, patches = _ids(16, 8, 8, axes=3)
    pooled = _normal(2, 16)

    def flux1(params, image, text, t, pooled, words, patches):
        given = {"timestep": t, "guidance": None, "img_ids": patches, "txt_ids": words, "return_dict": False}
        return first.apply({"params": params}, image, text, pooled, **given)[0]

    inputs = (*inputs, pooled, words, patches)
    shapes = jax.eval_shape(lambda *x: first.init(jax.random.key(0), *x[:2], x[3], x[2], *x[5:3:-1], None), *inputs)
    yield Trial("Flux 1 in float32", flux1, drawn(meta.unbox(shapes["params"])), inputs), None

    coarse = embeddings_flax.FluxPosEmbed(10_000, (8, 12, 12), jnp.bfloat16)
    ids = jnp.asarray(_grid(1, 4, 64))

    def rotate(x):  # (batch, seq, heads, head_dim)
        table = coarse.apply({}, ids).reshape(256, 16, 2, 2)
        return jnp.swapaxes(attention_flax.apply_rope(*[jnp.swapaxes(x, 1, 2)] * 2, table)[0], 1, 2)

    call, params, x = layer(rotate)
    large, many = coarse.clone(axes_dim=(16, 56, 56)), jnp.concatenate(_ids(512, 64, 64, axes=3), axis=1)[0]
    timed = Timed(lambda ids: large.apply({}, ids).astype(jnp.float32), (many,))
    wrong = "in bfloat16, its setting, coordinates, frequencies and angles are bfloat16"
    yield Trial("Flux 1's rotation in bfloat16", call, params, (x,), wrong=wrong), timed


def _wan_and_z_image():
    from flax import nnx

    big = transformer_wan.WanRotaryPosEmbed(128, (1, 2, 2), 1024)
    latents = jax.ShapeDtypeStruct((1, 21, 60, 104, 16), jnp.float32)

    def tables():
        cis = big(latents)
        return cis.real, cis.imag

    model = transformer_wan.WanModel(
        nnx.Rngs(0), num_attention_heads=4, attention_head_dim=32, in_channels=4, out_channels=4, text_dim=48,
        freq_dim=32, ffn_dim=64, num_layers=2,
    )  # fmt: skip
    call, params = parameters(model)
    inputs = _normal(2, 4, 4, 8, 8), jnp.array([300.0, 600.0]), _normal(2, 16, 48)

    def wan(params, *inputs, call=call):
        with _without_mesh():
            return call(params, *inputs, return_dict=False)[0]

    yield Trial("Wan", wan, params, inputs), Timed(tables, ())

    lengths = {"axes_dims": (8, 12, 12), "axes_lens": (256, 64, 64)}
    model = transformer_z_image.ZImageTransformer2DModel(
        nnx.Rngs(0), in_channels=4, dim=128, n_layers=1, n_refiner_layers=1, n_heads=4, n_kv_heads=4, cap_feat_dim=48,
        **lengths,
    )  # fmt: skip
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def z_image(params, images, t, captions):
        model = nnx.merge(graph, params, rest)
        model.rope_embedder = transformer_z_image.ZImageRopeEmbedder(**lengths)  # after ours is put in
        return jnp.stack(model(list(images), t, list(captions), return_dict=False)[0])

    timed = Timed(lambda ids: transformer_z_image.ZImageRopeEmbedder()(ids), (jnp.asarray(_grid(1, 64, 64))[None],))
    inputs = _normal(2, 4, 1, 16, 16), jnp.array([0.3, 0.6]), _normal(2, 20, 48)
    yield Trial("Z-Image", z_image, drawn(params), inputs), timed


def _attentive(params):
    """Small biases, and large scales of queries and keys, so that outputs depend on where tokens are."""

    def scale(path, x):
        name = jax.tree_util.keystr(path)
        return x * (0.1 if "bias" in name else 6 if "norm_q" in name or "norm_k" in name else 1)

    return jax.tree_util.tree_map_with_path(scale, params)


def _ltx():
    from flax import nnx

    tables = transformer3d.FreqsCisPrecomputer([20, 2048, 2048], 10_000.0, 4096)
    at = lambda *sides: jnp.asarray((_grid(*sides) * [8 / 24, 32, 32]).T[None], jnp.float32)  # noqa: E731

    def rotate(x, at):  # (batch, seq, heads, head_dim), all heads as one
        table = tables.clone(inner_dim=x.shape[-1] * x.shape[-2]).apply({}, at)
        return ltx_attention.apply_rotary_emb(x.reshape(*x.shape[:2], -1), table).reshape(x.shape)

    call, params, x = layer(rotate)
    timed = Timed(lambda at: tables.apply({}, at), (at(16, 16, 24),))
    inputs = x, jnp.tile(at(4, 8, 8), (2, 1, 1))
    wrong = "phases of up to 15,708 radians are float32"
    yield Trial("LTX-Video's rotation", call, params, inputs, wrong=wrong), timed

    wrong = "asks for float64, which JAX gives only with x64: phases are float32"
    settings = {"dim": 4096, "num_attention_heads": 32, "rope_type": "split"}
    big = attention_ltx2.LTX2RotaryPosEmbed(**settings)
    timed = Timed(lambda at: big(at), (big.prepare_video_coords(1, 16, 16, 24),))
    for rope_type in ("interleaved", "split"):
        model = transformer_ltx2.LTX2VideoTransformer3DModel(
            nnx.Rngs(0), in_channels=16, out_channels=16, num_attention_heads=4, attention_head_dim=32,
            cross_attention_dim=128, audio_in_channels=16, audio_out_channels=16, audio_num_attention_heads=4,
            audio_attention_head_dim=16, audio_cross_attention_dim=64, num_layers=2, caption_channels=48,
            rope_type=rope_type, attention_kernel="dot_product", a2v_attention_kernel="dot_product",
        )  # fmt: skip
        call, params = parameters(model)
        params = _attentive(params)

        def ltx2(params, image, sound, text, words, t, call=call):
            sizes = {"num_frames": 4, "height": 4, "width": 4, "audio_num_frames": 32, "return_dict": False}
            with _without_mesh():
                return jnp.concatenate(call(params, image, sound, text, words, t, **sizes), axis=1)

        inputs = _normal(2, 64, 16), _normal(2, 32, 16), _normal(2, 16, 48), _normal(2, 16, 48), jnp.array([0.3, 0.6])
        yield Trial(f"LTX-2, {rope_type}", ltx2, params, inputs, wrong=wrong), timed
        timed = None
