"""`diffusion_rotary_from_config` gives the rotations that diffusers was recorded to make; the file names the release.

- Each token has the cosines and sines of its class, in the order in which its attention joins tokens.
- Positions are the ids that the class or its pipeline makes, and the rows of its table.
- `rotate` rotates the features that the class rotates.
- Every class that is read is recorded, and one whose pairs do not rotate is refused.
"""

import jax
import numpy as np
import pytest

from oracles import recorded
from posenc_jax.hf import diffusion_rotary_from_config
from posenc_jax.hf._diffusion_models import MODELS

CASES = recorded.cases("hf_diffusion")
READ = [i for i, case in enumerate(CASES) if case.get("layout", "table")]
ROTATING = [i for i in READ if "cos" in CASES[i]]
WITH_IDS = [i for i in READ if {"ids", "rows"} & CASES[i].keys()]


OPTIONS = "scale", "causal"  # of the reader, not of positions


def plan_of(case):
    options = {name: case["sizes"][name] for name in OPTIONS if name in case["sizes"]}
    return diffusion_rotary_from_config(case["config"], stream=case.get("stream"), **options)


def name_of(i):
    return " ".join(filter(None, [CASES[i]["config"]["_class_name"], CASES[i].get("stream"), str(i)]))


@pytest.fixture(scope="module")
def positions():
    """The positions of each case, from one program."""
    sizes = {i: {name: x for name, x in CASES[i]["sizes"].items() if name not in OPTIONS} for i in READ}
    return jax.device_get(jax.jit(lambda: {i: plan_of(CASES[i]).positions(**sizes[i]) for i in READ})())


def tolerance(case, positions):
    """What recorded digits are off; where coordinates are fractions, as far as the float32 of diffusers is, too."""
    return 1e-7 + (positions.dtype == np.float32) * case["error"]


def check_rotation(case, positions):
    """The plan of a case rotates these tokens by the cosines and sines of the case."""
    plan, coordinates = plan_of(case), positions.reshape(len(positions), -1)
    assert plan.layout == case["layout"]
    if plan.learned:  # frequencies (axes, heads, pairs)
        angles = coordinates @ np.reshape(case["pos_frequencies"], (3, -1))
    else:
        angles = coordinates[:, plan.frequencies.axes or [0] * plan.frequencies.num_pairs] * plan.frequencies.angular
    bound = tolerance(case, positions)
    np.testing.assert_allclose([np.cos(angles), np.sin(angles)], [case["cos"], case["sin"]], rtol=0, atol=bound)


@pytest.mark.parametrize("i", ROTATING, ids=name_of)
def test_each_token_has_the_cosines_and_sines_of_its_class(i, positions):
    check_rotation(CASES[i], positions[i])


@pytest.mark.parametrize("i", WITH_IDS, ids=name_of)
def test_positions_are_the_ids_or_rows_of_the_class(i, positions):
    np.testing.assert_array_equal(positions[i], CASES[i].get("rows") or CASES[i]["ids"])


# Pairs of neighbours, and of halves; all heads as one, and in slices; learned frequencies. Each with a number of heads.
LAYOUTS = [("Flux", "interleaved", 1), ("Cosmos", "half", 1), ("LTX2Video", "interleaved", 2), ("LTX2Video", "half", 2)]
LAYOUTS += [("Mochi", "interleaved", 2)]


def in_pairs(x, layout):
    """(tokens, heads, width) as (2, tokens, heads, pairs)."""
    shape = (-1, 2) if layout == "interleaved" else (2, -1)
    return np.moveaxis(x.reshape(*x.shape[:2], *shape), -1 if layout == "interleaved" else -2, 0)


def test_rotate_rotates_the_features_that_the_class_rotates(positions):
    chosen, rng = {}, np.random.default_rng(0)
    for name, layout, heads in LAYOUTS:
        kinds = ((i, CASES[i]["config"]["_class_name"].split("Transformer")[0], CASES[i]["layout"]) for i in ROTATING)
        i = next(i for i, *kind in kinds if kind == [name, layout])
        tokens, pairs = np.shape(CASES[i]["cos"])
        chosen[i] = rng.uniform(-1, 1, (tokens, heads, 2 * pairs // heads)).astype(np.float32)

    def rotate(i, x):
        plan = plan_of(CASES[i])
        merged = plan.head_dim > x.shape[-1]  # all heads rotate as one
        learned = {plan.learned: np.float32(CASES[i]["pos_frequencies"])} if plan.learned else None
        y = x.reshape(len(x), -1) if merged else x
        return plan.rotate(y, positions[i], head_axis=None if merged else -2, parameters=learned).reshape(x.shape)

    rotated = jax.device_get(jax.jit(lambda xs: {i: rotate(i, x) for i, x in xs.items()})(chosen))
    for i, x in chosen.items():
        layout, (a, b) = CASES[i]["layout"], in_pairs(x, CASES[i]["layout"])
        cos, sin = (np.reshape(CASES[i][wave], a.shape) for wave in ("cos", "sin"))
        expected, bound = (a * cos - b * sin, a * sin + b * cos), 1e-6 + 2 * tolerance(CASES[i], positions[i])
        np.testing.assert_allclose(in_pairs(rotated[i], layout), expected, rtol=0, atol=bound, err_msg=name_of(i))


def test_every_class_is_recorded():
    """But for those of Wan's that take more inputs: a test beside diffusers compares their code."""
    recorded_names = {case["config"]["_class_name"] for case in CASES if case.get("layout", "table")}
    assert recorded_names | {"WanVACETransformer3DModel", "WanAnimateTransformer3DModel"} == MODELS.keys()


def test_a_class_whose_pairs_do_not_rotate_is_refused():
    assert [case["config"]["_class_name"] for case in CASES if case.get("layout", "table") is None]
    for case in CASES:
        if case.get("layout", "table") is None:
            with pytest.raises(ValueError, match="no rotation"):
                plan_of(case)
