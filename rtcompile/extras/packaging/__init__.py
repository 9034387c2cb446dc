"""For authors of packages of kernels: libraries, their signatures, bundles, build hooks."""
