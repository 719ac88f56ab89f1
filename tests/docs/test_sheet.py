"""The tables of "RoPE on one page", beside the formula and what the models' own papers and configs say."""

import math
import re

from helpers.pages import program


def rows(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def number(text):
    return float(text.replace(",", ""))


def test_bases():
    sheet = program("sheet")
    for base, slowest, *turning in rows(sheet.bases()):
        b = number(base)
        wavelengths = [2 * math.pi * b ** (i / 64) for i in range(64)]
        assert number(slowest) == round(wavelengths[-1])
        assert turning == [f"{sum(w <= n for w in wavelengths)} of 64" for n in sheet.LENGTHS]


def test_models():
    table = {name: cells for name, *cells in rows(program("sheet").models())}
    assert table["Pythia 410M"] == ["10,000", "half", "16 of 64", "all", "–"]
    assert table["GPT-J 6B"][1:3] == ["interleaved", "64 of 256"]
    assert table["Llama 3.1 70B"] == ["500,000", "half", "128 of 128", "all", "Llama 3, $s = 8$"]
    assert table["Gemma 3 27B"][0] == "10,000 and 1,000,000" and "in 10 of 62 layers" in table["Gemma 3 27B"][-1]
    assert table["SmolLM3 3B"][3] == "27 of 36"  # every fourth layer has no positions
    assert table["gpt-oss 120B"] == ["150,000", "half", "64 of 64", "all", "YaRN, $s = 32$"]
    assert table["DeepSeek-R1"] == ["10,000", "interleaved", "64 of 192", "all", "YaRN, $s = 40$"]
    assert all(re.fullmatch(r"[\d,]+(?: and [\d,]+)?", cells[0]) for cells in table.values())
