"""`examples/content_attention.py` beside live attention modules of transformers, of shapes and settings that are drawn."""

import importlib
import sys
from pathlib import Path

import content_modules
import jax
import numpy as np
import pytest

from helpers.content_biases import differences as compared

EXAMPLES = Path(__file__).parents[3] / "examples"
RNG = np.random.default_rng(0)
BOUND = 1e-5  # of the largest number

pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")  # WavLM's own masks


@pytest.fixture(scope="module")
def layers():
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module("content_attention").LAYERS
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(autouse=True)
def as_a_user_runs_them():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def between(least, most):
    return int(RNG.integers(least, most + 1))


def shape():
    return {"heads": between(1, 4), "width": 2 * between(1, 4), "length": between(8, 70)}


def of_two(x, y):
    return x if RNG.random() < 0.5 else y


def terms():
    return [("c2p", "p2c"), ("c2p",), ("p2c",), ("p2c", "c2p")][between(0, 3)]


def deberta_v2(**code):
    buckets = of_two(-1, between(4, 12))
    reach = between(1, 20) if buckets < 0 else between(buckets // 2 + 2, 60)
    return content_modules.deberta_v2(
        **shape(), **code, buckets=buckets, reach=reach, shared=of_two(True, False), terms=terms()
    )


def relative_keys(make):
    return make(**shape(), left=between(0, 12), right=between(0, 12))


def sam(make, **trained):
    return make(heads=between(1, 3), width=2 * between(1, 4), grid=(between(2, 8), between(2, 8)), **trained)


def inkling():
    drawn = {"kv_heads": between(1, 2), "rel": between(1, 5), "extent": between(2, 30)}
    drawn |= {"heads": 2 * between(1, 3), "width": 2 * between(1, 4), "length": between(8, 70)}
    return content_modules.inkling(
        sliding=of_two(True, False), floor=of_two(None, between(1, 20)), kernel=between(1, 5), **drawn
    )


def wavlm():
    buckets = 4 * between(2, 8)
    return content_modules.wavlm(**shape(), buckets=buckets, reach=between(buckets // 4 + 1, 90))


DRAWN = {
    "DeBERTa v2": deberta_v2,
    "SEW-D": lambda: deberta_v2(code="sew_d", config="SEWDConfig"),
    "DeBERTa": lambda: content_modules.deberta(**shape(), reach=between(1, 80), terms=terms()),
    "Parakeet": lambda: content_modules.parakeet(**shape(), bias=of_two(True, False)),
    "Wav2Vec2 Conformer": lambda: content_modules.wav2vec2(**shape()),
    "Wav2Vec2-BERT, relative": lambda: content_modules.wav2vec2("wav2vec2_bert", "Wav2Vec2Bert", **shape()),
    "Wav2Vec2-BERT": lambda: relative_keys(content_modules.relative_keys),
    "SeamlessM4T v2": lambda: relative_keys(content_modules.seamless),
    "SAM": lambda: sam(content_modules.sam, trained=between(2, 8)),
    "ViTDet": lambda: sam(content_modules.vitdet, trained=(between(2, 8), between(2, 8))),
    "Inkling": inkling,
    "WavLM": wavlm,
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", DRAWN)
def test_the_layer_is_the_module(layers, differences, name, seed):
    made = DRAWN[name]()
    case = content_modules.measured(made, seed)
    found = compared(layers[case["layer"]], case, block_size=16)
    differences(name, found)
    assert max(found.values()) < BOUND, (case["settings"], case["hidden"], found)
