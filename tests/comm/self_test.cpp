// The communicator of one rank alone, and the one that does nothing.
#include <doctest/doctest.h>

#include <reshard/comm/counted.hpp>
#include <reshard/comm/idle.hpp>
#include <reshard/comm/self.hpp>

#include "conformance.hpp"
#include "support/count.hpp"

using namespace reshard;

namespace {

struct self_harness {
    static constexpr bool survives_errors = true, sums_in_fp32 = true;

    std::vector<std::size_t> sizes() { return {1}; }
    template <class Function>
    void run(std::size_t, const Function& function, const conformance::settings&) {
        function(self_communicator());
    }
};

}  // namespace

TEST_CASE("self: conformance") {
    self_harness harness;
    conformance::run_all(harness);
}

TEST_CASE("self: the control channel keeps the first fault until it is cleared") {
    const self_communicator comm, copy = comm;
    CHECK(comm.control().raised() == nullptr);
    comm.control().raise("first");
    copy.control().raise("second");
    REQUIRE(copy.control().raised() != nullptr);
    CHECK(copy.control().raised()->text == "first");
    const std::byte mine[] = {std::byte{4}, std::byte{2}};
    const auto all = comm.control().exchange(mine);
    REQUIRE(all.size() == 1);
    CHECK(all[0] == std::vector<std::byte>{std::byte{4}, std::byte{2}});
    copy.control().clear();
    CHECK(comm.control().raised() == nullptr);
    CHECK_THROWS_AS(comm.split(no_colour, 0).view(), state_error);
}

TEST_CASE("self: a group of one counts nothing") {
    counter traffic;
    const counted comm(self_communicator(), traffic);
    std::vector<float> values(8);
    comm.all_reduce_in_place(std::span<float>(values), comm.device().caller());
    comm.all_gather_in_place(std::span<float>(values), comm.device().caller());
    CHECK(traffic.of("whole", operation::all_reduce) == (reshard::traffic{}));
    CHECK(traffic.of("whole", operation::all_gather) == (reshard::traffic{}));
}

TEST_CASE("immediate: memory is zeroed, aligned, counted and released") {
    const immediate_device device, copy = device, other;
    {
        auto first = device.allocate(1000);
        CHECK(device.allocated() == 1000);
        CHECK(copy.allocated() == 1000);
        CHECK(other.allocated() == 0);
        CHECK(reinterpret_cast<std::uintptr_t>(first.data()) % 256 == 0);
        for (const std::byte value : first.bytes()) REQUIRE(value == std::byte{0});
        auto second = copy.allocate(24);
        CHECK(device.allocated() == 1024);
        first = std::move(second);
        CHECK(device.allocated() == 24);
        const auto moved = std::move(first);
        CHECK(moved.size() == 24);
        CHECK(first.size() == 0);
        CHECK(device.allocate(0).data() == nullptr);
    }
    CHECK(device.allocated() == 0);
}

TEST_CASE("immediate: memory may outlive its device") {
    host_memory kept;
    {
        const immediate_device device;
        kept = device.allocate(64);
    }
    kept.data()[63] = std::byte{1};
    CHECK(kept.size() == 64);
}

TEST_CASE("idle: any size, nothing written, sizes checked, no allocation") {
    const idle_communicator comm(4, 2);
    CHECK(comm.size() == 4);
    CHECK(comm.rank() == 2);
    std::vector<float> all(8, 3.0f), block(2, 5.0f);
    const auto caller = comm.device().caller();
    const long before = test_support::allocation_count();
    comm.all_gather(std::span<const float>(block), std::span<float>(all), caller);
    comm.reduce_scatter(std::span<const float>(all), std::span<float>(block), caller);
    comm.all_reduce_in_place(std::span<float>(all), caller);
    comm.barrier(caller);
    CHECK(test_support::allocation_count() == before);
    CHECK(all == std::vector<float>(8, 3.0f));
    CHECK(block == std::vector<float>(2, 5.0f));
    CHECK_THROWS_AS(comm.all_gather_in_place(std::span<float>(all.data(), 7), caller), argument_error);
    CHECK_THROWS_AS(comm.broadcast(std::span<float>(all), 4, caller), argument_error);
    CHECK_THROWS_AS(idle_communicator(0), argument_error);
    CHECK_THROWS_AS(idle_communicator(2, 2), argument_error);
}
