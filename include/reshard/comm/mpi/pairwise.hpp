// Every rank with every other: all-to-all, and a reduce-scatter that sums in rank order and rounds once.
#pragma once

#include <cstddef>
#include <vector>

#include "operation.hpp"
#include "peers.hpp"
#include "ring.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// A resumable exchange. Message m is message m / (n-1) of each block, to the rank 1 + m % (n-1) further on; all ranks
/// begin their messages in this order. For a reduce-scatter the messages of two such rounds have landing places, and a
/// round that is complete is summed in rank order.
class mpi_pairwise {
public:
    void start(const mpi_operation& operation, mpi_peers& peers, mpi_scratch& scratch, std::size_t message_bytes) {
        const std::size_t n = peers.size();
        operation_ = operation;
        peers_ = &peers;
        scratch_ = &scratch;
        sums_ = operation.reduces();
        cut_ = mpi_cut(operation.kind == mpi_kind::all_reduce ? operation.count : operation.count * n, n,
                       elements_of_a_message(n, message_bytes, operation.width), operation.width);
        messages_ = cut_.messages() * (n - 1);
        sends_begun_ = sends_done_ = receives_begun_ = received_ = summed_ = 0;
        if (sums_) {
            mpi_scratch::grow(scratch.landing, landing_bytes(n, message_bytes, operation.width));
            inputs_.resize(n);
        } else if (cut_.block > 0) {
            __builtin_memcpy(operation.out + cut_.offset(peers.rank, 0), operation.in + cut_.offset(peers.rank, 0),
                             cut_.block * cut_.width);
        }
    }

    bool advance(bool may_take) {
        bool moved = false;
        for (bool again = true; again; moved |= again) {
            const bool received = receive_some(may_take), sent = send_some();
            again = received || sent;
        }
        return moved;
    }
    bool done() const { return received_ == messages_ && sends_done_ == messages_; }

    void cancel() noexcept { incoming_.cancel(); }
    bool settled() noexcept { return incoming_.settled() && outgoing_.settled(); }
    void forget() noexcept {
        incoming_.forget();
        outgoing_.forget();
    }

    /// Landing places for groups of `n`: shorter messages in larger groups keep this near eight long messages.
    static std::size_t landing_bytes(std::size_t n, std::size_t message_bytes, std::size_t width) {
        return 2 * (n - 1) * elements_of_a_message(n, message_bytes, width) * width;
    }
    void prepare(std::size_t n) { inputs_.resize(n); }

private:
    static std::size_t elements_of_a_message(std::size_t n, std::size_t message_bytes, std::size_t width) {
        const std::size_t share = n > 8 ? message_bytes / ((n - 1) / 4) : message_bytes;
        return share / width > 0 ? share / width : 1;
    }
    std::size_t round(std::size_t m) const { return m / (peers_->size() - 1); }
    std::size_t distance(std::size_t m) const { return 1 + m % (peers_->size() - 1); }
    std::byte* landing(std::size_t k, std::size_t away) const {
        return scratch_->landing.data() + ((k % 2) * (peers_->size() - 1) + away - 1) * cut_.message * cut_.width;
    }

    bool receive_some(bool may_take) {
        bool moved = false;
        while (receives_begun_ < messages_ && !incoming_.full() && (!sums_ || round(receives_begun_) < summed_ + 2)) {
            const std::size_t m = receives_begun_++, from = peers_->before(distance(m));
            const std::size_t b = sums_ ? peers_->rank : from;
            std::byte* to = sums_ ? landing(round(m), distance(m)) : operation_.out + cut_.offset(b, round(m));
            peers_->receive(from, to, cut_.bytes(b, round(m)), incoming_.next());
            moved = true;
        }
        while (may_take && received_ < receives_begun_ && incoming_.take(MPI_STATUS_IGNORE, peers_->world_rank())) {
            ++received_;
            if (sums_ && received_ == (summed_ + 1) * (peers_->size() - 1)) sum(summed_++);
            moved = true;
        }
        return moved;
    }
    bool send_some() {
        bool moved = false;
        while (sends_begun_ < messages_ && !outgoing_.full()) {
            const std::size_t m = sends_begun_++, to = peers_->after(distance(m));
            peers_->send(to, operation_.in + cut_.offset(to, round(m)), cut_.bytes(to, round(m)), outgoing_.next());
            moved = true;
        }
        while (sends_done_ < sends_begun_ && outgoing_.take(MPI_STATUS_IGNORE, peers_->world_rank())) {
            ++sends_done_;
            moved = true;
        }
        return moved;
    }

    /// Message `k` of the own block; out of place a reduce-scatter's output holds that block alone.
    void sum(std::size_t k) {
        const std::size_t own = peers_->rank;
        for (std::size_t away = 1; away < peers_->size(); ++away) inputs_[peers_->before(away)] = landing(k, away);
        inputs_[own] = operation_.in + cut_.offset(own, k);
        const bool alone = operation_.kind == mpi_kind::reduce_scatter && !operation_.in_place;
        sum_in_rank_order(operation_.element, inputs_.data(), inputs_.size(),
                          operation_.out + cut_.offset(alone ? 0 : own, k), cut_.count(own, k));
    }

    mpi_operation operation_{};
    mpi_peers* peers_ = nullptr;
    mpi_scratch* scratch_ = nullptr;
    mpi_cut cut_{};
    mpi_requests incoming_{}, outgoing_{};
    std::vector<const std::byte*> inputs_{};
    std::size_t messages_ = 0, summed_ = 0;
    std::size_t sends_begun_ = 0, sends_done_ = 0, receives_begun_ = 0, received_ = 0;
    bool sums_ = false;
};

}  // namespace detail
}  // namespace v0
}  // namespace reshard
