"""Every check and program of the project: `nox -l` is the menu, `nox -s NAME` runs one, `-- OPTIONS` go to it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["tests", "lint"]
nox.options.reuse_venv = "yes"

PROJECT = nox.project.load_toml("pyproject.toml")
CPU = {"JAX_PLATFORMS": "cpu"}
# A TPU's compiler runs without the device when it is told not to look for one.
NO_TPU = CPU | {
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
COMPILERS = {"tpu": ["jax[tpu]"], "cuda": CUDA_COMPILER}


# Codebases that people train with, and what of their dependencies their positional code needs.
CLIENTS = {
    "maxtext": (
        "maxtext==0.2.5 flax qwix psutil packaging tensorboardx pydantic omegaconf aqtp optax tokamax drjax"
        " pathwaysutils jinja2 filelock"
    ).split(),
    "gemma": ["gemma==4.0.1", "sentencepiece<0.2.1"],  # newer ones need a protobuf that TensorFlow does not take
    "tunix": ["google-tunix==0.1.7"],
    "levanter": ["marin-levanter==0.2.227.dev40316220070"],
    "keras_hub": ["keras-hub==0.32.0", "keras==3.15.1"],
    "equinox": ["equinox==0.13.8"],
    "penzai": ["penzai==0.2.5"],
    "flax_examples": ["jaxtyping", "sentencepiece"],
    "bonsai": ["jaxtyping", "tqdm", "safetensors", "huggingface-hub", "pillow"],
}
# Of these, no package index has the last two: `--source` names a checkout, at this commit.
CHECKOUTS = {
    "flax_examples": ("google/flax", "18f8f311c275d57f46d95e41b15aa97b454754c0"),
    "bonsai": ("jax-ml/bonsai", "36284254cf738d99c1c5d1e3a292d27656a0a365"),
}


def group(name: str) -> tuple[str, ...]:
    return nox.project.dependency_groups(PROJECT, name)


TESTED = ["-e", ".[plot,demo]", *group("test")]


def install(session: nox.Session, *arguments: str) -> None:
    """Installs what this environment does not hold yet; with sources in place (-e), it holds their changes."""
    wanted = "\n".join([*arguments, Path("pyproject.toml").read_text(encoding="utf-8")])
    stamp = Path(session.virtualenv.location, "installed.txt")
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    stamp.unlink(missing_ok=True)  # an installation that is interrupted leaves none
    session.install(*arguments)
    # `nox -R` skips this with the installation.
    write = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2], encoding='utf-8')"
    session.run_install("python", "-c", write, str(stamp), wanted, log=False)


def pytest(session: nox.Session, *arguments: str, **environment: str) -> None:
    session.run("pytest", *arguments, *session.posargs, env=CPU | environment)


def parallel(session: nox.Session, *arguments: str, **environment: str) -> None:
    # Each worker starts with its share of the files, and steals from the others when it is done.
    pytest(session, "-n", "auto", "--dist", "worksteal", "--failed-first", *arguments, **environment)


# The seven that people use first


@nox.session
def tests(session: nox.Session) -> None:
    """The tests, 2 to 4 minutes, less when repeated; `-- -k rotary` for some, `-- --lf` for those that failed."""
    install(session, *TESTED)
    again = "--lf" in session.posargs or "--last-failed" in session.posargs  # slow ones too
    parallel(session, *(["-m", ""] if again else []))


@nox.session
def tests_all(session: nox.Session) -> None:
    """All tests, 10 to 20 minutes: the slow ones too, and twice the hostile input."""
    install(session, *TESTED)
    parallel(session, "-m", "", POSENC_HOSTILE="2")


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff and pyright, 1 minute."""
    install(session, "-e", ".[plot]", *group("lint"), *group("types"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    pages = ["README.md", *map(str, sorted(Path("docs").rglob("*.md")))]
    session.run("ruff", "format", "--check", "--line-length", "80", *pages)
    session.run("pyright")


@nox.session
def demo(session: nox.Session) -> None:
    """Trains five small Transformers on real text, 3 minutes, and writes build/demo/index.html; `-- --all`, nine.

    The page is there after a few seconds and grows with each model.
    """
    session.install(".[demo]")
    session.run("python", "demo/train_text.py", *session.posargs)


@nox.session
def generate(session: nox.Session) -> None:
    """Continues prompts with a Hugging Face folder's model, `-- FOLDER PROMPT`; or trains a small one in 2 minutes."""
    install(session, "-e", ".[demo]", *group("examples"))
    session.run("python", "examples/generate.py", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Builds the site into site/, checks code, links and names, 4 minutes; with Chromium opens each page, 5 more."""
    # CHROMIUM names another browser, or none if it is empty.
    browser = os.environ.get("CHROMIUM", shutil.which("chromium") or shutil.which("google-chrome"))
    install(session, "-e", ".[plot]", *group("docs-browser" if browser else "docs"))
    session.log("1 of 5: draws the figures")
    session.run("python", "docs/figures.py")
    session.log("2 of 5: runs the code of every page, three minutes")
    session.run("python", "-W", "error", "docs/outputs.py", env={"MPLBACKEND": "svg"})
    session.run("python", "docs/notebooks.py")
    session.log("3 of 5: builds the pages, half a minute")
    session.run("mkdocs", "build", "--quiet", env={"NO_MKDOCS_2_WARNING": "1"})
    session.log("4 of 5: checks links and names")
    pytest(session, "tests/docs/site")
    if browser:
        session.log("5 of 5: opens each page in Chromium and reads what it draws, five minutes")
        pytest(session, "tests/docs/browser", CHROMIUM=browser)
    else:
        session.warn("No Chromium here (apt-get install chromium): the pages were built, and not opened.")
    session.log(f"The site is {Path('site/index.html').resolve()}: open it in a browser, no server is needed.")
    session.log(f"From another machine: python -m http.server -d {Path('site').resolve()}, then http://HOST:8000/")


@nox.session
def bench(session: nox.Session) -> None:
    """Speed, memory and errors beside other libraries, all of them from Python 3.12 on, 20 minutes; `-- --quick`, 5.

    An interrupted run goes on where it ended; `-- --fresh` starts over.
    """
    session.install(".", *group("bench"), *group("peers-jax"))
    session.install("--no-deps", *group("peers-jax-alone"))
    # Libraries that need torch get an environment of their own.
    torch = Path(session.create_tmp(), "torch")
    if not (torch / "bin" / "python").exists():
        session.run("python", "-m", "venv", str(torch))
    session.run(str(torch / "bin" / "pip"), "install", "-q", *group("peers-torch"), external=True)
    session.run("python", "benchmarks/run.py", "--torch", str(torch / "bin" / "python"), *session.posargs)
    if not set(session.posargs) - {"--fresh"}:
        for name in ("accuracy", "rotary_error", "attention_cost"):  # each fails if a bound is missed
            session.run("python", f"benchmarks/{name}.py")


# What is shipped, and the tests on other versions, settings and devices


@nox.session
def notebooks(session: nox.Session) -> None:
    """Runs the notebooks that `nox -s docs` wrote, in Jupyter, 5 minutes; `-- rope` for one."""
    install(session, "-e", ".[plot]", *group("notebooks"))
    cache = {"JAX_COMPILATION_CACHE_DIR": str(Path("build/compiled").resolve())}
    session.run("python", "docs/notebooks.py", "--run", *session.posargs, env=CPU | cache)


@nox.session
def package(session: nox.Session) -> None:
    """The wheel in an empty environment of each Python here, 2 minutes each: README's and the docstrings' examples."""
    root, folder, tested = Path.cwd(), Path(session.create_tmp()).resolve(), []
    shutil.rmtree(folder)
    folder.mkdir()
    install(session, "build", "twine")
    shutil.rmtree(root / "dist", ignore_errors=True)
    session.run("python", "-m", "build")  # the sdist, and the wheel from it
    session.run("python", "-m", "twine", "check", "--strict", *map(str, root.glob("dist/*")))
    (wheel,), (sdist,) = root.glob("dist/*.whl"), root.glob("dist/*.tar.gz")
    for version in ("3.11", "3.12", "3.13", "3.14"):
        python = shutil.which(f"python{version}")
        if not python or subprocess.run([python, "-c", "import ensurepip"], capture_output=True).returncode:
            session.warn(f"No Python {version} with ensurepip here: not tested on it.")
            continue
        session.run(python, "-m", "venv", str(folder / version), external=True)
        python = str(folder / version / "bin" / "python")
        for extra in ("", "[plot]"):
            session.run(python, "-m", "pip", "install", "-q", f"{wheel}{extra}", external=True)
            with session.chdir(folder):
                check = [str(root / "tests/tools/installed.py"), str(root / "README.md"), str(sdist)]
                session.run(python, "-I", *check, external=True, env=CPU)
        tested.append(version)
    if not tested:
        session.error("No Python from 3.11 to 3.14 with ensurepip was found: nothing was tested.")


@nox.session(venv_backend="none")
def release(session: nox.Session) -> None:
    """A release except publishing, 15 minutes: notes, then `package`, `docs`, `versions`; `-- v0.1.0` for a tag.

    What is to be published is in dist/, its notes are build/release/notes.md.
    """
    session.run(sys.executable, ".github/release.py", *session.posargs)
    for name in ("package", "docs", "versions"):
        session.notify(name, [])


@nox.session
def versions(session: nox.Session) -> None:
    """Builds two versions of the site, from what `docs` made of its pages, and follows the selector between them.

    They are in a repository of their own, build/versions; `-- dev` and `-- release` write to the branch gh-pages of
    this one, and `--push` after it pushes the branch.
    """
    if not Path("build/docs").exists():
        session.error("There is no build/docs: nox -s docs makes it.")
    browser = os.environ.get("CHROMIUM", shutil.which("chromium") or shutil.which("google-chrome"))
    install(session, "-e", ".[plot]", *group("docs-browser" if browser else "docs"))
    folder = Path("build/versions").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    environment = {"NO_MKDOCS_2_WARNING": "1", "SITE_DIR": str(folder / "site")}
    minor = re.search(r'^__version__ = "(\d+\.\d+)', Path("posenc_jax/__init__.py").read_text(), re.MULTILINE)[1]

    def deploy(version: str, *arguments: str, **where: str) -> None:
        options = [argument for argument in arguments if argument[:1] == "-"]
        # The branch holds the notebooks too, in the folder of their version.
        told = environment | where | {"NOTEBOOKS_BRANCH": f"gh-pages/{version}"}
        message = ["--message", f"Pages of {version}"]
        session.run("mike", "--quiet", "deploy", "--update-aliases", *message, version, *arguments, env=told)
        listed = session.run("mike", "list", env=told, silent=True)
        session.run("mike", "set-default", "latest" if "latest" in listed else version, *options, env=told)

    if session.posargs:
        kind, *options = session.posargs
        deploy(*{"dev": ["dev"], "release": [minor, "latest"]}[kind], *options)
        return
    session.run("git", "init", "--quiet", "--bare", str(folder / "git"), external=True)
    author = {f"GIT_{who}_{what}": "posenc_jax" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    # The selector finds the same page of another version by its sitemap, which needs addresses.
    address = os.environ.get("SITE_URL") or "http://localhost:8000/"
    own = author | {"GIT_DIR": str(folder / "git"), "SITE_URL": address}
    deploy("dev", **own)
    deploy(minor, "latest", **own)
    (folder / "served").mkdir()
    checkout = ["--work-tree", str(folder / "served"), "checkout", "--quiet", "gh-pages", "--", "."]
    session.run("git", *checkout, env=own, external=True)
    pytest(session, "tests/docs/versions", **({"CHROMIUM": browser} if browser else {}))
    session.log(f"python -m http.server -d {folder / 'served'}, then http://localhost:8000/: the versions side by side")


@nox.session
def x64(session: nox.Session) -> None:
    """All tests with jax_enable_x64 on from the start."""
    install(session, *TESTED)
    parallel(session, "-m", "", POSENC_TEST_X64="1")


@nox.session(python="3.11")
def minimums(session: nox.Session) -> None:
    """The tests on the lowest versions that pyproject.toml allows; `-- -m ""` for the slow ones too."""
    requirements = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["demo"]
    install(session, *TESTED, *(r.replace(">=", "==") for r in requirements))
    parallel(session)


@nox.session
def nightly(session: nox.Session) -> None:
    """All tests on tonight's JAX and Flax and the newest NumPy; needs the network."""
    session.install(*TESTED)
    session.install("-U", "--pre", "jax", "jaxlib", "numpy", "--extra-index-url", JAX_NIGHTLY)
    session.install("-U", "flax @ git+https://github.com/google/flax")
    parallel(session, "-m", "")


@nox.session
def device(session: nox.Session) -> None:
    """All tests on the NVIDIA GPU or the TPU that answers here."""
    if shutil.which("nvidia-smi") and not subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode:
        extra, platform = "cuda13", "cuda"
    elif [*Path("/dev").glob("accel[0-9]*"), *Path("/dev/vfio").glob("[0-9]*")]:
        extra = platform = "tpu"
    else:
        session.skip("no NVIDIA GPU answers (nvidia-smi -L), and there is no /dev/accel* or /dev/vfio/* of a TPU")
    install(session, *TESTED, f"jax[{extra}]")
    # One process holds the device; tests of several devices take those of the CPU. A GPU multiplies float32 matrices in
    # TF32 unless it is told not to, and the tests compare with float32.
    environment = {"JAX_PLATFORMS": f"{platform},cpu", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    pytest(session, "-m", "", **environment)


@nox.session
def distributed(session: nox.Session) -> None:
    """In no other session: training over two processes, their losses, checkpoints, and processes that die."""
    install(session, *TESTED)  # flax brings orbax-checkpoint
    pytest(session, "tests/devices/distributed")


@nox.session
def exports(session: nox.Session) -> None:
    """In no other session: what `jax.export` makes on the lowest JAX allowed, loaded on the newest that is here."""
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
    environment = CPU | {"PYTHONPATH": "tests", "POSENC_EXPORTS": str(written)}
    environment["POSENC_LOWEST"] = lowest_jax[0].removeprefix("jax==")
    write = [str(lowest / "bin" / "python"), "tests/devices/exports/write.py", str(written)]
    session.run(*write, env=environment, external=True)
    pytest(session, "tests/devices/exports", **environment)


# Compilers of devices that are not here


@nox.session
@nox.parametrize("compiler", [nox.param(name, id=name) for name in COMPILERS])
def compile(session: nox.Session, compiler: str) -> None:
    """Every public function compiled for TPU v5e and v6e or for an H200, no device needed: fusions, temporaries."""
    install(session, "-e", ".", *COMPILERS[compiler], *group("test"))
    pytest(session, "-s", "tests/devices/compile", "-m", f"compile_{compiler}", **NO_TPU)


@nox.session
@nox.parametrize("compiler", [nox.param(name, id=name) for name in COMPILERS])
def bench_compiled(session: nox.Session, compiler: str) -> None:
    """Compares the library with its peers, compiled for such devices; for TPUs also whole pods and kernels."""
    session.install("-e", ".", *COMPILERS[compiler], *group("bench"), *group("peers-jax"))
    session.install("--no-deps", *group("peers-jax-alone"))
    targets = {"tpu": ["v5e", "v6e"], "cuda": ["h200"]}[compiler]
    session.run("python", "benchmarks/compiled.py", "--target", *targets, *session.posargs, env=NO_TPU)
    if compiler == "tpu" and not session.posargs:
        session.run("python", "benchmarks/pods.py", env=NO_TPU)  # writes benchmarks/results/pods.json and pods.md
        session.install(*group("peers-tpu"))
        session.run("python", "benchmarks/schedules.py", env=NO_TPU)  # writes benchmarks/results/schedules.md


@nox.session
def history(session: nox.Session) -> None:
    """Adds this commit's speed to build/speed or `-- FOLDER`, 6 minutes, and draws index.html there over commits.

    A quick run on this processor beside a copy, and what the compiler of TPUs estimates.
    """
    folder, results = session.posargs[0] if session.posargs else "build/speed", Path(session.create_tmp(), "results")
    shutil.rmtree(results, ignore_errors=True)
    session.install(".", *COMPILERS["tpu"], *group("bench"))
    run = ["benchmarks/run.py", "--quick", "--fresh", "--peers", "textbook", "--out", str(results)]
    session.run("python", *run, env=CPU)
    compiled = ["benchmarks/compiled.py", "--quick", "--json", str(results / "compiled.json")]
    session.run("python", *compiled, env=NO_TPU, success_codes=[0, 1])  # 1: a peer has fewer cycles
    session.run("python", "benchmarks/history.py", folder, *map(str, sorted(results.glob("*.json"))))


# What positions do to a loss, other libraries, and how strong the tests are


@nox.session
def evidence(session: nox.Session) -> None:
    """Trains the demo's models and other bases of RoPE from three seeds, 22 minutes; the site draws demo/evidence.json.

    It writes build/demo/evidence.json, or what `-- --output FILE` names; interrupted, it goes on when it is run again.
    """
    session.install(".[demo]")
    session.run("python", "demo/evidence.py", *session.posargs)


@nox.session
def parity(session: nox.Session) -> None:
    """In no other session: compares with transformers and timm; `-- --record` writes tests/oracles/recorded.

    `-- --record NAME…` writes some of its files, and `-- --record SOURCE=FILE…` runs code of authors too, see
    tests/huggingface/parity/authors.py. `-- --newest` takes the newest transformers instead, and first prints what it
    changes in posenc_jax/hf/facts.json, as text for an issue; `-- --facts` writes that file from it.
    """
    offline = CPU | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    folder = "tests/huggingface/parity"
    if session.posargs[:1] in (["--newest"], ["--facts"]):
        # The next run pins its release again.
        Path(session.virtualenv.location, "installed.txt").unlink(missing_ok=True)
        session.install("-e", ".", *group("parity"))
        session.install("-U", "transformers")
        if session.posargs[0] == "--facts":
            session.run("python", f"{folder}/record_facts.py", env=offline)
            return
        session.run("python", f"{folder}/record_facts.py", "--diff", env=offline)
        session.run("pytest", folder, *session.posargs[1:], env=offline)
        return
    install(session, "-e", ".", *group("parity"))
    if session.posargs[:1] != ["--record"]:
        pytest(session, folder, **offline)
        return
    session.run("python", f"{folder}/record.py", *session.posargs[1:], env=offline)


@nox.session
def conformance(session: nox.Session) -> None:
    """Runs this library, which must pass, and its peers against conformance/; writes its results/table.md."""
    session.install(".", *group("peers-jax"), *group("parity"))
    session.install("--no-deps", *group("peers-jax-alone"))
    environment = CPU | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    session.run("python", "-m", "conformance.vectors", "--check")
    runner = ["python", "-m", "conformance.run", "--adapter"]
    session.run(*runner, "posenc_jax", env=environment)
    peers = ["jax_nn", "flax_nnx", "equinox", "keras_hub", "gemma", "transformers"]
    page = ["--markdown", "conformance/results/table.md"]
    session.run(*runner, "posenc_jax", *peers, *page, *session.posargs, env=environment)


@nox.session
@nox.parametrize("client", [nox.param(name, id=name) for name in CLIENTS])
def clients(session: nox.Session, client: str) -> None:
    """Puts this library into MaxText, Gemma and seven more and compares; `-- --source DIR` runs their own tests.

    It writes clients/results/. Each needs an environment of up to 3 GB, Python 3.12 and 5 minutes. Flax's examples and
    Bonsai are on no package index: `nox -s "clients(bonsai)" -- --source DIR` takes a checkout.
    """
    newest, options = "--newest" in session.posargs, [x for x in session.posargs if x != "--newest"]
    environment = CPU | (source(session, client, newest) if client in CHECKOUTS else {})
    if session.run("python", "-c", "import sys; print(sys.version_info < (3, 12))", silent=True, log=False) == "True\n":
        session.error("MaxText, Gemma and Tunix need Python 3.12 or newer: nox --force-python 3.12 -s clients")
    wanted = [re.sub("==.*", "", need) if newest else need for need in CLIENTS[client]]
    session.install("uv")  # pip does not come to an end with what Gemma needs
    session.run("uv", "pip", "install", "--python", str(Path(session.bin, "python")), "-e", ".", "pytest", *wanted)
    many = "--xla_force_host_platform_device_count=8"
    session.run("python", "-m", "clients.run", client, *options, env=environment | {"XLA_FLAGS": many})
    if not newest:  # the texts of clients/adoption
        session.run("python", "-m", "clients.patches", client, "--check", env=environment)


def source(session: nox.Session, client: str, newest: bool) -> dict[str, str]:
    """Python's path to the checkout of a codebase that no package index has, at the commit that is pinned."""
    (repository, pinned), given = CHECKOUTS[client], session.posargs
    if "--source" not in given[:-1]:
        session.skip(
            f"no package index has {repository}. Clone https://github.com/{repository}, check out {pinned[:7]}, and"
            f' pass its folder: nox -s "clients({client})" -- --source DIR'
        )
    folder = Path(given[given.index("--source") + 1]).resolve()
    git = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    if commit != pinned and not newest:
        session.error(
            f"{folder} must be {repository} at {pinned[:7]}, got {commit[:7] or 'no commit'}; or add --newest"
        )
    return {"PYTHONPATH": str(folder)}


@nox.session
def fuzz(session: nox.Session) -> None:
    """Tries hostile input, broken configs and files, thirty times as many as the tests, 13 minutes; prints how many."""
    install(session, *TESTED)
    rooms = {
        "properties": ("arguments", "drawn"),
        "unit/frequencies": ("drawn_spectra",),
        "huggingface": ("hostile_configs",),
        "tools": ("hostile_files",),
    }
    files = [f"tests/{room}/test_{name}.py" for room, names in rooms.items() for name in names]
    pytest(session, "-s", "-m", "", *files, POSENC_HOSTILE="30")


@nox.session
def budget(session: nox.Session) -> None:
    """What the project holds, in tokens, words and pages, against tests/budget.toml; needs Python 3.12 or newer."""
    session.run("python", "tests/tools/budget.py", *session.posargs)


@nox.session
def mutation(session: nox.Session) -> None:
    """Puts small faults into the library and shows which tests find them, hours; `-- --sample 60` draws sixty."""
    install(session, *TESTED, "coverage>=7.6")
    session.run("python", "tests/tools/mutation/run.py", *session.posargs, env=CPU)
