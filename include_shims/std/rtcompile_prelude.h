// To be pre-included (`-include=rtcompile_prelude.h`) for sources that use std without including it, as
// CUTLASS 3.x's CollectiveBuilder does under NVRTC.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>
