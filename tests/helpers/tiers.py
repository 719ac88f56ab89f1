"""Which cases of a test run by default, and which in `nox -s tests_all` alone."""

import pytest


def thorough(*values):
    """A case for `pytest.mark.parametrize` that the default leaves out."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def tiered(values, default):
    """Cases of one argument, of which the default keeps those in `default`."""
    unknown = [value for value in default if value not in values]
    assert not unknown, f"{unknown} are no cases"
    return [value if value in default else thorough(value) for value in values]
