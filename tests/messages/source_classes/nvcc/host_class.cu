#include <unordered_map>
class Cache {
  std::unordered_map<int, float*> entries_;
 public:
  float* find(int key) { return entries_.at(key); }
};
extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1.0f; }
