"""Pictures that are loaded when they come near the window, in the scheme that is shown, and take their room before."""

import posixpath
import re
from pathlib import Path
from xml.etree import ElementTree

IMAGE = re.compile(r"<img\b([^>]*?) ?/?>")
SOURCE = re.compile(r'\bsrc="([^"#]+\.svg)')
PIXELS = {"pt": 96 / 72, "px": 1, "": 1}


def size(picture: Path) -> tuple[int, int]:
    """The width and the height of an SVG, in pixels."""
    root = ElementTree.parse(picture).getroot()
    sides = (re.fullmatch(r"([\d.]+)(\w*)", root.attrib[side]).groups() for side in ("width", "height"))
    width, height = (round(float(number) * PIXELS[unit]) for number, unit in sides)
    return width, height


def deferred(html: str, page: str, docs: Path) -> str:
    """A page with its pictures so. One that the scheme of colours hides is never near the window."""

    def image(match: re.Match[str]) -> str:
        attributes, source = match[1], SOURCE.search(match[1])
        if source and "width=" not in attributes:
            file = docs / posixpath.normpath(posixpath.join(posixpath.dirname(page), source[1]))
            if file.exists():
                attributes += ' width="{}" height="{}"'.format(*size(file))
        return f'<img{attributes} loading="lazy" decoding="async">'

    return IMAGE.sub(image, html)
