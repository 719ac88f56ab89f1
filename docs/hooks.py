"""What MkDocs changes in the pages that it renders."""

import re
from typing import Any

from markdown import Extension, Markdown
from mkdocs.config.defaults import MkDocsConfig

PRIVATE = re.compile(r'\s+title="[^"]*\bposenc_jax(?:\.\w+)*\._[a-z][^"]*"')


def on_post_page(output: str, **_: Any) -> str:
    """Drops tooltips that name a private module: users import from the public ones."""
    return PRIVATE.sub("", output)


class _Views(Extension):
    """Lets `<pe-view markdown="1">` hold Markdown, as a `div` may."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.block_level_elements.append("pe-view")


def on_config(config: MkDocsConfig) -> None:
    """Adds that extension."""
    config.markdown_extensions.append(_Views())
