"""Every model type of transformers with rotary code is read or refused by name."""

import census


def test_no_model_type_is_missing(tally):
    found = census.census()
    assert not found["missing"], found["missing"]
    for kind in ("read", "read by their language model", "refused by name"):
        tally[f"model types, {kind}"] = len(found[kind])
    assert tally["model types, read"] > 190
