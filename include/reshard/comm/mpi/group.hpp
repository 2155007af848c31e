// One group of ranks on this rank: runs its operations one at a time in issue order, and checks each against the left
// neighbour's.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "../../core/error.hpp"
#include "operation.hpp"
#include "pairwise.hpp"
#include "peers.hpp"
#include "ring.hpp"

namespace reshard {
inline namespace v0 {

/// The order in which float and double sums are taken under MPI: `ring` (each block starts at another rank; fastest)
/// or `rank_order` (as the threads backend sums, to the bit; about 1.7 times the time on a flat network).
/// bf16 and fp16 are always summed in rank order in fp32 and rounded once.
enum class mpi_sums : std::uint8_t { ring, rank_order };

class mpi_control;
class host_stream;

namespace detail {

/// Counters may be read by any thread; everything else belongs to the thread that makes MPI calls.
class mpi_group {
public:
    enum class state : std::uint8_t { stuck, moved, done };

    mpi_peers peers{};
    std::atomic<std::uint64_t> issued{0}, finished{0};
    const mpi_control* control = nullptr;
    bool whole = false;            // all ranks of the session
    mpi_group* other = nullptr;    // the session's list of groups
    host_stream* guest = nullptr;  // for operations on streams that another worker serves

    mpi_group(std::size_t message_bytes, mpi_sums sums) : message_bytes_(message_bytes), sums_(sums) {}

    /// Goes on with `operation` as far as possible without waiting. Throws `communication_error` when the left
    /// neighbour's operation is another one or when MPI fails.
    state visit(const mpi_operation& operation) {
        if (operation.number != finished.load(std::memory_order_relaxed) + 1) return state::stuck;  // not its turn
        if (abandoned_at_ >= 0)
            throw communication_error("E-COMM-4", text("rank ", peers.world_rank(), " left ", mine_.described(),
                                                       " unfinished after an error: its group cannot be used again"));
        try {
            const bool moved = advance(operation);
            if (!ended()) return moved ? state::moved : state::stuck;
        } catch (...) {
            while (!abandon(operation)) sched_yield();
            throw;
        }
        phase_ = phase::idle;
        finished.store(operation.number, std::memory_order_release);
        return state::done;
    }

    /// The text of a timeout in `operation`.
    std::string late(const mpi_operation& operation) const;  // in control.hpp

    /// The operation under way, or the last one; "" before the first.
    bool under_way() const { return phase_ != phase::idle; }
    std::string last() const { return mine_.number == 0 ? std::string{} : mine_.described(); }
    /// "whole group of 4"
    std::string described() const {
        if (whole) return text("whole group of ", peers.size());
        return text("group of ", peers.size(), " (ranks ", joined(peers.members), ")");
    }

    /// Room for operations of up to `bytes`; only while no operation is under way.
    void prepare(std::size_t bytes) {
        const std::size_t n = peers.size();
        std::size_t landing = mpi_window * message_bytes_;
        if (landing < mpi_pairwise::landing_bytes(n, message_bytes_, 2))
            landing = mpi_pairwise::landing_bytes(n, message_bytes_, 2);
        mpi_scratch::grow(scratch_.landing, landing);
        mpi_scratch::grow(scratch_.partial, bytes / n + 8);  // a block, and one element more where n does not divide
        pairwise_.prepare(n);
    }
    std::size_t scratch_bytes() const { return scratch_.landing.size() + scratch_.partial.size(); }
    void release() { scratch_ = mpi_scratch{}; }

    /// For the way out, asked again until true: cancels receives of `operation`. True when MPI is done with its
    /// memory, or when peers have not taken for a second what was sent to them: then it is let go of. No operation of
    /// this group can follow.
    bool abandon(const mpi_operation& operation) noexcept {
        if (phase_ == phase::idle || operation.number != mine_.number) return true;
        if (abandoned_at_ < 0) {
            abandoned_at_ = MPI_Wtime();
            headers_in_.cancel();
            pairwise_.cancel();
            ring_.cancel();
        }
        const bool settled = headers_in_.settled() && headers_out_.settled() && pairwise_.settled() && ring_.settled();
        if (!settled && MPI_Wtime() < abandoned_at_ + 1) return false;
        headers_in_.forget();
        headers_out_.forget();
        pairwise_.forget();
        ring_.forget();
        phase_ = phase::idle;
        return true;
    }

private:
    enum class phase : std::uint8_t { idle, pairwise, ring };

    bool pairwise(const mpi_operation& operation) const {
        const bool narrow = operation.element == mpi_element::bf16 || operation.element == mpi_element::fp16;
        return operation.kind == mpi_kind::all_to_all ||
               (operation.reduces() && (narrow || sums_ == mpi_sums::rank_order));
    }
    void start(const mpi_operation& operation) {
        mine_ = mpi_header(operation);
        checked_ = false;
        auto* place = reinterpret_cast<std::byte*>(&theirs_);
        peers.receive(peers.before(1), place, sizeof theirs_, headers_in_.next());
        peers.send(peers.after(1), reinterpret_cast<const std::byte*>(&mine_), sizeof mine_, headers_out_.next());
        peers.sent.fetch_sub(sizeof mine_, std::memory_order_relaxed);
        peers.sent_headers.fetch_add(sizeof mine_, std::memory_order_relaxed);
        if (pairwise(operation)) {
            pairwise_.start(operation, peers, scratch_, message_bytes_);
            phase_ = phase::pairwise;
        } else {
            ring_.start(operation, peers, scratch_, message_bytes_);
            phase_ = phase::ring;
        }
    }
    bool advance(const mpi_operation& operation) {
        bool moved = phase_ == phase::idle;
        if (moved) start(operation);
        if (!checked_ && headers_in_.take(MPI_STATUS_IGNORE, peers.world_rank())) {
            check();
            moved = true;
        }
        moved |= headers_out_.take(MPI_STATUS_IGNORE, peers.world_rank());
        moved |= phase_ == phase::pairwise ? pairwise_.advance(checked_) : ring_.advance(checked_);
        if (phase_ == phase::pairwise && pairwise_.done() && operation.kind == mpi_kind::all_reduce) {
            ring_.start_gather(operation, peers, scratch_, message_bytes_);
            phase_ = phase::ring;
            ring_.advance(checked_);
            moved = true;
        }
        return moved;
    }
    bool ended() const {
        return checked_ && headers_out_.empty() && (phase_ == phase::pairwise ? pairwise_.done() : ring_.done());
    }
    void check() {
        checked_ = true;
        if (mine_.fits(theirs_)) return;
        throw communication_error(
            "E-COMM-1",
            text("operation number ", mine_.number, " of the ", described(), " does not match: rank ",
                 peers.world_rank(), " calls ", mine_.described(), ", rank ", peers.members[peers.before(1)], " calls ",
                 theirs_.described(),
                 theirs_.number == mine_.number ? std::string{} : text(" as its number ", theirs_.number),
                 ". All ranks of a group must issue the same operations, in one order and with equal counts. "
                 "Does some rank skip a call, run it twice, or see another size?"));
    }

    std::size_t message_bytes_;
    mpi_sums sums_;
    mpi_scratch scratch_{};
    mpi_ring ring_{};
    mpi_pairwise pairwise_{};
    mpi_header mine_{}, theirs_{};
    mpi_requests headers_in_{}, headers_out_{};
    phase phase_ = phase::idle;
    bool checked_ = false;
    double abandoned_at_ = -1;
};

}  // namespace detail
}  // namespace v0
}  // namespace reshard
