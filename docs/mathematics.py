"""Sets mathematics when the site is built, as HTML and MathML by KaTeX: no page needs its script."""

import atexit
import functools
import html
import re
from pathlib import Path

from py_mini_racer import JSEvalException, MiniRacer

KATEX = Path(__file__).parent / "assets" / "katex" / "katex.min.js"
# What arithmatex leaves of $…$ and $$…$$.
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', flags=re.DOTALL)
# Characters for short formulas
RAISED = dict(zip("0123456789+-ni", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ", strict=True))
LOWERED = dict(zip("0123456789+-kijnpm", "₀₁₂₃₄₅₆₇₈₉₊₋ₖᵢⱼₙₚₘ", strict=True))
GREEK = "alpha α beta β gamma γ delta δ theta θ lambda λ mu μ phi φ psi ψ omega ω pi π sigma σ Delta Δ Theta Θ Omega Ω"
OTHERS = "cdot · times × le ≤ ge ≥ ne ≠ approx ≈ infty ∞ to → in ∈ dots … ldots … cdots … top ᵀ pm ± sqrt √"
WORDS = "sin sin cos cos tan tan log log ln ln exp exp max max min min"
SIGNS = dict(zip(*[iter(f"{GREEK} {OTHERS} {WORDS}".split())] * 2, strict=True))
SIGNS |= dict.fromkeys(("left", "right", "mathrm", "mathbf", "text", "operatorname", "boldsymbol"), "")


@functools.cache
def _engine() -> MiniRacer:
    engine = MiniRacer()
    atexit.register(engine.close)  # else its thread keeps the program from ending
    engine.eval(KATEX.read_text(encoding="utf-8"))
    return engine


@functools.cache
def typeset(tex: str, display: bool) -> str:
    """A formula as HTML, and as MathML for those who do not see it; raises ValueError where KaTeX cannot read it."""
    try:
        options = {"displayMode": display, "throwOnError": True, "strict": "error"}
        return _engine().call("katex.renderToString", tex, options)
    except JSEvalException as error:
        raise ValueError(f"KaTeX cannot read {tex}: {str(error).splitlines()[0]}") from None


def with_formulas(page: str) -> str:
    """A page of HTML with its mathematics set."""

    def formula(match: re.Match[str]) -> str:
        tag, opened, tex = match.groups()
        return f'<{tag} class="arithmatex">{typeset(html.unescape(tex), opened == "[")}</{tag}>'

    return FORMULA.sub(formula, page)


def plain(tex: str) -> str:
    """A short formula in characters alone, such as ω₀ = 10⁻⁴; … for what cannot be written so."""

    def script(match: re.Match[str]) -> str:
        signs, written = RAISED if match[1] == "^" else LOWERED, match[2] or match[3] or ""
        return "".join(map(signs.get, written)) if {*written} <= {*signs} else match[1] + written

    text = re.sub(r"\\([a-zA-Z]+) ?", lambda match: SIGNS.get(match[1], match[0]), html.unescape(tex))
    text = re.sub(r"([\^_])(?:\{([^{}]*)\}|(\S))", script, re.sub(r"\\[ ,;!]|~", " ", text))
    text = re.sub(r"\{([^{}\\]*)\}", r"\1", text)
    return "…" if re.search(r"[\\{}&]", text) or len(text) > 40 else text.strip()
