// Streams on the host: FIFOs of resumable commands, the timelines they advance, and how threads sleep.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "../core/error.hpp"

namespace reshard {
inline namespace v0 {

class stream_server;
class host_worker;

/// Microseconds on a clock that only goes forward.
inline std::uint64_t now_us() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}
inline constexpr std::uint64_t never_us = static_cast<std::uint64_t>(-1);

/// "60 s" or "200 ms".
inline std::string seconds_text(double seconds) {
    const auto ms = static_cast<std::uint64_t>(seconds * 1000 + 0.5);
    return ms % 1000 == 0 ? text(ms / 1000, " s") : text(ms, " ms");
}

/// Where threads sleep until something may have changed, at most for a time (which std::atomic's wait cannot).
/// Read now(), look for what is awaited, then sleep(seen): a ring in between is not missed.
class bell {
public:
    int now() const { return epoch_.load(std::memory_order_seq_cst); }
    void ring() {
        epoch_.fetch_add(1, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst) != 0) futex(FUTEX_WAKE_PRIVATE, 1 << 30, nullptr);
    }
    void sleep(int seen, std::uint64_t most_us) {
        if (most_us == 0) return;
        const std::uint64_t bounded = most_us < 1'000'000'000 ? most_us : 1'000'000'000;
        timespec time{};
        time.tv_sec = static_cast<std::time_t>(bounded / 1'000'000);
        time.tv_nsec = static_cast<long>(bounded % 1'000'000 * 1000);
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        futex(FUTEX_WAIT_PRIVATE, seen, &time);
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }

private:
    void futex(int what, int value, const timespec* time) {
        static_assert(sizeof(std::atomic<int>) == sizeof(int));
        syscall(SYS_futex, &epoch_, what, value, time, nullptr, 0);
    }

    std::atomic<int> epoch_{0}, sleepers_{0};
};

/// How often a thread gives way before it sleeps; pauses in place of yields always lose on a full machine.
inline constexpr int yields_before_sleep = 4;

/// Guards a few words that are seldom touched.
class yielding_lock {
public:
    yielding_lock() = default;
    void lock() {
        while (taken_.exchange(true, std::memory_order_acquire)) sched_yield();
    }
    void unlock() { taken_.store(false, std::memory_order_release); }

    class hold {
    public:
        explicit hold(yielding_lock& lock) : lock_(lock) { lock_.lock(); }
        hold(const hold&) = delete;
        hold& operator=(const hold&) = delete;
        ~hold() { lock_.unlock(); }

    private:
        yielding_lock& lock_;
    };

private:
    std::atomic<bool> taken_{false};
};

/// A count that only grows. One thread advances it; any thread may look or sleep.
class timeline {
public:
    std::uint64_t value() const { return value_.load(std::memory_order_acquire); }
    bool reached(std::uint64_t at) const { return value() >= at; }
    void reach(std::uint64_t at) {
        value_.store(at, std::memory_order_seq_cst);
        changed_.ring();
    }
    bell& changed() const { return changed_; }

private:
    std::atomic<std::uint64_t> value_{0};
    mutable bell changed_;
};

/// A point on a timeline, as a value; without a timeline it counts as reached. Valid while the stream's worker lives.
struct host_event {
    const timeline* line = nullptr;
    std::uint64_t at = 0;

    bool reached() const { return line == nullptr || line->reached(at); }
};

/// What one visit made of a command: nothing could be done now; some of it was done, come again; it is complete.
enum class visit : std::uint8_t { stuck, moved, done };

/// A command is called from the thread that serves its stream, again and again until it is done, and never waits.
template <class Type>
concept HostCommand = std::move_constructible<Type> && requires(Type& command) {
    { command() } -> std::same_as<visit>;
};

/// A command that waits for other ranks: the worker holds it to the deadline, and `late()` is the text of the error.
template <class Type>
concept WaitsForPeers = HostCommand<Type> && requires(const Type& command) {
    { command.late() } -> std::same_as<std::string>;
};

/// `abandon()` is asked, from the same thread, when nobody wants the result any more (a deadline, a fault). True: no
/// rank touches the command's memory from now on, though it may go on taking its part in the protocol. False: not
/// yet, ask again. A command without it may be forgotten at any time.
template <class Type>
concept Abandonable = HostCommand<Type> && requires(Type& command) {
    { command.abandon() } -> std::same_as<bool>;
};

/// What the worker can do with commands of one type.
struct command_kind {
    visit (*step)(void*);
    void (*destroy)(void*);
    std::string (*late)(const void*);  // null: waits for no peer
    bool (*abandon)(void*);            // null: may be forgotten
};

template <HostCommand Command>
constexpr command_kind make_command_kind() {
    command_kind kind{[](void* at) { return (*static_cast<Command*>(at))(); },
                      [](void* at) { static_cast<Command*>(at)->~Command(); }, nullptr, nullptr};
    if constexpr (WaitsForPeers<Command>)
        kind.late = [](const void* at) { return static_cast<const Command*>(at)->late(); };
    if constexpr (Abandonable<Command>) kind.abandon = [](void* at) { return static_cast<Command*>(at)->abandon(); };
    return kind;
}
template <HostCommand Command>
inline constexpr command_kind command_kind_of = make_command_kind<Command>();

/// An in-order queue of commands, posted by one thread (the rank's own) and served by its worker. Made by
/// host_worker::add_stream and never freed before the worker. Nothing is allocated after construction.
class host_stream {
public:
    static constexpr std::size_t command_bytes = 112;
    static constexpr std::size_t default_depth = 256;

    host_stream(host_worker& worker, const char* name, std::size_t depth)
        : worker_(worker), name_(name), slots_(depth) {
        if (depth == 0) throw argument_error("E-STREAM-1", text("stream ", name, ": a depth of 0 holds no command"));
    }
    host_stream(const host_stream&) = delete;
    host_stream& operator=(const host_stream&) = delete;
    ~host_stream() = default;  // the worker leaves no command behind

    host_worker& worker() const { return worker_; }
    const char* name() const { return name_.c_str(); }

    /// Enqueues `command`. Throws the worker's kept error or a raised fault. Waits while the queue is full; on a
    /// worker that works at issue, until the command is complete.
    template <HostCommand Command>
    void post(Command command);  // in host_worker.hpp

    /// The point after all that was posted so far.
    host_event last() const { return {&done_, posted_.load(std::memory_order_relaxed)}; }

private:
    friend class stream_server;
    friend class host_worker;

    struct slot {
        alignas(16) std::byte command[command_bytes];
        const command_kind* kind;
    };
    slot& slot_of(std::uint64_t number) { return slots_[static_cast<std::size_t>((number - 1) % slots_.size())]; }
    bool has_room() const { return posted_.load(std::memory_order_relaxed) - done_.value() < slots_.size(); }
    template <class Command, class Make>
    void place(Make&& make) {
        static_assert(HostCommand<Command>);
        static_assert(sizeof(Command) <= command_bytes,
                      "a command has at most 112 bytes: capture a pointer to the rest");
        static_assert(alignof(Command) <= 16, "a command is aligned to 16 bytes at most");
        const std::uint64_t number = posted_.load(std::memory_order_relaxed) + 1;
        slot& here = slot_of(number);
        ::new (static_cast<void*>(here.command)) Command(make());
        here.kind = &command_kind_of<Command>;
        posted_.store(number, std::memory_order_release);
    }

    host_worker& worker_;
    std::string name_;
    std::vector<slot> slots_;
    std::atomic<std::uint64_t> posted_{0};  // commands are numbered from 1
    timeline done_;
    std::atomic<bool> asked_to_abandon_{false};  // the head, by a caller who cannot wait for it
    bool free_ = false;                          // its handle is gone; only the posting thread looks
    host_stream* next_ = nullptr;                // in the worker's list

    // Of the command at the head; only the serving thread looks.
    bool started_ = false;
    std::uint64_t not_before_us_ = 0;
    std::uint64_t stuck_since_us_ = never_us;
};

}  // namespace v0
}  // namespace reshard
