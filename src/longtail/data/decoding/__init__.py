"""From encoded images to pixels: decoders, their cache, and the processes that run them."""
