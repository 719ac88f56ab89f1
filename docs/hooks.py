"""What MkDocs changes in the pages that it renders."""

import re
from typing import Any

PRIVATE = re.compile(r'\s+title="[^"]*\bposenc_jax(?:\.\w+)*\._[a-z][^"]*"')


def on_post_page(output: str, **_: Any) -> str:
    """Drops tooltips that name a private module: users import from the public ones."""
    return PRIVATE.sub("", output)
