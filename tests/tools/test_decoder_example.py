"""`examples/generate.py` and `checkpoint.py` read folders of weights that are written here, without torch.

- Prompts of different lengths, batched over devices, give the logits and tokens of each prompt alone.
- Weights of 16 bits are read, and tokens are drawn by their probabilities.
- What is wrong with a folder or a prompt is named in the error.

tests/huggingface/parity/test_decoder_example.py compares the logits, with and without a cache, with transformers.
"""

import importlib
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from helpers.closeness import assert_within

for name in "safetensors", "tokenizers", "tqdm":
    pytest.importorskip(name, reason=f"{name} is not installed: dependency group examples, extra demo")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
checkpoint, decoder, generate, files = map(
    importlib.import_module, ("checkpoint", "decoder", "generate", "safetensors.numpy")
)

RNG = np.random.default_rng(0)
CHUNK, LENGTH, VOCABULARY = 8, 27, 40
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"vocab_size": VOCABULARY, "eos_token_id": [1, 2]}
GEMMA = {"num_hidden_layers": 5, "head_dim": 8, "query_pre_attn_scalar": 12, "final_logit_softcapping": 4.0}
GEMMA |= {"sliding_window": 5, "sliding_window_pattern": 2}  # two periods and one layer
CONFIGS = {
    "llama": SIZES | {"model_type": "llama", "num_hidden_layers": 2},
    "gemma3": {"model_type": "gemma3", "text_config": SIZES | GEMMA | {"model_type": "gemma3_text"}},
}
# Without the tokens below 3, of which two end a text
TOKENS = RNG.integers(3, VOCABULARY, (2, LENGTH)).astype(np.int32)


@pytest.fixture(autouse=True)
def as_flax():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def write(folder, config):
    """Writes a folder with random weights under the names that `checkpoint` reads, and returns it."""
    s, tensors = decoder.settings_of(config), {}
    prefix = "language_model.model." if config["model_type"] == "gemma3" else "model."
    state = nnx.to_flat_state(nnx.state(nnx.eval_shape(lambda: decoder.Decoder(s, rngs=nnx.Rngs(0)))))
    for path, variable in state:
        shape = variable.shape[path[0] == "layers" :]  # without the axis along which layers are stacked
        size = shape[::-1] if path[-1] == "kernel" else shape
        scale = size[-1] ** -0.5 if len(size) > 1 else 0.1
        # Norms scale by about 1: where the family adds 1 to the weights itself, they are about 0.
        center = path[-1] == "scale" and not s.family.unit_offset
        for name in checkpoint.names_of(s, path):
            name = name if name.startswith("lm_head") else prefix + name
            tensors[name] = (RNG.normal(size=size) * scale + center).astype(np.float32)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    files.save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.slow
def test_prompts_of_several_lengths_over_devices(tmp_path):
    """A batch over four devices, from position 1,000,000, gives what each prompt alone gives on one device from 0."""
    folder = write(tmp_path / "m", CONFIGS["gemma3"])
    prompts = [TOKENS[0, :3].tolist(), TOKENS[1, :19].tolist()]
    model, mesh = checkpoint.load(folder), checkpoint.mesh_of(4, 2, 2)
    assert mesh.shape == {"batch": 2, "heads": 2}
    spread = checkpoint.load(folder, mesh=mesh)
    together = generate.prefill(spread, prompts, LENGTH, chunk=CHUNK, mesh=mesh, start=1_000_000)
    assert len(together[1][0].keys.devices()) == 4
    got = np.array(list(generate.continued(spread, together, 8)))
    for row, prompt in enumerate(prompts):
        alone = generate.prefill(model, [prompt], LENGTH, chunk=CHUNK)
        assert_within(together[0][row], alone[0][0], 1e-5, against="alone")
        np.testing.assert_array_equal(got[:, row], [t[0] for t in generate.continued(model, alone, 8)])


def test_drawn_tokens_and_their_end():
    """2000 draws have the probabilities; temperature 0 takes the likeliest; a text ends with an end token."""
    logits = np.log(np.float32([[0.1, 0.6, 0.3]]))
    keys = jax.random.split(jax.random.key(0), 2000)
    draw = jax.jit(jax.vmap(lambda key, temperature: generate.pick(logits, key, temperature), (0, None)))
    assert_within(np.bincount(np.ravel(draw(keys, 1.0)), minlength=3) / 2000, [0.1, 0.6, 0.3], 0.05)
    assert set(np.ravel(draw(keys, 0.0))) == {1}
    steps = [np.array(x) for x in ([5, 1], [2, 7], [8, 8])]
    assert list(generate.until({1, 2}, iter(steps), 2)) == [[5, None]]


@pytest.mark.slow
def test_a_small_model_is_written_and_continues_prompts(tmp_path, capsys):
    folder = pytest.importorskip("small_model").folder(tmp_path / "m", steps=2)
    generate.main([str(folder), "import os\n", "def f", "--tokens", "3"])
    out, err = capsys.readouterr()
    assert "import os\n" in out and "def f" in out and "a second" in err


def test_weights_of_16_bits_are_read(tmp_path):
    """Bfloat16 weights become float32, and a tied head may be stored beside the embedding."""
    folder = write(tmp_path / "m", CONFIGS["llama"] | {"tie_word_embeddings": True})
    path = folder / "model.safetensors"
    tensors = {name: x.astype(jnp.bfloat16) for name, x in files.load_file(path).items()}
    table = tensors["model.embed_tokens.weight"]
    files.save_file(tensors | {"lm_head.weight": table}, path)
    model = checkpoint.load(folder)
    np.testing.assert_array_equal(model.embed_tokens.embedding[...], table.astype(np.float32))
    kernel = model.layers[0].self_attn.o_proj.kernel[...]
    np.testing.assert_array_equal(kernel[1], tensors[O_PROJ].astype(np.float32).T)


# What is wrong is named

O_PROJ = "model.layers.1.self_attn.o_proj.weight"
WRONG = {  # what the message says: (settings, tensors) that replace right ones; None deletes a tensor
    "model_type 'bert' is not one of llama, mistral": ({"model_type": "bert"}, {}),
    "activation 'swish2' is not one of silu": ({"hidden_act": "swish2"}, {}),
    "quantization_config": ({"quantization_config": {"bits": 4}}, {}),
    "tie_word_embeddings, but lm_head.weight is not": ({"tie_word_embeddings": True}, {}),  # beside a head
    "has, beside what the config asks for, model.layers.1": ({"num_hidden_layers": 1}, {}),
    f"lacks {O_PROJ}": ({}, {O_PROJ: None}),
    f"{O_PROJ} has shape \\(32, 31\\)": ({}, {O_PROJ: np.ones((32, 31), np.float32)}),
    f"{O_PROJ} is F8_E4M3": ({}, {O_PROJ: np.ones((32, 32), jnp.float8_e4m3fn)}),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_folder_is_named(tmp_path, message):
    (settings, tensors), folder = WRONG[message], write(tmp_path / "m", CONFIGS["llama"])
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama"] | settings))
    tensors = files.load_file(folder / "model.safetensors") | tensors
    files.save_file({name: x for name, x in tensors.items() if x is not None}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        checkpoint.load(folder)


def test_a_missing_file_and_a_prompt_beyond_the_cache_are_named(tmp_path):
    folder = write(tmp_path / "m", CONFIGS["llama"])
    model = checkpoint.load(folder)
    for prompts, start, message in [
        ([[3], [3] * 9], 0, "prompt 2 has 9 tokens: the cache holds from 1 to 8"),
        ([[3, VOCABULARY]], 0, "prompt 1 has token 40 of a vocabulary of 40"),
        ([[3]], 2**31 - 8, "start must be from 0 to 2147483639"),
    ]:
        with pytest.raises(ValueError, match=message):
            generate.prefill(model, prompts, 8, start=start)
    with pytest.raises(FileNotFoundError, match="tokenizer.json is missing"):
        generate.main([str(folder), "a"])
    for name in "model.safetensors", "config.json":
        (folder / name).unlink()
        with pytest.raises(FileNotFoundError, match=f"{name} is missing"):
            checkpoint.load(folder)
