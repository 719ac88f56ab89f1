"""What the NNX and the Linen modules share: settings, initializers, calls, the attention function."""
