// Threads.  torch's own OpenMP team where it can be found, else a small pool of ours.
//
// torch's matrix products and our kernels alternate every few tens of microseconds.  Two teams would fight for the same
// cores: the idle one spins while the other works.  So the first choice is to run on the very team torch uses, through
// the GOMP_parallel entry of the OpenMP library that torch has already loaded.
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
  void run(int64_t count, int64_t grain, Body body, void* context);

 private:
  struct Job {
    int64_t count, grain;
    Body body;
    void* context;
    std::atomic<int64_t> next{0};
    std::atomic<int> tickets{0};
  };
  using OpenMP = void (*)(void (*)(void*), void*, unsigned threads, unsigned flags);

  void work(Job& job);
  void worker_loop();
  void run_own(Job& job);

  const int threads_;
  OpenMP openmp_ = nullptr;
  std::vector<std::unique_ptr<Scratch>> scratch_;
  std::mutex callers_;

  // Of the own pool only.
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> epoch_{0};
  std::atomic<int> busy_{0};
  int sleeping_ = 0;  // under mutex_
  std::atomic<bool> is_closing_{false};
  Job* job_ = nullptr;
};

}  // namespace kvasir
