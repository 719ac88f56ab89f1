"""Eight CPU devices and strict promotion, before anything uses JAX; programs compiled once."""

import contextlib
import gc
import os
import zlib
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from helpers.compiling import compile_sooner
from helpers.programs import Programs

ROOT = Path(__file__).parent.parent
# Programs that earlier runs compiled; delete the folder to start cold.
COMPILED = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(ROOT / "build" / "compiled"))

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_traceback_filtering", "off")  # filtering takes ten times as long as the call that raises
if os.environ.get("POSENC_TEST_X64") == "1":
    jax.config.update("jax_enable_x64", True)
jax.config.update("jax_compilation_cache_dir", COMPILED)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class Announcer:
    """Names a failure when it happens; pytest's report comes at the end."""

    def __init__(self, terminal):
        self.terminal = terminal

    def pytest_runtest_logreport(self, report):
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = (crash.message if crash else str(report.longrepr)).partition("\n")[0]
            self.terminal.write_line(f"\nFAILED {report.nodeid}: {why}")


@pytest.hookimpl(trylast=True)  # after the terminal reporter is there
def pytest_configure(config):
    compile_sooner(bool(config.option.markexpr))
    config.pluginmanager.register(Programs(Path(COMPILED)).listen())
    if terminal := config.pluginmanager.get_plugin("terminalreporter"):  # a worker has none
        config.pluginmanager.register(Announcer(terminal))


def pytest_collection_finish():
    """JAX's modules and the tests stay, so nothing looks through them for garbage again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.fixture(autouse=True)
def drawn_anew(request):
    """What a test draws follows from its file's name and its own, not from the tests before it."""
    if rng := getattr(request.module, "RNG", None):
        name = f"{request.path.name}::{request.node.name}"
        rng.bit_generator.state = np.random.default_rng(zlib.crc32(name.encode())).bit_generator.state


@pytest.fixture(autouse=True)
def printed_as_before():
    """Code of a page may set how arrays are printed."""
    with np.printoptions():
        yield


@pytest.fixture(scope="module", autouse=True)
def forgotten():
    """Programs of one file rarely serve another, and all of them together take 4 GB of each worker."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def compiled_anew(request):
    """For files whose subject is what the compiler makes for users; nothing of it was kept before."""
    compile_sooner(False)
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield
    compile_sooner(bool(request.config.option.markexpr))
    jax.config.update("jax_compilation_cache_dir", COMPILED)
    compilation_cache.reset_cache()


@pytest.fixture
def on_cpu():
    """One device's results are compared with those of many, which are CPU devices: so it is one of them."""
    first = jax.devices("cpu")[0]
    with contextlib.nullcontext() if first in jax.devices() else jax.default_device(first):
        yield
