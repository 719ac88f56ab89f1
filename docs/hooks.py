"""What MkDocs changes in the pages that it renders."""

import os
import re
from collections import Counter
from html import escape
from pathlib import Path
from typing import Any

import card
import llms
import mathematics
import moved
import notebooks
import pictures
import searching
from entries import completed, overview
from folding import fold
from markdown import Extension, Markdown
from markdown.extensions.toc import slugify
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.utils import get_relative_url

import posenc_jax

INSTALL = '--8<-- "README.md:install"'
PRIVATE = re.compile(r'\s+title="[^"]*\bposenc_jax(?:\.\w+)*\._[a-z][^"]*"')
SIGNATURE = re.compile(r'<div class="[^"]*doc-signature.*?</div>', flags=re.DOTALL)
# Defaults that have no public name, as a caller would write them; the text of the argument says what "..." stands for.
DEFAULTS = {
    r'<span class="n">MappingProxyType</span><span class="p">\(\{\}\)': '<span class="p">{}',
    r'<span class="n">\w+_init</span>(?=<span class="p">[,)])': '<span class="o">...</span>',
    r'<span class="n">_INT32_MAX</span>': '<span class="mi">2147483647</span>',
}
# The same in lists of parameters, where the text says what an initialiser without a public name does.
LISTED = {
    r",\s+default:\s+<code><span>\w+_init</span></code>": "",
    r'<span title="types.MappingProxyType">MappingProxyType</span>\(\{\}\)': "{}",
    r"<span[^>]*>_INT32_MAX</span>": "2147483647",
}
# What stands before the first colon of "Returns" is taken for a type, and may be words.
WORDS = re.compile(r'<code>([A-Z][^<|\[]* [^<|\[]*)</code>\s+–(\s+<div class="doc-md-description">\s+<p>)')
CORNER = re.compile(r"(<thead>\s*<tr>\s*)<th([^>]*)></th>")  # names nothing, so it is no header
SOURCE = re.compile(
    r'<details class="mkdocstrings-source">(\s*<summary>[^<]*)<code>([\w/.]+)</code>'
    r'(.*?data-linenos="\s*(\d+)\s*".*?</details>)',
    flags=re.DOTALL,
)
DOCSTRING = re.compile(
    r'^<span class="linenos"[^>]*></span><span class="w"> *</span>(?:<span class="sa">r</span>)?'
    r'<span class="sd">"""(?:(?!""").)*"""</span>\n',
    flags=re.MULTILINE | re.DOTALL,
)
DOCTEST = re.compile(r"^>>> .*\n(?:.+\n)*", flags=re.MULTILINE)
HEADING = re.compile(r"^#{1,4} (?P<title>.+?)(?: *\{ *#(?P<id>[\w.-]+) *\})?$", flags=re.MULTILINE)
NAME = r"posenc_jax(?:\.(?:nnx|linen|hf|kernels|plot))?\.\w+"
ENTRY = re.compile(rf"^::: ({NAME})\n(?! +options)", flags=re.MULTILINE)
MENTION = re.compile(r"\bapi/\w+\.md#(posenc_jax[\w.]+)|(?<![\w.])(pe|linen|kernels)\.(\w+)\(")
IMPORT = re.compile(r"from posenc_jax\.(nnx|hf) import (?:\(([\w,\s]+)\)|([\w, ]+))")
PLAIN = re.compile(r"(?<![\[`])`pe\.(\w+)`(?![\]`])")
TITLE = re.compile(r"^# .+\n", flags=re.MULTILINE)
VIEW = re.compile(r'<pe-view\b[^>]*\bkind="(\w+)"')
DEFINED = re.compile(r'^ *define\("(\w+)"', flags=re.MULTILINE)
FENCE = re.compile(r"^( *)```.*?^\1```$", flags=re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r'^( *```)text\n(?= *--8<-- "outputs/)', flags=re.MULTILINE)
FOLDED = '<details class="success"'
CHECKED = re.compile(r'(<details class="success"[^>]*>\s*)<summary>Check(?:ed at build)?(?:: (.+?))?</summary>')
KATEX = re.compile(r'<link rel="stylesheet" href="([^"]*)katex\.min\.css">\s*')
# Asks for the fonts of most formulas before these are laid out, so that no line moves when they come; from the file
# system, browsers refuse it.
FONTS = (
    r"\g<0><script>if (location.protocol !== 'file:') for (const name of ['Main-Regular', 'Math-Italic'])"
    r" document.head.append(Object.assign(document.createElement('link'), {rel: 'preload', as: 'font',"
    r" type: 'font/woff2', crossOrigin: '', href: `\1fonts/KaTeX_${name}.woff2`}))</script>\n"
)
# What the theme's scripts do with every page and need not, and what they do instead: the index and the worker of the
# search are loaded for a page that was found, to mark its words, or when the search opens.
LATER = {
    r'\$\(location\.protocol!=="file:"\),(?=[\w$]+\("search"\))': "",
    r'(?<=\w\("search\.highlight"\))\?(?=\w+\(\w+,\{index)': "&&/[?&]h=/.test(location.search)?",
    r"(?<=,t=new )Worker\(e\)": (
        "class extends EventTarget{postMessage(e){if(!this.w){this.w=new Worker(this.u);"
        'this.w.addEventListener("message",t=>this.dispatchEvent(new MessageEvent("message",{data:t.data})))}'
        "this.w.postMessage(e)}constructor(e){super();this.u=e}}(e)"
    ),
}
# lunr writes a node's edges as labels and numbers of nodes, end to end. Where labels are digits, different nodes are
# written alike and merged: a query then expands to a term that no page has, and the search throws.
EDGES = {r"e=e\+s\+o\.id": "e=e+s+o.id+','"}
UNFOUND = '\n{: data-search-exclude="1" }\n'  # of a paragraph: the plugin of the search drops what has a value again
MOST = 6  # guides shown for one name
LISTS = ("index.md", "choose.md", "about.md")
# The guide of names that none shows.
OF_MODULE = {
    "nnx": ("RoPE, ALiBi and T5 in Flax", "flax.md"),
    "linen": ("RoPE, ALiBi and T5 in Flax", "flax.md"),
    "hf": ("Loading a Hugging Face config", "huggingface.md"),
    "kernels": ("In a kernel of your own", "tiles.md#own"),
    "plot": ("The sinusoidal encoding", "sinusoidal.md"),
}
# Arguments and errors of a Linen module stand at the NNX module of its name.
OF_LINEN = "    options: {members: false, show_docstring_parameters: false, show_docstring_raises: false}\n"

PAGES: list[Any] = []
GUIDES: dict[str, dict[str, Counter[tuple[str, str]]]] = {}  # by name and page: how often a section mentions the name


def on_nav(nav: Any, files: Any, **_: Any) -> None:
    """The first page is the site's home in a section too: the logo leads there, also from the file system."""
    nav.homepage = files.get_file_from_path("index.md").page


def on_files(files: Any, config: MkDocsConfig) -> None:
    """Counts where the guides mention each public name."""
    GUIDES.clear()
    PAGES[:] = files.documentation_pages()
    for file in files.documentation_pages():
        if file.src_uri.startswith("api/") or file.src_uri in LISTS:
            continue
        text = FENCE.sub(lambda match: match[0].replace("\n#", "\n "), file.content_string)
        headings = list(HEADING.finditer(text))
        title = headings[0]["title"]
        mentions = [
            (m.start(), m[1] or f"posenc_jax.{m[2]}.{m[3]}".replace(".pe.", ".")) for m in MENTION.finditer(text)
        ]
        for module, *names in IMPORT.findall(text):
            for name in re.findall(r"\w+", " ".join(names)):
                mentions += [
                    (m.start(), f"posenc_jax.{module}.{name}") for m in re.finditer(rf"(?<![\w.]){name}\(", text)
                ]
        for place, name in mentions:
            heading = [h for h in headings if h.start() < place][-1]
            section = re.sub(r"[`$\\]", "", heading["title"])
            link = (
                file.src_uri if heading is headings[0] else f"{file.src_uri}#{heading['id'] or slugify(section, '-')}"
            )
            words = title if heading is headings[0] else f"{title} › {section}"
            GUIDES.setdefault(name, {}).setdefault(file.src_uri, Counter())[words, link] += 1


def guides(name: str) -> str:
    """The line that leads from a public name to its guides: of each page, the section that mentions it most."""
    pages = sorted(GUIDES.get(name, {}).values(), key=lambda sections: -sections.total())[:MOST]
    found = [sections.most_common(1)[0][0] for sections in pages]
    if not found and (guide := OF_MODULE.get(name.split(".")[1])):
        found = [guide]
    return "\nGuides: " + " ·\n".join(f"[{words}](../{link})" for words, link in found) + UNFOUND if found else ""


def entry(match: re.Match[str]) -> str:
    """A name of the reference, with its guides."""
    options = OF_LINEN if match[1].startswith("posenc_jax.linen.") else ""
    return f"::: {match[1]}\n{options}{guides(match[1])}"


def shared(page: Any, config: Any) -> str:
    """What a link to a page shows elsewhere: title, summary and, where SITE_URL is set, a picture."""
    said = {
        "og:type": "website",
        "og:site_name": config.site_name,
        "og:title": page.meta.get("title", page.title),
        "og:description": page.meta["description"],
    }
    if config.site_url:
        width, height = card.SIZE
        picture = {"": f"{config.site_url.rstrip('/')}/assets/card.png", ":width": width, ":height": height}
        said |= {"og:url": page.canonical_url} | {f"og:image{what}": value for what, value in picture.items()}
        said |= {"og:image:alt": config.site_description, "twitter:card": "summary_large_image"}
    return "".join(f'<meta property="{name}" content="{escape(str(value))}">\n' for name, value in said.items())


def linked(markdown: str) -> str:
    """The page with the first mention of each function, `pe.NAME` as plain code, linked to the reference."""
    seen, parts, end = set(), [], 0

    def link(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen or not hasattr(posenc_jax, name):
            return match[0]
        seen.add(name)
        return f"[`pe.{name}`][posenc_jax.{name}]"

    for fence in FENCE.finditer(markdown):
        parts += [prose(link, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, prose(link, markdown[end:])])


def prose(link: Any, text: str) -> str:
    """Replaces by `link` outside headings and the text of links."""
    lines = text.split("\n")
    return "\n".join(line if line.startswith("#") else PLAIN.sub(link, line) for line in lines)


def downloadable(markdown: str, file: Any, config: Any) -> str:
    """The page with a link below its title to its notebook, and to Colab if the notebooks are in a branch there."""
    if Path(file.abs_src_path) not in notebooks.pages():
        return markdown
    name = f"{Path(file.src_uri).stem}.ipynb"
    links = f"[Download as a notebook]({get_relative_url(f'downloads/{name}', file.src_uri)})"
    repository, branch = (config.repo_url or "").rstrip("/"), os.environ.get("NOTEBOOKS_BRANCH")
    if branch and repository.startswith("https://github.com/"):
        place = repository.removeprefix("https://github.com/")
        links += f" · [Open in Colab](https://colab.research.google.com/github/{place}/blob/{branch}/downloads/{name})"
    return TITLE.sub(lambda match: f"{match[0]}\n{links}\n{{: .pe-notebook }}\n", markdown, count=1)


def installed(markdown: str, config: Any) -> str:
    """The page with the commands that clone and install, if the address is known and README asks for a clone."""
    repository = (config.repo_url or "").rstrip("/")
    if not repository or "pip install ." not in notebooks.README.read_text(encoding="utf-8"):
        return markdown
    commands = f"git clone {repository}\npip install ./{repository.rpartition('/')[2]}"
    return markdown.replace(INSTALL, f"```bash\n{commands}\n```")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Folds assertions, and leads from the reference to the guides and back."""
    page.meta.setdefault("description", llms.summary(markdown) or config.site_description)
    if page.file.src_uri.startswith("api/"):
        page.meta["search"] = {"boost": 1.5}  # who types a name looks for it
        return ENTRY.sub(entry, overview(markdown) if page.file.src_uri == "api/index.md" else completed(markdown))
    markdown = installed(markdown, config)
    text = linked(markdown if page.meta.get("assertions") == "shown" else fold(markdown))
    text = PRINTED.sub(r'\1 { .text data-search-exclude="" }\n', text)
    return downloadable(text, page.file, config)


def viewers(html: str, page: Any, config: Any) -> str:
    """The scripts that draw a page's views, at its end: before those of the theme, for which no view has to wait."""
    kinds = set(VIEW.findall(html))
    if not kinds:
        return ""
    scripts = Path(config.docs_dir, "assets").glob("*.js")
    drawing = [s.name for s in sorted(scripts) if kinds & set(DEFINED.findall(s.read_text(encoding="utf-8")))]
    urls = (get_relative_url(f"assets/{name}", page.url) for name in ("posenc.js", "views.js", *drawing))
    return "".join(f'\n<script src="{url}"></script>' for url in urls)


def on_page_content(html: str, page: Any, config: Any, **_: Any) -> str:
    """Mends what converters guess, hides source and checks from the search, links source to REPO_URL; adds views.

    Checks get a short name, for the corner of their block, and pictures wait until they are looked at.
    """

    def public(match: re.Match[str]) -> str:
        text = match[0]
        for private, written in DEFAULTS.items():
            text = re.sub(private, written, text)
        return text

    def source(match: re.Match[str]) -> str:
        place = f"<code>{match[2]}</code>"
        if config.repo_url:
            place = f'<a href="{config.repo_url.rstrip("/")}/blob/main/{match[2]}#L{match[4]}">{place}</a>'
        code = DOCSTRING.sub("", match[3])  # it stands above
        return f'<details class="mkdocstrings-source" data-search-exclude>{match[1]}{place}{code}'

    html = html.replace(FOLDED, f"{FOLDED} data-search-exclude")
    html = CHECKED.sub(lambda m: f"{m[1]}<summary>checked</summary>" + (f"<p>{m[2]}</p>" if m[2] else ""), html)
    html = pictures.deferred(html, page.file.src_uri, Path(config.docs_dir))
    html = WORDS.sub(r"\2\1: ", CORNER.sub(r"\1<td\2></td>", html))
    return SOURCE.sub(source, SIGNATURE.sub(public, html)) + viewers(html, page, config)


def mend(script: Path, changes: dict[str, str]) -> None:
    """Changes a script of the theme; each pattern must be there once."""
    code = script.read_text(encoding="utf-8")
    for pattern, written in changes.items():
        code, times = re.subn(pattern, lambda match: written, code)  # noqa: B023
        if times != 1:
            raise PluginError(f"{script.name} is another than docs/hooks.py mends: {times} times {pattern}")
    script.write_text(code, encoding="utf-8")


def on_post_build(config: Any) -> None:
    """Writes the pages as Markdown, llms.txt, the picture of links, and pages that lead on; mends the search."""
    site = Path(config.site_dir)
    scripts = site / "assets" / "javascripts"
    mend(*scripts.glob("workers/search.*.min.js"), EDGES)
    mend(*scripts.glob("bundle.*.min.js"), LATER)
    try:
        moved.write(site, config.site_url or "")
    except ValueError as error:
        raise PluginError(str(error)) from None
    keywords = {file.page.url: file.page.meta.get("keywords", []) for file in PAGES}
    searching.rewrite(site / "search" / "search_index.json", keywords)
    if os.environ.get("CHECK_INCLUDES") == "false":  # of `-- --serve`, where includes may be missing
        return
    llms.write(PAGES, Path(config.site_dir), config.site_name, config.site_description)
    card.write(Path(config.site_dir, "assets", "card.png"), config.site_name, config.site_description)


def on_post_page(output: str, page: Any, config: Any, **_: Any) -> str:
    """Sets mathematics, adds metadata; drops private modules' names and the theme's question for stars on GitHub."""
    output = PRIVATE.sub("", output).replace(' data-md-component="source"', "")
    output = output.replace("</head>", f"{shared(page, config)}{moved.script(page.url)}</head>", 1)
    try:
        output = mathematics.with_formulas(output)
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from None
    output = KATEX.sub(FONTS if 'class="katex' in output else "", output)
    for private, written in LISTED.items():
        output = re.sub(private, written, output)
    return output


def on_post_template(output: str, template_name: str, config: MkDocsConfig, **_: Any) -> str:
    """Names the first page by its folder: there the theme looks for the same page of another version."""
    if template_name != "sitemap.xml" or not config.site_url:
        return output
    site = config.site_url.rstrip("/")
    return output.replace(f"<loc>{site}/index.html</loc>", f"<loc>{site}/</loc>")


class _Doctests(Preprocessor):
    """Fences the examples in the text of a docstring; else `>>>` is three quotations, one in the other."""

    def run(self, lines: list[str]) -> list[str]:
        return DOCTEST.sub(r"```pycon\n\g<0>```\n", "\n".join(lines) + "\n").split("\n")


class _Site(Extension):
    """Lets `<pe-view markdown="1">` hold Markdown, as a `div` may, and fences doctests."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.block_level_elements.append("pe-view")
        md.preprocessors.register(_Doctests(md), "doctests", 30)  # before fences are read, at 25


def on_config(config: MkDocsConfig) -> None:
    """Adds that extension, and where mike builds one version of several, a selector in the header."""
    config.markdown_extensions.append(_Site())
    if os.environ.get("MIKE_DOCS_VERSION"):  # elsewhere it would look for a list of versions that is not there
        config.extra["version"] = {"provider": "mike"}
