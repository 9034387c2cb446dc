#include <vector>
template <class T, class U = int> inline T twice(T x);
int helper(int x);
namespace n { static int table[2] = {1, 2}; constexpr int f(int x) { return x; } }
struct S {
 public: S(int a) : v(a) {}
  S operator+(const S& o) const { return S(v + o.v); }
  int get() const { return helper(v); }
 private: int v;
};
template <class T, class U> inline T twice(T x) { return helper(x) + x; }
int helper(int x) { return x + 1; }
std::vector<int> host() { return {helper(2)}; }
