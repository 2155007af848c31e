// What a rank owns: slices of parameters with their masters, gradients and optimizer states; initial values.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../layout/slices.hpp"
#include "build.hpp"

namespace reshard {
inline namespace v0 {

/// A parameter as initial values and loaders see it.
struct parameter_info {
    std::string_view unit;
    std::string_view name;
    std::span<const std::size_t> shape;  // row-major
    std::size_t unit_index = 0;          // in the order of add_unit()
    std::size_t index = 0;               // in the unit's layout
    std::size_t count = 0;               // elements
};

/// A run of elements of one parameter that this rank owns, and where its numbers lie in the arenas (elements).
/// Pointers are device memory; gradients and states are null for parameters that are not trainable.
template <class State>
struct owned_slice {
    parameter_info parameter;
    std::string_view group;
    std::size_t global_offset = 0;  // in the parameter
    std::size_t count = 0;
    std::size_t arena_offset = 0;
    typename State::master_type* master = nullptr;
    const typename State::accumulate_type* gradient = nullptr;  // final after the step's last reduction
};

/// Initial values from a generator that runs through whole parameters, one after another; every rank runs it and keeps
/// what it owns. `fill(info, values)` gets all parameters in the order of add_unit().
template <class Fill>
struct by_whole_parameter {
    Fill fill;
};
template <class Fill>
by_whole_parameter(Fill) -> by_whole_parameter<Fill>;

namespace detail {

inline parameter_info info_of(const unit_record& unit, std::size_t index) {
    const parameter_place& place = unit.layout->parameters()[index];
    return {unit.name, place.name, place.shape, unit.index, index, place.count};
}

/// Calls visit(unit, parameter index, offset in the parameter, arena offset, count, trainable) for all that is owned.
template <class State, class Visit>
void for_each_owned(State& state, Visit&& visit) {
    for (unit_record* unit : state.units) {
        for (std::size_t k = 0; k < unit->owned.size(); ++k) {
            const segment& part = unit->layout->segments()[k];
            for (const slice_piece& piece : pieces_of_slice(*unit->layout, k, unit->part.parts, unit->part.number)) {
                visit(*unit, piece.parameter, piece.offset_in_parameter, unit->owned[k] + piece.offset_in_slice,
                      piece.count, part.trainable);
            }
        }
    }
}

template <class State>
std::vector<owned_slice<State>> list_owned(State& state) {
    std::vector<owned_slice<State>> found;
    auto* masters = reinterpret_cast<typename State::master_type*>(state.masters.data());
    const auto* gradients = reinterpret_cast<const typename State::accumulate_type*>(state.gradients.data());
    for_each_owned(state, [&](const unit_record& unit, std::size_t index, std::size_t offset, std::size_t at,
                              std::size_t count, bool trainable) {
        found.push_back({info_of(unit, index), unit.layout->parameters()[index].group, offset, count, at, masters + at,
                         trainable ? gradients + at : nullptr});
    });
    return found;
}

/// Builds the model if needed; the compute stream is behind every reduction.
template <class State>
std::span<typename State::accumulate_type> final_gradients(State& state, const char* call) {
    require_usable(state);
    if (state.at == stage::in_step && !step_is_through(state)) {
        throw state_error("E-STATE-16",
                          text(call, " in step ", state.step, " before its last backward: they are not final"));
    }
    if (state.at == stage::declaring) build(state);
    join_step(state);
    return {reinterpret_cast<typename State::accumulate_type*>(state.gradients.data()), state.trainable};
}

template <class State>
void store_masters(State& state, std::size_t at, std::span<const typename State::master_type> values) {
    auto* masters = reinterpret_cast<typename State::master_type*>(state.masters.data());
    state.device.upload(reinterpret_cast<std::byte*>(masters + at), reinterpret_cast<const std::byte*>(values.data()),
                        values.size_bytes());
}

template <class State, class Fill>
void fill_masters(State& state, const by_whole_parameter<Fill>& whole) {
    std::vector<std::vector<slice_piece>> pieces;
    for (unit_record* unit : state.units) {
        pieces.clear();
        for (std::size_t k = 0; k < unit->owned.size(); ++k) {
            pieces.push_back(pieces_of_slice(*unit->layout, k, unit->part.parts, unit->part.number));
        }
        for (std::size_t index = 0; index < unit->layout->parameters().size(); ++index) {
            std::vector<typename State::master_type> values(unit->layout->parameters()[index].count);
            whole.fill(info_of(*unit, index), std::span(values));
            for (std::size_t k = 0; k < pieces.size(); ++k) {
                for (const slice_piece& piece : pieces[k]) {
                    if (piece.parameter != index) continue;
                    store_masters<State>(state, unit->owned[k] + piece.offset_in_slice,
                                         std::span(values).subspan(piece.offset_in_parameter, piece.count));
                }
            }
        }
    }
}

template <class State, class Fill>
void fill_masters(State& state, Fill&& by_range) {
    std::vector<typename State::master_type> values;
    for_each_owned(state, [&](const unit_record& unit, std::size_t index, std::size_t offset, std::size_t at,
                              std::size_t count, bool) {
        values.assign(count, typename State::master_type{});
        by_range(info_of(unit, index), offset, std::span(values));
        store_masters<State>(state, at, values);
    });
}

}  // namespace detail

}  // namespace v0
}  // namespace reshard
