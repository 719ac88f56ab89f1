"""How exactly transformers computes frequencies."""

import math


def bound_of_float32(base: float) -> float:
    """How far the float32 ω of a reference may lie from the true one, relative.

    It raises the base to an exponent rounded to 2⁻²⁵, which moves ω by ln(base)·2⁻²⁵; the power, quotients and
    products add a unit of 2⁻²⁴ or so each.
    """
    return (math.log(base) / 2 + 5) * 2.0**-24
