"""What programs that read are told of a page."""

from helpers.pages import program


def test_a_summary_is_the_first_sentences_below_the_title():
    summary = program("llms").summary
    page = (
        "---\nhide: x\n---\n\n# Title { #title }\n\n```python\n# code\n```\n\n[A `link`](x.md) and `code`.\nMore: $x$. "
    )
    assert summary(page) == "A link and code. More: x."
    assert summary("# T\n\nOne. " + "Two " * 50 + ".") == "One."
    assert summary("# T\n\nNo end") == "No end" and summary("# T\n") == ""


def test_a_figure_is_its_description_and_an_include_stands_there(monkeypatch, tmp_path):
    llms = program("llms")
    monkeypatch.setattr(llms.notebooks, "INCLUDES", tmp_path)
    (tmp_path / "figure.md").write_text('![A wave](f.svg#only-light){ width="3" }\n![A wave](f.svg#only-dark)\n')
    (tmp_path / "parts.md").write_text("no\n<!-- --8<-- [start:a] -->\nyes\n<!-- --8<-- [end:a] -->\nno\n")
    text = '# T\n\n<pe-view kind="x">\n--8<-- "figure.md"\n\n--8<-- "parts.md:a"\n</pe-view>\n'
    assert llms.written(text).split() == ["#", "T", "[Figure:", "A", "wave]", "yes"]
