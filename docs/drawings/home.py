"""What the first page shows where no script runs."""

import numpy as np
from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.patches import Circle

import posenc_jax as pe

_QUERY, _KEY = "#1a9a78", "#b565a7"


def home_rope() -> Figure:
    """Two planes, each with the arrows of a query and a key that RoPE has turned by their positions. From the left
    plane to the right one both positions grow by eight: both arrows turn, the angle between them and the score above
    the plane stay as they are."""
    figure = Figure(figsize=(7.2, 3.7), layout="constrained")
    spectrum = pe.geometric(16).angular[1:2].astype(np.float32)  # one pair, 18 degrees a token
    vectors = np.array([[1.1, -0.4], [0.02, 1.0]], np.float32)
    for axes, before in zip(figure.subplots(1, 2), (0, 8), strict=True):
        positions = np.array([before + 4, before + 1])
        turned = np.asarray(pe.rotary(vectors, positions, spectrum, head_axis=None))
        axes.add_patch(Circle((0, 0), 1.35, fill=False, color="#8c959f"))
        for tip, name, colour in zip(turned, "qk", (_QUERY, _KEY), strict=True):
            axes.annotate("", tip, (0, 0), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2.5})
            out = tip * (1 + 0.16 / np.linalg.norm(tip))
            axes.text(*out, name, color=rcParams["text.color"], ha="center", va="center", size="large")
        axes.set(xlim=(-1.45, 1.45), ylim=(-1.45, 1.45), aspect="equal")
        axes.set_axis_off()
        axes.set_title(
            f"query at {positions[0]}, key at {positions[1]}: score {turned[0] @ turned[1]:.3f}", size="medium"
        )
    return figure
