"""Writes tests/oracles/recorded/hf_defaults.json: what config classes of transformers have by default, by release.

    nox -s parity -- --record

does, for the installed release; what is recorded of others stays. In an environment with another release,
`python tests/huggingface/parity/record_defaults.py` adds it.
"""

import json
import logging
import re
from pathlib import Path

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

PATH = Path(__file__).parents[2] / "oracles" / "recorded" / "hf_defaults.json"
# The names of keys that a plan may depend on.
TELLING = re.compile(
    "rope|rotary|theta|head_dim|kv_channels|layer_types|pattern|interval|original_max|attn_scale|floor_scale|tuning|"
    "position_embedding_type|mrope|layers_block|attn_layer|idxs|indices|block_types|alibi|base_freq"
)
FIRST = 12  # of a list of layers


def defaults(name):
    """The keys and values of a config that says nothing, of those that a plan may depend on; None if there is none."""
    try:
        config = CONFIG_MAPPING[name]().to_dict()
    except Exception:  # some classes need arguments
        return None
    return {
        key: _shortened(value) for key, value in sorted(config.items()) if TELLING.search(key) and value is not None
    }


def _shortened(value):
    if isinstance(value, dict):
        return {key: _shortened(x) for key, x in sorted(value.items()) if x is not None}
    return value[:FIRST] if isinstance(value, (list, tuple)) else value


def read():
    """What is recorded: by release, by model type."""
    if not PATH.exists():
        return {}
    releases, types = {}, {}
    for release, changes in json.loads(PATH.read_text(encoding="utf-8"))["releases"].items():
        types = {name: value for name, value in (types | changes).items() if value is not None}
        releases[release] = types
    return releases


def installed():
    """What the installed release has, by model type."""
    logging.disable(logging.CRITICAL)
    found = {name: defaults(name) for name in sorted(CONFIG_MAPPING)}
    logging.disable(logging.NOTSET)
    return json.loads(json.dumps({name: value for name, value in found.items() if value}))


def numbers(release):
    """A release as numbers, for sorting."""
    return tuple(map(int, re.findall(r"\d+", release)[:3]))


def record():
    """The first release whole, and of each other one what differs from the one before it; null for a type that is gone."""
    releases = read() | {transformers.__version__: installed()}
    releases, before, texts = dict(sorted(releases.items(), key=lambda item: numbers(item[0]))), {}, []
    for release, types in releases.items():
        changes = {name: types.get(name) for name in sorted({*types, *before}) if types.get(name) != before.get(name)}
        lines = ",\n".join(f"   {json.dumps(name)}: {json.dumps(value)}" for name, value in changes.items())
        texts.append(f'  "{release}": {{\n{lines}\n  }}')
        before = types
    about = {
        "about": "What config classes of transformers have by default; of each release what differs from the one before it.",
        "command": "nox -s parity -- --record",
    }
    body = ",\n".join(texts)
    PATH.write_text(f'{json.dumps(about, indent=1)[:-2]},\n "releases": {{\n{body}\n }}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    record()
