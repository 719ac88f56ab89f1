"""RoPE: `rotary` and its parser, the rotation and its lowerings, xPos, PoPE, PRoPE."""
