// Visits host streams in turn: takes their commands as far as they go, never waiting for one of them.
#pragma once

#include "../core/shared.hpp"
#include "host_stream.hpp"
#include "rank_hub.hpp"

namespace reshard {
inline namespace v0 {

/// The part of a host_worker that runs on the serving thread. Injected delays, deadlines, kept errors and the end of
/// unwanted commands have their place here.
class stream_server {
public:
    stream_server(const worker_options& options, const shared<rank_hub>& hub)
        : options_(options), deadline_us_(static_cast<std::uint64_t>(options.deadline_seconds * 1e6)), hub_(hub) {}
    stream_server(const stream_server&) = delete;
    stream_server& operator=(const stream_server&) = delete;

    /// From any thread: keeps an error as if a command had thrown it.
    void fail(std::exception_ptr why);

protected:
    static constexpr std::uint64_t poll_us = 50, grace_us = 1'000'000;

    ~stream_server() = default;
    /// Polls the backend and visits every stream; true if anything moved.
    bool round();

    worker_options options_;
    std::uint64_t deadline_us_;
    shared<rank_hub> hub_;
    std::atomic<host_stream*> streams_{nullptr};
    std::uint64_t wake_us_ = never_us;  // when the next round must come at the latest
    bool work_queued_ = false;          // seen in the last round

private:
    static constexpr int commands_a_visit = 16;

    void poll_backend(bool& moved);
    bool visit_stream(host_stream& stream);
    visit step_head(host_stream& stream, std::uint64_t number);
    void look_for_abandon(host_stream& stream, host_stream::slot* head);
    bool drop_head(host_stream& stream, host_stream::slot& head);
    bool may_start(host_stream& stream, std::uint64_t number);
    void finish_head(host_stream& stream, host_stream::slot& head, std::uint64_t number);
    void judge_stuck(host_stream& stream, const host_stream::slot& head);
    void wake_at(std::uint64_t time_us) {
        if (time_us < wake_us_) wake_us_ = time_us;
    }
};

inline void stream_server::fail(std::exception_ptr why) {
    if (!hub_->fail(why)) return;
    hub_->door().ring();
    if (options_.backend == nullptr) return;
    try {
        std::rethrow_exception(why);
    } catch (const std::exception& known) {
        options_.backend->failed(known.what());
    } catch (...) {
        options_.backend->failed("an exception that is not a std::exception");
    }
}

inline bool stream_server::round() {
    wake_us_ = never_us;
    work_queued_ = false;
    bool moved = false;
    if (options_.backend != nullptr) poll_backend(moved);
    for (host_stream* stream = streams_.load(); stream != nullptr; stream = stream->next_) {
        if (visit_stream(*stream)) moved = true;
    }
    return moved;
}

inline void stream_server::poll_backend(bool& moved) {
    try {
        moved = options_.backend->poll();
    } catch (...) {
        fail(std::current_exception());
    }
}

/// Takes one stream as far as it goes now; true if anything moved.
inline bool stream_server::visit_stream(host_stream& stream) {
    bool moved = false;
    for (int count = 0; count < commands_a_visit; ++count) {
        const std::uint64_t number = stream.done_.value() + 1;
        if (stream.posted_.load(std::memory_order_acquire) < number) {
            look_for_abandon(stream, nullptr);
            return moved;
        }
        work_queued_ = true;
        switch (step_head(stream, number)) {
        case visit::stuck:
            return moved;
        case visit::moved:
            stream.stuck_since_us_ = never_us;
            return true;
        case visit::done:
            moved = true;
        }
    }
    return true;
}

inline visit stream_server::step_head(host_stream& stream, std::uint64_t number) {
    host_stream::slot& head = stream.slot_of(number);
    visit result = visit::stuck;
    if (hub_->failed()) {
        if (!drop_head(stream, head)) return visit::stuck;
        result = visit::done;
    } else {
        if (!may_start(stream, number)) return visit::stuck;
        look_for_abandon(stream, &head);
        try {
            result = head.kind->step(head.command);
        } catch (...) {
            fail(std::current_exception());
            return visit::moved;
        }
    }
    if (result == visit::done) finish_head(stream, head, number);
    if (result == visit::stuck && head.kind->late != nullptr) judge_stuck(stream, head);
    return result;
}

inline void stream_server::look_for_abandon(host_stream& stream, host_stream::slot* head) {
    if (!stream.asked_to_abandon_.load()) return;
    if (head != nullptr && head->kind->abandon != nullptr && !head->kind->abandon(head->command)) {
        return wake_at(now_us() + poll_us);
    }
    stream.asked_to_abandon_.store(false);
    stream.done_.changed().ring();
}

/// Whether the head may be forgotten, after an error.
inline bool stream_server::drop_head(host_stream& stream, host_stream::slot& head) {
    if (!stream.started_ || head.kind->abandon == nullptr || head.kind->abandon(head.command)) return true;
    wake_at(now_us() + poll_us);
    return false;
}

inline bool stream_server::may_start(host_stream& stream, std::uint64_t number) {
    if (!stream.started_) {
        stream.started_ = true;
        const std::uint64_t delay =
            options_.delays == nullptr ? 0 : options_.delays->before(options_.rank, stream.name(), number);
        stream.not_before_us_ = delay == 0 ? 0 : now_us() + delay;
    }
    if (stream.not_before_us_ == 0 || now_us() >= stream.not_before_us_) return true;
    wake_at(stream.not_before_us_);
    return false;
}

inline void stream_server::finish_head(host_stream& stream, host_stream::slot& head, std::uint64_t number) {
    head.kind->destroy(head.command);
    stream.started_ = false;
    stream.stuck_since_us_ = never_us;
    stream.done_.reach(number);
    if (hub_->several_workers()) hub_->door().ring();
}

/// Holds a command that waits for peers to the deadline; the clock starts anew whenever it moves.
inline void stream_server::judge_stuck(host_stream& stream, const host_stream::slot& head) {
    const std::uint64_t now = now_us();
    if (stream.stuck_since_us_ == never_us) stream.stuck_since_us_ = now;
    const std::uint64_t limit = stream.stuck_since_us_ + deadline_us_;
    if (now < limit) return wake_at(limit);
    if (options_.backend != nullptr && !options_.backend->ask() && now < limit + grace_us) {
        return wake_at(now + poll_us);
    }
    fail(std::make_exception_ptr(
        timeout_error("E-TIME-1", text("timeout after ", seconds_text(options_.deadline_seconds), ": ",
                                       head.kind->late(head.command)))));
}

}  // namespace v0
}  // namespace reshard
