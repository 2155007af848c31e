// What the workers of one rank share, and what a communicator family and a test may hang into them.
#pragma once

#include "host_stream.hpp"

namespace reshard {
inline namespace v0 {

/// threaded: a progress thread of its own. at_issue: no thread; post() returns when the command is complete.
/// pumped: no thread; commands move while the caller waits or calls progress().
enum class worker_mode : std::uint8_t { threaded, at_issue, pumped };

/// For tests: holds the command with this number (from 1) back for so many microseconds once it is the stream's
/// first; other streams go on. Called from the serving threads of all ranks.
class delay_source {
public:
    virtual std::uint64_t before(std::size_t rank, const char* stream, std::uint64_t number) const = 0;

protected:
    ~delay_source() = default;
};

/// Delays of 0 to most_us microseconds, drawn from (seed, rank, stream, number): the same in every run.
class random_delays final : public delay_source {
public:
    random_delays(std::uint64_t seed, std::uint64_t most_us) : seed_(seed), most_us_(most_us) {}

    std::uint64_t before(std::size_t rank, const char* stream, std::uint64_t number) const override {
        std::uint64_t mixed = seed_ ^ (rank * 0x9e3779b97f4a7c15u) ^ (number * 0xd1342543de82ef95u);
        for (; *stream != '\0'; ++stream) mixed = (mixed ^ static_cast<unsigned char>(*stream)) * 0x100000001b3u;
        mixed = (mixed ^ (mixed >> 31)) * 0xbf58476d1ce4e5b9u;
        return (mixed ^ (mixed >> 29)) % (most_us_ + 1);
    }

private:
    std::uint64_t seed_, most_us_;
};

/// What a communicator family adds to its worker. All but failed() is called from the serving thread only.
class worker_backend {
public:
    /// Once a round; true if something moved. Looks for raised faults: host_worker::interrupt(). An exception from it
    /// becomes the worker's error.
    virtual bool poll() { return false; }
    /// Whether work can arrive without the bell being rung (messages of another process).
    virtual bool needs_polling() const { return false; }
    /// A deadline has passed: asks the other ranks how far they are. Called every round until it returns true (all
    /// that will answer have) or one second is over; then the text of late() is thrown.
    virtual bool ask() { return true; }
    /// A command failed, from any thread: tell the other ranks.
    virtual void failed(const std::string& /*why*/) {}

protected:
    ~worker_backend() = default;
};

struct worker_options {
    worker_mode mode = worker_mode::threaded;
    double deadline_seconds = 600;
    std::size_t rank = 0;  // for delays
    const delay_source* delays = nullptr;
    worker_backend* backend = nullptr;
};

/// What all workers of one rank share: the bell that wakes them, and what went wrong.
class rank_hub {
public:
    /// Wakes the serving threads; any thread that holds the hub may ring it.
    bell& door() { return door_; }
    /// More than one worker: each must hear of the others' progress.
    bool several_workers() const { return workers_.load(std::memory_order_relaxed) > 1; }
    void joined() { workers_.fetch_add(1, std::memory_order_relaxed); }
    void left() { workers_.fetch_sub(1, std::memory_order_relaxed); }

    /// Throws what went wrong: a kept error, else the fault that interrupted.
    void check() {
        if (state_.load(std::memory_order_acquire) == 0) return;
        std::exception_ptr why;
        {
            yielding_lock::hold held(lock_);
            why = error_ ? error_ : interrupt_;
        }
        if (why) std::rethrow_exception(why);
    }
    bool failed() const { return (state_.load(std::memory_order_acquire) & has_error) != 0; }
    bool interrupted() const { return (state_.load(std::memory_order_acquire) & has_interrupt) != 0; }

    /// Keeps the first error for good; false if there was one already.
    bool fail(std::exception_ptr why) {
        yielding_lock::hold held(lock_);
        if (error_) return false;
        error_ = std::move(why);
        state_.fetch_or(has_error, std::memory_order_acq_rel);
        return true;
    }
    void interrupt(std::exception_ptr why) {
        yielding_lock::hold held(lock_);
        if (interrupt_) return;
        interrupt_ = std::move(why);
        state_.fetch_or(has_interrupt, std::memory_order_acq_rel);
    }
    void resume() {
        yielding_lock::hold held(lock_);
        interrupt_ = nullptr;
        state_.fetch_and(~has_interrupt, std::memory_order_acq_rel);
    }
    /// Makes the interruption the error.
    bool fail_as_interrupted() {
        std::exception_ptr why;
        {
            yielding_lock::hold held(lock_);
            why = interrupt_;
        }
        return why && fail(why);
    }

private:
    static constexpr int has_error = 1, has_interrupt = 2;

    bell door_;
    std::atomic<int> state_{0}, workers_{0};
    yielding_lock lock_;
    std::exception_ptr error_, interrupt_;
};

}  // namespace v0
}  // namespace reshard
