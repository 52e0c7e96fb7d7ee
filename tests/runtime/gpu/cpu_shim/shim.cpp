// interpreter.cu on CPU threads. Standard input: the parts that shim.py writes, each with its length before it;
// standard output: the caller's buffers afterwards, then the report.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "shim.h"

#include "interpreter.cu"

namespace {

template <class T>
std::vector<T> part() {
    std::int64_t bytes = 0;
    if (std::fread(&bytes, sizeof bytes, 1, stdin) != 1) std::abort();
    std::vector<T> found(std::size_t(bytes) / sizeof(T));
    if (bytes && std::fread(found.data(), std::size_t(bytes), 1, stdin) != 1) std::abort();
    return found;
}

// A grid on its way: every thread of every block at once.
class Grid {
    std::vector<std::unique_ptr<Meeting>> meetings;
    std::vector<std::thread> started;

  public:
    Grid(void (*kernel)(const Job &), const Job &job, unsigned blocks, unsigned threads) {
        running = blocks * threads;
        for (unsigned b = 0; b < blocks; b++) {
            meetings.push_back(std::make_unique<Meeting>());
            for (unsigned t = 0; t < threads; t++)
                started.emplace_back([=, where = meetings.back().get(), &job] {
                    threadIdx.x = t, blockIdx.x = b, blockDim.x = threads;
                    meeting = where;
                    kernel(job);
                });
        }
    }
    ~Grid() {
        for (auto &thread : started) thread.join();
    }
};

typedef void (*Kernel)(const Job &);
#ifdef FEW  // Compiling takes most of the time of tests that need no more than these.
template <class T>
struct Of {
    static constexpr Kernel by_reduction[] = {interpret<T, Sum>, nullptr, interpret<T, Max>, nullptr};
};
const Kernel *const INTERPRET[] = {Of<float>::by_reduction, Of<Half>::by_reduction, Of<Bfloat>::by_reduction};
const Kernel AVERAGE[] = {average<float>, average<Half>, average<Bfloat>};
#else
template <class T>
struct Of {
    static constexpr Kernel by_reduction[] = {interpret<T, Sum>, interpret<T, Prod>, interpret<T, Max>,
                                              interpret<T, Min>};
};
// in the order of encoding.py's TYPE_NAMES
const Kernel *const INTERPRET[] = {Of<float>::by_reduction,  Of<Half>::by_reduction, Of<Bfloat>::by_reduction,
                                   Of<double>::by_reduction, Of<int>::by_reduction,  Of<long long>::by_reduction};
const Kernel AVERAGE[] = {average<float>,  average<Half>, average<Bfloat>,
                          average<double>, average<int>,  average<long long>};
#endif

}  // namespace

// One launch of the interpreter (or of the averaging kernel: `averages`) on tables that are in place already.
extern "C" void synth_launch(const Job *job, int type, int reduction, int averages, unsigned blocks, unsigned threads) {
    Grid(averages ? AVERAGE[type] : INTERPRET[type][reduction], *job, blocks, threads);
}

namespace {

// What one GPU has to itself. Where there are several, each has blocks of its own.
struct Device {
    std::vector<unsigned char> held;
    std::vector<unsigned> state, report;
    std::vector<unsigned long long> progress;
    std::vector<long long> others;
    unsigned blocks = 0;
    Job job{};
};

// What a connection has: slots and flags where it ends, a tail where it begins.
struct Connection {
    std::vector<std::uint64_t> slots;
    std::vector<unsigned> flags;
    unsigned tail = 0;
};

}  // namespace

int main() {
    const auto asked = part<std::int64_t>();  // type, reduction, threads, launches, connections, scratch bytes
    const auto numbers = part<std::int64_t>();
    const auto blocks = part<int>(), steps = part<int>(), cells = part<int>(), averages = part<int>();
    const auto spans = part<long long>();
    auto memory = part<long long>();              // offsets in `buffers`, and in the scratch
    const auto firsts = part<std::int64_t>();     // first block of each GPU
    const auto sheet = part<long long>();
    const auto given = part<std::uint64_t>();

    Job job{};
    std::memcpy(&job.width, numbers.data(), numbers.size() * sizeof numbers[0]);
    const auto nblocks = unsigned(blocks.size() / BLOCK);
    auto buffers = given;
    auto pace = sheet;
    std::vector<std::uint64_t> scratch(std::size_t(asked[5]) / 8 + 2);
    for (std::size_t at = 0; at < memory.size(); at++)
        memory[at] += (long long)(at % 3 == SCRATCH ? scratch.data() : buffers.data());
    std::vector<Connection> connections(static_cast<std::size_t>(asked[4]));
    std::vector<long long> ends;
    for (auto &each : connections) {
        each.slots.resize(std::size_t(job.depth * job.slot_bytes) / 8);
        each.flags.resize(std::size_t(job.depth));
        for (void *end : {(void *)each.slots.data(), (void *)each.flags.data(), (void *)&each.tail})
            ends.push_back((long long)end);
    }
    job.blocks = blocks.data(), job.steps = steps.data(), job.spans = spans.data(), job.memory = memory.data();
    job.cells = cells.data(), job.ends = ends.data(), job.averages = averages.data(), job.pace = pace.data();
    std::vector<Device> devices(firsts.size());
    for (std::size_t d = 0; d < devices.size(); d++) {
        auto &mine = devices[d];
        mine.held.resize(std::size_t(cells.back()));
        mine.state.resize(3 * nblocks), mine.progress.resize(nblocks), mine.report.resize(6);
        mine.blocks = unsigned((d + 1 < devices.size() ? firsts[d + 1] : nblocks) - firsts[d]);
        mine.job = job;
        mine.job.first_block = firsts[d];
        mine.job.held = mine.held.data(), mine.job.state = mine.state.data(), mine.job.report = mine.report.data();
        mine.job.progress = mine.progress.data();
    }
    for (auto &mine : devices) {
        for (auto &other : devices)
            if (&other != &mine) mine.others.push_back((long long)other.report.data());
        mine.job.others = mine.others.data(), mine.job.nothers = (long long)mine.others.size();
    }
    const auto failed = [&]() -> const std::vector<unsigned> * {
        for (const auto &device : devices)
            if (device.report[1]) return &device.report;
        return nullptr;
    };
    for (std::int64_t turn = 0; turn < asked[3] && !failed(); turn++) {
        std::memcpy(buffers.data(), given.data(), given.size() * sizeof given[0]);
        pace = sheet;
        const auto type = int(asked[0]), reduction = int(asked[1]);
        const auto threads = unsigned(asked[2]);
        {
            std::vector<std::unique_ptr<Grid>> grids;
            for (const auto &device : devices)
                grids.push_back(std::make_unique<Grid>(INTERPRET[type][reduction], device.job, device.blocks, threads));
        }
        if (!failed()) synth_launch(&job, type, reduction, 1, unsigned(job.naverages), threads);
    }
    std::fwrite(buffers.data(), sizeof buffers[0], buffers.size(), stdout);
    const auto report = failed() ? *failed() : devices[0].report;
    std::fwrite(report.data(), sizeof report[0], report.size(), stdout);
    std::fwrite(pace.data(), sizeof pace[0], pace.size(), stdout);
    return 0;
}
