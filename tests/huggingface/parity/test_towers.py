"""Vision towers of every type, run forward: each layer turns its queries and keys as the plan says."""

import dataclasses

import numpy as np
import pytest
import torch
import tower_tables
import towers
import transformers
from transformers import vision_utils
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import posenc_jax as pe
from helpers.closeness import assert_within
from posenc_jax import hf
from posenc_jax.hf import _refused, _towers, vision_rotary_from_config

TYPES = sorted(_towers.TOWERS)
BOUND = 3e-6  # of the largest feature
WRONG = 0.05


@pytest.mark.parametrize("model_type", TYPES)
def test_queries_and_keys(model_type, tally):
    errors = towers.errors(model_type)
    assert max(errors.values()) <= BOUND, errors
    passes, plan = towers.passes(model_type), towers.plan(model_type)
    for before, after in zip(passes.rest, passes.moved, strict=True):
        rotates = np.abs(before[0] - after[0]).max() > WRONG
        assert rotates or towers.CASES[model_type].call == "pair"  # whose cross-attention has no positions
    rotating = {i for i, layer in enumerate(plan.layers) if layer.rotary_dim}
    assert rotating == {layer for _, layer, _ in errors}
    tally["vision towers run forward"] += 1
    tally["their layers whose queries and keys turn as planned"] += len(rotating)


def with_rows_and_columns_exchanged(plan):
    def exchanged(f):
        swap = {f.num_axes - 2: f.num_axes - 1, f.num_axes - 1: f.num_axes - 2}
        return dataclasses.replace(f, axes=tuple(swap.get(axis, axis) for axis in f.axes))

    return _with_frequencies(plan, exchanged)


def in_the_other_layout(plan):
    return dataclasses.replace(plan, layout="half" if plan.layout == "interleaved" else "interleaved")


def by_the_next_frequency(plan):
    return _with_frequencies(plan, lambda f: dataclasses.replace(f, cycles=(*f.cycles[1:], *f.cycles[:1])))


def one_further(plan):
    grids = (dataclasses.replace(g, offset=g.offset + 1, centres=False) for g in plan.grids)
    return dataclasses.replace(plan, grids=tuple(grids))


def row_by_row(plan):
    return dataclasses.replace(plan, grids=tuple(dataclasses.replace(g, merge=1, window=0) for g in plan.grids))


def _with_frequencies(plan, change):
    layers = (
        dataclasses.replace(layer, frequencies=change(layer.frequencies)) if layer.rotary_dim else layer
        for layer in plan.layers
    )
    return dataclasses.replace(plan, layers=tuple(layers))


CONTROLS = {
    with_rows_and_columns_exchanged: TYPES,
    in_the_other_layout: TYPES,
    by_the_next_frequency: [name for name in TYPES if name != "gemma4_vision"],
    one_further: TYPES,
    row_by_row: [name for name in TYPES if _towers.TOWERS[name].squares or _towers.TOWERS[name].windows],
}


@pytest.mark.parametrize(("change", "model_type"), [(c, name) for c, names in CONTROLS.items() for name in names])
def test_another_plan_differs(change, model_type):
    assert max(towers.errors(model_type, change).values()) > WRONG


# Learned tables


@pytest.mark.parametrize("model_type", TYPES)
def test_learned_tables(model_type, tally):
    plan, model = towers.plan(model_type), towers.make_model(towers.make_config(model_type))
    has_table = plan.table != "none"
    assert has_table == bool(tower_tables.learned(model)) == (model_type in tower_tables.TABLES)
    if has_table:
        case = tower_tables.case(model_type)
        got = tower_tables.rows_by(plan, case)
        if model_type == "muse_glimmer_vision" and transformers.__version__ == "5.23.0":  # unlike the model's own code
            assert np.abs(got - case["rows"]).max() > WRONG
            return
        assert_within(got, case["rows"], 2e-6, against=model_type)
        tally["vision towers whose learned table reaches the patches as planned"] += 1


# Configs


@pytest.mark.parametrize("model_type", TYPES)
def test_what_a_class_fills_in(model_type):
    """All keys of a config, and no more than its sizes, read alike."""
    config, facts = CONFIG_MAPPING[model_type]().to_dict(), _towers.TOWERS[model_type]
    whole = vision_rotary_from_config(config)
    sizes = {name for names in (facts.hidden, facts.heads, facts.depth) for name in names}
    sizes |= {"num_attention_heads"} if model_type == "efficientloftr" else set()  # its share is a number of heads
    few = {"model_type": model_type} | {name: value for name, value in config.items() if name in sizes}
    assert vision_rotary_from_config(few) == whole
    assert vision_rotary_from_config(towers.make_config(model_type).to_dict()) == vision_rotary_from_config(
        {"model_type": model_type} | towers.settings_of(model_type)
    )


@pytest.mark.parametrize("model_type", TYPES)
def test_other_names_of_sizes(model_type):
    facts, config_class = _towers.TOWERS[model_type], CONFIG_MAPPING[model_type]
    small = {"model_type": model_type} | towers.settings_of(model_type)
    names = [names for names in (facts.hidden, facts.heads, facts.depth, facts.base_keys) if len(names) > 1]
    for alias in [name for several in names for name in several]:
        value = next((small[n] for several in names if alias in several for n in several if n in small), 500.0)
        without = {k: v for k, v in small.items() if not any({k, alias} <= {*several} for several in names)}
        config = config_class.from_dict(without | {alias: value})
        assert vision_rotary_from_config(config.to_dict()) == vision_rotary_from_config(without | {alias: value}), alias
        assert vision_rotary_from_config(without | {alias: value}) != vision_rotary_from_config(small) or value != 500.0


def _towers_in(config):
    parts = (getattr(config, name, None) for name in ("vision_config", "thinker_config", "backbone_config"))
    for part in parts:
        if part is not None:
            yield part
            yield from _towers_in(part)


def _composites():
    for name in CONFIG_MAPPING:
        if name in _towers.TOWERS or name in _towers.REFUSED:
            continue
        try:
            config = CONFIG_MAPPING[name]()
        except Exception:  # classes without defaults
            continue
        found = [part for part in _towers_in(config) if part.model_type in _towers.TOWERS]
        if found:
            yield name, config, found[0]


def _without_types(values):
    return {k: _without_types(v) if isinstance(v, dict) else v for k, v in values.items() if k != "model_type"}


def test_composites(tally):
    named = {}
    for name, config, tower in _composites():
        want = vision_rotary_from_config(tower.to_dict())
        assert vision_rotary_from_config(config) == want, name
        assert vision_rotary_from_config({"model_type": name} | _without_types(config.to_dict())) == want, name
        named[name] = tower.model_type
    known = {
        n
        for n in _towers.FIXED | _towers.CHOSEN
        if n in CONFIG_MAPPING and n not in ("mlcd", "embedding_gemma2", "gemma4", "chmv2")
    }
    assert known <= {*named, *_towers.TOWERS}, known - {*named}
    assert len(named) > 35
    tally["models whose vision tower is read"] = len(named)


def test_what_the_language_side_points_to_is_read():
    pointed = {name for name, reason in _refused.REFUSED.items() if "vision_rotary_from_config" in reason}
    assert pointed == {*TYPES, "mlcd", "sam3", "sam3_vision_model"}


def test_siglip_2_has_no_rotary_embedding():
    model = CONFIG_MAPPING["siglip2_vision_model"](
        hidden_size=32, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8, num_patches=16, patch_size=2
    )
    from transformers import Siglip2VisionModel

    names = [type(module).__name__ for module in Siglip2VisionModel(model).modules()]
    assert not [name for name in names if "Rotary" in name or "Rope" in name]


def test_v_jepa_2_is_no_rotation():
    """Its code tiles the angles of the pairs, as for halves, and turns neighbours."""
    from transformers.models.vjepa2.modeling_vjepa2 import rotate_queries_or_keys

    x = torch.randn(1, 1, 5, 8, dtype=torch.float64)
    turned = rotate_queries_or_keys(x, torch.arange(5.0, dtype=torch.float64))
    lengths = [z.unflatten(-1, (-1, 2)).norm(dim=-1) for z in (x, turned)]
    assert (lengths[0] - lengths[1]).abs().max() > 0.1


def test_the_class_token_of_mlcd():
    """It turns by learned angles, as at position 1 by learned frequencies."""
    config = towers.make_config("mlcd_vision_model")
    torch.manual_seed(0)
    angles = towers.make_model(config).class_pos_emb.detach().numpy()[0]
    passes = towers.passes("mlcd_vision_model")
    for before, after in zip(passes.rest[0], passes.moved[0], strict=True):
        at_rest = pe.rotary(before, 1, angles, head_axis=-3, inverse=True)  # the pass at rest turns this token too
        turned = pe.rotary(at_rest[:, :, :1], 1, angles, head_axis=-3)
        np.testing.assert_allclose(turned, after[:, :, :1], rtol=0, atol=1e-5)
        assert np.abs(at_rest[:, :, :1] - after[:, :, :1]).max() > WRONG


@pytest.mark.parametrize("side", [0, 8, 16, 24])
def test_orders_of_many_grids(side):
    """Squares and windows of any images, as transformers orders them."""
    grids = [(1, 2, 2), (1, 4, 6), (2, 6, 4), (1, 10, 14), (3, 14, 2), (1, 18, 10), (2, 8, 8)]
    grid = hf.PatchGrid(merge=2, window=side // 4)
    plan = hf.VisionPlan((hf.RotaryLayer(pe.axial(8, 2), 8),), "half", grids=(grid,))
    for images in (grids, *([g] for g in grids)):
        at = vision_utils.get_vision_position_ids(torch.tensor(images), 2)
        if side:
            index, _ = vision_utils.get_vision_window_index(torch.tensor(images), 2, side, 2)
            at = at.reshape(-1, 4, 2)[index].reshape(-1, 2)
        np.testing.assert_array_equal(np.concatenate([plan.positions(g) for g in images]), at.numpy())


# timm, whose models have no config.json


def eva(shape, trained, head_dim):
    """EVA-02's positions, scaled to the grid that it was trained on, and frequencies."""
    scale = np.float32(trained) / np.float32(shape)
    return np.float32(pe.grid_positions(shape)) * scale, pe.axial(head_dim, 2)


@pytest.mark.parametrize("trained", [(3, 5), (4, 4)])
def test_eva(trained, tally):
    timm = pytest.importorskip("timm")
    from timm.models.eva import Eva

    torch.manual_seed(0)
    model = Eva(
        img_size=(6, 10), patch_size=2, embed_dim=64, num_heads=2, depth=2, use_rot_pos_emb=True,
        ref_feat_shape=trained, num_classes=0, swiglu_mlp=True, scale_mlp=True,
    ).eval()  # fmt: skip
    seen, attend = [], torch.nn.functional.scaled_dot_product_attention

    def record(q, k, v, **kwargs):
        seen.append((q.numpy(), k.numpy()))
        return 0 * attend(q, k, v, **kwargs)

    results = []
    for still in (True, False):
        seen.clear()
        with pytest.MonkeyPatch.context() as patch, torch.no_grad():
            patch.setattr(torch.nn.functional, "scaled_dot_product_attention", record)
            if still:
                patch.setattr("timm.models.eva.apply_rot_embed_cat", lambda x, *args, **kwargs: x)
                patch.setattr("timm.layers.attention.apply_rot_embed_cat", lambda x, *args, **kwargs: x)
            torch.manual_seed(1)
            model(torch.randn(2, 3, 6, 10))
        results.append(list(seen))
    positions, f = eva((3, 5), trained, 32)
    assert len(results[0]) == len(results[1]) == 2
    for before, after in zip(*results, strict=True):
        for x, y in zip(before, after, strict=True):
            patches = pe.rotary(x[:, :, 1:], positions, f, layout="interleaved", head_axis=-3)
            np.testing.assert_allclose(patches, y[:, :, 1:], rtol=0, atol=BOUND * np.abs(y).max())
            np.testing.assert_array_equal(x[:, :, :1], y[:, :, :1])
            half = pe.rotary(x[:, :, 1:], positions, f, layout="half", head_axis=-3)
            assert np.abs(half - y[:, :, 1:]).max() > WRONG
    tally["vision towers run forward"] += 1
    assert timm.__version__
