// A thread of the host. (std::thread's header would double what an include of a communicator costs.)
#pragma once

#include <pthread.h>

#include <utility>

#include "../core/error.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// Takes what pthread_create gave.
inline void require_started(int code) {
    if (code == 0) return;
    throw communication_error("E-STREAM-3",
                              text("no thread could be started: pthread_create gave code ", code,
                                   ". Every rank on the host has a progress thread, and in run_threads one "
                                   "of its own; allow this process more threads or memory (ulimit -u, -v), "
                                   "or start fewer ranks"));
}

}  // namespace detail

/// Runs a function that must not throw; joined at its end. Move only.
class host_thread {
public:
    host_thread() = default;
    /// Throws communication_error where the system has no thread left.
    template <class Function>
    explicit host_thread(Function function) {
        auto* const work = new Function(std::move(function));
        const int code = pthread_create(&thread_, nullptr, run<Function>, work);
        if (code != 0) delete work;
        detail::require_started(code);
        running_ = true;
    }
    host_thread(host_thread&& other) noexcept
        : thread_(other.thread_), running_(std::exchange(other.running_, false)) {}
    host_thread& operator=(host_thread other) noexcept {
        std::swap(thread_, other.thread_);
        std::swap(running_, other.running_);
        return *this;
    }
    ~host_thread() { join(); }

    /// Returns when the function has; at once if there is none.
    void join() {
        if (std::exchange(running_, false)) pthread_join(thread_, nullptr);
    }

private:
    template <class Function>
    static void* run(void* at) noexcept {
        auto* const work = static_cast<Function*>(at);
        (*work)();
        delete work;
        return nullptr;
    }

    pthread_t thread_{};
    bool running_ = false;
};

}  // namespace v0
}  // namespace reshard
