// The elements of interpreter.cu: data types, reductions, and the moves of elements by all threads of a block.
#pragma once

// ---- types and reductions

struct Half {
    unsigned short bits;
};
struct Bfloat {
    unsigned short bits;
};
template <class T>
DEVICE T widen(T value) {
    return value;
}
DEVICE float widen(Half value) { return from_half(value.bits); }
DEVICE float widen(Bfloat value) { return as_float(unsigned(value.bits) << 16); }
template <class T>
struct Narrow {
    static DEVICE T of(T value) { return value; }
};
template <>
struct Narrow<Half> {
    static DEVICE Half of(float value) { return Half{to_half(value)}; }
};
template <>
struct Narrow<Bfloat> {
    static DEVICE Bfloat of(float value) {  // Rounds to the nearest, ties to even.
        if (value != value) return Bfloat{0x7FC0};
        const unsigned bits = as_bits(value);
        return Bfloat{(unsigned short)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
    }
};
struct Sum {
    template <class W>
    static DEVICE W of(W a, W b) { return a + b; }
};
struct Prod {
    template <class W>
    static DEVICE W of(W a, W b) { return a * b; }
};
struct Max {  // NaN stays NaN.
    template <class W>
    static DEVICE W of(W a, W b) { return a > b || a != a ? a : b; }
};
struct Min {
    template <class W>
    static DEVICE W of(W a, W b) { return a < b || a != a ? a : b; }
};
template <class T, class R>
DEVICE T reduced(T a, T b) {
    return Narrow<T>::of(R::of(widen(a), widen(b)));
}

// ---- moving elements

template <class T>
struct alignas(16) Pack {
    T at[16 / sizeof(T)];
};
template <class T, class R>
DEVICE Pack<T> reduced_pack(Pack<T> a, const Pack<T> &b) {
    for (unsigned k = 0; k < 16 / sizeof(T); k++) a.at[k] = reduced<T, R>(a.at[k], b.at[k]);
    return a;
}

// Writes the reduction of `a` and `b`, or the one that is not null, to `to` and `out`, one of which may be null.
template <class T, class R>
DEVICE void move(const T *a, const T *b, T *to, T *out, long long n) {
    const long long addresses = (long long)a | (long long)b | (long long)to | (long long)out;
    const long long per = 16 / sizeof(T);
    const long long packs = addresses % 16 ? 0 : n / per;
    const Pack<T> *pa = (const Pack<T> *)(a ? a : b), *pb = (const Pack<T> *)(a ? b : nullptr);
    constexpr int AT_ONCE = 4;
    for (long long base = threadIdx.x; base < packs; base += AT_ONCE * (long long)blockDim.x) {
        Pack<T> x[AT_ONCE], y[AT_ONCE];
        UNROLL
        for (int u = 0; u < AT_ONCE; u++) {
            const long long i = base + u * (long long)blockDim.x;
            if (i < packs) x[u] = pa[i];
            if (i < packs && pb) y[u] = pb[i];
        }
        UNROLL
        for (int u = 0; u < AT_ONCE; u++) {
            const long long i = base + u * (long long)blockDim.x;
            if (i >= packs) break;
            if (pb) x[u] = reduced_pack<T, R>(x[u], y[u]);
            if (to) ((Pack<T> *)to)[i] = x[u];
            if (out) ((Pack<T> *)out)[i] = x[u];
        }
    }
    for (long long i = packs * per + threadIdx.x; i < n; i += blockDim.x) {
        const T value = a && b ? reduced<T, R>(a[i], b[i]) : a ? a[i] : b[i];
        if (to) to[i] = value;
        if (out) out[i] = value;
    }
}
