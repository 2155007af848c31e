// Messages between two ranks of a pipeline. Both kinds of link have send(span, to) and receive(span, from), which block
// until the other side is there; messages of a pair come in the order in which they were sent.
#pragma once

#include <reshard/core/error.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>

namespace gpt {

/// Where ranks that are threads meet: one place for messages from each rank to each other.
class meeting_places {
public:
    explicit meeting_places(std::size_t ranks) : ranks_(ranks), places_(ranks * ranks) {}

    void send(std::size_t from, std::size_t to, std::span<const std::byte> bytes) {
        std::unique_lock lock(mutex_);
        place& at = places_[from * ranks_ + to];
        wait(lock, from, to, [&] { return !at.offered; });
        at = {bytes, true, false};
        changed_.notify_all();
        wait(lock, from, to, [&] { return at.taken; });
        at = {};
        changed_.notify_all();
    }
    void receive(std::size_t from, std::size_t to, std::span<std::byte> bytes) {
        std::unique_lock lock(mutex_);
        place& at = places_[from * ranks_ + to];
        wait(lock, to, from, [&] { return at.offered && !at.taken; });
        if (at.bytes.size() != bytes.size()) {
            throw std::runtime_error("rank " + std::to_string(to) + " expects " + std::to_string(bytes.size()) +
                                     " bytes, but rank " + std::to_string(from) + " sends " +
                                     std::to_string(at.bytes.size()));
        }
        std::memcpy(bytes.data(), at.bytes.data(), bytes.size());
        at.taken = true;
        changed_.notify_all();
    }

    /// A rank ends by an exception: nobody waits for it any more.
    void close(std::size_t rank) {
        const std::lock_guard lock(mutex_);
        closed_ = true;
        failed_ = rank;
        changed_.notify_all();
    }

private:
    struct place {
        std::span<const std::byte> bytes;
        bool offered = false, taken = false;
    };

    template <class Condition>
    void wait(std::unique_lock<std::mutex>& lock, std::size_t rank, std::size_t peer, Condition ready) {
        const bool in_time = changed_.wait_for(lock, std::chrono::minutes(10), [&] { return ready() || closed_; });
        if (closed_) {
            throw reshard::peer_error(failed_, "it left the pipeline");
        }
        if (!in_time) {
            throw std::runtime_error("rank " + std::to_string(rank) + " waited ten minutes for a message of rank " +
                                     std::to_string(peer));
        }
    }

    std::size_t ranks_;
    std::deque<place> places_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool closed_ = false;
    std::size_t failed_ = 0;
};

/// A rank's end of the meeting places.
class thread_link {
public:
    thread_link(meeting_places& places, std::size_t rank) : places_(places), rank_(rank) {}

    template <class Number>
    void send(std::span<const Number> numbers, std::size_t to) {
        places_.send(rank_, to, std::as_bytes(numbers));
    }
    template <class Number>
    void receive(std::span<Number> numbers, std::size_t from) {
        places_.receive(from, rank_, std::as_writable_bytes(numbers));
    }

private:
    meeting_places& places_;
    std::size_t rank_;
};

}  // namespace gpt
