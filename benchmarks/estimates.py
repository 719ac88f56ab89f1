"""What the TPU compiler does not estimate of a compiled function, `Compiled` of `tests/devices/aot.py`."""

import re

from devices.aot import BUFFERS, FREE, elements_of, sizes_of


def unestimated(compiled):
    """The operations outside fusions without an estimate that write at least a sixteenth of the result.

    Where there are any, `cycles` is less than all. What a loop repeats is estimated once. Asynchronous transfers are
    `transferred`.
    """
    names = []
    for shape, name, rest in compiled.outside:
        estimate = re.search(r'"estimated_cycles":"(\d+)"', rest)
        nothing = name in FREE or name.endswith(("-start", "-done")) or BUFFERS.search(rest)
        unknown = not estimate or int(estimate[1]) >= 2**62
        if not nothing and unknown and 16 * elements_of(shape) >= compiled.elements:
            names.append(name)
    return names


def transferred(compiled):
    """Bytes that asynchronous copies move between memories, for which there is no estimate."""
    moved = (sizes_of(shape) for shape, name, _ in compiled.outside if name in ("copy-start", "slice-start"))
    return sum(min(sizes) for sizes in moved if sizes)  # of a slice the type has its source too
