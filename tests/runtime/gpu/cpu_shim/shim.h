// What interpreter.cu needs of a GPU, for CPU threads: a block is one or a few of them.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#define DEVICE inline
#define UNROLL

struct Index {
    unsigned x;
};
inline thread_local Index threadIdx, blockIdx, blockDim;

// Blocks are more than cores: who waits lets others run, and after a while sleeps.
inline std::atomic<unsigned> running{1};  // threads of the launch
inline void relax() {
#ifdef PACED  // all wait for long: together they are to leave the cores free
    std::this_thread::sleep_for(std::chrono::microseconds(100 + 5 * running));
#else
    static thread_local unsigned turns = 0;
    if (++turns % 32)
        sched_yield();
    else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
}

// All threads of a block meet here; the answer to each is whether anybody came with something else than 0.
struct Meeting {
    std::atomic<unsigned> came{0}, round{0};
    std::atomic<int> any[2]{0, 0};

    int meet(unsigned size, int value) {
        const unsigned mine = round.load(std::memory_order_acquire);
        if (value) any[mine % 2].store(1, std::memory_order_relaxed);
        if (came.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
            came.store(0, std::memory_order_relaxed);
            any[1 - mine % 2].store(0, std::memory_order_relaxed);
            round.store(mine + 1, std::memory_order_release);
        } else {
            while (round.load(std::memory_order_acquire) == mine) relax();
        }
        return any[mine % 2].load(std::memory_order_relaxed);
    }
};
inline thread_local Meeting *meeting;
inline int __syncthreads_or(int value) { return blockDim.x == 1 ? value : meeting->meet(blockDim.x, value); }

template <class T>
T load_acquire(const T *at) {
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
template <class T>
T load_relaxed(const T *at) {
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}
template <class T>
void store_release(T *at, T value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
template <class T>
void store_relaxed(T *at, T value) {
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
}
inline bool claim(unsigned *flag) {
    unsigned none = 0;
    return __atomic_compare_exchange_n(flag, &none, 1u, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}
inline long long add_one(long long *at) { return __atomic_fetch_add(at, 1ll, __ATOMIC_RELAXED); }
inline void raise_to(long long *at, long long value) {
    long long has = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (has < value && !__atomic_compare_exchange_n(at, &has, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}
inline void lock(unsigned *gate) {
    while (!claim(gate)) sched_yield();
}
inline void unlock(unsigned *gate) { store_release(gate, 0u); }
inline void rest(long long ns) {  // in short pieces: the launch may have been given up
    std::this_thread::sleep_for(std::chrono::nanoseconds(ns < 5'000'000 ? ns : 5'000'000));
}
inline long long now_ns() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

inline float as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
inline unsigned as_bits(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
// half: 1 sign, 5 exponent (bias 15), 10 fraction
inline float from_half(unsigned short bits) {
    const unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023u;
    if (exponent == 31) return as_float(sign | 0x7F800000u | fraction << 13);
    const float size = exponent ? as_float((exponent + 112) << 23 | fraction << 13) : fraction * 0x1p-24f;
    return as_float(sign | as_bits(size));
}
inline unsigned short to_half(float value) {
    const unsigned bits = as_bits(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u) return (unsigned short)(sign | 0x7E00u);
    if (size >= 0x477FF000u) return (unsigned short)(sign | 0x7C00u);  // rounds past the largest, 65504
    if (size < 0x38800000u)  // below the smallest normal: the sum's last bit is worth 2^-24, and it rounds to even
        return (unsigned short)(sign | (as_bits(as_float(size) + 0.5f) - as_bits(0.5f)));
    const unsigned rounded = size + 0xFFFu + (size >> 13 & 1);
    return (unsigned short)(sign | ((rounded >> 13) - (112u << 10)));
}
