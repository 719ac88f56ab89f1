"""A page becomes a notebook with its text, code and outputs, and without markup that only the site understands."""

import re

import pytest

from helpers.pages import program

# A page with each kind of link, output, figure, tab and block
PAGE = """# Title { #title }

Text with [a link](../rope.md#here), [another](../choose.md?d=8#row), [one below](#title){ .class } and $x_{.5}$.

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
def cells(tmp_path, monkeypatch):
    """The cells of PAGE as a notebook; its outputs and its figure are in folders as `nox -s docs` leaves them."""
    notebooks, page = program("notebooks"), tmp_path / "notebooks" / "page.md"
    for folder in ("outputs", "figures", "notebooks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "outputs" / "one.txt").write_text("1\n")
    (tmp_path / "outputs" / "table.md").write_text("| a |\n")
    (tmp_path / "figures" / "some.svg").write_text("<svg width='1'></svg>")
    page.write_text(PAGE, encoding="utf-8")
    monkeypatch.setattr(notebooks, "DOCS", tmp_path)
    monkeypatch.setattr(notebooks, "INCLUDES", tmp_path)
    monkeypatch.setenv("SITE_URL", "https://example.org/pe/")
    return notebooks.notebook(page)["cells"]


def test_a_page_becomes_a_notebook(cells):
    """Links point to notebooks or the site, outputs are in their cells, and what is not run is text."""
    title, install, text, one, tab, two, rest = cells  # one and two are the blocks of code
    assert title["source"] == "# Title" and "\n# %pip install" in install["source"]
    other = "[another](https://example.org/pe/choose.html?d=8#row)"
    assert text["source"] == f"Text with [a link](rope.ipynb), {other}, one below and $x_{{.5}}$."
    printed, drawn = one["outputs"]
    assert one["source"] == "print(1)" and printed["text"] == "1\n"
    assert drawn["data"]["image/svg+xml"] == "<svg style=\"background: white\" width='1'></svg>"
    assert tab["source"] == "**NNX**\n\nIn a tab:" and two["outputs"][0]["data"]["text/markdown"] == "| a |\n"
    assert re.fullmatch(
        r"After it\.\n\n!\[A figure\]\(data:image/svg\+xml;base64,[\w+/=]+\)\n+```python\nnot_run\n```", rest["source"]
    )
