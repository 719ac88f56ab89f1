"""Every check and program of the project: `nox -l` lists them, `nox -s NAME` runs one."""

import shutil
import subprocess
from pathlib import Path

import nox

nox.options.sessions = ["tests", "lint", "types"]
nox.options.reuse_venv = "yes"

PROJECT = nox.project.load_toml("pyproject.toml")
ACCELERATORS = {"cpu": [], "cuda13": ["jax[cuda13]"], "tpu": ["jax[tpu]"]}
# The first computes; tests of several devices take those of the CPU.
PLATFORMS = {"cpu": "cpu", "cuda13": "cuda,cpu", "tpu": "tpu,cpu"}
# A TPU's compiler runs without the device when it is told not to look for one.
NO_TPU = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
}
# Where the JAX project puts its nightly builds.
JAX_NIGHTLY = "https://us-python.pkg.dev/ml-oss-artifacts-published/jax/simple/"
# The CUDA compiler alone: neither cuDNN nor cuBLAS nor NCCL.
CUDA_COMPILER = ["jax-cuda13-plugin", "jax-cuda13-pjrt"] + [
    f"nvidia-{name}" for name in ("cuda-nvcc", "nvvm", "cuda-runtime", "nvjitlink", "cuda-cupti", "cuda-nvrtc")
]


def group(name):
    return nox.project.dependency_groups(PROJECT, name)


def missing(accelerator):
    """Why an accelerator cannot be tested here, or None."""
    if accelerator == "cuda13":
        answers = (
            shutil.which("nvidia-smi") and not subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode
        )
        return None if answers else "no NVIDIA GPU answers here (nvidia-smi -L)"
    if accelerator == "tpu":
        devices = [*Path("/dev").glob("accel[0-9]*"), *Path("/dev/vfio").glob("[0-9]*")]
        return None if devices else "no TPU here (neither /dev/accel* nor /dev/vfio/*)"
    return None


def pytest(session, *args, **environment):
    session.run("pytest", *args, *session.posargs, env=environment)


@nox.session
@nox.parametrize("accelerator", [nox.param(name, id=name) for name in ACCELERATORS])
def tests(session, accelerator):
    """The test suite on the CPU, and on an NVIDIA GPU and a TPU where one answers; else those are skipped."""
    if reason := missing(accelerator):
        session.skip(reason)
    session.install("-e", ".[plot,demo]", *group("test"), *ACCELERATORS[accelerator])
    workers = ["-n", "auto"] if accelerator == "cpu" else []  # one process holds an accelerator
    pytest(session, *workers, JAX_PLATFORMS=PLATFORMS[accelerator])


@nox.session
def x64(session):
    """The test suite with jax_enable_x64 on from the start."""
    session.install("-e", ".[plot,demo]", *group("test"))
    pytest(session, "-n", "auto", JAX_PLATFORMS="cpu", POSENC_TEST_X64="1")


@nox.session(python="3.11")
def minimums(session):
    """The test suite on the lowest versions that pyproject.toml allows."""
    requirements = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["demo"]
    session.install("-e", ".[plot,demo]", *group("test"), *(r.replace(">=", "==") for r in requirements))
    pytest(session, "-n", "auto", JAX_PLATFORMS="cpu")


@nox.session
def nightly(session):
    """The test suite on tonight's JAX and Flax and the newest NumPy, released or not; needs the network."""
    session.install("-e", ".[plot,demo]", *group("test"))
    session.install("-U", "--pre", "jax", "jaxlib", "numpy", "--extra-index-url", JAX_NIGHTLY)
    session.install("-U", "flax @ git+https://github.com/google/flax")
    pytest(session, "-n", "auto", JAX_PLATFORMS="cpu")


@nox.session
def exports(session):
    """What `jax.export` makes on the lowest JAX allowed, loaded on the newest that this Python has."""
    session.install("-U", "-e", ".", *group("test"), "jax")
    folder = Path(session.create_tmp())
    lowest = folder / "lowest"
    if not (lowest / "bin" / "python").exists():
        session.run("python", "-m", "venv", str(lowest))
    lowest_jax = [r.replace(">=", "==") for r in PROJECT["project"]["dependencies"] if r.startswith("jax")]
    session.run(str(lowest / "bin" / "pip"), "install", "-q", "-e", ".", *group("test"), *lowest_jax, external=True)
    written = folder / "written"
    shutil.rmtree(written, ignore_errors=True)
    written.mkdir()
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": "tests", "POSENC_EXPORTS": str(written)}
    environment["POSENC_LOWEST"] = lowest_jax[0].removeprefix("jax==")
    session.run(str(lowest / "bin" / "python"), "tests/exports/write.py", str(written), env=environment, external=True)
    pytest(session, "tests/exports", **environment)


@nox.session
def hostile(session):
    """Hostile input and broken configs, thirty times as many as in the tests; prints how many."""
    session.install("-e", ".[plot]", *group("test"))
    files = [f"tests/test_hostile{name}.py" for name in ("", "_configs", "_spectra")]
    pytest(session, "-s", *files, JAX_PLATFORMS="cpu", POSENC_HOSTILE="30")


@nox.session
def mutation(session):
    """Small faults put into the library, and whether a test fails; `-- --sample N` draws N of each module."""
    session.install("-e", ".[plot,demo]", *group("test"), "coverage>=7.6")
    session.run("python", "tests/mutation/run.py", *session.posargs, env={"JAX_PLATFORMS": "cpu"})


@nox.session
def compile_tpu(session):
    """Every public function compiled for TPU v5e and v6e, no device needed: fusions, temporaries, cycles."""
    session.install("-e", ".", "jax[tpu]", *group("test"))
    pytest(session, "-s", "tests/compile", "-m", "compile_tpu", **NO_TPU)


@nox.session
def pods(session):
    """Bytes of each device of whole TPU pods, as compiled: writes benchmarks/results/pods.json and pods.md."""
    session.install("-e", ".", "jax[tpu]", *group("bench"))
    session.run("python", "benchmarks/pods.py", *session.posargs, env=NO_TPU)


@nox.session
def compile_cuda(session):
    """Every public function compiled for an H200, no device needed: fusions, temporaries."""
    session.install("-e", ".", *CUDA_COMPILER, *group("test"))
    pytest(session, "-s", "tests/compile", "-m", "compile_cuda", JAX_PLATFORMS="cpu")


@nox.session
def distributed(session):
    """Training over two processes: losses, checkpoints, and processes that die."""
    session.install("-e", ".[plot,demo]", *group("test"))  # flax brings orbax-checkpoint
    pytest(session, "tests/distributed", JAX_PLATFORMS="cpu")


@nox.session
def parity(session):
    """Rotary embeddings beside those of transformers, in small random models; `-- --record` writes tests/data.

    With the files that tests/parity/record_bias.py runs, `-- --record KERPLE ARITHMETIC NEMO`, biases.json too.
    """
    offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    if session.posargs[:1] != ["--record"]:
        session.install("-e", ".", *group("parity"))
        pytest(session, "tests/parity", "-m", "parity", **offline)
        return
    session.install("-e", ".", *group("record"))
    session.run("python", "tests/parity/record.py", env=offline)
    session.run("python", "tests/parity/record_positions.py", env=offline)
    if sources := session.posargs[1:]:
        session.run("python", "tests/parity/record_bias.py", *sources, env=offline)


@nox.session
def lint(session):
    """Ruff, format and lint."""
    session.install(*group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session):
    """Pyright on the package."""
    session.install("-e", ".[plot]", *group("types"))
    session.run("pyright")


def build_site(session):
    """The figures and the outputs of the pages' code, in which a warning is an error, then the pages."""
    session.run("python", "docs/figures.py")
    session.run("python", "-W", "error", "docs/outputs.py")
    session.run("mkdocs", "build", "--quiet", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def docs(session):
    """The documentation site, built strictly into site/, its links and names checked."""
    session.install("-e", ".[plot]", *group("docs"))
    build_site(session)
    pytest(session, "tests/site", "-m", "site")


@nox.session
def docs_browser(session):
    """Every page of the site in headless Chromium: errors, foreign requests, accessibility, phones; screenshots."""
    if not (chromium := shutil.which("chromium") or shutil.which("google-chrome")):
        session.skip("no Chromium here: apt-get install chromium")
    session.install("-e", ".[plot]", *group("docs-browser"))
    build_site(session)
    pytest(session, "tests/browser", "-m", "browser", CHROMIUM=chromium)


@nox.session
def demo(session):
    """Trains a small Transformer on real text and writes demo/index.html; `-- --help` for its options."""
    session.install(".[demo]")
    session.run("python", "examples/train_text.py", *session.posargs)


@nox.session
def bench(session):
    """Accuracy against mpmath; speed, memory and errors beside other libraries; `-- --quick` for a short run."""
    session.install(".", *group("bench"), *group("peers-jax"))
    session.install("--no-deps", *group("peers-jax-alone"))
    # What needs torch lives in an environment of its own.
    torch = Path(session.create_tmp(), "torch")
    if not (torch / "bin" / "python").exists():
        session.run("python", "-m", "venv", str(torch))
    session.run(str(torch / "bin" / "pip"), "install", "-q", *group("peers-torch"), external=True)
    session.run("python", "benchmarks/run.py", "--torch", str(torch / "bin" / "python"), *session.posargs)
    if not session.posargs:
        for name in ("accuracy", "rotary", "attention"):  # they fail if a bound is missed
            session.run("python", f"benchmarks/{name}.py")


@nox.session
def conformance(session):
    """The vectors of conformance/ through this library, which must pass, and its peers; writes results/table.md."""
    session.install(".", *group("peers-jax"), *group("parity"))
    session.install("--no-deps", *group("peers-jax-alone"))
    environment = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    session.run("python", "-m", "conformance.vectors", "--check")
    runner = ["python", "-m", "conformance.run", "--adapter"]
    session.run(*runner, "posenc_jax", env=environment)
    peers = ["flax_nnx", "equinox", "keras_hub", "gemma", "transformers"]
    page = ["--markdown", "conformance/results/table.md"]
    session.run(*runner, "posenc_jax", *peers, *page, *session.posargs, env=environment)


@nox.session
@nox.parametrize("compiler", [nox.param(name, id=name) for name in ("tpu", "cuda")])
def bench_compiled(session, compiler):
    """The library beside its peers as compiled for TPU v5e and v6e and for an H200, no device needed."""
    packages, targets = {"tpu": (["jax[tpu]"], ["v5e", "v6e"]), "cuda": (CUDA_COMPILER, ["h200"])}[compiler]
    session.install("-e", ".", *packages, *group("bench"), *group("peers-jax"))
    session.install("--no-deps", *group("peers-jax-alone"))
    session.run("python", "benchmarks/compiled.py", "--target", *targets, *session.posargs, env=NO_TPU)
