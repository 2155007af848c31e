// A reshard policy as a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../core/text.hpp"
#include "option_text.hpp"
#include "planned.hpp"
#include "reshard.hpp"

namespace reshard {
inline namespace v0 {

/// A reshard policy found at run time. By default reshard_always.
class any_reshard {
public:
    any_reshard() = default;
    any_reshard(reshard_always) {}
    any_reshard(reshard_never) : kept_(every) {}
    any_reshard(keep_until_step) : kept_(every), until_step_(true) {}
    template <std::size_t Units>
        requires(Units > 0)
    any_reshard(keep_last<Units>) : kept_(Units) {}
    template <std::size_t Ranks, class Until>
        requires(Ranks > 0)
    any_reshard(reshard_to_group<Ranks, Until>)
        : kept_(every), group_(Ranks), until_step_(std::is_same_v<Until, until_step>) {}
    /// The choice is made anew.
    any_reshard(const pipeline_default& planned)
        : kept_(every), cap_(planned.cap()), decides_(decides::reduce_once), until_step_(true) {}
    any_reshard(const reshard_within& planned)
        : cap_(planned.cap()), microbatches_(planned.microbatches()), decides_(decides::units) {}
    template <class Reshard>
        requires(!detail::is_accumulating<Reshard>::value && !ChosenReshard<Reshard>)
    any_reshard(const accumulate_unsharded<Reshard>& policy_of_it)
        : any_reshard(any_reshard(policy_of_it.reshard).accumulated()) {}

    /// "reshard_always", "keep_last:2", "reshard_to_group:2,until_step", "reshard_within:512MiB,4",
    /// "accumulate_unsharded:keep_last:2"; throws argument_error (E-POLICY-7) that lists names(); E-POLICY-5 and
    /// E-POLICY-9 for what does not go inside accumulate_unsharded.
    static any_reshard parse(std::string_view given) {
        const detail::option_text option(given);
        if (option.name == "keep_last") {
            any_reshard out;
            out.kept_ = detail::positive_number(option.rest, given, "keep_last:1");
            return out;
        }
        if (option.name == "reshard_to_group") return group_in(option.rest, given);
        if (option.name == "reshard_within") return within_in(option.rest, given);
        if (option.name == "accumulate_unsharded") return accumulated_in(option.rest, given);
        if (given == "reshard_always") return reshard_always{};
        if (given == "reshard_never") return reshard_never{};
        if (given == "keep_until_step") return keep_until_step{};
        if (given == "pipeline_default") return pipeline_default{};
        if (option.name == "pipeline_default")
            return pipeline_default(detail::positive_bytes(option.rest, given, "pipeline_default:2GiB"));
        detail::unknown_name("reshard policy", given, names());
    }
    static std::span<const char* const> names() {
        static constexpr const char* list[] = {"reshard_always",
                                               "reshard_never",
                                               "keep_until_step",
                                               "keep_last:<n>",
                                               "reshard_to_group:<k>",
                                               "reshard_to_group:<k>,until_step",
                                               "accumulate_unsharded:<one of these>",
                                               "pipeline_default",
                                               "pipeline_default:<bytes>",
                                               "reshard_within:<bytes>",
                                               "reshard_within:<bytes>,<microbatches>"};
        return list;
    }

    /// The same within accumulate_unsharded<>; E-POLICY-9 for a policy that decides itself how often to reduce.
    any_reshard accumulated() const {
        detail::require_not_chosen(chosen_at_build(), text("accumulate_unsharded<", describe(), ">"));
        any_reshard out = *this;
        out.choice_.reduce_once = true;
        return out;
    }

    afterwards after_forward(unit_place unit) const {
        if (decides_ == decides::units) return choice_.of(unit).after_forward;
        return kept_ >= unit.count - unit.index ? held() : afterwards::free;
    }
    afterwards after_backward(unit_place unit) const {
        if (decides_ == decides::units) return choice_.of(unit).after_backward;
        return until_step_ ? held() : afterwards::free;
    }
    std::size_t group(unit_place unit) const {
        if (decides_ == decides::units) return choice_.of(unit).group;
        return group_ != none ? group_ : 1;
    }
    bool reduce_once() const { return choice_.reduce_once; }
    void check(std::size_t units) const {
        if (kept_ != every) detail::require_kept_units(kept_, units);
    }

    bool chosen_at_build() const { return decides_ != decides::nothing; }
    std::size_t cap() const { return cap_; }
    std::size_t microbatches() const { return microbatches_; }
    bool chooses_units() const { return decides_ == decides::units; }
    void accept(std::vector<unit_choice> units, bool once, std::string reason) {
        choice_ = {std::move(units), once, std::move(reason)};
    }
    const std::string& why() const { return choice_.why; }

    bool operator==(const any_reshard&) const = default;

    std::string describe() const {
        if (decides_ == decides::units) return detail::reshard_within_text(cap_, microbatches_);
        if (decides_ == decides::reduce_once) return detail::pipeline_default_text(cap_);
        const std::string kept = kept_ == 0       ? reshard_always::describe()
                                 : kept_ != every ? text("keep_last<", kept_, ">")
                                 : group_ != none ? detail::reshard_to_group_text(group_, until_step_)
                                 : until_step_    ? keep_until_step::describe()
                                                  : reshard_never::describe();
        return choice_.reduce_once ? text("accumulate_unsharded<", kept, ">") : kept;
    }

private:
    static constexpr std::size_t every = static_cast<std::size_t>(-1), none = 0;
    enum class decides : std::uint8_t { nothing, reduce_once, units };

    /// What the kept units do.
    afterwards held() const { return group_ != none ? afterwards::group : afterwards::keep; }

    static any_reshard group_in(std::string_view rest, std::string_view whole) {
        const detail::option_text parts(rest, ',');
        any_reshard out = keep_until_step{};
        out.group_ = detail::positive_number(parts.name, whole, "reshard_to_group:2");
        out.until_step_ = parts.rest == "until_step";
        if (!out.until_step_ && parts.name.size() != rest.size())
            throw argument_error("E-POLICY-7", text("\"", whole,
                                                    "\" has something else than until_step behind the "
                                                    "comma; write reshard_to_group:",
                                                    out.group_, ",until_step"));
        return out;
    }
    static any_reshard within_in(std::string_view rest, std::string_view whole) {
        constexpr const char* example = "reshard_within:512MiB or reshard_within:512MiB,4";
        const detail::option_text parts(rest, ',');
        const std::size_t bytes = detail::positive_bytes(parts.name, whole, example);
        if (parts.name.size() == rest.size()) return reshard_within(bytes);
        return reshard_within(bytes, detail::positive_number(parts.rest, whole, example));
    }
    static any_reshard accumulated_in(std::string_view rest, std::string_view whole) {
        if (rest.empty())
            throw argument_error("E-POLICY-7", text("unknown reshard policy \"", whole,
                                                    "\": give the one inside it behind "
                                                    "a colon, as in accumulate_unsharded:keep_last:2"));
        const any_reshard inner = parse(rest);
        if (inner.reduce_once())
            throw argument_error("E-POLICY-5", text("accumulate_unsharded inside accumulate_unsharded (\"", whole,
                                                    "\"); write it once"));
        return inner.accumulated();
    }

    std::size_t kept_ = 0;  // how many of the last units stay gathered, or in a group, from forward to backward
    std::size_t group_ = none;
    std::size_t cap_ = dynamic;
    std::size_t microbatches_ = 1;
    decides decides_ = decides::nothing;
    bool until_step_ = false;
    detail::plan_choice choice_;  // its reduce_once holds for every policy
};

}  // namespace v0
}  // namespace reshard
