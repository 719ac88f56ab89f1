"""Misspelled keys: they are near a key that is read, and no model has them."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

# Names that people and other programs give to keys, and that are not near them; without separators and plurals.
_OTHER_NAMES_OF = {
    "rope_theta rotary_emb_base global_rope_theta local_rope_theta rope_local_base_freq": """
        base basefreq basefrequency basetheta basevalue embeddingbase freqbase frequencybase globalbasefreq inversefreq
        invfreq invfreqbase localbasefreq maxwavelength rotbase ropebase ropefreqbase ropefrequencybase rotarybase theta
        thetabase wavelengthbase""",
    "rope_scaling": """
        contextextension contextscaling ctxscaling factor freqscale frequencyscale lengthscaling linearscaling llama3
        llama3scaling posscaling ropefactor ropescale ropescalingfactor ropescalingtype scaleconfig scaling
        scalingconfig scalingdict scalingfactor scalingparam scalingparameter scalingtype""",
    "head_dim": """
        attentionheadsize attentionheadwidth attnheaddim attnheadsize dhead dimhead dimperhead headdimension headdimsize
        headfeature headsize hiddensizeperhead keylength nembdhead nembdperhead numheaddim perheaddim sizeperhead
        widthperhead""",
    "partial_rotary_factor rotary_pct rotary_emb_fraction": "partialfactor",
    "rotary_dim": "rotdim",
    "sliding_window_pattern": """
        slidingattentionpattern slidingattnpattern slidingpattern slidingwindowinterval slidingwindowperiod swpattern
        windowpattern""",
    "full_attention_interval": "fullattentionevery fullattentionperiod fullattnevery",
    "global_attn_every_n_layers": "globalattentionevery globalattnevery globalattninterval globaleverynlayer",
    "layer_types": """
        attentionlayertype attnlayertype decoderlayertype hybridlayertype layerattentiontype layerattntype layerkind
        mixertype""",
    "no_rope_layers": "nopelayer nopelayers noposlayer noposlayers",
    "rope_interleave": "gptjstyle isneox isneoxstyle neoxstyle traditional",
    "original_max_position_embeddings": """
        maxpositionembeddingsoriginal nctxorig nctxtrain origctxlen originalcontext originalcontextlength originalctx
        originalctxlen originallength originalmaxlen originalmaxlength originalmaxposition originalmaxseqlen
        originalmaxseqlength originalseqlen""",
    "attn_temperature_tuning": "attentiontemperature attntemperature",
}
_KEYS_BY_OTHER_NAME = {other: keys.split() for keys, others in _OTHER_NAMES_OF.items() for other in others.split()}
# Of these, names that are true where the key is false: NeoX pairs halves.
_NEGATED = {"isneox", "isneoxstyle", "neoxstyle"}
# Abbreviations and variants of words in names of keys.
_WORDS = {
    "attn": "attention",
    "ctx": "context",
    "dimension": "dim",
    "emb": "embedding",
    "freq": "frequency",
    "freqs": "frequency",
    "len": "length",
    "orig": "original",
    "percent": "pct",
    "percentage": "pct",
    "pos": "position",
    "rot": "rotary",
    "scale": "scaling",
    "scales": "scaling",
    "temp": "temperature",
}
# Keys that some types read, and the keys that the others read in their place.
SAME = {
    **dict.fromkeys(("rotary_pct", "rotary_emb_fraction"), "partial_rotary_factor"),
    **dict.fromkeys(("kv_channels", "attention_head_dim"), "head_dim"),
    "layers_block_type": "layer_types",
    "rope_scaling": "rope_parameters",
    "rotary_emb_base": "rope_theta",
}
# Keys that are near another one and no misspellings: a config class of transformers 5.23.0 or 5.24.0 or a published
# file has them (`nox -s parity` finds those that are missing here), or they name something else.
KNOWN = set(
    """
    H_cycles L_bp_cycles L_cycles attention_window block_types channels compress_rates feat_dim global_rope_theta
    head_dim_k head_dim_q head_dim_v head_k_dim head_num head_v_dim in_channels index_head_dim indexer_head_dim
    indexer_n_heads kv_head_dim layer_type local_rope_theta max_2d_position_embeddings max_pos_emb mean_dim
    moe_layer_interval mtp_layer_types no_rope_layer_interval partial_rotary_factor partial_rotary_factors
    position_embeddings_type q_head_dim qk_channels qk_head_dim qk_nope_head_dim qk_rope_head_dim rope_interleave
    rotary_embedding_base sliding_windows swa_qk_rope_head_dim use_cla use_mem_rope use_mha use_mlp use_mqa use_rope
    v_channels v_head_dim
    """.split()
)
# Keys that are no candidates: an error says that one is missing, no frequency depends on it, or all keys near it
# concern positions.
_SIZES = set(
    """
    alibi_bias_max compression_ratio d_model decoder_num_attention_heads decoder_num_hidden_layers depth embed_dim
    encoder_attention_heads encoder_layers group_norm_size hidden_size interleaved layers linear_silu model_type n_embd
    n_head n_heads n_layer n_layers nope num_attention_heads num_hidden_layers num_key_value_heads
    num_kv_heads_for_linear_attn num_layers num_nextn_predict_layers patch_size q_head_dim rope
    swa_num_attention_heads swa_num_key_value_heads swa_v_head_dim transformers_version use_alibi use_fope use_nope
    use_position_ids use_rope use_rotary use_rotary_embedding
    """.split()
)


def similar_keys(key: str, names: Collection[str]) -> list[str]:
    """Those of `names` of which `key` may be a misspelling."""
    if key in names or key.startswith("_"):  # transformers 4 wrote some private attributes
        return []
    candidates = sorted(name for name in names if name not in _SIZES)
    by_other_name = _KEYS_BY_OTHER_NAME.get(_folded(key)) or _KEYS_BY_OTHER_NAME.get(_plain(key), ())
    same = [name for name in candidates if name in by_other_name or _folded(name) == _folded(key)]
    same = same or [name for name in candidates if key not in KNOWN and _words(name) == _words(key)]
    near = ([] if key in KNOWN else [name for name in candidates if _near(key, name, edits)] for edits in (1, 2))
    return same or next(filter(None, near), [])


def is_negated(key: str) -> bool:
    """Whether `key` is true where the similar key is false."""
    return not _NEGATED.isdisjoint((_folded(key), _plain(key)))


def spelled_like(name: str, names: Collection[str]) -> str | None:
    """The first of `names` that differs from `name` in case and separators alone."""
    return next((candidate for candidate in names if _plain(candidate) == _plain(name)), None)


@lru_cache(maxsize=4096)
def _folded(key: str) -> str:
    """A key without case, separators and plurals."""
    return _plain(re.sub("s(?=[^a-z]|$)", "", key.lower()))


@lru_cache(maxsize=4096)
def _words(key: str) -> tuple[str, ...]:
    """The words of a key, sorted, without plurals and abbreviations."""
    words: list[str] = re.findall("[a-z0-9]+", re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", key).lower())
    singular = (word if word in _WORDS else word.removesuffix("s") for word in words)
    return tuple(sorted(_WORDS.get(word, word) for word in singular))


def _plain(key: str) -> str:
    """A key without case and separators."""
    return re.sub("[^a-z0-9]", "", key.lower())


@lru_cache(maxsize=65536)
def _near(key: str, name: str, edits: int) -> bool:
    """Whether two keys differ by at most `edits` letters; short keys by one at most."""
    pairs = [(normalized(key), normalized(name)) for normalized in (_folded, _plain)]
    return any(min(len(a), len(b)) > 6 * (edits - 1) and _within(a, b, edits) for a, b in pairs)


def _within(a: str, b: str, edits: int) -> bool:
    """Whether at most `edits` insertions, deletions, substitutions and transpositions turn `a` into `b`."""
    if abs(len(a) - len(b)) > edits:
        return False
    if a == b or not edits:
        return a == b
    i = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[i:], b[i:]
    steps = [(a[1:], b), (a, b[1:]), (a[1:], b[1:])]
    if a[:2] == b[1::-1]:
        steps.append((a[2:], b[2:]))
    return any(_within(x, y, edits - 1) for x, y in steps)
