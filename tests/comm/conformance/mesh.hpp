// The groups of a mesh beside the whole: all four at once on several streams, owners that go early, and faults.
#pragma once

#include <memory>
#include <random>

#include "check.hpp"
#include "operations.hpp"

namespace conformance {

/// Ranks in contiguous blocks, blocks in contiguous parts. Who is in which group is told by arithmetic, not by split().
struct mesh_shape {
    static constexpr size_t sets = 4;                       // whole, inner, outer, secondary
    static constexpr size_t groups_in_order[] = {2, 1, 3};  // of issue: the outer one first
    size_t ranks, block, part;

    size_t size(size_t set) const {
        const size_t sizes[sets] = {ranks, block, ranks / block, part};
        return sizes[set];
    }
    /// The rank of the whole that is member `place` of the group of `rank`.
    size_t member(size_t set, size_t rank, size_t place) const {
        const size_t members[sets] = {place, rank / block * block + place, place * block + rank % block,
                                      rank / part * part + place};
        return members[set];
    }
    size_t place(size_t set, size_t rank) const {
        const size_t places[sets] = {rank, rank % block, rank / block, rank % part};
        return places[set];
    }
    std::string described() const { return text(ranks, " ranks in blocks of ", block, " and parts of ", part); }
};

inline std::vector<mesh_shape> mesh_shapes(size_t ranks) {
    std::vector<mesh_shape> all;
    for (size_t block = 1; block <= ranks; ++block) {
        for (size_t part = 1; ranks % block == 0 && part <= block; ++part) {
            if (block % part == 0) all.push_back({ranks, block, part});
        }
    }
    return all;
}

/// The whole and the three groups of one rank; the secondary group is split off from the inner one.
template <class Comm>
struct mesh_groups {
    mesh_groups(const Comm& comm, const mesh_shape& shape)
        : inner(comm.split(comm.rank() / shape.block, comm.rank())),
          outer(comm.split(comm.rank() % shape.block, comm.rank())),
          secondary(inner.view().split(comm.rank() % shape.block / shape.part, 0)),
          views{comm, inner.view(), outer.view(), secondary.view()} {
        for (size_t set = 0; set < mesh_shape::sets; ++set) {
            demand(views[set].size() == shape.size(set) && views[set].rank() == shape.place(set, comm.rank()), "group ",
                   set, " of ", shape.described(), " has rank ", views[set].rank(), " of ", views[set].size());
        }
    }
    void close() {
        secondary.close();
        outer.close();
        inner.close();
    }

    typename Comm::owner inner, outer, secondary;
    std::vector<Comm> views;
};

struct mesh_step {
    virtual ~mesh_step() = default;
    virtual void verify() const = 0;
};

/// One collective with its producer in front of it, and behind it a consumer that spoils the input. All on one stream.
template <class Type>
class typed_mesh_step final : public mesh_step {
public:
    enum kind : size_t { gather, gather_in_place, scatter, scatter_in_place, reduce, reduce_in_place, kinds };

    typed_mesh_step(const mesh_shape& shape, size_t rank, size_t set, size_t what, size_t block, size_t first)
        : shape_(shape), rank_(rank), set_(set), what_(what), block_(block), first_(first) {
        const size_t all = shape.size(set) * block, whole_size = what >= reduce ? all + 1 : all;
        in_.assign(what == gather ? block : whole_size, as<Type>(99));
        if (what == gather || what == reduce) out_.assign(whole_size, as<Type>(98));
        if (what == scatter) out_.assign(block, as<Type>(98));
    }

    template <class Comm, class Stream>
    void issue(const Comm& comm, const Stream& stream) {
        const label name{"step", "mesh"};
        auto device = comm.device();
        device.launch(stream, [this] { produce(); });
        const std::span<const Type> in(in_);
        if (what_ == gather) comm.all_gather(in, whole(out_), stream, name);
        if (what_ == gather_in_place) comm.all_gather_in_place(whole(in_), stream, name);
        if (what_ == scatter) comm.reduce_scatter(in, whole(out_), stream, name);
        if (what_ == scatter_in_place) comm.reduce_scatter_in_place(whole(in_), stream, name);
        if (what_ == reduce) comm.all_reduce(in, whole(out_), stream, name);
        if (what_ == reduce_in_place) comm.all_reduce_in_place(whole(in_), stream, name);
        device.launch(stream, [this] { consume(); });
    }

    void verify() const override {
        const size_t own = shape_.place(set_, rank_) * block_;
        const bool gathers = what_ == gather || what_ == gather_in_place;
        const bool scatters = what_ == scatter || what_ == scatter_in_place;
        const size_t begin = what_ == scatter_in_place ? own : 0, count = scatters ? block_ : seen_.size();
        demand(count > 0 || block_ == 0, "nothing was seen");
        for (size_t i = 0; i < count; ++i) {
            double expected = 0;
            if (gathers) {
                expected = number<Type>(shape_.member(set_, rank_, i / block_), first_ + i % block_);
            } else {
                for (size_t m = 0; m < shape_.size(set_); ++m)
                    expected += number<Type>(shape_.member(set_, rank_, m), first_ + i + (scatters ? own : 0));
            }
            demand(as_double(seen_[begin + i]) == expected, shape_.described(), ": rank ", rank_, ", group ", set_,
                   ", operation ", what_, ", element ", i, " of ", count, " is ", as_double(seen_[begin + i]),
                   ", expected ", expected);
        }
    }

private:
    void produce() {
        const size_t from = what_ == gather_in_place ? shape_.place(set_, rank_) * block_ : 0;
        const size_t count = what_ == gather_in_place ? block_ : in_.size();
        for (size_t i = 0; i < count; ++i) in_[from + i] = as<Type>(number<Type>(rank_, first_ + i));
    }
    void consume() {
        seen_ = out_.empty() ? in_ : out_;
        in_.assign(in_.size(), as<Type>(97));
    }

    mesh_shape shape_;
    size_t rank_, set_, what_, block_, first_;
    std::vector<Type> in_, out_, seen_;
};

/// Random steps, the same on all ranks, each on one of three streams or the caller; host waits that differ by rank.
template <class Comm>
void random_mesh_steps(const std::vector<Comm>& views, const mesh_shape& shape, unsigned seed, int count) {
    const size_t rank = views[0].rank();
    auto device = views[0].device();
    std::mt19937 common(seed), own(seed + 1 + static_cast<unsigned>(rank));
    std::vector<std::unique_ptr<mesh_step>> steps;  // streams end before what they work on
    auto one = device.make_stream("one"), two = device.make_stream("two"), three = device.make_stream("three");
    const auto put = [&](auto element, size_t set, size_t what, size_t block, size_t where) {
        using step = typed_mesh_step<decltype(element)>;
        auto made = std::make_unique<step>(shape, rank, set, what, block, steps.size());
        step& placed = *made;
        steps.push_back(std::move(made));
        if (where == 0) placed.issue(views[set], device.caller());
        if (where >= 1 && where <= 3) placed.issue(views[set], one);
        if (where >= 4 && where <= 6) placed.issue(views[set], two);
        if (where >= 7) placed.issue(views[set], three);
    };
    for (int i = 0; i < count; ++i) {
        const size_t set = common() % mesh_shape::sets, what = common() % typed_mesh_step<float>::kinds;
        const size_t sizes[] = {0, 1, 5, 64, 1001}, block = sizes[common() % 5];
        const size_t where = common() % 10, type = common() % 3;
        if (type == 0) put(double{}, set, what, block, where);
        if (type == 1) put(float{}, set, what, block, where);
        if (type == 2) put(reshard::bf16{}, set, what, block, where);
        const size_t wait = own() % 12;
        if (wait == 0) finish(views[0], one);
        if (wait == 1) finish(views[0], two);
        if (wait == 2) pause_ms(1);
    }
    finish(views[0], one);
    finish(views[0], two);
    finish(views[0], three);
    for (const auto& step : steps) step->verify();
}

template <class Harness>
void groups_of_a_mesh(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        for (const mesh_shape& shape : mesh_shapes(ranks)) {
            harness.run(
                ranks,
                [shape](auto comm) {
                    if constexpr (reshard::Splittable<decltype(comm)>) {
                        mesh_groups groups(comm, shape);
                        const auto seed = static_cast<unsigned>(shape.ranks * 64 + shape.block * 8 + shape.part);
                        random_mesh_steps(groups.views, shape, seed, 60);
                        groups.close();
                    }
                },
                settings{.delays = true});
        }
    }
}

/// An owner may go while views of its group are at work, and after: views live as long as the session.
template <class Harness>
void owners_that_go_early(Harness& harness) {
    const size_t ranks = harness.sizes().back();
    harness.run(
        ranks,
        [ranks](auto comm) {
            using communicator = decltype(comm);
            if constexpr (reshard::Splittable<communicator>) {
                const mesh_shape shape{ranks, ranks % 2 == 0 ? ranks / 2 : ranks, 1};
                std::vector<float> values(1000, 1.0f);
                std::vector<communicator> kept;
                auto stream = comm.device().make_stream("kept");
                for (int time = 0; time < 3; ++time) {
                    auto owner = comm.split(comm.rank() / shape.block, 0);
                    kept.push_back(owner.view());
                    for (int i = 0; i < 5; ++i) kept.back().all_reduce_in_place(whole(values), stream, {"reduce"});
                    // Only some ranks wait before their owner goes: if that were to communicate, the others would not
                    // answer.
                    if (comm.rank() % 2 == 0) finish(comm, stream);
                    owner = typename communicator::owner{};
                    demand(owner.empty(), "an owner that was replaced is not empty");
                }
                finish(comm, stream);
                double expected = 1;
                for (int i = 0; i < 15; ++i) expected *= static_cast<double>(shape.block);
                for (size_t i = 0; i < values.size(); ++i)
                    demand_equal(values[i], expected, "15 sums", i, ranks, values.size());
                for (const communicator& view : kept) gathers<float>(view, 7);
            }
        },
        settings{.delays = true});
}

template <class Comm>
constexpr bool recovers() {
    using control = std::remove_cvref_t<decltype(std::declval<const Comm&>().control())>;
    return reshard::RecoverableChannel<control> && requires(const Comm& comm) { comm.issued(); };
}

/// Puts work of all groups on one stream and waits until the fault comes; the last rank raises it instead, and so
/// nobody's work can end. True if this rank hears of it.
template <class Comm, class Stream>
bool waits_end_by_fault(const std::vector<Comm>& views, std::vector<std::vector<float>>& values, const Stream& stream,
                        const std::string& why) {
    const size_t last = views[0].size() - 1;
    try {
        if (views[0].rank() == last) {
            pause_ms(20);
            views[0].control().raise(why);
        } else {
            for (const size_t set : mesh_shape::groups_in_order)
                views[set].all_gather_in_place(whole(values[set]), stream, {"gather"});
        }
        for (;;) finish(views[0], stream), pause_ms(1);
    } catch (const reshard::peer_error& error) {
        return error.rank() == last && std::string(error.what()).find(why) != std::string::npos;
    }
}

/// A fault of one rank wakes those who wait in groups that it is no member of. Where faults can be cleared, what was
/// queued in all groups then goes on.
template <class Harness>
void faults_in_groups(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        if (ranks < 4 || ranks % 2 != 0 || !Harness::survives_errors) continue;
        harness.run(
            ranks,
            [ranks](auto comm) {
                using communicator = decltype(comm);
                if constexpr (reshard::Splittable<communicator>) {
                    const mesh_shape shape{ranks, ranks / 2, ranks / 4};
                    mesh_groups groups(comm, shape);
                    std::vector<std::vector<float>> values;
                    for (size_t set = 0; set < mesh_shape::sets; ++set) {
                        values.emplace_back(shape.size(set) * 4, -1.0f);
                        for (size_t i = 0; i < 4; ++i)
                            values[set][shape.place(set, comm.rank()) * 4 + i] = static_cast<float>(comm.rank());
                    }
                    auto stream = comm.device().make_stream("groups");
                    for (int time = 0; time < (recovers<communicator>() ? 3 : 1); ++time) {
                        std::vector<std::uint64_t> before(mesh_shape::sets);
                        if constexpr (recovers<communicator>()) {
                            for (size_t set = 0; set < before.size(); ++set) before[set] = groups.views[set].issued();
                        }
                        demand(waits_end_by_fault(groups.views, values, stream, text("trouble ", time)), "rank ",
                               comm.rank(), " did not hear of the fault");
                        if constexpr (recovers<communicator>()) {
                            comm.control().exchange({});
                            comm.control().clear();
                            for (const size_t set : mesh_shape::groups_in_order) {
                                const communicator& view = groups.views[set];
                                if (view.size() > 1 && view.issued() == before[set])
                                    view.all_gather_in_place(whole(values[set]), stream, {"gather"});
                            }
                            finish(comm, stream);
                            for (const size_t set : mesh_shape::groups_in_order) {
                                for (size_t i = 0; i < values[set].size(); ++i) {
                                    const size_t from = shape.member(set, comm.rank(), i / 4);
                                    demand_equal(values[set][i], static_cast<double>(from), "after a fault", i, ranks,
                                                 values[set].size());
                                }
                            }
                            random_mesh_steps(groups.views, shape, 5, 20);
                        }
                    }
                }
            },
            settings{});
    }
}

/// A fault ends split() on those who are in it; after clear() the ranks can split again, and tell each other things.
template <class Harness>
void faults_in_split(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        if (ranks < 2 || !Harness::survives_errors) continue;
        harness.run(
            ranks,
            [ranks](auto comm) {
                using communicator = decltype(comm);
                if constexpr (reshard::Splittable<communicator>) {
                    for (int time = 0; time < (recovers<communicator>() ? 3 : 1); ++time) {
                        bool heard = false;
                        try {
                            if (comm.rank() == ranks - 1) {
                                pause_ms(20);
                                comm.control().raise("no group today");
                            }
                            comm.split(0, 0);
                        } catch (const reshard::peer_error& error) {
                            heard = error.rank() == ranks - 1;
                        }
                        demand(heard, "split() on rank ", comm.rank(), " does not end by a fault");
                        if constexpr (recovers<communicator>()) {
                            const std::byte mine[] = {static_cast<std::byte>(comm.rank() + 10)};
                            const auto all = comm.control().exchange(mine);
                            for (size_t r = 0; r < ranks; ++r)
                                demand(all[r].size() == 1 && all[r][0] == static_cast<std::byte>(r + 10),
                                       "exchange after a fault in split() mixed up rank ", r);
                            comm.control().clear();
                            auto owner = comm.split(comm.rank() % 2, 0);
                            gathers<float>(owner.view(), 9);
                            owner.close();
                        }
                    }
                }
            },
            settings{});
    }
}

}  // namespace conformance
