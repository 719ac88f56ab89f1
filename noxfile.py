"""What people use: `nox -l` is the menu, `nox -s NAME` runs one, `-- OPTIONS` go to it. maintenance.py has the rest.

Plain `nox` runs those with a star.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

sys.path.append(str(Path(__file__).parent / "tests" / "tools"))
from sessions import COMPILERS, CPU, NO_TPU, TESTED, group, install, parallel, pins, pytest

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["tests", "lint"]
nox.options.reuse_venv = "yes"


# What people use


@nox.session
def tests(session: nox.Session) -> None:
    """The tests, 2 to 4 minutes; `-- -k rotary` for some, `-- --lf` for those that failed."""
    install(session, *TESTED)
    again = "--lf" in session.posargs or "--last-failed" in session.posargs  # slow ones too
    parallel(session, *(["-m", ""] if again else []))


@nox.session
def tests_all(session: nox.Session) -> None:
    """The slow tests too, 10 to 20 minutes."""
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
    """Trains small Transformers on text, 4 minutes, and writes build/demo/index.html.

    Five of them; `-- --all` trains nine. The page is there from the beginning and grows with each model.
    """
    session.install(".[demo]")
    session.run("python", "demo/train_text.py", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Builds and checks the site, 4 to 10 minutes; `-- --serve` shows it as you write.

    With Chromium it also opens each page. Served, it is built without checks, and again after each change; figures and
    what code prints are those of the last whole build.
    """
    # CHROMIUM names another browser, or none if it is empty.
    browser = os.environ.get("CHROMIUM", shutil.which("chromium") or shutil.which("google-chrome"))
    install(session, "-e", ".[plot]", *group("docs-browser" if browser else "docs"))
    if "--serve" in session.posargs:
        watch = [option for folder in ("posenc_jax", "docs") for option in ("--watch", folder)]
        serving = {"NO_MKDOCS_2_WARNING": "1", "CHECK_INCLUDES": "false"}
        whole = Path("build/docs").exists()
        if not whole:
            session.warn("Figures and what code prints are missing until `nox -s docs` has run once.")
        session.log("http://127.0.0.1:8000/ shows the site in a few seconds; Ctrl-C ends it.")
        session.run("mkdocs", "serve", "--no-strict", *([] if whole else ["--quiet"]), *watch, env=serving)
        return
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
def notebooks(session: nox.Session) -> None:
    """Runs the notebooks that `docs` wrote, in Jupyter, 5 minutes; `-- rope` for one."""
    install(session, "-e", ".[plot]", *group("notebooks"))
    cache = {"JAX_COMPILATION_CACHE_DIR": str(Path("build/compiled").resolve())}
    session.run("python", "docs/notebooks.py", "--run", *session.posargs, env=CPU | cache)


@nox.session
def bench(session: nox.Session) -> None:
    """Speed, memory and errors beside other libraries, 20 minutes; `-- --quick`, 5.

    On Python 3.11, those that need 3.12 are left out. An interrupted run goes on where it ended; `-- --fresh`
    starts over.
    """
    session.install(".", *group("bench"), *pins("jax"))
    session.install("--no-deps", *pins("jax_alone"))
    # Libraries that need torch get an environment of their own.
    torch = Path(session.create_tmp(), "torch")
    if not (torch / "bin" / "python").exists():
        session.run("python", "-m", "venv", str(torch))
    session.run(str(torch / "bin" / "pip"), "install", "-q", *pins("torch"), external=True)
    session.run("python", "benchmarks/run.py", "--torch", str(torch / "bin" / "python"), *session.posargs)
    if not set(session.posargs) - {"--fresh"}:
        for name in ("accuracy", "rotary_error", "attention_cost"):  # each fails if a bound is missed
            session.run("python", f"benchmarks/{name}.py")


@nox.session
def device(session: nox.Session) -> None:
    """All tests on the NVIDIA GPU or the TPU of this machine."""
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
@nox.parametrize("compiler", [nox.param(name, id=name) for name in COMPILERS])
def compile(session: nox.Session, compiler: str) -> None:
    """Checks every function as compiled for TPUs or an H200, without one."""
    install(session, "-e", ".", *COMPILERS[compiler], *group("test"))
    pytest(session, "-s", "tests/devices/compile", "-m", f"compile_{compiler}", **NO_TPU)
