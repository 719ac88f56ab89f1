"""Where the tokens of small vision towers are: whole images, and what memory attention attends to."""

import numpy as np

OBJECTS = 2  # pointers to objects, which do not rotate, after the memory of two frames
LATENTS = 3  # of each frame in EdgeTAM's memory, without a place, before those of a grid
LATENT_GRID = 2, 4


def positions_of(plan, model_type, images, layer):
    """The positions of the queries of a layer, (tokens, axes)."""
    return np.concatenate([_image(plan, model_type, tuple(image), layer) for image in images])


def _image(plan, model_type, image, layer):
    merge = {"merge_size": 1 if image[0] == 1 else 2} if model_type == "video_llama_3_vision" else {}
    return np.asarray(plan.positions(image[1:] if image[0] == 1 else image, layer, **merge))


def memory_of(plan, model_type, images, layer):
    """The positions of the keys of two frames in memory, and of pointers to objects."""
    _, height, width = images[0]
    frames = np.asarray(plan.positions((2, height, width), layer))
    if model_type == "edgetam_video":
        frame = np.pad(plan.positions(LATENT_GRID, layer), ((LATENTS, 0), (0, 0)))
        frames = np.concatenate([frame, frame])
    return np.pad(frames, ((0, OBJECTS), (0, 0)))
