"""What the sessions of noxfile.py and maintenance.py share: environments, pins and pytest."""

import itertools
from pathlib import Path

import nox

ROOT = Path(__file__).parents[2]
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
CPU = {"JAX_PLATFORMS": "cpu"}
# A TPU's compiler runs without the device when it is told not to look for one.
NO_TPU = CPU | {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
}
# The CUDA compiler alone: neither cuDNN nor cuBLAS nor NCCL.
CUDA_COMPILER = ["jax-cuda13-plugin", "jax-cuda13-pjrt"] + [
    f"nvidia-{name}" for name in ("cuda-nvcc", "nvvm", "cuda-runtime", "nvjitlink", "cuda-cupti", "cuda-nvrtc")
]
COMPILERS = {"tpu": ["jax[tpu]"], "cuda": CUDA_COMPILER}


def group(name: str) -> tuple[str, ...]:
    """The requirements of a dependency group of pyproject.toml."""
    return nox.project.dependency_groups(PROJECT, name)


TESTED = ["-e", ".[plot,demo]", *group("test")]


def pins(name: str) -> list[str]:
    """The arguments by which pip installs what benchmarks/peers pins: "jax", "jax_alone", "tpu" or "torch"."""
    return ["-r", f"benchmarks/peers/{name}.txt"]


def install(session: nox.Session, *arguments: str) -> None:
    """Installs what this environment does not hold yet; with sources in place (-e), it holds their changes."""
    files = ["pyproject.toml", *(name for flag, name in itertools.pairwise(arguments) if flag == "-r")]
    wanted = "\n".join([*arguments, *(Path(file).read_text(encoding="utf-8") for file in files)])
    stamp = Path(session.virtualenv.location, "installed.txt")
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    stamp.unlink(missing_ok=True)  # an installation that is interrupted leaves none
    session.install(*arguments)
    # `nox -R` skips this with the installation.
    write = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2], encoding='utf-8')"
    session.run_install("python", "-c", write, str(stamp), wanted, log=False)


def pytest(session: nox.Session, *arguments: str, **environment: str) -> None:
    """Runs pytest on a CPU, unless the environment says otherwise."""
    session.run("pytest", *arguments, *session.posargs, env=CPU | environment)


def parallel(session: nox.Session, *arguments: str, **environment: str) -> None:
    """Runs pytest on all cores: each worker starts with its share of the files, and steals from others when done."""
    pytest(session, "-n", "auto", "--dist", "worksteal", "--failed-first", *arguments, **environment)
