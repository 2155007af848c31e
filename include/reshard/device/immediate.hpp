// The device of a single rank on the host: everything happens inside the call, on the calling thread.
#pragma once

#include <cstddef>
#include <utility>

#include "../core/shared.hpp"
#include "concept.hpp"
#include "host_memory.hpp"
#include "kernels.hpp"

namespace reshard {
inline namespace v0 {

/// Streams and events are empty, waits are nothing and kernels are plain loops. Copies share one allocated().
class immediate_device : public host_kernels<immediate_device> {
public:
    struct stream_ref {
        bool operator==(const stream_ref&) const = default;
    };
    struct event {};
    using memory = host_memory;
    class stream {
    public:
        stream() = default;
        stream(stream&&) = default;
        stream& operator=(stream&&) = default;
        operator stream_ref() const { return {}; }
    };

    stream_ref caller() const { return {}; }
    stream make_stream(const char* /*name*/) const { return {}; }
    event make_event() const { return {}; }
    memory allocate(std::size_t bytes) const { return memory(bytes, account_); }
    std::size_t allocated() const { return account_->held; }

    void record(event& /*point*/, stream_ref /*on*/) const {}
    void wait(stream_ref /*waiter*/, const event& /*point*/) const {}
    void synchronize(const event& /*point*/) const {}
    bool done(const event& /*point*/) const { return true; }

    /// Runs `work()` in stream order: here at once.
    template <class Work>
    void launch(stream_ref /*on*/, Work&& work) const {
        std::forward<Work>(work)();
    }

private:
    shared<host_account> account_;
};
static_assert(Device<immediate_device>);

}  // namespace v0
}  // namespace reshard
