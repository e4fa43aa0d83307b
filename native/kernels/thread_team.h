// A team of threads for the short parallel pieces of a step.
//
// The calling thread is worker 0.  Work is handed out by atomic counters inside of the work itself, so a piece is done
// when the caller has found nothing more to do and those others that began have ended: a thread that comes late, or not
// at all because another program has its core, is not waited for.  Threads without work spin briefly, as the next piece
// comes within microseconds while a step runs, and then sleep: they never keep a core from others.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace quire {

class ThreadTeam {
  public:
    // `cpus`: the logical processors that the threads may run on, the caller of run() included; empty: any of them.
    // CapacityError when a thread does not start, UnsupportedError where threads cannot be bound.
    ThreadTeam(int n_workers, std::vector<int> cpus);
    ~ThreadTeam();
    ThreadTeam(const ThreadTeam &) = delete;
    ThreadTeam &operator=(const ThreadTeam &) = delete;

    int n_workers() const { return static_cast<int>(threads_.size()) + 1; }

    // work(worker) on this thread and on those others that come in time.  It must not throw.  Not from two threads at
    // once, nor from inside of work.
    template <class Work> void run(Work &&work) {
        call({[](void *context, int worker) { (*static_cast<std::remove_reference_t<Work> *>(context))(worker); },
              const_cast<void *>(static_cast<const void *>(&work))});
    }

    // each(i) for i in [0, n), handed out `grain` at a time; by this thread alone where that is all.
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

    // The gate: number of the job, whether it may be entered, how many are inside.  One word, so that nobody enters a job
    // that was closed meanwhile.
    static constexpr int epoch_shift = 32;
    static constexpr uint64_t open_bit = uint64_t{1} << 31;
    static constexpr uint64_t inside_mask = open_bit - 1;

    std::vector<int> cpus_;
    std::vector<std::thread> threads_;
    std::thread::id bound_; // the caller that has been bound to cpus_
    alignas(64) std::atomic<uint32_t> epoch_{0};
    std::atomic<int> sleepers_{0};
    std::atomic<bool> stopping_{false};
    alignas(64) std::atomic<uint64_t> gate_{0};
    std::atomic<bool> caller_sleeps_{false};
    Job job_{}; // read by those inside only
};

} // namespace quire
