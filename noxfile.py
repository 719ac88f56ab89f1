"""Every check and program of the project: `nox -l` lists them, `nox -s NAME` runs one."""

import json
import shutil
import sys
import sysconfig
from pathlib import Path

import nox

nox.options.sessions = ["tests", "lint", "types"]
nox.options.reuse_existing_virtualenvs = True

ACCELERATORS = {"cpu": [], "cuda13": ["jax[cuda13]"], "tpu": ["jax[tpu]"]}
TPU_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
}
CUDA_COMPILER = [
    "jax-cuda13-plugin",
    "jax-cuda13-pjrt",
    "nvidia-cuda-nvcc",
    "nvidia-nvvm",
    "nvidia-cuda-runtime",
    "nvidia-nvjitlink",
    "nvidia-cuda-cupti",
    "nvidia-cuda-nvrtc",
]


def group(name):
    return nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), name)


@nox.session
@nox.parametrize("accelerator", [nox.param(name, id=name) for name in ACCELERATORS])
def tests(session, accelerator):
    """The test suite, on the CPU; tests(cuda13) and tests(tpu) run it where such a device answers."""
    if accelerator == "cuda13" and not shutil.which("nvidia-smi"):
        session.skip("no NVIDIA driver here: nvidia-smi was not found")
    if accelerator == "tpu" and not any(Path("/dev").glob("accel*")) and not any(Path("/dev/vfio").glob("[0-9]*")):
        session.skip("no TPU here: neither /dev/accel* nor /dev/vfio/* was found")
    session.install(".[plot,demo]", *group("test"), *ACCELERATORS[accelerator])
    platform = {"cpu": "cpu", "cuda13": "cuda", "tpu": "tpu"}[accelerator]
    workers = ["-n", "auto"] if accelerator == "cpu" else []
    session.run("pytest", *workers, *session.posargs, env={"JAX_PLATFORMS": platform})
