"""What memory attention of small vision towers attends to beside the patches of frames."""

OBJECTS = 2  # pointers to objects, which do not rotate, after the memory of two frames
LATENTS = 3  # of each frame in EdgeTAM's memory, without a place, before those of a grid
LATENT_GRID = 2, 4
