"""Tuning words: exact on host and device, and rounded where a turn ends."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import spectra
from posenc_jax import _fixed_point


def test_tuning_words_on_host_and_device_agree():
    rng = np.random.default_rng(1)
    angular = (10.0 ** rng.uniform(-12, 6, 400) * rng.choice([-1, 1], 400)).astype(np.float32)
    angular[:6] = [0.0, np.pi, -np.pi, 2 * np.pi, 1.0, -1.0]
    host = _fixed_point.word_from_turns(spectra.turns(map(float, angular)))
    device = jax.jit(_fixed_point.word_from_angular)(jnp.asarray(angular))

    def value(word):  # step + remainder, in units of 2⁻⁴⁷ turn, mod a turn; whole turns aside
        step = [(int(s) << 15) + int(r) for s, r in zip(word.step, word.step_low, strict=True)]
        jump = [(int(s) << 15) + int(r) for s, r in zip(word.jump, word.jump_low, strict=True)]
        return np.array(step), np.array(jump)

    for mine, theirs in zip(value(host), value(device), strict=True):
        distance = (mine - theirs + 2**46) % 2**47 - 2**46
        assert np.abs(distance).max() <= 1
    exact = [Fraction(t, 2**128) for t in spectra.turns(map(float, angular))]
    for word in (host, device):
        whole = np.array([int(w) + int(s) / 2**32 for w, s in zip(word.turns, word.step, strict=True)])
        assert np.abs(whole - np.array([float(x) for x in exact])).max() < 2**-32 + 2**-53 * 2e5


# The last two are rounded to half a turn and to a whole one, in the step.
@pytest.mark.parametrize(
    "fraction", [2**-33, 1 - 2**-33, 0.5 - 2**-34, 0.5, 0.5 + 2**-33, 1 - 2**-20, 0.5 - 2**-40, 1 - 2**-40]
)
def test_whole_turns_round_with_the_step(fraction):
    word = _fixed_point.word_from_turns((int(fraction * 2**128) + (3 << 128), int(fraction * 2**128) - (5 << 128)))
    value = word.turns + word.step / 2**32 + word.step_low / 2**47
    np.testing.assert_allclose(value, [3 + fraction, fraction - 5], rtol=0, atol=2**-46)
