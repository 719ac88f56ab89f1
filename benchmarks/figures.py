"""x."""


def draw(result, out, name):
    return []
