"""The model types of the installed transformers that the library neither reads nor refuses by name.

`python tests/huggingface/parity/census.py` lists those in modules with rotary code, so that a new release shows its gaps,
and the types that are read without a recorded value.
"""

import inspect
import re
import sys
from functools import cache
from pathlib import Path

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from posenc_jax.hf import _composite, _models, _refused

ROTARY = re.compile(r"rotary|rotate_half|rope_|_rope\b|\brope\b|RoPE|inv_freq")


@cache
def speaks_of_rotations(folder: Path) -> bool:
    """Whether the code of a model speaks of rotations."""
    return any(ROTARY.search(path.read_text(encoding="utf-8")) for path in folder.glob("modeling_*.py"))


def code_of(model_type: str) -> Path:
    """The folder with the code of a model type; packages without code have that of another."""
    folder = Path(inspect.getfile(CONFIG_MAPPING[model_type])).parent
    borrowed = MODEL_MAPPING_NAMES.get(model_type)
    if any(folder.glob("modeling_*.py")) or not isinstance(borrowed, str):
        return folder
    return Path(inspect.getfile(getattr(transformers, borrowed))).parent


def language_model(model_type: str) -> str:
    """The type of a composite config's language model, by the defaults of its class; for others the type itself."""
    if model_type in _refused.REFUSED:
        return model_type
    config = CONFIG_MAPPING[model_type]().to_dict()
    return _composite.parse_text_config(config)[0]["model_type"]


def census() -> dict[str, list[str]]:
    """The model types with rotary code, their own or another's, by what becomes of their configs."""
    result: dict[str, list[str]] = {
        "read": [],
        "read by their language model": [],
        "refused by name": [],
        "missing": [],
    }
    for name in CONFIG_MAPPING:
        if not speaks_of_rotations(code_of(name)):
            continue
        inner = name if name in _models.MODELS else language_model(name)
        if inner in _refused.REFUSED:
            kind = "refused by name"
        elif _models.canonical_type(inner):
            kind = "read" if inner == name else "read by their language model"
        else:
            kind = "missing"
        result[kind].append(name)
    return result


def main() -> None:
    """Prints the counts, the types that are missing, and those of which nothing is recorded."""
    sys.path.append(str(Path(__file__).parents[3] / "docs"))
    from model_types import recorded

    found, without = census(), sorted(_models.MODELS.keys() - recorded())
    print(
        f"transformers {transformers.__version__}: {sum(map(len, found.values()))} model types in modules with rotary code"
    )
    for kind, names in found.items():
        print(f"{len(names):4} {kind}" + (f": {' '.join(names)}" if kind == "missing" and names else ""))
    print(f"{len(without):4} of {len(_models.MODELS)} that are read, without a recorded value: {' '.join(without)}")


if __name__ == "__main__":
    main()
