"""The tables of "RoPE on one page", beside the formula and what the models' own papers and configs say."""

import numpy as np

from helpers.pages import program


def rows(table):
    return {
        name: cells for name, *cells in ([c.strip() for c in row[1:-1].split("|")] for row in table.split("\n")[2:])
    }


def test_bases():
    table, i = rows(program("sheet").bases()), np.arange(64)
    for base in (10_000, 500_000, 1_000_000, 10_000_000):
        wavelengths = 2 * np.pi * base ** (i / 64)
        turning = [f"{(wavelengths <= length).sum()} of 64" for length in (4096, 32_768, 131_072)]
        assert table[f"{base:,}"] == [f"{wavelengths[-1]:,.0f}", *turning]


def test_models():
    table = rows(program("sheet").models())
    assert table["Pythia 410M"] == ["10,000", "half", "16 of 64", "all", "–"]
    assert table["Gemma 3 27B"] == [
        *("10,000 and 1,000,000", "half", "128 of 128", "all"),
        "linear, $s = 8$ in 10 of 62 layers",
    ]
    assert table["SmolLM3 3B"][3] == "27 of 36"  # every fourth layer has no positions
    assert table["DeepSeek-R1"] == ["10,000", "interleaved", "64 of 192", "all", "YaRN, $s = 40$"]
