"""A page becomes a notebook with its text, code and outputs, and without markup that only the site understands."""

import re

import pytest

from helpers.pages import program

# A page with links, outputs, figures, a tab, a container and code that is not run
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

!!! note "N"

    Inside.

![A figure](../figures/some.svg){ width="3" }
![A figure](../figures/some_dark.svg#only-dark)

``` { .python }
not_run
```
"""


@pytest.fixture
def cells(tmp_path, monkeypatch):
    """The cells of PAGE as a notebook; its outputs and its figure are in folders as `nox -s docs` leaves them."""
    maker, page = program("notebooks"), tmp_path / "notebooks" / "page.md"  # docs/notebooks.py, and what it reads
    for folder in ("outputs", "figures", "notebooks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "outputs" / "one.txt").write_text("1\n")
    (tmp_path / "outputs" / "table.md").write_text("| a |\n")
    (tmp_path / "figures" / "some.svg").write_text("<svg width='1'></svg>")
    page.write_text(PAGE, encoding="utf-8")
    monkeypatch.setattr(maker, "DOCS", tmp_path)
    monkeypatch.setattr(maker, "INCLUDES", tmp_path)  # where outputs are
    monkeypatch.setenv("SITE_URL", "https://example.org/pe/")
    return maker.notebook(page)["cells"]


@pytest.mark.parametrize(
    ("command", "repository", "want"),
    [
        ("pip install . ", "", '".[plot]"  # in a clone of the repository'),
        ("pip install . ", "https://example.org/a/b/", '"posenc_jax[plot] @ git+https://example.org/a/b"'),
        ("pip install posenc_jax\n", "https://example.org/a/b", '"posenc_jax[plot]"'),
    ],
)
def test_a_notebook_installs_what_readme_names(command, repository, want, monkeypatch, tmp_path):
    maker = program("notebooks")
    (tmp_path / "README.md").write_text(f"python -m {command}", encoding="utf-8")
    monkeypatch.setattr(maker, "README", tmp_path / "README.md")
    monkeypatch.setenv("REPO_URL", repository)
    assert maker.requirement() == want


def test_links_outputs_and_figures_are_where_a_notebook_has_them(cells):
    """Links point to notebooks (rope is one) or the site, those within the page are text, and so is what is not run."""
    title, install, text, code, tab, code_in_tab, rest = cells
    assert title["source"] == "# Title" and "\n# %pip install" in install["source"]
    to_site = "[another](https://example.org/pe/choose.html?d=8#row)"
    assert text["source"] == f"Text with [a link](rope.ipynb), {to_site}, one below and $x_{{.5}}$."
    printed, drawn = code["outputs"]
    assert code["source"] == "print(1)" and printed["text"] == "1\n"
    assert drawn["data"]["image/svg+xml"] == "<svg style=\"background: white\" width='1'></svg>"
    assert tab["source"] == "**NNX**\n\nIn a tab:" and code_in_tab["source"] == 'print("| a |")'
    assert code_in_tab["outputs"][0]["data"]["text/markdown"] == "| a |\n"
    note, figure, fence = r"\*\*N\*\*\n\nInside\.", r"!\[A figure\]\(data:image/svg\+xml;base64,[\w+/=]+\)", "```"
    # without the dark figure
    assert re.fullmatch(rf"After it\.\n\n{note}\n\n{figure}\n+{fence}python\nnot_run\n{fence}", rest["source"])
