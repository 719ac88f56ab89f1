"""`attention` and its parser, tiles of scores, the computation by blocks of them, and kernels in `hopper`."""
