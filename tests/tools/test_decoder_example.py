"""`examples/decoder.py` with folders that are written here, without torch: caches, devices, and folders that are wrong."""

import functools
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
from helpers.hopper import interpreted
from helpers.quick import quick
from helpers.tiers import slow
from oracles import recorded

for name in "safetensors", "tokenizers", "tqdm":
    pytest.importorskip(name, reason=f"{name} is not installed: dependency group examples, extra demo")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
checkpoint, decoder, generate = map(importlib.import_module, ("checkpoint", "decoder", "generate"))
files, tokenizers = map(importlib.import_module, ("safetensors.numpy", "tokenizers"))

RNG = np.random.default_rng(0)
CHUNK, LENGTH, VOCABULARY = 8, 27, 40
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"vocab_size": VOCABULARY, "eos_token_id": [1, 2]}
WINDOW = {"sliding_window": 5}
CONFIGS = {
    "llama": SIZES | {"model_type": "llama", "num_hidden_layers": 2, "rope_theta": 1e4},
    "gemma3": {
        "model_type": "gemma3",
        "text_config": SIZES
        | WINDOW
        | {"model_type": "gemma3_text", "num_hidden_layers": 5, "head_dim": 8, "query_pre_attn_scalar": 12}
        | {"sliding_window_pattern": 2, "final_logit_softcapping": 4.0},  # two periods and one layer
    },
    "cohere2": SIZES
    | WINDOW
    | {"model_type": "cohere2", "num_hidden_layers": 4, "sliding_window_pattern": 2, "logit_scale": 1.0},
    "gpt_neox": SIZES
    | {"model_type": "gpt_neox", "num_hidden_layers": 1, "rotary_pct": 0.5, "num_key_value_heads": None},
    "deepseek_v3": SIZES
    | {"model_type": "deepseek_v3", "num_hidden_layers": 2, "first_k_dense_replace": 2, "q_lora_rank": 12}
    | {"kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5, "rope_theta": 1e4},
}
TOKENS = RNG.integers(3, VOCABULARY, (2, LENGTH)).astype(np.int32)


@pytest.fixture(autouse=True)
def as_flax():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def write(folder, config, shards=1):
    """A folder with random weights, under the names that a model asks for."""
    s = decoder.settings_of(config)
    state = nnx.to_flat_state(nnx.state(nnx.eval_shape(lambda: decoder.Decoder(s, rngs=nnx.Rngs(0)))))
    prefix, tensors = {"gemma3_text": "language_model.model.", "gpt_neox": "gpt_neox."}, {}
    for path, variable in state:
        shape = variable.shape[path[0] == "layers" :]
        for name in checkpoint.names_of(s, path):
            name = name if name.startswith("lm_head") else prefix.get(s_type(config), "model.") + name
            size = shape[::-1] if path[-1] == "kernel" else shape
            size = (3 * size[0], *size[1:]) if "query_key_value" in name else size
            scale = size[-1] ** -0.5 if len(size) > 1 else 0.1
            center = path[-1] == "scale" and not s.family.unit_offset
            tensors[name] = (RNG.normal(size=size) * scale + center).astype(np.float32)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    names, where = sorted(tensors), {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors"
        files.save_file({name: tensors[name] for name in names[i::shards]}, folder / file)
        where |= dict.fromkeys(names[i::shards], file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def s_type(config):
    return config.get("text_config", config).get("model_type")


def compiled(model):
    """The logits of all tokens and the cache, as a function of tokens, positions and cache."""
    graph, state = nnx.split(model)

    def forward(state, tokens, positions, cache):
        model = nnx.merge(graph, state)
        hidden, cache = model(tokens, positions, cache)
        return model.logits(hidden), cache

    return functools.partial(quick(forward), state)


def counted(start=0):
    return np.tile(start + np.arange(LENGTH, dtype=np.int32), (2, 1))


@pytest.mark.parametrize(
    "name", [slow("gemma3"), slow("deepseek_v3"), slow("llama"), slow("cohere2"), slow("gpt_neox")]
)
def test_a_cache_gives_what_the_whole_text_gives(tmp_path, name):
    """In chunks and steps; rings are shorter than the text, and the whole text has no cache and no ring."""
    model = checkpoint.load(write(tmp_path / "m", CONFIGS[name], shards=3))
    forward = compiled(model)
    want, _ = forward(TOKENS, counted(), None)
    assert 0.1 < np.std(want) < 2
    cache = model.new_cache(2, LENGTH, CHUNK)
    slots = {positions.shape[1] for positions in cache.positions}
    ring = {5 + CHUNK - 1} if "sliding" in json.dumps(CONFIGS[name]) else set()
    assert slots == {*ring, LENGTH + CHUNK - 1}
    parts = []
    for part, p in zip(*(np.split(x, [8, 16, *range(17, LENGTH)], 1) for x in (TOKENS, counted())), strict=True):
        logits, cache = forward(part, p, cache)
        parts.append(logits)
    assert_within(np.concatenate(parts, 1), want, 1e-5, against="the whole text")


@pytest.mark.parametrize(("devices", "dtype"), [slow(4, "float32"), slow(2, "float32"), slow(4, "bfloat16")])
def test_prompts_of_several_lengths_over_devices(tmp_path, devices, dtype):
    """Each as alone on one device, though padded, in another chunk, and a million positions on."""
    folder = write(tmp_path / "m", CONFIGS["cohere2"])
    prompts = [TOKENS[0, :3].tolist(), TOKENS[1, :19].tolist()]
    model = checkpoint.load(folder, dtype)
    mesh = checkpoint.mesh_of(devices, model.settings.kv_heads, 2)
    assert mesh.shape == {"batch": devices // 2, "heads": 2}
    spread = checkpoint.load(folder, dtype, mesh=mesh)
    together = generate.prefill(spread, prompts, LENGTH, chunk=CHUNK, mesh=mesh, start=1_000_000)
    assert len(together[1].kept[0][0].devices()) == devices
    got = np.array(list(generate.continued(spread, together, 8)))
    for row, prompt in enumerate(prompts):
        alone = generate.prefill(model, [prompt], LENGTH, chunk=CHUNK)
        bound = 1e-5 if dtype == "float32" else 0.1
        assert_within(together[0][row], alone[0][0], bound, against="alone")
        if dtype == "float32":
            np.testing.assert_array_equal(got[:, row], [t[0] for t in generate.continued(model, alone, 8)])
    if dtype == "float32":
        text = np.int32([*prompts[1], *got[:, 1]])[None]
        logits, _ = compiled(model)(text, counted()[:1], None)
        np.testing.assert_array_equal(np.argmax(logits[0, 18:-1], -1), got[:, 1])


@pytest.mark.parametrize("name", ["cohere2", "deepseek_v3"])
def test_attention_has_the_implementation_of_the_settings(name):
    s = decoder.settings_of(CONFIGS[name], implementation="mosaic_gpu")
    make = lambda: decoder.Decoder(s, rngs=nnx.Rngs(0))(TOKENS, counted())  # noqa: E731
    with pytest.raises(ValueError, match="attention: .*implementation='mosaic_gpu'"):  # which needs 16 bits
        nnx.eval_shape(make)


@pytest.mark.slow
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel needs JAX 0.11")
def test_the_kernel_for_gpus(tmp_path, monkeypatch):
    """In interpret mode, beside XLA: windows, a prompt that is padded, and the gradients of training."""
    interpreted(monkeypatch.setattr)
    folder = write(tmp_path / "m", CONFIGS["cohere2"] | {"num_hidden_layers": 2})
    logits, gradients = {}, {}

    @nnx.jit
    def gradient(model):
        def loss(model):
            likely = jax.nn.log_softmax(model.logits(model(TOKENS[:1], counted()[:1])[0])[:, :-1])
            return -jnp.mean(jnp.take_along_axis(likely, TOKENS[:1, 1:, None], -1))

        return nnx.grad(loss)(model)

    for implementation in (None, "mosaic_gpu"):
        model = checkpoint.load(folder, "bfloat16", implementation=implementation)
        logits[implementation], *_ = generate.prefill(model, [TOKENS[0, :3].tolist()], 8, chunk=CHUNK)
        leaves = (np.asarray(x, np.float32).ravel() for x in jax.tree.leaves(gradient(model)))
        gradients[implementation] = np.concatenate([*leaves])
    assert_within(logits["mosaic_gpu"], logits[None], 0.05, against="XLA")
    error = np.linalg.norm(gradients["mosaic_gpu"] - gradients[None])
    assert error < 0.02 * np.linalg.norm(gradients[None])


def test_drawn_tokens_and_their_end():
    logits = np.log(np.float32([[0.1, 0.6, 0.3]]))

    @quick
    def draw(logits):
        keys = jax.random.split(jax.random.key(0), 2000)
        pick = lambda key, temperature: generate.pick(logits, key, temperature)  # noqa: E731
        return jax.vmap(pick, (0, None))(keys, jnp.float32(1)), pick(keys[0], jnp.float32(0))

    drawn, likeliest = map(np.asarray, draw(logits))
    assert_within(np.bincount(drawn.ravel(), minlength=3) / 2000, [0.1, 0.6, 0.3], 0.05)
    assert likeliest.tolist() == [1]
    steps = [np.array(x) for x in ([5, 1], [2, 7], [8, 8])]
    assert list(generate.until({1, 2}, iter(steps), 2)) == [[5, None]]


def test_the_first_word_keeps_its_space(capsys):
    """Metaspace drops the space of the first word, which is the prompt's."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"▁a": 0, "▁b": 1, "c": 2}, "c"))
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    generate.show(tokenizer, ["a"], [[0]], [[1], [2], [1]], 3)
    generate.show(tokenizer, ["a", "a c"], [[0], [0, 2]], [[1, None], [2, None]], 2)
    assert capsys.readouterr().out == "a bc b\na bc\n\na c\n"


@pytest.mark.slow
def test_a_small_model_is_written_and_read(tmp_path, capsys):
    small_model = pytest.importorskip("small_model")
    folder = small_model.folder(tmp_path / "m", steps=2)
    generate.main([str(folder), "import os\n", "def f", "--tokens", "3"])
    out, err = capsys.readouterr()
    assert "import os\n" in out and "def f" in out and "a second" in err


# What is wrong is named


def drop(folder, name):
    tensors = files.load_file(folder / "model.safetensors")
    del tensors[name]
    files.save_file(tensors, folder / "model.safetensors")


def add(folder, name, array):
    files.save_file(files.load_file(folder / "model.safetensors") | {name: array}, folder / "model.safetensors")


def change(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def cut(folder, file="model.safetensors", to=-7):
    (folder / file).write_bytes((folder / file).read_bytes()[:to])


O_PROJ = "model.layers.1.self_attn.o_proj.weight"
WRONG = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "no JSON": (lambda f: cut(f, "config.json"), "config.json is not JSON"),
    "a list": (lambda f: (f / "config.json").write_text("[]"), "config.json is not a JSON object"),
    "a type": (lambda f: change(f, num_hidden_layers=True), "config.json: .*num_hidden_layers must be an integer"),
    "a kind of layer": (lambda f: change(f, layer_types=["chunked_attention"] * 2), "layer_types: chunked_attention"),
    "another family": (lambda f: change(f, model_type="bert"), "model_type 'bert' is not one of llama, mistral"),
    "a key": (lambda f: change(f, vocab_size=None), "vocab_size"),
    "an activation": (lambda f: change(f, hidden_act="swish2"), "the activation 'swish2' is not one of silu"),
    "a rotation": (lambda f: change(f, rope_scaling={"rope_type": "linear"}), "factor"),
    "quantized": (lambda f: change(f, quantization_config={"bits": 4}), "quantization_config"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
    "cut short": (cut, "model.safetensors is cut short"),
    "empty": (lambda f: cut(f, to=0), "model.safetensors is cut short"),
    "a tensor": (lambda f: drop(f, O_PROJ), f"lacks {O_PROJ}"),
    "a shape": (lambda f: add(f, O_PROJ, np.ones((32, 31), np.float32)), f"{O_PROJ} has shape \\(32, 31\\)"),
    "integers": (lambda f: add(f, O_PROJ, np.ones((32, 32), np.int8)), f"{O_PROJ} is I8"),
    "8 bits": (lambda f: add(f, O_PROJ, np.ones((32, 32), jnp.float8_e4m3fn)), f"{O_PROJ} is F8_E4M3"),
    "a head beside tied embeddings": (
        lambda f: change(f, tie_word_embeddings=True),
        "tie_word_embeddings, but lm_head.weight is not model.embed_tokens.weight",
    ),
    "an index": (
        lambda f: (f / "model.safetensors.index.json").write_text("{}"),
        "model.safetensors.index.json has no weight_map",
    ),
    "more layers": (lambda f: change(f, num_hidden_layers=3), "lacks model.layers.2.*and 6 more"),
    "fewer layers": (lambda f: change(f, num_hidden_layers=1), "has, beside what the config asks for, model.layers.1"),
    "a bias": (lambda f: add(f, "model.layers.0.self_attn.q_proj.bias", np.ones(32, np.float32)), "q_proj.bias"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_folders(tmp_path, what):
    spoil, message = WRONG[what]
    folder = write(tmp_path / "m", CONFIGS["llama"])
    spoil(folder)
    with pytest.raises((ValueError, OSError), match=message):
        checkpoint.load(folder)


@pytest.mark.parametrize("kind", [jnp.bfloat16, np.float16])
def test_weights_of_16_bits(tmp_path, kind):
    """As most folders have them; a tied head may be there too."""
    folder = write(tmp_path / "m", CONFIGS["llama"] | {"tie_word_embeddings": True})
    tensors = {name: x.astype(kind) for name, x in files.load_file(folder / "model.safetensors").items()}
    table = tensors["model.embed_tokens.weight"]
    files.save_file(tensors | {"lm_head.weight": table}, folder / "model.safetensors")
    model = checkpoint.load(folder)
    np.testing.assert_array_equal(model.embed_tokens.embedding[...], table.astype(np.float32))
    kernel = model.layers[0].self_attn.o_proj.kernel[...]
    np.testing.assert_array_equal(kernel[1], tensors[O_PROJ].astype(np.float32).T)


def test_a_missing_shard(tmp_path):
    folder = write(tmp_path / "m", CONFIGS["llama"], shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(
        FileNotFoundError, match="model-00002-of-00002.safetensors is missing, which model.safetensors.in"
    ):
        checkpoint.load(folder)


def test_published_configs():
    """Those of these families in the records, which leave the vocabulary out: read, or refused for experts or sections."""
    windows, refused = {}, []
    for case in recorded.cases("hf_published"):
        config = case["config"] | {"vocab_size": 1}
        if part := config.get("text_config"):
            config["text_config"] = part | {"vocab_size": 1}
        if s_type(config) not in decoder.FAMILIES or "hidden_size" not in config.get("text_config", config):
            continue
        try:
            windows[case["name"]] = decoder.settings_of(config, length=4097).windows
        except ValueError as error:
            assert "layers with experts" in str(error) or "mrope_section" in str(error)
            refused.append(s_type(config))
    assert len(windows) > 100 and set(refused) == {"deepseek_v2", "deepseek_v3", "llama"}
    assert windows["gemma-3-27b"] == (5 * (1024,) + (None,)) * 10 + (1024, 1024)
    assert windows["olmo-3.1-32b-instruct"] == (4096, 4096, 4096, None) * 16
    assert windows["mlc-mistral-7b"] == (4096,) * 32
    assert windows["mistral-nemo-instruct-2407"] == (None,) * 40 and windows["smollm3-3b"] == (None,) * 36


def test_experts_are_refused():
    with pytest.raises(ValueError, match="first_k_dense_replace = 1: layers with experts"):
        decoder.settings_of(CONFIGS["deepseek_v3"] | {"first_k_dense_replace": 1})


def test_a_wrong_tokenizer_and_a_prompt_that_does_not_fit(tmp_path):
    folder = write(tmp_path / "m", CONFIGS["llama"])
    path = folder / "tokenizer.json"
    with pytest.raises(FileNotFoundError, match="tokenizer.json is missing"):
        generate.main([str(folder), "a"])
    with pytest.raises(ValueError, match="--temperature must be at least 0 and finite, got -1.0"):
        generate.main([str(folder), "a", "--temperature=-1"])
    path.write_text("{}")
    with pytest.raises(ValueError, match="tokenizer.json is not a tokenizer"):
        generate.main([str(folder), "a"])
    vocabulary = {"a": 0, "b": 1}
    tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [])).save(str(path))
    with pytest.raises(ValueError, match="a prompt of 5 tokens and 6 more do not fit into --length 10"):
        generate.main([str(folder), "ab", "ababa", "--tokens", "6", "--length", "10"])


def test_wrong_prompts(tmp_path):
    model = checkpoint.load(write(tmp_path / "m", CONFIGS["llama"]))
    for prompts, start, message in [
        ([[3], [3] * 9], 0, "prompt 2 has 9 tokens: the cache holds from 1 to 8"),
        ([[]], 0, "prompt 1 has 0 tokens"),
        ([[3, VOCABULARY]], 0, "prompt 1 has token 40 of a vocabulary of 40"),
        ([[3]], 2**31 - 8, "start must be from 0 to 2147483639"),
    ]:
        with pytest.raises(ValueError, match=message):
            generate.prefill(model, prompts, 8, start=start)


def test_wrong_devices(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices(backend="cpu"))  # a GPU is one
    for devices, batch, message in [
        (16, 8, "there are only 8"),
        (6, 4, "heads of keys split over 2, so prompts must come in multiples of 3, got 4"),
    ]:
        with pytest.raises(ValueError, match=f"{devices} devices.* {message}"):
            checkpoint.mesh_of(devices, 2, batch)
