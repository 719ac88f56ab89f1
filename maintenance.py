"""What maintainers run: `nox -f maintenance.py -l` lists it, `nox -f maintenance.py -s NAME` runs one."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import nox

sys.path.append(str(Path(__file__).parent / "tests" / "tools"))
from sessions import COMPILERS, CPU, NO_TPU, PROJECT, TESTED, group, install, parallel, pins, pytest

nox.options.sessions = []
nox.options.reuse_venv = "yes"

# Where the JAX project puts its nightly builds.
JAX_NIGHTLY = "https://us-python.pkg.dev/ml-oss-artifacts-published/jax/simple/"
PARITY = [*group("test"), "-r", "tests/huggingface/parity/requirements.txt"]
CLIENTS = tomllib.loads(Path("clients/pins.toml").read_text(encoding="utf-8"))


# A release, and other versions and settings


@nox.session
def package(session: nox.Session) -> None:
    """Runs the examples from the wheel on each Python here, 2 minutes each."""
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


@nox.session
def versions(session: nox.Session) -> None:
    """Builds the site of two versions, 2 minutes, and follows the selector between them.

    It takes what `docs` made of the pages. The versions are in a repository of their own, build/versions; `-- dev`
    and `-- release` write to the branch gh-pages of this one, and `--push` after it pushes the branch.
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


@nox.session(venv_backend="none")
def release(session: nox.Session) -> None:
    """A release except publishing, 15 minutes; `-- v0.1.0` for a tag.

    Notes, then the sessions `package`, `docs` and `versions`.
    What is to be published is in dist/, its notes are build/release/notes.md.
    """
    session.run(sys.executable, ".github/release.py", *session.posargs)
    for file, name in (("maintenance.py", "package"), ("noxfile.py", "docs"), ("maintenance.py", "versions")):
        session.run(sys.executable, "-m", "nox", "-f", file, "-s", name)


@nox.session
def x64(session: nox.Session) -> None:
    """All tests with jax_enable_x64, 20 minutes."""
    install(session, *TESTED)
    parallel(session, "-m", "", POSENC_TEST_X64="1")


@nox.session(python="3.11")
def minimums(session: nox.Session) -> None:
    """The tests on the lowest versions of pyproject.toml; `-- -m ""` for the slow ones too."""
    requirements = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["demo"]
    install(session, *TESTED, *(r.replace(">=", "==") for r in requirements))
    parallel(session)


@nox.session
def nightly(session: nox.Session) -> None:
    """All tests on tonight's JAX and Flax, from the network."""
    session.install(*TESTED)
    session.install("-U", "--pre", "jax", "jaxlib", "numpy", "--extra-index-url", JAX_NIGHTLY)
    session.install("-U", "flax @ git+https://github.com/google/flax")
    parallel(session, "-m", "")


@nox.session
def distributed(session: nox.Session) -> None:
    """Trains over two processes, some of which die; `tests_all` does not."""
    install(session, *TESTED)  # flax brings orbax-checkpoint
    pytest(session, "tests/devices/distributed")


@nox.session
def exports(session: nox.Session) -> None:
    """Loads on the newest JAX what the lowest one exported; `tests_all` does not."""
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


# Peers, clients and devices


@nox.session
def parity(session: nox.Session) -> None:
    """Compares with transformers and timm, 10 minutes; `-- --record` writes what tests compare with.

    That is tests/oracles/recorded.
    `-- --record NAME…` writes some of its files, and `-- --record SOURCE=FILE…` runs code of authors too, see
    tests/huggingface/parity/authors.py. `-- --newest` takes the newest transformers instead, and first prints what it
    changes in posenc_jax/hf/facts.json, as text for an issue; `-- --facts` writes that file from it.
    """
    offline = CPU | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    folder = "tests/huggingface/parity"
    if session.posargs[:1] in (["--newest"], ["--facts"]):
        # The next run pins its release again.
        Path(session.virtualenv.location, "installed.txt").unlink(missing_ok=True)
        session.install("-e", ".", *PARITY)
        session.install("-U", "transformers")
        if session.posargs[0] == "--facts":
            session.run("python", f"{folder}/record_facts.py", env=offline)
            return
        session.run("python", f"{folder}/record_facts.py", "--diff", env=offline)
        session.run("pytest", folder, *session.posargs[1:], env=offline)
        return
    install(session, "-e", ".", *PARITY)
    if session.posargs[:1] != ["--record"]:
        pytest(session, folder, **offline)
        return
    session.run("python", f"{folder}/record.py", *session.posargs[1:], env=offline)


@nox.session
def conformance(session: nox.Session) -> None:
    """Runs this library and its peers against conformance/, and writes its results/table.md."""
    session.install(".", *pins("jax"), *PARITY)
    session.install("--no-deps", *pins("jax_alone"))
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
    """Compares this codebase with and without the library, 5 minutes.

    It writes clients/results/. `-- --source DIR` runs their own tests. Each needs 3 GB and Python 3.12. Flax's
    examples, Bonsai, MaxDiffusion and sglang-jax are no packages: `nox -f maintenance.py -s "clients(bonsai)" --
    --source DIR` takes a checkout.
    """
    newest, options = "--newest" in session.posargs, [x for x in session.posargs if x != "--newest"]
    environment = CPU | (source(session, client, newest) if "checkout" in CLIENTS[client] else {})
    if session.run("python", "-c", "import sys; print(sys.version_info < (3, 12))", silent=True, log=False) == "True\n":
        session.error("This needs Python 3.12 or newer: nox -f maintenance.py --force-python 3.12 -s clients")
    wanted, alone = (
        [re.sub("==.*", "", need) if newest else need for need in CLIENTS[client].get(key, ())]
        for key in ("packages", "alone")
    )
    session.install("uv")  # pip does not come to an end with what Gemma needs
    uv = ["uv", "pip", "install", "--python", str(Path(session.bin, "python"))]
    session.run(*uv, "-e", ".", "pytest", *wanted)
    if alone:
        session.run(*uv, "--no-deps", *alone)
    many = "--xla_force_host_platform_device_count=8"
    session.run("python", "-m", "clients.run", client, *options, env=environment | {"XLA_FLAGS": many})
    session.run("python", "-m", "clients.patches", client, "--check", env=environment)


def source(session: nox.Session, client: str, newest: bool) -> dict[str, str]:
    """Python's path to the checkout of a codebase that no package index has, at the commit that is pinned."""
    (repository, pinned), given = CLIENTS[client]["checkout"], session.posargs
    if "--source" not in given[:-1]:
        session.skip(
            f"no package index has {repository}. Clone https://github.com/{repository}, check out {pinned[:7]}, and"
            f' pass its folder: nox -f maintenance.py -s "clients({client})" -- --source DIR'
        )
    folder = Path(given[given.index("--source") + 1]).resolve()
    git = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    if commit != pinned and not newest:
        session.error(
            f"{folder} must be {repository} at {pinned[:7]}, got {commit[:7] or 'no commit'}; or add --newest"
        )
    return {"PYTHONPATH": os.pathsep.join(str(folder / part) for part in ("", "src", "python"))}


@nox.session
@nox.parametrize("compiler", [nox.param(name, id=name) for name in COMPILERS])
def bench_compiled(session: nox.Session, compiler: str) -> None:
    """Compares the library with its peers as compilers for TPU or GPU compile them."""
    session.install("-e", ".", *COMPILERS[compiler], *group("bench"), *pins("jax"))
    session.install("--no-deps", *pins("jax_alone"))
    targets = {"tpu": ["v5e", "v6e"], "cuda": ["h200"]}[compiler]
    session.run("python", "benchmarks/compiled.py", "--target", *targets, *session.posargs, env=NO_TPU)
    if compiler == "tpu" and not session.posargs:
        session.run("python", "benchmarks/pods.py", env=NO_TPU)  # writes benchmarks/results/pods.json and pods.md
        session.install(*pins("tpu"))
        session.run("python", "benchmarks/schedules.py", env=NO_TPU)  # writes benchmarks/results/schedules.md


@nox.session
def history(session: nox.Session) -> None:
    """Adds this commit's speed to a chart over commits, 6 minutes.

    In build/speed/index.html, or the folder that `-- FOLDER` names.
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


@nox.session
def evidence(session: nox.Session) -> None:
    """Trains the demo's models and other bases of RoPE from three seeds, 22 minutes.

    The site draws demo/evidence.json. It writes build/demo/evidence.json, or what `-- --output FILE` names;
    interrupted, it goes on when it is run again.
    """
    session.install(".[demo]")
    session.run("python", "demo/evidence.py", *session.posargs)


# How strong the tests are, and how large the project


@nox.session
def fuzz(session: nox.Session) -> None:
    """Tries thirty times the hostile input of the tests, 13 minutes."""
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
def mutation(session: nox.Session) -> None:
    """Puts faults into the library and shows which tests find them, hours; `-- --sample 60`."""
    install(session, *TESTED, "coverage>=7.6")
    session.run("python", "tests/tools/mutation/run.py", *session.posargs, env=CPU)


@nox.session
def budget(session: nox.Session) -> None:
    """Counts tokens, words and pages against tests/budget.toml, on Python 3.12 or newer."""
    session.run("python", "tests/tools/budget.py", *session.posargs)
