"""Arrays as text has them."""

import numpy as np
import torch


def numbers(x, digits=9):
    """An array as lists; nine digits say which float32 a number is."""
    x = np.asarray(x.detach() if torch.is_tensor(x) else x)
    if x.ndim:
        return [numbers(row, digits) for row in x]
    return float(f"{x:.{digits}g}") if x.dtype.kind == "f" else x.item()
