#pragma once
#include <cuda/std/cstdint>  // declares the global names too
