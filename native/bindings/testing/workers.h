// Threads for single kernels that tests and benchmarks call.  They stay for the next call, as an engine's do.
#pragma once

#include <mutex>

#include "kernels/thread_team.h"

namespace quire::bindings {

void check_workers(int n_workers); // ShapeError unless 1 to 256

// The team of so many workers, this thread among them, until the end of the scope.  Waits for other threads that have
// it; so the GIL must not be held.  CapacityError when a thread does not start.
class Workers {
  public:
    explicit Workers(int n_workers);
    ThreadTeam *operator->() const { return &shared_.team; }

  private:
    struct Shared {
        explicit Shared(int n_workers) : team(n_workers, {}) {}
        ThreadTeam team;
        std::mutex mutex;
    };
    static Shared &shared(int n_workers);
    Shared &shared_;
    std::lock_guard<std::mutex> lock_;
};

} // namespace quire::bindings
