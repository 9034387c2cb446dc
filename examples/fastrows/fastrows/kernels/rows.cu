// One block for each row.
#include <cuda_fp16.h>
#include <fastrows/reduce.cuh>

constexpr int threads = 256;

// half is too narrow to sum in.
template <class T> struct Wide { using type = T; };
template <> struct Wide<half> { using type = float; };

template <class T> __global__ void __launch_bounds__(threads)
softmax(const T* in, T* out, int columns) {
    using W = typename Wide<T>::type;
    in += (long long)blockIdx.x * columns;
    out += (long long)blockIdx.x * columns;
    W largest = -INFINITY;
    for (int i = threadIdx.x; i < columns; i += threads) largest = max(largest, W(in[i]));
    largest = fastrows::over_block<threads>(largest, fastrows::Max{});
    W sum = 0;
    for (int i = threadIdx.x; i < columns; i += threads) sum += exp(W(in[i]) - largest);
    sum = fastrows::over_block<threads>(sum, fastrows::Sum{});
    for (int i = threadIdx.x; i < columns; i += threads) out[i] = T(exp(W(in[i]) - largest) / sum);
}

template <class T> __global__ void __launch_bounds__(threads)
normalize(const T* in, T* out, int columns, float epsilon) {
    using W = typename Wide<T>::type;
    in += (long long)blockIdx.x * columns;
    out += (long long)blockIdx.x * columns;
    W sum = 0;
    for (int i = threadIdx.x; i < columns; i += threads) sum += W(in[i]);
    const W mean = fastrows::over_block<threads>(sum, fastrows::Sum{}) / columns;
    W squares = 0;
    for (int i = threadIdx.x; i < columns; i += threads) {
        const W difference = W(in[i]) - mean;
        squares += difference * difference;
    }
    const W variance = fastrows::over_block<threads>(squares, fastrows::Sum{}) / columns;
    const W scale = rsqrt(variance + epsilon);
    for (int i = threadIdx.x; i < columns; i += threads) out[i] = T((W(in[i]) - mean) * scale);
}
