// Policies as values: chosen by a configuration file or the command line.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "../core/error.hpp"
#include "../core/text.hpp"
#include "policy.hpp"

namespace reshard {
inline namespace v0 {

namespace detail {

/// "name:rest" taken apart; `rest` is empty without a colon.
struct option_text {
    std::string_view name, rest;
    explicit option_text(std::string_view whole)
        : name(whole.substr(0, whole.find(':'))),
          rest(name.size() == whole.size() ? std::string_view() : whole.substr(name.size() + 1)) {}
};

/// A whole number above 0 in digits; E-POLICY-7 with the whole option otherwise.
inline std::size_t positive_number(std::string_view digits, std::string_view whole, const char* example) {
    std::size_t value = 0;
    bool good = !digits.empty();
    for (const char digit : digits) {
        good = good && digit >= '0' && digit <= '9' && !__builtin_mul_overflow(value, std::size_t{10}, &value) &&
               !__builtin_add_overflow(value, static_cast<std::size_t>(digit - '0'), &value);
    }
    if (!good || value == 0)
        throw argument_error("E-POLICY-7",
                             text("\"", whole, "\" needs a whole number above 0 behind the colon, as in ", example));
    return value;
}

[[noreturn]] inline void unknown_name(const char* what, std::string_view given, std::span<const char* const> known) {
    throw argument_error("E-POLICY-7", text("unknown ", what, " \"", given, "\"; known: ", joined(known)));
}

}  // namespace detail

/// A sharding strategy found at run time, the same for all units. By default full_shard.
class any_sharding {
public:
    constexpr any_sharding() : any_sharding(full_shard{}) {}
    constexpr any_sharding(no_shard strategy) : any_sharding(strategy, unit_place{}) {}
    constexpr any_sharding(shard_optimizer strategy) : any_sharding(strategy, unit_place{}) {}
    constexpr any_sharding(shard_gradients strategy) : any_sharding(strategy, unit_place{}) {}
    constexpr any_sharding(full_shard strategy) : any_sharding(strategy, unit_place{}) {}
    /// Any three placements; policy::check() refuses what does not go together.
    constexpr any_sharding(placement of_parameters, placement of_gradients, placement of_optimizer_state)
        : parameters_(of_parameters), gradients_(of_gradients), optimizer_state_(of_optimizer_state) {}

    /// "full_shard"; throws argument_error (E-POLICY-7) that lists names().
    static any_sharding parse(std::string_view name) {
        if (name == "no_shard") return no_shard{};
        if (name == "shard_optimizer") return shard_optimizer{};
        if (name == "shard_gradients") return shard_gradients{};
        if (name == "full_shard") return full_shard{};
        detail::unknown_name("sharding strategy", name, names());
    }
    static std::span<const char* const> names() {
        static constexpr const char* list[] = {"no_shard", "shard_optimizer", "shard_gradients", "full_shard"};
        return list;
    }

    constexpr placement parameters(unit_place) const { return parameters_; }
    constexpr placement gradients(unit_place) const { return gradients_; }
    constexpr placement optimizer_state(unit_place) const { return optimizer_state_; }
    bool operator==(const any_sharding&) const = default;

    std::string describe() const {
        for (const char* name : names()) {
            if (*this == parse(name)) return name;
        }
        return text("sharding(", placements_text(*this, unit_place{}), ")");
    }

private:
    template <class Strategy>
    constexpr any_sharding(Strategy strategy, unit_place unit)
        : any_sharding(strategy.parameters(unit), strategy.gradients(unit), strategy.optimizer_state(unit)) {}

    placement parameters_, gradients_, optimizer_state_;
};

/// A reshard policy found at run time. By default reshard_always.
class any_reshard {
public:
    constexpr any_reshard() = default;
    constexpr any_reshard(reshard_always) {}
    constexpr any_reshard(reshard_never) : kept_(every) {}
    constexpr any_reshard(keep_until_step) : kept_(every), until_step_(true) {}
    template <std::size_t Units>
        requires(Units > 0)
    constexpr any_reshard(keep_last<Units>) : kept_(Units) {}
    template <class Reshard>
        requires(!detail::is_accumulating<Reshard>::value)
    constexpr any_reshard(accumulate_unsharded<Reshard> policy_of_it)
        : any_reshard(any_reshard(policy_of_it.reshard).accumulated()) {}

    /// "reshard_always", "keep_last:2", "accumulate_unsharded:keep_last:2"; throws argument_error (E-POLICY-7) that
    /// lists names().
    static any_reshard parse(std::string_view given) {
        const detail::option_text option(given);
        if (option.name == "keep_last") {
            any_reshard out;
            out.kept_ = detail::positive_number(option.rest, given, "keep_last:1");
            return out;
        }
        if (option.name == "accumulate_unsharded") {
            if (option.rest.empty())
                throw argument_error("E-POLICY-7", text("unknown reshard policy \"", given,
                                                        "\": give the one inside it behind "
                                                        "a colon, as in accumulate_unsharded:keep_last:2"));
            const any_reshard inner = parse(option.rest);
            if (inner.reduce_once())
                throw argument_error("E-POLICY-5", text("accumulate_unsharded inside accumulate_unsharded (\"", given,
                                                        "\"); write it once"));
            return inner.accumulated();
        }
        if (given == "reshard_always") return reshard_always{};
        if (given == "reshard_never") return reshard_never{};
        if (given == "keep_until_step") return keep_until_step{};
        detail::unknown_name("reshard policy", given, names());
    }
    static std::span<const char* const> names() {
        static constexpr const char* list[] = {"reshard_always", "reshard_never", "keep_until_step", "keep_last:<n>",
                                               "accumulate_unsharded:<one of these>"};
        return list;
    }

    /// The same within accumulate_unsharded<>.
    constexpr any_reshard accumulated() const {
        any_reshard out = *this;
        out.once_ = true;
        return out;
    }

    constexpr afterwards after_forward(unit_place unit) const {
        return kept_ >= unit.count - unit.index ? afterwards::keep : afterwards::free;
    }
    constexpr afterwards after_backward(unit_place) const { return until_step_ ? afterwards::keep : afterwards::free; }
    constexpr bool reduce_once() const { return once_; }
    void check(std::size_t units) const {
        if (kept_ != every) detail::require_kept_units(kept_, units);
    }
    bool operator==(const any_reshard&) const = default;

    std::string describe() const {
        const std::string kept = kept_ == 0       ? reshard_always::describe()
                                 : kept_ != every ? text("keep_last<", kept_, ">")
                                 : until_step_    ? keep_until_step::describe()
                                                  : reshard_never::describe();
        return once_ ? text("accumulate_unsharded<", kept, ">") : kept;
    }

private:
    static constexpr std::size_t every = static_cast<std::size_t>(-1);

    std::size_t kept_ = 0;  // how many of the last units stay gathered from forward to backward
    bool until_step_ = false;
    bool once_ = false;
};

/// A group topology found at run time. By default flat, of any number of ranks.
class any_topology {
public:
    constexpr any_topology() = default;
    template <std::size_t Ranks>
        requires(Ranks > 0)
    constexpr any_topology(flat<Ranks>) : ranks_(Ranks) {}

    /// "flat" or "flat:4"; throws argument_error (E-POLICY-7) that lists names().
    static any_topology parse(std::string_view given) {
        const detail::option_text option(given);
        any_topology out;
        if (option.name != "flat") detail::unknown_name("group topology", given, names());
        if (given != "flat") out.ranks_ = detail::positive_number(option.rest, given, "flat:4");
        return out;
    }
    static std::span<const char* const> names() {
        static constexpr const char* list[] = {"flat", "flat:<n>"};
        return list;
    }

    constexpr std::size_t levels() const { return 1; }
    group_shape resolve(std::size_t world) const {
        require_fit({.world = world, .outer = 1, .inner = ranks_});
        return {1, world};
    }
    bool operator==(const any_topology&) const = default;
    std::string describe() const { return text("flat<", extent_text(ranks_), ">"); }

private:
    std::size_t ranks_ = dynamic;
};

/// Strategy, reshard policy and topology as values, through the same engine.
template <class Precision = precision<float>>
using runtime_policy = policy<any_sharding, any_reshard, any_topology, Precision>;

}  // namespace v0
}  // namespace reshard
