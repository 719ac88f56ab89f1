"""Training over several processes, `examples/train_distributed.py`.

- Losses are the losses of one process, whichever axis is split across the processes.
- Training goes on from a checkpoint as if it had never stopped.
- If a process dies, the launcher names it, ends the others, and leaves nothing behind.
"""

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

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "examples"))

import train_distributed as program  # noqa: E402

NAMES = ["sinusoidal", "rotary", "t5"]  # one of each kind
SETUP = program.Setup(width=16, depth=1, heads=2, length=32, batch=4)
STEPS, EVERY, DEATH = 6, 2, 4  # steps of a run, steps from checkpoint to checkpoint, the step at which a process dies
# The loss is a mean of 128 numbers: 8 devices sum 16 each, and the 8 sums are summed. In any order, a sum of n numbers
# is within a fraction n·2⁻²⁴ of the true sum, and two orders may be off on both sides. The bound holds for the first
# step. Later steps also depend on sums of gradients; there at most 1.2e-7 was seen, which is within the bound.
TOLERANCE = 2 * (SETUP.batch * SETUP.length / 8 + 8) * 2.0**-24
PATIENCE = 300  # seconds for any command; only a failing test waits so long
MARGIN = 10  # seconds by which a busy machine may be late to end processes, and to say so


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A function that starts the program with arguments; `patch` is Python that every process runs first."""
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")} | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
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
    """The printed losses: variant → step → loss."""
    found = {}
    for entry in (json.loads(line) for line in text.splitlines() if line.startswith("{")):
        found.setdefault(entry["variant"], {})[entry["step"]] = entry["loss"]
    return found


def trained(process):
    """The losses of a process that must succeed."""
    status, output, errors = end(process)
    assert status == 0, errors
    return losses(output)


def none_runs(errors):
    """Whether none of the processes that the launcher named still runs."""
    pids = re.findall(r"^process \d+: pid (\d+)", errors, re.M)
    states = subprocess.run(["ps", "-o", "stat=", "-p", ",".join(pids)], capture_output=True, text=True).stdout.split()
    return all(state.startswith("Z") for state in states)


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
    """Asserts that `got` has the losses of these steps, and no others."""
    assert sorted(got) == list(steps)
    np.testing.assert_allclose([got[i] for i in steps], [want[i] for i in steps], rtol=TOLERANCE, atol=0)


# Losses


def test_losses_of_two_processes_are_those_of_one(start, one, undisturbed):
    for found in (undisturbed[0], trained(start("--across", "sequence", "--variant", *NAMES))):
        for name in NAMES:
            check_same(found[name], one[name])
    # Models that differ in their positions alone have different losses, so the comparison can tell them apart.
    rotary, t5 = one["rotary"][STEPS], one["t5"][STEPS]
    assert abs(rotary - t5) > 20 * TOLERANCE * rotary


def test_every_device_holds_its_part_alone(undisturbed):
    """Each process logs the rows and columns that its four devices hold: half of the batch, a quarter of 32 tokens."""
    for i, rows in enumerate([(0, 2), (2, 4)]):
        log = (undisturbed[1] / f"process-{i}.log").read_text(encoding="utf-8")
        (held,) = {line for line in log.splitlines() if line.startswith("holds")}
        parts = sorted(map(tuple, ast.literal_eval(held.removeprefix("holds "))))
        assert parts == [(rows, (column, column + 8)) for column in range(0, 32, 8)]


# Deaths


def at(step, **does):
    """A patch with which processes run Python when they begin a step: at(2, process_1="…")."""
    deeds = "".join(
        f"    if step == {step} and program.jax.process_index() == {name[-1]}: {does[name]}\n" for name in does
    )
    whole = "whole = program.batch\ndef batch(setup, text, step):\n"
    return f"{whole}{deeds}    return whole(setup, text, step)\nprogram.batch = batch"


# What a process runs. It prints when it dies, by the machine's monotonic clock, which all processes share.
DYING = "print('dies at', time.monotonic(), flush=True); "
SIGKILL, SIGSTOP = (DYING + "os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGSTOP)")


def errors_of_dying(process, grace=program.GRACE):
    """The output and errors of a command that must fail and end all processes within grace + MARGIN of a death."""
    status, output, errors = end(process)
    (death,) = re.findall(r"^    dies at (\S+)$", errors, re.M)
    assert time.monotonic() - float(death) <= grace + MARGIN
    assert status == 1 and none_runs(errors)
    return output, errors


@pytest.fixture(scope="module")
def died(start, tmp_path_factory):
    """Training in which process 1 is killed: the output and errors, and the folder of its checkpoints."""
    folder = tmp_path_factory.mktemp("died")
    process = start("--variant", "t5", "--checkpoints", folder, patch=at(DEATH, process_1=SIGKILL))
    return *errors_of_dying(process), folder


def test_a_process_that_is_killed_is_named(died, undisturbed):
    output, errors, _ = died
    assert losses(output) == {"t5": {i: undisturbed[0]["t5"][i] for i in range(1, DEATH)}}
    assert re.search(rf"^error: process 1 .* was killed by SIGKILL, after step {DEATH - 1} of t5", errors, re.M)
    assert errors.endswith("To go on from the last checkpoint, give the same command with --resume.\n")


# The steps that a resumed run repeats or adds: from the last checkpoint before DEATH
RESUMED = range((DEATH - 1) // EVERY * EVERY + 1, STEPS + 1)


def test_training_goes_on_as_if_nothing_had_happened(start, died, undisturbed, tmp_path):
    folder = shutil.copytree(died[2], tmp_path / "two")
    (found,) = trained(start("--variant", "t5", "--checkpoints", folder, "--resume")).values()
    assert found == {i: undisturbed[0]["t5"][i] for i in RESUMED}


def test_one_process_goes_on_from_the_checkpoint_of_two(start, died, one, tmp_path):
    folder = shutil.copytree(died[2], tmp_path / "one")
    command = ["--processes", 1, "--devices", 8, "--variant", "t5", "--checkpoints", folder, "--resume"]
    (found,) = trained(start(*command)).values()
    check_same(found, one["t5"], RESUMED)


def test_a_process_that_is_killed_while_a_checkpoint_is_written(start, undisturbed, tmp_path):
    """Process 1 dies before it writes its part of the checkpoint after step 4, whose folder keeps a temporary name.

    Training then goes on from the checkpoint after step 2.
    """
    patch = f"""
import orbax.checkpoint as ocp
whole = ocp.StandardCheckpointHandler.async_save
async def write(handler, directory, *args, **kwargs):
    if "{2 * EVERY}.orbax" in str(directory) and program.jax.process_index() == 1:
        {SIGKILL}
    return await whole(handler, directory, *args, **kwargs)
ocp.StandardCheckpointHandler.async_save = write
"""
    command = "--variant", "t5", "--checkpoints", tmp_path
    errors_of_dying(start(*command, patch=patch))
    kept = sorted(path.name for path in (tmp_path / "t5").iterdir())
    assert kept[0] == str(EVERY) and len(kept) == 2 and kept[1].startswith(f"{2 * EVERY}.orbax-checkpoint-tmp")
    found = trained(start(*command, "--resume"))["t5"]
    assert found == {i: undisturbed[0]["t5"][i] for i in range(EVERY + 1, STEPS + 1)}


def test_a_process_that_never_ends_is_ended(start):
    """Process 1 exits; process 0, which is stopped, is ended after GRACE."""
    patch = "program.GRACE = 2\n" + at(2, process_0=SIGSTOP, process_1=f"time.sleep(1); {DYING}os._exit(0)")
    _, errors = errors_of_dying(start("--variant", "t5", patch=patch), grace=2)
    assert re.search(r"^error: process 1 .* ended with status 0, after step 1 of t5", errors, re.M)
    assert re.search(r"^process 0 .* still waited after 2 s, so it was ended", errors, re.M)


def test_a_process_that_falls_silent_is_ended(start):
    """Process 1 is stopped: without its heartbeat, JAX aborts process 0, and the launcher ends process 1."""
    patch = "program.GRACE, program.HEARTBEAT = 2, 5\n" + at(2, process_1=DYING + SIGSTOP)
    _, errors = errors_of_dying(start("--variant", "t5", patch=patch), grace=2 * 5 + 2)
    assert re.search(r"^error: process 0 .* was killed by SIGABRT, after step 1 of t5", errors, re.M)
    assert re.search(r"^process 1 .* still waited after 2 s, so it was ended", errors, re.M)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_nothing_is_left_of_what_is_interrupted(start, number, status):
    """No process of the launcher runs on; no temporary folder stays, unless the launcher itself was killed."""
    before = set(start.temporary.glob("train_distributed-*"))
    process = start("--variant", "t5", patch=at(2, process_0="time.sleep(1000)", process_1="time.sleep(1000)"))
    assert json.loads(process.stdout.readline())["step"] == 1
    process.send_signal(number)
    found, _, errors = end(process)
    assert found == status
    until = time.monotonic() + PATIENCE
    while not none_runs(errors):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert number == signal.SIGKILL or set(start.temporary.glob("train_distributed-*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume", "--checkpoints", "{empty}"], "--resume: no checkpoint of rotary in {empty}"),
        (["--checkpoints", "{full}"], "{full} has checkpoints of rotary: add --resume"),
        (["--data", "3"], "--data: must divide 8 devices and a batch of 8, got 3"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, tmp_path, capsys, monkeypatch):
    (tmp_path / "rotary" / "2").mkdir(parents=True)
    places = {"empty": tmp_path / "empty", "full": tmp_path}
    monkeypatch.setattr(sys, "argv", ["train_distributed.py", *(argument.format(**places) for argument in arguments)])
    with pytest.raises(SystemExit):
        program.main()
    assert message.format(**places) in " ".join(capsys.readouterr().err.split())
