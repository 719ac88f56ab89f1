"""What biases of tokens and offsets cost: `python benchmarks/content_bias.py [--length N] [--rounds N]`.

Times attention with `content_bias` beside attention without a bias and beside `jax.nn.dot_product_attention` with the
formula as its authors' code has it, which multiplies all queries by all rows, and makes the bias of all queries and
keys. Forward, and forward and backward to queries, keys, values and tables, float32; each round times all.
"""

import argparse
import os

import jax
import jax.numpy as jnp
import numpy as np
from attention_cost import interleaved
from reference import markdown, progress

import posenc_jax as pe

HEADS, WIDTH = 8, 64
CLIPPED, BUCKETS, MAX_DISTANCE = 64, 256, 512  # 129 rows; 512


def offsets(length):
    return np.arange(length)[:, None] - np.arange(length)


def log_buckets(length):
    """DeBERTa's, at most 2,048 positions, from its formula in float64."""
    offset, middle = offsets(length), BUCKETS // 2
    ratio = np.log(np.maximum(abs(offset), middle) / middle) / np.log((MAX_DISTANCE - 1) / middle)
    bucket = np.where(abs(offset) <= middle, offset, np.sign(offset) * (middle + np.ceil(ratio * (middle - 1))))
    return np.clip(bucket + BUCKETS, 0, 2 * BUCKETS - 1).astype(np.int32)


def taken(products, row):
    """Of products with all rows, (batch, heads, n, rows), those of each pair."""
    return jnp.take_along_axis(products, jnp.broadcast_to(row, (1, 1, *row.shape)), axis=-1)


class Shaw:
    """Rows that all heads share, of the query alone; the nearest beyond an offset of 64."""

    shape = lambda length: (2 * CLIPPED + 1, WIDTH)  # noqa: E731

    def tile(i, j, q, k, table):
        return pe.content_bias(i, j, table, query=q, out_of_range="nearest")

    def dense(q, k, table):
        row = np.clip(offsets(q.shape[1]), -CLIPPED, CLIPPED) + CLIPPED
        return taken(jnp.einsum("bihd,rd->bhir", q, table), row)


class Deberta:
    """Rows of each head and buckets, of the query and of the key."""

    shape = lambda length: (2, 2 * BUCKETS, HEADS, WIDTH)  # noqa: E731

    def tile(i, j, q, k, tables):
        of_query = pe.content_bias(i, j, tables[0], query=q, max_distance=MAX_DISTANCE)
        return of_query + pe.content_bias(i, j, tables[1], key=k, max_distance=MAX_DISTANCE)

    def dense(q, k, tables):
        row = log_buckets(q.shape[1])
        of_query = taken(jnp.einsum("bihd,rhd->bhir", q, tables[0]), row)
        return of_query + taken(jnp.einsum("bjhd,rhd->bhjr", k, tables[1]), row.T).swapaxes(-1, -2)


class TransformerXl:
    """A row of each head for every offset, of the query alone."""

    shape = lambda length: (2 * length - 1, HEADS, WIDTH)  # noqa: E731

    def tile(i, j, q, k, table):
        return pe.content_bias(i, j, table, query=q)

    def dense(q, k, table):
        length = q.shape[1]
        products = jnp.einsum("bihd,rhd->bhir", q, table[::-1])  # by j − i, as the code orders its rows
        # The relative shift: a column before them, then the array is read in rows of another length.
        padded = jnp.pad(products, ((0, 0), (0, 0), (0, 0), (1, 0)))
        return padded.reshape(1, HEADS, 2 * length, length)[:, :, 1:].reshape(products.shape)[..., :length]


METHODS = {"Shaw, 129 rows": Shaw, "DeBERTa, 512 rows": Deberta, "Transformer-XL": TransformerXl}


def ours(method, q, k, v, table):
    def bias(i, j, q, k):
        return method.tile(i, j, q, k, table) * WIDTH**-0.5

    return pe.attention(q, k, v, bias=bias, query_data=q, key_data=k)


def dense(method, q, k, v, table):
    return jax.nn.dot_product_attention(q, k, v, bias=method.dense(q, k, table) * WIDTH**-0.5)


def without(method, q, k, v, table):
    return pe.attention(q, k, v)


def run(attend, method, backward):
    """A function of one argument, (q, k, v, table)."""

    def both(x):
        y, back = jax.vjp(lambda *x: attend(method, *x), *x)
        return y, back(y)

    return both if backward else lambda x: attend(method, *x)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rows = []
    for name, method in METHODS.items():
        for backward in (False, True):
            what = "forward and backward" if backward else "forward"
            progress(f"{name}, {what}")
            qkv = jax.random.normal(jax.random.key(0), (3, 1, options.length, HEADS, WIDTH))
            x = *qkv, jax.random.normal(jax.random.key(1), method.shape(options.length)) / 4
            assert jnp.allclose(ours(method, *x), dense(method, *x), atol=1e-4), name
            functions = {f.__name__: run(f, method, backward) for f in (ours, dense, without)}
            times, temporaries = interleaved(functions, x, options.rounds)
            median = {name: 1e3 * float(np.median(t)) for name, t in times.items()}
            ratios = [f"{median['ours'] / median[other]:.2f}" for other in ("without", "dense")]
            sizes = [f"{temporaries[name] / 1e6:,.0f}" for name in ("ours", "dense")]
            rows.append([name, what, f"{median['ours']:,.0f}", *ratios, *sizes])
    device = jax.devices()[0]
    print(f"JAX {jax.__version__}, {device.platform}, {device.device_kind}, {os.cpu_count()} CPU cores; ", end="")
    print(f"{options.length:,} queries and keys, medians of {options.rounds} interleaved rounds:\n")
    head = ["", "", "ms", "over no bias", "over the dense formula", "temporaries, MB", "dense"]
    print(markdown(head, rows))


if __name__ == "__main__":
    main()
