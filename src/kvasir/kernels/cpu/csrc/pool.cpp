#include "pool.h"

#include <dlfcn.h>

#include <chrono>
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

using Clock = std::chrono::steady_clock;

// How long somebody looks out for a change before sleeping.  Waking a thread costs tens of microseconds in a virtual
// machine; a decode layer comes back sooner, and a longer wait should give the core away.
constexpr auto LOOK_OUT = std::chrono::microseconds(50);

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whether ``condition`` came true within LOOK_OUT.
template <class Condition>
bool look_out(Condition condition) {
  const auto end = Clock::now() + LOOK_OUT;
  do {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return true;
      relax();
    }
  } while (Clock::now() < end);
  return false;
}

}  // namespace

Pool::Pool(int threads, bool own_threads) : threads_(threads), ranges_(new Range[threads]) {
  for (int i = 0; i < threads; ++i) scratch_.push_back(std::make_unique<Scratch>());
  if (threads == 1) return;
  if (!own_threads) openmp_ = reinterpret_cast<OpenMP>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  if (openmp_) return;
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker_loop(i); });
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::work(int thread) {
  Scratch& scratch = *scratch_[thread];
  for (int i = 0; i < num_ranges_; ++i) {
    Range& range = ranges_[(thread + i) % num_ranges_];
    for (;;) {
      const int64_t begin = range.next.fetch_add(grain_, std::memory_order_relaxed);
      if (begin >= range.end) break;
      const int64_t end = begin + grain_ < range.end ? begin + grain_ : range.end;
      body_(context_, begin, end, scratch);
    }
  }
}

void Pool::run(int64_t count, int64_t grain, Body body, void* context, Sharing sharing) {
  if (count <= 0) return;
  std::lock_guard<std::mutex> lock(callers_);
  if (threads_ == 1 || count <= grain) {
    body(context, 0, count, *scratch_[0]);
    return;
  }
  grain_ = grain;
  body_ = body;
  context_ = context;
  num_ranges_ = sharing == Sharing::RANGES ? threads_ : 1;
  const int64_t pieces = (count + grain - 1) / grain;
  for (int i = 0; i < num_ranges_; ++i) {
    ranges_[i].next.store(pieces * i / num_ranges_ * grain, std::memory_order_relaxed);
    ranges_[i].end = i + 1 < num_ranges_ ? pieces * (i + 1) / num_ranges_ * grain : count;
  }
  if (openmp_) {
    run_openmp();
  } else {
    run_own();
  }
}

void Pool::run_openmp() {
  tickets_.store(0, std::memory_order_relaxed);
  const auto region = [](void* data) {
    Pool& pool = *static_cast<Pool*>(data);
    pool.work(pool.tickets_.fetch_add(1, std::memory_order_relaxed));
  };
  openmp_(region, this, static_cast<unsigned>(threads_), 0);
}

void Pool::run_own() {
  const uint64_t call = (gate_.load() & ~(CALL - 1)) + CALL;
  gate_.store(call | OPEN);
  if (sleeping_.load() > 0) {
    { std::lock_guard<std::mutex> lock(mutex_); }  // whoever is about to sleep is asleep now, and hears it
    wake_.notify_all();
  }
  work(0);
  gate_.fetch_and(~OPEN);
  wait_until_left();
}

void Pool::wait_until_left() {
  const auto is_empty = [this] { return (gate_.load() & INSIDE) == 0; };
  if (look_out(is_empty)) return;
  // A helper lost its core in the middle of a piece: sleeping gives it this one.
  std::unique_lock<std::mutex> lock(mutex_);
  is_caller_asleep_ = true;
  left_.wait(lock, is_empty);
  is_caller_asleep_ = false;
}

// Joins the call that is open, unless it is the one ``seen`` already.  Sets ``seen`` to the last call that began.
bool Pool::enter(uint64_t& seen) {
  uint64_t gate = gate_.load();
  while (gate / CALL != seen) {
    if (!(gate & OPEN)) {
      seen = gate / CALL;
      return false;
    }
    if (gate_.compare_exchange_weak(gate, gate + 1)) {
      seen = gate / CALL;
      return true;
    }
  }
  return false;
}

void Pool::leave() {
  const uint64_t before = gate_.fetch_sub(1);
  if ((before & (INSIDE | OPEN)) == 1 && is_caller_asleep_) {
    { std::lock_guard<std::mutex> lock(mutex_); }
    left_.notify_one();
  }
}

void Pool::worker_loop(int thread) {
  uint64_t seen = 0;
  const auto is_called = [&] { return gate_.load() / CALL != seen || is_closing_; };
  for (;;) {
    if (!look_out(is_called)) {
      std::unique_lock<std::mutex> lock(mutex_);
      ++sleeping_;
      wake_.wait(lock, is_called);
      --sleeping_;
    }
    if (is_closing_) return;
    if (enter(seen)) {
      work(thread);
      leave();
    }
  }
}

}  // namespace kvasir
