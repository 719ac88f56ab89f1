"""Advice for the error about an unknown model_type: what to compare before it is read as a known one."""

from __future__ import annotations

import difflib
import os

from posenc_jax.hf._models import MODELS, Model

_PAIRS = {"half": "features i and i + r/2", "interleaved": "features 2i and 2i + 1"}


def advice(name: str) -> str:
    """What to compare, and the facts of the known types whose names are near."""
    facts = "; ".join(f"{candidate!r} {_facts(MODELS[candidate])}" for candidate in _near_types(name))
    return (
        "a known type may be written in its place only if the code of both is the same in this: which features make a "
        "pair, how many rotate, the base, which layers have positions, what scales queries and scores"
        + (f" (a near name proves nothing: {facts})" if facts else "")
    )


def _near_types(name: str) -> list[str]:
    """The known types, at most two, with a name like this one."""
    names, lower = {candidate.lower(): candidate for candidate in sorted(MODELS)}, name.lower()
    prefixed = [key for key in names if len(os.path.commonprefix([key, lower])) > max(3, 0.6 * len(key))]
    close = difflib.get_close_matches(lower, prefixed or names, 2, 0.6 if prefixed else 0.75)
    return [names[key] for key in close]


def _facts(model: Model) -> str:
    """The facts of a known type that a fork may change, as text."""
    if model.never_rotates:
        return "has no positions"
    share = "the whole head" if model.partial in (None, 1) else f"{model.partial:g} of a head"
    share = f"{model.rotary_dim} features of a head" if model.rotary_dim else share
    thetas = [base for _, base in model.thetas.values()] if model.thetas else [model.theta]
    bases = {base for base in thetas if base and not model.nested}  # nested settings must have it
    some_without = model.sliding_only or model.no_rope_interval is not None
    parts = [
        f"pairs {_PAIRS[model.layout]}" if model.layout else "",
        "rotates " + ("the last features of a head" if model.latent else share),
        f"has base {' and '.join(f'{base:,.0f}' for base in sorted(bases, reverse=True))}" if bases else "",
        f"deals pairs out to coordinates, {model.sections}" if model.sections else "",
        "may have layers without positions" if some_without else "",
        "scales queries by position" if model.query_scale or "query_scales" in model.reads else "",
        "rotates values too" if "rope_on_values" in model.reads else "",
        "rotates backwards" if "rope_backward" in model.reads else "",
    ]
    return ", ".join(filter(None, parts))
