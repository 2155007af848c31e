// A collective among threads as a resumable command: every rank pulls what it needs out of its peers' memory.
#pragma once

#include <string>
#include <vector>

#include "../../device/kernels.hpp"
#include "group.hpp"

namespace reshard {
inline namespace v0 {
namespace threads {

/// out[i] = before[i] + terms[0][i] + ... in this order, before being zeros where it is null. out may be one of the
/// terms, or before: element i is read before it is written.
template <std::size_t Count, class Number, Element Type, class Result>
void add_terms(const Number* before, const Type* const* terms, Result* out, std::size_t length) {
#if defined(__GNUC__) && !defined(__clang__)  // others look for themselves whether out is apart from the terms
#pragma GCC ivdep
#endif
    for (std::size_t i = 0; i < length; ++i) {
        Number sum = before == nullptr ? Number(0) : before[i];
        for (std::size_t k = 0; k < Count; ++k) sum += kernels::rounded<Number>(terms[k][i]);
        out[i] = kernels::rounded<Result>(sum);
    }
}

/// The same for one to four terms.
template <class Number, Element Type, class Result>
void add_few(const Number* before, const Type* const* terms, std::size_t count, Result* out, std::size_t length) {
    if (count == 4) add_terms<4>(before, terms, out, length);
    if (count == 3) add_terms<3>(before, terms, out, length);
    if (count == 2) add_terms<2>(before, terms, out, length);
    if (count == 1) add_terms<1>(before, terms, out, length);
}

/// Sums in rank order, in the arithmetic type of Type. A null part is left out. Four ranks' memory is read side by
/// side: one after another, each pass would be too short for the hardware to read ahead.
template <Element Type>
void sum_parts(const std::vector<const std::byte*>& parts, std::size_t begin, std::size_t count, std::byte* out) {
    using number = arithmetic<Type>;
    constexpr std::size_t chunk = 2048, together = 4;
    number sums[chunk];
    for (const std::size_t end = begin + count; begin < end;) {
        const std::size_t length = end - begin < chunk ? end - begin : chunk;
        const number* before = nullptr;
        const Type* terms[together];
        std::size_t held = 0;
        for (const std::byte* part : parts) {
            if (part == nullptr) continue;
            if (held == together) {  // more to come
                add_few(before, terms, held, sums, length);
                before = sums;
                held = 0;
            }
            terms[held++] = reinterpret_cast<const Type*>(part) + begin;
        }
        if (held > 0) add_few(before, terms, held, reinterpret_cast<Type*>(out) + begin, length);
        begin += length;
    }
}

/// Stages: my turn (the operation before is done), all have arrived, pull, for all_reduce all have summed and pull
/// again, all have pulled. One visit moves at most piece_bytes, so that other streams of the rank get their turn.
class command {
public:
    command(group& whole, std::size_t rank, std::uint64_t number, const call& mine, sum_kernel sum)
        : group_(&whole), sum_(sum), number_(number), rank_(static_cast<std::uint32_t>(rank)), call_(mine) {}
    command(const command&) = default;
    /// Dropped on its way: peers who have come, or come later, must not wait for this rank's part.
    ~command() {
        if (stage_ == stage::turn || stage_ == stage::departure || stage_ == stage::ended) return;
        if (stage_ == stage::arrival || stage_ == stage::pull) next(meeting().summed, stage_);
        next(meeting().finished, stage::ended);
    }

    visit operator()() {
        switch (stage_) {
        case stage::turn:
            return take_turn();
        case stage::arrival:
            return meet();
        case stage::pull:
            return pull() ? pulled() : visit::moved;
        case stage::summed:
            return past_sums();
        case stage::pull_sums:
            return pull_sums() ? next(meeting().finished, stage::departure) : visit::moved;
        case stage::departure:
            return depart();
        case stage::ended:
            break;
        }
        return visit::done;
    }

    std::string late() const { return group_->late_text(call_, number_); }

    /// Before all have arrived the rank withdraws its memory; after, the operation ends without anybody's help.
    bool abandon() {
        if (stage_ == stage::turn) {
            withdrawn_ = true;
        } else if (stage_ == stage::arrival) {
            meeting().withdrawn[rank_].store(true);
            withdrawn_ = withdrawn_ || meeting().arrived.load() < complete();
        }
        if (withdrawn_ || stage_ == stage::ended) return true;
        return (*this)() == visit::done;
    }

private:
    enum class stage : std::uint8_t { turn, arrival, pull, summed, pull_sums, departure, ended };
    static constexpr std::size_t piece_bytes = std::size_t{1} << 20;

    threads::meeting& meeting() const { return group_->at(number_); }
    std::size_t ranks() const { return group_->size(); }
    /// What a count of the meeting is when all ranks have added to it in this use.
    std::uint64_t complete() const { return (number_ + 1) / 2 * ranks(); }

    visit next(std::atomic<std::uint64_t>& count, stage after) {
        position_ = 0;
        stage_ = after;
        if (count.fetch_add(1) + 1 == complete()) group_->ring_members();
        return visit::moved;
    }

    visit take_turn() {
        if (group_->of(rank_).done.load(std::memory_order_acquire) + 1 != number_) return visit::stuck;
        meeting().calls[rank_] = call_;
        meeting().withdrawn[rank_].store(withdrawn_);
        return next(meeting().arrived, stage::arrival);
    }

    visit meet() {
        if (meeting().arrived.load() < complete()) {
            if (!group_->in_vain(number_)) return visit::stuck;
            withdrawn_ = true;
            meeting().withdrawn[rank_].store(true);
            throw timeout_error("E-TIME-3", late());
        }
        try {
            group_->compare(number_);
        } catch (...) {
            stage_ = stage::ended;  // and no rank of the group goes on to touch memory
            throw;
        }
        stage_ = stage::pull;
        return visit::moved;
    }

    visit pulled() {
        if (call_.kind == operation::all_reduce) return next(meeting().summed, stage::summed);
        meeting().summed.fetch_add(1);  // nobody waits for it
        return next(meeting().finished, stage::departure);
    }

    visit past_sums() {
        if (meeting().summed.load() < complete()) return visit::stuck;
        stage_ = stage::pull_sums;
        return visit::moved;
    }

    visit depart() {
        if (meeting().finished.load() < complete()) return visit::stuck;
        stage_ = stage::ended;
        group_->of(rank_).done.store(number_, std::memory_order_release);
        return visit::done;
    }

    /// The first pull; true when there is nothing left to do.
    bool pull() {
        switch (call_.kind) {
        case operation::all_gather:
            return pull_blocks();
        case operation::reduce_scatter:
            return sum_block(rank_ * call_.count, call_.count, call_.out);
        case operation::all_reduce: {
            const auto [begin, count] = part_of(rank_);
            return sum_block(begin, count, call_.out + begin * call_.element_bytes);
        }
        case operation::broadcast:
            return pull_from(call_.root, 0, call_.count, 0);
        case operation::barrier:
            break;
        }
        return true;
    }

    /// The second pull of an all_reduce: the parts that the others have summed.
    bool pull_sums() {
        for (; peer_ < ranks(); ++peer_, position_ = 0) {
            const std::size_t from = (rank_ + peer_) % ranks();
            const auto [begin, count] = part_of(from);
            if (!pull_from(from, begin, count, begin)) return false;
        }
        return true;
    }

    bool pull_blocks() {
        for (; peer_ < ranks(); ++peer_, position_ = 0) {
            const std::size_t from = (rank_ + peer_) % ranks();
            if (!pull_from(from, 0, call_.count, from * call_.count)) return false;
        }
        return true;
    }

    /// The equal parts of an all_reduce, the last ones shorter.
    struct part {
        std::size_t begin, count;
    };
    part part_of(std::size_t rank) const {
        const std::size_t most = (call_.count + ranks() - 1) / ranks();
        const std::size_t begin = rank * most < call_.count ? rank * most : call_.count;
        return {begin, call_.count - begin < most ? call_.count - begin : most};
    }

    /// Copies one piece of `count` elements at `theirs` of a rank's memory to `mine` of out; true when all are here.
    bool pull_from(std::size_t from, std::size_t theirs, std::size_t count, std::size_t mine) {
        const std::size_t bytes = call_.element_bytes, total = count * bytes;
        const call& source = meeting().calls[from];
        const std::byte* in = (call_.kind == operation::all_reduce ? source.out : source.in) + theirs * bytes;
        std::byte* out = call_.out + mine * bytes;
        if (total == 0 || in == out || withdrawn_ || meeting().withdrawn[from].load()) return true;
        const std::size_t length = total - position_ < piece_bytes ? total - position_ : piece_bytes;
        __builtin_memcpy(out + position_, in + position_, length);
        position_ += length;
        return position_ == total;
    }

    /// Adds up one piece of `count` elements from `begin` of all ranks' memory into `out`.
    bool sum_block(std::size_t begin, std::size_t count, std::byte* out) {
        if (count == 0 || withdrawn_) return true;
        std::vector<const std::byte*>& parts = group_->of(rank_).parts;
        for (std::size_t r = 0; r < ranks(); ++r) {
            const std::byte* in = meeting().calls[r].in;
            parts[r] = meeting().withdrawn[r].load() ? nullptr : in + begin * call_.element_bytes;
        }
        const std::size_t most = piece_bytes / call_.element_bytes;
        const std::size_t length = count - position_ < most ? count - position_ : most;
        sum_(parts, position_, length, out);
        position_ += length;
        return position_ == count;
    }

    group* group_;
    sum_kernel sum_;
    std::uint64_t number_;
    std::size_t position_ = 0;  // bytes or elements of the current pull
    std::uint32_t rank_, peer_ = 0;
    stage stage_ = stage::turn;
    bool withdrawn_ = false;
    call call_;
};

}  // namespace threads
}  // namespace v0
}  // namespace reshard
