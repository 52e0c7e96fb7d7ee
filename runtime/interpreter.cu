// The kernel that executes any Program: one block a threadblock, its steps read from flat tables (encoding.py).
//
// The same source is compiled for a GPU and, behind shim.h, for CPU threads. All blocks must be on the device at once.
// A block walks through its steps for the first elements of every chunk (window 0), then for the next, so that blocks
// that depend on each other work at the same time. What passes between ranks goes through the connection's slots:
//   Simple  the elements, then one flag a slot, written last;
//   LL      words of 8 bytes, 4 of data and 4 of flag, each complete in itself: no waiting for a flag apart.
// A flag is the message's number times 2, plus 1 where the message is one element short of the window: chunks of one
// buffer differ by one element at most, and only the last window shows it. Numbers go on from launch to launch, so
// nothing has to be cleared between them.

#ifdef __CUDACC__
#include "device.h"
#else
#include "shim.h"
#endif

// ---- what the tables hold; encoding.py writes them in this order

struct Job {
    const int *blocks;             // BLOCK numbers each
    const int *steps;              // STEP numbers each
    const long long *spans;        // first element of each cell of an input or output, and the end of the last
    const long long *memory;       // addresses of input, output, scratch of each rank
    const int *cells;              // of each rank: where its scratch cells begin in `held`
    unsigned char *held;           // of each scratch cell: 1 where what came is one element short
    unsigned char *slots;          // of each connection: `depth` slots of `slot_bytes`
    unsigned *flags;               // of each slot (Simple)
    unsigned *tails;               // of each connection: messages read, in all launches
    unsigned long long *progress;  // of each block: launch << 40, plus steps that are over
    unsigned *state;               // of each block: launches, messages sent, messages received
    unsigned *report;              // 0, or 1 and REPORT numbers about who gave up
    const int *averages;           // rank, buffer, cell to be divided by `ranks`
    long long width;               // elements of a window
    long long windows;
    long long longest;             // elements of the longest chunk
    long long depth;
    long long slot_bytes;
    long long limit_ns;            // a wait that takes longer ends the launch
    long long ll;                  // 0: Simple, 1: LL, 2: LL whose words carry the order of earlier writes, too
    long long ranks;
    long long naverages;
};

enum Block { RANK, TB, FIRST, LENGTH, OUT, IN, BLOCK };
enum Step { DOES, SRC, SRC_AT, DST, DST_AT, COUNT, DEP_BLOCK, DEP_AT, TOLD, STEP };
enum Does { READS_SRC = 1, RECEIVES = 2, WRITES_DST = 4, SENDS = 8, READS_DST = 16 };
enum Why { DEPENDENCY = 1, DATA = 2, ROOM = 3, LENGTHS = 4 };
constexpr int SCRATCH = 2;
constexpr unsigned POLLS = 64;  // looks at what is waited for between two looks at the clock

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
    static DEVICE Bfloat of(float value) {  // to the nearest, ties to even
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
struct Max {  // what is not a number stays so
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

// `a`, `b`: one may be null; both are reduced. `to`, `out`: one may be null.
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

// ---- one block's walk

template <class T, class R>
struct Walk {
    const Job &job;
    const int *block;
    int rank, position = 0, chunk = 0;
    unsigned launch, sent, got;
    long long window = 0, begin = 0, full = 0;
    bool last = false;
    unsigned lacks = 0;  // 1: the message at hand is one element short

    DEVICE Walk(const Job &given, unsigned number)
        : job(given), block(given.blocks + number * BLOCK), rank(block[RANK]), launch(given.state[3 * number] + 1),
          sent(given.state[3 * number + 1]), got(given.state[3 * number + 2]) {}

    // The first who gives up says where and why; everybody else sees it and leaves.
    DEVICE void give_up(Why why) const {
        if (!claim(job.report)) return;
        job.report[1] = why;
        job.report[2] = blockIdx.x;
        job.report[3] = position;
        job.report[4] = chunk;
        job.report[5] = unsigned(window);
    }

    template <class Ready>
    DEVICE bool wait(Why why, Ready ready) const {
        if (ready()) return true;
        const long long since = now_ns();
        for (unsigned turn = 1; !ready(); turn++) {
            if (turn % POLLS == 0) {
                if (load_relaxed(job.report)) return false;
                if (now_ns() - since > job.limit_ns) {
                    give_up(why);
                    return false;
                }
            }
            relax();
        }
        return true;
    }

    DEVICE long long slot(int connection, unsigned number) const { return connection * job.depth + number % job.depth; }

    DEVICE bool ready(const int *step) const {
        if (step[DEP_BLOCK] >= 0 && chunk == 0) {
            const int other = step[DEP_BLOCK];
            const unsigned long long over = ((unsigned long long)launch << 40) +
                                            window * job.blocks[other * BLOCK + LENGTH] + step[DEP_AT] + 1;
            if (!wait(DEPENDENCY, [&] { return load_acquire(job.progress + other) >= over; })) return false;
        }
        if (step[DOES] & RECEIVES && !job.ll) {
            const unsigned *flag = job.flags + slot(block[IN], got);
            const unsigned number = (got + 1) << 1 >> 1;
            if (!wait(DATA, [&] { return load_acquire(flag) >> 1 == number; })) return false;
        }
        if (step[DOES] & SENDS) {
            const unsigned *tail = job.tails + block[OUT];
            if (!wait(ROOM, [&] { return sent - load_acquire(tail) < job.depth; })) return false;
        }
        return true;
    }

    DEVICE T *cell(int buffer, int index) const {
        T *base = (T *)job.memory[rank * 3 + buffer];
        return base + begin + (buffer == SCRATCH ? index * job.longest : job.spans[index]);
    }

    // Where the step writes: nowhere in a copy to itself, as in place, which others may be reading.
    DEVICE T *target(const int *step, const T *own) const {
        if (!(step[DOES] & WRITES_DST)) return nullptr;
        T *to = cell(step[DST], step[DST_AT] + chunk);
        return to == own && !(step[DOES] & (RECEIVES | READS_DST)) ? nullptr : to;
    }

    // Elements of a cell in this window.
    DEVICE long long extent(int buffer, int index) const {
        if (buffer == SCRATCH) return full - (last ? job.held[job.cells[rank] + index] : 0);
        const long long rest = job.spans[index + 1] - job.spans[index] - begin;
        return rest < 0 ? 0 : rest < full ? rest : full;
    }

    // Of the step's cells, −1 where there is none or where it takes what comes.
    DEVICE long long source_extent(const int *step) const {
        return step[DOES] & READS_SRC ? extent(step[SRC], step[SRC_AT] + chunk) : -1;
    }
    DEVICE long long target_extent(const int *step) const {
        const bool fixed = step[DOES] & READS_DST || (step[DOES] & WRITES_DST && step[DST] != SCRATCH);
        return fixed ? extent(step[DST], step[DST_AT] + chunk) : -1;
    }

    DEVICE bool agrees(long long n, long long source, long long fixed) const {
        if ((source < 0 || source == n) && (fixed < 0 || fixed == n)) return true;
        give_up(LENGTHS);
        return false;
    }

    DEVICE void remember(const int *step) const {
        if (threadIdx.x || !last || !(step[DOES] & WRITES_DST) || step[DOES] & READS_DST || step[DST] != SCRATCH) return;
        unsigned char *held = job.held + job.cells[rank] + step[DST_AT] + chunk;
        if (*held != lacks) *held = (unsigned char)lacks;  // others may read it now where source and target are one
    }

    DEVICE bool simple(const int *step) {
        const int does = step[DOES];
        const long long source = source_extent(step), fixed = target_extent(step);
        const long long into = does & RECEIVES ? slot(block[IN], got) : 0;
        const bool told = does & RECEIVES && last;
        const long long n = does & RECEIVES ? full - (told ? load_relaxed(job.flags + into) & 1 : 0) : source;
        if (!agrees(n, source, fixed)) return false;
        lacks = unsigned(full - n);
        const T *own = does & READS_SRC ? cell(step[SRC], step[SRC_AT] + chunk) : nullptr;
        T *const to = target(step, own);
        const T *came = does & RECEIVES ? (const T *)(job.slots + into * job.slot_bytes) : nullptr;
        T *out = does & SENDS ? (T *)(job.slots + slot(block[OUT], sent) * job.slot_bytes) : nullptr;
        if (does & READS_DST)
            move<T, R>(to, own, to, nullptr, n);
        else
            move<T, R>(own, came, to, out, n);
        remember(step);
        return true;
    }

    // Threadblocks of a rank that only a message by way of another rank keeps apart need more than its data.
    typedef unsigned long long Word;
    DEVICE Word arrived(const Word *at) const { return job.ll == 2 ? load_acquire(at) : load_relaxed(at); }
    DEVICE void put(Word *at, Word word) const {
        if (job.ll == 2)
            store_release(at, word);
        else
            store_relaxed(at, word);
    }

    DEVICE bool low_latency(const int *step) {
        constexpr int WORDS = sizeof(T) > 4 ? 2 : 1;                   // of a unit
        constexpr int PER = sizeof(T) < 4 ? int(4 / sizeof(T)) : 1;  // elements of a unit
        union Unit {
            unsigned word[WORDS];
            T at[PER];
            DEVICE Unit() {}
        };
        const int does = step[DOES];
        const long long source = source_extent(step), fixed = target_extent(step);
        const T *own = does & READS_SRC ? cell(step[SRC], step[SRC_AT] + chunk) : nullptr;
        T *const to = target(step, own);
        const Word *in =
            does & RECEIVES ? (const Word *)(job.slots + slot(block[IN], got) * job.slot_bytes) : nullptr;
        Word *out = does & SENDS ? (Word *)(job.slots + slot(block[OUT], sent) * job.slot_bytes) : nullptr;
        for (long long unit = threadIdx.x; unit * PER < full; unit += blockDim.x) {
            Unit came, made;
            for (int k = 0; k < WORDS; k++) came.word[k] = made.word[k] = 0;
            unsigned flag = unsigned(full - source);
            if (in)
                for (int k = 0; k < WORDS; k++) {
                    const unsigned number = (got + 1) << 1 >> 1;
                    Word word = 0;
                    const Word *at = in + unit * WORDS + k;
                    if (!wait(DATA, [&] { return unsigned((word = arrived(at)) >> 33) == number; })) return false;
                    came.word[k] = unsigned(word);
                    flag = unsigned(word >> 32) & 1;
                }
            const long long n = full - flag;
            if (unit == threadIdx.x) {
                if (!agrees(n, source, fixed)) return false;
                lacks = flag;
                remember(step);
            }
            for (int k = 0; k < PER; k++) {
                const long long i = unit * PER + k;
                if (i >= n) break;
                if (does & READS_DST)
                    made.at[k] = reduced<T, R>(to[i], own[i]);
                else
                    made.at[k] = own && in ? reduced<T, R>(own[i], came.at[k]) : own ? own[i] : came.at[k];
                if (to) to[i] = made.at[k];
            }
            if (out)
                for (int k = 0; k < WORDS; k++)
                    put(out + unit * WORDS + k, Word((sent + 1) << 1 | flag) << 32 | made.word[k]);
        }
        return true;
    }

    DEVICE void release(const int *step) {
        if (step[DOES] & RECEIVES) {
            got++;
            if (threadIdx.x == 0) store_release(job.tails + block[IN], got);
        }
        if (step[DOES] & SENDS) {
            unsigned *flag = job.flags + slot(block[OUT], sent);
            sent++;
            if (threadIdx.x == 0 && !job.ll) store_release(flag, sent << 1 | lacks);
        }
    }

    DEVICE bool go() {
        for (window = 0; window < job.windows; window++) {
            begin = window * job.width;
            last = window + 1 == job.windows;
            full = last ? job.longest - begin : job.width;
            for (position = 0; position < block[LENGTH]; position++) {
                const int *step = job.steps + (block[FIRST] + position) * (long long)STEP;
                for (chunk = 0; chunk < step[COUNT]; chunk++) {
                    bool fine = threadIdx.x != 0 || ready(step);
                    if (__syncthreads_or(!fine)) return false;
                    if (step[DOES]) fine = job.ll ? low_latency(step) : simple(step);
                    if (__syncthreads_or(!fine)) return false;
                    release(step);
                }
                if (step[TOLD] && threadIdx.x == 0)
                    store_release(job.progress + blockIdx.x, ((unsigned long long)launch << 40) +
                                                                 window * block[LENGTH] + position + 1);
            }
        }
        return true;
    }
};

template <class T, class R>
DEVICE void interpret(const Job &job) {
    Walk<T, R> walk(job, blockIdx.x);
    if (__syncthreads_or(!walk.go()) || threadIdx.x) return;
    job.state[3 * blockIdx.x] = walk.launch;
    job.state[3 * blockIdx.x + 1] = walk.sent;
    job.state[3 * blockIdx.x + 2] = walk.got;
}

// A block a cell; whole numbers are rounded towards zero.
template <class T>
DEVICE void average(const Job &job) {
    const int *row = job.averages + 3 * blockIdx.x;
    T *at = (T *)job.memory[row[0] * 3 + row[1]] + job.spans[row[2]];
    const long long n = job.spans[row[2] + 1] - job.spans[row[2]];
    for (long long i = threadIdx.x; i < n; i += blockDim.x) {
        const auto value = widen(at[i]);
        at[i] = Narrow<T>::of(value / decltype(widen(at[i]))(job.ranks));
    }
}

#ifdef TYPE
extern "C" __global__ void __launch_bounds__(THREADS) synth_interpret(const Job *job) {
    const Job mine = *job;
    interpret<TYPE, REDUCTION>(mine);
}
extern "C" __global__ void __launch_bounds__(THREADS) synth_average(const Job *job) {
    const Job mine = *job;
    average<TYPE>(mine);
}
#endif
