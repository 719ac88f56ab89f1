"""Prints the model types with rotary code, as facts.json has them, that are neither read nor refused by name."""

from posenc_jax.hf import _models, _refused

MISSING = [name for name in _models.FACTS["types"] if not (_models.canonical_type(name) or name in _refused.REFUSED)]

if __name__ == "__main__":
    print(*MISSING, sep="\n")
