// The names of std are libcu++'s. A using-directive, not an alias: NVRTC has a namespace std of its
// own (move, forward, initializer_list). So a specialisation must be written for cuda::std.
#pragma once
namespace cuda {
namespace std {}
}  // namespace cuda
namespace std {
using namespace cuda::std;
}
