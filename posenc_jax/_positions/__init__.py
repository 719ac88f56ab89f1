"""Positions: of packed sequences, of grids, of the shards of a mesh, of rows with images and videos."""
