constexpr int TAPS = SIZEY * SIZEX, CHANNEL_TILES = (CHANNELS + LANES - 1) / LANES;
constexpr int THREADS = LANES * GROUPS, READ = CHANNELS / MULTIPLIER;

struct Item { int image, begin, end, column; };  // rows begin to end - 1, and columns from `column` on
__device__ __forceinline__ Item item_of(int number, int last) {
    Item item;
    item.column = FIRSTX + number % COLUMNS * TILE; number /= COLUMNS;
    item.begin = FIRSTY + number % SLABS * ROWS;
    item.image = number / SLABS;
    item.end = item.begin + ROWS < last ? item.begin + ROWS : last;
    return item;
}

// What one thread reads of a row: COUNT columns from `column` on, and zeros beside the image.
template <int COUNT> struct Row { T at[COUNT]; };
template <int HEIGHT, int WIDTH, int PITCH> __device__ __forceinline__ const T* place_of(
        const T* from, int image, int row, int column) {
    return from + (((long long)image * HEIGHT + row) * WIDTH + column) * PITCH;
}
template <int HEIGHT, int WIDTH, int PITCH, int COUNT> __device__ __forceinline__ void load(
        Row<COUNT>& to, const T* __restrict__ from, int image, int row, int column) {
    const bool there = row >= 0 && row < HEIGHT;
    const T* place = place_of<HEIGHT, WIDTH, PITCH>(from, image, row, column);
    #pragma unroll
    for (int v = 0; v < COUNT; ++v)
        to.at[v] = there && (unsigned int)(column + v) < WIDTH ? place[v * (long long)PITCH] : T{};
}
// One of its columns, v, in the next row at `place`. What is beside the image remains 0, and so does what is left of a
// row that is not there, where CLEARS is not set.
template <bool CLEARS, int WIDTH, int PITCH, int COUNT> __device__ __forceinline__ void replace(
        Row<COUNT>& to, const T* __restrict__ place, bool there, int column, int v) {
    if (there && (unsigned int)(column + v) < WIDTH) to.at[v] = place[v * (long long)PITCH];
    else if (CLEARS) to.at[v] = T{};
}
// Columns of a row that a thread has made, as far as there are any.
template <int HEIGHT, int WIDTH> __device__ __forceinline__ void store(
        T* __restrict__ to, const A (&made)[TILE], int image, int row, int column) {
    T* place = to + (((long long)image * HEIGHT + row) * WIDTH + column) * CHANNELS;
    #pragma unroll
    for (int u = 0; u < TILE; ++u)
        if ((unsigned int)(column + u) < WIDTH) place[u * (long long)CHANNELS] = narrow<T>(made[u]);
}
