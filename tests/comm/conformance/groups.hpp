// Groups that are split off.
#pragma once

#include "check.hpp"
#include "operations.hpp"

namespace conformance {

template <class Harness>
void groups_of_one(Harness& harness) {
    harness.run(
        harness.sizes().back(),
        [](auto comm) {
            if constexpr (reshard::Splittable<decltype(comm)>) {
                auto owner = comm.split(comm.rank(), 0);
                auto alone = owner.view();
                demand(alone.size() == 1 && alone.rank() == 0, "a group of one has size ", alone.size());
                gathers<float>(alone, 7);
                scatters<float>(alone, 7);
                reductions<float>(alone, 7);
                broadcasts<float>(alone, 7);
                alone.barrier(alone.device().caller(), {"barrier"});
                std::vector<float> in(3, 1.0f), out(3);
                auto stream = alone.device().make_stream("alone");
                alone.device().launch(stream, [&in] { pause_ms(1), in.assign(3, 2.0f); });
                alone.all_gather(std::span<const float>(in), whole(out), stream);
                finish(alone, stream);
                demand(out[2] == 2.0f, "a group of one copied before the work in front of it");
                owner.close();
            }
        },
        settings{});
}

template <class Harness>
void splits(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(
            ranks,
            [ranks](auto comm) {
                if constexpr (reshard::Splittable<decltype(comm)>) {
                    const size_t rank = comm.rank(), parity = rank % 2, members = (ranks + 1 - parity) / 2;
                    auto owner = comm.split(parity, ranks - rank);  // backwards
                    auto part = owner.view();
                    demand(part.size() == members, "split into ", part.size(), " ranks, expected ", members);
                    demand(part.rank() == members - 1 - rank / 2, "rank ", rank, " became ", part.rank());
                    std::vector<double> order(members);
                    order[part.rank()] = static_cast<double>(rank);
                    part.all_gather_in_place(whole(order), part.device().caller());
                    for (size_t i = 0; i < members; ++i) {
                        demand_equal(order[i], static_cast<double>(2 * (members - 1 - i) + parity), "split", i, ranks,
                                     members);
                    }
                    std::vector<double> small(1, 1.0), large(1, 1.0);
                    auto stream = comm.device().make_stream("both");
                    for (int i = 0; i < 20; ++i) {
                        part.all_reduce_in_place(whole(small), stream);
                        comm.all_reduce_in_place(whole(large), comm.device().caller());
                        finish(part, stream);
                        demand(small[0] == static_cast<double>(members) && large[0] == static_cast<double>(ranks),
                               "groups side by side sum to ", small[0], " and ", large[0]);
                        small[0] = large[0] = 1.0;
                    }
                    auto twins = comm.split(7, 3);  // equal keys: in rank order
                    demand(twins.view().rank() == rank, "equal keys moved rank ", rank);
                    auto some = comm.split(rank == 0 ? reshard::no_colour : 1, rank);
                    demand(some.empty() == (rank == 0), "no_colour on rank 0 left rank ", rank,
                           some.empty() ? " without a group" : " with a group");
                    if (!some.empty()) demand(some.view().size() == ranks - 1, "the others are ", some.view().size());
                    some.close();
                    twins.close();
                    owner.close();
                    demand(owner.empty(), "a closed group is not empty");
                }
            },
            settings{});
    }
}

}  // namespace conformance
