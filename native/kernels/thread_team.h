// A team of threads for the short parallel pieces of a step.
//
// The calling thread is worker 0.  Work items come from atomic counters in the work itself, so a piece is done when the
// caller finds no more items and every thread that started has finished.  A thread that comes late, or gets no core
// because another program has it, is not waited for.  Idle threads spin briefly, because the next piece of a step comes
// within microseconds, and then sleep, so they never keep a core from other programs.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace quire {

class ThreadTeam {
  public:
    // `cpus`: the logical processors that the threads, including the caller of run(), may run on; empty means all.
    // Throws CapacityError if a thread does not start, UnsupportedError if the system cannot bind threads.
    ThreadTeam(int n_workers, std::vector<int> cpus);
    ~ThreadTeam();
    ThreadTeam(const ThreadTeam &) = delete;
    ThreadTeam &operator=(const ThreadTeam &) = delete;

    int n_workers() const { return static_cast<int>(threads_.size()) + 1; }

    // Call work(worker) on this thread and on every other one that starts in time.  `work` must not throw.  Must not be
    // called from two threads at once or from inside `work`.
    template <class Work> void run(Work &&work) {
        call({[](void *context, int worker) { (*static_cast<std::remove_reference_t<Work> *>(context))(worker); },
              const_cast<void *>(static_cast<const void *>(&work))});
    }

    // Call each(i) for i in [0, n), in portions of `grain`; on this thread alone if there is only one portion.
    template <class Each> void for_each(int n, int grain, Each &&each) {
        if (n <= grain || threads_.empty()) {
            for (int i = 0; i < n; ++i) each(i);
            return;
        }
        std::atomic<int> next{0};
        run([&](int) {
            for (int begin; (begin = next.fetch_add(grain, std::memory_order_relaxed)) < n;) {
                const int end = begin + grain < n ? begin + grain : n;
                for (int i = begin; i < end; ++i) each(i);
            }
        });
    }

  private:
    struct Job {
        void (*call)(void *context, int worker);
        void *context;
    };
    void call(Job job);
    void serve(int worker);
    bool enter(uint32_t epoch);
    void leave();
    void stop();
    void bind_caller();

    // The gate holds the job's number, an open bit and the number of threads inside.  It is one word so that no thread
    // enters a job that was just closed.
    static constexpr int epoch_shift = 32;
    static constexpr uint64_t open_bit = uint64_t{1} << 31;
    static constexpr uint64_t inside_mask = open_bit - 1;

    std::vector<int> cpus_;
    std::vector<std::thread> threads_;
    std::thread::id bound_; // the calling thread that is bound to cpus_
    alignas(64) std::atomic<uint32_t> epoch_{0};
    std::atomic<int> sleepers_{0};
    std::atomic<bool> stopping_{false};
    alignas(64) std::atomic<uint64_t> gate_{0};
    std::atomic<bool> caller_sleeps_{false};
    Job job_{}; // read only by threads inside the gate
};

} // namespace quire
