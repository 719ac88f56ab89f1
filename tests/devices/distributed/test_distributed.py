"""Training over several processes, `examples/train_distributed.py`: losses, checkpoints, and processes that die."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "examples"))

import train_distributed as program  # noqa: E402

from posenc_jax.nnx import LearnedEncoding, SinusoidalEncoding  # noqa: E402

NAMES = ["sinusoidal", "rotary", "alibi", "learned", "t5"]
SETUP = program.Setup(width=16, depth=1, heads=2, length=32, batch=4)
STEPS, EVERY, DEATH = 6, 2, 4
PARTS = 4  # of a sequence, on two rows of four devices
# The loss is a mean of 128, as sums of 16 on each of 8 devices and a sum of those. In whatever order, a sum of n is
# within a fraction n·2⁻²⁴ of the true one; of two orders each may be. That holds of the first step; of later ones, in
# which the gradients' sums are too, it is what was seen: 1.2e-7 at most.
TOLERANCE = 2 * (SETUP.batch * SETUP.length / 8 + 8) * 2.0**-24
PATIENCE = 300  # seconds for any command: only a test that fails ever waits for it
MARGIN = 10  # seconds by which a busy machine may be late to end processes, and to say so


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts the program, with lines of Python run first in the launcher and in each of its processes."""
    cache = tmp_path_factory.mktemp("compiled")
    hidden = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    environment = {k: v for k, v in os.environ.items() if k not in hidden} | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "TMPDIR": str(tmp_path_factory.mktemp("temporary")),
    }

    def run(*arguments, patch=""):
        code = (
            "import os, signal, sys, time; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            f"sys.path.insert(0, {str(ROOT / 'examples')!r}); import train_distributed as program\n"
            f"{patch}\nsys.exit(program.main(program.{SETUP!r}))"
        )
        command = [sys.executable, "-c", code, "--steps", str(STEPS), "--every", str(EVERY), *map(str, arguments)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    run.temporary = Path(environment["TMPDIR"])
    return run


def end(process):
    """The status, output and errors of a process that should end by itself."""
    try:
        output, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, output, errors


def losses(text):
    """variant → step → loss."""
    found = {}
    for line in text.splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            assert entry["step"] not in found.setdefault(entry["variant"], {})
            found[entry["variant"]][entry["step"]] = entry["loss"]
    return found


def trained(process):
    status, output, errors = end(process)
    assert status == 0, errors
    return losses(output)


def pids(errors):
    return [int(pid) for pid in re.findall(r"^process \d+: pid (\d+)", errors, re.M)]


def running(pid):
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


@pytest.fixture(scope="module")
def undisturbed(start, tmp_path_factory):
    """The losses of two processes, the batch split across them, and the folder of their checkpoints."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return trained(start("--variant", *NAMES, "--checkpoints", folder)), folder


@pytest.fixture(scope="module")
def one(start):
    """The losses of one process with as many devices."""
    return trained(start("--processes", 1, "--devices", 8, "--variant", *NAMES))


def check_same(got, want, steps=range(1, STEPS + 1)):
    assert sorted(got) == list(steps)
    print("largest relative difference of losses:", max(abs(got[i] / want[i] - 1) for i in steps))
    np.testing.assert_allclose([got[i] for i in steps], [want[i] for i in steps], rtol=TOLERANCE, atol=0)


# Losses


def test_the_batch_across_two_processes(one, undisturbed):
    for name in NAMES:
        check_same(undisturbed[0][name], one[name])


def held(log):
    """The rows and the columns of each device's part of a batch."""
    (line,) = {line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("holds")}
    return sorted(map(tuple, ast.literal_eval(line.removeprefix("holds "))))


def test_every_device_holds_its_part_alone(start, undisturbed, tmp_path):
    rows, columns = ((0, 2), (2, 4)), tuple((i, i + 8) for i in range(0, 32, 8))
    trained(start("--across", "sequence", "--variant", "sinusoidal", "--steps", 1, "--checkpoints", tmp_path))
    for i in (0, 1):
        log = f"process-{i}.log"
        assert held(undisturbed[1] / log) == [(rows[i], column) for column in columns]
        assert held(tmp_path / log) == [(row, column) for row in rows for column in columns[2 * i : 2 * i + 2]]


def test_every_process_has_the_same_losses(undisturbed):
    found, folder = undisturbed
    for log in ("process-0.log", "process-1.log"):
        assert losses((folder / log).read_text(encoding="utf-8")) == found


def test_the_sequence_across_two_processes(start, one):
    names = ["sinusoidal", "rotary", "t5"]  # one of each kind
    found = trained(start("--across", "sequence", "--variant", *names))
    assert list(found) == names
    for name in names:
        check_same(found[name], one[name])


class Local(nnx.Module):
    """With positions that begin anew in each part of the sequence."""

    def __init__(self, of, name):
        self.of, self.name = of, name

    def __call__(self, x, *args, **kwargs):
        positions = jnp.arange(SETUP.length) % (SETUP.length // PARTS)
        return self.of(x, *args, **kwargs | {self.name: positions})


def local(variant):
    def embed(s, rngs):
        inner = variant.embed(s, rngs)
        return Local(inner, "positions") if isinstance(inner, (SinusoidalEncoding, LearnedEncoding)) else inner

    def attention(s, rngs):
        inner = variant.attention(s, rngs)
        return inner if inner is nnx.dot_product_attention else Local(inner, "input_positions")

    return program.Variant(embed, attention)


def on_one_device(variant):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "sequence"))
    with jax.numpy_dtype_promotion("standard"):  # for optax
        return dict(program.train(SETUP, variant, mesh, program.read_text(), STEPS, program.Keep(None, EVERY)))


def test_one_device(one):
    check_same(on_one_device(program.VARIANTS["t5"]), one["t5"])


@pytest.mark.parametrize("name", NAMES)
def test_control_positions_that_begin_anew_in_each_part(name, one):
    found = on_one_device(local(program.VARIANTS[name]))
    assert abs(found[STEPS] - one[name][STEPS]) > 20 * TOLERANCE * one[name][STEPS]
    with pytest.raises(AssertionError):
        check_same(found, one[name])


# Checkpoints


def paths(tree):
    """path → shape."""
    return {jax.tree_util.keystr(at, simple=True, separator="/"): x.shape for at, x in jax.tree.leaves_with_path(tree)}


def test_encodings_add_their_parameters_to_a_checkpoint_and_nothing_else(undisturbed):
    none = paths(nnx.to_pure_dict(nnx.state(program.Decoder(SETUP, program.VARIANTS["none"], nnx.Rngs(0)))))
    more = {
        "learned": {"positions/embedding": (SETUP.length, SETUP.width)},
        "t5": {"blocks/0/attention/attention_fn/bias/embedding": (SETUP.length // 8, SETUP.heads)},
    }
    assert len(none) == 15
    for name in NAMES:
        weights = none | more.get(name, {})
        adam = {f"{moment}/{path}": shape for path, shape in weights.items() for moment in ("mu", "nu")} | {"count": ()}
        expected = {f"weights/{path}": shape for path, shape in weights.items()}
        expected |= {f"optimizer/1/0/{path}": shape for path, shape in adam.items()}
        kept = ocp.StandardCheckpointer().metadata(undisturbed[1] / name / str(STEPS) / "default")
        assert paths(kept.item_metadata.tree) == expected


def test_both_processes_write_a_checkpoint(undisturbed):
    for name in NAMES:
        for process in (0, 1):
            data = undisturbed[1] / name / str(STEPS) / "default" / f"ocdbt.process_{process}" / "d"
            assert sum(file.stat().st_size for file in data.iterdir()) > 1024


# Deaths


def at(step, **does):
    """Python that makes process 0 or 1 do something when it begins a step."""
    deeds = "".join(
        f"    if step == {step} and program.jax.process_index() == {name[-1]}: {does[name]}\n" for name in does
    )
    return f"whole = program.batch\ndef batch(setup, text, step):\n{deeds}    return whole(setup, text, step)\nprogram.batch = batch"


DYING = "print('dies at', time.monotonic(), flush=True); "  # on the clock of the machine, which all processes share
SIGKILL, SIGSTOP = (DYING + "os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGSTOP)")


def end_of_dying(process, grace=program.GRACE):
    """The status, output and errors of a process that should end, others with it, soon after one says that it dies."""
    status, output, errors = end(process)
    (death,) = re.findall(r"^    dies at (\S+)$", errors, re.M)
    late = time.monotonic() - float(death)
    print(f"ended {late:.1f} s after the death")
    assert late <= grace + MARGIN
    return status, output, errors


@pytest.fixture(scope="module")
def died(start, tmp_path_factory):
    """Training in which process 1 is killed: the result of the command, and the folder of its checkpoints."""
    folder = tmp_path_factory.mktemp("died")
    return end_of_dying(start("--variant", "t5", "--checkpoints", folder, patch=at(DEATH, process_1=SIGKILL))), folder


def test_a_process_that_is_killed(died, undisturbed):
    (status, output, errors), folder = died
    assert status == 1
    assert losses(output) == {"t5": {i: undisturbed[0]["t5"][i] for i in range(1, DEATH)}}
    zero, one = pids(errors)
    cause = f"process 1 (pid {one}) was killed by SIGKILL, after step {DEATH - 1} of t5"
    assert f"{cause}; the others have {program.GRACE} s" in errors
    assert f"error: {cause}. Its last lines in {folder / 'process-1.log'}:\n" in errors
    # Process 0 says itself that it lost another: by Gloo's error at once, or JAX's when no heartbeat came.
    (rest,) = re.findall(rf"^process 0 \(pid {zero}\) (.*\n(?:    .*\n)+)", errors, re.M)
    assert "ended with status 75" in rest or "was killed by SIGABRT" in rest
    assert "lost another one" in rest or "another task died" in rest
    assert errors.endswith("To go on from the last checkpoint, give the same command with --resume.\n")
    assert not running(zero) and not running(one)


def test_training_goes_on_as_if_nothing_had_happened(start, died, undisturbed, tmp_path):
    folder = shutil.copytree(died[1], tmp_path / "two")
    (found,) = trained(start("--variant", "t5", "--checkpoints", folder, "--resume")).values()
    last = (DEATH - 1) // EVERY * EVERY
    assert found == {i: undisturbed[0]["t5"][i] for i in range(last + 1, STEPS + 1)}


def test_one_process_goes_on_from_the_checkpoint_of_two(start, died, one, tmp_path):
    folder = shutil.copytree(died[1], tmp_path / "one")
    command = ["--processes", 1, "--devices", 8, "--variant", "t5", "--checkpoints", folder, "--resume"]
    (found,) = trained(start(*command)).values()
    check_same(found, one["t5"], range((DEATH - 1) // EVERY * EVERY + 1, STEPS + 1))


@pytest.mark.parametrize("process", [0, 1])
def test_a_process_that_is_killed_while_a_checkpoint_is_written(start, undisturbed, tmp_path, process):
    # Of the checkpoint after step 4, whose folder is there under a temporary name, one process writes nothing.
    patch = f"""
import orbax.checkpoint as ocp
whole = ocp.StandardCheckpointHandler.async_save
async def write(handler, directory, *args, **kwargs):
    if "{2 * EVERY}.orbax" in str(directory) and program.jax.process_index() == {process}:
        {SIGKILL}
    return await whole(handler, directory, *args, **kwargs)
ocp.StandardCheckpointHandler.async_save = write
"""
    command = "--variant", "t5", "--checkpoints", tmp_path
    status, output, errors = end_of_dying(start(*command, patch=patch))
    assert status == 1
    killed = rf"^error: process {process} \(pid \d+\) was killed by SIGKILL, after step {2 * EVERY} of t5"
    assert re.search(killed, errors, re.M)
    assert not any(map(running, pids(errors)))
    kept = sorted(path.name for path in (tmp_path / "t5").iterdir())
    assert kept[0] == str(EVERY) and len(kept) == 2 and kept[1].startswith(f"{2 * EVERY}.orbax-checkpoint-tmp")
    found = trained(start(*command, "--resume"))["t5"]
    assert found == {i: undisturbed[0]["t5"][i] for i in range(EVERY + 1, STEPS + 1)}


def test_an_error_in_the_first_process(start):
    status, output, errors = end(start("--variant", "t5", patch=at(2, process_0="raise ValueError('no such window')")))
    assert status == 1 and list(losses(output)["t5"]) == [1]
    assert re.search(
        r"^error: process 0 \(pid \d+\) ended with status 1, after step 1 of t5\. .*\n(    .*\n)*    ValueError: no such window\n",
        errors,
        re.M,
    )
    folders = list(start.temporary.glob("train_distributed-*"))
    assert len(folders) == 1 and f"{folders[0] / 'process-1.log'}:\n" in errors  # what they wrote is still there
    shutil.rmtree(folders[0])


def test_an_error_of_xla_in_a_process_is_its_own(start):
    error = "raise program.jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: out of memory')"
    status, _, errors = end(start("--variant", "t5", patch=at(2, process_1=error)))
    assert status == 1
    assert re.search(r"^error: process 1 \(pid \d+\) ended with status 1, after step 1 of t5", errors, re.M)
    assert "process 1 lost another one" not in errors
    for folder in start.temporary.glob("train_distributed-*"):
        shutil.rmtree(folder)


def test_a_process_that_never_ends_is_ended(start):
    patch = "program.GRACE = 2\n" + at(2, process_0=SIGSTOP, process_1=f"time.sleep(1); {DYING}os._exit(0)")
    status, _, errors = end_of_dying(start("--variant", "t5", patch=patch), grace=2)
    assert status == 1
    zero, one = pids(errors)
    assert f"error: process 1 (pid {one}) ended with status 0, after step 1 of t5" in errors
    assert f"process 0 (pid {zero}) still waited after 2 s, so it was ended, after step 1 of t5" in errors
    assert not running(zero) and not running(one)


def test_a_process_that_falls_silent(start):
    patch = "program.GRACE, program.HEARTBEAT = 2, 5\n" + at(2, process_1=DYING + SIGSTOP)
    status, _, errors = end_of_dying(start("--variant", "t5", patch=patch), grace=2 * 5 + 2)
    assert status == 1 and "stopped sending heartbeats" in errors
    assert re.search(r"^error: process 0 .* was killed by SIGABRT, after step 1 of t5", errors, re.M)
    assert re.search(r"^process 1 .* still waited after 2 s, so it was ended, after step 1 of t5", errors, re.M)
    assert not any(map(running, pids(errors)))


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_nothing_is_left_of_what_is_interrupted(start, number, status):
    before = set(start.temporary.glob("train_distributed-*"))
    process = start("--variant", "t5", patch=at(2, process_0="time.sleep(1000)", process_1="time.sleep(1000)"))
    assert json.loads(process.stdout.readline())["step"] == 1
    process.send_signal(number)
    found, output, errors = end(process)
    assert found == status and not losses(output) and len(pids(errors)) == 2
    until = time.monotonic() + PATIENCE
    while any(map(running, pids(errors))):
        assert time.monotonic() < until
        time.sleep(0.1)
    if number != signal.SIGKILL:
        assert set(start.temporary.glob("train_distributed-*")) == before
        assert errors.endswith("\ninterrupted; all processes are ended\n" if number == signal.SIGINT else "log\n")


# What is asked for


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--resume"], "--resume: needs --checkpoints FOLDER"),
        (["--resume", "--checkpoints", "{empty}"], "--resume: no checkpoint of rotary in {empty}"),
        (["--checkpoints", "{full}"], "{full} has checkpoints of rotary: add --resume, or name another folder"),
        (["--data", "3"], "--data: must divide 8 devices and a batch of 8, got 3"),
        (["--devices", "0"], "--devices: must be a whole number of at least 1, got '0'"),
        (["--devices", "5"], "5 parts of a sequence of 128: give --devices or --data another number"),
        (["--variant", "yarn"], "invalid choice: 'yarn'"),
    ],
)
def test_what_cannot_be_done(arguments, message, tmp_path, capsys, monkeypatch):
    (tmp_path / "rotary" / "2").mkdir(parents=True)
    places = {"empty": tmp_path / "empty", "full": tmp_path}
    monkeypatch.setattr(sys, "argv", ["train_distributed.py", *(argument.format(**places) for argument in arguments)])
    with pytest.raises(SystemExit) as error:
        program.main()
    assert error.value.code == 2 and message.format(**places) in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "empty").exists()
