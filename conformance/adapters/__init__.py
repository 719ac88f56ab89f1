"""One module for each library: NAME, PACKAGES and as many of the cases' functions as it offers.

A function has the name, the arguments and the result of its formula in `conformance/formulas.py`: `positions` is a
list, the result an array (positions, width), (heads, queries, keys) for a bias, or (queries, heads, width) for
attention. It does what a reader of the library's documentation would write, and corrects no result. A case without a
function, or whose function raises `NotOffered`, is not offered.
"""


class NotOffered(Exception):
    """The library's public interface does not reach this."""


def only(condition, what):
    """Raises NotOffered unless the condition holds."""
    if not condition:
        raise NotOffered(what)
