#include "pool.h"

#include <dlfcn.h>

#include <cstdlib>
#include <new>

namespace kvasir {

Scratch::~Scratch() {
  for (float* memory : memory_) std::free(memory);
}

float* Scratch::floats(int slot, int64_t count) {
  if (count > size_[slot]) {
    std::free(memory_[slot]);
    const size_t bytes = (size_t(count) * sizeof(float) + 63) / 64 * 64;
    memory_[slot] = static_cast<float*>(std::aligned_alloc(64, bytes));
    size_[slot] = memory_[slot] ? count : 0;
    if (!memory_[slot]) throw std::bad_alloc();
  }
  return memory_[slot];
}

namespace {

// About twenty microseconds: a decode layer comes back sooner, and a longer wait should give the core away.
constexpr int SPINS = 1000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Pool::Pool(int threads, bool own_threads) : threads_(threads) {
  for (int i = 0; i < threads; ++i) scratch_.push_back(std::make_unique<Scratch>());
  if (threads == 1) return;
  if (!own_threads) openmp_ = reinterpret_cast<OpenMP>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  if (openmp_) return;
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { worker_loop(); });
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
    ++epoch_;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::work(Job& job) {
  Scratch* scratch = nullptr;
  for (;;) {
    const int64_t begin = job.next.fetch_add(job.grain, std::memory_order_relaxed);
    if (begin >= job.count) return;
    if (!scratch) scratch = scratch_[job.tickets.fetch_add(1, std::memory_order_relaxed)].get();
    const int64_t end = begin + job.grain < job.count ? begin + job.grain : job.count;
    job.body(job.context, begin, end, *scratch);
  }
}

void Pool::run(int64_t count, int64_t grain, Body body, void* context) {
  if (count <= 0) return;
  std::lock_guard<std::mutex> lock(callers_);
  if (threads_ == 1 || count <= grain) {
    body(context, 0, count, *scratch_[0]);
    return;
  }
  Job job{count, grain, body, context};
  if (!openmp_) {
    run_own(job);
    return;
  }
  struct Region {
    Pool* pool;
    Job* job;
  } region{this, &job};
  openmp_([](void* data) { static_cast<Region*>(data)->pool->work(*static_cast<Region*>(data)->job); }, &region,
          static_cast<unsigned>(threads_), 0);
}

void Pool::run_own(Job& job) {
  job_ = &job;
  busy_.store(threads_ - 1, std::memory_order_relaxed);
  bool has_sleepers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++epoch_;
    has_sleepers = sleeping_ > 0;
  }
  if (has_sleepers) wake_.notify_all();
  work(job);
  for (int i = 0; busy_.load(std::memory_order_acquire) != 0; ++i) {
    if (i < SPINS) {
      relax();
    } else {
      std::this_thread::yield();  // a worker lost its core: let it have this one
    }
  }
}

void Pool::worker_loop() {
  uint64_t seen = 0;
  for (;;) {
    for (int i = 0; i < SPINS && epoch_.load(std::memory_order_acquire) == seen; ++i) relax();
    if (epoch_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(mutex_);
      ++sleeping_;
      wake_.wait(lock, [&] { return epoch_.load() != seen; });
      --sleeping_;
    }
    seen = epoch_.load(std::memory_order_acquire);
    if (is_closing_) return;
    work(*job_);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace kvasir
