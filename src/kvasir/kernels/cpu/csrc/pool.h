// Threads: a small team of ours, or torch's own OpenMP team.
//
// Kernels follow each other every few tens of microseconds, so a helper that has finished looks out for the next call a
// little while before it sleeps.  The calling thread never waits for a helper that has not begun: it does the work
// itself, and only pieces somebody is in the middle of are waited for.  So a neighbour who takes a core away costs that
// core and no more; a team that meets at a barrier stands still until the last one is back.
//
// Where torch's matrix products run between our kernels, two teams would fight for the same cores, and the better choice
// is torch's team, through the GOMP_parallel entry of the OpenMP library that torch has loaded.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels.h"

namespace kvasir {

// How the pieces of a call are handed out.
enum class Sharing {
  QUEUE,   // in order, to whoever is free: for pieces sorted by length
  RANGES,  // each thread its own run of neighbouring pieces, then what others have left: for memory read in order
};

class Pool {
 public:
  using Body = void (*)(void* context, int64_t begin, int64_t end, Scratch& scratch);

  // ``threads`` workers in all, the calling thread among them.
  Pool(int threads, bool own_threads);
  ~Pool();
  Pool(const Pool&) = delete;

  int threads() const { return threads_; }
  bool has_openmp() const { return openmp_ != nullptr; }

  // Calls body on [0, count) in pieces of ``grain``, each once, by whoever is free; returns when all are done.
  // One caller at a time; others wait.
  void run(int64_t count, int64_t grain, Body body, void* context, Sharing sharing = Sharing::QUEUE);

 private:
  // A run of pieces that are claimed from its front.
  struct alignas(64) Range {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  using OpenMP = void (*)(void (*)(void*), void*, unsigned threads, unsigned flags);

  void work(int thread);
  void run_openmp();
  void run_own();
  void wait_until_left();
  void worker_loop(int thread);
  bool enter(uint64_t& seen);
  void leave();

  const int threads_;
  OpenMP openmp_ = nullptr;
  std::vector<std::unique_ptr<Scratch>> scratch_;
  std::mutex callers_;

  // The call in progress.
  int64_t grain_ = 0;
  Body body_ = nullptr;
  void* context_ = nullptr;
  std::unique_ptr<Range[]> ranges_;
  int num_ranges_ = 0;
  std::atomic<int> tickets_{0};  // OpenMP: who comes gets the next number

  // Of the own threads only.  The gate: number of the call, whether it is open, how many helpers are inside.
  static constexpr uint64_t CALL = 1 << 16, OPEN = 1 << 15, INSIDE = OPEN - 1;
  alignas(64) std::atomic<uint64_t> gate_{0};
  alignas(64) std::atomic<int> sleeping_{0};
  std::atomic<bool> is_caller_asleep_{false};
  std::atomic<bool> is_closing_{false};
  std::mutex mutex_;
  std::condition_variable wake_, left_;
  std::vector<std::thread> workers_;
};

}  // namespace kvasir
