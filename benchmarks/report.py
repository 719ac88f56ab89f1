"""x."""


def text(result):
    return ""
