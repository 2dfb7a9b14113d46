// [rows, columns] bytes to [columns, rows], both multiples of 4: a thread turns 4 x 4 of them, a block 64 x 64.
extern "C" __global__ void __launch_bounds__(256) transpose_bytes(const unsigned int* from, unsigned int* to,
                                                                  const int rows, const int columns) {
    __shared__ unsigned int tile[64][17];
    const int across = threadIdx.x & 15, down = threadIdx.x >> 4;
    const int x = blockIdx.x * 16 + across, y = blockIdx.y * 16 + down;
    if (x < columns / 4 && y < rows / 4) {
        const unsigned int* own = from + (long long)y * columns + x;
        const unsigned int a = own[0], b = own[columns / 4], c = own[columns / 2], d = own[columns / 4 * 3];
        const unsigned int low = __byte_perm(a, b, 0x5140), high = __byte_perm(a, b, 0x7362);
        const unsigned int low_next = __byte_perm(c, d, 0x5140), high_next = __byte_perm(c, d, 0x7362);
        tile[across * 4][down] = __byte_perm(low, low_next, 0x5410);
        tile[across * 4 + 1][down] = __byte_perm(low, low_next, 0x7632);
        tile[across * 4 + 2][down] = __byte_perm(high, high_next, 0x5410);
        tile[across * 4 + 3][down] = __byte_perm(high, high_next, 0x7632);
    }
    __syncthreads();
    const int word = blockIdx.y * 16 + across;
    for (int i = down; i < 64; i += 16) {
        const int column = blockIdx.x * 64 + i;
        if (column < columns && word < rows / 4) to[(long long)column * (rows / 4) + word] = tile[i][across];
    }
}
