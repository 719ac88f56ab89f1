"""What MkDocs changes in the pages that it renders."""

import re
from typing import Any

from folding import fold
from markdown import Extension, Markdown
from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig

PRIVATE = re.compile(r'\s+title="[^"]*\bposenc_jax(?:\.\w+)*\._[a-z][^"]*"')
SIGNATURE = re.compile(r'<div class="doc-signature.*?</div>', flags=re.DOTALL)
# Defaults that have no public name, as a caller would write them; the text of the argument says what "..." stands for.
DEFAULTS = {
    r'<span class="n">MappingProxyType</span><span class="p">\(\{\}\)': '<span class="p">{}',
    r'<span class="n">\w+_init</span>(?=<span class="p">[,)])': '<span class="o">...</span>',
    r'<span class="n">_INT32_MAX</span>': '<span class="mi">2147483647</span>',
}
SOURCE = re.compile(
    r'<details class="mkdocstrings-source">(\s*<summary>[^<]*)<code>([\w/.]+)</code>(.*?"[\w.]+--source--.*?-(\d+)")',
    flags=re.DOTALL,
)
HEADING = re.compile(r"^#{1,4} (?P<title>.+?)(?: *\{ *#(?P<id>[\w.-]+) *\})?$", flags=re.MULTILINE)
NAME = r"posenc_jax(?:\.(?:nnx|linen|hf|kernels|plot))?\.\w+"
ENTRY = re.compile(rf"^::: ({NAME})\n(\nRecipes: (?:.+\n)+)?", flags=re.MULTILINE)
MENTION = re.compile(r"\bapi/\w+\.md#(posenc_jax[\w.]+)|(?<![\w.])pe\.(\w+)\(")
MOST = 4  # guides shown for one name

GUIDES: dict[str, dict[str, str]] = {}  # by public name: link -> title, in the order of the pages


def on_files(files: Any, config: Any) -> None:
    """Finds the sections of the guides that show each public name."""
    GUIDES.clear()
    for file in files.documentation_pages():
        if file.src_uri.startswith("api/") or file.src_uri in ("recipes.md", "changelog.md", "bibliography.md"):
            continue
        text = re.sub(r"^ *```.*?^ *```", lambda m: m[0].replace("\n#", "\n"), file.content_string, flags=re.M | re.S)
        headings = list(HEADING.finditer(text))
        for mention in MENTION.finditer(text):
            above = [h for h in headings if h.start() < mention.start()]
            if not above:
                continue
            title = re.sub(r"[`$\\]", "", above[-1]["title"])
            anchor = "" if len(above) == 1 else "#" + (above[-1]["id"] or slugify(title, "-"))
            name = mention[1] or f"posenc_jax.{mention[2]}"
            GUIDES.setdefault(name, {}).setdefault(f"{file.src_uri}{anchor}", title)


def guides(name: str) -> str:
    """The line that leads from a public name to its guides."""
    found = list(GUIDES.get(name, {}).items())[:MOST]
    return "\nGuides: " + " ·\n".join(f"[{title}](../{link})" for link, title in found) + "\n" if found else ""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Folds assertions, and leads from the reference to the guides."""
    if page.file.src_uri.startswith("api/"):
        return ENTRY.sub(lambda match: match[0] + guides(match[1]), markdown)
    return markdown if page.meta.get("assertions") == "shown" else fold(markdown)


def on_page_content(html: str, config: Any, **_: Any) -> str:
    """Signatures with public defaults alone; source that the search passes over, linked if REPO_URL is set."""

    def public(match: re.Match[str]) -> str:
        text = match[0]
        for private, written in DEFAULTS.items():
            text = re.sub(private, written, text)
        return text

    def source(match: re.Match[str]) -> str:
        place = f"<code>{match[2]}</code>"
        if config.repo_url:
            place = f'<a href="{config.repo_url.rstrip("/")}/blob/main/{match[2]}#L{match[4]}">{place}</a>'
        return f'<details class="mkdocstrings-source" data-search-exclude>{match[1]}{place}{match[3]}'

    return SOURCE.sub(source, SIGNATURE.sub(public, html))


def on_post_page(output: str, **_: Any) -> str:
    """Drops tooltips that name a private module, and the theme's question to GitHub how many stars there are."""
    return PRIVATE.sub("", output).replace(' data-md-component="source"', "")


class _Views(Extension):
    """Lets `<pe-view markdown="1">` hold Markdown, as a `div` may."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.block_level_elements.append("pe-view")


def on_config(config: MkDocsConfig) -> None:
    """Adds that extension."""
    config.markdown_extensions.append(_Views())
