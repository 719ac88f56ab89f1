"""The page and the JSON file of `train_text.py`: all figures inside the page, light and dark, nothing to load."""

from __future__ import annotations

import functools
import json
import os
from html import escape
from pathlib import Path
from typing import Any

import curves
import figures
import numpy as np
import words

STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


def write(output: Path, results: dict[str, Any], tables: dict[str, np.ndarray]) -> None:
    """Both files, each replaced in one step, so that an interruption leaves the old one or the new one."""
    contents = {"results.json": json.dumps(results, indent=1, allow_nan=False), "index.html": page(results, tables)}
    for name, text in contents.items():
        partial = output / f".{name}.partial"
        partial.write_text(text + "\n", encoding="utf-8")
        os.replace(partial, output / name)


def text_table(results: dict[str, Any]) -> str:
    """The bits per byte for a terminal."""
    beyond = f"from {results['setup']['length']} on"
    rows = [["bits per byte", *(f"{n} bytes" for n in words.lengths_of(results)), beyond, "training"]]
    for name, variant in results["variants"].items():
        values = [w["bits_per_byte"] for w in variant["windows"].values()]
        costs = ["no answer" if value is None else f"{value:.3f}" for value in values]
        change, seconds = variant["beyond"], results["seconds"][name]["training"]
        outcome = f"{change['verdict']} ({change['difference']:+.3f})" if change else "no answer"
        rows.append([variant["label"], *costs, outcome, "none" if seconds is None else f"{seconds:.0f} s"])
    return "\n".join(f"{row[0]:>20}" + "".join(f"{text:>17}" for text in row[1:]) for row in rows)


def result_table(results: dict[str, Any]) -> str:
    lengths, variants = words.lengths_of(results), results["variants"]
    body = ""
    for name, variant in variants.items():
        cells = verdict(variant["beyond"]) + "".join(cell(window) for window in variant["windows"].values())
        seconds = results["seconds"][name]["training"]
        training = f"none<br><small>weights: {variants[variant['weights']]['label']}</small>"
        label = words.link(name, escape(variant["label"]))
        body += f'<tr><th scope="row">{label}</th>{cells}<td>{variant["parameters"]:,}</td>'
        body += f"<td>{training if seconds is None else f'{seconds:.0f} s'}</td></tr>"
    beyond = f"verdict<br><small>beyond position {results['setup']['length']}</small>"
    columns = ["model", beyond, *(f"{n} bytes" for n in lengths), "parameters", "training"]  # the verdict fits a phone
    header = "".join(f'<th scope="col">{name}</th>' for name in columns)
    return scroll("Held-out bits per byte by length of the window; fewer are better", header, body)


def cell(window: dict[str, Any]) -> str:
    return "<td>no answer</td>" if window["bits_per_byte"] is None else f"<td>{window['bits_per_byte']:.3f}</td>"


def verdict(change: dict[str, Any] | None) -> str:
    if change is None:
        return "<td>no answer</td>"
    difference = f"{change['difference']:+.3f} ± {change['standard_error']:.3f}".replace("-", "−")
    return (
        f'<td><span class="{change["verdict"]}">{change["verdict"]}</span> {difference}<br>'
        f"<small>{change['beyond']:.3f} against {change['within']:.3f}</small></td>"
    )


def check_table(results: dict[str, Any]) -> str:
    body = ""
    for check in results["checks"]:
        outcome = '<td class="good">✓ holds</td>' if check["passed"] else '<td class="bad">✗ fails</td>'
        body += f'<tr><th scope="row">{escape(check["name"])}</th><td>{escape(check["figure"])}</td>{outcome}</tr>'
    header = '<th scope="col">fact</th><th scope="col">measured</th><th scope="col">verdict</th>'
    return scroll("Facts about positions, measured in this run", header, body, "facts")


def scroll(caption: str, header: str, body: str, kind: str = "numbers") -> str:
    """A table that scrolls within its box where the screen is narrow."""
    table = f"<caption><span>{caption}</span></caption><thead><tr>{header}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll {kind}" role="region" aria-label="{caption}" tabindex="0"><table>{table}</table></div>'


@functools.lru_cache(maxsize=1)
def drawn(described: str) -> dict[str, str]:
    """The figures of a setup and its finished models, given as JSON so that the cache can compare them."""
    results = json.loads(described)
    if not results["variants"]:
        return dict.fromkeys(("results", "positions", "training", "biases"), "")
    found = {"results": curves.of_results(results), "positions": curves.of_positions(results)}
    return found | {"training": curves.of_training(results), "biases": curves.of_biases(results)}


def page(results: dict[str, Any], tables: dict[str, np.ndarray]) -> str:
    setup, data = results["setup"], results["data"]
    figure = drawn(json.dumps({name: results[name] for name in ("setup", "variants")}))
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
    biases, rotary = words.biases(results), words.yarn(results)
    if biases:
        grid = f'<div class="grid">{figure["biases"]}</div>'
        biases = f"<section><h2>What the biases look like</h2>\n{biases}\n{grid}\n</section>\n"
    if rotary:
        rotary = f"<section><h2>Rotary positions, stretched by YaRN</h2>\n{rotary}\n</section>"
    reload = '\n<meta http-equiv="refresh" content="5">' if results["coming"] and not results["interrupted"] else ""
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items())
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">{reload}
<title>Positions in a small Transformer – posenc_jax</title>
<style>
{STYLE}</style>
</head>
<body>
<main>
<h1>Positions in a small Transformer</h1>
<p class="lede">{words.finding(results)}</p>
<div class="grid">{figure["results"]}</div>
<section><h2>Held-out bits per byte, within the training length and beyond</h2>
{result_table(results) if results["variants"] else "<p>No model is finished yet.</p>"}
{f"<p>{words.setting(results)}</p>" if results["variants"] else ""}
<div class="grid">{figure["positions"]}</div>
{words.measured(results) if results["variants"] else ""}
</section>
{biases}{rotary}
<section><h2>What makes it work, checked</h2>
{check_table(results) if results["checks"] else "<p>Being checked.</p>"}
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
<div class="grid">{figure["training"]}</div>
<dl>{listed}</dl>
</section>
</main>
</body>
</html>"""
