"""One module for each library: NAME, PACKAGES and as many of the cases' functions as it offers.

A function has the name, the arguments and the result of that in `conformance/formulas.py`: `positions` a list, the
result an array (positions, width), or (heads, queries, keys) for a bias. It does what a user of the library's
documentation would write and nothing that would amend a result. What is not there is not offered; so is what it says
`NotOffered` to.
"""


class NotOffered(Exception):
    """The library's public interface does not reach this."""


def only(condition, what):
    """Raises NotOffered unless the condition holds."""
    if not condition:
        raise NotOffered(what)
