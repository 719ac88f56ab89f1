"""The colours of models and verdicts, in the demo's figures and the site's."""

from __future__ import annotations

from typing import Any

# Dashes or markers differ as well as colours, which stand out from light and from dark backgrounds.
LINES: dict[str, dict[str, Any]] = {
    "none": {"color": "#D55E00", "ls": ":"},
    "sinusoidal": {"color": "#1A86CC", "ls": "-"},
    "learned": {"color": "#009E73", "ls": "--"},
    "rotary": {"color": "#CC79A7", "ls": "-."},
    "yarn": {"color": "#9A7B00", "ls": "-", "marker": "o", "markersize": 4, "markevery": 2},
    "alibi": {"color": "#8A63D2", "ls": "-"},
    "t5": {"color": "#DC3545", "ls": "--"},
    "kerple": {"color": "#1292A8", "ls": "-."},
    "fire": {"color": "#B07D00", "ls": (0, (1, 1)), "marker": "^", "markersize": 4, "markevery": 5},
    "pope": {"color": "#6B7A8F", "ls": "--", "marker": "s", "markersize": 4, "markevery": 3},
}
VERDICTS = {"gains": "#2E9E4F", "keeps": "#2E9E4F", "loses": "#E5533D"}
