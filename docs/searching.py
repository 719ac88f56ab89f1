"""What the search looks through: sentences without formulas and code, names in code, words that no page shows."""

import html
import json
import re
from pathlib import Path

from mathematics import plain

BOOSTS = {"title": 1000, "keywords": 2000, "code": 1}
BLOCK = re.compile(r"<pre>(.*?)</pre>", flags=re.DOTALL)
FORMULA = re.compile(r"\\\((.*?)\\\)|\\\[(.*?)\\\]", flags=re.DOTALL)
EMPTY = re.compile(r"<(p|li|ul|ol|sub|sup|code)>\s*</\1>")
PUBLIC = re.compile(r"api/\w+\.html#posenc_jax\.(?:(?:nnx|linen|hf|kernels|plot)\.)?(\w+)")
NAME = re.compile(r"[a-zA-Z_]\w{2,}")


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
    return found | {"text": text} | ({"code": " ".join(names)} if names else {})


def rewrite(index: Path, keywords: dict[str, list[str]]) -> None:
    """Rewrites the index, with the keywords of pages by their addresses; an entry of the reference has its name.

    Of the keywords of other pages such names are left out, so that who types one finds the reference first.
    """
    data = json.loads(index.read_text(encoding="utf-8"))
    names = {found["location"]: match[1] for found in data["docs"] if (match := PUBLIC.fullmatch(found["location"]))}
    reserved = {name.lower() for name in names.values()}
    for page, words in keywords.items():
        names[page] = " ".join(word for word in " ".join(words).split() if word.lower() not in reserved)
    data["docs"] = [
        entry(found) | ({"keywords": names[found["location"]]} if found["location"] in names else {})
        for found in data["docs"]
    ]
    data["config"]["fields"] |= {name: {"boost": boost} for name, boost in BOOSTS.items()}
    index.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
