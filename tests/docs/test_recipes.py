"""The page of recipes: short, proved, linked both ways. `nox -s docs` runs its code, and this file Equinox's and Haiku's."""

import importlib
import re
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
folding = importlib.import_module("folding")
sys.path.remove(str(DOCS))
TEXT = (DOCS / "recipes.md").read_text(encoding="utf-8")
SECTIONS = {
    anchor: (title, body)
    for title, anchor, body in re.findall(r"^## ([^\n]+) \{ #([\w-]+) \}\n(.*?)(?=^## |\Z)", TEXT, flags=re.M | re.S)
}
FOLDED = re.compile(r"^\?\?\? .*\n(?:\n|    .*\n)*", flags=re.M)
CODE = re.compile(r"^( *)``` ?\{? ?\.?python[^\n]*\n(.*?)^\1```$", flags=re.M | re.S)
MODULES = ("nnx", "linen", "hf")


def used(body):
    """The public names in what a recipe shows before anything is unfolded."""
    shown = FOLDED.sub("", body)
    shown = re.sub(r"(?<![.\w])rotate\(", "pe.rotary(", shown)  # the page's own short name
    names = {f"posenc_jax.{name}" for name in re.findall(r"\bpe\.(\w+)", shown)}
    for module in MODULES:
        public = importlib.import_module(f"posenc_jax.{module}").__all__
        for line in re.findall(rf"^from posenc_jax\.{module} import (.+)$", TEXT, re.M):
            public_here = [name for name in line.split(", ") if name in public]
            names |= {f"posenc_jax.{module}.{n}" for n in public_here if re.search(rf"(?<![.\w]){n}\(", shown)}
        names |= {f"posenc_jax.{module}.{n}" for n in re.findall(rf"\b{module}\.(\w+)", shown) if n in public}
    return names


def test_they_are_short_and_each_has_its_proof_and_its_guide():
    assert len(SECTIONS) == TEXT.count("\n## ") >= 18
    for anchor, (title, body) in SECTIONS.items():
        blocks = [code for _, code in CODE.findall(FOLDED.sub("", folding.fold(body)))]
        assert blocks, anchor
        for code in blocks:
            assert sum(bool(line.strip()) for line in code.splitlines()) <= 12, f"{title}\n{code}"
        assert re.search(r"^ *assert ", body, flags=re.M), title
        assert re.search(r"\]\((?!recipes|#)[\w/]+\.md(#[\w.-]+)?\)", body), f"{title} has no guide"


@pytest.mark.parametrize("anchor", SECTIONS)
def test_the_reference_leads_to_them(anchor):
    title, body = SECTIONS[anchor]
    links = {
        name: line
        for path in (DOCS / "api").glob("*.md")
        for name, line in re.findall(r"^::: ([\w.]+)\n\n(Recipes: (?:.+\n)+)", path.read_text(encoding="utf-8"), re.M)
    }
    assert used(body) and {name for name, line in links.items() if f"recipes.md#{anchor})" in line} == used(body), title


@pytest.mark.parametrize("library", ["equinox", "haiku"])
def test_what_the_site_does_not_run(library):
    module = pytest.importorskip(library)
    (code,) = re.findall(rf"^ *``` \{{ \.python \.{library} \}}\n(.*?)^ *```$", TEXT, flags=re.M | re.S)
    names = {"jax": jax, "jnp": jnp, "pe": pe}
    exec(textwrap.dedent(code), names)
    (plain,) = re.findall(r"^    ```python\n(    def attention_layer.*?)\n\n\n", TEXT, flags=re.M | re.S)
    exec(textwrap.dedent(plain), names)
    q, k, v = np.random.default_rng(0).normal(size=(3, 12, 4, 16)).astype(np.float32)
    frequencies = pe.geometric(16, 500_000.0)
    if library == "equinox":
        layer = names["Attention"](jnp.asarray(np.float32(np.random.default_rng(1).normal(size=(32, 4)))), frequencies)
        table, got = layer.table, module.filter_jit(layer)(q, k, v)
        gradient = module.filter_grad(lambda layer: layer(q, k, v).var())(layer).table
    else:
        model = module.without_apply_rng(module.transform(lambda *x: names["Attention"]()(*x, frequencies)))
        parameters = model.init(jax.random.key(0), q, k, v)
        ((table,),) = (group.values() for group in parameters.values())
        got = jax.jit(model.apply)(parameters, q, k, v)
        gradient = jax.tree.leaves(jax.grad(lambda p: model.apply(p, q, k, v).var())(parameters))[0]
    want = names["attention_layer"](table, q, k, v, frequencies)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)
    assert gradient[:12].all() and not gradient[16:].any()
