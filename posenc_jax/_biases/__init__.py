"""Attention biases: by formula, learned, relative, of the tokens; their parser."""
