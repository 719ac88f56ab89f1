"""Notebooks are made of the pages: their text, code and outputs, and nothing that only the site understands."""

import base64
import json
import re

import pytest

from helpers.pages import ROOT, program

PAGE = """# Title { #title }

Text with [a link](../rope.md#here), [another](../choose.md) and [one below](#title){ .class }, and $x_{.5}$.

```python
print(1)
```

```text
--8<-- "outputs/one.txt"
```

![What it draws](../figures/some.svg)

=== "NNX"

    In a tab:

    ```python
    x = 2
    ```

??? note "Folded"

    ```python
    print("| a |")
    ```

    --8<-- "outputs/table.md"

    After it.

![A figure](../figures/some.svg){ width="3" }
![A figure](../figures/some_dark.svg#only-dark)

``` { .python }
not_run
```
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The notebook of that page."""
    notebooks = program("notebooks")
    for folder in ("outputs", "figures", "notebooks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "outputs" / "one.txt").write_text("1\n")
    (tmp_path / "outputs" / "table.md").write_text("| a |\n")
    (tmp_path / "figures" / "some.svg").write_text("<svg width='1'></svg>")
    page = tmp_path / "notebooks" / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    monkeypatch.setattr(notebooks, "DOCS", tmp_path)
    monkeypatch.setattr(notebooks, "INCLUDES", tmp_path)
    monkeypatch.delenv("SITE_URL", raising=False)
    monkeypatch.delenv("REPO_URL", raising=False)
    return notebooks.notebook(page)


def test_a_page_as_a_notebook(made):
    title, install, text, one, tab, two, folded, three, rest = made["cells"]
    assert title["source"] == "# Title" and install["source"].splitlines()[1].startswith("# %pip install")
    assert text["source"] == "Text with [a link](rope.ipynb), another and one below, and $x_{.5}$."
    svg = "<svg style=\"background: white\" width='1'></svg>"
    assert one["source"] == "print(1)" and one["outputs"] == [
        {"output_type": "stream", "name": "stdout", "text": "1\n"},
        {"output_type": "display_data", "data": {"image/svg+xml": svg, "text/plain": "What it draws"}, "metadata": {}},
    ]
    assert tab["source"] == "**NNX**\n\nIn a tab:" and two["source"] == "x = 2" and two["outputs"] == []
    assert folded["source"] == "**Folded**" and three["outputs"][0]["data"]["text/markdown"] == "| a |\n"
    figure = re.match(r"After it\.\n\n!\[A figure\]\(data:image/svg\+xml;base64,([\w+/=]+)\)", rest["source"])
    assert base64.b64decode(figure[1]).decode() == svg
    assert "dark" not in rest["source"] and rest["source"].endswith("```python\nnot_run\n```")
    assert len({cell["id"] for cell in made["cells"]}) == 9 and made["nbformat"] == 4


def test_links_lead_to_the_site_where_it_is(made, monkeypatch):
    notebooks = program("notebooks")
    monkeypatch.setenv("SITE_URL", "https://example.org/pe/")
    page = notebooks.DOCS / "notebooks" / "page.md"
    assert notebooks.words("[one](../choose.md#row)", page) == "[one](https://example.org/pe/choose.html#row)"
    opened = "[two](https://example.org/pe/explorer.html?d=8&k=3#clocks)"
    assert notebooks.words("[two](../explorer.md?d=8&k=3#clocks)", page) == opened


def test_each_notebook_is_listed():
    names = sorted(path.stem for path in program("notebooks").pages())
    listed = (ROOT / "docs/notebooks/index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\(\.\./downloads/(\w+)\.ipynb\)", listed)) == names and len(names) > 15


def test_a_notebook_that_prints_something_else_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("nbclient", reason="installed by `nox -s notebooks`")
    notebooks = program("notebooks")
    source = {"cells": [notebooks.code("print(2)", "1\n") | {"id": "a"}], "metadata": {}, "nbformat": 4}
    (tmp_path / "x.ipynb").write_text(json.dumps(source | {"nbformat_minor": 5}))
    with pytest.raises(RuntimeError, match="x.ipynb, a prints\n2\n"):
        notebooks.run(tmp_path / "x.ipynb")
