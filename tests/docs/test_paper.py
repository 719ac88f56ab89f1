"""The paper: its references resolve, and it says what README and the pages say."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAPER, BIB, README, BIBLIOGRAPHY, CLIENTS = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("paper/paper.md", "paper/paper.bib", "README.md", "docs/bibliography.md", "docs/clients.md")
)


def test_it_has_the_length_and_the_sections_of_the_journal():
    """Those of JOSS, in its order."""
    assert 750 <= len(PAPER.partition("# Summary")[2].split()) <= 1750
    assert re.findall(r"^# (.+)$", PAPER, re.MULTILINE) == [
        "Summary",
        "Statement of need",
        "State of the field",
        "Software design",
        "Research impact statement",
        "AI usage disclosure",
        "Acknowledgements",
        "References",
    ]


def test_references_resolve():
    entries = dict(re.findall(r"^@\w+\{(\w+),\n(.*?)^\}", BIB, re.MULTILINE | re.DOTALL))
    assert set(re.findall(r"@(\w+)", PAPER)) == set(entries)
    for name, entry in entries.items():
        venue = re.search(r"(?:booktitle|journal) = \{(.*)\}", entry)
        assert not venue or " " in venue[1], f"{name} abbreviates its venue"
        assert re.search(r"^  (eprint = \{\d{4}\.\d{5}\}|url = \{https://\S+\}),$", entry, re.MULTILINE), name
        if known := re.search(rf'<a id="{name}"></a>(.*?)(?=^- |\Z)', BIBLIOGRAPHY, re.MULTILINE | re.DOTALL):
            (number,) = re.findall(r"eprint = \{(.*?)\}", entry)
            title = re.sub(r"[{}]", "", re.search(r"title = \{(.*)\},", entry)[1])
            text = re.sub(r"\s+", " ", known[1])
            assert number in text and title in text, name


def rows(text):
    text = text.replace("10⁶", "106").replace("2³¹ − 1", "231 - 1")
    lines = [line.strip("|").split("|") for line in text.splitlines() if line[:1] == "|"]
    return [[re.sub(r"[$^{}]", "", cell).strip() for cell in cells] for cells in lines]


def test_figures_are_those_of_readme():
    said = {row[0]: row for row in rows(README)}
    head, _, *body = rows(PAPER)
    columns = [said[""].index(name) for name in head[1:]]
    assert len(body) == 3 and all(row[1:] == [said[row[0]][i] for i in columns] for row in body)
    ours, *theirs = re.search(r"\| (\d+ of \d+) \| transformers: (\d+) of its (\d+)", README).groups()
    assert f"passes {ours}" in PAPER and " of ".join(theirs) + " pass" in PAPER
    table = (ROOT / "conformance/results/table.md").read_text(encoding="utf-8")
    rounded, beyond = (
        re.search(rf"^\| failed: {kind}float32 phases .*\| (\d+) \|$", table, re.MULTILINE)[1]
        for kind in ("", "beyond ")
    )
    assert f"{rounded} differ by" in PAPER and f"and {beyond} are at" in PAPER
    (noise,) = re.findall(r"two equal copies differ by (\d+%)", README)
    assert f"two equal copies differ by {noise}" in PAPER
    assert "8.55e-8, all phases" in (ROOT / "benchmarks/NOTES.md").read_text(encoding="utf-8")
    (moved,) = re.findall(r"outputs by (\S+ to \S+) of the largest value", " ".join(CLIENTS.split()))
    assert f"by {moved} of the largest value" in " ".join(PAPER.split())
    (ours,) = re.findall(r"^\| Change .* under (\S+) \|", README, re.MULTILINE)
    assert f"less than {float(ours):.5f}." in PAPER
