"""Settings and fixtures of all tests.

- Eight CPU devices, strict promotion, and a cache of compiled programs, set before anything uses JAX.
- Each test draws its own random numbers, and leaves neither print options nor, after its file, programs behind.
"""

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
    """Prints a failure when it happens; pytest's own report comes at the end."""

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
    """Seeds the module's RNG by the names of the file and of the test, whatever tests ran before."""
    if rng := getattr(request.module, "RNG", None):
        name = f"{request.path.name}::{request.node.name}"
        rng.bit_generator.state = np.random.default_rng(zlib.crc32(name.encode())).bit_generator.state


@pytest.fixture(autouse=True)
def printed_as_before():
    """Restores how arrays are printed, which the code of a page may change."""
    with np.printoptions():
        yield


@pytest.fixture(scope="module", autouse=True)
def forgotten():
    """Drops a file's programs after it: they rarely serve another file, and all would take 4 GB per worker."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def compiled_anew(request):
    """Compiles as users do and without the cache, in files that test what the compiler makes."""
    compile_sooner(False)
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield
    compile_sooner(bool(request.config.option.markexpr))
    jax.config.update("jax_compilation_cache_dir", COMPILED)
    compilation_cache.reset_cache()


@pytest.fixture
def on_cpu():
    """Makes a CPU the default device, in tests that compare one device with the eight CPU devices."""
    first = jax.devices("cpu")[0]
    with contextlib.nullcontext() if first in jax.devices() else jax.default_device(first):
        yield
