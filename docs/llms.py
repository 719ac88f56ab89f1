"""The pages for programs that read: each as Markdown beside its HTML, and a list of them, https://llmstxt.org."""

import re
from pathlib import Path
from typing import Any

import notebooks

HEADER = re.compile(r"\A---\n.*?\n---\n", flags=re.DOTALL)
TITLE = re.compile(r"^# (.+?)(?: *\{[^}\n]*\})?\n", flags=re.MULTILINE)
# Of a figure's four pictures, three; and the class of a paragraph of them.
OTHERS = re.compile(
    r"!\[[^\]]*\]\([^)]*(?:_phone|_dark)\.svg[^)]*\)(?:\{[^}]*\})?\n?|^\{ \.pe-(?:wide|phone) \}\n", re.M
)
IMAGE = re.compile(r"!\[([^\]]*)\]\([^)]*\)(?:\{[^}]*\})?")
SENTENCE = re.compile(r".+?[.?!](?=\s|$)")
MARKED = re.compile(r"\[([^\]]*)\]\([^)]*\)|[`*$]|\{[^}]*\}")
LENGTH = 160  # of a summary, in characters, beyond its first sentence


def summary(markdown: str) -> str:
    """The first sentences of a page below its title, without marks."""
    body = notebooks.FENCE.sub("", markdown[title.end() :] if (title := TITLE.search(markdown)) else "")
    paragraphs = (" ".join(paragraph.split()) for paragraph in body.split("\n\n"))
    text = next((text for text in paragraphs if re.match(r"\w|\[", text)), "")
    for _ in range(2):  # code inside a link, too
        text = MARKED.sub(lambda match: match[1] or "", text)
    result = ""
    for sentence in SENTENCE.findall(text) or [text]:
        if result and len(result) + len(sentence) > LENGTH:
            break
        result += sentence
    return result


def written(markdown: str) -> str:
    """A page with what it includes; a figure is its description."""
    text = notebooks.INCLUDE.sub(notebooks.included, HEADER.sub("", markdown))
    return notebooks.TAG.sub("", IMAGE.sub(r"[Figure: \1]", OTHERS.sub("", text)))


def write(files: list[Any], site: Path, name: str, description: str) -> None:
    """Writes all pages below the site's folder, and llms.txt."""
    lines = [f"# {name}", "", f"> {description}", "", "## Pages", ""]
    for file in files:
        text = file.content_string
        title = TITLE.search(text)
        if file.src_uri.startswith("api/") or not title:
            continue
        (site / file.src_uri).write_text(written(text), encoding="utf-8")
        lines.append(f"- [{title[1]}]({file.src_uri}): {summary(text)}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
