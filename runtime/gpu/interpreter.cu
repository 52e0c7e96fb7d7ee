// The kernel that executes any Program: one block for each threadblock, which reads its steps from flat tables
// (encoding.py).
//
// For a GPU it includes device.h; tests compile it for CPU threads, after a header with the same definitions.
// All blocks must be on the device at once.
// A block executes its steps for the first elements of every chunk (window 0), then for the next ones, so that blocks
// that depend on each other work at the same time. Data between ranks goes through the connection's slots:
//   Simple  the elements, then one flag for the slot, written last;
//   LL      words of 8 bytes, 4 of data and 4 of flag; each is complete, so no separate flag is needed.
// A flag is the message's number times 2, plus 1 if the message is one element shorter than the window: chunks of one
// buffer differ by at most one element, and only in the last window. Numbers continue from launch to launch, so nothing
// has to be cleared between launches.
//
// What orders memory, by CUDA's memory model:
// - A barrier of the block (__syncthreads_or) stands before each release of thread 0. A release also shows what was known
//   before it, and so all that the block's threads have stored: data before a flag, reads of a slot before its tail.
// - Thread 0 acquires a flag, a tail or another block's progress, and the barrier after it passes that on to the block.
// - A word of LL has its flag within it, and is one store. It orders nothing else, but with `ll` 2.
// - Between GPUs all of this has the scope of the system (device.h).
// Each of these is needed: tests/runtime/gpu/test_fences.py weakens them one by one.
//
// If several GPUs take part, each launches the blocks of its ranks. A block polls only memory of its own GPU: a
// connection's slots and flags lie with the receiver, its tail with the sender.

#ifdef __CUDACC__
#include "device.h"
#endif
#include "elements.h"

// ---- the contents of the tables; encoding.py writes them in this order

struct Job {
    const int *blocks;             // BLOCK numbers each
    const int *steps;              // STEP numbers each
    const long long *spans;        // first element of each cell of an input or output, and the end of the last one
    const long long *memory;       // addresses of input, output, scratch of each rank
    const int *cells;              // first scratch cell of each rank in `held`
    unsigned char *held;           // of each scratch cell: 1 if its content is one element short
    const long long *ends;         // END addresses of each connection
    unsigned long long *progress;  // of each block: launch << 40, plus steps that are over
    unsigned *state;               // of each block: launches, messages sent, messages received
    unsigned *report;              // 0, or 1 and the other REPORT numbers about the block that gave up
    const int *averages;           // rank, buffer, cell to divide by `ranks`
    long long *pace;               // of a paced launch: see pace.h
    const long long *others;       // addresses of the other GPUs' reports
    long long width;               // elements of a window
    long long windows;
    long long longest;             // elements of the longest chunk
    long long depth;
    long long slot_bytes;
    long long limit_ns;            // longest wait; a longer one ends the launch
    long long ll;                  // 0: Simple, 1: LL, 2: LL whose words carry the order of earlier writes, too
    long long ranks;
    long long naverages;
    long long first_block;         // of this GPU
    long long nothers;
};

enum Block { RANK, TB, FIRST, LENGTH, OUT, IN, BLOCK };
enum Step { DOES, SRC, SRC_AT, DST, DST_AT, COUNT, DEP_BLOCK, DEP_AT, AWAITED, STEP };
enum End {
    SLOTS,  // `depth` slots of `slot_bytes`
    FLAGS,  // of each slot (Simple)
    TAIL,   // messages read, in all launches
    END
};
enum Does { READS_SRC = 1, RECEIVES = 2, WRITES_DST = 4, SENDS = 8, READS_DST = 16 };
enum Why { DEPENDENCY = 1, DATA = 2, ROOM = 3, LENGTHS = 4, START = 5 };
constexpr int SCRATCH = 2;
constexpr unsigned POLLS = 64;  // polls of the awaited word between two reads of the clock

#ifdef PACED
#include "pace.h"
#endif

// ---- one block's steps

// The addresses of a connection's slots, flags and tail, read once because polling evicts the table from the cache.
struct Slots {
    unsigned char *slots = nullptr;
    unsigned *flags = nullptr, *tail = nullptr;

    DEVICE Slots(const Job &job, int connection) {
        if (connection < 0) return;
        const long long *ends = job.ends + connection * (long long)END;
        slots = (unsigned char *)ends[SLOTS], flags = (unsigned *)ends[FLAGS], tail = (unsigned *)ends[TAIL];
    }
};

template <class T, class R>
struct Walk {
    const Job &job;
    const unsigned number;
    const int *block;
    const Slots in, out;
    int rank, position = 0, chunk = 0;
    unsigned launch, sent, got;
    long long window = 0, begin = 0, full = 0;
    bool last = false;
    unsigned lacks = 0;  // 1: the current message is one element short
#ifdef PACED
    Clock clock{job};
    const unsigned before = job.state[3 * number + 1];  // messages sent in earlier launches

    // Waits for the network's time of a ready step, and for a link if the step sends.
    DEVICE bool paced(const int *step) {
        const int which = block[FIRST] + position;
        const long long *row = clock.pace(which);
        if (step[DEP_BLOCK] >= 0)
            clock.later(clock.time(job.blocks[step[DEP_BLOCK] * BLOCK + FIRST] + step[DEP_AT])[OVER]);
        if (step[DOES] & RECEIVES) clock.later(clock.time(int(row[FROM]))[ARRIVES]);
        if (row[EMPTIED] >= 0) {
            if (!wait(ROOM, [&] { return load_acquire(out.tail) - before >= unsigned(row[NEED]); })) return false;
            clock.later(clock.time(int(row[EMPTIED]))[TAKEN]);
        }
        clock.time(which)[TAKEN] = clock.now;
        return clock.pass(clock.now) && (!(step[DOES] & SENDS) || clock.send(block[OUT], which));
    }
#endif

    DEVICE explicit Walk(const Job &tables)
        : job(tables), number(blockIdx.x + unsigned(tables.first_block)), block(tables.blocks + number * BLOCK),
          in(tables, block[IN]), out(tables, block[OUT]), rank(block[RANK]), launch(tables.state[3 * number] + 1),
          sent(tables.state[3 * number + 1]), got(tables.state[3 * number + 2]) {}

    // Reports where and why this block gives up. Only the first block does; all others see the report and leave.
    DEVICE void give_up(Why why) const {
        if (!claim(job.report)) return;
        job.report[1] = why;
        job.report[2] = number;
        job.report[3] = position;
        job.report[4] = chunk;
        job.report[5] = unsigned(window);
        for (long long k = 0; k < job.nothers; k++) store_relaxed((unsigned *)job.others[k], 1u);
    }

    template <class Ready>
    DEVICE bool wait(Why why, Ready ready) const {
        if (ready()) return true;
        const long long since = now_ns();
        for (unsigned spin = 1; !ready(); spin++) {
            if (spin % POLLS == 0) {
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

    DEVICE unsigned *flag(const Slots &of, unsigned message) const { return of.flags + message % job.depth; }
    DEVICE void *slot(const Slots &of, unsigned message) const {
        return of.slots + message % job.depth * job.slot_bytes;
    }

    DEVICE bool ready(const int *step) {
        if (step[DEP_BLOCK] >= 0 && chunk == 0) {
            const int awaited_block = step[DEP_BLOCK];
            const unsigned long long over = ((unsigned long long)launch << 40) +
                                            window * job.blocks[awaited_block * BLOCK + LENGTH] + step[DEP_AT] + 1;
            if (!wait(DEPENDENCY, [&] { return load_acquire(job.progress + awaited_block) >= over; })) return false;
        }
        if (step[DOES] & RECEIVES && !job.ll) {
            const unsigned *set = flag(in, got);
            const unsigned expected = (got + 1) << 1 >> 1;
            if (!wait(DATA, [&] { return load_acquire(set) >> 1 == expected; })) return false;
        }
        if (step[DOES] & SENDS) {
            if (!wait(ROOM, [&] { return sent - load_acquire(out.tail) < job.depth; })) return false;
        }
#ifdef PACED
        if (chunk == 0) return paced(step);  // A step is one transmission of all its chunks.
#endif
        return true;
    }

    DEVICE T *cell(int buffer, int index) const {
        T *base = (T *)job.memory[rank * 3 + buffer];
        return base + begin + (buffer == SCRATCH ? index * job.longest : job.spans[index]);
    }

    // Returns where the step writes: null for a copy to itself (in place), which others may be reading.
    DEVICE T *target(const int *step, const T *own) const {
        if (!(step[DOES] & WRITES_DST)) return nullptr;
        T *to = cell(step[DST], step[DST_AT] + chunk);
        return to == own && !(step[DOES] & (RECEIVES | READS_DST)) ? nullptr : to;
    }

    // Returns the elements of a cell in this window.
    DEVICE long long extent(int buffer, int index) const {
        if (buffer == SCRATCH) return full - (last ? job.held[job.cells[rank] + index] : 0);
        const long long rest = job.spans[index + 1] - job.spans[index] - begin;
        return rest < 0 ? 0 : rest < full ? rest : full;
    }

    // Return the elements of the step's cells; −1 if there is no such cell or if it takes any length.
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
        if (*held != lacks) *held = (unsigned char)lacks;  // Others may read it now if source and target are the same.
    }

    DEVICE bool simple(const int *step) {
        const int does = step[DOES];
        const long long source = source_extent(step), fixed = target_extent(step);
        const bool flagged = does & RECEIVES && last;
        const long long n = does & RECEIVES ? full - (flagged ? load_relaxed(flag(in, got)) & 1 : 0) : source;
        if (!agrees(n, source, fixed)) return false;
        lacks = unsigned(full - n);
        const T *own = does & READS_SRC ? cell(step[SRC], step[SRC_AT] + chunk) : nullptr;
        T *const to = target(step, own);
        const T *incoming = does & RECEIVES ? (const T *)slot(in, got) : nullptr;
        T *outgoing = does & SENDS ? (T *)slot(out, sent) : nullptr;
        if (does & READS_DST)
            move<T, R>(to, own, to, nullptr, n);
        else
            move<T, R>(own, incoming, to, outgoing, n);
        remember(step);
        return true;
    }

    // ll 2 orders the data of threadblocks that only a message by way of another rank separates.
    typedef unsigned long long Word;
    DEVICE Word arrived(const Word *at) const { return job.ll == 2 ? load_acquire(at) : load_relaxed(at); }
    DEVICE void put(Word *at, Word word) const {
        if (job.ll == 2)
            store_release(at, word);
        else
            store_relaxed(at, word);
    }

    DEVICE bool low_latency(const int *step) {
        constexpr int WORDS = sizeof(T) > 4 ? 2 : 1;                   // Of a unit.
        constexpr int PER = sizeof(T) < 4 ? int(4 / sizeof(T)) : 1;  // Elements of a unit.
        union Unit {
            unsigned word[WORDS];
            T at[PER];
            DEVICE Unit() {}
        };
        const int does = step[DOES];
        const long long source = source_extent(step), fixed = target_extent(step);
        const T *own = does & READS_SRC ? cell(step[SRC], step[SRC_AT] + chunk) : nullptr;
        T *const to = target(step, own);
        const Word *words = does & RECEIVES ? (const Word *)slot(in, got) : nullptr;
        Word *outgoing = does & SENDS ? (Word *)slot(out, sent) : nullptr;
        for (long long unit = threadIdx.x; unit * PER < full; unit += blockDim.x) {
            Unit incoming, result;
            for (int k = 0; k < WORDS; k++) incoming.word[k] = result.word[k] = 0;
            unsigned flag = unsigned(full - source);
            if (words)
                for (int k = 0; k < WORDS; k++) {
                    const unsigned expected = (got + 1) << 1 >> 1;
                    Word word = 0;
                    const Word *at = words + unit * WORDS + k;
                    if (!wait(DATA, [&] { return unsigned((word = arrived(at)) >> 33) == expected; })) return false;
                    incoming.word[k] = unsigned(word);
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
                    result.at[k] = reduced<T, R>(to[i], own[i]);
                else
                    result.at[k] = own && words ? reduced<T, R>(own[i], incoming.at[k]) : own ? own[i] : incoming.at[k];
                if (to) to[i] = result.at[k];
            }
            if (outgoing)
                for (int k = 0; k < WORDS; k++)
                    put(outgoing + unit * WORDS + k, Word((sent + 1) << 1 | flag) << 32 | result.word[k]);
        }
        return true;
    }

    DEVICE void release(const int *step) {
        if (step[DOES] & RECEIVES) {
            got++;
            if (threadIdx.x == 0) store_release(in.tail, got);
        }
        if (step[DOES] & SENDS) {
            unsigned *set = flag(out, sent);
            sent++;
            if (threadIdx.x == 0 && !job.ll) store_release(set, sent << 1 | lacks);
        }
    }

    DEVICE bool go() {
#ifdef PACED
        if (threadIdx.x == 0) clock.begin();
        if (__syncthreads_or(threadIdx.x == 0 && !wait(START, [&] { return clock.begun(); }))) return false;
#endif
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
#ifdef PACED
                if (threadIdx.x == 0) clock.time(block[FIRST] + position)[OVER] = clock.now;
#endif
                if (step[AWAITED] && threadIdx.x == 0)
                    store_release(job.progress + number, ((unsigned long long)launch << 40) +
                                                                 window * block[LENGTH] + position + 1);
            }
        }
#ifdef PACED
        return threadIdx.x != 0 || clock.end();
#else
        return true;
#endif
    }
};

template <class T, class R>
DEVICE void interpret(const Job &job) {
    Walk<T, R> walk(job);
    if (__syncthreads_or(!walk.go()) || threadIdx.x) return;
    job.state[3 * walk.number] = walk.launch;
    job.state[3 * walk.number + 1] = walk.sent;
    job.state[3 * walk.number + 2] = walk.got;
}

// Divides a cell by the number of ranks, one block for each cell; whole numbers are rounded towards zero.
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
    const Job local_job = *job;
    interpret<TYPE, REDUCTION>(local_job);
}
extern "C" __global__ void __launch_bounds__(THREADS) synth_average(const Job *job) {
    const Job local_job = *job;
    average<TYPE>(local_job);
}
#endif
