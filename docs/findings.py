"""What demo/evidence.json holds, as arrays for figures, and in words and tables for evidence.md."""

import json
import pathlib

import numpy as np

import posenc_jax as pe

RESULTS = json.loads((pathlib.Path(__file__).parents[1] / "demo" / "evidence.json").read_text(encoding="utf-8"))
SEEDS = list(RESULTS["seeds"].values())
LENGTH = RESULTS["setup"]["length"]
LENGTHS = [str(multiple * LENGTH) for multiple in (1, 2, 4)]
HEAD_DIM = RESULTS["setup"]["width"] // RESULTS["setup"]["heads"]
OFFSETS = np.array(SEEDS[0]["rotary"]["far"]["offset"])
LABELS = {
    "none": "no positions",
    "sinusoidal": "sinusoidal",
    "learned": "learned table",
    "rotary": "RoPE",
    "yarn": "RoPE + YaRN",
    "alibi": "ALiBi",
    "t5": "T5",
    "kerple": "KERPLE",
    "fire": "FIRE",
    "pope": "PoPE",
}
BASES = {f"base {base}" if base != 10_000 else "rotary": base for base in sorted([*RESULTS["bases"], 10_000])}


def losses(name: str) -> np.ndarray:
    """Bits per byte, (seeds, 3) for windows of 1, 2 and 4 training lengths; NaN where the model has no answer."""
    return np.array([[seed[name]["bits_per_byte"][n] for n in LENGTHS] for seed in SEEDS], float)


def verdict(name: str) -> str:
    """How the mean loss changes from 1 to 4 training lengths: it keeps within 1%, and no answer loses."""
    near, _, far = losses(name).mean(axis=0)
    return "keeps" if abs(far - near) <= near / 100 else "gains" if far < near else "loses"


def far(phases: str, what: str = "bits_per_byte") -> np.ndarray:
    """What the RoPE models answer at OFFSETS with such phases, (seeds, offsets)."""
    return np.array([seed["rotary"]["far"][phases][what] for seed in SEEDS])


def attention(phases: str, offset: int) -> np.ndarray:
    """The first seed's attention weights at distances 0 to 31, with windows at that offset."""
    return np.array(SEEDS[0]["rotary"]["far"]["attention"][phases][str(offset)])


def seed_noise() -> float:
    """The standard deviation of the loss among seeds, at offset 0 with exact phases."""
    return float(far("exact")[:, 0].std(ddof=1))


def change(phases: str) -> np.ndarray:
    """The largest change of loss among the seeds at OFFSETS, beside exact phases at offset 0."""
    return np.abs(far(phases) - far("exact")[:, :1]).max(axis=0)


def first_seen(phases: str) -> int:
    """The first of OFFSETS at which such phases change the loss by more than another seed does."""
    return int(OFFSETS[(change(phases) > seed_noise()).argmax()])


def reach(base: float) -> int:
    """The distance up to which the sum of RoPE's cosines is nowhere negative, for the heads of these models."""
    products = np.asarray(pe.offset_similarity(np.arange(1 << 14, dtype=np.int32), pe.geometric(HEAD_DIM, base)))
    return int((products < 0).argmax()) - 1


def cells(name: str) -> str:
    """The losses as cells of a table: mean ± standard deviation among seeds."""
    found = losses(name)
    texts = [f"{m:.2f}\u00a0±\u00a0{s:.2f}" for m, s in zip(found.mean(axis=0), found.std(axis=0, ddof=1), strict=True)]
    return " | ".join(
        text if np.isfinite(m) else "no answer" for text, m in zip(texts, found.mean(axis=0), strict=True)
    )


def texts() -> dict[str, str]:
    """The parts of the page that have numbers in them, by the names of the files that it includes."""
    return {f"evidence_{name}.md": text() + "\n" for name, text in TEXTS.items()}


def index(offset: int) -> int:
    """Where OFFSETS has it."""
    return int(np.flatnonzero(offset == OFFSETS)[0])


def rise(phases: str, offset: int) -> float:
    """The mean over seeds by which such phases raise the loss at an offset."""
    return float((far(phases) - far("exact")[:, :1])[:, index(offset)].mean())


def share(phases: str, offset: int) -> str:
    """The share of the bytes for which another next byte becomes the most likely one, in percent."""
    return f"{100 * far(phases, 'changed')[:, index(offset)].mean():.2g}%"


def null() -> str:
    """Where exact phases change nothing."""
    last = int(OFFSETS[index(first_seen("float32")) - 1])
    return (
        f"**Up to {last:,} positions, float32 phases change a loss by less than another seed does.** Small RoPE "
        f"models were trained on windows of {LENGTH} bytes, and then read held-out windows that begin further out. At "
        f"position 10,000, float32 phases change the loss by {change('float32')[index(10_000)]:.0e} bits per byte, at "
        f"{last:,} by {change('float32')[index(last)]:.4f}; another seed changes it by {seed_noise():.4f}. **If a loss "
        f"at such positions is all you care about, exactness is no reason to choose this library.**"
    )


def setup() -> str:
    """What was trained."""
    s, data, versions = RESULTS["setup"], RESULTS["data"], RESULTS["versions"]
    return (
        f"Every model is a decoder of {s['depth']} layers, width {s['width']} and {s['heads']} heads, trained for "
        f"{RESULTS['steps']} steps on {s['batch']} windows of {s['length']} bytes of the {data['text']}, once with "
        f"each of {len(SEEDS)} seeds (JAX {versions['jax']}, Flax {versions['flax']}). Losses are bits per byte of "
        f"files held out, the same bytes at every length; ± is the standard deviation among seeds, and a bar goes "
        f"from the lowest seed to the highest."
    )


def variants() -> str:
    """The table of all variants."""
    rows = [f"| {LABELS[name]} | {cells(name)} |" for name in LABELS]
    return "\n".join(
        [
            f"| bits per byte | {LENGTH}, as trained | {2 * LENGTH} | {4 * LENGTH} |",
            "| --- | ---: | ---: | ---: |",
            *rows,
        ]
    )


def bases() -> str:
    """The table of bases."""
    rows = []
    for name, base in BASES.items():
        slowest = pe.geometric(HEAD_DIM, base).wavelengths[-1]
        rows.append(f"| {base:,} | {slowest:,.0f} | {reach(base):,} | {cells(name)} |")
    head = f"| base | longest wavelength | bound | {LENGTH}, as trained | {2 * LENGTH} | {4 * LENGTH} |"
    return "\n".join([head, "| ---: | ---: | ---: | ---: | ---: | ---: |", *rows])


def offsets() -> str:
    """The table of offsets."""
    rows = []
    for at, offset in enumerate(OFFSETS):
        if offset in (0, 10**3, 10**4, 10**5, 10**6, 10**7, 10**9):
            loss = [f"{far(phases)[:, at].mean():.4f}" for phases in ("exact", "float32", "bfloat16")]
            changed = [f"{100 * far(phases, 'changed')[:, at].mean():.2f}%" for phases in ("exact", "float32")]
            rows.append(f"| {offset:,} | {' | '.join(loss)} | {' | '.join(changed)} |")
    head = "| window begins at | loss, exact | float32 | bfloat16 | predictions changed, exact | float32 |"
    return "\n".join([head, "| ---: | ---: | ---: | ---: | ---: | ---: |", *rows])


def seen() -> str:
    """From where rounding is seen."""
    first, last = first_seen("float32"), int(OFFSETS[-1])
    return (
        f"With exact phases the loss is the same at all positions up to {last:,}, within "
        f"{change('exact').max():.0e} bits. float32 phases add more than another seed does from {first:,} on, "
        f"{rise('float32', first):.3f} bits there, and then the model breaks: at 30,000,000 a byte costs "
        f"{rise('float32', 3 * 10**7):.2f} bits more. float32 has every integer up to 2²⁴ = {2**24:,}; beyond that, "
        f"neighbouring tokens share a position. bfloat16 has every integer up to {2**8}, and breaks in the same way at "
        f"300, by {rise('bfloat16', 300):.2f} bits.\n\n"
        f"The mean hides earlier changes. At one million, float32 phases make another next byte the most likely one "
        f"for {share('float32', 10**6)} of the bytes, and at ten million for {share('float32', 10**7)}. With exact "
        f"phases that is {share('exact', last)} at {last:,}."
    )


TEXTS = {"null": null, "setup": setup, "variants": variants, "bases": bases, "offsets": offsets, "seen": seen}
