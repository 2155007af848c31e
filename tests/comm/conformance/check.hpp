// What the conformance cases share: numbers to send, and checks that throw.
#pragma once

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <reshard/comm/concept.hpp>
#include <reshard/core/error.hpp>
#include <reshard/core/types.hpp>
#include <reshard/device/concept.hpp>

namespace conformance {

using reshard::label;
using reshard::text;
using std::size_t;

struct settings {
    double deadline_seconds = 60;
    bool delays = false;  // up to 300 microseconds before every queued command, other ones on every rank
};

/// Checks inside ranks throw: other ranks hear of it at once, and assertion macros stay on one thread.
template <class... Pieces>
void demand(bool holds, const Pieces&... pieces) {
    if (!holds) throw std::logic_error(text("not so: ", pieces...));
}

inline void pause_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

template <class Type>
double as_double(Type value) {
    if constexpr (std::is_arithmetic_v<Type>) {
        return static_cast<double>(value);
    } else if constexpr (std::is_same_v<Type, std::byte>) {
        return static_cast<double>(std::to_integer<unsigned>(value));
    } else {
        return static_cast<double>(static_cast<float>(value));
    }
}

template <class Type>
Type as(double value) {
    if constexpr (std::is_same_v<Type, std::byte>) {
        return static_cast<std::byte>(static_cast<unsigned>(value));
    } else if constexpr (std::is_arithmetic_v<Type>) {
        return static_cast<Type>(value);
    } else {
        return Type(static_cast<float>(value));
    }
}

/// Whole numbers of -15 to 15 (0 to 30 for bytes): sums over 16 ranks are exact even in bf16.
template <class Type>
double number(size_t rank, size_t i) {
    const double from = std::is_same_v<Type, std::byte> ? 0 : -15;
    return static_cast<double>((rank * 7 + i * 3 + i / 31) % 31) + from;
}

inline std::vector<size_t> element_counts() { return {0, 1, 7, 64, 1000, 4099}; }

template <class Type>
std::span<Type> whole(std::vector<Type>& values) {
    return std::span<Type>(values);
}

/// What rank r contributes: `count` numbers, counted on from element `from`.
template <class Type>
std::vector<Type> contribution(size_t rank, size_t count, size_t from = 0) {
    std::vector<Type> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = as<Type>(number<Type>(rank, from + i));
    return values;
}

template <class Type>
double sum_of(size_t ranks, size_t i) {
    double sum = 0;
    for (size_t r = 0; r < ranks; ++r) sum += number<Type>(r, i);
    return sum;
}

inline void demand_same(double found, double expected, const char* what, size_t i, size_t ranks, size_t count) {
    demand(found == expected, what, ", element ", i, " of ", count, " over ", ranks, " ranks is ", found, ", expected ",
           expected);
}
template <class Type>
void demand_equal(const Type& found, double expected, const char* what, size_t i, size_t ranks, size_t count) {
    demand_same(as_double(found), expected, what, i, ranks, count);
}

template <class Type>
void demand_gathered(const std::vector<Type>& all, size_t ranks, size_t block, const char* what) {
    for (size_t i = 0; i < all.size(); ++i) {
        demand_equal(all[i], number<Type>(i / block, i % block), what, i, ranks, all.size());
    }
}

/// Waits on the host for all that is on a stream.
template <class Comm, class Stream>
void finish(const Comm& comm, const Stream& stream) {
    auto device = comm.device();
    auto point = device.make_event();
    device.record(point, stream);
    device.synchronize(point);
}

}  // namespace conformance
