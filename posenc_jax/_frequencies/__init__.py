"""`Frequencies`, their scalings and axes, the angles that they make of positions, and the parser of both."""
