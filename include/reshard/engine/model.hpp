// The sharded model: what a trainer talks to.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../policy/policy.hpp"
#include "change.hpp"
#include "declare.hpp"
#include "owned.hpp"
#include "recovery.hpp"
#include "report.hpp"
#include "serve.hpp"

namespace reshard {
inline namespace v0 {

/// A model whose parameters, gradients and optimizer state rest as `Policy` says over the ranks of a communicator.
///
/// Units, states, metrics and optimizers are declared first. The first initialize(), begin_step() or evaluate() builds:
/// ranks compare what they were started with, then all memory is allocated; declarations after that throw. Every call
/// but those on owned slices is made by all ranks in the same order. Not copyable, not movable: units and optimizers
/// refer to it. The destructor does not communicate; it waits for this rank's own work.
template <class Policy, class World>
    requires Communicator<World>
class sharded_model : public model_declarations<Policy, World> {
    using declarations = model_declarations<Policy, World>;
    using State = typename declarations::State;
    using declarations::state_;

public:
    using state_type = State;
    using unit = typename declarations::unit;
    using compute_type = typename State::compute_type;
    using gradient_type = typename State::gradient_type;
    using master_type = typename State::master_type;
    using accumulate_type = typename State::accumulate_type;
    using moment_type = typename State::moment_type;
    using device_type = typename State::device_type;
    using stream_ref = typename State::stream_ref;
    using layout_type = typename declarations::layout_type;

    /// The trainer computes on its own thread (host) or on `compute`. Throws topology_error if the policy's groups do
    /// not fit the world.
    explicit sharded_model(World world, model_options options = {}, Policy policy = {})
        : sharded_model(world, options, policy, world.device().caller()) {}
    sharded_model(World world, model_options options, Policy policy, stream_ref compute)
        : declarations(world, policy, options, compute) {
        state_.shape = detail::resolve_shape(policy, world);
        const slot_options& slots = options.slots;
        if (slots.max_open == 0 || slots.recompute_segment == 0) {
            throw argument_error("E-ARGUMENT-5",
                                 text("model_options.slots: max_open ", slots.max_open, " and recompute_segment ",
                                      slots.recompute_segment, " must be at least 1"));
        }
    }
    sharded_model(const sharded_model&) = delete;
    sharded_model& operator=(const sharded_model&) = delete;
    /// Ended by an exception, it tells the peers, who may be waiting for this rank.
    ~sharded_model() {
        if (std::uncaught_exceptions() > exceptions_ && !state_.poisoned) {
            detail::poison_quietly(state_, "an exception ended its model");
        }
    }

    // ------------------------------------------------------------------------------------------------- weights
    /// Sets what this rank owns. `init(parameter_info, offset, span of master_type)` fills elements [offset, offset +
    /// size) of a parameter (zero before) and must depend on nothing but these and a seed; or by_whole_parameter{fill}.
    template <class Init>
    void initialize(const Init& init) {
        auto writing = write_weights();
        detail::synchronize_compute(state_);  // the host writes, not a stream
        detail::fill_masters(state_, init);
        writing.close();
        detail::refresh_resting(state_, true);
        detail::predict_refreshes(state_, state_.predicted.setup);
    }
    write_scope<State> write_weights() { return write_scope<State>(state_); }
    /// Everything this rank owns, in arena order within each unit. Builds the model if needed.
    std::vector<owned_slice<State>> owned() {
        require_built();
        return detail::list_owned(state_);
    }
    std::span<moment_type> state(state_handle which) {
        require_built();
        return {reinterpret_cast<moment_type*>(state_.moments[which.index].data()), state_.trainable};
    }
    std::span<master_type> masters() {
        require_built();
        return {reinterpret_cast<master_type*>(state_.masters.data()), state_.owned};
    }
    /// The sums of this step over this rank's trainable elements. Throws while a reduction is still to come.
    std::span<const accumulate_type> gradients() { return detail::final_gradients(state_, "gradients()"); }
    /// The same to be changed before the step ends, on the compute stream: to add what other stages of a pipeline found
    /// for tied weights. Called by all ranks, also those that change nothing; the norm is taken anew after it.
    std::span<accumulate_type> write_gradients() {
        detail::require_step_through(state_, "write_gradients()");
        state_.votes_current = false;
        return detail::final_gradients(state_, "write_gradients()");
    }
    /// Where every rank holds whole masters (no_shard): all take rank `root`'s. Elsewhere nothing is held twice.
    void synchronize_weights(std::size_t root = 0) {
        if (root >= ranks()) {
            throw argument_error("E-ARGUMENT-10", text("synchronize_weights(): rank ", root, " of ", ranks(),
                                                       "; ranks are numbered from 0"));
        }
        auto writing = write_weights();
        detail::broadcast_masters(state_, root);
        writing.close();
    }
    /// Throws disagreement_error naming the first unit whose masters differ between ranks that should hold the same.
    void check_replicas() {
        detail::require_usable(state_);
        require_built();
        detail::compare_replicas(state_);
    }

    // ---------------------------------------------------------------------------------------------------- step
    /// Announces a step; without it the first scope announces one microbatch. Ranks compare what they announce.
    void begin_step(step_options options = {}) { detail::begin_step(state_, options); }
    evaluation_scope<State> evaluate() { return evaluation_scope<State>(state_); }
    /// Takes part in one microbatch of a plain loop with zero gradients: for ranks that have less data than others.
    void idle_microbatch() {
        detail::require_usable(state_);
        if (state_.at != detail::stage::in_step) begin_step();
        if (state_.order.at_end(state_.cursor)) {
            throw order_error("E-ORDER-11", text("idle_microbatch(): all ", state_.microbatches,
                                                 " announced microbatches of step ", state_.step, " are through"));
        }
        const std::size_t microbatch = state_.order.at(state_.cursor).microbatch;
        take_while([&](const order_entry& entry) { return entry.microbatch == microbatch; });
    }
    /// Takes what is left of the present pass (forward or backward of one microbatch) with zeros: call it before the
    /// trainer's own blocking messages where a rank may leave units out at the end of a pass.
    void finish_pass() {
        detail::require_usable(state_);
        if (state_.at != detail::stage::in_step) return;
        const std::size_t pass = state_.cursor.pass;
        if (state_.cursor.use != 0) take_while([&](const order_entry&) { return state_.cursor.pass == pass; });
        detail::issue_outer(state_);
    }

    /// Collective, waits: ranks compare which units they will enter in the microbatch that begins. Where they differ
    /// all throw disagreement_error (E-AGREE-6) naming a unit and ranks, before anything of the microbatch is sent.
    void announce_use(const std::vector<unit*>& used) {
        detail::require_usable(state_);
        if (state_.at != detail::stage::in_step) begin_step();
        for (unit* one : used) this->require_own_unit(*one, "announce_use()");
        detail::announce_use(state_, used);
    }
    /// Collective: runs `function()` on one rank inside an evaluation (sampling), while the others serve its gathers.
    /// If it throws, the error leaves on that rank and the others get peer_error; the model is as before.
    template <class Function>
    void on_rank(std::size_t rank, Function&& function) {
        detail::on_rank(state_, rank, function);
    }
    /// Another reshard policy from the next step on. Collective, between steps; the policy's slot must be a value
    /// (any_reshard). May allocate, and moves buffers: views and captured graphs of earlier steps are void.
    template <std::convertible_to<any_reshard> Reshard>
    void change_reshard(Reshard next) {  // a template, so that models with a fixed policy can be instantiated whole
        static_assert(
            std::is_same_v<typename State::reshard_type, any_reshard>,
            "reshard [E-POLICY-12]: change_reshard() needs a policy whose reshard slot is a value: any_reshard, "
            "as in runtime_policy<>");
        detail::change_reshard(state_, any_reshard(std::move(next)));
    }

    /// Drops the step's gradients, on all ranks: weights, optimizer state and its step count stay as they are.
    void discard_step() {
        require_through("discard_step()");
        detail::end_step(state_, vote_discard, 0, {}, {});
    }
    /// For optimizers: ends the step with one commit, and behind it `update(context)`, which must not throw. It is kept
    /// until the commit is through, so `self` must live that long.
    void step(const commit_options& options, detail::update_call update) {
        if (!is_finite(options.gradient_scale) || !is_finite(options.clip_norm) || options.clip_norm < 0) {
            throw argument_error("E-ARGUMENT-9",
                                 text("step(): gradient_scale ", options.gradient_scale, " and clip_norm ",
                                      options.clip_norm, " must be finite, clip_norm at least 0"));
        }
        require_through("step()");
        const std::uint64_t numbers =
            detail::mixed(detail::mixed(options.numbers ^ options.count, options.gradient_scale), options.clip_norm);
        detail::end_step(state_, vote_apply, numbers, {options.gradient_scale, options.clip_norm, options.count},
                         update);
    }
    /// How the last step ended. Waits for it.
    commit_outcome outcome() {
        require_built();
        detail::synchronize_compute(state_);
        commit_outcome result;
        state_.device.download(reinterpret_cast<std::byte*>(&result), state_.control.data(), sizeof(result));
        return result;
    }

    /// This rank's value of a scalar for the present step.
    void set_metric(metric which, double value) {
        require_built();
        require_metric(which);
        state_.metric_values[which.index] = value;
        state_.votes_current = false;
    }
    /// Sum over ranks of the values set so far, or, after step() or discard_step(), of those of the ended step. Costs
    /// an all-gather (with gradient_norm() one for both) if a value or a gradient has changed since. Collective, waits.
    double metric_sum(metric which) {
        require_built();
        require_metric(which);
        exchange_votes();
        return detail::sum_of_metric(state_, which.index);
    }
    /// The norm of the whole gradient, averaged as the options say, before step(); the same bits on all ranks. Waits.
    double gradient_norm() {
        require_through("gradient_norm()");
        exchange_votes();
        return detail::norm_of_votes(state_);
    }

    // ------------------------------------------------------------------------------------------- reports, faults
    /// After an error, on all ranks: everything started ends, what was not issued everywhere is issued with empty data,
    /// the step is dropped. Weights, optimizer state and step count are those of the last commit; the trainer repeats
    /// the whole step. Throws if ranks cannot agree again: load a checkpoint then.
    void reset() { detail::reset(state_); }
    /// Units, sizes, policy, buffers and predicted traffic, for people. Builds the model if needed.
    std::string describe() {
        require_built();
        return detail::describe(state_);
    }
    model_report report() {
        require_built();
        return detail::make_report(state_);
    }
    const model_plan& plan() const { return state_.plan; }
    std::size_t rank() const { return state_.rank(); }
    std::size_t ranks() const { return state_.ranks(); }
    std::uint64_t steps() const { return state_.committed; }
    State& internals() { return state_; }

private:
    void require_built() {
        if (state_.at == detail::stage::declaring) detail::build(state_);
    }
    void require_metric(metric which) const {
        if (which.index < state_.metrics.size()) return;
        throw argument_error("E-ARGUMENT-11",
                             text("a metric that add_metric() of this model did not return (the model has ",
                                  state_.metrics.size(), ")"));
    }
    /// Everything that was announced has happened; units left out of the last pass are taken with zeros if so wished.
    void require_through(const char* call) {
        detail::require_step_through(state_, call);
        if (state_.options.skipped == skipped_units::with_zeros) finish_pass();
        if (!detail::step_is_through(state_)) throw_unfinished(call);
    }
    [[noreturn]] void throw_unfinished(const char* call) const {
        const order_entry due = state_.order.at(state_.cursor);
        throw order_error("E-ORDER-12",
                          text("rank ", state_.rank(), ": ", call, " in step ", state_.step, ", but ",
                               detail::describe_entry(state_, due), " is still to come (", state_.microbatches,
                               " microbatches announced). Was this ", name_of(due.what),
                               " left out? idle_microbatch() takes the rest of a microbatch with zeros"));
    }
    template <class Condition>
    void take_while(Condition&& more) {
        while (!state_.order.at_end(state_.cursor)) {
            const order_entry entry = state_.order.at(state_.cursor);
            if (!more(entry)) return;
            detail::take_with_zeros(state_, entry);
        }
    }
    /// Shares norm (inside a step) and metrics, unless nothing has changed since they were last shared.
    void exchange_votes() {
        require_built();
        if (state_.votes_current) return;
        if (state_.at == detail::stage::in_step) {
            detail::join_step(state_);
            state_.predicted.sum += predict_exchange(state_.plan);
        }
        detail::gather_votes(state_, 0, 0, "norm and metrics");  // not a vote: nobody may take it for one
        state_.votes_current = true;
    }

    int exceptions_ = std::uncaught_exceptions();
};

}  // namespace v0
}  // namespace reshard
