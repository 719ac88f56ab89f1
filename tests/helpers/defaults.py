"""What releases of transformers have by default, as recorded, in the keys of old configs."""

from posenc_jax.hf._models import MODELS


def of_releases(recorded):
    """By release, by model type, from what hf_defaults.json holds: of each release what differs from the one before it."""
    releases, types = {}, {}
    for release, changes in recorded["releases"].items():
        types = {name: value for name, value in (types | changes).items() if value is not None}
        releases[release] = types
    return releases


def flat(name, config):
    """Defaults of a model type without rope settings within, which releases before 5 do not have; a base by its old key."""
    thetas, settings = getattr(MODELS.get(name), "thetas", None) or {}, config.get("rope_parameters") or {}
    result = {key: value for key, value in config.items() if key not in ("rope_parameters", "rope_scaling")}
    for kind, value in settings.items():
        for key, own in value.items() if isinstance(value, dict) else ():
            result[thetas[kind][0] if key == "rope_theta" and kind in thetas else f"{kind}.{key}"] = own
        if not isinstance(value, dict):
            result[kind] = value
    return {key: value for key, value in result.items() if not (key.endswith("rope_type") and value == "default")}


def moved(before, after):
    """(model type, key, value before, value after) of each default that differs, of types and keys in both releases."""
    for name in sorted(before.keys() & after.keys()):
        old, new = flat(name, before[name]), flat(name, after[name])
        yield from ((name, key, old[key], new[key]) for key in sorted(old.keys() & new.keys()) if old[key] != new[key])
