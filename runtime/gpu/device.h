// The parts of a GPU that interpreter.cu needs: ordered loads and stores, the clock, half precision.
#pragma once

#ifdef SEVERAL  // More than one GPU takes part.
#define SCOPE "sys"
#define SWAP atomicCAS_system
#else
#define SCOPE "gpu"
#define SWAP atomicCAS
#endif
#define DEVICE __device__ __forceinline__
#define LOAD(order, type, bits, letter)                                                                    \
    DEVICE type load_##order(const type *at) {                                                              \
        type value;                                                                                         \
        asm volatile("ld." #order "." SCOPE ".u" bits " %0, [%1];" : "=" letter(value) : "l"(at) : "memory"); \
        return value;                                                                                       \
    }
#define STORE(order, type, bits, letter)                                                                  \
    DEVICE void store_##order(type *at, type value) {                                                      \
        asm volatile("st." #order "." SCOPE ".u" bits " [%0], %1;" ::"l"(at), letter(value) : "memory");   \
    }
#define LOAD_STORE(type, bits, letter)                                        \
    LOAD(acquire, type, bits, letter) LOAD(relaxed, type, bits, letter)       \
    STORE(release, type, bits, letter) STORE(relaxed, type, bits, letter)
LOAD_STORE(unsigned, "32", "r")
LOAD_STORE(unsigned long long, "64", "l")
LOAD_STORE(long long, "64", "l")
DEVICE bool claim(unsigned *flag) { return SWAP(flag, 0u, 1u) == 0; }
DEVICE long long add_one(long long *at) { return (long long)atomicAdd((unsigned long long *)at, 1ull); }
DEVICE void raise_to(long long *at, long long value) { atomicMax(at, value); }
DEVICE void lock(unsigned *gate) {
    while (!claim(gate)) __nanosleep(50);
    __threadfence();
}
DEVICE void unlock(unsigned *gate) { store_release(gate, 0u); }
DEVICE void rest(long long ns) { __nanosleep(ns < 1000 ? unsigned(ns) : 1000u); }
#define UNROLL _Pragma("unroll")
DEVICE void relax() {}
DEVICE long long now_ns() {
    long long value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}
DEVICE float from_half(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
DEVICE unsigned short to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
DEVICE float as_float(unsigned bits) { return __uint_as_float(bits); }
DEVICE unsigned as_bits(float value) { return __float_as_uint(value); }
