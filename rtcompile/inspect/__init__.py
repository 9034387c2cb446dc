"""What machine code says of itself: kernels, symbols, resources, and how to launch it."""
