"""Relative position biases as vision transformers of transformers and timm compute them, of random tables."""

import numpy as np
import torch
from timm.layers.pos_embed_rel import RelPosBias, RelPosBiasTf, RelPosMlp, resize_rel_pos_bias_table_levit
from timm.models import levit as timm_levit
from transformers import BeitConfig
from transformers.models.beit.modeling_beit import BeitRelativePositionBias
from transformers.models.levit.modeling_levit import LevitAttention, LevitAttentionSubsample
from transformers.models.swin.modeling_swin import SwinRelativePositionBias

STRIDE = 2  # of the grid of queries in LeViT's subsampling attention


def drawn(layer, rng, name):
    """A layer's table, drawn anew."""
    table = getattr(layer, name)
    table.data = torch.tensor(rng.normal(size=tuple(table.shape)), dtype=torch.float32)
    return table.detach().numpy()


def of_layer(layer, rng, bias, name="relative_position_bias_table"):
    layer.eval()
    table = drawn(layer, rng, name)
    with torch.no_grad():
        return {"table": table, "bias": bias(layer).numpy()}


def swin(rng, window, heads):
    return of_layer(SwinRelativePositionBias(heads, window), rng, lambda layer: layer()[0])


def beit(rng, window, heads, new=None):
    """Square windows: of others it takes the height of the table for its width."""
    assert window[0] == window[1]
    config = BeitConfig(image_size=16 * window[0], patch_size=16, num_attention_heads=heads)
    return of_layer(BeitRelativePositionBias(config), rng, lambda layer: layer(new or window)[0])


def levit(rng, window, heads):
    assert window[0] == window[1]
    layer = LevitAttention(8, 4, heads, 2, window[0])
    return of_layer(layer, rng, lambda layer: layer.get_attention_biases("cpu"), "attention_biases")


def levit_subsample(rng, window, heads):
    assert window[0] == window[1]
    layer = LevitAttentionSubsample(8, 8, 4, heads, 2, STRIDE, window[0], -(-window[0] // STRIDE))
    return of_layer(layer, rng, lambda layer: layer.get_attention_biases("cpu"), "attention_biases")


def timm_bias(rng, window, heads):
    return of_layer(RelPosBias(window, heads), rng, lambda layer: layer.get_bias()[0])


def timm_prefix(rng, window, heads):
    return of_layer(RelPosBias(window, heads, prefix_tokens=1), rng, lambda layer: layer.get_bias()[0])


def timm_tf(rng, window, heads):
    return of_layer(RelPosBiasTf(window, heads), rng, lambda layer: layer.get_bias())


def timm_levit_bias(rng, window, heads):
    layer = timm_levit.Attention(8, 4, heads, resolution=window)
    return of_layer(layer, rng, lambda layer: layer.get_attention_biases("cpu"), "attention_biases")


def timm_levit_subsample(rng, window, heads):
    layer = timm_levit.AttentionDownsample(8, 8, 4, heads, stride=STRIDE, resolution=window)
    return of_layer(layer, rng, lambda layer: layer.get_attention_biases("cpu"), "attention_biases")


def timm_mlp(rng, window, heads):
    """Swin V2's continuous bias, of an MLP with hidden biases."""
    torch.manual_seed(0)
    layer = RelPosMlp(window, heads, hidden_dim=5, mode="swin").eval()
    w1, b1, w2 = (x.detach().numpy() for x in layer.mlp.parameters())
    with torch.no_grad():
        return {"w1": w1.T, "b1": b1, "w2": w2.T, "bias": layer.get_bias()[0].numpy()}


LAYERS = {
    "transformers, Swin": swin,
    "transformers, BEiT": beit,
    "transformers, LeViT": levit,
    "transformers, LeViT, subsampled": levit_subsample,
    "timm, RelPosBias": timm_bias,
    "timm, RelPosBias, class token": timm_prefix,
    "timm, RelPosBiasTf": timm_tf,
    "timm, LeViT": timm_levit_bias,
    "timm, LeViT, subsampled": timm_levit_subsample,
    "timm, RelPosMlp": timm_mlp,
}
SQUARE = [name for name in LAYERS if name.startswith("transformers") and "Swin" not in name]


def resized_by_timm(rng, window, new, heads):
    """Of square windows: bicubic with antialias."""
    table = rng.normal(size=((2 * window - 1) ** 2, heads)).astype(np.float32)
    found = resize_rel_pos_bias_table_levit(torch.tensor(table), ((2 * new - 1) ** 2, heads))
    return {"table": table, "resized": found.numpy()}


def resized_by_beit(rng, window, new, heads):
    """The bias of a window larger than the table's: bilinear, without antialias."""
    return beit(rng, (window, window), heads, (new, new))
