// The ring: all-gather, reduce-scatter and both behind one another, and a chain of messages for broadcast.
#pragma once

#include <cstddef>
#include <vector>

#include "operation.hpp"
#include "peers.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// Scratch of one group's operations: landing places of messages, and one block of partial sums.
struct mpi_scratch {
    std::vector<std::byte> landing, partial;

    static void grow(std::vector<std::byte>& room, std::size_t bytes) {
        if (room.size() < bytes) room.resize(bytes);
    }
};

/// One pass around the ring as a resumable object. In step t rank r sends block r-1-t to its right and receives block
/// r-2-t from its left, mod n: in steps 0..n-2 received blocks are partial sums, to which the own part is added; in
/// steps n-1..2n-3 they are results. Reduce-scatter is the first half, all-gather the second, all-reduce is both.
/// Message m of the pass is message m % K of step m / K, K messages a block; it may leave once message m-K has come.
class mpi_ring {
public:
    /// Sets the pass up and copies the own block where an all-gather is out of place.
    void start(const mpi_operation& operation, mpi_peers& peers, mpi_scratch& scratch, std::size_t message_bytes) {
        const std::size_t n = peers.size();
        operation_ = operation;
        peers_ = &peers;
        scratch_ = &scratch;
        chain_ = operation.kind == mpi_kind::broadcast;
        const bool blocks_given = operation.kind == mpi_kind::all_gather || operation.kind == mpi_kind::reduce_scatter;
        const std::size_t message = message_bytes / operation.width > 0 ? message_bytes / operation.width : 1;
        cut_ = mpi_cut(blocks_given ? operation.count * n : operation.count, chain_ ? 1 : n, message, operation.width);
        a_block_ = operation.kind == mpi_kind::barrier ? 1 : cut_.messages();
        sends_done_ = sends_begun_ = received_ = receives_begun_ = 0;
        first_step_ = operation.reduces() ? 0 : n - 1;
        sends_ = receives_ = a_block_ * (operation.kind == mpi_kind::all_reduce ? 2 * (n - 1) : n - 1);
        free_ = a_block_;
        if (chain_) start_chain();
        if (operation.reduces()) {
            mpi_scratch::grow(scratch.landing, mpi_window * cut_.message * cut_.width);
            if (keeps_partial()) mpi_scratch::grow(scratch.partial, cut_.block * cut_.width);
        } else if (operation.kind == mpi_kind::all_gather && !operation.in_place && cut_.block > 0) {
            std::byte* const own = operation.out + cut_.offset(peers.rank, 0);
            if (own != operation.in) __builtin_memcpy(own, operation.in, cut_.block * cut_.width);
        }
    }
    /// The second half alone, after something else made the own block of `out` the sum.
    void start_gather(const mpi_operation& operation, mpi_peers& peers, mpi_scratch& scratch,
                      std::size_t message_bytes) {
        mpi_operation gather = operation;
        gather.in_place = true;
        start(gather, peers, scratch, message_bytes);
        first_step_ = peers.size() - 1;
        sends_ = receives_ = a_block_ * (peers.size() - 1);
    }

    /// Goes on as far as it can without waiting; true if anything moved. Nothing that came is taken before `may_take`:
    /// until it is known that the ranks mean the same operation.
    bool advance(bool may_take) {
        bool moved = false;
        for (bool again = true; again; moved |= again) {
            const bool received = receive_some(may_take), sent = send_some();
            again = received || sent;
        }
        return moved;
    }
    bool done() const { return received_ == receives_ && sends_done_ == sends_; }

    void cancel() noexcept { incoming_.cancel(); }
    bool settled() noexcept { return incoming_.settled() && outgoing_.settled(); }
    void forget() noexcept {
        incoming_.forget();
        outgoing_.forget();
    }

private:
    bool reducing(std::size_t step) const { return step + 1 < peers_->size(); }
    std::size_t step(std::size_t m) const { return first_step_ + m / a_block_; }
    std::size_t block_sent(std::size_t m) const {
        return chain_ ? 0 : (2 * peers_->size() + peers_->rank - 1 - step(m)) % peers_->size();
    }
    std::size_t block_received(std::size_t m) const {
        return chain_ ? 0 : (2 * peers_->size() + peers_->rank - 2 - step(m)) % peers_->size();
    }
    /// Partial sums need a place of their own only where neither the input nor the output has room for them.
    bool keeps_partial() const { return operation_.kind == mpi_kind::reduce_scatter && !operation_.in_place; }

    void start_chain() {
        const std::size_t n = peers_->size(), place = (peers_->rank + n - operation_.root) % n;
        sends_ = place + 1 < n ? a_block_ : 0;
        receives_ = place > 0 ? a_block_ : 0;
        free_ = place > 0 ? 0 : a_block_;
    }

    const std::byte* source(std::size_t m) const {
        const std::size_t k = m % a_block_, b = block_sent(m);
        if (chain_) return operation_.out + cut_.offset(0, k);
        if (operation_.reduces() && step(m) == 0) return operation_.in + cut_.offset(b, k);
        if (keeps_partial()) return scratch_->partial.data() + cut_.offset(0, k);
        return operation_.out + cut_.offset(b, k);
    }
    /// Where the sum of a reducing step goes.
    std::byte* sum_place(std::size_t m) const {
        const std::size_t k = m % a_block_;
        if (!keeps_partial()) return operation_.out + cut_.offset(block_received(m), k);
        const bool last = !reducing(step(m) + 1);
        return (last ? operation_.out : scratch_->partial.data()) + cut_.offset(0, k);
    }
    std::byte* landing(std::size_t m) const {
        return scratch_->landing.data() + (m % mpi_window) * cut_.message * cut_.width;
    }

    bool receive_some(bool may_take) {
        bool moved = false;
        while (receives_begun_ < receives_ && !incoming_.full() && may_land(receives_begun_)) {
            const std::size_t m = receives_begun_++, b = block_received(m), k = m % a_block_;
            std::byte* to = !chain_ && reducing(step(m)) ? landing(m) : operation_.out + cut_.offset(b, k);
            peers_->receive(peers_->before(1), to, cut_.bytes(b, k), incoming_.next());
            moved = true;
        }
        while (may_take && received_ < receives_begun_ && may_sum(received_) &&
               incoming_.take(MPI_STATUS_IGNORE, peers_->world_rank())) {
            const std::size_t m = received_++, b = block_received(m), k = m % a_block_;
            if (!chain_ && reducing(step(m)))
                add_elements(operation_.element, landing(m), operation_.in + cut_.offset(b, k), sum_place(m),
                             cut_.count(b, k));
            moved = true;
        }
        return moved;
    }
    /// In an all-reduce a result replaces a partial sum that left n-1 steps ago. It cannot come before that arrived,
    /// but MPI forbids to receive into a buffer of a send that is not complete.
    bool may_land(std::size_t m) const {
        const std::size_t earlier = (peers_->size() - 1) * a_block_;
        return first_step_ != 0 || m < earlier || sends_done_ > m - earlier;
    }
    /// With one block for partial sums, a new one replaces that of the step before: not while that is being sent.
    bool may_sum(std::size_t m) const { return !keeps_partial() || m < a_block_ || sends_done_ > m; }

    bool send_some() {
        bool moved = false;
        while (sends_begun_ < sends_ && !outgoing_.full() && sends_begun_ < free_ + received_) {
            const std::size_t m = sends_begun_++;
            peers_->send(peers_->after(1), source(m), cut_.bytes(block_sent(m), m % a_block_), outgoing_.next());
            moved = true;
        }
        while (sends_done_ < sends_begun_ && outgoing_.take(MPI_STATUS_IGNORE, peers_->world_rank())) {
            ++sends_done_;
            moved = true;
        }
        return moved;
    }

    mpi_operation operation_{};
    mpi_peers* peers_ = nullptr;
    mpi_scratch* scratch_ = nullptr;
    mpi_cut cut_{};
    mpi_requests incoming_{}, outgoing_{};
    std::size_t a_block_ = 0, first_step_ = 0, free_ = 0;
    std::size_t sends_ = 0, sends_begun_ = 0, sends_done_ = 0;
    std::size_t receives_ = 0, receives_begun_ = 0, received_ = 0;
    bool chain_ = false;
};

}  // namespace detail
}  // namespace v0
}  // namespace reshard
