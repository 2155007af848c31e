// The communicator over MPI: a view of one group of a session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../device/host.hpp"
#include "../checks.hpp"
#include "../concept.hpp"
#include "world.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// An operation as the worker sees it.
struct mpi_command {
    mpi_group* group;
    mpi_operation operation;
    bool left = false;

    visit operator()() {
        if (left) return visit::done;
        const auto state = group->visit(operation);
        return state == mpi_group::state::done    ? visit::done
               : state == mpi_group::state::moved ? visit::moved
                                                  : visit::stuck;
    }
    std::string late() const { return group->late(operation); }
    bool abandon() { return left = group->abandon(operation); }
};

}  // namespace detail

/// A group of MPI ranks whose buffers lie in host memory. The view is valid while its session lives.
///
/// All-gather and float or double sums go around a ring of MPI_Isend and MPI_Irecv, cut into messages of at most
/// mpi_options::message_bytes; bf16 and fp16 are exchanged pairwise, summed in rank order in fp32 and rounded once.
/// All-reduce is a reduce-scatter and an all-gather, so its result has the same bits on all ranks.
/// Each operation also sends 96 bytes to the right neighbour that say what it is: ranks in different operations
/// (number, kind, count, type, root) get a `communication_error` naming both, and every rank of the session a fault.
/// Not noticed: equal operations on different buffers, and a rank that issues nothing at all (until the deadline).
class mpi_communicator {
public:
    using device_type = host_device;
    using stream_ref = device_type::stream_ref;

    /// Owns a split-off group; empty for a rank that passed no_colour. The destructor sends nothing.
    class owner {
    public:
        owner() = default;
        owner(owner&& other) noexcept : world_(std::exchange(other.world_, nullptr)), group_(other.group_) {}
        owner& operator=(owner&& other) noexcept {
            std::swap(world_, other.world_);
            std::swap(group_, other.group_);
            return *this;
        }

        bool empty() const { return world_ == nullptr; }
        mpi_communicator view() const {
            if (empty()) throw state_error("E-COMM-3", "this rank passed no_colour to split(), or closed the group");
            return mpi_communicator(*world_, *group_);
        }
        /// Collective: waits until all ranks of the group are here, then frees its scratch.
        void close() {
            if (empty()) return;
            view().barrier(stream_ref{}, {"close", "group"});
            group_->release();
            world_ = nullptr;
        }

    private:
        friend class mpi_communicator;
        owner(detail::mpi_world& world, detail::mpi_group& group) : world_(&world), group_(&group) {}
        detail::mpi_world* world_ = nullptr;
        detail::mpi_group* group_ = nullptr;
    };

    mpi_communicator(detail::mpi_world& world, detail::mpi_group& group) : world_(&world), group_(&group) {}

    std::size_t rank() const { return group_->peers.rank; }
    std::size_t size() const { return group_->peers.size(); }
    device_type device() const { return device_type(world_->worker); }
    mpi_control& control() const { return world_->control; }
    std::string describe() const { return text("mpi: ", size(), " ranks; ", world_->agreement.why); }

    /// By the names that MPI gives the machines, exchanged when the session started.
    std::vector<std::size_t> nodes() const {
        std::vector<std::size_t> marks(size());
        for (std::size_t r = 0; r < size(); ++r) marks[r] = world_->node_of(group_->peers.members[r]);
        return numbered_nodes(std::move(marks));
    }

    /// Waits for operations of this group that are under way. Without it, scratch grows with the first operations:
    /// about four messages, and a block for a reduce-scatter of floats that is not in place.
    void prepare(std::size_t bytes) const {
        if (size() == 1) return;
        world_->worker.issue(nullptr, [&] { return idle{group_}; });
        group_->prepare(bytes);
    }
    std::size_t scratch_bytes() const { return group_->scratch_bytes(); }
    /// Bytes of elements that this rank has handed to MPI_Isend for this group; and bytes that say what they are.
    std::size_t sent_bytes() const { return static_cast<std::size_t>(group_->peers.sent.load()); }
    std::size_t sent_header_bytes() const { return static_cast<std::size_t>(group_->peers.sent_headers.load()); }

    template <Transferable Type>
    void all_gather(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref stream,
                    label name = {}) const {
        checks::blocks(operation::all_gather, name, in.size(), out.size(), size());
        issue<Type>(detail::mpi_kind::all_gather, in.data(), out.data(), in.size(), stream, name);
    }
    template <Transferable Type>
    void all_gather_in_place(std::span<Type> all, stream_ref stream, label name = {}) const {
        checks::in_place(operation::all_gather, name, all.size(), size());
        issue<Type>(detail::mpi_kind::all_gather, all.data(), all.data(), all.size() / size(), stream, name, true);
    }
    template <Element Type>
    void reduce_scatter(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref stream,
                        label name = {}) const {
        checks::blocks(operation::reduce_scatter, name, out.size(), in.size(), size());
        issue<Type>(detail::mpi_kind::reduce_scatter, in.data(), out.data(), out.size(), stream, name);
    }
    template <Element Type>
    void reduce_scatter_in_place(std::span<Type> all, stream_ref stream, label name = {}) const {
        checks::in_place(operation::reduce_scatter, name, all.size(), size());
        issue<Type>(detail::mpi_kind::reduce_scatter, all.data(), all.data(), all.size() / size(), stream, name, true);
    }
    template <Element Type>
    void all_reduce(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref stream,
                    label name = {}) const {
        checks::equal(operation::all_reduce, name, in.size(), out.size());
        issue<Type>(detail::mpi_kind::all_reduce, in.data(), out.data(), out.size(), stream, name);
    }
    template <Element Type>
    void all_reduce_in_place(std::span<Type> all, stream_ref stream, label name = {}) const {
        issue<Type>(detail::mpi_kind::all_reduce, all.data(), all.data(), all.size(), stream, name, true);
    }
    template <Transferable Type>
    void broadcast(std::span<Type> all, std::size_t root, stream_ref stream, label name = {}) const {
        checks::root(name, root, size());
        issue<Type>(detail::mpi_kind::broadcast, all.data(), all.data(), all.size(), stream, name, true,
                    static_cast<std::uint32_t>(root));
    }
    void barrier(stream_ref stream, label name = {}) const {
        issue<std::byte>(detail::mpi_kind::barrier, nullptr, nullptr, 0, stream, name);
    }
    /// Block q of `in` goes to rank q; block q of `out` comes from it. The spans must not overlap.
    template <Transferable Type>
    void all_to_all(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref stream,
                    label name = {}) const {
        checks::equal(operation::all_gather, name, in.size(), out.size());
        checks::in_place(operation::all_gather, name, out.size(), size());
        issue<Type>(detail::mpi_kind::all_to_all, in.data(), out.data(), out.size() / size(), stream, name);
    }

    /// Collective on the calling thread. Sends three numbers a rank through this group; MPI makes no communicator,
    /// so the deadline holds and no thread calls MPI that did not before.
    owner split(std::size_t colour, std::size_t key) const;

private:
    /// Done when nothing of the group is under way.
    struct idle {
        detail::mpi_group* group;
        visit operator()() const { return group->finished.load() == group->issued.load() ? visit::done : visit::stuck; }
    };

    template <class Type>
    void issue(detail::mpi_kind kind, const Type* in, Type* out, std::size_t count, stream_ref stream, label name,
               bool in_place = false, std::uint32_t root = 0) const {
        if (size() == 1) {
            if (in == out || in_place || count == 0) return;
            const std::size_t size_in_bytes = count * sizeof(Type);
            return device().launch(stream, [=] { __builtin_memcpy(out, in, size_in_bytes); });
        }
        detail::mpi_operation made;
        made.in = reinterpret_cast<const std::byte*>(in);
        made.out = reinterpret_cast<std::byte*>(out);
        made.count = count;
        made.name = name;
        made.width = sizeof(Type);
        made.root = root;
        made.kind = kind;
        made.element = detail::mpi_element_of<Type>();
        made.in_place = in_place;
        enqueue(made, stream);
    }
    /// Only the session's worker may call MPI: a stream that another worker serves waits for a stream of the group.
    void enqueue(detail::mpi_operation operation, stream_ref stream) const {
        const auto numbered = [&] {
            operation.number = group_->issued.load(std::memory_order_relaxed) + 1;
            group_->issued.store(operation.number, std::memory_order_release);
            return detail::mpi_command{group_, operation};
        };
        host_worker& worker = world_->worker;
        if (stream.queue == nullptr || &stream.queue->worker() == &worker) return worker.issue(stream.queue, numbered);
        if (group_->guest == nullptr) group_->guest = &worker.add_stream("guest");
        const stream_ref own{group_->guest};
        host_event point;
        device().record(point, stream);
        device().wait(own, point);
        worker.issue(own.queue, numbered);
        device().record(point, own);
        device().wait(stream, point);
    }

    detail::mpi_world* world_;
    detail::mpi_group* group_;
};

inline mpi_communicator::owner mpi_communicator::split(std::size_t colour, std::size_t key) const {
    struct entry {
        std::uint64_t colour, key;
        std::int64_t tag;
    };
    std::vector<entry> all(size());
    all[rank()] = {colour, key, world_->next_tag};
    all_gather_in_place(std::as_writable_bytes(std::span(all)), stream_ref{}, {"split", "group"});

    // Group number c of this split takes tag `tag` + c, c being how many smaller colours there are.
    std::int64_t tag = 0, groups = 0, smaller = 0;
    for (std::size_t other = 0; other < all.size(); ++other) {
        if (tag < all[other].tag) tag = all[other].tag;
        bool first = all[other].colour != no_colour;
        for (std::size_t before = 0; before < other; ++before) first &= all[before].colour != all[other].colour;
        if (!first) continue;
        ++groups;
        if (all[other].colour < colour) ++smaller;
    }
    if (tag + groups > world_->comms.last_tag())
        throw communication_error("E-MPI-4", text("split: MPI has ", world_->comms.last_tag(),
                                                  " tags and each group takes one for good; make groups once"));
    world_->next_tag = static_cast<int>(tag + groups);
    if (colour == no_colour) return {};

    const auto before = [&](std::size_t left, std::size_t right) {
        return all[left].key != all[right].key ? all[left].key < all[right].key : left < right;
    };
    std::vector<int> members(size());
    std::size_t count = 0, place = 0;
    for (std::size_t one = 0; one < all.size(); ++one) {
        if (all[one].colour != colour) continue;
        std::size_t at = 0;
        for (std::size_t other = 0; other < all.size(); ++other)
            if (all[other].colour == colour && before(other, one)) ++at;
        members[at] = group_->peers.members[one];
        if (one == rank()) place = at;
        ++count;
    }
    members.resize(count);
    return owner(*world_, world_->add_group(members, place, static_cast<int>(tag + smaller)));
}

static_assert(Splittable<mpi_communicator> && AllToAll<mpi_communicator> && CountsTraffic<mpi_communicator> &&
              KnowsNodes<mpi_communicator>);

}  // namespace v0
}  // namespace reshard
