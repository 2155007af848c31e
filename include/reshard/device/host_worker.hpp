// Serves the host streams of one rank, by a thread of its own or the caller's, and lets callers wait for them.
#pragma once

#include "../core/shared.hpp"
#include "host_memory.hpp"
#include "host_stream.hpp"
#include "host_thread.hpp"
#include "rank_hub.hpp"
#include "stream_server.hpp"

namespace reshard {
inline namespace v0 {

/// One rank's streams and who serves them (worker_mode). All but interrupt(), fail() and hub() is for the rank's own
/// thread.
///
/// * A command that throws: the first exception is kept, thrown by every later call and wait; all queued commands are
///   dropped and the timelines advance, so nobody hangs.
/// * interrupt(): host waits and calls throw what it is given, but queued commands stay and go on as soon as they can.
/// * Destruction waits for the work (which has the deadline); after an interruption it drops the work.
class host_worker : public stream_server {
public:
    explicit host_worker(const worker_options& options = {}) : host_worker(options, shared<rank_hub>()) {}
    /// With a hub that somebody else holds too, to wake this worker from another rank.
    host_worker(const worker_options& options, const shared<rank_hub>& hub);
    /// A further worker of the same rank, with a thread of its own: events of either can be waited for on both, and
    /// they fail together. It ends before the first.
    host_worker(const worker_options& options, const host_worker& first) : host_worker(options, first.hub_) {
        if (options.mode == worker_mode::threaded) return;
        throw argument_error("E-STREAM-2", "a further worker of a rank must be threaded: nobody would pump it");
    }
    ~host_worker() { end(); }

    host_stream& add_stream(const char* name, std::size_t depth = host_stream::default_depth);
    /// Takes back a stream that was settled; a later add_stream may use it again. Its events stay valid.
    void give_back(host_stream& stream) { stream.free_ = true; }

    /// Enqueues make() on `queue`; null: on the caller's account, and returns when it is complete. Throws as post()
    /// does. make() is called only when nothing can keep the command out of the queue any more: the place to take an
    /// issue number. If a call with null throws, the command no longer touches its memory.
    template <class Make>
    void issue(host_stream* queue, Make&& make);

    /// Blocks the calling thread until `event` is reached. Throws a kept error or a raised fault.
    void wait(const host_event& event);
    /// Blocks until ready() holds, serving the streams where there is no thread. Whoever makes it true rings
    /// `changed`, and the door of the hub. Throws nothing; ready() should hold after a deadline.
    template <class Ready>
    void await(bell& changed, const Ready& ready);
    /// Waits until all that was posted on `stream` has ended; drops it where a fault is raised. Throws nothing.
    void settle(host_stream& stream);
    /// settle() for all streams of this worker.
    void settle();

    void check() const { hub_->check(); }
    /// One round where there is no thread; true if something moved. Throws as wait() does.
    bool progress();

    /// From any thread: host waits and calls throw `why` until resume(). The first one is kept.
    void interrupt(std::exception_ptr why) {
        hub_->interrupt(std::move(why));
        hub_->door().ring();
    }
    bool interrupted() const { return hub_->interrupted(); }
    void resume() {
        hub_->resume();
        hub_->door().ring();
    }

    const shared<rank_hub>& hub() const { return hub_; }
    const shared<host_account>& account() const { return account_; }
    worker_mode mode() const { return options_.mode; }
    double deadline_seconds() const { return options_.deadline_seconds; }
    std::uint64_t deadline_us() const { return deadline_us_; }

private:
    friend class host_stream;
    static constexpr std::uint64_t idle_poll_us = 1000, look_for_faults_us = 10'000;

    void end();
    void finish_on_caller();
    void make_room(host_stream& stream);
    void posted(host_stream& stream);
    template <class Ready>
    void serve_until(const Ready& ready);
    void serve();
    void give_way(int seen, int& idle_rounds, bool caller_waits, std::uint64_t most_us);
    static void shorten_slice();

    shared<host_account> account_;
    host_stream* caller_stream_ = nullptr;  // for issue() without a queue
    std::atomic<int> callers_waiting_{0};
    std::atomic<bool> stopping_{false};
    host_thread thread_;
};

template <HostCommand Command>
void host_stream::post(Command command) {
    worker_.issue(this, [&]() -> Command&& { return std::move(command); });
}

template <class Make>
void host_worker::issue(host_stream* queue, Make&& make) {
    using command = std::remove_cvref_t<decltype(make())>;
    if (queue != nullptr && &queue->worker() != this) return queue->worker().issue(queue, std::forward<Make>(make));
    check();
    host_stream& stream = queue == nullptr ? *caller_stream_ : *queue;
    if (!stream.has_room()) make_room(stream);
    stream.place<command>(make);
    posted(stream);
    if (queue == nullptr) finish_on_caller();
}

inline host_worker::host_worker(const worker_options& options, const shared<rank_hub>& hub)
    : stream_server(options, hub) {
    hub_->joined();
    caller_stream_ = &add_stream("caller");
    if (options_.mode == worker_mode::threaded) thread_ = host_thread([this] { serve(); });
}

inline void host_worker::end() {
    settle();
    stopping_.store(true);
    hub_->door().ring();
    thread_.join();
    for (host_stream* stream = streams_.exchange(nullptr); stream != nullptr;) {
        delete std::exchange(stream, stream->next_);
    }
    hub_->left();
}

inline host_stream& host_worker::add_stream(const char* name, std::size_t depth) {
    for (host_stream* stream = streams_.load(); stream != nullptr; stream = stream->next_) {
        if (!stream->free_ || stream->slots_.size() != depth) continue;
        stream->free_ = false;
        stream->name_ = name;
        return *stream;
    }
    auto* stream = new host_stream(*this, name, depth);
    stream->next_ = streams_.load();
    streams_.store(stream);
    return *stream;
}

inline void host_worker::wait(const host_event& event) {
    check();
    if (event.reached()) return;
    await(event.line->changed(), [&] { return event.reached() || (hub_->interrupted() && !hub_->failed()); });
    check();
}

inline void host_worker::posted(host_stream& stream) {
    if (options_.mode == worker_mode::threaded) {
        hub_->door().ring();
    } else if (options_.mode == worker_mode::at_issue && &stream != caller_stream_) {
        wait(stream.last());
    }
}

inline void host_worker::make_room(host_stream& stream) {
    wait({&stream.done_, stream.posted_.load() + 1 - stream.slots_.size()});
}

inline void host_worker::finish_on_caller() {
    try {
        wait(caller_stream_->last());
    } catch (...) {
        const host_event end_of_it = caller_stream_->last();
        caller_stream_->asked_to_abandon_.store(true);
        hub_->door().ring();
        await(caller_stream_->done_.changed(),
              [&] { return end_of_it.reached() || !caller_stream_->asked_to_abandon_.load(); });
        throw;
    }
}

inline void host_worker::settle(host_stream& stream) {
    const host_event end_of_it = stream.last();
    while (!end_of_it.reached()) {
        if (hub_->fail_as_interrupted()) hub_->door().ring();
        await(stream.done_.changed(), [&] { return end_of_it.reached() || (hub_->interrupted() && !hub_->failed()); });
    }
}

inline void host_worker::settle() {
    for (host_stream* stream = streams_.load(); stream != nullptr; stream = stream->next_) settle(*stream);
}

inline bool host_worker::progress() {
    check();
    const bool moved = options_.mode != worker_mode::threaded && round();
    check();
    return moved;
}

template <class Ready>
void host_worker::await(bell& changed, const Ready& ready) {
    if (options_.mode != worker_mode::threaded) return serve_until(ready);
    callers_waiting_.fetch_add(1);
    for (int tries = 0; !ready(); ++tries) {
        const int seen = changed.now();
        if (tries < yields_before_sleep) {
            sched_yield();
        } else if (!ready()) {
            changed.sleep(seen, look_for_faults_us);
        }
    }
    callers_waiting_.fetch_sub(1);
}

template <class Ready>
void host_worker::serve_until(const Ready& ready) {
    for (int idle_rounds = 0; !ready();) {
        const int seen = hub_->door().now();
        if (round()) {
            idle_rounds = 0;
        } else if (!ready()) {
            give_way(seen, idle_rounds, true, look_for_faults_us);
        }
    }
}

inline void host_worker::serve() {
    shorten_slice();
    for (int idle_rounds = 0; !stopping_.load();) {
        const int seen = hub_->door().now();
        if (round()) {
            idle_rounds = 0;
        } else if (!stopping_.load()) {
            give_way(seen, idle_rounds, callers_waiting_.load() != 0, never_us);
        }
    }
}

inline void host_worker::give_way(int seen, int& idle_rounds, bool caller_waits, std::uint64_t most_us) {
    const bool polling = options_.backend != nullptr && options_.backend->needs_polling();
    if (++idle_rounds <= yields_before_sleep || (polling && caller_waits)) {
        sched_yield();
        return;
    }
    if (polling && most_us > idle_poll_us) most_us = work_queued_ ? poll_us : idle_poll_us;
    if (wake_us_ != never_us) {
        const std::uint64_t now = now_us(), left = wake_us_ > now ? wake_us_ - now : 0;
        if (left < most_us) most_us = left;
    }
    hub_->door().sleep(seen, most_us);
}

/// Asks the kernel for slices of 0.1 ms, so that this thread runs soon among threads that compute. Where the kernel
/// knows no such thing (before 6.12) nothing changes.
inline void host_worker::shorten_slice() {
    struct {
        std::uint32_t size, policy;
        std::uint64_t flags;
        std::int32_t nice;
        std::uint32_t priority;
        std::uint64_t runtime, deadline, period;
    } attributes{};
    attributes.size = sizeof(attributes);
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
    attributes.runtime = 100'000;
    syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace v0
}  // namespace reshard
