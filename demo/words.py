"""What came out, in sentences that are made of the numbers of the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import posenc_jax as pe

# Where each encoding was published, on arXiv.
PAPERS = {
    "sinusoidal": "1706.03762",
    "learned": "1705.03122",
    "rotary": "2104.09864",
    "yarn": "2309.00071",
    "alibi": "2108.12409",
    "t5": "1910.10683",
    "kerple": "2205.09921",
    "fire": "2310.04418",
    "pope": "2509.10534",
}


def link(name: str, text: str) -> str:
    """The text, as a link to the encoding's paper if it has one."""
    return f'<a href="https://arxiv.org/abs/{PAPERS[name]}">{text}</a>' if name in PAPERS else text


def lengths_of(results: dict[str, Any]) -> list[str]:
    return list(next(iter(results["variants"].values()))["windows"]) if results["variants"] else []


def finding(results: dict[str, Any]) -> str:
    """What was tried, what came out beyond the training length, and what is still to come."""
    variants, parts = results["variants"], []
    if not variants:
        return coming(results)
    short, *_, long = lengths_of(results)
    groups: dict[str, list[str]] = {"gains": [], "keeps": [], "loses": []}
    for variant in variants.values():
        if change := variant["beyond"]:
            groups[change["verdict"]].append(f"{variant['label']} ({change['difference']:+.2f})".replace("-", "−"))
    told = {"gains": "fewer bits with", "keeps": "as many bits with", "loses": "more bits with"}
    found = "; ".join(f"{told[verdict]} {listing(labels)}" for verdict, labels in groups.items() if labels)
    if found:
        parts.append(
            f"A small Transformer learned to predict the next byte of a text in windows of {short} bytes. "
            f"<strong>Beyond position {short}, bytes in windows of {long} cost {found}</strong>, compared with windows "
            f"of {short}."
        )
    none = [variant["label"] for variant in variants.values() if variant["beyond"] is None]
    if none:
        parts.append(f"There is no answer beyond {short} bytes with {listing(none)}: the table has no more rows.")
    return " ".join(filter(None, [*parts, coming(results)]))


def setting(results: dict[str, Any]) -> str:
    """What was done, and what a byte costs within the training length."""
    data, variants, short = results["data"], results["variants"], lengths_of(results)[0]
    cost = {v["label"]: v["windows"][short]["bits_per_byte"] for v in variants.values() if v["training"]}
    best, worst = min(cost, key=cost.__getitem__), max(cost, key=cost.__getitem__)
    span = f"from {cost[best]:.2f} bits with {best} to {cost[worst]:.2f} with {worst}"
    return (
        f"The text is the {data['text']}. The model was trained for {results['steps']} steps on windows of {short} "
        f"bytes, once with each of: {listing(cost)}. All else was the same, initial weights and batches included. In "
        "windows of that length, from files that it had not seen, a byte then cost "
        + (span if len(cost) > 1 else f"{cost[best]:.2f} bits with {best}")
        + ". Fewer are better."
    )


def coming(results: dict[str, Any]) -> str:
    """Which models are not finished; empty if all are."""
    if not results["coming"]:
        return ""
    steps, finished = results["steps"], "This page shows those that are." if results["variants"] else ""
    models = listing(f"{label} (step {n} of {steps})" if n else label for label, n in results["coming"].items())
    if results["interrupted"]:
        return f"<strong>The run was interrupted: not finished are {models}.</strong> {finished}".rstrip()
    return (
        f"<strong>Still to come: {models}.</strong> The page grows with each model and reloads itself until all are "
        "finished."
    )


def measured(results: dict[str, Any]) -> str:
    """How the loss was measured, and the rule of the verdicts."""
    setup, (short, *_, long) = results["setup"], lengths_of(results)
    return f"""<p>The held-out text is {setup["segments"]} segments of the held-out files, evenly spaced, of
{4 * setup["length"]} bytes to predict each. For every length, the segments are cut into windows of that length, and
each byte is predicted from those before it in its window. So all lengths predict the same bytes; a longer window gives
more text to go by, and asks for positions that no batch had.</p>
<p>The verdict is on the bytes at positions from {short} on in windows of {long}. A model <em>keeps</em> its loss if
they cost what the same bytes cost it in windows of {short}: if the difference is within 1%, or within two of its
standard errors over the {setup["segments"]} segments. It <em>loses</em> if they cost more, and <em>gains</em> if they
cost fewer: as there is more text to go by, that is what a model does that can use it. To keep a loss is not to have a
low one: the table has both. The errors are those of the choice of text. This is one run with one seed: others may
differ by more.</p>"""


def biases(results: dict[str, Any]) -> str:
    """What the biases are and what was learned, if any was trained."""
    variants, setup = results["variants"], results["setup"]
    biased = [variant for variant in variants.values() if variant["bias"]]
    if not biased:
        return ""
    length = setup["length"]
    reach = []
    for variant in biased:
        at = np.searchsorted(variant["bias"]["distance"], length)
        values = np.array(variant["bias"]["layers"])[..., at].ravel()
        reach.append(f"{values.min():.1f} to {values.max():.1f} with {variant['label']}".replace("-", "−"))
    about = {
        "alibi": "ALiBi’s is −m|i − j|, with a slope m for each head that is not learned.",
        "t5": f"T5 learns a number for each of {length // 8} buckets of distances. The last begins before "
        f"{length // 4}, the same share of the training length as in the paper, and holds all greater distances. All "
        "layers share one bias.",
        "kerple": "KERPLE learns p and a of −p ln(1 + a|i − j|). All layers share one bias.",
        "fire": "FIRE learns c, L and a function of ln(c|i − j| + 1) / ln(c max(L, i) + 1): the distance relative to "
        f"the query’s position, at most 1 in windows of any length. L begins at {length // 4}, the same share of the "
        "training length as in the paper. Each layer has its own bias.",
    }
    told = " ".join(text for name, text in about.items() if name in variants)
    return f"""<p>A bias is added to the score of a query and a key for how far apart they are, so it has a value at
every distance. {told}</p>
<p>What a bias takes from a score, it takes from the logarithm of the weight: at −10, a key counts 1/22,000 of
what it otherwise would. About {length} bytes away, the heads range from {listing(reach)}.</p>"""


def yarn(results: dict[str, Any]) -> str:
    """What YaRN does to these frequencies, and what came of it."""
    variants, setup = results["variants"], results["setup"]
    if "yarn" not in variants:
        return ""
    short, *longer = lengths_of(results)
    dim, length, factors = setup["width"] // setup["heads"], setup["length"], [int(n) // int(short) for n in longer]
    plain = pe.geometric(dim)
    stretched = pe.yarn(dim, 10_000.0, factors[-1], original_max=length)
    slowing = plain.angular / stretched.angular
    kept, full = (int(np.isclose(slowing, x).sum()) for x in (1, factors[-1]))
    sharper = listing(f"{pe.yarn(dim, 10_000.0, s, length).attention_factor ** 2:.2f} for s = {s}" for s in factors)
    within = [np.mean(variants[name]["windows"][longer[-1]]["by_position"][:8]) for name in ("yarn", "rotary")]
    outcome = []
    for n in longer:
        before, after = (round(variants[name]["windows"][n]["bits_per_byte"], 3) for name in ("rotary", "yarn"))
        verdict = "fewer" if after < before else "more" if after > before else "as many"
        outcome.append(f"{after:.3f} bits instead of {before:.3f} in windows of {n} bytes ({verdict})")
    paper = link("yarn", "Peng et al., “YaRN: Efficient Context Window Extension of Large Language Models”")
    return f"""<p>“Rotary + YaRN” is the rotary model as it was trained, without a further step. For windows of s times
the training length, its frequencies are exchanged for those of YaRN ({paper}, 2023, sections 3.2 and 3.4). Pairs of
features that turn less than once in a training window would come to angles that no batch had, so they turn s times more
slowly; the fastest stay as they are, to tell neighbours apart; along the ramp between, each pair is slowed more than
the one before. And as attention spreads over more bytes, scores are multiplied by (0.1 ln s + 1)², {sharper}: a lower
temperature of the softmax. With s = 1 nothing changes, so the result in windows of {short} bytes is that of rotary
positions by construction.</p>
<p>YaRN’s constants were chosen for Llama models, with some training after the exchange; here they are used as they are,
with none. They leave a pair alone from 32 turns in a training window on. Here the fastest of {plain.num_pairs} pairs
makes {length / plain.wavelengths[0]:.0f}, so the ramp begins at that one. Left alone: {kept}; on the ramp:
{plain.num_pairs - kept - full}; s times more slowly: {full}. A byte then cost {listing(outcome)}.
Among these, at the first {length} positions of windows of {longer[-1]} bytes, where nothing is out of reach, it cost
{within[0]:.3f} instead of {within[1]:.3f}.</p>"""


def listing(items: Iterable[str]) -> str:
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last
