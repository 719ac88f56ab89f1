"""Every class of diffusers that is read rotates as its plan, at sizes that are drawn: `recorded` has others."""

import random

import numpy as np
import pytest
from diffusion import hf_diffusion

from huggingface.test_diffusion_recorded import CASES, OPTIONS, READ, check_rotation, name_of, plan_of


def drawn(name, sizes, rng):
    """Sizes of the same kinds, each of other numbers that the class takes."""
    step = 2 if name == "QwenImage21Transformer2DModel" else 1  # of sides in patches

    def side():
        return step * rng.randint(1, 5)

    result = dict(sizes, shape=[side() for _ in sizes["shape"]])
    if "rate" in sizes:
        result["rate"] = rng.choice([24, 25, 30, 12.5])
    elif name == "CosmosTransformer3DModel":
        result["shape"][0] = 1
    if "text" in sizes:
        several = isinstance(sizes["text"], list)
        result["text"] = [rng.randint(0, 5) for _ in sizes["text"]] if several else rng.randint(1, 7)
    if "references" in sizes:
        same = name == "Kandinsky6Transformer3DModel"  # a frame of the video
        result["references"] = [result["shape"][1:] if same else [side(), side()] for _ in sizes["references"]]
    if name == "HiDreamImageTransformer2DModel":  # max_resolution of the case may hold no other
        return sizes
    return result


@pytest.mark.parametrize("i", READ, ids=name_of)
def test_drawn_sizes(i):
    case = dict(CASES[i])
    case["sizes"] = drawn(case["config"]["_class_name"], case["sizes"], random.Random(i))
    sizes = {name: x for name, x in case["sizes"].items() if name not in OPTIONS}
    positions, found = np.asarray(plan_of(case).positions(**sizes)), hf_diffusion(case)
    if "cos" in found:
        check_rotation(case | found, positions)
    for name in {"ids", "rows"} & found.keys():
        np.testing.assert_array_equal(positions, found[name])
