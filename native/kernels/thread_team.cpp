#include "kernels/thread_team.h"

#include <chrono>
#include <system_error>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

#include "core/error.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than the time between two parallel pieces of a step, and between two steps of a small model.
constexpr auto worker_spin = std::chrono::microseconds(100);
// Longer than a piece of work takes on a running thread.
constexpr auto caller_spin = std::chrono::microseconds(40);

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spin until `done` or the time limit; return whether it is done.
template <class Done> bool spin(std::chrono::nanoseconds limit, Done done) {
    constexpr int looks = 32; // checks of `done` per check of the clock
    const auto end = Clock::now() + limit;
    do {
        for (int i = 0; i < looks; ++i) {
            if (done()) return true;
            relax();
        }
    } while (Clock::now() < end);
    return false;
}

void bind_this_thread(const std::vector<int> &cpus) {
#ifdef __linux__
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int cpu : cpus) CPU_SET(static_cast<size_t>(cpu), &set);
    if (pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0) return;
    throw CapacityError("threads", "this process may use none of the processors in the mask");
#else
    (void)cpus;
    throw UnsupportedError("threads", "this system cannot bind threads to processors: leave the processor mask out");
#endif
}

void check(int n_workers, const std::vector<int> &cpus) {
    if (n_workers < 1 || n_workers > 512)
        throw ShapeError("threads", cat(n_workers, " threads are out of range: expected 1 to 512"));
#ifdef __linux__
    for (int cpu : cpus) {
        if (cpu < 0 || cpu >= CPU_SETSIZE)
            throw ShapeError("threads", cat("processor ", cpu, " is out of range: expected 0 to ", CPU_SETSIZE - 1));
    }
#else
    if (!cpus.empty()) bind_this_thread(cpus);
#endif
}

} // namespace

ThreadTeam::ThreadTeam(int n_workers, std::vector<int> cpus) : cpus_(std::move(cpus)) {
    check(n_workers, cpus_);
    // Try the mask on a new thread: an invalid one is reported now, and the calling thread stays unbound.
    if (!cpus_.empty()) {
        std::exception_ptr refused;
        std::thread([&] {
            try {
                bind_this_thread(cpus_);
            } catch (...) {
                refused = std::current_exception();
            }
        }).join();
        if (refused) std::rethrow_exception(refused);
    }
    try {
        for (int i = 1; i < n_workers; ++i) threads_.emplace_back([this, i] { serve(i); });
    } catch (const std::system_error &) {
        const size_t n = threads_.size();
        stop();
        throw CapacityError("threads", cat("only ", n + 1, " of ", n_workers, " threads could be started"));
    }
}

ThreadTeam::~ThreadTeam() { stop(); }

void ThreadTeam::stop() {
    stopping_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
    for (std::thread &thread : threads_) thread.join();
}

void ThreadTeam::bind_caller() {
    if (bound_ == std::this_thread::get_id()) return;
    bind_this_thread(cpus_);
    bound_ = std::this_thread::get_id();
}

void ThreadTeam::call(Job job) {
    if (!cpus_.empty()) bind_caller();
    if (threads_.empty()) return job.call(job.context, 0);
    job_ = job;
    const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
    gate_.store(uint64_t{epoch} << epoch_shift | open_bit, std::memory_order_release);
    epoch_.store(epoch); // before reading sleepers_; see serve()
    if (sleepers_.load() > 0) epoch_.notify_all();
    job.call(job.context, 0);
    gate_.fetch_and(~open_bit, std::memory_order_acq_rel);
    auto all_left = [this] { return (gate_.load(std::memory_order_acquire) & inside_mask) == 0; };
    if (spin(caller_spin, all_left)) return;
    // A thread lost its core in the middle of a piece; sleep so that it can have this one.
    caller_sleeps_.store(true);
    for (uint64_t gate; ((gate = gate_.load()) & inside_mask) != 0;) gate_.wait(gate);
    caller_sleeps_.store(false);
}

bool ThreadTeam::enter(uint32_t epoch) {
    uint64_t gate = gate_.load(std::memory_order_acquire);
    while (gate >> epoch_shift == epoch && (gate & open_bit) != 0) {
        if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) return true;
    }
    return false;
}

void ThreadTeam::leave() {
    gate_.fetch_sub(1);
    if (caller_sleeps_.load()) gate_.notify_all();
}

void ThreadTeam::serve(int worker) {
    if (!cpus_.empty()) bind_this_thread(cpus_);
    for (uint32_t seen = 0;;) {
        if (!spin(worker_spin, [&] { return epoch_.load(std::memory_order_acquire) != seen; })) {
            ++sleepers_; // before epoch_ is read again, so either the caller sees a sleeper or this thread a new epoch
            epoch_.wait(seen);
            --sleepers_;
        }
        seen = epoch_.load(std::memory_order_acquire);
        if (stopping_.load()) return;
        if (!enter(seen)) continue;
        job_.call(job_.context, worker);
        leave();
    }
}

} // namespace quire
