template <class T, class U> constexpr bool same = std::is_same_v<T, U>;
static_assert(same<decltype(std::floor(1.0f)), float> && same<decltype(std::fma(1.f, 1.f, 1.f)), float>);
static_assert(same<decltype(std::erf(1.0)), double> && same<decltype(std::abs(-1)), int>);
static_assert(same<decltype(std::sqrt(2)), double> && same<decltype(std::pow(2, 3)), double>);
static_assert(same<decltype(std::copysign(1.f, 2)), double>);
static_assert(same<decltype(std::abs(std::complex<float>())), float>);
static_assert(same<decltype(std::sqrt(std::complex<double>())), std::complex<double>>);
static_assert(same<decltype(std::pow(std::complex<float>(), 2.f)), std::complex<float>>);
static_assert(same<decltype(sqrt(std::complex<float>())), std::complex<float>>);
