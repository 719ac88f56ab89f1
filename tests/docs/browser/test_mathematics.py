"""What docs/assets/posenc.js computes for the drawings is what the library computes: frequencies and scalings.

Rotations, similarities and sinusoids are read from what the story and the explorer draw.
"""

import numpy as np
import pytest
from visits import ROOT

import posenc_jax as pe

# Of width, base, factor and original length; the settings that vary in no drawing are these.
SCALINGS = {
    "none": lambda d, base, s, length: pe.geometric(d, base),
    "linear": lambda d, base, s, length: pe.linear_scaling(pe.geometric(d, base), s),
    "ntk": lambda d, base, s, length: pe.ntk(d, base, s),
    "yarn": lambda d, base, s, length: pe.yarn(d, base, s, length),
    "llama3": lambda d, base, s, length: pe.llama3(
        pe.geometric(d, base), s, low_freq_factor=1, high_freq_factor=4, original_max=length
    ),
    "proportional": lambda d, base, s, length: pe.proportional(d, base, 0.25, s),
}


@pytest.fixture(scope="module")
def posenc(browser):
    """Evaluates code that names `given`, the functions of posenc.js, and `turns`, of the first two."""
    page = browser.new_page()
    page.add_script_tag(path=ROOT / "docs" / "assets" / "posenc.js")
    start = "const [d, base] = given; const turns = Number.isInteger(d) ? posenc.geometric(d, base) : [];"
    yield lambda code, *given: page.evaluate(f"(given) => {{ {start} return {code}; }}", given)
    page.close()


@pytest.mark.parametrize(("d", "base"), [(8, 10_000), (128, 500_000)])
def test_frequencies(posenc, d, base):
    """In units of 2⁻¹²⁸ turn; what follows from them, the explorer's numbers show."""
    turns = map(int, posenc("turns.map(String)", d, base))
    assert max(abs(a - b) for a, b in zip(turns, pe.geometric(d, base).cycles, strict=True)) <= 4


@pytest.mark.parametrize("name", SCALINGS)
def test_scalings(posenc, name):
    assert posenc("Object.keys(posenc.scalings)") == list(SCALINGS)
    for given in ((64, 10_000, 8, 8192), (128, 500_000, 32, 4096), (8, 100, 1, 512)):
        settings = dict(zip(("d", "base", "factor", "original"), given, strict=True))
        got, want = posenc("posenc.scalings[given[0]](given[1])", name, settings), SCALINGS[name](*given)
        np.testing.assert_allclose(got["omega"], want.angular, rtol=1e-12)
        assert got.get("amplitude", 1) == pytest.approx(want.attention_factor, rel=1e-14)
