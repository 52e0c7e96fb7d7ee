// interpreter.cu on CPU threads. Standard input: the parts that shim.py writes, each with its length before it;
// standard output: the caller's buffers afterwards, then the report.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

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

// As the launch of a grid: every thread of every block at once.
void launch(void (*kernel)(const Job &), const Job &job, unsigned blocks, unsigned threads) {
    std::vector<std::unique_ptr<Meeting>> meetings;
    std::vector<std::thread> running;
    for (unsigned b = 0; b < blocks; b++) {
        meetings.push_back(std::make_unique<Meeting>());
        for (unsigned t = 0; t < threads; t++)
            running.emplace_back([=, where = meetings.back().get(), &job] {
                threadIdx.x = t, blockIdx.x = b, blockDim.x = threads;
                meeting = where;
                kernel(job);
            });
    }
    for (auto &thread : running) thread.join();
}

typedef void (*Kernel)(const Job &);
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

}  // namespace

// One launch of the interpreter (or of the averaging kernel: `averages`) on tables that are in place already.
extern "C" void synth_launch(const Job *job, int type, int reduction, int averages, unsigned blocks, unsigned threads) {
    launch(averages ? AVERAGE[type] : INTERPRET[type][reduction], *job, blocks, threads);
}

int main() {
    const auto asked = part<std::int64_t>();  // type, reduction, threads, launches, connections, scratch bytes
    const auto numbers = part<std::int64_t>();
    const auto blocks = part<int>(), steps = part<int>(), cells = part<int>(), averages = part<int>();
    const auto spans = part<long long>();
    auto memory = part<long long>();  // offsets in `buffers`, and in the scratch
    const auto given = part<std::uint64_t>();

    Job job{};
    std::memcpy(&job.width, numbers.data(), numbers.size() * sizeof numbers[0]);
    const auto nblocks = unsigned(blocks.size() / BLOCK);
    const auto nconnections = std::size_t(asked[4]), nslots = nconnections * std::size_t(job.depth);
    auto buffers = given;
    std::vector<std::uint64_t> scratch(std::size_t(asked[5]) / 8 + 2), slots(nslots * std::size_t(job.slot_bytes) / 8);
    std::vector<unsigned char> held(std::size_t(cells.back()));
    std::vector<unsigned> flags(nslots), tails(nconnections), state(3 * nblocks), report(6);
    std::vector<unsigned long long> progress(nblocks);
    for (std::size_t at = 0; at < memory.size(); at++)
        memory[at] += (long long)(at % 3 == SCRATCH ? scratch.data() : buffers.data());
    job.blocks = blocks.data(), job.steps = steps.data(), job.spans = spans.data(), job.memory = memory.data();
    job.cells = cells.data(), job.held = held.data(), job.slots = (unsigned char *)slots.data();
    job.flags = flags.data(), job.tails = tails.data(), job.progress = progress.data(), job.state = state.data();
    job.report = report.data(), job.averages = averages.data();
    for (std::int64_t turn = 0; turn < asked[3] && !report[0]; turn++) {
        std::memcpy(buffers.data(), given.data(), given.size() * sizeof given[0]);
        const auto type = int(asked[0]), reduction = int(asked[1]);
        synth_launch(&job, type, reduction, 0, nblocks, unsigned(asked[2]));
        if (!report[0]) synth_launch(&job, type, reduction, 1, unsigned(job.naverages), unsigned(asked[2]));
    }
    std::fwrite(buffers.data(), sizeof buffers[0], buffers.size(), stdout);
    std::fwrite(report.data(), sizeof report[0], report.size(), stdout);
    return 0;
}
