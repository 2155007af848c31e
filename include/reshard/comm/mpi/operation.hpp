// What is asked of a group of MPI ranks, what the ranks tell each other of it, and the sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "../../core/types.hpp"
#include "../checks.hpp"
#include "../concept.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

enum class mpi_kind : std::uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, barrier, all_to_all };

constexpr const char* name_of(mpi_kind kind) {
    constexpr const char* names[] = {"all_gather", "reduce_scatter", "all_reduce",
                                     "broadcast",  "barrier",        "all_to_all"};
    return names[static_cast<std::size_t>(kind)];
}

/// The element's type on the wire; plain is std::byte.
enum class mpi_element : std::uint8_t { f64, f32, bf16, fp16, plain };

template <class Type>
constexpr mpi_element mpi_element_of() {
    if constexpr (Element<Type>) return static_cast<mpi_element>(dtype_of<Type>);
    return mpi_element::plain;
}
constexpr std::string_view name_of(mpi_element element) {
    return element == mpi_element::plain ? "byte" : name_of(static_cast<dtype>(element));
}

/// One collective as issued. `count` is elements of one block, or of the whole for all_reduce and broadcast.
/// In place, both pointers are the whole buffer's.
struct mpi_operation {
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
    std::size_t count = 0;
    std::uint64_t number = 0;  // issue number within the group, from 1
    label name{};
    std::uint32_t width = 1;  // bytes of an element
    std::uint32_t root = 0;
    mpi_kind kind = mpi_kind::barrier;
    mpi_element element = mpi_element::plain;
    bool in_place = false;

    bool reduces() const { return kind == mpi_kind::reduce_scatter || kind == mpi_kind::all_reduce; }
};

/// Cuts `from` to what fits, ended by a zero.
template <std::size_t Room>
void write_text(char (&to)[Room], std::string_view from) {
    std::size_t length = 0;
    for (; length < from.size() && length + 1 < Room; ++length) to[length] = from[length];
    to[length] = 0;
}

/// What every rank sends to its right neighbour at the start of each operation: 96 bytes.
struct mpi_header {
    std::uint64_t number = 0, count = 0;
    std::uint32_t root = 0;
    mpi_kind kind = mpi_kind::barrier;
    mpi_element element = mpi_element::plain;
    char what[24] = {};
    char unit[50] = {};

    mpi_header() = default;
    explicit mpi_header(const mpi_operation& from)
        : number(from.number), count(from.count), root(from.root), kind(from.kind), element(from.element) {
        write_text(what, from.name.what);
        write_text(unit, from.name.unit);
    }

    /// What it is called is for texts; all else must be equal, the unit too: units of one size must not mix.
    bool fits(const mpi_header& other) const {
        return number == other.number && count == other.count && root == other.root && kind == other.kind &&
               element == other.element && std::string_view(unit) == other.unit;
    }
    /// "all_gather of 6 float (gather of h.0)"
    std::string described() const {
        std::string out = name_of(kind);
        if (kind == mpi_kind::broadcast) out += text(" from rank ", root);
        if (kind != mpi_kind::barrier) out += text(" of ", count, " ", name_of(element));
        return text(out, " (", words({what, unit}), ")");
    }
};
static_assert(sizeof(mpi_header) == 96 && std::is_trivially_copyable_v<mpi_header>);

/// out = left + right for float and double.
template <class Type>
void add_elements(const std::byte* left, const std::byte* right, std::byte* out, std::size_t count) {
    const auto* a = reinterpret_cast<const Type*>(left);
    const auto* b = reinterpret_cast<const Type*>(right);
    auto* sum = reinterpret_cast<Type*>(out);
    for (std::size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

/// The sum of `ranks` inputs in rank order, in the arithmetic type, rounded once.
template <class Type>
void sum_in_rank_order(const std::byte* const* inputs, std::size_t ranks, std::byte* out, std::size_t count) {
    constexpr std::size_t tile = 256;
    arithmetic<Type> sums[tile];
    for (std::size_t begin = 0; begin < count; begin += tile) {
        const std::size_t n = count - begin < tile ? count - begin : tile;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            const auto* values = reinterpret_cast<const Type*>(inputs[rank]) + begin;
            for (std::size_t i = 0; i < n; ++i)
                sums[i] = rank == 0 ? static_cast<arithmetic<Type>>(values[i])
                                    : sums[i] + static_cast<arithmetic<Type>>(values[i]);
        }
        auto* sum = reinterpret_cast<Type*>(out) + begin;
        for (std::size_t i = 0; i < n; ++i) sum[i] = static_cast<Type>(sums[i]);
    }
}

inline void add_elements(mpi_element element, const std::byte* left, const std::byte* right, std::byte* out,
                         std::size_t count) {
    if (element == mpi_element::f64) add_elements<double>(left, right, out, count);
    if (element == mpi_element::f32) add_elements<float>(left, right, out, count);
}

inline void sum_in_rank_order(mpi_element element, const std::byte* const* inputs, std::size_t ranks, std::byte* out,
                              std::size_t count) {
    if (element == mpi_element::f64) sum_in_rank_order<double>(inputs, ranks, out, count);
    if (element == mpi_element::f32) sum_in_rank_order<float>(inputs, ranks, out, count);
    if (element == mpi_element::bf16) sum_in_rank_order<bf16>(inputs, ranks, out, count);
    if (element == mpi_element::fp16) sum_in_rank_order<fp16>(inputs, ranks, out, count);
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
