"""The text of `train_text.py`: the source code of Python's standard library, on every machine that has Python."""

from __future__ import annotations

import platform
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import Any

import numpy as np


def read() -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """The bytes to train on, those held out, and a description of both.

    A checksum of its name puts a file on its side, so it stays there when a Python version adds or removes others.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in folder.glob("*.py") if path.stem in sys.stdlib_module_names)
    held_out = [path for path in files if zlib.crc32(path.name.encode()) % 10 == 0]
    training = [path for path in files if path not in held_out]
    train, test = (np.frombuffer(b"".join(p.read_bytes() for p in side), np.uint8) for side in (training, held_out))
    if min(len(train), len(test)) < 2**16:
        raise SystemExit(f"this Python has no source code of its standard library in {folder}")
    return (
        train,
        test,
        {
            "text": f"source code of the standard library of Python {platform.python_version()}",
            "training_files": len(training),
            "training_bytes": len(train),
            "held_out_files": [path.name for path in held_out],
            "held_out_bytes": len(test),
        },
    )
