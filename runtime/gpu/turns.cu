extern "C" __global__ void set_turn(long long* turn, long long value) { turn[0] = value; }
extern "C" __global__ void next_turn(long long* turn, long long by, const long long* outer, int inside,
                                     long long* own) {
    const long long at = turn[0] + by;
    turn[0] = at;
    const u64 key = inside ? (u64)outer[0] : mixed((u64)outer[0] + GOLDEN);
    own[0] = (long long)mixed(key + (u64)at + GOLDEN);
}
