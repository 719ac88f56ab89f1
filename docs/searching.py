"""What the search looks through: sentences without formulas and code, the names in code, and words that people type."""

import html
import json
import re
import tomllib
from pathlib import Path

from mathematics import plain

KEYWORDS = Path(__file__).parent / "keywords.toml"
BOOSTS = {"title": 1000, "keywords": 2000, "code": 1}
BLOCK = re.compile(r"<pre>(.*?)</pre>", flags=re.DOTALL)
FORMULA = re.compile(r"\\\((.*?)\\\)|\\\[(.*?)\\\]", flags=re.DOTALL)
EMPTY = re.compile(r"<(p|li|ul|ol|sub|sup|code)>\s*</\1>")
PUBLIC = re.compile(r"api/\w+\.html#posenc_jax\.(?:(?:nnx|linen|hf|kernels|plot)\.)?(\w+)")
NAME = re.compile(r"[a-zA-Z_]\w{2,}")


def keywords() -> dict[str, str]:
    """The words by the address of a page, or of a section: "page.html#section"."""
    said = tomllib.loads(KEYWORDS.read_text(encoding="utf-8"))
    return {where: " ".join(words) for where, words in said.items()}


def entry(found: dict[str, str]) -> dict[str, str]:
    """A section as the search finds and shows it."""
    names: dict[str, None] = {}

    def code(match: re.Match[str]) -> str:
        names.update(dict.fromkeys(NAME.findall(html.unescape(re.sub(r"<[^>]+>", "", match[1])))))
        return " "

    text = BLOCK.sub(code, found["text"])
    text = FORMULA.sub(lambda match: html.escape(plain(match[1] or match[2]), quote=False), text)
    while EMPTY.search(text):
        text = EMPTY.sub("", text)
    public = PUBLIC.fullmatch(found["location"])
    reference = {"keywords": public[1]} if public else {}  # the first for its name
    return found | {"text": text} | reference | ({"code": " ".join(names)} if names else {})


def rewrite(index: Path) -> None:
    """Rewrites the index; raises ValueError if a page that has keywords is not in it."""
    data = json.loads(index.read_text(encoding="utf-8"))
    said = keywords()
    data["docs"] = [entry(found) for found in data["docs"]]
    for found in data["docs"]:
        if words := said.pop(found["location"], None):
            found["keywords"] = words
    if said:
        raise ValueError(f"{KEYWORDS.name} has words for what is not in the search: {', '.join(said)}")
    data["config"]["fields"] |= {name: {"boost": boost} for name, boost in BOOSTS.items()}
    index.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
