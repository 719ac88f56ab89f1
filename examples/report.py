"""The page and the JSON file of `train_text.py`: all figures inside the page, light and dark, nothing to load."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import figures
import numpy as np

import posenc_jax as pe

STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


def write(output: Path, results: dict[str, Any], tables: dict[str, np.ndarray]) -> None:
    """Both files, each replaced in one step, so that an interruption leaves the old one or the new one."""
    contents = {"results.json": json.dumps(results, indent=1, allow_nan=False), "index.html": page(results, tables)}
    for name, text in contents.items():
        partial = output / f".{name}.partial"
        partial.write_text(text + "\n", encoding="utf-8")
        os.replace(partial, output / name)


def lengths_of(results: dict[str, Any]) -> list[str]:
    return list(next(iter(results["variants"].values()))["windows"]) if results["variants"] else []


def text_table(results: dict[str, Any]) -> str:
    """The bits per byte for a terminal."""
    header = ["bits per byte", *(f"{n} bytes" for n in lengths_of(results)), "training"]
    rows = [header]
    for name, variant in results["variants"].items():
        values = [w["bits_per_byte"] for w in variant["windows"].values()]
        cells = ["no answer" if value is None else f"{value:.3f}" for value in values]
        seconds = results["seconds"][name]["training"]
        rows.append([variant["label"], *cells, "none" if seconds is None else f"{seconds:.0f} s"])
    return "\n".join("".join(f"{cell:>20}" for cell in row) for row in rows)


def result_table(results: dict[str, Any]) -> str:
    lengths, variants = lengths_of(results), results["variants"]
    columns = [*(f"{n} bytes" for n in lengths), f"{lengths[-1]} bytes, from position {results['setup']['length']} on"]
    body = ""
    for name, variant in variants.items():
        windows = list(variant["windows"].values())
        cells = "".join(cell(window["bits_per_byte"], window.get("no_answer", "")) for window in windows)
        cells += cell(windows[-1].get("beyond_training_length"))
        seconds = results["seconds"][name]["training"]
        training = f"none<br><small>weights: {variants[variant['weights']]['label']}</small>"
        body += f'<tr><th scope="row">{escape(variant["label"])}</th>{cells}<td>{variant["parameters"]:,}</td>'
        body += f"<td>{training if seconds is None else f'{seconds:.0f} s'}</td></tr>"
    header = "".join(f'<th scope="col">{name}</th>' for name in ["model", *columns, "parameters", "training"])
    return scroll("Held-out bits per byte by length of the window; fewer are better", header, body)


def cell(value: float | None, reason: str = "") -> str:
    if value is not None:
        return f"<td>{value:.3f}</td>"
    return f"<td>no answer<br><small>{escape(reason)}</small></td>" if reason else "<td>no answer</td>"


def check_table(results: dict[str, Any]) -> str:
    body = ""
    for check in results["checks"]:
        verdict = '<td class="good">✓ holds</td>' if check["passed"] else '<td class="bad">✗ fails</td>'
        body += f'<tr><th scope="row">{escape(check["name"])}</th><td>{escape(check["figure"])}</td>{verdict}</tr>'
    header = '<th scope="col">fact</th><th scope="col">measured</th><th scope="col">verdict</th>'
    return scroll("Facts about positions, measured in this run", header, body, "facts")


def scroll(caption: str, header: str, body: str, kind: str = "numbers") -> str:
    """A table that scrolls within its box where the screen is narrow."""
    table = f"<caption><span>{caption}</span></caption><thead><tr>{header}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll {kind}" role="region" aria-label="{caption}" tabindex="0"><table>{table}</table></div>'


def summary(results: dict[str, Any]) -> str:
    """What was done and what came out, in words and in the numbers of this run."""
    data, variants = results["data"], results["variants"]
    if not variants:
        return "The run was interrupted before a model was finished."
    short, *_, long = lengths_of(results)
    cost = {v["label"]: [v["windows"][n]["bits_per_byte"] for n in (short, long)] for v in variants.values()}
    trained = [v["label"] for v in variants.values() if v["training"]]
    parts = [
        f"A small Transformer learned to predict the next byte of the {data['text']}, in {results['steps']} steps on "
        f"windows of {short} bytes, once with each of: {listing(trained)}. All else was the same, initial weights and "
        "batches included. In files that it had not seen, a byte then cost "
        + listing(f"{cost[label][0]:.2f} bits with {label}" for label in trained)
        + " in windows of that length. Fewer are better."
    ]
    worse = [f"{far:.2f} bits with {label}" for label, (near, far) in cost.items() if far and far > near]
    no_worse = [f"{far:.2f} bits with {label}" for label, (near, far) in cost.items() if far and far <= near]
    none = [label for label, (_, far) in cost.items() if far is None]
    if no_worse:
        parts.append(f"In windows of {long} bytes, with more text to go by, it cost {listing(no_worse)}: no more.")
    if worse:
        parts.append(
            f"In windows of {long} bytes, it cost {listing(worse)}: more, though there was more text to go by. "
            "There is an answer at lengths that no batch had, but not a better one."
        )
    if none:
        parts.append(f"There is no answer beyond {short} bytes with {listing(none)}: the table has no more rows.")
    if not results["complete"]:
        parts.append("<strong>Not all models are finished: this page shows those that are.</strong>")
    return " ".join(parts)


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
    return f"""<p>“Rotary + YaRN” is the rotary model as it was trained, without a further step. For windows of s times
the training length, its frequencies are exchanged for those of YaRN (Peng et al., “YaRN: Efficient Context Window
Extension of Large Language Models”, 2023, sections 3.2 and 3.4). Pairs of features that turn less than once in a
training window would come to angles that no batch had, so they turn s times more slowly; the fastest stay as they are,
to tell neighbours apart; along the ramp between, each pair is slowed more than the one before. And as attention spreads
over more bytes, scores are multiplied by (0.1 ln s + 1)², {sharper}: a lower temperature of the softmax. With s = 1
nothing changes, so the result in windows of {short} bytes is that of rotary positions by construction.</p>
<p>YaRN’s constants were chosen for Llama models, with some training after the exchange; here they are used as they are,
with none. They leave a pair alone from 32 turns in a training window on. Here the fastest of {plain.num_pairs} pairs
makes {length / plain.wavelengths[0]:.0f}, so the ramp begins at that one. Left alone: {kept}; on the ramp:
{plain.num_pairs - kept - full}; s times more slowly: {full}. A byte then cost {listing(outcome)}.
Among these, at the first {length} positions of windows of {longer[-1]} bytes, where nothing is out of reach, it cost
{within[0]:.3f} instead of {within[1]:.3f}.</p>"""


def listing(items: Iterable[str]) -> str:
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def page(results: dict[str, Any], tables: dict[str, np.ndarray]) -> str:
    setup, data = results["setup"], results["data"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    facts = {
        "Command": f"<code>{results['command']}</code>",
        "Seed": str(results["seed"]),
        "Versions": versions,
        "Device": escape(results["device"]),
        "Model": f"{setup['depth']} layers of width {setup['width']}, {setup['heads']} heads, trained on "
        f"{results['steps']} batches of {setup['batch']} windows of {setup['length']} bytes",
    }
    if data:
        facts["Text"] = (
            f"{data['text']}: {data['training_bytes']:,} bytes of {data['training_files']} files for training; held "
            f"out, {data['held_out_bytes']:,} bytes of {len(data['held_out_files'])} files "
            f"({escape(', '.join(data['held_out_files']))})"
        )
    if "total" in results["seconds"]:
        facts["Time"] = f"{results['seconds']['total']:.0f} seconds in all"
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items())
    measured = f"""<p>The held-out text is {setup["segments"]} segments of the held-out files, evenly spaced, of
{4 * setup["length"]} bytes to predict each. For every length, the segments are cut into windows of that length, and
each byte is predicted from those before it in its window. So all lengths predict the same bytes; a longer window gives
more text to go by, and asks for positions that no batch had. One run with one seed: small differences may be
chance.</p>"""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Positions in a small Transformer – posenc_jax</title>
<style>
{STYLE}</style>
</head>
<body>
<main>
<h1>Positions in a small Transformer</h1>
<p class="lede">{summary(results)}</p>
<section><h2>Held-out bits per byte</h2>
{result_table(results) if results["variants"] else ""}
{measured}
{yarn(results)}
{figures.of_training(results)}
</section>
<section><h2>What makes it work, checked</h2>
{check_table(results)}
<p>The models here are decoders: their causal mask lets later bytes see more than earlier ones, which breaks the
symmetry, so that even without positions something of the order can be learned.</p>
</section>
<section><h2>The encoding, and what a table learns</h2>
<p>The embeddings, which begin with entries of variance 1/d, are multiplied by √d before positions are added: else the
encoding, with entries of mean square ½, would outweigh them.</p>
<div class="grid">{figures.of_tables(tables, setup["width"], setup["length"])}
{figures.of_library(setup["width"], setup["length"])}</div>
</section>
<section><h2>How this was made</h2>
<dl>{listed}</dl>
</section>
</main>
</body>
</html>"""
