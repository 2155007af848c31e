// Sizes as literals. g++, clang and nvcc lay out empty members in different ways where a type is written carelessly;
// each of them checks the same numbers here, since files of one program may be compiled by two of them. Included after
// all headers of the library.
#pragma once

#include <type_traits>

namespace sizes {

using namespace reshard;

// Sent between ranks, or kept in device memory that kernels of another compiler read.
static_assert(sizeof(bf16) == 2);
static_assert(sizeof(fp16) == 2);
static_assert(sizeof(vote_record) == 32);
static_assert(sizeof(commit_outcome) == 48);
static_assert(sizeof(commit_terms) == 24);
static_assert(sizeof(packet) == 72);
static_assert(sizeof(arena_range) == 16);
static_assert(sizeof(adamw_range) == 56);
static_assert(sizeof(sgd_range) == 56);
static_assert(sizeof(detail::agreement_record) == 64);
static_assert(sizeof(detail::issue) == 24);
static_assert(std::is_trivially_copyable_v<vote_record> && std::is_trivially_copyable_v<commit_outcome>);
static_assert(std::is_trivially_copyable_v<detail::agreement_record> && std::is_trivially_copyable_v<detail::issue>);

// Policies: empty ones must stay empty inside others.
static_assert(sizeof(policy<>) == 1);
static_assert(sizeof(any_sharding) == 3);
static_assert(sizeof(any_topology) == 24);
static_assert(sizeof(group_sizes) == 32);
static_assert(sizeof(group_shape) == 16);
static_assert(sizeof(unit_place) == 16);

// Layouts and handles.
static_assert(sizeof(parameter<float>) == 32);
static_assert(sizeof(dtype_choice) == 2);
static_assert(sizeof(parameter_options) == 40);
static_assert(sizeof(parameter_spec) == 96);
static_assert(sizeof(parameter_place) == 120);
static_assert(sizeof(parameter_info) == 72);
static_assert(sizeof(segment) == 40);
static_assert(sizeof(slice_piece) == 32);
static_assert(sizeof(layout_options) == 24);
static_assert(sizeof(unit_layout) == 88);
static_assert(sizeof(typed_layout<float>) == 88);
static_assert(sizeof(random_draws) == 16);
static_assert(sizeof(random_bits) == 16);

// Orders, slots, plans.
static_assert(sizeof(pass) == 32);
static_assert(sizeof(order_entry) == 12);
static_assert(sizeof(order_cursor) == 16);
static_assert(sizeof(slot_need) == 32);
static_assert(sizeof(slot_options) == 24);
static_assert(sizeof(segment_plan) == 16);
static_assert(sizeof(unit_plan) == 88);
static_assert(sizeof(operation_count) == 16);
static_assert(sizeof(collective_counts) == 48);

// Devices and communicators.
static_assert(sizeof(immediate_device::stream_ref) == 1);
static_assert(sizeof(immediate_device::event) == 1);
static_assert(sizeof(host_memory) == 24);
static_assert(sizeof(host_event) == 16);
static_assert(sizeof(host_device) == 8);
static_assert(sizeof(host_device::stream_ref) == 8);
static_assert(sizeof(host_device::stream) == 8);
static_assert(sizeof(host_thread) == 16);
static_assert(sizeof(label) == 16);
static_assert(sizeof(fault_report) == 40);
static_assert(sizeof(self_communicator) == 16);
static_assert(sizeof(threads_communicator) == 24);
static_assert(sizeof(counted<threads_communicator>) == 40);
static_assert(sizeof(traffic) == 16);

// The engine.
static_assert(sizeof(model_options) == 56);
static_assert(sizeof(unit_options) == 128);
static_assert(sizeof(step_options) == 24);
static_assert(sizeof(commit_options) == 32);
static_assert(sizeof(metric) == 8);
static_assert(sizeof(state_handle) == 8);
static_assert(sizeof(detail::unit_record) == 600);
static_assert(sizeof(detail::update_call) == 16);
static_assert(sizeof(detail::shared_buffer<immediate_device>) == 56);
static_assert(sizeof(detail::shared_buffer<host_device>) == 72);

using model = sharded_model<policy<>, self_communicator>;
static_assert(sizeof(model::unit) == 608);
static_assert(sizeof(model::unit::forward_scope) == 32);
static_assert(sizeof(model::unit::backward_scope) == 32);
static_assert(sizeof(adamw_step) == 104);
static_assert(sizeof(sgd_step) == 80);

}  // namespace sizes
