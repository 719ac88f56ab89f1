"""The training demo: `demo/train_text.py` and the page that it writes."""

import contextlib
import functools
import importlib
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import compiler_options, quick
from helpers.tiers import tiered
from oracles import biases

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "demo" / "train_text.py"
# One CPU device as a user has it, not those of conftest.py, and no display.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")} | {
    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
}
TINY = "Setup(width=16, depth=1, heads=2, length=16, batch=2, segments=8)"
NAMES = ["none", "sinusoidal", "learned", "rotary", "yarn", "alibi", "t5", "kerple", "fire", "pope"]
BIASED = NAMES[5:9]
VOID = {"meta", "source", "img", "br"}


def command(setup, *arguments):
    """The demo with this setup, as a command; SIGINT interrupts it even if it is ignored here."""
    code = (
        f"import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"sys.path.insert(0, {str(SCRIPT.parent)!r}); from train_text import Setup, main; "
        f"sys.exit(main(sys.argv[1:], {setup}))"
    )
    return [sys.executable, "-c", code, *map(str, arguments)]


def execute(command):
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)


def load(folder):
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


# results.json of `SHORT`. Lets the page be checked without training.
RECORDED = Path(__file__).parent / "demo_results.json"
SHORT = "Setup(depth=1, segments=8)", "--all", "--steps", "3"


def shape_of(results):
    """The keys and types of nested results, lists by their first element."""
    if isinstance(results, dict):
        return {key: shape_of(value) for key, value in results.items()}
    return [shape_of(results[0])] if isinstance(results, list) and results else type(results).__name__


class Page(HTMLParser):
    """Counts elements, collects what they refer to, and checks that every one is closed."""

    def __init__(self, path):
        super().__init__()
        self.open, self.seen, self.links, self.images, self.text = [], [], [], [], []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.seen.append(tag)
        self.links += [value for name, value in attrs.items() if name in ("src", "srcset", "href")]
        if tag == "img":
            self.images.append(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def train_text(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("train_text")


@pytest.mark.slow
def test_the_command(tmp_path, train_text):
    """As a user gives it, but for few steps, one layer, and less held-out text; all that is looked at is of one run."""
    folder = tmp_path / "new" / "folder"
    process = execute(command(*SHORT, "--output", folder))
    assert process.returncode == 0, process.stderr
    real = folder, process.stdout
    results = load(folder)
    assert results["versions"]["python"] == sys.version.split()[0]
    assert shape_of(results) == shape_of(json.loads(RECORDED.read_text(encoding="utf-8")))
    check_checks(results["checks"])
    check_all(real, train_text)


@pytest.mark.slow
def test_a_page_of_recorded_results(tmp_path, train_text, monkeypatch):
    """All that is written of a run, and none of its training."""
    results, folder = json.loads(RECORDED.read_text(encoding="utf-8")), tmp_path / "recorded"
    folder.mkdir()

    def run(found, tables, setup, output, names):
        assert list(names) == NAMES
        found |= results
        table = np.random.default_rng(0).normal(size=(128, 192)).astype(np.float32)
        train_text.report.write(output, found, {"learned": table})

    monkeypatch.setattr(train_text, "run", run)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # Ctrl-C stays with pytest
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert train_text.main([*SHORT[1:], "--output", str(folder)]) == 0
    check_all((folder, output.getvalue()), train_text)


def check_all(real, train_text):
    check_results(real)
    check_yarn_is_the_rotary_model_evaluated_otherwise(real)
    check_the_page_says_what_yarn_did(real)
    check_the_page_says_who_keeps_the_loss(real, train_text)
    check_page_is_complete_in_itself(real)
    check_output_ends_with_the_table_and_the_page(real)


def check_results(real):
    results = load(real[0])
    assert not results["coming"] and results["steps"] == 3 and results["seed"] == 0
    assert results["data"]["held_out_bytes"] > 2**16
    assert list(results["variants"]) == NAMES
    for name, variant in results["variants"].items():
        assert list(variant["windows"]) == ["128", "256", "512"]
        for length, window in variant["windows"].items():
            if name == "learned" and length != "128":
                reason = f"add_learned: table of 128 rows is too small for a sequence of {length}"
                assert window == {"bits_per_byte": None, "no_answer": reason}
            else:
                assert 1 < window["bits_per_byte"] < 9 and all(map(math.isfinite, window["by_position"]))
                assert len(window["by_position"]) == int(length) // 16
        assert (variant["beyond"] is None) == (name == "learned") and (variant["bias"] is None) == (name not in BIASED)
        assert variant["training"] is None or all(map(math.isfinite, variant["training"]["bits_per_byte"]))
    parameters = {name: variant["parameters"] for name, variant in results["variants"].items()}
    more = {name: count - parameters["none"] for name, count in parameters.items()}
    fire = 32 + 32 + 32 * 4 + 4 + 2
    learned = {"learned": 128 * results["setup"]["width"], "t5": 16 * 4, "kerple": 2 * 4, "fire": fire, "pope": 96}
    assert more == dict.fromkeys(NAMES, 0) | learned


def check_yarn_is_the_rotary_model_evaluated_otherwise(real):
    results = load(real[0])
    rotary, yarn = results["variants"]["rotary"], results["variants"]["yarn"]
    assert yarn["weights"] == "rotary" and yarn["training"] is results["seconds"]["yarn"]["training"] is None
    assert all(variant["weights"] == name for name, variant in results["variants"].items() if name != "yarn")
    assert [yarn["windows"][n] == rotary["windows"][n] for n in ("128", "256", "512")] == [True, False, False]


def test_yarn_differs_from_rotary_in_the_spectrum_of_long_windows(train_text):
    setup, variants = train_text.Setup(), train_text.VARIANTS
    for length in (128, 256, 512):
        plain, scaled = (
            variants[name].attention(setup, None, length).settings.frequencies for name in ("rotary", "yarn")
        )
        assert plain == pe.geometric(24) and scaled == pe.yarn(24, 10_000.0, length / 128, original_max=128)
        assert (plain == scaled) == (length == 128)


def check_the_page_says_what_yarn_did(real):
    text = " ".join("".join(Page(real[0] / "index.html").text).split())
    # By hand: pair i turns 128 · 10000^(−i/12) / 2π times; 20, 9.5, 4.4, 2.04 and then less than once.
    assert "1.14 for s = 2 and 1.30 for s = 4" in text and "the fastest of 12 pairs makes 20," in text
    assert "Left alone: 1; on the ramp: 3; s times more slowly: 8." in text
    windows = {name: load(real[0])["variants"][name]["windows"] for name in ("rotary", "yarn")}
    for n in ("256", "512"):
        plain, scaled = (windows[name][n]["bits_per_byte"] for name in ("rotary", "yarn"))
        assert f"{scaled:.3f} bits instead of {plain:.3f} in windows of {n} bytes" in text
    near = [f"{np.mean(windows[name]['512']['by_position'][:8]):.3f}" for name in ("yarn", "rotary")]
    assert f"where nothing is out of reach, it cost {near[0]} instead of {near[1]}." in text


def check_the_page_says_who_keeps_the_loss(real, train_text):
    results = load(real[0])
    text = " ".join("".join(Page(real[0] / "index.html").text).split())
    labels = [variant["label"] for variant in results["variants"].values()]
    assert f"once with each of: {', '.join(labels[:4] + labels[5:9])} and {labels[9]}." in text
    assert "There is no answer beyond 128 bytes with learned positions" in text
    for variant in results["variants"].values():
        if change := variant["beyond"]:
            numbers = f"{change['difference']:+.3f} ± {change['standard_error']:.3f}".replace("-", "−")
            assert f"{change['verdict']} {numbers}{change['beyond']:.3f} against {change['within']:.3f}" in text
    # The words follow the numbers, whatever they are.
    wanted = {"none": ("loses", 0.2), "rotary": ("loses", 1.25), "t5": ("keeps", -0.01), "fire": ("gains", -0.3)}
    results["variants"]["t5"]["beyond"]["beyond"] = 1.5
    for name, variant in results["variants"].items():
        verdict, difference = wanted.get(name, (None, None))
        variant["beyond"] = variant["beyond"] | {"verdict": verdict, "difference": difference} if verdict else None
    assert (
        "fewer bits with FIRE (−0.30); as many bits with T5’s bias (−0.01); "
        "more bits with no positions (+0.20) and rotary positions (+1.25). They cost the fewest, 1.50, with T5’s bias."
        in train_text.report.words.summary(results)
    )


def test_an_error_that_is_not_about_positions_is_raised(train_text, monkeypatch):
    def bits(*_):
        raise ValueError("unrelated")

    monkeypatch.setattr(train_text, "bits", bits)
    setup, text = train_text.Setup(width=16, depth=1, heads=2, length=16, segments=2), np.zeros(200, np.uint8)
    with pytest.raises(ValueError, match="unrelated"):
        train_text.evaluate(setup, train_text.VARIANTS["none"], None, text)


def test_the_same_bytes_are_compared(train_text, monkeypatch):
    class Fake(nnx.Module):
        def __init__(self, *arguments):
            pass

        def positions(self, x):
            return x

    def bits(graph, weights, windows):  # of a byte: its value, its position in the window, and the byte before it
        return windows[:, 1:] * np.arange(1, windows.shape[1], dtype=np.int32)[None] + windows[:, :-1]

    monkeypatch.setattr(train_text, "Decoder", Fake)
    monkeypatch.setattr(train_text, "bits", bits)
    setup = train_text.Setup(width=16, depth=1, heads=2, length=16, batch=2, segments=16)
    text = np.frombuffer(SCRIPT.read_bytes(), np.uint8)
    windows, beyond = train_text.evaluate(setup, train_text.VARIANTS["none"], None, text)
    costs = {length: np.zeros((16, 64)) for length in (16, 32, 64)}
    for length, found in costs.items():
        for row, start in enumerate(np.linspace(0, len(text) - 65, 16).astype(int)):
            for i in range(64):
                found[row, i] = int(text[start + i + 1]) * (i % length + 1) + int(text[start + i])
        by_position = found.reshape(-1, length // 2, 2).mean(axis=(0, 2))
        assert_within(windows[str(length)]["by_position"], by_position, 1e-4, against=f"a loop over {length} bytes")
        assert windows[str(length)]["bits_per_byte"] == pytest.approx(found.mean(), abs=1e-4)
    near, far = (costs[length][:, 16:].mean(axis=1) for length in (16, 64))
    assert beyond["within"] == pytest.approx(near.mean(), abs=1e-4)
    assert beyond["beyond"] == pytest.approx(far.mean(), abs=1e-4)
    assert beyond["standard_error"] == pytest.approx(np.std(far - near, ddof=1) / 4, abs=1e-4)


@pytest.mark.parametrize(
    "differences, verdict",
    [
        ([1, 2, 3], "loses"),
        ([-1, -2, -3], "gains"),
        ([0.7, 2, 4], "loses"),
        ([-1, 0, 5], "keeps"),  # within two standard errors
        ([0.9, 0.8, 0.85], "keeps"),  # within 1%
        ([-1.1, -1.1, -1.2], "gains"),
    ],
)
def test_a_verdict_needs_one_percent_and_two_standard_errors(differences, verdict, train_text):
    near = 100 + 0.1 * np.random.default_rng(0).normal(size=(3, 8))
    far = near + np.array(differences)[:, None]
    far[:, :2] = 99  # within the training length
    found = train_text.compare(near, far, 2)
    assert found["difference"] == pytest.approx(np.mean(differences), abs=1e-4) and found["verdict"] == verdict
    assert found["standard_error"] == pytest.approx(np.std(differences, ddof=1) / 3**0.5, abs=1e-4)


def test_which_layers_share_a_bias(train_text):
    setup = train_text.Setup(width=16, heads=2, length=16)
    count = {}

    def make(name):
        model = train_text.Decoder(setup, train_text.VARIANTS[name], 0, 16)
        count[name] = len({id(block.attention.attention_fn.bias) for block in model.blocks})

    for name in ("alibi", "t5", "kerple", "fire"):
        jax.eval_shape(functools.partial(make, name))
    assert count == {"alibi": 1, "t5": 1, "kerple": 1, "fire": 2}


@pytest.mark.slow
def test_the_biases_that_are_drawn(train_text):
    setup = train_text.Setup(width=16, heads=2, length=16)
    models = {name: train_text.Decoder(setup, train_text.VARIANTS[name], 0, 16) for name in BIASED}
    drawn = {name: train_text.bias_of(setup, model) for name, model in models.items()}
    distance = np.array(drawn["alibi"]["distance"], np.float64)
    assert distance[0] == 1 and distance[-1] == 63
    want = biases.alibi(distance, [2**-4, 2**-8])[None, :, 0]
    assert_within(drawn["alibi"]["layers"], want, 1e-4, against="slopes times distances")
    kerple = models["kerple"].blocks[1].attention.attention_fn.bias
    want = biases.kerple_log(distance, *(biases.softplus(x[...]) for x in (kerple.free_r1, kerple.free_r2)))[None, :, 0]
    assert_within(drawn["kerple"]["layers"], want, 1e-4, against="the float64 formula")
    table = np.asarray(models["t5"].blocks[0].attention.attention_fn.bias.embedding[...])
    want = [np.tile((table[1] - table[0])[:, None], distance.size)]
    assert_within(drawn["t5"]["layers"], want, 1e-4, against="the difference of two rows")
    for curves, block in zip(drawn["fire"]["layers"], models["fire"].blocks, strict=True):
        fire = block.attention.attention_fn.bias
        far, near = (np.asarray(fire(np.array([63]), np.array([63 - d])))[:, 0, 0] for d in (63, 0))
        assert_within(np.array(curves)[:, -1], far - near, 1e-4, against="the module's own difference")


def logits(name, train_text):
    setup = train_text.Setup(width=16, depth=1, heads=2, length=16)
    model = nnx.eval_shape(lambda: train_text.Decoder(setup, train_text.VARIANTS[name], 0, 16))
    graph, shapes = nnx.split(model)
    weights = jax.tree.map(lambda w: np.random.default_rng(w.size).normal(size=w.shape).astype(w.dtype) / 4, shapes)
    call = quick(lambda weights, tokens: nnx.merge(graph, weights)(tokens))
    return np.asarray(call(weights, np.array([[3, 1, 4, 1, 5]], np.int32)))


@pytest.mark.parametrize("name", tiered([name for name in NAMES if name not in ("none", "yarn")], ["rotary"]))
def test_positions_reach_the_logits(name, train_text):
    assert abs(logits(name, train_text) - logits("none", train_text))[:, 1:].max() > 1e-3


@pytest.mark.slow
def test_initial_weights_are_shared(train_text):
    setup = train_text.Setup(width=16, depth=1, heads=2, length=16)
    own = {"positions", "attention_fn"}
    weights = {}
    for name, variant in train_text.VARIANTS.items():
        state = nnx.to_flat_state(nnx.state(train_text.Decoder(setup, variant, 0, 16)))
        weights[name] = {path: leaf[...] for path, leaf in state if not own & set(path)}
    for name, other in weights.items():
        assert other.keys() == weights["none"].keys()
        for path, drawn in other.items():
            np.testing.assert_array_equal(drawn, weights["none"][path], err_msg=f"{path} of {name}")


@pytest.mark.slow
def test_the_checks_pass(train_text):
    setup = train_text.Setup()
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as a user has them
        check_checks(train_text.checks.run(setup.width, setup.head_dim, 0))


def check_checks(checks):
    assert len(checks) == 11
    for check in checks:
        assert check["passed"], check
        assert math.isfinite(check["value"])
    assert checks[5]["float32_formula"] > 0.1 > 9e-8 >= checks[5]["value"]
    assert checks[6]["float32_formula"] > 0.1 > 1.2e-6 >= checks[6]["value"]
    assert checks[8]["float32_formula"] > 0 and checks[9]["float32_formula"] > 1000


@pytest.mark.slow
def test_the_check_of_scores_finds_what_is_wrong(train_text, monkeypatch):
    checks = train_text.checks
    monkeypatch.setattr(pe, "rotary", lambda x, positions, head_axis: checks.textbook_rotary(x, positions))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as a user has them
        assert not checks.scores(24, 0)["passed"]


@pytest.mark.slow
def test_the_check_of_decoding_finds_what_is_wrong(train_text, monkeypatch):
    checks, rotary = train_text.checks, functools.partial(pe.rotary, head_axis=-2)
    monkeypatch.setattr(pe, "rotary", lambda x, positions, head_axis: rotary(x, positions - positions[0]))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        assert not checks.decoding(24, 0)["passed"]


@pytest.mark.slow
def test_checks_of_biases_find_what_is_wrong(train_text, monkeypatch):
    checks, alibi, t5 = train_text.checks, pe.alibi, pe.t5

    def in_float32(queries, keys, heads):
        return alibi(*(np.minimum(np.float32(p), np.float32(2**31 - 128)) for p in (queries, keys)), heads)

    def textbook(queries, keys, table, **settings):
        rows = checks.textbook_bucket(-keys, len(table), settings["max_distance"])
        return table[rows].T[:, None]

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as a user has them
        monkeypatch.setattr(pe, "t5", textbook)
        assert not checks.buckets()["passed"]
        monkeypatch.setattr(pe, "t5", t5)
        monkeypatch.setattr(pe, "alibi", in_float32)
        assert not checks.tiles(0)["passed"]
        monkeypatch.setattr(pe, "alibi", lambda i, j, heads: alibi(i, j, heads)[::-1])
        assert not checks.blocks(24, 0)["passed"]


def check_page_is_complete_in_itself(real):
    page = Page(real[0] / "index.html")
    assert page.links and all(link.startswith("data:image/svg+xml;base64,") for link in page.links)
    source = (real[0] / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script|<link|@import|url\(", source)
    assert {"main", "h1", "table", "caption", "figure", "figcaption", "picture"} <= set(page.seen)
    assert page.seen.count("img") == page.seen.count("source") == 18
    assert all(len(image["alt"]) > 20 for image in page.images)
    text = "".join(page.text)
    assert "no answer" in text and "prefers-color-scheme: dark" in source


@pytest.mark.slow
def test_a_page_that_grows(tmp_path, train_text):
    """What is there before the first model, while others train, and once all are finished or the run is interrupted."""
    results = json.loads(RECORDED.read_text(encoding="utf-8"))
    variants = {name: results["variants"][name] for name in NAMES[:6]}

    def written(finished, **changes):
        found = results | {"variants": {name: variants[name] for name in NAMES[:finished]}} | changes
        train_text.report.write(tmp_path, found, {})
        page = Page(tmp_path / "index.html")
        return " ".join("".join(page.text).split()), "refresh" in (tmp_path / "index.html").read_text(encoding="utf-8")

    coming = {"rotary positions": 0, "ALiBi": 0}
    text, reloads = written(0, coming=coming, checks=[], data={})
    assert "Still to come: rotary positions and ALiBi. The page grows" in text and reloads
    assert "No model is finished yet." in text and "The verdict is on" not in text
    assert "Being checked." in text and "✓ holds" not in text
    text, reloads = written(3, coming=coming | {"rotary positions": 2})
    assert "Still to come: rotary positions (step 2 of 3) and ALiBi. The page grows" in text and reloads
    assert "learned positions" in text and "The verdict is on" in text and "✓ holds" in text
    text, reloads = written(3, coming=coming, interrupted=True)
    assert "The run was interrupted: not finished are rotary positions and ALiBi." in text and not reloads
    text, reloads = written(6)
    assert "Still to come" not in text and "ALiBi’s is −m|i − j|" in text and not reloads
    assert not re.search("(T5|KERPLE|FIRE) learns", text)


def check_output_ends_with_the_table_and_the_page(real):
    folder, output = real
    *_, none, sinusoidal, learned, rotary, yarn, alibi, t5, kerple, fire, pope, blank, path = output.splitlines()
    assert learned.split()[:2] == ["learned", "positions"] and learned.count("no answer") == 3 and not blank
    assert rotary.endswith(" s") and yarn.endswith("none") and yarn.split()[3] == rotary.split()[2]
    change = load(folder)["variants"]["fire"]["beyond"]
    assert (
        pope.split()[0] == "PoPE"
        and fire.split()[0] == "FIRE"
        and f"{change['verdict']} ({change['difference']:+.3f})" in fire
    )
    assert path == str((folder / "index.html").resolve())
    assert sorted(p.name for p in folder.iterdir()) == ["index.html", "results.json"]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers(train_text, monkeypatch):
    monkeypatch.setattr(jax, "jit", functools.partial(jax.jit, compiler_options=compiler_options()))
    setup = train_text.Setup(width=16, depth=1, heads=2, length=16, batch=2, segments=8)
    text, variant = np.frombuffer(SCRIPT.read_bytes(), np.uint8), train_text.VARIANTS["learned"]

    def losses_and_answers(seed):
        model, losses = train_text.train(setup, variant, text, 5, seed)
        return losses, train_text.evaluate(setup, variant, nnx.state(model), text)

    with jax.numpy_dtype_promotion("standard"):  # which optax needs
        once, again = losses_and_answers(1), losses_and_answers(1)
        _, other = train_text.train(setup, variant, text, 5, 2)
    assert once == again and once[0] != other


@pytest.mark.slow
def test_an_interruption_keeps_what_is_finished(tmp_path):
    with subprocess.Popen(
        command(TINY, "--steps", 3000, "--output", tmp_path),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + 200
        while not ((tmp_path / "results.json").exists() and load(tmp_path)["variants"]):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 130
    assert "Finished and kept" in output and "no positions" in output
    results = load(tmp_path)
    assert results["interrupted"] and "none" in results["variants"] and "learned" not in results["variants"]
    assert "ALiBi" in results["coming"] and "FIRE" not in results["coming"]
    assert "The run was interrupted: not finished are" in "".join(Page(tmp_path / "index.html").text)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index.html", "results.json"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--steps", "0"], "argument --steps: must be at least 1, got 0"),
        (["--steps", "many"], "argument --steps: must be a whole number, got 'many'"),
        (["--seed", "-1"], "argument --seed: must be at least 0 and at most 2147483647, got -1"),
        (["--output", str(SCRIPT)], "cannot be a folder: File exists"),
    ],
)
def test_wrong_options_are_explained(arguments, message, train_text, capsys):
    with pytest.raises(SystemExit) as error:
        train_text.main(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_script_runs_as_a_command():
    process = execute([sys.executable, str(SCRIPT), "--help"])
    assert process.returncode == 0 and "for each model (default: 500)" in process.stdout
