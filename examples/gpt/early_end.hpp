// How a program ends: what cannot work is one line on stderr and a non-zero exit.
#pragma once

#include <algorithm>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>

namespace gpt {

/// Ends a program early and in order: help, or a sentence about an option.
struct early_end : std::runtime_error {
    early_end(const std::string& text, int code) : std::runtime_error(text), status(code) {}
    int status;
};

/// Runs the body of main; every error is one line on stderr and a non-zero exit.
template <class Body>
int guarded(const std::string& program, Body body) {
    try {
        body();
        return 0;
    } catch (const early_end& end) {
        if (end.status == 0) {
            std::cout << end.what();
            return 0;
        }
        std::cerr << program << ": " << end.what() << '\n';
        return end.status;
    } catch (const std::exception& error) {
        std::string text = error.what();
        std::replace(text.begin(), text.end(), '\n', ' ');
        std::cerr << program << ": " << text << '\n';
        return 1;
    }
}

}  // namespace gpt
