// The host as a device: streams are queues served by a worker, the caller's stream is the calling thread.
#pragma once

#include <cstddef>
#include <utility>

#include "concept.hpp"
#include "host_memory.hpp"
#include "host_worker.hpp"
#include "kernels.hpp"

namespace reshard {
inline namespace v0 {

/// A handle to one rank's host_worker, which outlives it, its streams, events and memory. Used by that rank's thread.
/// On caller() kernels run, and waits block, on the calling thread. Streams of a further worker of the same rank are
/// welcome wherever a stream_ref is: a compute stream that is a queue.
class host_device : public host_kernels<host_device> {
public:
    /// Null is the calling thread.
    struct stream_ref {
        host_stream* queue = nullptr;
        bool operator==(const stream_ref&) const = default;
    };
    using event = host_event;
    using memory = host_memory;

    /// Owns a queue. The destructor waits for its work, or drops it where a fault is raised: declare a stream behind
    /// the memory it works on, so that it ends first.
    class stream {
    public:
        explicit stream(host_stream& queue) : queue_(&queue) {}
        stream(stream&& other) noexcept : queue_(std::exchange(other.queue_, nullptr)) {}
        stream& operator=(stream other) noexcept {
            std::swap(queue_, other.queue_);
            return *this;
        }
        ~stream() {
            if (queue_ == nullptr) return;
            queue_->worker().settle(*queue_);
            queue_->worker().give_back(*queue_);
        }

        operator stream_ref() const { return {queue_}; }
        /// Enqueues `work()`: a kernel of the user's own.
        template <class Work>
        void launch(Work work) const {
            queue_->post(once<Work>{std::move(work)});
        }

    private:
        host_stream* queue_;
    };

    explicit host_device(host_worker& worker) : worker_(&worker) {}

    stream_ref caller() const { return {}; }
    stream make_stream(const char* name, std::size_t depth = host_stream::default_depth) const {
        return stream(worker_->add_stream(name, depth));
    }
    event make_event() const { return {}; }
    memory allocate(std::size_t bytes) const { return memory(bytes, worker_->account()); }
    std::size_t allocated() const { return __atomic_load_n(&worker_->account()->held, __ATOMIC_RELAXED); }

    void record(event& point, stream_ref on) const { point = on.queue == nullptr ? host_event{} : on.queue->last(); }
    void wait(stream_ref waiter, const event& point) const {
        if (waiter.queue == nullptr) return worker_->wait(point);
        if (point.reached() || point.line == waiter.queue->last().line) return;
        waiter.queue->post(wait_for{point});
    }
    void synchronize(const event& point) const { worker_->wait(point); }
    bool done(const event& point) const { return point.reached(); }
    void settle(stream_ref on) const {
        if (on.queue != nullptr) on.queue->worker().settle(*on.queue);
    }

    /// Runs `work()` in stream order: on caller() at once, else on the serving thread. It must not throw there unless
    /// the whole rank is to fail.
    template <class Work>
    void launch(stream_ref on, Work work) const {
        if (on.queue == nullptr) return work();
        on.queue->post(once<Work>{std::move(work)});
    }

    host_worker& worker() const { return *worker_; }

private:
    template <class Work>
    struct once {
        Work work;
        visit operator()() {
            work();
            return visit::done;
        }
    };
    struct wait_for {
        host_event point;
        visit operator()() const { return point.reached() ? visit::done : visit::stuck; }
    };

    host_worker* worker_;
};
static_assert(Device<host_device>);

}  // namespace v0
}  // namespace reshard
