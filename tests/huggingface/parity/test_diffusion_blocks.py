"""The blocks of docs/diffusion.md compute what those of diffusers compute, with the same random weights.

Outputs, and gradients by all inputs. The cosines and sines of diffusers are of the coordinates that its pipelines give
to text, images and reference images.
"""

import jax
import numpy as np
import pytest
import torch
from diffusers import Flux2Pipeline
from diffusers.models.transformers import transformer_flux2 as flux2
from diffusers.models.transformers import transformer_qwenimage as qwen
from diffusers.models.transformers import transformer_wan as wan

from helpers import pages
from helpers.closeness import assert_within
from posenc_jax.hf import diffusion_rotary_from_config

PAGE = "docs/diffusion.md"
TEXT, SHAPE, REFERENCE, VIDEO = 7, (4, 6), (3, 5), (2, 4, 3)
WIDTH, HEADS = 256, 2


@pytest.fixture(scope="module")
def page():
    """The functions of the page."""
    names = pages.run(pages.block(PAGE, "import json").partition("file =")[0], {})
    for function in ("linear", "joint_block", "flux2_block", "qwen_image_block", "wan_block"):
        names = pages.run(pages.block(PAGE, f"def {function}("), names)
    return names


def random(*shape):
    return torch.randn(*shape, requires_grad=True)


def random_block(block):
    """The block with weights by which its outputs are of order 1, and the weights as arrays by name."""
    with torch.no_grad():
        for parameter in block.parameters():  # all differ, so that exchanged ones would show
            width = parameter.shape[-1]
            parameter.copy_(torch.randn_like(parameter) * (width**-0.5 if parameter.ndim > 1 else 0.25))
        for name, parameter in block.named_parameters():
            parameter.add_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    return block.eval(), {name: x.numpy() for name, x in block.state_dict().items()}


def flux2_case():
    """A block of Flux 2 with a reference image: its call by torch's inputs, its weights, its inputs, its positions."""
    block, weights = random_block(flux2.Flux2TransformerBlock(WIDTH, HEADS, WIDTH // HEADS))
    text, image = random(1, TEXT, WIDTH), random(1, 4 * 6 + 3 * 5, WIDTH)
    ids = [Flux2Pipeline._prepare_text_ids(text), Flux2Pipeline._prepare_latent_ids(torch.zeros(1, 1, *SHAPE))]
    ids = torch.cat([*ids, Flux2Pipeline._prepare_image_ids([torch.zeros(1, 1, *REFERENCE)])], dim=1)
    waves = flux2.Flux2PosEmbed(2000, (32,) * 4)(ids[0])
    theirs = lambda text, image, *modulations: block(image, text, *modulations[::-1], waves)  # noqa: E731
    inputs = text, image, random(1, 6 * WIDTH), random(1, 6 * WIDTH)
    return theirs, weights, inputs, dict(shape=SHAPE, text=TEXT, references=[REFERENCE])


def qwen_case():
    """A block of Qwen-Image-Edit."""
    block, weights = random_block(qwen.QwenImageTransformerBlock(WIDTH, HEADS, WIDTH // HEADS))
    embedding = qwen.QwenEmbedRope(10_000, [16, 56, 56], scale_rope=True)
    waves = embedding([[(1, *SHAPE), (1, *REFERENCE)]], max_txt_seq_len=TEXT)
    theirs = lambda text, image, time: block(image, text, None, time, waves)  # noqa: E731
    inputs = random(1, TEXT, WIDTH), random(1, 4 * 6 + 3 * 5, WIDTH), random(1, WIDTH)
    return theirs, weights, inputs, dict(shape=SHAPE, text=TEXT, references=[REFERENCE])


def wan_case():
    """A block of Wan 2.1, of two videos."""
    block, weights = random_block(wan.WanTransformerBlock(WIDTH, 2 * WIDTH, HEADS, cross_attn_norm=True))
    waves = wan.WanRotaryPosEmbed(WIDTH // HEADS, (1, 2, 2), 1024)(torch.zeros(1, 1, 2, 8, 6))
    theirs = lambda video, text, time: (block(video, text, time, waves),)  # noqa: E731
    inputs = random(2, 2 * 4 * 3, WIDTH), random(2, TEXT, WIDTH), random(2, 6, WIDTH)
    return theirs, weights, inputs, dict(shape=VIDEO)


CASES = {
    "Flux2Transformer2DModel": (flux2_case, "flux2_block"),
    "QwenImageTransformer2DModel": (qwen_case, "qwen_image_block"),
    "WanTransformer3DModel": (wan_case, "wan_block"),
}


@pytest.mark.parametrize("name", CASES)
def test_blocks_of_the_page_compute_what_those_of_diffusers_compute(page, name):
    torch.manual_seed(0)
    make, function = CASES[name]
    theirs, weights, inputs, sizes = make()
    outputs = theirs(*inputs)
    cotangents = [torch.randn_like(y) for y in outputs]
    wanted = [*outputs, *torch.autograd.grad(outputs, inputs, cotangents)]

    plan = diffusion_rotary_from_config({"_class_name": name})
    positions = plan.positions(**sizes)

    @jax.jit
    def ours(w, inputs, cotangents):
        def block(*x):
            x = (*x[:2], x[2:], positions) if name.startswith("Flux2") else (*x, positions)
            y = page[function](plan, w, *x)
            return y if isinstance(y, list) else [y]

        y, pull = jax.vjp(block, *inputs)
        return [*y, *pull(cotangents)]

    arrays = ([np.asarray(x.detach()) for x in each] for each in (inputs, cotangents))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = ours(weights, *arrays)
    for got, want in zip(found, wanted, strict=True):
        want = want.detach().numpy()
        assert 0.1 < want.std() < 10
        assert_within(np.asarray(got) / want.std(), want / want.std(), 2e-5, against="diffusers")
