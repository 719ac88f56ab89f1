"""This library and those it is measured beside: one module each, with the same few names.

    NAME        as in tables
    PACKAGES    the distributions it needs, beside those of FRAMEWORK; their versions are recorded
    FRAMEWORK   "jax" or "torch"
    IMPORT      the statement by which a user imports it, timed on top of the framework
    HEAD_AXIS   of the queries that `rotary` and `decode` want: -2 (batch, seq, heads, head_dim) or -3
    LAYOUTS     which layouts `rotary` and `decode` have; others are not timed

and as many of these functions as it has. Each makes, of a `Case`, what a user of that library's documentation would
write; what the documentation says to do once, at the model's construction, is done here and not timed.

    table(case)      → f(positions int32 (length,)) → (length, width); one that takes no positions ignores them
    add(case)        → f(x (batch, seq, width)) → x + its encoding, in the dtype of x
    rotary(case)     → f(x) → x rotated at 0, 1, 2, …, in the dtype of x
    decode(case)     → f(x, positions int32 (batch, 1)) → the one row of each sequence rotated at its own position
    turn(case)       → f(x, positions) of loops, stacks and compilations, in place of `rotary` and `decode`
    attention(case)  → f(q, k, v (batch, seq, heads, head_dim)) → causal attention under ALiBi
    waves(position)  → complex NumPy (64,), cos + i·sin as found in its results at that position, width 128 and base
                       10,000, by its public call; `None` where its interface does not reach
    EAGER            kinds, such as ("table",), that are not to be jitted: they work on the host
    ENDPOINT         True if the frequencies of `table` and `waves` end at exactly 1/base (Tensor2Tensor's spacing)

Functions of JAX libraries are jitted by who calls them, but for those of `EAGER`; those of torch run as they are.
"""
