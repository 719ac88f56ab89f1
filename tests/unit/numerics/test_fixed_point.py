"""Phase increments per position, and phases, as fixed-point fractions of a cycle.

- Increments that the host and the device compute differ by at most one unit of 2⁻⁴⁷ cycle, and are right.
- An increment that is rounded up to a whole cycle keeps its value.
- A phase is within three units of 2⁻³² cycle at every int32 position.
"""

from fractions import Fraction

import jax
import numpy as np
import pytest

from oracles import spectra
from posenc_jax._numerics import fixed_point


def test_increments_on_host_and_device_agree():
    rng = np.random.default_rng(1)
    angular = (10.0 ** rng.uniform(-12, 6, 400) * rng.choice([-1, 1], 400)).astype(np.float32)
    angular[:6] = [0.0, np.pi, -np.pi, 2 * np.pi, 1.0, -1.0]
    host = fixed_point.increment_from_cycles(spectra.turns(map(float, angular)))
    device = jax.device_get(jax.jit(fixed_point.increment_from_angular)(angular))

    def step_and_jump(increment):
        """Each with its low part, in units of 2⁻⁴⁷ cycle, without whole cycles."""
        step = [(int(s) << 15) + int(r) for s, r in zip(increment.step, increment.step_low, strict=True)]
        jump = [(int(s) << 15) + int(r) for s, r in zip(increment.jump, increment.jump_low, strict=True)]
        return np.array(step), np.array(jump)

    for on_host, on_device in zip(step_and_jump(host), step_and_jump(device), strict=True):
        distance = (on_host - on_device + 2**46) % 2**47 - 2**46  # modulo a cycle
        assert np.abs(distance).max() <= 1
    exact = [Fraction(t, 2**128) for t in spectra.turns(map(float, angular))]
    for increment in (host, device):
        whole = np.array([int(c) + int(s) / 2**32 for c, s in zip(increment.cycles, increment.step, strict=True)])
        assert np.abs(whole - np.array([float(x) for x in exact])).max() < 2**-32 + 2**-53 * 2e5


# The last two are rounded to half a cycle and to a whole one, in the step.
@pytest.mark.parametrize(
    "fraction", [2**-33, 1 - 2**-33, 0.5 - 2**-34, 0.5, 0.5 + 2**-33, 1 - 2**-20, 0.5 - 2**-40, 1 - 2**-40]
)
def test_whole_cycles_round_with_the_step(fraction):
    part = int(fraction * 2**128)
    increment = fixed_point.increment_from_cycles((part + (3 << 128), part - (5 << 128)))
    value = increment.cycles + increment.step / 2**32 + increment.step_low / 2**47
    np.testing.assert_allclose(value, [3 + fraction, fraction - 5], rtol=0, atol=2**-46)


def test_a_phase_is_within_three_units():
    """Compared with products of integers modulo 2¹²⁸. README promises three units; the error is above one."""
    rng = np.random.default_rng(2)
    angular = (10.0 ** rng.uniform(-12, 1, 300) * rng.choice([-1, 1], 300)).astype(np.float32)
    positions = np.concatenate([rng.integers(-(2**31), 2**31, 94), [-(2**31), -65537, -1, 65535, 2**30 - 1, 2**31 - 1]])
    cycles = spectra.turns(map(float, angular))
    true = np.array([[int(p) * t % 2**128 / 2**96 for t in cycles] for p in positions])  # in units of 2⁻³² cycle
    phase = jax.jit(fixed_point.phase)
    for increment in (
        fixed_point.increment_from_cycles(cycles),
        jax.device_get(jax.jit(fixed_point.increment_from_angular)(angular)),
    ):
        row = fixed_point.PhaseIncrement(*(part[None] for part in increment))
        got = np.float64(phase(np.int32(positions)[:, None], row, np.zeros((1, 1), np.int32)))
        assert 1 < np.abs((got - true + 2**31) % 2**32 - 2**31).max() < 3
