struct Own { A mean, squares; };
// The mean and the sum of squared distances from it of m and n elements together.
__device__ __forceinline__ Own combined(Own a, A m, Own b, A n) {
    if (n == 0) return a;
    if (m == 0) return b;
    const A apart = b.mean - a.mean, all = m + n;
    return {a.mean + apart * (n / all), a.squares + b.squares + apart * apart * (m * n / all)};
}
__device__ __forceinline__ Own finished(A first, A sum, A squares, A n) {
    if (n == 0) return {0, 0};
    const A mean = sum / n, rest = squares - sum * mean;
    return {first + mean, rest < 0 ? 0 : rest};
}
