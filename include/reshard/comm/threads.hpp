// Ranks as threads of one process: collectives pull straight out of the peers' memory, one progress thread a rank.
#pragma once

#include "../core/version.hpp"  // first: it refuses older standards

#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../device/host.hpp"
#include "checks.hpp"
#include "concept.hpp"
#include "threads/command.hpp"
#include "threads/group.hpp"
#include "threads/rank.hpp"
#include "threads/team.hpp"

namespace reshard {
inline namespace v0 {

/// A group of ranks of one process, seen from one of them; used by that rank's thread. Views are valid until
/// run_threads() returns.
template <class DeviceType>
class basic_threads_communicator {
public:
    using device_type = DeviceType;
    using stream_ref = typename device_type::stream_ref;
    class owner;

    basic_threads_communicator(threads::group& group, std::size_t rank, threads::rank_state& self)
        : group_(&group), rank_(rank), self_(&self) {}

    std::size_t rank() const { return rank_; }
    std::size_t size() const { return group_->size(); }
    device_type device() const { return device_type(self_->worker); }
    /// Of the whole team, also for a group that was split off.
    threads_control& control() const { return self_->control; }
    std::string describe() const {
        return text("threads: ", group_->described(), ", ranks of one process, ",
                    self_->worker.mode() == worker_mode::threaded ? "a progress thread each"
                                                                  : "progress inside calls (nothing overlaps)",
                    ", deadline ", seconds_text(self_->worker.deadline_seconds()));
    }
    /// As thread_options::ranks_per_node has it.
    std::vector<std::size_t> nodes() const { return group_->nodes(); }
    /// How many operations this rank has put into the group so far.
    std::uint64_t issued() const { return group_->of(rank_).issued.load(); }
    /// Nothing: sums are made in place, in rank order.
    void prepare(std::size_t /*bytes*/) const {}

    /// Collective; has the deadline of all waits.
    owner split(std::size_t colour, std::size_t key) const;

    template <Transferable Type>
    void all_gather(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref stream,
                    label name = {}) const {
        checks::blocks(operation::all_gather, name, in.size(), out.size(), size());
        issue(operation::all_gather, in.data(), out.data(), in.size(), 0, stream, name);
    }
    template <Transferable Type>
    void all_gather_in_place(std::span<Type> all, stream_ref stream, label name = {}) const {
        checks::in_place(operation::all_gather, name, all.size(), size());
        const std::size_t block = all.size() / size();
        issue(operation::all_gather, all.data() + rank_ * block, all.data(), block, 0, stream, name);
    }
    template <Element Type>
    void reduce_scatter(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref stream,
                        label name = {}) const {
        checks::blocks(operation::reduce_scatter, name, out.size(), in.size(), size());
        issue(operation::reduce_scatter, in.data(), out.data(), out.size(), 0, stream, name);
    }
    template <Element Type>
    void reduce_scatter_in_place(std::span<Type> all, stream_ref stream, label name = {}) const {
        checks::in_place(operation::reduce_scatter, name, all.size(), size());
        const std::size_t block = all.size() / size();
        issue(operation::reduce_scatter, all.data(), all.data() + rank_ * block, block, 0, stream, name);
    }
    template <Element Type>
    void all_reduce(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref stream,
                    label name = {}) const {
        checks::equal(operation::all_reduce, name, in.size(), out.size());
        issue(operation::all_reduce, in.data(), out.data(), in.size(), 0, stream, name);
    }
    template <Element Type>
    void all_reduce_in_place(std::span<Type> all, stream_ref stream, label name = {}) const {
        issue(operation::all_reduce, all.data(), all.data(), all.size(), 0, stream, name);
    }
    template <Transferable Type>
    void broadcast(std::span<Type> all, std::size_t root, stream_ref stream, label name = {}) const {
        checks::root(name, root, size());
        issue(operation::broadcast, all.data(), all.data(), all.size(), root, stream, name);
    }
    void barrier(stream_ref stream, label name = {"barrier"}) const {
        const std::byte* nothing = nullptr;
        issue(operation::barrier, nothing, static_cast<std::byte*>(nullptr), 0, 0, stream, name);
    }

private:
    template <class Type>
    void issue(operation kind, const Type* in, Type* out, std::size_t count, std::size_t root, stream_ref stream,
               label name) const {
        if (size() == 1) return copy(in, out, count, stream);
        threads::sum_kernel sum = nullptr;
        if constexpr (Element<Type>) sum = threads::sum_parts<Type>;
        threads::call mine;
        mine.kind = kind;
        mine.element_bytes = sizeof(Type);
        mine.element = element_name<Type>();
        mine.count = count;
        mine.root = root;
        mine.in = reinterpret_cast<const std::byte*>(in);
        mine.out = reinterpret_cast<std::byte*>(out);
        mine.name = name;
        self_->worker.issue(stream.queue, [&] {
            threads::standing& standing = group_->of(rank_);
            standing.last_what.set(name.what);
            standing.last_unit.set(name.unit);
            return threads::command(*group_, rank_, standing.issued.fetch_add(1) + 1, mine, sum);
        });
    }

    /// A group of one: out of place it copies, in stream order.
    template <class Type>
    void copy(const Type* in, Type* out, std::size_t count, stream_ref stream) const {
        if (count == 0 || in == out) return;
        device().launch(stream, [=] { __builtin_memcpy(out, in, count * sizeof(Type)); });
    }

    threads::group* group_;
    std::size_t rank_;
    threads::rank_state* self_;
};

/// Owns a group that was split off. Destruction is silent; close() is collective and waits for the group's work.
template <class DeviceType>
class basic_threads_communicator<DeviceType>::owner {
public:
    owner() = default;
    owner(owner&& other) noexcept : held_(std::move(other.held_)) { other.held_.clear(); }
    owner& operator=(owner other) noexcept {
        std::swap(held_, other.held_);
        return *this;
    }

    bool empty() const { return held_.empty(); }
    /// Throws state_error where there is no group: after close(), or on a rank that passed no_colour.
    basic_threads_communicator view() const {
        if (!empty()) return held_.front();
        throw state_error("E-COMM-3", "this rank has no group here: it passed no_colour to split(), or the group is "
                                      "closed");
    }
    void close() {
        if (empty()) return;
        held_.front().barrier({}, {"close"});
        held_.clear();
    }

private:
    friend class basic_threads_communicator;
    explicit owner(const basic_threads_communicator& group) : held_{group} {}

    std::vector<basic_threads_communicator> held_;
};

template <class DeviceType>
auto basic_threads_communicator<DeviceType>::split(std::size_t colour, std::size_t key) const -> owner {
    const threads::place_in_group mine = threads::split(*group_, rank_, *self_, colour, key);
    return mine.group == nullptr ? owner() : owner(basic_threads_communicator(*mine.group, mine.rank, *self_));
}

using threads_communicator = basic_threads_communicator<host_device>;
static_assert(Splittable<threads_communicator> && KnowsNodes<threads_communicator> &&
              RecoverableChannel<threads_control>);

/// Runs function(communicator) on `ranks` threads and joins them all. If any failed, throws the first failure that
/// was not caused by a peer's: the others got peer_error from their next call or wait.
template <class Function>
void run_threads(std::size_t ranks, Function&& function, const thread_options& options = {}) {
    if (ranks == 0) throw argument_error("E-COMM-2", "run_threads with 0 ranks: there is at least one");
    threads::team team(ranks, options);
    threads::group_list groups(team);
    threads::run_ranks(team, groups, [&](threads::rank_state& self) {
        function(threads_communicator(groups.whole(), self.rank, self));
    });
}

}  // namespace v0
}  // namespace reshard
