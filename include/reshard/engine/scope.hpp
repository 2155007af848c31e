// Scopes: the time during which a unit's parameters (and gradients) are there. RAII, tied to one place in the program.
#pragma once

#include <cstddef>
#include <exception>
#include <span>

#include "enter.hpp"

namespace reshard {
inline namespace v0 {

/// A scope of one unit. Not copyable, not movable; views come from a named scope only and end with it.
///
/// * scope[handle]: the parameter, gathered, shape as declared (row-major), in the handle's type; read only.
/// * scope.gradient(handle): where its gradient goes, in the gradient type. Zero at the first write of an accumulation
///   unless the parameter overwrites; scope.beta(handle) is 0 or 1 accordingly, for kernels that take it.
/// * scope.use_on(stream): a further stream reads or writes; it starts behind what the compute stream has now.
/// * weights_done(), gradients_done(): end a half early; close(): ends both and throws at once what the destructor
///   would keep for the next call.
///
/// Left normally it reshards as the policy says and starts the reduction; nothing blocks. Left by an exception it
/// issues nothing, tells the peers, and the model is unusable until reset().
template <class State, detail::scope_kind... Kinds>
class [[nodiscard]] unit_scope {
    using kind_type = detail::scope_kind;
    static constexpr bool writes = (detail::writes(Kinds) || ...);
    static constexpr bool reads = (detail::reads(Kinds) || ...);

public:
    unit_scope(State& state, detail::unit_record& unit, kind_type kind, std::size_t microbatch)
        : state_(state), unit_(unit), kind_(kind), exceptions_(std::uncaught_exceptions()) {
        detail::enter(state, unit, kind, microbatch);
    }
    unit_scope(const unit_scope&) = delete;
    unit_scope& operator=(const unit_scope&) = delete;
    ~unit_scope() {
        if (!open_) return;
        if (std::uncaught_exceptions() > exceptions_) {
            abandon();
            return;
        }
        try {
            close();
        } catch (...) {
            state_.kept_error = std::current_exception();
        }
    }

    template <class Type>
        requires reads
    std::span<const Type> operator[](const parameter<Type>& handle) const& {
        if (handle.layout != unit_.layout_id || weights_left_) [[unlikely]]
            refuse(handle.layout, weights_left_);
        return {reinterpret_cast<const Type*>(unit_.parameters + handle.byte_offset), handle.count};
    }
    template <class Type>
    std::span<const Type>
    operator[](const parameter<Type>&) const&& = delete;  // name the scope: auto w = unit.forward();

    template <class Type>
        requires writes
    std::span<typename State::gradient_type> gradient(const parameter<Type>& handle) & {
        if (handle.layout != unit_.layout_id || gradients_left_) [[unlikely]]
            refuse(handle.layout, gradients_left_);
        if (handle.gradient_offset == no_gradient) [[unlikely]]
            refuse_frozen(handle.index);
        if (!unit_.overwritten.empty()) unit_.written[handle.index] = true;
        return {reinterpret_cast<typename State::gradient_type*>(unit_.gradients) + handle.gradient_offset,
                handle.count};
    }

    /// What the first write of this scope multiplies the old gradient by: 0 where the parameter overwrites and nothing
    /// was written yet in this accumulation, else 1.
    template <class Type>
        requires writes
    typename State::gradient_type beta(const parameter<Type>& handle) const {
        const bool overwrites = unit_.layout->parameters()[handle.index].write == gradient_write::overwrites;
        return typename State::gradient_type(overwrites && !unit_.written_before[handle.index] ? 0.0f : 1.0f);
    }

    /// Declares a further stream; at most seven per model.
    void use_on(typename State::stream_ref stream) {
        std::size_t number = 0;
        while (number < state_.user_streams.size() && !(state_.user_streams[number] == stream)) ++number;
        if (number == state_.user_streams.size()) {
            if (number + 1 >= detail::max_user_streams) {
                throw argument_error("E-ARGUMENT-2", text("use_on(): more than ", detail::max_user_streams - 1,
                                                          " streams beside the compute stream"));
            }
            state_.user_streams.push_back(stream);
        }
        state_.device.record(state_.joined, state_.compute);
        state_.device.wait(stream, state_.joined);
        streams_ |= 1u << (number + 1);
    }

    void weights_done()
        requires reads
    {
        if (weights_left_) return;
        weights_left_ = true;
        detail::leave_parameters(state_, unit_, kind_, streams_);
    }
    void gradients_done()
        requires writes
    {
        if (gradients_left_) return;
        gradients_left_ = true;
        detail::leave_gradients(state_, unit_, kind_, streams_);
    }
    void close() {
        if (!open_) return;
        open_ = false;
        --unit_.open_scopes;
        --state_.open_scopes;
        if constexpr (reads) weights_done();
        if constexpr (writes) gradients_done();
        detail::prefetch(state_);
    }

private:
    void abandon() noexcept {
        open_ = false;
        --unit_.open_scopes;
        --state_.open_scopes;
        if (state_.leader == state_.rank()) {  // the others only serve gathers: nothing is half done
            if constexpr (reads) detail::leave_parameters(state_, unit_, kind_, streams_);
            return;
        }
        detail::poison_quietly(state_, text("\"", unit_.name, "\" was left by an exception in ", detail::name_of(kind_),
                                            ", step ", state_.step));
    }
    [[noreturn]] void refuse(std::uint32_t layout, bool left) const {
        if (layout == unit_.layout_id && left) {
            throw state_error("E-STATE-12", text("\"", unit_.name,
                                                 "\": weights_done() or gradients_done() has ended this half of the "
                                                 "scope; its memory may hold another unit"));
        }
        detail::throw_foreign_handle(unit_, layout);
    }
    [[noreturn]] void refuse_frozen(std::uint32_t index) const {
        throw argument_error("E-ARGUMENT-4",
                             text("\"", unit_.name, "\": parameter ", unit_.layout->parameters()[index].name,
                                  " is not trainable and has no gradient"));
    }

    State& state_;
    detail::unit_record& unit_;
    kind_type kind_;
    int exceptions_;
    std::uint32_t streams_ = 1;
    bool open_ = true, weights_left_ = false, gradients_left_ = false;
};

/// A unit of a model; made by add_unit(), lives as long as the model.
template <class State>
class model_unit {
    using kind = detail::scope_kind;

public:
    using forward_scope = unit_scope<State, kind::forward, kind::evaluation, kind::recompute, kind::backward_input>;
    using backward_scope = unit_scope<State, kind::backward>;
    using weight_scope = unit_scope<State, kind::backward_weight>;

    explicit model_unit(State& state) : state_(state) {}
    model_unit(const model_unit&) = delete;
    model_unit& operator=(const model_unit&) = delete;

    const std::string& name() const { return record_.name; }
    const typed_layout<typename State::compute_type>& layout() const {
        return state_.layouts[record_.layout_id % detail::layouts_of_a_model];
    }

    /// Training: opens a forward that a backward will close. Inside evaluate(): reads only, needs no backward.
    forward_scope forward(std::size_t microbatch = any_microbatch) {
        return {state_, record_, state_.evaluating ? kind::evaluation : kind::forward, microbatch};
    }
    backward_scope backward(std::size_t microbatch = any_microbatch) {
        return {state_, record_, kind::backward, microbatch};
    }
    /// The two halves of a split backward: parameters without gradients, later gradients without parameters.
    forward_scope backward_input(std::size_t microbatch = any_microbatch) {
        return {state_, record_, kind::backward_input, microbatch};
    }
    weight_scope backward_weight(std::size_t microbatch = any_microbatch) {
        return {state_, record_, kind::backward_weight, microbatch};
    }
    /// Parameters again, inside a backward pass, to recompute activations; kept until the unit's backward.
    forward_scope recompute() { return {state_, record_, kind::recompute, any_microbatch}; }

    /// Callback forms: the scope is handed to `body`, and whatever goes wrong is thrown from here.
    template <class Body>
        requires requires(Body body, forward_scope& scope) { body(scope); }
    void forward(Body&& body, std::size_t microbatch = any_microbatch) {
        auto scope = forward(microbatch);
        body(scope);
        scope.close();
    }
    template <class Body>
        requires requires(Body body, backward_scope& scope) { body(scope); }
    void backward(Body&& body, std::size_t microbatch = any_microbatch) {
        auto scope = backward(microbatch);
        body(scope);
        scope.close();
    }

    /// The parameter where it rests whole on every rank (no_shard, shard_optimizer, shard_gradients, or one rank): the
    /// same address for the whole run. The compute stream waits for a refresh under way.
    template <class Type>
    std::span<const Type> resting(const parameter<Type>& handle) {
        if (record_.source == view_source::gathered || state_.at == detail::stage::declaring) {
            throw state_error("E-STATE-13", text("\"", record_.name,
                                                 "\": resting() needs parameters that rest whole and "
                                                 "a built model; under ",
                                                 state_.policy.describe(), " use forward() and backward() scopes"));
        }
        if (handle.layout != record_.layout_id) {
            detail::throw_foreign_handle(record_, handle.layout);
        }
        detail::ensure_parameters(state_, record_);
        detail::await_parameters(state_, record_, state_.compute);
        return {reinterpret_cast<const Type*>(record_.parameters + handle.byte_offset), handle.count};
    }

    detail::unit_record& record() { return record_; }

private:
    State& state_;
    detail::unit_record record_;
};

}  // namespace v0
}  // namespace reshard
